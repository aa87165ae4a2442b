package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/internal/xfer"
)

// This file takes a configuration from YAML to a checked Config. All that is wrong is collected,
// each with its line.

// Overrides are what a command line says instead of the file.
type Overrides struct {
	// Set has values as PATH=VALUE, such as limits.qps=100: PATH names keys from the top, and
	// elements of lists by number or name.
	Set []string
	// Interfaces to serve instead of the file's. One that the file names keeps what it says of it.
	Interfaces []string
}

// Load reads and checks a configuration file. What is wrong comes as *ConfigError.
func Load(file string, o Overrides) (*Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, text, o)
}

// Parse is Load for a text; file is what problems name it by.
func Parse(file string, text []byte, o Overrides) (*Config, error) {
	r := &reader{}
	root := r.parse(text)
	if root != nil {
		r.choose(root, o.Interfaces)
		for _, set := range o.Set {
			r.override(root, set)
		}
	}
	c := defaults()
	if len(r.problems) == 0 {
		r.config(root, c)
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
		return nil, &ConfigError{File: file, Problems: r.problems}
	}
	return c, nil
}

// reader collects problems on the way through a document.
type reader struct{ problems []Problem }

func (r *reader) fault(n *yaml.Node, format string, args ...any) {
	p := Problem{Line: n.Line, Text: fmt.Sprintf(format, args...)}
	if n.Line == 0 {
		p.Flag = n.HeadComment
	}
	r.problems = append(r.problems, p)
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// parse returns the document's root, a mapping, or nil.
func (r *reader) parse(text []byte) *yaml.Node {
	var doc yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc)
	if errors.Is(err, io.EOF) {
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	}
	if err != nil {
		p := Problem{Text: yamlLine.ReplaceAllString(err.Error(), "")}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil && m[1] != "" {
			p.Line, _ = strconv.Atoi(m[1])
		}
		r.problems = append(r.problems, p)
		return nil
	}
	root := resolve(doc.Content[0])
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		root = &yaml.Node{Kind: yaml.MappingNode, Line: root.Line}
	}
	return root
}

// choose makes names the interfaces of the document.
func (r *reader) choose(root *yaml.Node, names []string) {
	if len(names) == 0 {
		return
	}
	old := child(root, "interfaces")
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, name := range names {
		var n *yaml.Node
		if old != nil && old.Kind == yaml.SequenceNode {
			n = child(old, name)
		}
		if n == nil {
			n = &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
				{Kind: yaml.ScalarNode, Value: "name"}, {Kind: yaml.ScalarNode, Value: name}}}
			mark(n, "-d "+name)
		}
		list.Content = append(list.Content, n)
	}
	if old != nil {
		*old = *list
		return
	}
	root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "interfaces"}, list)
}

// override sets one value from the command line.
func (r *reader) override(root *yaml.Node, text string) {
	flag := "--set " + text
	path, value, ok := strings.Cut(text, "=")
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); !ok || path == "" || err != nil || len(doc.Content) == 0 {
		r.problems = append(r.problems, Problem{Flag: flag, Text: "want PATH=VALUE, such as limits.qps=100"})
		return
	}
	v := doc.Content[0]
	mark(v, flag)
	at, keys := root, strings.Split(path, ".")
	for i, key := range keys {
		if at.Kind == yaml.ScalarNode && at.ShortTag() == "!!null" { // a key with nothing behind it yet
			*at = yaml.Node{Kind: yaml.MappingNode, Line: at.Line, HeadComment: at.HeadComment}
		}
		next := child(at, key)
		if next == nil && at.Kind != yaml.MappingNode {
			r.problems = append(r.problems, Problem{Flag: flag,
				Text: fmt.Sprintf("%s has no %q", strings.Join(keys[:i], "."), key)})
			return
		}
		last := i == len(keys)-1
		switch {
		case next == nil:
			next = v
			if !last {
				next = &yaml.Node{Kind: yaml.MappingNode, HeadComment: flag}
			}
			at.Content = append(at.Content,
				&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, HeadComment: flag}, next)
		case last:
			*next = *v
		}
		at = next
	}
}

// mark makes problems with a node name the flag that it came from.
func mark(n *yaml.Node, flag string) {
	n.Line, n.HeadComment = 0, flag
	for _, c := range n.Content {
		mark(c, flag)
	}
}

