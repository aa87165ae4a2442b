package rxe_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// fan is one device with a CQ that the QPs of three shards share, and their peers on another device.
type fan struct {
	t      testing.TB
	f      *sim.Fabric
	a, b   *sim.Node
	cq     *rxe.CQ // of all QPs of b
	cqA    *rxe.CQ
	qa, qb []*rxe.QP
	memB   *sim.Region
	events []rxe.Event
}

func newFan(t testing.TB, shards, cqDepth int) *fan {
	t.Helper()
	x := &fan{t: t, f: sim.New(sim.Config{})}
	node := func() *sim.Node {
		n, err := x.f.AddNode(sim.NodeConfig{Shards: shards})
		x.ok(err)
		return n
	}
	x.a, x.b = node(), node()
	x.b.OnEvent = func(e rxe.Event) { x.events = append(x.events, e) }
	pdA, pdB := x.a.AllocPD(), x.b.AllocPD()
	var err error
	x.cqA, err = x.a.Dev.NewCQ(1024)
	x.ok(err)
	x.cq, err = x.b.Dev.NewCQ(cqDepth)
	x.ok(err)
	x.memB, err = x.b.Reg(pdB, make([]byte, 4096), memAddr, sim.AllAccess)
	x.ok(err)
	for i := range shards {
		in := rxe.QPInit{Type: rxe.RC, PD: pdA, SendCQ: x.cqA, RecvCQ: x.cqA, MaxSendWR: 64, MaxRecvWR: 64}
		qa, err := x.a.Dev.CreateQP(x.a.Dev.Shards()[i], in)
		x.ok(err)
		in.PD, in.SendCQ, in.RecvCQ = pdB, x.cq, x.cq
		qb, err := x.b.Dev.CreateQP(x.b.Dev.Shards()[i], in)
		x.ok(err)
		x.ok(sim.Connect(x.a, qa, x.b, qb, sim.ConnAttr{Retry: 1}))
		x.qa, x.qb = append(x.qa, qa), append(x.qb, qb)
	}
	return x
}

