package serve

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestParse reads a file with everything in it.
func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Parse("x", []byte(`
interfaces:
  - name: eth0
    queues: 4
    vlan: 7
    xdp: native
    keepalive: 1m
    addresses: [192.0.2.1, "2001:db8::1"]
  - &second {name: eth1, keepalive: 0}
limits: {qps: 10, memory: 1.5GiB, connections-per-peer: 3}
services:
  rping:
  echo: {port: 99, size: 4kB}
  perftest: [{test: ib_send_bw, port: 5, size: 64KiB, qps: 2, iterations: 7}]
  exports: {port: 8}
exports:
  - {name: scratch, size: 1MiB, access: read-write, allow: [192.0.2.0/24, "::ffff:10.0.0.1"]}
  - {name: image, file: `+file+`, allow: ["2001:db8::/32"]}
`), Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	want := &Config{
		Interfaces: []Interface{
			{Name: "eth0", Queues: 4, VLAN: 7, Mode: "native", Keepalive: time.Minute,
				Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}},
			{Name: "eth1", Queues: 1, Mode: "auto"},
		},
		Limits:     Limits{QPs: 10, Memory: 3 << 29, PerPeer: 3},
		RPing:      &RPing{Port: 7174},
		Echo:       &Echo{Port: 99, Size: 4000},
		Perftest:   []Perftest{{Test: "send_bw", Port: 5, Size: 64 << 10, QPs: 2, Iterations: 7}},
		ExportPort: 8,
		Exports: []Export{
			{Name: "scratch", Size: 1 << 20, Write: true, Allow: []netip.Prefix{prefix("192.0.2.0/24"), prefix("10.0.0.1/32")}},
			{Name: "image", File: file, Allow: []netip.Prefix{prefix("2001:db8::/32")}},
		},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Export{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
	for peer, in := range map[string]bool{"192.0.2.77": true, "::ffff:192.0.2.77": true, "10.0.0.1": true,
		"10.0.0.2": false, "2001:db8::1": false} {
		if got.Exports[0].Allows(addr(peer)) != in {
			t.Errorf("%s is allowed: %v", peer, !in)
		}
	}
}

// TestProblems: each is found, and its line is named.
func TestProblems(t *testing.T) {
	const head = "interfaces: [{name: eth0}]\n" // line 1
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	export := func(more string) string { return head + "exports:\n  - {name: a, allow: [10.0.0.1], " + more + "}\n" }
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "x:1: no interfaces"},
		{"null", "\n~\n", "x:2: no interfaces"},
		{"syntax", head + "limits: [\n", "x:2: did not find"},
		{"tab", head + "limits:\n\tqps: 1\n", "x:3: found character"},
		{"list for mapping", head + "limits: [1]\n", "x:2: limits must be a mapping"},
		{"mapping for list", "interfaces: {name: eth0}\n", "x:1: interfaces must be a list"},
		{"unknown key", head + "\nlimit: {}\n", `x:3: unknown key "limit"`},
		{"key twice", head + "limits:\n  qps: 1\n  qps: 2\n", `x:4: key "qps" stands here twice`},
		{"interface twice", "interfaces:\n  - name: eth0\n  - name: eth0\n", `x:3: interface "eth0" is on line 2`},
		{"interface name", "interfaces:\n  - name: a/b\n", "x:2: \"a/b\" is not an interface's name"},
		{"no name", "interfaces:\n  - queues: 1\n", "x:2: an interface needs a name"},
		{"queues", "interfaces:\n  - name: eth0\n    queues: 65\n", "x:3: \"65\": want a number from 1 to 64"},
		{"xdp", "interfaces:\n  - name: eth0\n    xdp: fast\n", `x:3: "fast": want auto, native, generic`},
		{"keepalive", "interfaces:\n  - name: eth0\n    keepalive: soon\n", `x:3: "soon": want a duration`},
		{"address", "interfaces:\n  - name: eth0\n    addresses: [1.2.3]\n", `x:3: "1.2.3" is not an IP address`},
		{"size", head + "limits: {memory: 1XB}\n", `x:2: "1XB": want a size`},
		{"one port", head + "services:\n  rping: {port: 7}\n  echo: {port: 7}\n", "x:3: 2 services share 1 ports"},
		{"port", head + "services:\n  rping: {port: 0}\n", `x:3: "0": want a number from 1 to 65535`},
		{"test", head + "services:\n  perftest:\n    - test: fly_bw\n", `x:4: there is no test "fly_bw"`},
		{"no test", head + "services:\n  perftest:\n    - port: 1\n", "x:4: which test?"},
		{"latency qps", head + "services:\n  perftest:\n    - {test: send_lat, qps: 2}\n", "x:4: -q 2: latency tests have one QP"},
		{"export name", head + "exports:\n  - {name: a b, size: 1, allow: [10.0.0.1]}\n", `x:3: "a b" is not an export's name`},
		{"nobody", head + "exports:\n  - {name: a, size: 1}\n", `x:3: export "a" lets nobody in`},
		{"prefix", head + "exports:\n  - name: a\n    size: 1\n    allow:\n      - 10.0.0.1/8\n", "x:6: 10.0.0.1/8 has bits behind its mask"},
		{"peer", head + "exports:\n  - name: a\n    size: 1\n    allow:\n      - here\n", `x:6: "here" is neither`},
		{"no memory", export("access: read-only"), `x:3: export "a" needs a size or a file`},
		{"access", export("size: 1, access: all"), `x:3: "all": want read-only, read-write`},
		{"no file", export("file: /no/such"), "x:3: stat /no/such: no such file"},
		{"empty file", export("file: " + file), "x:3: " + file + " is empty"},
		{"folder", export("file: /"), "x:3: / is not a regular file"},
		{"does not fit", export("size: 2GiB"), `x:3: export "a" does not fit: exports up to here take 2 GiB, limits.memory is 1 GiB`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("x", []byte(tt.text), Overrides{})
			var wrong *ConfigError
			if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestManyProblems: all of them come at once, in the order of their lines.
func TestManyProblems(t *testing.T) {
	_, err := Parse("x", []byte("interfaces:\n  - name: eth0\n    vlan: 5000\nlimits:\n  qps: no\n"), Overrides{})
	var wrong *ConfigError
	if !errors.As(err, &wrong) || len(wrong.Problems) != 2 || wrong.Problems[0].Line != 3 || wrong.Problems[1].Line != 5 {
		t.Errorf("got %v", err)
	}
}

// TestOverrides: flags win over the file, and are named when they are wrong.
func TestOverrides(t *testing.T) {
	text := []byte("interfaces: [{name: eth0, queues: 2}]\nlimits: {qps: 5}\n" +
		"exports: [{name: a, size: 1, allow: [10.0.0.1]}]\n")
	c, err := Parse("x", text, Overrides{Interfaces: []string{"eth9", "eth0"}, Set: []string{"limits.qps=7",
		"exports.a.size=1MiB", "services.echo.port=5", "interfaces.0.vlan=3", "exports.a.allow=[10.0.0.0/8]"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.QPs != 7 || c.Exports[0].Size != 1<<20 || c.Echo == nil || c.Echo.Port != 5 ||
		c.Exports[0].Allow[0].Bits() != 8 {
		t.Errorf("got %+v", c)
	}
	want := []Interface{{Name: "eth9", Queues: 1, VLAN: 3, Mode: "auto", Keepalive: DefaultKeepalive},
		{Name: "eth0", Queues: 2, Mode: "auto", Keepalive: DefaultKeepalive}}
	if !slices.EqualFunc(c.Interfaces, want, func(a, b Interface) bool { return specOfInterface(a) == specOfInterface(b) }) {
		t.Errorf("interfaces %+v", c.Interfaces)
	}
	for set, problem := range map[string]string{
		"limits.qps=x":         `--set limits.qps=x: "x": want a number`,
		"limits.speed=1":       `--set limits.speed=1: unknown key "speed"`,
		"exports.b.size=1":     `--set exports.b.size=1: exports has no "b"`,
		"limits.qps":           "--set limits.qps: want PATH=VALUE",
		"limits.qps.more=1":    `--set limits.qps.more=1: limits.qps has no "more"`,
		"services.echo={a: 1}": `--set services.echo={a: 1}: unknown key "a"`,
	} {
		if _, err := Parse("x", text, Overrides{Set: []string{set}}); err == nil || !strings.HasPrefix(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", set, err, problem)
		}
	}
}

// TestLimiter: each limit refuses by itself, and what is given back can be taken again.
func TestLimiter(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	l := newLimiter(Limits{QPs: 4, Memory: 100, PerPeer: 2})
	must := func(free func(), err error) func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return free
	}
	refused := func(text string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	admit := func(peer netip.Addr, qps int, memory int64) (func(), error) {
		p, err := l.admit(t.Context(), peer, qps, memory, nil)
		if err != nil {
			return nil, err
		}
		return p.free, nil
	}
	export := must(l.reserve(50))
	first := must(admit(a, 1, 10))
	second := must(admit(netip.MustParseAddr("::ffff:10.0.0.1"), 1, 10)) // the same peer
	_, err := admit(a, 1, 0)
	refused("limit of one peer", err)
	_, err = admit(b, 3, 0)
	refused("2 QPs are in use of 4", err)
	_, err = admit(b, 1, 31)
	refused("70 bytes are in use", err)
	_, err = l.reserve(31)
	refused("70 bytes are in use", err)
	first()
	first() // twice counts once
	must(admit(a, 1, 0))
	second()
	export()
	if got := l.usage(); got != (Usage{QPs: 1, Peers: 1}) {
		t.Errorf("in use: %+v", got)
	}
	l.set(Limits{QPs: 1, Memory: 1, PerPeer: 9})
	_, err = admit(b, 1, 0)
	refused("1 QPs are in use of 1", err)
}

// TestOverrideEmpty: a flag sets a value below a key that the file gives nothing for.
func TestOverrideEmpty(t *testing.T) {
	text := []byte("interfaces: [{name: eth0}]\nlimits:\nservices: {echo: , rping: }\n")
	c, err := Parse("x", text, Overrides{Set: []string{"services.echo.port=5", "limits.qps=7"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Echo == nil || c.Echo.Port != 5 || c.Limits.QPs != 7 || c.RPing == nil {
		t.Errorf("got %+v", c)
	}
}
