package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// TestOptions: what an option asks for is what the QPs get.
func TestOptions(t *testing.T) {
	a, b := hosts(t, nil)
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, b.ip4)
	id := a.routed(ca, l.LocalAddr())
	a.must(id.SetOption(OptionTOS, 0x68))
	a.must(id.SetOption(OptionAckTimeout, 19))
	a.attach(id, verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	t.Cleanup(func() { b.must(req.ID.Destroy()) })
	b.must(req.ID.SetOption(OptionAckTimeout, 20))
	b.attach(req.ID, verbs.RC)
	b.must(req.ID.Accept(nil))
	get(t, ca, EventEstablished)
	get(t, cb, EventEstablished)
	for _, x := range []struct {
		id      *ID
		timeout uint8
	}{{id, 19}, {req.ID, 20}} {
		attr, _ := x.id.QP().Query()
		if attr.AH.TrafficClass != 0x68 || attr.Timeout != x.timeout {
			t.Errorf("traffic class %#x, ACK timeout %d, want 0x68, %d", attr.AH.TrafficClass, attr.Timeout,
				x.timeout)
		}
	}
	if id.LocalAddr().Port() < firstFreePort || req.ID.RemoteAddr() != id.LocalAddr() {
		t.Errorf("connected from %v, the peer says %v", id.LocalAddr(), req.ID.RemoteAddr())
	}
	// Without an option of its own the passive end has what the REQ says.
	second := a.resolved(ca, l.LocalAddr(), verbs.RC)
	a.must(second.SetOption(OptionAckTimeout, 17))
	a.must(second.Connect(nil))
	req2 := get(t, cb, EventConnectRequest)
	t.Cleanup(func() { b.must(req2.ID.Destroy()) })
	b.attach(req2.ID, verbs.RC)
	b.must(req2.ID.Accept(nil))
	get(t, cb, EventEstablished)
	if attr, _ := req2.ID.QP().Query(); attr.Timeout != 17 {
		t.Errorf("ACK timeout %d", attr.Timeout)
	}
	// Too late, or nonsense.
	udp := a.id(ca, rcm.PortSpaceUDP)
	for _, err := range []error{
		id.SetOption(OptionTOS, 1), id.SetOption(OptionAckTimeout, 5), id.SetOption(OptionReuseAddr, 1),
		id.SetOption(OptionAFOnly, 1), udp.SetOption(OptionTOS, 256), udp.SetOption(OptionTOS, -1),
		udp.SetOption(OptionReuseAddr, 2), udp.SetOption(OptionAckTimeout, 14), udp.SetOption(9, 0),
		second.SetOption(OptionAckTimeout, 0),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("set option: %v", err)
		}
	}
	if OptionAckTimeout != 3 || OptionAFOnly.String() != "AFONLY" ||
		Option(9).String() != "Option(9)" {
		t.Error("names or numbers are not librdmacm's")
	}
}

// TestPorts: who may have a port beside whom.
func TestPorts(t *testing.T) {
	a, _ := hosts(t, nil)
	ch := a.channel()
	four, six := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	type want struct {
		addr   netip.Addr
		space  rcm.PortSpace
		reuse  bool
		afonly int // -1: not set
	}
	on := func(addr netip.Addr) want { return want{addr: addr, space: rcm.PortSpaceTCP, afonly: -1} }
	shared, only, both, udp := on(a.ip4), on(six), on(four), on(a.ip4)
	shared.reuse, only.afonly, both.afonly, udp.space = true, 1, 0, rcm.PortSpaceUDP
	for _, tc := range []struct {
		name          string
		first, second want
		listen        bool // the first does
		inUse         bool
	}{
		{"same address", on(a.ip4), on(a.ip4), false, true},
		{"two addresses", on(a.ip4), on(a.ip6), true, false},
		{"two port spaces", on(a.ip4), udp, true, false},
		{"any and one", on(netip.Addr{}), on(a.ip4), false, true},
		{"any IPv4 and an IPv6 one", on(four), on(a.ip6), true, false},
		{"any IPv4 and an IPv4 one", on(four), on(a.ip4), true, true},
		{"any IPv4 and any", on(four), on(six), true, true},
		{"any IPv4 and IPv6 only", on(four), only, true, false},
		{"any by IPv4, not only, and IPv6 only", both, only, true, true},
		{"both share", shared, shared, false, false},
		{"one would share", shared, on(a.ip4), false, true},
		{"a listener does not share", shared, shared, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bind := func(w want, port uint16) (*ID, error) {
				id, err := ch.CreateID(w.space, nil)
				a.must(err)
				t.Cleanup(func() { a.must(id.Destroy()) })
				if w.reuse {
					a.must(id.SetOption(OptionReuseAddr, 1))
				}
				if w.afonly >= 0 {
					a.must(id.SetOption(OptionAFOnly, w.afonly))
				}
				return id, id.Bind(netip.AddrPortFrom(w.addr, port))
			}
			first, err := bind(tc.first, 500)
			a.must(err)
			if tc.listen {
				a.must(first.Listen(1))
			}
			second, err := bind(tc.second, 500)
			if errors.Is(err, rcm.ErrInUse) != tc.inUse || !tc.inUse && err != nil {
				t.Fatalf("second: %v", err)
			}
			if err != nil {
				a.must(first.Destroy())
				if second, err = bind(tc.second, 500); err != nil {
					t.Fatalf("after the first has gone: %v", err)
				}
			}
			if err := second.Listen(1); tc.first.reuse && !tc.inUse && !errors.Is(err, rcm.ErrInUse) {
				t.Fatalf("listens at a port that is shared: %v", err)
			}
			if err := second.SetOption(OptionReuseAddr, 0); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("taken back: %v", err)
			}
		})
	}
	// A Listener has its port, too, and those who want any get another one.
	l, err := a.m.Listen(firstFreePort+1, nil)
	a.must(err)
	id := a.id(ch, rcm.PortSpaceTCP)
	if err := id.Bind(netip.AddrPortFrom(a.ip4, firstFreePort+1)); !errors.Is(err, rcm.ErrInUse) {
		t.Error(err)
	}
	p := &place{space: rcm.PortSpaceTCP}
	a.m.mu.Lock()
	if err := a.m.ports.take(p, 1); err != nil || p.port != firstFreePort+2 {
		t.Errorf("port %d, %v", p.port, err)
	}
	a.m.ports.remove(p)
	a.m.mu.Unlock()
	a.must(l.Close())
	a.must(id.Bind(netip.AddrPortFrom(a.ip4, firstFreePort+1)))
	a.must(id.Destroy())
	if len(a.m.ports) != 0 {
		t.Errorf("%d ports are left", len(a.m.ports))
	}
}