func (x *fan) ok(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

// send makes n receive completions on connection i, with ids from id on.
func (x *fan) send(i, n int, id uint64) {
	x.t.Helper()
	for j := range n {
		x.ok(x.qb[i].PostRecv(&rxe.RecvWR{ID: id + uint64(j), SGEs: []rxe.SGE{x.memB.SGE(0, 64)}}))
		x.ok(x.qa[i].PostSend(&rxe.SendWR{Opcode: rxe.WRSend}))
	}
	x.qa[i].RingDoorbell()
	x.f.Run(x.f.Now() + 5_000_000)
}

func (x *fan) count(typ rxe.EventType) (n int) {
	for _, e := range x.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// TestCase41OverflowOverShards: a CQ that shards share overflows once: one CQ_ERR that names it, the
// QPs that lost completions in ERR with their posted work gone, what was in the CQ in order. The QPs
// of other CQs do not notice.
func TestCase41OverflowOverShards(t *testing.T) {
	x := newFan(t, 3, 4)
	other, err := x.b.Dev.NewCQ(16)
	x.ok(err)
	in := x.qb[0].Init()
	in.SendCQ, in.RecvCQ = other, other
	q, err := x.b.Dev.CreateQP(x.b.Dev.Shards()[0], in)
	x.ok(err)
	in = x.qa[0].Init()
	peer, err := x.a.Dev.CreateQP(x.a.Dev.Shards()[0], in)
	x.ok(err)
	x.ok(sim.Connect(x.a, peer, x.b, q, sim.ConnAttr{}))
	for i := range 3 {
		x.send(i, 3, uint64(10*i))
	}
	if n := x.count(rxe.EventCQErr); n != 1 || x.events[0].CQ != x.cq || x.events[0].Reason != rxe.ReasonCQOverflow {
		t.Fatalf("%d CQ_ERR events: %+v", n, x.events)
	}
	for i, want := range []rxe.QPState{rxe.StateRTS, rxe.StateErr, rxe.StateErr} {
		if got := x.qb[i].State(); got != want {
			t.Errorf("QP %d is in %v, want %v", i, got, want)
		}
	}
	var c [16]rxe.CQE
	n := x.cq.Poll(c[:])
	var ids []uint64
	for _, e := range c[:n] {
		ids = append(ids, e.WRID)
	}
	if fmt.Sprint(ids) != "[0 1 2 10]" || !x.cq.Dead() {
		t.Fatalf("completions of %v, dead %v", ids, x.cq.Dead())
	}
	x.send(0, 1, 3) // a dead CQ takes none, though there is room
	if x.cq.Len() != 0 || x.qb[0].State() != rxe.StateErr || x.count(rxe.EventCQErr) != 1 {
		t.Fatalf("dead CQ: %d completions, QP in %v", x.cq.Len(), x.qb[0].State())
	}
	x.ok(q.PostRecv(&rxe.RecvWR{ID: 99}))
	x.ok(peer.PostSend(&rxe.SendWR{Opcode: rxe.WRSend}))
	peer.RingDoorbell()
	x.f.Run(x.f.Now() + 5_000_000)
	if n := other.Poll(c[:]); n != 1 || c[0].WRID != 99 || c[0].Status != rxe.WCSuccess {
		t.Fatalf("the other CQ: %d completions, %+v", n, c[0])
	}
}

// TestCase41ResizeOverShards: a CQ with completions of three shards is made smaller and larger, full
// too: none is lost, each shard's order stays, and the new depth counts.
func TestCase41ResizeOverShards(t *testing.T) {
	x := newFan(t, 3, 9)
	for i := range 3 {
		x.send(i, 3, uint64(10*i))
	}
	if err := x.cq.Resize(8); !errors.Is(err, rxe.ErrCQSize) {
		t.Fatalf("fewer places than completions: %v", err)
	}
	for _, bad := range []int{0, -1, rxe.MaxCQE + 1} {
		if err := x.cq.Resize(bad); !errors.Is(err, rxe.ErrCQSize) {
			t.Fatalf("%d: %v", bad, err)
		}
	}
	next := map[uint64]uint64{0: 0, 1: 10, 2: 20}
	take := func(n int) {
		t.Helper()
		c := make([]rxe.CQE, n)
		if got := x.cq.Poll(c); got != n {
			t.Fatalf("%d completions, want %d", got, n)
		}
		for _, e := range c {
			if e.WRID != next[e.WRID/10] {
				t.Fatalf("completion %d, want %d", e.WRID, next[e.WRID/10])
			}
			next[e.WRID/10]++
		}
	}
	x.ok(x.cq.Resize(20))
	for i := range 3 {
		x.send(i, 3, uint64(10*i+3))
	}
	take(4)
	x.ok(x.cq.Resize(14))
	if x.cq.Depth() != 14 {
		t.Fatalf("depth %d", x.cq.Depth())
	}
	take(14)
	x.send(1, 2, 16)
	take(2)
	for i := range 3 {
		x.send(i, 4, next[uint64(i)])
	}
	if x.cq.Dead() {
		t.Fatal("overflow within the depth")
	}
	x.send(0, 3, 50) // 15 in 14
	if !x.cq.Dead() || x.count(rxe.EventCQErr) != 1 {
		t.Fatal("no overflow past the new depth")
	}
}

// TestCQManyPushers: shards push at once, one poller polls and resizes nothing: depth is never
// exceeded, nothing lost or doubled, order kept within each shard.
func TestCQManyPushers(t *testing.T) {
	const shards, each = 4, 5000
	x := newFan(t, shards, 64)
	var next [shards]uint64
	var room atomic.Int64
	room.Store(64)
	var wg sync.WaitGroup
	for s := range shards {
		wg.Go(func() {
			for i := uint64(0); i < each; {
				if room.Add(-1) < 0 { // an application keeps to the depth
					room.Add(1)
					runtime.Gosched()
					continue
				}
				if _, ok := rxe.PushCQE(x.cq, s, &rxe.CQE{WRID: uint64(s)<<32 | i}); !ok {
					t.Errorf("overflow within the depth")
					return
				}
				i++
			}
		})
	}
	var c [16]rxe.CQE
	for got := 0; got < shards*each && !t.Failed(); {
		n := x.cq.Poll(c[:])
		for _, e := range c[:n] {
			s := e.WRID >> 32
			if e.WRID&0xffffffff != next[s] {
				t.Fatalf("shard %d: completion %d, want %d", s, e.WRID&0xffffffff, next[s])
			}
			next[s]++
		}
		if n == 0 {
			runtime.Gosched()
		}
		got += n
		room.Add(int64(n))
	}
	wg.Wait()
	if x.cq.Len() != 0 {
		t.Fatalf("%d completions left", x.cq.Len())
	}
}

// TestSRQOneShard: an SRQ and its QPs live on one shard.
func TestSRQOneShard(t *testing.T) {
	x := newFan(t, 2, 16)
	srq, err := x.b.Dev.NewSRQ(x.b.Dev.Shards()[0], 1, 4, 1)
	x.ok(err)
	in := x.qb[1].Init()
	in.SRQ = srq
	if _, err := x.b.Dev.CreateQP(x.b.Dev.Shards()[1], in); !errors.Is(err, rxe.ErrSRQShard) {
		t.Fatalf("QP on another shard: %v", err)
	}
	q, err := x.b.Dev.CreateQP(x.b.Dev.Shards()[0], in)
	if err != nil || srq.Users() != 1 || srq.Shard() != x.b.Dev.Shards()[0] {
		t.Fatalf("QP on the SRQ's shard: %v, %d users", err, srq.Users())
	}
	if x.b.Dev.DestroyQP(q); srq.Users() != 0 {
		t.Fatalf("%d users of an SRQ without QPs", srq.Users())
	}
	for _, c := range []struct{ depth, sge uint32 }{{0, 1}, {rxe.MaxQPDepth + 1, 1}, {1, rxe.MaxSGE + 1}} {
		if _, err := x.b.Dev.NewSRQ(x.b.Dev.Shards()[0], 1, c.depth, c.sge); !errors.Is(err, rxe.ErrQPCap) {
			t.Errorf("SRQ %+v: %v", c, err)
		}
	}
}

// srqPeer is a QP whose receives come from an SRQ of the given domain.
func srqPeer(t testing.TB, typ rxe.QPType, pd func(p *rawPeer) mr.PD) (*rawPeer, *rxe.SRQ) {
	t.Helper()
	p := qpIn(t, rxe.StateReset, rawConfig{typ: typ})
	srq, err := p.n.Dev.NewSRQ(p.s, pd(p), 8, 2)
	p.must(err)
	in := p.q.Init()
	in.SRQ = srq
	p.q, err = p.n.Dev.CreateQP(p.s, in)
	p.must(err)
	c := rawConfig{typ: typ}
	p.setDefaults(&c)
	p.bring(rxe.StateRTS, c)
	return p, srq
}

// TestCase83SRQDomain: receives of an SRQ are checked against the SRQ's protection domain; the QP's may
// be another one.
func TestCase83SRQDomain(t *testing.T) {
	for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
		for _, same := range []bool{true, false} {
			var other mr.PD
			p, srq := srqPeer(t, typ, func(p *rawPeer) mr.PD { other = p.n.AllocPD(); return other })
			mem, err := p.n.Reg(other, make([]byte, 4096), memAddr, sim.AllAccess)
			p.must(err)
			if !same {
				mem = p.mem // of the QP's domain: not the SRQ's
			}
			p.must(srq.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{mem.SGE(0, 100)}}))
			k := packet{op: wire.RCSendOnly, psn: firstPSN, payload: fill(9, 9)}
			switch typ {
			case rxe.UC:
				k.op = wire.UCSendOnly
			case rxe.UD:
				k = p.datagram(1, 9)
			}
			p.inject(k)
			want := "1:success"
			if !same {
				want = "1:local protection error"
			}
			p.wantWC(want)
		}
	}
}

