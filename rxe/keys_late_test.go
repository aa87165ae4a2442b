package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// TestF8: invalidations that must fail, and touch nothing.
func TestF8(t *testing.T) {
	for name, key := range map[string]func(*attack) mr.Key{
		"variant":     func(x *attack) mr.Key { return x.m.key.Inc() },
		"user region": func(x *attack) mr.Key { return x.b.mem.Key },
		"key 0":       func(*attack) mr.Key { return 0 },
		"no region":   func(*attack) mr.Key { return mr.MakeKey(9999, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newAttack(t)
			x.m.mapSG(x.listA)
			x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
			x.done(1)
			x.m.inv(2, key(x), rxe.SendSignaled)
			x.m.inv(3, x.m.key, rxe.SendSignaled)
			c := x.wait(x.b, 2)
			wantStatus(t, c[0], rxe.WCLocQPOpErr)
			wantStatus(t, c[1], rxe.WCWRFlushErr)
			if x.b.q.State() != rxe.StateErr {
				t.Fatal("QP is not in ERR")
			}
			x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCSuccess)
		})
	}
	t.Run("bound window", func(t *testing.T) {
		x := newAttack(t)
		x.m.mapSG(x.listA)
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		w := x.window(mr.KindWindow2)
		if st := w.bind(x.b.q, x.m.key, fastVA+4096, 4096, rw); st != rxe.WCSuccess {
			t.Fatalf("bind: %v", st)
		}
		q, cq := x.qp(x.b, 0) // the window needs its own
		peer, _ := x.qp(x.a, 0)
		x.ok(sim.Connect(x.b.n, q, x.a.n, peer, sim.ConnAttr{}))
		x.m.post(q, rxe.SendWR{ID: 2, Opcode: rxe.WRLocalInv, RKey: x.m.key})
		var c [1]rxe.CQE
		x.f.RunUntil(x.f.Now()+1_000_000_000, func() bool { return cq.Poll(c[:]) == 1 })
		if wantStatus(t, c[0], rxe.WCLocQPOpErr); q.State() != rxe.StateErr {
			t.Fatal("QP is not in ERR")
		}
		x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCSuccess)
		x.wantAccess(rxe.WRRDMAWrite, w.key, fastVA+4096, 64, rxe.WCSuccess)
	})
	t.Run("free window again", func(t *testing.T) {
		x := newAttack(t)
		w := x.window(mr.KindWindow2)
		w.mustBind(winVA, winLen, rw)
		x.m.inv(1, w.key, rxe.SendSignaled)
		x.m.inv(2, w.key, rxe.SendSignaled)
		c := x.wait(x.b, 2)
		wantStatus(t, c[0], rxe.WCSuccess)
		wantStatus(t, c[1], rxe.WCLocQPOpErr)
		if got := x.m.tab.Lookup(w.key.Index()); got.State != mr.StateFree || got.Key != w.key {
			t.Fatalf("the window is %+v", got)
		}
	})
	t.Run("free region again", func(t *testing.T) { // as rxe: no harm, the key still matches
		x := newAttack(t)
		x.m.inv(1, x.m.key, rxe.SendSignaled)
		x.m.inv(2, x.m.key, rxe.SendSignaled)
		x.done(2)
	})
}

// TestF9: a region with local rights only is invalidated by its key like any other.
func TestF9(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	x.m.reg(1, fastVA, 16384, mr.LocalWrite, rxe.SendSignaled)
	x.done(1)
	x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCRemAccessErr)
	x.m.inv(2, x.m.key, rxe.SendSignaled)
	x.done(1)
}