// TestNoPortFree: when all are taken, the error says so.
func TestNoPortFree(t *testing.T) {
	all := ports{}
	for i := range 1<<16 - firstFreePort {
		p := &place{}
		if err := all.take(p, uint16(i*7919)); err != nil {
			t.Fatalf("port %d: %v", i, err)
		}
	}
	if err := all.take(&place{}, 5); !errors.Is(err, rcm.ErrInUse) {
		t.Error(err)
	}
}

// TestIDFamilies: a listener on any IPv4 address is not there for IPv6 peers.
func TestIDFamilies(t *testing.T) {
	a, b := hosts(t, nil)
	ca, cb := a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, netip.IPv4Unspecified())
	port := l.LocalAddr().Port()
	id := a.resolved(ca, netip.AddrPortFrom(b.ip6, port), verbs.RC)
	a.must(id.Connect(nil))
	if ev := get(t, ca, EventRejected); ev.Status != int(rcm.ReasonInvalidServiceID) {
		t.Errorf("rejected: %v", ev.Err)
	}
	id = a.resolved(ca, netip.AddrPortFrom(b.ip4, port), verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	b.must(req.ID.Destroy())
	get(t, ca, EventRejected)
	// Nor can one that is bound so reach IPv6 peers.
	id = a.id(ca, rcm.PortSpaceTCP)
	a.must(id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)))
	if err := id.ResolveAddr(netip.AddrPortFrom(b.ip6, 1), resolveTime); !errors.Is(err,
		ErrNoAddress) {
		t.Error(err)
	}
}

// TestStatus: what librdmacm's users look at.
func TestStatus(t *testing.T) {
	cfg := quick
	cfg.RetryFirst, cfg.MaxRetries, cfg.ResponseTimeout = 20*time.Millisecond, 2, 12
	a, b := hosts(t, &Config{Machine: cfg})
	ca, cb := a.channel(), b.channel()

	// Nobody serves datagrams there.
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, 9), verbs.UD)
	a.must(id.Connect(nil))
	var rej *RejectError
	if ev := get(t, ca, EventUnreachable); !errors.As(ev.Err, &rej) ||
		ev.Status != int(rcm.SIDRUnsupported) || rej.Status != rcm.SIDRUnsupported {
		t.Errorf("no datagram service: %d, %v", ev.Status, ev.Err)
	}
	// The peer goes without a word, and does not answer the DREQ.
	l := b.listening(cb, rcm.PortSpaceTCP, netip.Addr{})
	to := netip.AddrPortFrom(b.ip4, l.LocalAddr().Port())
	id = a.resolved(ca, to, verbs.RC)
	late := a.resolved(ca, to, verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	b.attach(req.ID, verbs.RC)
	b.must(req.ID.Accept(nil))
	if ev := get(t, ca, EventEstablished); ev.Status != 0 {
		t.Errorf("established: %d", ev.Status)
	}
	get(t, cb, EventEstablished)
	b.must(b.ctx.Close())
	a.must(id.Disconnect())
	if ev := get(t, ca, EventDisconnected); !errors.Is(ev.Err, ErrEnded) ||
		!errors.Is(ev.Err, ErrUnreachable) || ev.Status != -int(syscall.ETIMEDOUT) {
		t.Errorf("disconnected: %d, %v", ev.Status, ev.Err)
	}
	get(t, ca, EventTimewaitExit)
	a.must(late.Connect(nil))
	if ev := get(t, ca, EventUnreachable); ev.Status != -int(syscall.ETIMEDOUT) {
		t.Errorf("unreachable: %d, %v", ev.Status, ev.Err)
	}
	b.must(req.ID.Destroy())
}

// TestGroupError: a group that cannot be joined, because it is of the other IP version, and one
// that can afterwards.
func TestGroupError(t *testing.T) {
	a, b := hosts(t, nil)
	ca := a.channel()
	id := a.resolved(ca, netip.AddrPortFrom(b.ip4, 9), verbs.UD)
	a.must(id.SetOption(OptionTOS, 4))
	a.must(id.JoinMulticast(netip.MustParseAddr("ff0e::77")))
	if ev := get(t, ca, EventMulticastError); ev.ID != id || ev.Err == nil || ev.Status >= 0 {
		t.Errorf("%+v", ev)
	}
	if err := id.LeaveMulticast(netip.MustParseAddr("ff0e::77")); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	a.must(id.JoinMulticast(netip.MustParseAddr("239.0.0.77")))
	get(t, ca, EventMulticastJoin)
	a.must(id.LeaveMulticast(netip.MustParseAddr("239.0.0.77")))
}