// TestSRQHeldWQE: a QP that fails in the middle of a message gives the receive it took from the SRQ
// back as flushed, and only then reports its last WQE; the SRQ's other receives stay (Case46).
func TestCase46SRQHeldWQE(t *testing.T) {
	p, srq := srqPeer(t, rxe.RC, func(p *rawPeer) mr.PD { return p.q.Init().PD })
	for i := uint64(1); i < 4; i++ {
		p.must(srq.PostRecv(&rxe.RecvWR{ID: i, SGEs: []rxe.SGE{p.mem.SGE(0, 1000)}}))
	}
	p.inject(packet{op: wire.RCSendFirst, psn: firstPSN, payload: fill(256, 1)})
	if srq.Q.Len() != 2 {
		t.Fatalf("%d receives left", srq.Q.Len())
	}
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	p.run()
	p.wantWC("1:Work Request Flushed Error")
	wantEvent(t, p.events, rxe.EventQPLastWQE, p.q)
	if srq.Q.Len() != 2 {
		t.Fatalf("%d receives left", srq.Q.Len())
	}
}

// TestSRQRNR: an empty SRQ is an RNR NAK; an ACK of a QP with an SRQ gives no credits.
func TestSRQRNR(t *testing.T) {
	p, srq := srqPeer(t, rxe.RC, func(p *rawPeer) mr.PD { return p.q.Init().PD })
	send := packet{op: wire.RCSendOnly, psn: firstPSN, ackReq: true, payload: fill(8, 1)}
	if s := one(t, p.inject(send)); s.syn.Kind() != wire.KindRNR {
		t.Fatalf("answered %+v", s)
	}
	p.must(srq.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{p.mem.SGE(0, 1000)}}))
	if s := one(t, p.inject(send)); s.syn != wire.AckSyndrome(wire.CreditInvalid) {
		t.Fatalf("syndrome %#x", s.syn)
	}
}