// TestF10: a SEND_WITH_INV whose ACK is lost is acknowledged again but not executed again, though the
// region has been registered anew, with a new key and with the same.
func TestF10(t *testing.T) {
	for _, same := range []bool{false, true} {
		x := newAttack(t)
		x.m.mapSG(x.listA)
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		x.b.recv(t, 5, x.b.mem.SGE(0, 64))
		lost := 0
		x.f.SetFaults(sim.Faults{Script: func(_ uint64, from, _ *sim.Node, _ []byte) sim.Verdict {
			if from == x.b.n && lost < 1 {
				lost++
				return sim.Drop
			}
			return sim.Pass
		}})
		x.a.send(t, rxe.SendWR{ID: 6, Opcode: rxe.WRSendWithInv, SGEs: []rxe.SGE{x.a.mem.SGE(0, 8)}, Imm: uint32(x.m.key)})
		c := x.wait(x.b, 1)[0]
		wantStatus(t, c, rxe.WCSuccess)
		if c.Flags != rxe.WCWithInv || c.Imm != uint32(x.m.key) {
			t.Fatalf("receive completion %+v", c)
		}
		if !same {
			x.m.key = x.m.key.Inc()
		}
		x.m.reg(7, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		wantStatus(t, x.wait(x.a, 1)[0], rxe.WCSuccess)
		if lost != 1 || x.b.q.Stats.Duplicates == 0 {
			t.Fatal("no duplicate came")
		}
		x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCSuccess)
	}
}

// TestF11: retransmissions of SENDs around local operations run those once.
func TestF11(t *testing.T) {
	x := newAttack(t)
	x.f.SetFaults(sim.Faults{Drop: 0.3})
	x.m.mapSG(x.listA)
	const cycles = 40
	for i := 0; i < cycles; i++ {
		x.a.recv(t, 1, x.a.mem.SGE(0, 64))
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.b.send(t, rxe.SendWR{ID: 2, Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)}})
		x.m.inv(3, x.m.key, rxe.SendSignaled)
		x.m.key = x.m.key.Inc()
		x.done(3)
	}
	if c := x.b.q.Shard().C; c.LocalOps != 2*cycles || c.Retransmits == 0 {
		t.Fatalf("%d local operations for %d work requests, %d retransmissions", c.LocalOps, 2*cycles, c.Retransmits)
	}
}

// TestF12 is Pearson's timeline: a READ that times out, then a control message with a key, REG, INV,
// REG: the fence of LOCAL_INV keeps a retransmission from advertising a stale key.
func TestF12(t *testing.T) {
	x := newAttack(t)
	drops := 0
	x.f.SetFaults(sim.Faults{Script: func(_ uint64, from, _ *sim.Node, b []byte) sim.Verdict {
		if from == x.a.n && drops < 2 { // the answers to the READ
			drops++
			return sim.Drop
		}
		return sim.Pass
	}})
	x.m.mapSG(x.listA)
	x.a.recv(t, 1, x.a.mem.SGE(0, 64))
	key1 := x.m.key
	x.b.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)}, RemoteAddr: x.a.mem.Addr, RKey: x.a.mem.Key})
	x.m.reg(2, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.b.send(t, rxe.SendWR{ID: 3, Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.b.mem.SGE(8, 8)}})
	x.m.inv(4, key1, rxe.SendSignaled)
	x.m.key = key1.Inc()
	x.m.mapSG(x.listB)
	x.m.reg(5, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	// The receiver of the control message uses the key at once: it must be in force.
	x.f.RunUntil(x.f.Now()+10_000_000_000, func() bool { return x.a.cq.Len() == 1 })
	if f := x.m.tab.Lookup(key1.Index()); f.Key != key1 || f.State != mr.StateValid {
		t.Fatalf("key %#x was advertised, installed is %#x (%v)", key1, f.Key, f.State)
	}
	for i, c := range x.wait(x.b, 5) {
		wantStatus(t, c, rxe.WCSuccess)
		if int(c.WRID) != i+1 {
			t.Fatalf("order: %d", c.WRID)
		}
	}
}

