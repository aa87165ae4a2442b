package cm

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

const resolveTime = 10 * time.Second

// quick makes time wait last 134 ms, and an ACK timeout, on a machine that is busy.
var quick = rcm.Config{PacketLife: 14, AckDelay: 1}

func (h *host) channel() *EventChannel {
	h.t.Helper()
	ch, err := h.m.CreateEventChannel()
	h.must(err)
	h.t.Cleanup(func() { h.must(ch.Close()) })
	return ch
}

func (h *host) id(ch *EventChannel, space rcm.PortSpace) *ID {
	h.t.Helper()
	id, err := ch.CreateID(space, h)
	h.must(err)
	h.t.Cleanup(func() { h.must(id.Destroy()) })
	return id
}

// get takes the next event, which must be of a type, and acks it.
func get(t testing.TB, ch *EventChannel, want EventType) *Event {
	t.Helper()
	ev, err := ch.Get(within(t))
	if err != nil {
		t.Fatalf("wait for %v: %v", want, err)
	}
	ev.Ack()
	ev.Ack() // again: nothing
	if ev.Type != want {
		t.Fatalf("event %v (%v), want %v", ev.Type, ev.Err, want)
	}
	return ev
}

func (h *host) attach(id *ID, typ verbs.QPType) *verbs.CQ {
	h.t.Helper()
	cq, err := h.ctx.CreateCQ(64)
	h.must(err)
	_, err = id.CreateQP(h.pd, &verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq, SigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxInline: 64}})
	h.must(err)
	return cq
}

// resolved brings an ID to where it can connect.
func (h *host) resolved(ch *EventChannel, to netip.AddrPort, typ verbs.QPType) *ID {
	h.t.Helper()
	space := rcm.PortSpaceTCP
	if typ == verbs.UD {
		space = rcm.PortSpaceUDP
	}
	id := h.id(ch, space)
	h.must(id.ResolveAddr(to, resolveTime))
	get(h.t, ch, EventAddrResolved)
	h.must(id.ResolveRoute(resolveTime))
	get(h.t, ch, EventRouteResolved)
	h.attach(id, typ)
	return id
}

// listening makes a listener on a port that is free.
func (h *host) listening(ch *EventChannel, space rcm.PortSpace, local netip.Addr) *ID {
	h.t.Helper()
	id := h.id(ch, space)
	h.must(id.Bind(netip.AddrPortFrom(local, 0)))
	h.must(id.Listen(0))
	if id.LocalAddr().Port() < firstFreePort {
		h.t.Fatalf("listens on port %d", id.LocalAddr().Port())
	}
	return id
}

// TestIDs: a connection by events, from its first to its last, over IPv4 and IPv6, RC and UC.
func TestIDs(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		for _, six := range []bool{false, true} {
			a, b := hosts(t, &Config{Machine: quick})
			addr := b.ip4
			if six {
				addr = b.ip6
			}
			ca, cb := a.channel(), b.channel()
			l := b.listening(cb, rcm.PortSpaceTCP, addr)
			to := netip.AddrPortFrom(addr, l.LocalAddr().Port())
			id := a.resolved(ca, to, typ)
			a.must(id.Connect(&Params{Private: []byte("hello")}))

			req := get(t, cb, EventConnectRequest)
			peer := req.ID
			t.Cleanup(func() { b.must(peer.Destroy()) })
			if req.Listen != l || peer.Context != b || !bytes.HasPrefix(req.Private, []byte("hello")) ||
				req.Remote.QPN != id.QP().Num() || peer.RemoteAddr().Addr() != id.LocalAddr().Addr() ||
				peer.LocalAddr() != to {
				t.Fatalf("request %+v from %v to %v", req, peer.RemoteAddr(), peer.LocalAddr())
			}
			b.attach(peer, typ)
			b.must(peer.Accept(&Params{Private: []byte("welcome")}))
			est := get(t, ca, EventEstablished)
			if est.ID != id || !bytes.HasPrefix(est.Private, []byte("welcome")) || id.RemoteAddr() != to {
				t.Fatalf("established %+v", est)
			}
			get(t, cb, EventEstablished)
			exchange(t, a, b, id.conn, peer.conn)

			a.must(id.Disconnect())
			get(t, cb, EventDisconnected)
			b.must(peer.Disconnect())
			if ev := get(t, ca, EventDisconnected); !errors.Is(ev.Err, ErrEnded) {
				t.Fatal(ev.Err)
			}
			get(t, ca, EventTimewaitExit)
			get(t, cb, EventTimewaitExit)
			if id.QP().State() != verbs.StateErr || peer.QP().State() != verbs.StateErr {
				t.Fatal("QPs are not in ERR")
			}
		}
	}
}