// child finds what a key of a mapping, or a number or a name in a list, stands for.
func child(n *yaml.Node, key string) *yaml.Node {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return resolve(n.Content[i+1])
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.Content) {
			return resolve(n.Content[i])
		}
		for _, e := range n.Content {
			if e = resolve(e); e.Kind == yaml.MappingNode {
				if name := child(e, "name"); name != nil && name.Value == key {
					return e
				}
			}
		}
	}
	return nil
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func (r *reader) config(root *yaml.Node, c *Config) {
	var exports *yaml.Node
	r.mapping(root, "the file", fields{
		"interfaces": func(n *yaml.Node) {
			r.list(n, "interfaces", func(n *yaml.Node) { c.Interfaces = append(c.Interfaces, r.iface(n)) })
		},
		"limits":   func(n *yaml.Node) { r.limits(n, &c.Limits) },
		"control":  func(n *yaml.Node) { c.Control = r.text(n, socketPath, "an absolute path, as /run/roxie/control.sock") },
		"user":     func(n *yaml.Node) { c.User = r.text(n, userName, "a user's name or number") },
		"starter":  func(n *yaml.Node) { c.Starter = r.choice(n, "false", "true") == "true" },
		"services": func(n *yaml.Node) { r.services(n, c) },
		"exports": func(n *yaml.Node) {
			exports = n
			r.list(n, "exports", func(n *yaml.Node) { c.Exports = append(c.Exports, r.export(n)) })
		},
	})
	if len(c.Interfaces) == 0 && len(r.problems) == 0 {
		r.fault(root, "no interfaces: name one, as in `interfaces: [{name: eth0}]`, or give -d")
	}
	if c.Starter && c.User == "" && len(r.problems) == 0 {
		r.fault(root, "a starter is for an endpoint without rights: name a user, too")
	}
	r.unique(child(root, "interfaces"), "interface")
	r.unique(exports, "export")
	if len(r.problems) == 0 {
		r.distinctPorts(root, c)
		r.fitMemory(c)
	}
}

// unique refuses elements of the same name.
func (r *reader) unique(list *yaml.Node, what string) {
	if list == nil || list.Kind != yaml.SequenceNode {
		return
	}
	seen := map[string]int{}
	for _, e := range list.Content {
		name := child(resolve(e), "name")
		if name == nil {
			continue
		}
		if line, twice := seen[name.Value]; twice {
			r.fault(name, "%s %q is on line %d already", what, name.Value, line)
		}
		seen[name.Value] = name.Line
	}
}

// distinctPorts refuses two services on one port.
func (r *reader) distinctPorts(root *yaml.Node, c *Config) {
	services := child(root, "services")
	if services == nil {
		services = root
	}
	count := len(c.Perftest)
	for _, on := range []bool{c.RPing != nil, c.Echo != nil, len(c.Exports) > 0} {
		if on {
			count++
		}
	}
	ports := c.ports()
	if len(ports) == count {
		return
	}
	var taken []string
	for port, name := range ports {
		taken = append(taken, fmt.Sprintf("%d (%s)", port, name))
	}
	slices.Sort(taken)
	r.fault(services, "%d services share %d ports, each needs its own: taken are %s", count, len(ports),
		strings.Join(taken, ", "))
}

// fitMemory refuses exports that are larger than the limit.
func (r *reader) fitMemory(c *Config) {
	var sum int64
	for i := range c.Exports {
		e := &c.Exports[i]
		size := e.Size
		if size == 0 {
			if info, err := os.Stat(e.File); err == nil {
				size = info.Size()
			}
		}
		if sum += size; sum > c.Limits.Memory {
			r.problems = append(r.problems, Problem{Line: e.line, Text: fmt.Sprintf(
				"export %q does not fit: exports up to here take %s, limits.memory is %s", e.Name,
				FormatSize(sum), FormatSize(c.Limits.Memory))})
			return
		}
	}
}

func (r *reader) iface(n *yaml.Node) Interface {
	i := Interface{Queues: 1, Mode: "auto", Keepalive: DefaultKeepalive}
	r.mapping(n, "an interface", fields{
		"name":      func(n *yaml.Node) { i.Name = r.text(n, ifaceName, "an interface's name") },
		"queues":    func(n *yaml.Node) { i.Queues = r.number(n, 1, 64) },
		"vlan":      func(n *yaml.Node) { i.VLAN = r.number(n, 0, 4094) },
		"xdp":       func(n *yaml.Node) { i.Mode = r.choice(n, "auto", "native", "generic") },
		"keepalive": func(n *yaml.Node) { i.Keepalive = r.duration(n) },
		"addresses": func(n *yaml.Node) {
			r.list(n, "addresses", func(n *yaml.Node) {
				a, err := netip.ParseAddr(n.Value)
				if err != nil {
					r.fault(n, "%q is not an IP address", n.Value)
				}
				i.Addresses = append(i.Addresses, a)
			})
		},
	})
	if i.Name == "" && n.Kind == yaml.MappingNode {
		r.fault(n, "an interface needs a name")
	}
	return i
}

func (r *reader) limits(n *yaml.Node, l *Limits) {
	r.mapping(n, "limits", fields{
		"qps":                  func(n *yaml.Node) { l.QPs = r.number(n, 1, 1<<20) },
		"memory":               func(n *yaml.Node) { l.Memory = r.size(n) },
		"connections-per-peer": func(n *yaml.Node) { l.PerPeer = r.number(n, 1, 1<<20) },
	})
}

