package netdev

import (
	"net/netip"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

func TestSnapshotAnswers(t *testing.T) {
	own, peer := wire.MAC{2, 0, 0, 0, 0, 1}, wire.MAC{2, 0, 0, 0, 0, 2}
	s := &Snapshot{
		Link:  Link{Index: 3, Name: "sim0", MAC: own, MTU: 4180, Up: true, Running: true},
		Addrs: prefixes("fe80::1/64", "10.0.0.1/24", "fd00::1/64"),
		Neighbours: map[netip.Addr]wire.MAC{
			addr("10.0.0.2"): peer, addr("fd00::2"): peer,
		},
	}
	if got := s.PMTU(true); got != 4096 {
		t.Errorf("PMTU is %d", got)
	}
	if got := s.GIDs(); len(got) != 3 || got[1] != gid("10.0.0.1") {
		t.Errorf("GIDs %v", got)
	}
	for _, tt := range []struct {
		src, dst string
		want     Route
	}{
		{"", "10.0.0.2", Route{Index: 3, Src: addr("10.0.0.1"), NextHop: addr("10.0.0.2")}},
		{"fd00::1", "fd00::2", Route{Index: 3, Src: addr("fd00::1"), NextHop: addr("fd00::2")}},
		{"", "::ffff:10.0.0.2", Route{Index: 3, Src: addr("10.0.0.1"), NextHop: addr("10.0.0.2")}},
		{"", "fe80::2", Route{Index: 3, Src: addr("fe80::1"), NextHop: addr("fe80::2")}},
		{"", "239.0.0.1", Route{Index: 3, Src: addr("10.0.0.1"), NextHop: addr("239.0.0.1")}},
		{"", "fd00::1", Route{Index: 3, Src: addr("fd00::1"), NextHop: addr("fd00::1"), Local: true}},
	} {
		got, err := s.Route(3, addr(tt.src), addr(tt.dst))
		if err != nil || got != tt.want {
			t.Errorf("route from %q to %s: %+v, %v, want %+v", tt.src, tt.dst, got, err, tt.want)
		}
	}
	for _, tt := range []struct{ src, dst, text string }{
		{"", "192.0.2.1", "no route to 192.0.2.1 through sim0"},
		{"10.0.0.9", "10.0.0.2", "from 10.0.0.9"},
		{"10.0.0.1", "fd00::2", "from 10.0.0.1"},
	} {
		_, err := s.Route(3, addr(tt.src), addr(tt.dst))
		wantError(t, err, ErrNoRoute, tt.text)
	}
	_, err := s.Route(4, none, addr("10.0.0.2"))
	wantError(t, err, ErrNoLink, "")

	for dst, want := range map[string]wire.MAC{
		"10.0.0.2": peer, "::ffff:10.0.0.2": peer, "fd00::2": peer, "10.0.0.1": own, "fe80::1": own,
		"239.129.2.3": {1, 0, 0x5e, 1, 2, 3},
	} {
		got, err := s.Resolve(t.Context(), 3, addr(dst))
		if err != nil || got != want {
			t.Errorf("%s is at %v, %v, want %v", dst, got, err, want)
		}
	}
	_, err = s.Resolve(t.Context(), 3, addr("10.0.0.3"))
	wantError(t, err, ErrNoNeighbour, "10.0.0.3 on sim0")
	n, err := s.Refresh(3, addr("10.0.0.2"))
	if err != nil || !n.State.Fresh() || n.MAC != peer {
		t.Errorf("refresh: %+v, %v", n, err)
	}
	if n, err = s.Refresh(3, addr("10.0.0.3")); err != nil || n.State != 0 {
		t.Errorf("refresh of a stranger: %+v, %v", n, err)
	}
}
