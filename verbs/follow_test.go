package verbs

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// setLink changes a namespace's interface up or down.
func setLink(t *testing.T, n *nettest.Namespace, up bool) {
	t.Helper()
	nettest.OnLink(t, n, func(l netlink.Link) error {
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

// awaitEvent takes events until one of a type comes.
func awaitEvent(t *testing.T, c *Context, want EventType) {
	t.Helper()
	for nextEvent(t, c).Type != want {
	}
}

// TestLinkDownAndUp: the port says so, traffic waits and goes on.
func TestLinkDownAndUp(t *testing.T) {
	for _, mode := range []Progress{ProgressPoller, ProgressCaller} {
		t.Run(mode.String(), func(t *testing.T) {
			l := nettest.New(t, nettest.Config{})
			cfg := Config{Progress: mode}
			a, b := newEnd(t, openIn(t, l.A, cfg), endConfig{}), newEnd(t, openIn(t, l.B, cfg), endConfig{})
			connect(t, a, b, ConnOptions{})
			testWrite(t, a, b, 100)
			setLink(t, l.B, false)
			awaitEvent(t, b.c, EventPortErr)
			awaitEvent(t, a.c, EventPortErr) // no carrier
			if s := b.c.Port().State; s != PortDown {
				t.Errorf("port %v", s)
			}
			b.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{b.mr.SGE(0, 100)}, RemoteAddr: a.mr.Addr(),
				RKey: a.mr.RKey()})
			setLink(t, l.B, true)
			awaitEvent(t, b.c, EventPortActive)
			b.done(WCSuccess)
			if s := b.c.Port().State; s != PortActive {
				t.Errorf("port %v", s)
			}
		})
	}
}

// TestDeviceDeleted: QPs flush, the application is told, Close works.
func TestDeviceDeleted(t *testing.T) {
	for _, mode := range []Progress{ProgressPoller, ProgressCaller} {
		t.Run(mode.String(), func(t *testing.T) {
			l := nettest.New(t, nettest.Config{})
			cfg := Config{Progress: mode}
			a, b := newEnd(t, openIn(t, l.A, cfg), endConfig{}), newEnd(t, openIn(t, l.B, cfg), endConfig{})
			connect(t, a, b, ConnOptions{})
			testWrite(t, a, b, 100)
			a.recv(1)
			nettest.OnLink(t, l.A, netlink.LinkDel)
			awaitEvent(t, a.c, EventDeviceFatal)
			a.peer = nil
			a.done(WCWRFlushErr)
			awaitEvent(t, b.c, EventDeviceFatal)
		})
	}
}

// TestAddressesFollowed: a new address becomes a GID that peers can use at once; one that goes
// leaves the others' indexes alone.
func TestAddressesFollowed(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := newEnd(t, openIn(t, l.A, Config{}), endConfig{})
	b := newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	old := gid(t, b.c, false)
	added := netip.MustParsePrefix("10.77.0.77/24")
	address := &netlink.Addr{IPNet: &net.IPNet{IP: added.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}}
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrAdd(i, address) })
	awaitEvent(t, b.c, EventGIDChange)
	var now GIDEntry
	for _, g := range b.c.GIDs() {
		if g.GID == netdev.GIDOf(added.Addr()) {
			now = g
		}
	}
	if now.Index <= old.Index {
		t.Fatalf("GIDs %v", b.c.GIDs())
	}
	ga := gid(t, a.c, false)
	a.peer, b.peer = b, a
	a.must(a.qp.ConnectRC(a.psn, ConnInfo{QPN: b.qp.Num(), PSN: b.psn, GID: now.GID},
		ConnOptions{SGIDIndex: ga.Index}))
	b.must(b.qp.ConnectRC(b.psn, ConnInfo{QPN: a.qp.Num(), PSN: a.psn, GID: ga.GID},
		ConnOptions{SGIDIndex: now.Index}))
	testWrite(t, a, b, 1000)
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrDel(i, address) })
	awaitEvent(t, b.c, EventGIDChange)
	if _, err := b.c.GID(now.Index); err == nil {
		t.Error("the address that went is still a GID")
	}
	if g := gid(t, b.c, false); g != old {
		t.Errorf("the other address moved from %v to %v", old, g)
	}
}

// TestNeighbourFollowed: the peer's link address changes under a live connection.
func TestNeighbourFollowed(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := newEnd(t, openIn(t, l.A, Config{}), endConfig{})
	b := newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	connect(t, a, b, ConnOptions{})
	testWrite(t, a, b, 100)
	mac := net.HardwareAddr{2, 0, 0, 0, 0x33, 0x44}
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.LinkSetHardwareAddr(i, mac) })
	nettest.OnLink(t, l.A, func(i netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.A.Ifindex, State: netlink.NUD_REACHABLE,
			IP: l.B.IPv4.AsSlice(), HardwareAddr: mac})
	})
	path := func(e *end) [2]string {
		e.qp.poller.hold()
		defer e.qp.poller.release()
		p := e.qp.qp.Query().AV.Path
		return [2]string{p.SrcMAC.String(), p.DstMAC.String()}
	}
	until(t, func() bool { return path(a)[1] == mac.String() && path(b)[0] == mac.String() })
	testWrite(t, a, b, 100)
	testRead(t, a, b, 100)
}