// TestSRQLimitAndResize: the limit fires at once when fewer are left already, never twice, and is
// refused beyond the depth, as is a depth below what is posted or the limit.
func TestSRQLimitAndResize(t *testing.T) {
	p, srq := srqPeer(t, rxe.RC, func(p *rawPeer) mr.PD { return p.q.Init().PD })
	events := func() int {
		p.run()
		n := 0
		for _, e := range p.events {
			if e.Type == rxe.EventSRQLimit && e.SRQ == srq {
				n++
			}
		}
		return n
	}
	if err := srq.SetLimit(9); !errors.Is(err, rxe.ErrQPCap) {
		t.Fatalf("limit beyond the depth: %v", err)
	}
	p.must(srq.SetLimit(3))
	if events() != 1 || srq.Limit() != 0 {
		t.Fatalf("%d events of an empty SRQ, limit %d", events(), srq.Limit())
	}
	for i := uint64(0); i < 5; i++ {
		p.must(srq.PostRecv(&rxe.RecvWR{ID: i}))
	}
	if err := srq.PostRecv(&rxe.RecvWR{SGEs: make([]rxe.SGE, 3)}); !errors.Is(err, rxe.ErrTooManySGE) {
		t.Fatalf("too many elements: %v", err)
	}
	p.must(srq.SetLimit(5))
	for _, n := range []uint32{0, 4, rxe.MaxQPDepth + 1} {
		if err := srq.Resize(n); !errors.Is(err, rxe.ErrQPCap) {
			t.Fatalf("resize to %d: %v", n, err)
		}
	}
	p.must(srq.Resize(5))
	if err := srq.PostRecv(&rxe.RecvWR{}); !errors.Is(err, rxe.ErrQueueFull) {
		t.Fatalf("Case86: posted past the depth: %v", err)
	}
	p.inject(packet{op: wire.RCSendOnly, psn: firstPSN})
	p.inject(packet{op: wire.RCSendOnly, psn: firstPSN.Next()})
	if events() != 2 {
		t.Fatalf("%d events", events())
	}
	p.wantWC("0:success", "1:success")
}