// TestIDsAndConns: an ID connects to a Listener, and Dial to a listening ID.
func TestIDsAndConns(t *testing.T) {
	a, b := hosts(t, nil)
	ca := a.channel()
	l, err := b.m.Listen(7, nil)
	b.must(err)
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, 7), verbs.RC)
	a.must(id.Connect(nil))
	r, err := l.Accept(within(t))
	b.must(err)
	qb, _ := b.qp(verbs.RC)
	c, err := r.Accept(within(t), qb, nil)
	b.must(err)
	get(t, ca, EventEstablished)
	exchange(t, a, b, id.conn, c)
	a.must(id.Destroy())
	<-c.Done()

	lid := a.listening(ca, rcm.PortSpaceTCP, netip.Addr{})
	go func() {
		ev, err := ca.Get(context.Background())
		if err != nil || ev.Type != EventConnectRequest {
			t.Errorf("event %+v, %v", ev, err)
			return
		}
		ev.Ack()
		a.attach(ev.ID, verbs.RC)
		if err := ev.ID.Accept(nil); err != nil {
			t.Error(err)
		}
		t.Cleanup(func() { a.must(ev.ID.Destroy()) })
	}()
	qb, _ = b.qp(verbs.RC)
	c, err = b.m.Dial(within(t), netip.AddrPortFrom(a.ip4, lid.LocalAddr().Port()), qb, nil)
	b.must(err)
	get(t, ca, EventEstablished)
	b.must(c.Disconnect(within(t)))
	get(t, ca, EventDisconnected)
}

// TestIDRefusals: everything that does not come about says why.
func TestIDRefusals(t *testing.T) {
	a, b := hosts(t, &Config{Machine: rcm.Config{RetryFirst: 20 * time.Millisecond, MaxRetries: 2,
		ResponseTimeout: 12}})
	ca, cb := a.channel(), b.channel()
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, 9), verbs.RC)
	a.must(id.Connect(nil))
	var rej *RejectError
	if ev := get(t, ca, EventRejected); !errors.As(ev.Err, &rej) ||
		rej.Reason != rcm.ReasonInvalidServiceID {
		t.Fatal(ev.Err)
	}
	l := b.listening(cb, rcm.PortSpaceTCP, netip.Addr{})
	to := netip.AddrPortFrom(b.ip4, l.LocalAddr().Port())
	id = a.resolved(ca, to, verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	b.must(req.ID.Reject([]byte("no")))
	if err := req.ID.Reject(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Fatal(err)
	}
	b.must(req.ID.Destroy())
	if ev := get(t, ca, EventRejected); !errors.As(ev.Err, &rej) || rej.Reason != rcm.ReasonConsumer ||
		!bytes.HasPrefix(rej.Private, []byte("no")) {
		t.Fatal(ev.Err)
	}
	// A request whose listener is destroyed before anybody has taken it.
	id = a.resolved(ca, to, verbs.RC)
	a.must(id.Connect(nil))
	select {
	case <-cb.Ready():
		signal(cb.ready)
	case <-time.After(resolveTime):
		t.Fatal("no request")
	}
	b.must(l.Destroy())
	get(t, ca, EventRejected)
	// Nobody there, no such host, no way there.
	id = a.resolved(ca, to, verbs.RC)
	b.must(b.m.Close())
	a.must(id.Connect(nil))
	if ev := get(t, ca, EventUnreachable); !errors.Is(ev.Err, ErrUnreachable) {
		t.Fatal(ev.Err)
	}
	id = a.id(ca, rcm.PortSpaceTCP)
	a.must(id.ResolveAddr(netip.MustParseAddrPort("10.0.0.77:1"), resolveTime))
	if ev := get(t, ca, EventAddrError); ev.Err == nil {
		t.Fatal("no reason")
	}
	if err := id.ResolveAddr(netip.MustParseAddrPort("[fe80::1]:1"), resolveTime); !errors.Is(err,
		ErrNoAddress) {
		t.Fatal(err)
	}
}

