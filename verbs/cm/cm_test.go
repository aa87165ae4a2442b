package cm

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/netdev"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// host is a device with a manager.
type host struct {
	t   testing.TB
	ctx *verbs.Context
	pd  *verbs.PD
	m   *Manager
	ip4 netip.Addr
	ip6 netip.Addr
}

// hosts joins two devices in memory.
func hosts(t testing.TB, cfg *Config) (a, b *host) {
	t.Helper()
	la, lb := verbs.NewLinkPair(1)
	port := func(n byte) verbs.PortInfo {
		p := verbs.PortInfo{Name: "mem", MAC: wire.MAC{2, 0, 0, 0, 0, n},
			Neighbours: map[netip.Addr]wire.MAC{}}
		for i := byte(1); i <= 2; i++ {
			v4, v6 := netip.AddrFrom4([4]byte{10, 0, 0, i}), netip.AddrFrom16([16]byte{0: 0xfd, 15: i})
			if i == n {
				p.Addrs = []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)}
				continue
			}
			mac := wire.MAC{2, 0, 0, 0, 0, i}
			p.Neighbours[v4], p.Neighbours[v6] = mac, mac
		}
		return p
	}
	return newHost(t, la, port(1), cfg), newHost(t, lb, port(2), cfg)
}

func newHost(t testing.TB, l []verbs.Link, p verbs.PortInfo, cfg *Config) *host {
	t.Helper()
	h := &host{t: t, ip4: p.Addrs[0].Addr(), ip6: p.Addrs[1].Addr()}
	var err error
	h.ctx, err = verbs.OpenLinks(l, p, nil)
	h.must(err)
	t.Cleanup(func() { h.must(h.ctx.Close()) })
	h.manage(cfg)
	return h
}

// manage gives an open device what all tests need.
func (h *host) manage(cfg *Config) {
	h.t.Helper()
	var err error
	h.pd, err = h.ctx.AllocPD()
	h.must(err)
	h.m, err = New(h.ctx, cfg)
	h.must(err)
	h.t.Cleanup(func() { h.must(h.m.Close()) })
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) qp(typ verbs.QPType) (*verbs.QP, *verbs.CQ) {
	h.t.Helper()
	cq, err := h.ctx.CreateCQ(64)
	h.must(err)
	qp, err := h.ctx.CreateQP(h.pd, &verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq, SigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxInline: 64}})
	h.must(err)
	return qp, cq
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connected makes one connection.
func connected(t testing.TB, a, b *host, addr netip.Addr, typ verbs.QPType) (ca, cb *Conn) {
	t.Helper()
	l, err := b.m.Listen(7174, nil)
	b.must(err)
	t.Cleanup(func() { l.Close() })
	qa, _ := a.qp(typ)
	qb, _ := b.qp(typ)
	got := make(chan *Conn, 1)
	go func() {
		r, err := l.Accept(within(t))
		if err != nil {
			t.Error(err)
			return
		}
		if !bytes.HasPrefix(r.Private(), []byte("hello")) || r.Type() != typ {
			t.Errorf("request %v %q", r.Type(), r.Private())
		}
		c, err := r.Accept(within(t), qb, &Params{Private: []byte("welcome")})
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	ca, err = a.m.Dial(within(t), netip.AddrPortFrom(addr, 7174), qa,
		&Params{Private: []byte("hello")})
	a.must(err)
	if !bytes.HasPrefix(ca.Private(), []byte("welcome")) {
		t.Fatalf("private data %q", ca.Private())
	}
	if cb = <-got; cb == nil {
		t.FailNow()
	}
	return ca, cb
}

func TestDial(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		for _, six := range []bool{false, true} {
			a, b := hosts(t, nil)
			addr := b.ip4
			if six {
				addr = b.ip6
			}
			ca, cb := connected(t, a, b, addr, typ)
			exchange(t, a, b, ca, cb)
			a.must(ca.Disconnect(within(t)))
			<-cb.Done()
			if ca.QP().State() != verbs.StateErr || cb.QP().State() != verbs.StateErr {
				t.Fatal("QPs are not in ERR")
			}
			if !errors.Is(cb.Err(), ErrEnded) {
				t.Fatalf("ended with %v", cb.Err())
			}
			a.must(ca.Disconnect(within(t))) // again: nothing
		}
	}
}

// exchange sends one message each way.
func exchange(t testing.TB, a, b *host, ca, cb *Conn) {
	t.Helper()
	for _, d := range []struct {
		from, to *host
		c, peer  *Conn
	}{{a, b, ca, cb}, {b, a, cb, ca}} {
		mr, err := d.to.pd.AllocMR(4096, verbs.LocalWrite)
		d.to.must(err)
		d.to.must(d.peer.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{mr.SGE(0, 64)}}))
		d.from.must(d.c.QP().PostSend(&verbs.SendWR{WRID: 2, Opcode: verbs.WRSend,
			Flags: verbs.SendInline, Inline: []byte("ping")}))
		_, init := d.peer.QP().Query()
		wc := make([]verbs.WC, 1)
		for {
			d.to.must(init.RecvCQ.Wait(within(t)))
			if n, err := init.RecvCQ.Poll(wc); err != nil || n == 1 && wc[0].Status != verbs.WCSuccess {
				t.Fatal(err, wc[0].Status)
			} else if n == 1 && wc[0].Opcode == verbs.WCRecv {
				break
			}
		}
		if string(mr.Bytes()[:4]) != "ping" {
			t.Fatal("message differs")
		}
	}
}

