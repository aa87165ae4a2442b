package sim

// Scripts are conversations that people can read: what is posted, what is lost, and below each group
// of commands every packet, completion and event that came of it.
//
//	# The ACK of a WRITE is lost: the timeout repeats it.
//	pair a b timeout=8
//	write a 1 100
//	drop b
//	run
//	----
//	0.0ms a>b WRITE_ONLY psn=0x000100 flags=ackreq va=b+0 rkey=b dmalen=100 len=100 pad=0
//	0.0ms b>a ACKNOWLEDGE psn=0x000100 flags=- syndrome=0x1f(ack) msn=1  dropped
//	1.1ms a>b WRITE_ONLY psn=0x000100 flags=ackreq va=b+0 rkey=b dmalen=100 len=100 pad=0
//	1.1ms b>a ACKNOWLEDGE psn=0x000100 flags=- syndrome=0x1f(ack) msn=1
//	1.1ms a completion 1 RDMA_WRITE: success
//
// A line of four dashes ends the commands; what they print stands behind it, up to an empty line.
// Comments begin with #. scriptcmd.go lists the commands. Times count from the beginning of a run; keys and addresses go
// by the names of their ends, QPNs and the MigReq bit, which is always set, are left out.

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

const (
	scriptDash  = "----"
	scriptLines = 4000 // output of one run at most
)

// ScriptConfig is what a script does not say itself.
type ScriptConfig struct {
	// Tap, if set, sees every frame that is sent, before the faults.
	Tap func(now rxe.Time, frame []byte)
}

// RunScript runs the commands of a script and returns the script with what they print behind them.
// Whether that is what stood there, the caller compares. The error is about a command that makes no
// sense and names its line.
func RunScript(text string, c ScriptConfig) (string, error) {
	s := newScript(c)
	var out strings.Builder
	lines := strings.SplitAfter(text, "\n")
	open := 0 // line of the first command without a line of dashes yet
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], "\n")
		if line != scriptDash {
			out.WriteString(lines[i])
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			if open == 0 {
				open = i + 1
			}
			if err := s.command(line); err != nil {
				return "", fmt.Errorf("line %d: %s: %w", i+1, line, err)
			}
			continue
		}
		for i+1 < len(lines) && strings.TrimSpace(lines[i+1]) != "" {
			i++
		}
		fmt.Fprintf(&out, "%s\n%s", scriptDash, s.out.String())
		s.out.Reset()
		open = 0
	}
	if open != 0 {
		return "", fmt.Errorf("line %d: no line %s behind the last commands", open, scriptDash)
	}
	return out.String(), nil
}

// script is a script being run.
type script struct {
	f     *Fabric
	ends  []*scriptQP
	keys  []*scriptKey
	rules []scriptRule
	out   strings.Builder
	start rxe.Time // of this run
	lines int      // that it has printed
}

// scriptQP is one end of a conversation: a node with one QP and 64 KiB of memory.
type scriptQP struct {
	name string
	node *Node
	pd   mr.PD
	q    *rxe.QP
	cq   *rxe.CQ
	mem  *Region
	peer *scriptQP
	ah   *rxe.AH
}

// scriptKey is a key with a name: an end's region, or a window.
type scriptKey struct {
	name string
	key  mr.Key
}

const (
	scriptMemory = 1 << 16
	scriptQKey   = 0x11223344
)

func newScript(c ScriptConfig) *script {
	s := new(script)
	cfg := Config{Seed: 1, Latency: 5000, Spread: 1, Faults: Faults{Script: s.judge}}
	if c.Tap != nil {
		cfg.Tap = func(now rxe.Time, _, _ *Node, frame []byte) { c.Tap(now, frame) }
	}
	s.f = New(cfg)
	return s
}

func (s *script) end(name string) (*scriptQP, error) {
	for _, e := range s.ends {
		if e.name == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("no end is called %s", name)
}

func (s *script) key(name string) (*scriptKey, error) {
	for _, k := range s.keys {
		if k.name == name {
			return k, nil
		}
	}
	return nil, fmt.Errorf("no key is called %s", name)
}

// scriptArgs are the words of a command behind its name: positions, then key=value or bare options.
type scriptArgs struct {
	words []string
	opts  map[string]string
	err   error // the first one
}

func parseScriptArgs(words []string) *scriptArgs {
	a := &scriptArgs{opts: map[string]string{}}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.opts[k] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	return a
}

func (a *scriptArgs) fail(format string, v ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, v...)
	}
}

// word takes the next position.
func (a *scriptArgs) word(what string) string {
	if len(a.words) == 0 {
		a.fail("needs %s", what)
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// num takes the next position as a number.
func (a *scriptArgs) num(what string) uint64 {
	w := a.word(what)
	if a.err != nil {
		return 0
	}
	return a.parse(what, w)
}

func (a *scriptArgs) parse(what, s string) uint64 {
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		a.fail("%s is no number: %s", what, s)
	}
	return v
}

// opt takes an option, or its default.
func (a *scriptArgs) opt(name, otherwise string) string {
	v, ok := a.opts[name]
	if !ok {
		return otherwise
	}
	delete(a.opts, name)
	return v
}

func (a *scriptArgs) optNum(name string, otherwise uint64) uint64 {
	if v := a.opt(name, ""); v != "" {
		return a.parse(name, v)
	}
	return otherwise
}

// optTime takes an option such as 10ms or 300us.
func (a *scriptArgs) optTime(name string, otherwise rxe.Time) rxe.Time {
	v := a.opt(name, "")
	if v == "" {
		return otherwise
	}
	for _, u := range []struct {
		suffix string
		unit   rxe.Time
	}{{"ns", 1}, {"us", 1000}, {"ms", 1_000_000}, {"s", 1_000_000_000}} {
		if n, ok := strings.CutSuffix(v, u.suffix); ok {
			return rxe.Time(a.parse(name, n)) * u.unit
		}
	}
	a.fail("%s=%s has no unit (ns, us, ms, s)", name, v)
	return 0
}

// flag takes a bare word that may stand anywhere among the remaining positions.
func (a *scriptArgs) flag(name string) bool {
	for i, w := range a.words {
		if w == name {
			a.words = append(a.words[:i:i], a.words[i+1:]...)
			return true
		}
	}
	return false
}

// end makes sure that nothing is left over.
func (a *scriptArgs) done() error {
	if a.err == nil && len(a.words) > 0 {
		a.fail("does not know what %s means", a.words[0])
	}
	for k := range a.opts {
		a.fail("does not know %s=", k)
	}
	return a.err
}