// TestIDMisuse: calls in a wrong order are refused, and change nothing.
func TestIDMisuse(t *testing.T) {
	a, b := hosts(t, nil)
	ca, cb := a.channel(), b.channel()
	if _, err := ca.CreateID(rcm.PortSpaceIB, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	id := a.id(ca, rcm.PortSpaceTCP)
	for call, err := range map[string]error{
		"connect": id.Connect(nil), "accept": id.Accept(nil), "reject": id.Reject(nil),
		"disconnect": id.Disconnect(), "route": id.ResolveRoute(resolveTime),
		"join":  id.JoinMulticast(netip.MustParseAddr("239.1.2.3")),
		"leave": id.LeaveMulticast(netip.MustParseAddr("239.1.2.3")),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s of a new id: %v", call, err)
		}
	}
	if err := id.Bind(netip.MustParseAddrPort("192.0.2.1:1")); !errors.Is(err, ErrNoAddress) {
		t.Error(err)
	}
	a.must(id.Bind(netip.AddrPortFrom(a.ip4, 77)))
	if err := id.Bind(netip.AddrPortFrom(a.ip4, 78)); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "the id is bound") {
		t.Error(err)
	}
	a.must(id.Listen(3))
	again := a.id(ca, rcm.PortSpaceTCP)
	if err := again.Bind(netip.AddrPortFrom(a.ip4, 77)); !errors.Is(err, rcm.ErrInUse) {
		t.Error(err)
	}
	if _, err := id.CreateQP(a.pd, &verbs.QPInitAttr{Type: verbs.UD}); !errors.Is(err,
		verbs.ErrInvalid) {
		t.Error(err)
	}
	if err := ca.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Error(err)
	}
	// Destroy waits for the event that somebody still looks at.
	x := b.id(cb, rcm.PortSpaceTCP)
	b.must(x.ResolveAddr(netip.AddrPortFrom(a.ip4, 77), resolveTime))
	ev, err := cb.Get(within(t))
	b.must(err)
	gone := make(chan error)
	go func() { gone <- x.Destroy() }()
	for x.m.idState(x) != idDestroyed {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-gone:
		t.Fatal("Destroy did not wait for Ack")
	default:
	}
	ev.Ack()
	b.must(<-gone)
	b.must(x.Destroy()) // again: nothing
}

func (m *Manager) idState(id *ID) idState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return id.state
}

// TestIDDatagrams: a datagram service is found, and a group joined and left.
func TestIDDatagrams(t *testing.T) {
	a, b := hosts(t, nil)
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceUDP, netip.Addr{})
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, l.LocalAddr().Port()), verbs.UD)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	t.Cleanup(func() { b.must(req.ID.Destroy()) })
	cq := b.attach(req.ID, verbs.UD)
	b.must(req.ID.Accept(&Params{Private: []byte("here")}))
	est := get(t, ca, EventEstablished)
	defer est.Service.AH.Destroy()
	if est.Service.QPN != req.ID.QP().Num() || est.Service.QKey != rcm.UDQKey ||
		!bytes.HasPrefix(est.Service.Private, []byte("here")) {
		t.Fatalf("service %+v", est.Service)
	}
	datagram(t, a, b, id, est.Service, req.ID, cq)

	group := netip.MustParseAddr("239.77.0.9")
	for _, x := range []struct {
		ch *EventChannel
		id *ID
	}{{ca, id}, {cb, req.ID}} {
		a.must(x.id.JoinMulticast(group))
		ev := get(t, x.ch, EventMulticastJoin)
		if ev.Service.QPN != 0xffffff || ev.Service.QKey != rcm.UDQKey {
			t.Fatalf("group %+v", ev.Service)
		}
		if x.id == id {
			defer func() { a.must(id.LeaveMulticast(group)) }()
			est = ev
		}
		if err := x.id.JoinMulticast(group); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatal(err)
		}
	}
	datagram(t, a, b, id, est.Service, req.ID, cq)
	b.must(req.ID.LeaveMulticast(group))
}

// datagram sends one to a service.
func datagram(t testing.TB, a, b *host, from *ID, s *Service, to *ID, cq *verbs.CQ) {
	t.Helper()
	mr, err := b.pd.AllocMR(4096, verbs.LocalWrite)
	b.must(err)
	b.must(to.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 128)}}))
	a.must(from.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline,
		Inline: []byte("ping"),
		AH:     s.AH, RemoteQPN: s.QPN, RemoteQKey: s.QKey}))
	b.must(cq.Wait(within(t)))
	wc := make([]verbs.WC, 1)
	if n, err := cq.Poll(wc); n != 1 || err != nil || wc[0].Status != verbs.WCSuccess {
		t.Fatal(n, err, wc[0].Status)
	}
	if string(mr.Bytes()[verbs.GRHBytes:][:4]) != "ping" {
		t.Fatal("datagram differs")
	}
}

// TestIDManagerCloses: all IDs learn that the device is gone, and can be destroyed.
func TestIDManagerCloses(t *testing.T) {
	a, b := hosts(t, nil)
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, netip.Addr{})
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, l.LocalAddr().Port()), verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	b.attach(req.ID, verbs.RC)
	b.must(req.ID.Accept(nil))
	get(t, ca, EventEstablished)
	get(t, cb, EventEstablished)
	b.must(b.m.Close())
	get(t, cb, EventDeviceRemoval)
	get(t, cb, EventDeviceRemoval)
	get(t, ca, EventDisconnected)
	b.must(req.ID.Destroy())
	if _, err := b.m.CreateEventChannel(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestEventNames(t *testing.T) {
	if EventTimewaitExit != 15 || EventTimewaitExit.String() != "TIMEWAIT_EXIT" ||
		EventEstablished.String() != "ESTABLISHED" {
		t.Error("names or numbers are not librdmacm's")
	}
	if s := EventType(99).String(); s != "EventType(99)" {
		t.Error(s)
	}
}
