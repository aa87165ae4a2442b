package verbs

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Changes of an interface, of addresses and of ways under live connections.

// quick are options with which a connection gives up within a second.
var quick = ConnOptions{Timeout: 13, RetryCnt: 3}

// openLab opens both ends of a lab.
func openLab(t *testing.T, l *nettest.Lab) (a, b *Context) {
	t.Helper()
	return openIn(t, l.A, Config{}), openIn(t, l.B, Config{})
}

func setMTU(t *testing.T, n *nettest.Namespace, mtu int) {
	t.Helper()
	nettest.OnLink(t, n, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

// fails posts a WRITE that nobody acknowledges.
func (e *end) fails(n int) {
	e.t.Helper()
	e.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{e.mr.SGE(0, n)}, RemoteAddr: e.peer.mr.Addr(),
		RKey: e.peer.mr.RKey()})
	e.done(WCRetryExcErr)
	if s := e.qp.State(); s != StateErr {
		e.t.Errorf("QP in %v after its retries", s)
	}
}

// TestMTUFollowed: packets longer than the link carries are lost and the QP fails by its retries;
// shorter ones pass. New connections take what the link carries now, also more than at the start.
func TestMTUFollowed(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	ca, cb := openLab(t, l)
	mtu := func(n, want int) {
		t.Helper()
		setMTU(t, l.B, max(n, 1500)) // the peer's side takes what may come
		setMTU(t, l.A, n)
		until(t, func() bool { return ca.Port().LinkMTU == n && cb.Port().LinkMTU >= n })
		if p := ca.Port(); p.MaxPMTU != want {
			t.Fatalf("path MTU %d on a link MTU of %d, want %d", p.MaxPMTU, n, want)
		}
	}
	pair := func(pmtu int) (a, b *end) {
		a, b = newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
		o := quick
		o.PathMTU = pmtu
		connect(t, a, b, o)
		return a, b
	}
	x, y := pair(0)
	testWrite(t, x, y, 10000)
	mtu(9000, 4096) // more than it was opened with
	a, b := pair(0)
	if q, _ := a.qp.Query(); q.PathMTU != 4096 {
		t.Errorf("path MTU %d", q.PathMTU)
	}
	testWrite(t, a, b, 10000)
	testRead(t, a, b, 10000)
	testWrite(t, x, y, 10000)
	idle, other := pair(0)
	mtu(2000, 1024)
	testWrite(t, idle, other, 1000) // one packet that still fits
	a.fails(10000)
	testWrite(t, x, y, 10000)
	if err := newEnd(t, ca, endConfig{}).qp.ConnectRC(1, ConnInfo{GID: gid(t, cb, false).GID},
		ConnOptions{SGIDIndex: gid(t, ca, false).Index, PathMTU: 4096}); err == nil {
		t.Error("a path MTU that the link does not carry is taken")
	}
	mtu(9000, 4096)
	testWrite(t, idle, other, 10000) // has waited for the link
	testRead(t, idle, other, 10000)
	testWrite(t, x, y, 10000)
}

// TestDatagramsFollowMTU: the longest datagram follows the link MTU.
func TestDatagramsFollowMTU(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	ca, cb := openLab(t, l)
	a, b := newEnd(t, ca, endConfig{typ: UD}), newEnd(t, cb, endConfig{typ: UD})
	a.startUD(7)
	b.startUD(7)
	ah := a.ahTo(cb, false)
	long := func(arrives bool) {
		t.Helper()
		for _, n := range []int{4096, 100} {
			a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, n)}, AH: ah,
				RemoteQPN: b.qp.Num(), RemoteQKey: testQKey})
			a.done(WCSuccess)
		}
		want := []int{4096, 100}
		if !arrives {
			want = want[1:]
		}
		for i, c := range b.wait(len(want)) {
			if int(c.ByteLen) != want[i]+GRHBytes {
				t.Errorf("datagram %d of %d bytes, want %d", i, c.ByteLen-GRHBytes, want[i])
			}
			b.recv(0, b.mr.SGE(0, 8192))
		}
	}
	for range 4 {
		b.recv(0, b.mr.SGE(0, 8192))
	}
	long(false)
	for _, n := range []*nettest.Namespace{l.A, l.B} {
		setMTU(t, n, 9000)
	}
	until(t, func() bool { return ca.Port().LinkMTU == 9000 && cb.Port().LinkMTU == 9000 })
	setMTU(t, l.A, 8999) // when this is known the QPs have followed the one before
	until(t, func() bool { return ca.Port().LinkMTU == 8999 })
	long(true)
}

