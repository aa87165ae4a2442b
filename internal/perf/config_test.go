package perf

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func testNamed(t testing.TB, name string) Test {
	t.Helper()
	found, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLookup(t *testing.T) {
	for _, name := range []string{"write_bw", "ib_send_lat"} {
		if _, err := Lookup(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := Lookup("write"); err == nil || !strings.Contains(err.Error(), "write_bw, "+
		"write_lat") {
		t.Errorf("Lookup(write): %v", err)
	}
}

// The defaults are perftest's.
func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		test     string
		size     int
		iters    int
		progress Progress
		inline   int
	}{
		{"write_bw", 65536, 5000, Poller, 0},
		{"read_bw", 65536, 1000, Poller, 0},
		{"send_bw", 65536, 1000, Poller, 0},
		{"atomic_bw", 8, 1000, Poller, 0},
		{"write_lat", 2, 1000, Caller, 220},
		{"read_lat", 2, 1000, Caller, 0},
		{"send_lat", 2, 1000, Caller, 236},
		{"atomic_lat", 8, 1000, Caller, 0},
	} {
		t.Run(tt.test, func(t *testing.T) {
			c := Config{Test: testNamed(t, tt.test)}
			if err := c.validate(); err != nil {
				t.Fatal(err)
			}
			got := []any{c.Size, c.Iters, c.Progress, c.inline()}
			want := []any{tt.size, tt.iters, tt.progress, tt.inline}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("size, iterations, progress, inline: got %v, want %v", got, want)
			}
			if c.Transport != RC || c.TXDepth != 128 || c.RXDepth != 512 || c.CQMod != 100 ||
				c.Port != 18515 {
				t.Errorf("%v, depths %d and %d, cq-mod %d, port %d", c.Transport, c.TXDepth, c.RXDepth,
					c.CQMod, c.Port)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no test", Config{}, "no test"},
		{"READ over UC", Config{Test: testNamed(t, "read_bw"), Transport: UC}, "needs RC"},
		{"WRITE over UD", Config{Test: testNamed(t, "write_lat"), Transport: UD}, "needs a connection"},
		{"transport", Config{Test: testNamed(t, "send_bw"), Transport: "XRC"}, "RC, UC or UD"},
		{"PMTU", Config{Test: testNamed(t, "send_bw"), PMTU: 1500}, "no path MTU"},
		{"size", Config{Test: testNamed(t, "send_bw"), Size: -1}, "-s -1"},
		{"huge", Config{Test: testNamed(t, "send_bw"), Size: 1<<31 + 1}, "out of range"},
		{"atomic size", Config{Test: testNamed(t, "atomic_bw"), Size: 16}, "8 bytes"},
		{"all atomics", Config{Test: testNamed(t, "atomic_bw"), All: true}, "-a"},
		{"time and all", Config{Test: testNamed(t, "send_bw"), All: true, Duration: time.Second},
			"exclude"},
		{"QPs", Config{Test: testNamed(t, "send_lat"), QPs: 2}, "one QP"},
		{"progress", Config{Test: testNamed(t, "send_lat"), Progress: "fast"}, "caller or poller"},
		{"VLAN", Config{Test: testNamed(t, "send_lat"), VLAN: 4095}, "--vlan"},
		{"mode", Config{Test: testNamed(t, "send_lat"), Mode: "hw"}, "--xdp"},
		{"duration", Config{Test: testNamed(t, "send_lat"), Duration: -1}, "negative"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.cfg.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	c := Config{Test: testNamed(t, "send_bw"), All: true}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	all, err := c.sizes(1024)
	if err != nil || len(all) != 23 || all[0] != 2 || all[22] != 1<<23 {
		t.Errorf("-a: %v, %v", all, err)
	}
	c.Transport = UD
	if all, err = c.sizes(1024); err != nil || len(all) != 10 || all[9] != 1024 {
		t.Errorf("-a -c UD: %v, %v", all, err)
	}
	c.All, c.Size = false, 4096
	if _, err = c.sizes(1024); err == nil || !strings.Contains(err.Error(), "-s 1024") {
		t.Errorf("UD message of 4096 bytes at PMTU 1024: %v", err)
	}
	c.Size = 0
	if all, err = c.sizes(1024); err != nil || !slices.Equal(all, []int{1024}) {
		t.Errorf("UD without -s: %v, %v", all, err)
	}
}

// Nothing of a plan may overlap, for any size that is part of it, and all of it must be inside.
func TestPlanHasRoom(t *testing.T) {
	for _, test := range Tests() {
		for _, transport := range []Transport{RC, UC, UD} {
			for _, verify := range []bool{false, true} {
				c := Config{Test: test, Transport: transport, Verify: verify, QPs: 1}
				if !test.Latency {
					c.QPs = 7
				}
				c.All = test.Op != Atomic
				if c.validate() != nil {
					continue // READ over UC and the like
				}
				sizes, err := c.sizes(4096)
				if err != nil {
					t.Fatal(err)
				}
				checkPlan(t, &c, sizes)
			}
		}
	}
}

func checkPlan(t *testing.T, c *Config, sizes []int) {
	t.Helper()
	p := c.plan(sizes)
	for _, size := range sizes {
		l := c.layout(size)
		if l.slots&(l.slots-1) != 0 || l.slots == 0 || l.stride < l.offset+size {
			t.Fatalf("%s %s, %d bytes: layout %+v", c.Test.Name, c.Transport, size, l)
		}
		if l.ring() > p.ringSpan || size+patternSlack > p.patternLen {
			t.Fatalf("%s %s, %d bytes: %+v does not fit into %+v", c.Test.Name, c.Transport, size, l, p)
		}
		for qp := range c.QPs {
			ends := []int{p.patternLen, p.ringAt(qp), p.ringAt(qp) + l.ring(), p.controlAt(qp),
				p.controlAt(qp) + c.controlRecvs(&l)*controlSize, p.outAt(qp), p.outAt(qp) + size, p.total()}
			if !slices.IsSorted(ends) {
				t.Fatalf("%s %s, QP %d, %d bytes: areas overlap: %v", c.Test.Name, c.Transport, qp, size, ends)
			}
			if qp > 0 && p.controlAt(qp) < p.outAt(qp-1)+size {
				t.Fatalf("%s, QP %d: control area overlaps with the one before", c.Test.Name, qp)
			}
		}
	}
}
