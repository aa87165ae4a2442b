package perf

import "testing"

// No two receives that are posted at a time share a place where a control message may land: it would
// be overwritten before it is read.
func TestControlMessagesHavePlaces(t *testing.T) {
	for _, test := range Tests() {
		for _, transport := range []Transport{RC, UC} {
			for _, server := range []string{"", "192.0.2.1"} {
				cfg := Config{Test: test, Transport: transport, Verify: true, Server: server,
					All: test.Op != Atomic, GIDIndex: -1}
				if cfg.validate() != nil {
					continue // READ over UC and the like
				}
				sizes, err := cfg.sizes(4096)
				if err != nil {
					t.Fatal(err)
				}
				e := &endpoint{cfg: cfg, sizes: sizes, plan: cfg.plan(sizes)}
				if r := newRun(t.Context(), e, &attention{}, sizes[0]); r.control {
					checkPlaces(t, r)
				}
			}
		}
	}
}

func checkPlaces(t *testing.T, r *run) {
	t.Helper()
	used := map[int]int{}
	for n := range r.recvs {
		at, length := r.buffer(&conn{}, uint64(n))
		if before, ok := used[at]; ok {
			t.Fatalf("%s %s: receives %d and %d of %d share the place at %d", r.cfg.Test.Name,
				r.cfg.Transport, before, n, r.recvs, at)
		}
		if used[at] = n; at < r.plan.controlAt(0) || at+int(length) > r.plan.outAt(0) {
			t.Fatalf("%s %s: receive %d lies outside", r.cfg.Test.Name, r.cfg.Transport, n)
		}
	}
}

// Immediate data tell a message's number, also when what was counted is ahead of it.
func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		to   uint64
		low  uint32
		want uint64
	}{
		{0, 0, 0},
		{100, 100, 100},
		{100, 130, 130},
		{243, 226, 226},
		{1<<32 - 1, 0, 1 << 32},
		{1<<32 + 5, 1<<32 - 3, 1<<32 - 3},
		{7<<32 + 17, 16, 7<<32 + 16},
		{7<<32 + 17, 18, 7<<32 + 18},
	} {
		if got := nearest(tt.to, tt.low); got != tt.want {
			t.Errorf("nearest(%#x, %#x) = %#x, want %#x", tt.to, tt.low, got, tt.want)
		}
	}
}