// TestF13: two QPs of one PD on two shards use one region: registered on one, invalidated on the
// other; both orders are legal, a torn state is not.
func TestF13(t *testing.T) {
	p := newPair(t, pairConfig{node: sim.NodeConfig{Shards: 2}})
	x := &attack{pair: p, m: newFast(t, p.b, 4), listA: pages(4, 0xaa)}
	x.m.mapSG(x.listA)
	q2, cq2 := x.qp(x.b, 1)
	qp, _ := x.qp(x.a, 1)
	x.ok(sim.Connect(x.b.n, q2, x.a.n, qp, sim.ConnAttr{}))
	for i := 0; i < 200; i++ {
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		x.m.post(q2, rxe.SendWR{ID: 2, Opcode: rxe.WRLocalInv, RKey: x.m.key, Flags: rxe.SendSignaled})
		var c [1]rxe.CQE
		x.f.RunUntil(x.f.Now()+1_000_000_000, func() bool { return cq2.Poll(c[:]) == 1 })
		wantStatus(t, c[0], rxe.WCSuccess)
		if s := x.m.tab.Lookup(x.m.key.Index()).State; s != mr.StateFree {
			t.Fatalf("state %v", s)
		}
		x.m.key = x.m.key.Inc()
	}
}

// TestF14: registrations that must fail, and publish nothing.
func TestF14(t *testing.T) {
	t.Run("valid region", func(t *testing.T) {
		x := newAttack(t)
		x.m.mapSG(x.listA)
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		first := x.m.key
		x.m.key = first.Inc()
		x.m.reg(2, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		wantStatus(t, x.wait(x.b, 1)[0], rxe.WCLocQPOpErr)
		x.wantProbe(rxe.WRRDMAWrite, first, fastVA, 64, rxe.WCSuccess)
		x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCRemAccessErr)
	})
	t.Run("other PD", func(t *testing.T) {
		x := newAttack(t)
		x.m.mapSG(x.listA)
		in := x.b.q.Init()
		in.PD = x.b.n.AllocPD()
		q, err := x.b.n.Dev.CreateQP(x.b.n.Dev.Shards()[0], in)
		x.ok(err)
		peer, _ := x.qp(x.a, 0)
		x.ok(sim.Connect(x.b.n, q, x.a.n, peer, sim.ConnAttr{}))
		x.m.regOn(q, 1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		wantStatus(t, x.wait(x.b, 1)[0], rxe.WCLocQPOpErr)
		x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCRemAccessErr)
	})
	t.Run("index", func(t *testing.T) {
		x := newAttack(t)
		x.m.mapSG(x.listA)
		num, err := x.m.tab.Stage(mr.Region{Key: x.m.key, Access: sim.AllAccess, IOVA: fastVA, Length: 4096})
		x.ok(err)
		before := x.m.tab.Lookup(x.m.key.Index())
		other := mr.MakeKey(x.m.key.Index()+1, 0)
		x.m.post(x.b.q, rxe.SendWR{ID: 1, Opcode: rxe.WRRegMR, RKey: other, List: num, Flags: rxe.SendSignaled})
		wantStatus(t, x.wait(x.b, 1)[0], rxe.WCLocQPOpErr)
		if got := x.m.tab.Lookup(x.m.key.Index()); got != before {
			t.Fatalf("the region is %+v, was %+v", got, before)
		}
		for _, key := range []mr.Key{x.m.key, other} {
			x.wantProbe(rxe.WRRDMAWrite, key, fastVA, 64, rxe.WCRemAccessErr)
		}
	})
	t.Run("more pages than allocated", func(t *testing.T) {
		x := newAttack(t)
		if _, err := x.m.tab.Map(x.m.key.Index(), make([][]byte, 17)); err == nil {
			t.Fatal("accepted")
		}
	})
}