// TestAddressGoesAndReturns: a connection whose address goes fails by its retries, or goes on when
// the address is back in time; its index is nobody's path meanwhile.
func TestAddressGoesAndReturns(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	ca, cb := openLab(t, l)
	own, added := addrOf("10.77.0.2/24"), addrOf("10.77.0.99/24")
	second := addrOf("10.78.0.2/24") // so that the first network's going takes no other along
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrAdd(i, second) })
	awaitEvent(t, cb, EventGIDChange)
	patient := ConnOptions{Timeout: 18, RetryCnt: 7} // eight seconds
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connect(t, a, b, patient)
	x, y := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connect(t, x, y, quick)
	testWrite(t, a, b, 10000)
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrDel(i, own) })
	awaitEvent(t, cb, EventGIDChange)
	x.fails(100)
	a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 10000)}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()})
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrAdd(i, added) })
	awaitEvent(t, cb, EventGIDChange)
	cb.findWays()
	if p := b.path(); netdev.AddrOf(p.Src).String() != "10.77.0.2" {
		t.Errorf("a connection took another address, %v", netdev.AddrOf(p.Src))
	}
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrAdd(i, own) })
	awaitEvent(t, cb, EventGIDChange)
	a.done(WCSuccess)
	testWrite(t, a, b, 1000)
	testRead(t, b, a, 1000)
}

func addrOf(s string) *netlink.Addr {
	p := netip.MustParsePrefix(s)
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
}

// path is the one of the connection.
func (e *end) path() wire.Path {
	e.qp.poller.hold()
	defer e.qp.poller.release()
	return e.qp.qp.Query().AV.Path
}

// TestPeerMovesByItself: one end's link address changes, and nobody tells the other but the kernel's
// own ARP and neighbour discovery.
func TestPeerMovesByItself(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[ipv6], func(t *testing.T) {
			l := nettest.New(t, nettest.Config{})
			ca, cb := openLab(t, l)
			a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
			connectBy(t, a, b, ConnOptions{Timeout: 18, RetryCnt: 7}, ipv6)
			testWrite(t, a, b, 100)
			mac := net.HardwareAddr{2, 0, 0, 0, 0x55, 0x66}
			nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.LinkSetHardwareAddr(i, mac) })
			until(t, func() bool {
				p, q := a.path(), b.path()
				return p.DstMAC.String() == mac.String() && q.SrcMAC.String() == mac.String()
			})
			testWrite(t, a, b, 10000)
			testRead(t, b, a, 10000)
		})
	}
}

// TestGatewayFollowed: the peer's network is reached by a gateway. It changes; it changes to one that
// does not answer yet; the route vanishes, and returns.
func TestGatewayFollowed(t *testing.T) {
	l := nettest.New(t, nettest.Config{Interface: "veth0",
		B: []netip.Prefix{netip.MustParsePrefix("10.77.0.2/24"), netip.MustParsePrefix("10.77.0.3/24"),
			netip.MustParsePrefix("10.99.0.1/32")}})
	ca, cb := openLab(t, l)
	far := netip.MustParseAddr("10.99.0.1")
	route := func(gateway string) *netlink.Route {
		r := &netlink.Route{LinkIndex: l.A.Ifindex, Dst: addrOf("10.99.0.1/32").IPNet}
		if gateway != "" {
			r.Gw = net.ParseIP(gateway)
		}
		return r
	}
	use := func(gateway string) {
		t.Helper()
		nettest.OnLink(t, l.A, func(netlink.Link) error { return netlink.RouteReplace(route(gateway)) })
	}
	use("10.77.0.2")
	join := func(o ConnOptions) (a, b *end) {
		t.Helper()
		a, b = newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
		a.peer, b.peer = b, a
		ga, gb := gid(t, ca, false), GIDEntry{Index: -1}
		for _, g := range cb.GIDs() {
			if g.GID == netdev.GIDOf(far) {
				gb = g
			}
		}
		a.must(a.qp.ConnectRC(a.psn, ConnInfo{QPN: b.qp.Num(), PSN: b.psn, GID: gb.GID},
			with(o, ga.Index)))
		b.must(b.qp.ConnectRC(b.psn, ConnInfo{QPN: a.qp.Num(), PSN: a.psn, GID: ga.GID},
			with(o, gb.Index)))
		return a, b
	}
	hop := func(e *end) string {
		e.qp.poller.hold()
		defer e.qp.poller.release()
		w := &e.qp.way
		return fmt.Sprintf("%v lost=%v nowhere=%v", w.hop, w.lost, w.av.Nowhere)
	}
	by := func(e *end, want string) {
		t.Helper()
		until(t, func() bool { return hop(e) == want })
	}
	patient := ConnOptions{Timeout: 18, RetryCnt: 7}
	a, b := join(patient)
	testWrite(t, a, b, 1000)
	use("10.77.0.3")
	by(a, "10.77.0.3 lost=false nowhere=false")
	testWrite(t, a, b, 1000)

	use("10.77.0.4") // nobody, at first
	by(a, "10.77.0.4 lost=false nowhere=true")
	a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 1000)}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()})
	nettest.OnLink(t, l.B, func(i netlink.Link) error { return netlink.AddrAdd(i, addrOf("10.77.0.4/24")) })
	nettest.OnLink(t, l.A, func(i netlink.Link) error { // as it would ask again within seconds
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.A.Ifindex, State: netlink.NUD_STALE,
			IP: net.ParseIP("10.77.0.4"), HardwareAddr: l.B.MAC})
	})
	by(a, "10.77.0.4 lost=false nowhere=false")
	a.done(WCSuccess)

	x, _ := join(quick)
	nettest.OnLink(t, l.A, func(netlink.Link) error { return netlink.RouteDel(route("")) })
	by(x, "10.77.0.4 lost=true nowhere=true")
	x.fails(1000)
	by(a, "10.77.0.4 lost=true nowhere=true")
	a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 1000)}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()})
	use("10.77.0.2")
	by(a, "10.77.0.2 lost=false nowhere=false")
	a.done(WCSuccess)
	testRead(t, a, b, 1000)
}