// TestReject: no listener, the application's no, and a request nobody answers.
func TestReject(t *testing.T) {
	a, b := hosts(t, &Config{Machine: rcm.Config{RetryFirst: 20 * time.Millisecond, MaxRetries: 2,
		ResponseTimeout: 12}})
	qp, _ := a.qp(verbs.RC)
	var rej *RejectError
	_, err := a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 9), qp, nil)
	if !errors.As(err, &rej) || rej.Reason != rcm.ReasonInvalidServiceID {
		t.Fatalf("no listener: %v", err)
	}
	l, err := b.m.Listen(10, nil)
	b.must(err)
	if _, err := b.m.Listen(10, nil); !errors.Is(err, rcm.ErrInUse) {
		t.Fatalf("second listener: %v", err)
	}
	go func() {
		if r, err := l.Accept(context.Background()); err == nil {
			_ = r.Reject([]byte("no"))
		}
	}()
	qp, _ = a.qp(verbs.RC)
	_, err = a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 10), qp, nil)
	if !errors.As(err, &rej) || rej.Reason != rcm.ReasonConsumer || !bytes.HasPrefix(rej.Private,
		[]byte("no")) {
		t.Fatalf("rejected: %v", err)
	}
	qp, _ = a.qp(verbs.RC)
	b.must(b.m.Close())
	if _, err = a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 10), qp, nil); !errors.Is(err,
		ErrUnreachable) {
		t.Fatalf("nobody there: %v", err)
	}
	qp, _ = a.qp(verbs.RC)
	if _, err = a.m.Dial(within(t), netip.MustParseAddrPort("10.0.0.77:1"), qp, nil); !errors.Is(err,
		ErrUnreachable) || !errors.Is(err, netdev.ErrNoNeighbour) {
		t.Fatalf("no such host: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	qp, _ = a.qp(verbs.RC)
	if _, err = a.m.Dial(ctx, netip.AddrPortFrom(b.ip4, 10), qp, nil); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Fatalf("deadline: %v", err)
	}
	if _, err = a.m.Dial(within(t), netip.MustParseAddrPort("[fe80::1]:1"), qp, nil); !errors.Is(err,
		ErrNoAddress) {
		t.Fatalf("no address: %v", err)
	}
}

// TestWithdrawn: the peer has given up by the time its request is accepted.
func TestWithdrawn(t *testing.T) {
	a, b := hosts(t, nil)
	l, err := b.m.Listen(11, nil)
	b.must(err)
	ctx, cancel := context.WithCancel(within(t))
	qa, _ := a.qp(verbs.RC)
	dialed := make(chan error, 1)
	go func() {
		_, err := a.m.Dial(ctx, netip.AddrPortFrom(b.ip4, 11), qa, nil)
		dialed <- err
	}()
	r, err := l.Accept(within(t))
	b.must(err)
	cancel()
	if err := <-dialed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	until(t, func() bool {
		b.m.mu.Lock()
		defer b.m.mu.Unlock()
		_, err := b.m.machine.QPParam(r.id)
		return err != nil || b.m.machine.HalfOpen() == 0
	})
	qb, _ := b.qp(verbs.RC)
	if _, err := r.Accept(within(t), qb, nil); !errors.Is(err, ErrWithdrawn) {
		t.Errorf("accepted what nobody waits for: %v", err)
	}
}

// TestResolve: a datagram service is found by SIDR and reached.
func TestResolve(t *testing.T) {
	a, b := hosts(t, nil)
	l, err := b.m.Listen(20, &ListenConfig{PortSpace: rcm.PortSpaceUDP})
	b.must(err)
	qb, _ := b.qp(verbs.UD)
	go func() {
		if r, err := l.Accept(context.Background()); err == nil && r.Type() == verbs.UD {
			_ = r.AcceptUD(qb, 0, []byte("here"))
		}
	}()
	s, err := a.m.Resolve(within(t), netip.AddrPortFrom(b.ip4, 20), a.pd, nil)
	a.must(err)
	if s.QPN != qb.Num() || s.QKey != rcm.UDQKey || !bytes.HasPrefix(s.Private, []byte("here")) {
		t.Fatalf("service %+v", s)
	}
	var rej *RejectError
	if _, err = a.m.Resolve(within(t), netip.AddrPortFrom(b.ip4, 21), a.pd, nil); !errors.As(err,
		&rej) {
		t.Fatalf("no service: %v", err)
	}
}

// TestManyConnections: connections at once, from both sides, all ended by Close.
func TestManyConnections(t *testing.T) {
	a, b := hosts(t, nil)
	const n = 40
	l, err := b.m.Listen(30, nil)
	b.must(err)
	accepted := make(chan *Conn, n)
	go func() {
		for range n {
			r, err := l.Accept(within(t))
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				qp, _ := b.qp(verbs.RC)
				c, err := r.Accept(within(t), qp, nil)
				if err != nil {
					t.Error(err)
				}
				accepted <- c
			}()
		}
	}()
	dialed := make(chan error, n)
	for range n {
		go func() {
			qp, _ := a.qp(verbs.RC)
			_, err := a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 30), qp, nil)
			dialed <- err
		}()
	}
	for range n {
		a.must(<-dialed)
	}
	a.must(a.m.Close())
	for range n {
		c := <-accepted
		if c == nil {
			t.FailNow()
		}
		select {
		case <-c.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("a connection has not ended")
		}
	}
}