func (r *reader) services(n *yaml.Node, c *Config) {
	r.mapping(n, "services", fields{
		"rping": func(n *yaml.Node) {
			c.RPing = &RPing{Port: defaultRPingPort}
			r.mapping(n, "rping", fields{"port": func(n *yaml.Node) { c.RPing.Port = r.port(n) }})
		},
		"echo": func(n *yaml.Node) {
			c.Echo = &Echo{Port: DefaultEchoPort, Size: DefaultEchoSize}
			r.mapping(n, "echo", fields{
				"port": func(n *yaml.Node) { c.Echo.Port = r.port(n) },
				"size": func(n *yaml.Node) { c.Echo.Size = int(r.sizeTo(n, 1<<24)) },
			})
		},
		"perftest": func(n *yaml.Node) {
			r.list(n, "perftest", func(n *yaml.Node) { c.Perftest = append(c.Perftest, r.perftest(n)) })
		},
		"exports": func(n *yaml.Node) {
			r.mapping(n, "exports", fields{"port": func(n *yaml.Node) { c.ExportPort = r.port(n) }})
		},
	})
}

func (r *reader) perftest(n *yaml.Node) Perftest {
	p := Perftest{Port: DefaultPerftestPort, QPs: 1}
	r.mapping(n, "a perftest responder", fields{
		"test": func(n *yaml.Node) {
			t, err := perf.Lookup(n.Value)
			if err != nil {
				r.fault(n, "%v", err)
			}
			p.Test = t.Name
		},
		"port":       func(n *yaml.Node) { p.Port = r.port(n) },
		"size":       func(n *yaml.Node) { p.Size = int(r.sizeTo(n, 1<<23)) },
		"qps":        func(n *yaml.Node) { p.QPs = r.number(n, 1, 64) },
		"iterations": func(n *yaml.Node) { p.Iterations = r.number(n, 1, 1<<30) },
	})
	if p.Test == "" {
		if n.Kind == yaml.MappingNode && child(n, "test") == nil {
			r.fault(n, "which test? as in `test: write_bw`")
		}
		return p
	}
	if err := p.perf().Check(); err != nil {
		r.fault(n, "%v", err)
	}
	return p
}

func (r *reader) export(n *yaml.Node) Export {
	e := Export{line: n.Line}
	r.mapping(n, "an export", fields{
		"name":   func(n *yaml.Node) { e.Name = r.text(n, exportName, "an export's name (letters, digits, . _ -)") },
		"size":   func(n *yaml.Node) { e.Size = r.sizeTo(n, 1<<40) },
		"file":   func(n *yaml.Node) { e.File = n.Value },
		"access": func(n *yaml.Node) { e.Write = r.choice(n, "read-only", "read-write") == "read-write" },
		"allow": func(n *yaml.Node) {
			r.list(n, "allow", func(n *yaml.Node) { e.Allow = append(e.Allow, r.prefix(n)) })
		},
	})
	if n.Kind != yaml.MappingNode {
		return e
	}
	if e.Name == "" {
		r.fault(n, "an export needs a name")
	}
	if len(e.Allow) == 0 {
		r.fault(n, "export %q lets nobody in: name peers, as in `allow: [192.0.2.0/24]`", e.Name)
	}
	if e.File == "" && e.Size == 0 {
		r.fault(n, "export %q needs a size or a file", e.Name)
	}
	if e.File != "" {
		r.checkFile(n, &e)
	}
	return e
}

// checkFile makes sure that a file is, or can be, what an export needs.
func (r *reader) checkFile(n *yaml.Node, e *Export) {
	if at := child(n, "file"); at != nil {
		n = at
	}
	info, err := os.Stat(e.File)
	switch {
	case err == nil && !info.Mode().IsRegular():
		r.fault(n, "%s is not a regular file", e.File)
	case err == nil && info.Size() == 0 && e.Size == 0:
		r.fault(n, "%s is empty: give the size that it may grow to", e.File)
	case err != nil && !(errors.Is(err, os.ErrNotExist) && e.Write && e.Size > 0):
		r.fault(n, "%v", err)
	}
}

var (
	userName   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?$`)
	socketPath = regexp.MustCompile(`^(/[^\x00]{1,95})?$`)
	ifaceName  = regexp.MustCompile(`^[^\s/]{1,15}$`)
	exportName = regexp.MustCompile(fmt.Sprintf(`^[A-Za-z0-9._-]{1,%d}$`, xfer.MaxName))
)

// perf is the test's configuration.
func (p *Perftest) perf() *perf.Config {
	t, _ := perf.Lookup(p.Test)
	return &perf.Config{Test: t, Transport: perf.RC, Size: p.Size, QPs: p.QPs, Iters: p.Iterations, CM: true, Port: int(p.Port),
		GIDIndex: -1, CPU: -1, Progress: perf.Poller, Events: true}
}