func with(o ConnOptions, sgid int) ConnOptions {
	o.SGIDIndex = sgid
	return o
}

// TestCarrierLost: work posted without a carrier fails by its retries, and the port takes new
// connections when the carrier is back.
func TestCarrierLost(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	ca, cb := openLab(t, l)
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connect(t, a, b, quick)
	testWrite(t, a, b, 100)
	setLink(t, l.B, false) // a keeps its interface up, without a carrier
	awaitEvent(t, ca, EventPortErr)
	if p := ca.Port(); p.State != PortDown || p.LinkState != "without carrier" {
		t.Errorf("port %+v", p)
	}
	a.fails(100)
	setLink(t, l.B, true)
	awaitEvent(t, ca, EventPortActive)
	awaitEvent(t, cb, EventPortActive)
	x, y := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connect(t, x, y, ConnOptions{})
	testWrite(t, x, y, 10000)
}

// TestDeletedSaysPortErrOnce: an interface that is deleted goes down, and is gone: one PORT_ERR, then
// DEVICE_FATAL. One that was down before has said so.
func TestDeletedSaysPortErrOnce(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(map[bool]string{false: "up", true: "down"}[down], func(t *testing.T) {
			l := nettest.New(t, nettest.Config{})
			ca, _ := openLab(t, l)
			if down {
				setLink(t, l.A, false)
				until(t, func() bool { return ca.Port().State == PortDown })
			}
			nettest.OnLink(t, l.A, netlink.LinkDel)
			errs := 0
			for {
				switch e := nextEvent(t, ca); e.Type {
				case EventPortErr:
					errs++
					continue
				case EventDeviceFatal:
				default:
					continue
				}
				break
			}
			if errs != 1 {
				t.Errorf("%d port errors before the end of the device, want 1", errs)
			}
		})
	}
}

// TestMovedAway: an interface that goes to another namespace is gone from here, and can be opened
// there.
func TestMovedAway(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	other := nettest.New(t, nettest.Config{Interface: "veth1"})
	ca, cb := openLab(t, l)
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connect(t, a, b, ConnOptions{})
	a.recv(1)
	f, err := os.Open("/run/netns/" + other.A.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	nettest.OnLink(t, l.A, func(i netlink.Link) error { return netlink.LinkSetNsFd(i, int(f.Fd())) })
	awaitEvent(t, ca, EventDeviceFatal)
	a.peer = nil
	a.done(WCWRFlushErr)
	a.must(ca.Close())
	if err := other.A.DoErr(func() error {
		i, err := netlink.LinkByName("veth0")
		if err != nil {
			return err
		}
		if x := i.Attrs().Xdp; x != nil && x.Attached {
			t.Error("the program is still on it")
		}
		return netlink.LinkSetUp(i)
	}); err != nil {
		t.Fatal(err)
	}
	other.A.Do(func() {
		c, err := Open("veth0", nil)
		if err == nil {
			err = c.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
}
