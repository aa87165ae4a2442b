package verbs

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestOnChange: whoever asked is told of addresses, of the way to a peer and of the interface's
// end, and nobody after remove.
func TestOnChange(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := newEnd(t, openIn(t, l.A, Config{}), endConfig{})
	b := newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	connect(t, a, b, ConnOptions{})
	var seen [ChangeGone + 1]atomic.Int32
	var way atomic.Pointer[Change]
	remove := a.c.OnChange(func(x Change) {
		if x.Kind == ChangeWay {
			way.Store(&x)
		}
		seen[x.Kind].Add(1)
	})
	var none atomic.Int32
	a.c.OnChange(func(Change) { none.Add(1) })()

	added := &netlink.Addr{IPNet: &net.IPNet{IP: netip.MustParseAddr("10.77.0.77").AsSlice(),
		Mask: net.CIDRMask(24, 32)}}
	nettest.OnLink(t, l.A, func(i netlink.Link) error { return netlink.AddrAdd(i, added) })
	until(t, func() bool { return seen[ChangeGIDs].Load() == 1 })

	nettest.OnLink(t, l.A, func(netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.A.Ifindex, State: netlink.NUD_REACHABLE,
			IP: l.B.IPv4.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0x33, 0x55}})
	})
	until(t, func() bool { return seen[ChangeWay].Load() > 0 })
	want := Change{Kind: ChangeWay, Src: gid(t, a.c, false).GID, Dst: gid(t, b.c, false).GID,
		SrcMAC: a.c.Port().MAC, DstMAC: wire.MAC{2, 0, 0, 0, 0x33, 0x55}}
	if w := way.Load(); *w != want {
		t.Errorf("told %+v, want %+v", *w, want)
	}
	nettest.OnLink(t, l.A, netlink.LinkDel)
	until(t, func() bool { return seen[ChangeGone].Load() == 1 })
	remove()
	if n := none.Load(); n != 0 {
		t.Errorf("told %d times after remove", n)
	}
}
