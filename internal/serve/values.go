package serve

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// This file reads single values of a configuration.

// fields say what to do with each key of a mapping.
type fields map[string]func(*yaml.Node)

// mapping reads a mapping; an empty value counts as an empty one.
func (r *reader) mapping(n *yaml.Node, what string, f fields) {
	if n = resolve(n); n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fault(n, "%s must be a mapping of keys to values", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		read := f[key.Value]
		switch {
		case read == nil:
			r.fault(key, "unknown key %q: %s has %s", key.Value, what,
				strings.Join(slices.Sorted(maps.Keys(f)), ", "))
		case seen[key.Value]:
			r.fault(key, "key %q stands here twice", key.Value)
		default:
			read(value)
		}
		seen[key.Value] = true
	}
}

func (r *reader) list(n *yaml.Node, what string, element func(*yaml.Node)) {
	if n = resolve(n); n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		r.fault(n, "%s must be a list", what)
		return
	}
	for _, e := range n.Content {
		element(resolve(e))
	}
}

func (r *reader) text(n *yaml.Node, rule *regexp.Regexp, what string) string {
	if n.Kind != yaml.ScalarNode || !rule.MatchString(n.Value) {
		r.fault(n, "%q is not %s", n.Value, what)
	}
	return n.Value
}

func (r *reader) choice(n *yaml.Node, of ...string) string {
	if !slices.Contains(of, n.Value) {
		r.fault(n, "%q: want %s", n.Value, strings.Join(of, ", "))
	}
	return n.Value
}

func (r *reader) number(n *yaml.Node, least, most int) int {
	v, err := strconv.Atoi(n.Value)
	if err != nil || v < least || v > most {
		r.fault(n, "%q: want a number from %d to %d", n.Value, least, most)
	}
	return v
}

func (r *reader) port(n *yaml.Node) uint16 { return uint16(r.number(n, 1, 65535)) }

func (r *reader) duration(n *yaml.Node) time.Duration {
	d, err := time.ParseDuration(n.Value)
	if n.Value != "0" && (err != nil || d < 0) {
		r.fault(n, "%q: want a duration such as 30s, or 0", n.Value)
	}
	return d
}

func (r *reader) prefix(n *yaml.Node) netip.Prefix {
	if a, err := netip.ParseAddr(n.Value); err == nil {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
	}
	p, err := netip.ParsePrefix(n.Value)
	if err != nil {
		r.fault(n, "%q is neither an address nor a prefix such as 192.0.2.0/24", n.Value)
		return p
	}
	if p != p.Masked() {
		r.fault(n, "%s has bits behind its mask: write %s", n.Value, p.Masked())
	}
	return p
}

func (r *reader) size(n *yaml.Node) int64 { return r.sizeTo(n, 1<<46) }

func (r *reader) sizeTo(n *yaml.Node, most int64) int64 {
	v, err := ParseSize(n.Value)
	if err != nil || v < 1 || v > most {
		r.fault(n, "%q: want a size from 1 to %s, such as 64KiB or 1GiB", n.Value, FormatSize(most))
	}
	return v
}

var (
	sizeRule  = regexp.MustCompile(`^(\d+(?:\.\d+)?) ?([A-Za-z]*)$`)
	sizeUnits = map[string]float64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
		"TiB": 1 << 40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "K": 1 << 10, "M": 1 << 20,
		"G": 1 << 30, "T": 1 << 40}
)

// ParseSize reads a number of bytes: 4096, 64KiB, 1.5GiB, 2GB.
func ParseSize(s string) (int64, error) {
	m := sizeRule.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is no size: want bytes, or a number with KiB, MiB, GiB, kB, MB, GB", s)
	}
	unit, ok := sizeUnits[m[2]]
	v, err := strconv.ParseFloat(m[1], 64)
	if !ok || err != nil || v*unit > 1<<62 {
		return 0, fmt.Errorf("%q is no size: want bytes, or a number with KiB, MiB, GiB, kB, MB, GB", s)
	}
	return int64(v * unit), nil
}

// FormatSize writes bytes in the largest unit that leaves no rest.
func FormatSize(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d %s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
