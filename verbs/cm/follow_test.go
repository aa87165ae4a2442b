package cm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	rxnettest "github.com/roxie-rdma/roxie/internal/nettest"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// gather takes events until each of the IDs has had one of a type, and returns those. Events of
// types that may come meanwhile are passed over.
func gather(t testing.TB, ch *EventChannel, want EventType, pass map[EventType]bool,
	ids ...*ID) map[*ID]*Event {
	t.Helper()
	got := map[*ID]*Event{}
	missing := func() (n int) {
		for _, id := range ids {
			if got[id] == nil {
				n++
			}
		}
		return n
	}
	for missing() > 0 {
		ev, err := ch.Get(within(t))
		if err != nil {
			t.Fatalf("%v has come to %d IDs of %d: %v", want, len(got), len(ids), err)
		}
		ev.Ack()
		switch {
		case ev.Type == want && (got[ev.ID] == nil || pass[want]):
			got[ev.ID] = ev
		case !pass[ev.Type]:
			t.Fatalf("%v (%v) comes to ID %p", ev.Type, ev.Err, ev.ID)
		}
	}
	if len(got) != len(ids) {
		t.Fatalf("%v comes to %d IDs, want %d", want, len(got), len(ids))
	}
	return got
}

// TestIDsFollowInterface: IDs are told when the way to their peer is another one, when their own
// address goes, and when the interface does; and nobody else is.
func TestIDsFollowInterface(t *testing.T) {
	a, b, lab := vethLab(t, nil)
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, netip.Addr{})
	port := l.LocalAddr().Port()
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, port), verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	t.Cleanup(func() { b.must(req.ID.Destroy()) })
	b.attach(req.ID, verbs.RC)
	b.must(req.ID.Accept(nil))
	get(t, ca, EventEstablished)
	get(t, cb, EventEstablished)
	ready := a.routed(ca, netip.AddrPortFrom(b.ip4, 9))
	six := a.routed(ca, netip.AddrPortFrom(b.ip6, 9))
	bound := a.listening(ca, rcm.PortSpaceUDP, a.ip4)
	idle := a.id(ca, rcm.PortSpaceTCP)

	// Another link address of the peer: its own IDs learn of it, and those that reach it there.
	mac := net.HardwareAddr{2, 0, 0, 0, 0x33, 0x44}
	rxnettest.OnLink(t, lab.B, func(i netlink.Link) error { return netlink.LinkSetHardwareAddr(i, mac) })
	rxnettest.OnLink(t, lab.A, func(netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: lab.A.Ifindex, State: netlink.NUD_PERMANENT,
			IP: b.ip4.AsSlice(), HardwareAddr: mac})
	})
	change := map[EventType]bool{EventAddrChange: true}
	gather(t, cb, EventAddrChange, change, req.ID)
	for x, ev := range gather(t, ca, EventAddrChange, change, id, ready) {
		if ev.Err != nil || ev.Status != 0 || x == six {
			t.Errorf("%+v", ev)
		}
	}

	// The own address goes, comes back and goes again.
	own := &netlink.Addr{IPNet: &net.IPNet{IP: a.ip4.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	for range 2 {
		rxnettest.OnLink(t, lab.A, func(i netlink.Link) error { return netlink.AddrDel(i, own) })
		lost := map[*ID]bool{}
		for len(lost) < 3 {
			ev := get(t, ca, EventAddrChange)
			if errors.Is(ev.Err, ErrNoAddress) { // the others: the way
				lost[ev.ID] = true
				if ev.Status != -int(syscall.EADDRNOTAVAIL) {
					t.Error(ev.Status)
				}
			}
		}
		if !lost[id] || !lost[ready] || !lost[bound] {
			t.Fatalf("IDs %v have lost their address", lost)
		}
		rxnettest.OnLink(t, lab.A, func(i netlink.Link) error { return netlink.AddrAdd(i, own) })
		until(t, func() bool {
			a.m.mu.Lock()
			defer a.m.mu.Unlock()
			return !id.homeless
		})
	}

	// The interface goes.
	asked := make(chan error, 1)
	go func() {
		_, err := l.GetRequest(context.Background())
		asked <- err
	}()
	rxnettest.OnLink(t, lab.A, netlink.LinkDel)
	ends := map[EventType]bool{EventAddrChange: true, EventDisconnected: true}
	for _, ev := range gather(t, ca, EventDeviceRemoval, ends, id, ready, six, bound, idle) {
		if ev.Status != -int(syscall.ENODEV) {
			t.Errorf("%+v", ev)
		}
	}
	gather(t, cb, EventDeviceRemoval, ends, l, req.ID)
	if err := <-asked; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := id.Disconnect(); err != nil && !errors.Is(err, rcm.ErrUnknownID) {
		t.Error(err)
	}
	if err := idle.Listen(1); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := ca.CreateID(rcm.PortSpaceTCP, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := a.m.Listen(8, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	a.m.mu.Lock()
	if len(a.m.ports)+len(a.m.listeners)+len(a.m.conns) != 0 {
		t.Errorf("left: %d ports, %d listeners, %d connections", len(a.m.ports), len(a.m.listeners),
			len(a.m.conns))
	}
	a.m.mu.Unlock()
}

// TestIDsOverVeth: what librdmacm's users do, once over kernel interfaces: a QP of one's own,
// options, a request waited for, a channel left, a group joined and left.
func TestIDsOverVeth(t *testing.T) {
	a, b, _ := vethLab(t, &Config{Machine: quick})
	ca, later, cb := a.channel(), a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, b.ip4)
	id := a.routed(ca, l.LocalAddr())
	a.must(id.SetOption(OptionTOS, 0x20))
	a.must(id.SetOption(OptionAckTimeout, 18))
	qa, cqa := a.qp(verbs.RC)
	a.must(id.Connect(&Params{QPN: qa.Num()}))
	req, err := l.GetRequest(within(t))
	b.must(err)
	req.Ack()
	t.Cleanup(func() { b.must(req.ID.Destroy()) })
	qb, cqb := b.qp(verbs.RC)
	b.toState(req.ID, qb, verbs.StateInit, verbs.StateRTR)
	b.must(req.ID.Accept(&Params{QPN: qb.Num()}))
	get(t, ca, EventConnectResponse)
	a.toState(id, qa, verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
	a.must(id.Establish())
	get(t, cb, EventEstablished)
	if err := req.ID.Notify(verbs.EventCommEst); !errors.Is(err, ErrConnected) {
		t.Error(err)
	}
	b.toState(req.ID, qb, verbs.StateRTS)
	for _, q := range []*verbs.QP{qa, qb} {
		if attr, _ := q.Query(); attr.Timeout != 18 || attr.AH.TrafficClass != 0x20 {
			t.Errorf("ACK timeout %d, traffic class %#x", attr.Timeout, attr.AH.TrafficClass)
		}
	}
	sendOne(t, a, b, qa, qb, cqa, cqb)
	a.must(id.Migrate(later))
	b.must(req.ID.Disconnect())
	get(t, later, EventDisconnected)
	a.must(id.Disconnect())
	get(t, cb, EventDisconnected)
	get(t, later, EventTimewaitExit)
	get(t, cb, EventTimewaitExit)

	group := netip.MustParseAddr("239.77.0.5")
	ua := a.resolved(ca, netip.AddrPortFrom(b.ip4, 9), verbs.UD)
	ub := b.resolved(cb, netip.AddrPortFrom(a.ip4, 9), verbs.UD)
	a.must(ua.JoinMulticast(group))
	b.must(ub.JoinMulticast(group))
	joined := get(t, ca, EventMulticastJoin)
	get(t, cb, EventMulticastJoin)
	mr, err := b.pd.AllocMR(4096, verbs.LocalWrite)
	b.must(err)
	b.must(ub.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 128)}}))
	a.must(ua.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline,
		Inline: []byte("ping"), AH: joined.Service.AH, RemoteQPN: joined.Service.QPN,
		RemoteQKey: joined.Service.QKey}))
	_, init := ub.QP().Query()
	b.must(init.RecvCQ.Wait(within(t)))
	if string(mr.Bytes()[verbs.GRHBytes:][:4]) != "ping" {
		t.Error("datagram differs")
	}
	a.must(ua.LeaveMulticast(group))
	b.must(ub.LeaveMulticast(group))
}