// TestF15: BIND_MW against LOCAL_INV of the region it binds to, on two shards: exactly one wins,
// whichever runs first.
func TestF15(t *testing.T) {
	won := map[string]int{}
	for i := uint64(0); i < 60; i++ {
		p := newPair(t, pairConfig{sim: sim.Config{Seed: i, Spread: 3000}, node: sim.NodeConfig{Shards: 2}})
		x := &attack{pair: p, m: newFast(t, p.b, 4), listA: pages(4, 0xaa)}
		x.m.mapSG(x.listA)
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		q2, cq2 := x.qp(x.b, 1)
		peer, _ := x.qp(x.a, 1)
		x.ok(sim.Connect(x.b.n, q2, x.a.n, peer, sim.ConnAttr{}))
		w := x.window(mr.KindWindow2)
		num, err := x.m.tab.StageBind(w.key.Index())
		x.ok(err)
		bind := rxe.SendWR{ID: 1, Opcode: rxe.WRBindMW, Flags: rxe.SendSignaled, MWKey: w.key, RKey: w.key.Inc(),
			Parent: x.m.key, RemoteAddr: fastVA, Length: 4096, Access: rw, List: num}
		post := []func(){func() { x.m.post(q2, bind) }, func() { x.m.inv(2, x.m.key, rxe.SendSignaled) }}
		post[i%2]()
		x.f.Run(x.f.Now() + rxe.Time(i%3)*700)
		post[1-i%2]()
		var c [1]rxe.CQE
		x.f.RunUntil(x.f.Now()+1_000_000_000, func() bool { return cq2.Poll(c[:]) == 1 })
		inv := x.wait(x.b, 1)[0]
		bound, gone := c[0].Status == rxe.WCSuccess, inv.Status == rxe.WCSuccess
		if bound == gone {
			t.Fatalf("seed=%d: bind %v, invalidate %v", i, c[0].Status, inv.Status)
		}
		if st := x.m.tab.Lookup(x.m.key.Index()).State; (st == mr.StateValid) != bound {
			t.Fatalf("seed=%d: region is %v", i, st)
		}
		won[map[bool]string{true: "bind", false: "invalidate"}[bound]]++
	}
	if won["bind"] == 0 || won["invalidate"] == 0 {
		t.Fatalf("one side always wins: %v", won)
	}
}

// TestF16: LOCAL_INV of view 1 against REG_MR of view 2 on two shards: no lost update. REG_MR finds
// the region still valid and fails, or free and succeeds; LOCAL_INV never takes view 2.
func TestF16(t *testing.T) {
	seen := map[rxe.WCStatus]int{}
	for i := uint64(0); i < 60; i++ {
		p := newPair(t, pairConfig{sim: sim.Config{Seed: i, Spread: 3000}, node: sim.NodeConfig{Shards: 2}})
		x := &attack{pair: p, m: newFast(t, p.b, 4), listA: pages(4, 0xaa), listB: pages(4, 0xbb)}
		x.m.mapSG(x.listA)
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		q2, cq2 := x.qp(x.b, 1)
		peer, _ := x.qp(x.a, 1)
		x.ok(sim.Connect(x.b.n, q2, x.a.n, peer, sim.ConnAttr{}))
		old := x.m.key
		x.m.key = old.Inc()
		x.m.mapSG(x.listB)
		post := []func(){
			func() { x.m.inv(2, old, rxe.SendSignaled) },
			func() { x.m.regOn(q2, 3, fastVA, 16384, sim.AllAccess, rxe.SendSignaled) },
		}
		post[i%2]()
		x.f.Run(x.f.Now() + rxe.Time(i%3)*700)
		post[1-i%2]()
		wantStatus(t, x.wait(x.b, 1)[0], rxe.WCSuccess)
		var c [1]rxe.CQE
		x.f.RunUntil(x.f.Now()+1_000_000_000, func() bool { return cq2.Poll(c[:]) == 1 })
		seen[c[0].Status]++
		got := x.m.tab.Lookup(old.Index())
		switch c[0].Status {
		case rxe.WCSuccess:
			if got.State != mr.StateValid || got.Key != x.m.key {
				t.Fatalf("seed=%d: registered, but %+v", i, got)
			}
		case rxe.WCLocQPOpErr:
			if got.State != mr.StateFree {
				t.Fatalf("seed=%d: refused, but %+v", i, got)
			}
		default:
			t.Fatalf("seed=%d: %v", i, c[0].Status)
		}
	}
	if seen[rxe.WCSuccess] == 0 || seen[rxe.WCLocQPOpErr] == 0 {
		t.Fatalf("one order only: %v", seen)
	}
}
