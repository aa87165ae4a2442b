package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestDroppedWorkGivesItsListBack: registrations that were posted and never ran, because the QP was
// reset or destroyed, neither hold their list nor run later.
func TestDroppedWorkGivesItsListBack(t *testing.T) {
	for _, how := range []string{"reset", "destroy", "error"} {
		t.Run(how, func(t *testing.T) {
			x := newAttack(t)
			x.m.mapSG(x.listA)
			x.hold()
			x.m.inv(1, x.m.key, 0)
			x.m.reg(2, fastVA, 16384, sim.AllAccess, 0) // taken by the engine, behind the LOCAL_INV
			x.f.Run(x.f.Now() + 100_000)
			num, err := x.m.tab.Stage(mr.Region{Key: x.m.key, IOVA: fastVA, Length: 16384})
			x.ok(err)
			x.m.post(x.b.q, rxe.SendWR{Opcode: rxe.WRRegMR, RKey: x.m.key, List: num}) // not taken
			x.m.mapSG(x.listB)
			if !x.m.tab.Uses(x.listA) {
				t.Fatal("posted work has no list")
			}
			switch how {
			case "reset":
				x.ok(x.b.q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState))
			case "destroy":
				x.b.n.Dev.DestroyQP(x.b.q)
			case "error":
				x.ok(x.b.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
				x.f.Run(x.f.Now() + 100_000)
			}
			if x.m.tab.Uses(x.listA) || x.m.tab.Staged(x.m.key.Index(), num) != nil {
				t.Fatal("dropped work keeps its list")
			}
		})
	}
}

// TestRepeatedReadOfDeadKey: a READ that the peer repeats, its answer being late, and behind it in
// the same batch the SEND_WITH_INV of a peer that has the answer by now. The repetition is refused,
// but the connection lives: the peer takes that NAK for what it is, of long ago.
func TestRepeatedReadOfDeadKey(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	tab := p.n.Dev.Keys()
	key, err := tab.AllocFast(p.q.Init().PD, 1)
	p.must(err)
	_, err = tab.Map(key.Index(), [][]byte{make([]byte, 4096)})
	p.must(err)
	num, err := tab.Stage(mr.Region{Key: key, Access: sim.AllAccess, IOVA: fastVA, Length: 4096})
	p.must(err)
	p.post(rxe.SendWR{Opcode: rxe.WRRegMR, RKey: key, List: num})
	read := packet{op: wire.RCReadRequest, psn: firstPSN, va: fastVA, rkey: key, length: 600}
	if got := p.inject(read); len(got) != 3 {
		t.Fatalf("%d answers", len(got))
	}
	p.recv(1, 64)
	got := p.inject(read, packet{op: wire.RCSendOnlyInv, psn: firstPSN.Add(3), inv: uint32(key),
		ackReq: true})
	if len(got) != 2 || got[0].syn != wire.NAKSyndrome(wire.NAKRemoteAccess) ||
		got[0].psn != firstPSN || got[1].syn.Kind() != wire.KindACK {
		t.Errorf("answers %+v", got)
	}
	p.state(rxe.StateRTS)
	if c := p.poll(); len(c) != 2 || c[1].Status != rxe.WCSuccess || c[1].Flags != rxe.WCWithInv {
		t.Errorf("completions %+v", c)
	}
	// The first time a READ meets a dead key, it ends the connection.
	wantNAK(t, p.inject(packet{op: wire.RCReadRequest, psn: firstPSN.Add(4), va: fastVA, rkey: key,
		length: 8}), firstPSN.Add(4), wire.NAKRemoteAccess)
	p.state(rxe.StateErr)
}

// graceWorld is an owner with three fast regions in force, whose second shard is in the middle of a
// batch until it is let go.
type graceWorld struct {
	*attack
	regions []*fast
	other   *rxe.Shard
}

func newGraceWorld(t testing.TB, hold bool) *graceWorld {
	p := newPair(t, pairConfig{node: sim.NodeConfig{Shards: 3}, conn: sim.ConnAttr{PMTU: 4096, Timeout: 16}})
	x := &graceWorld{attack: &attack{pair: p, m: newFast(t, p.b, 4), listA: pages(4, 0xaa)},
		other: p.b.n.Dev.Shards()[1]}
	for range 3 {
		m := newFast(t, p.b, 4)
		m.mapSG(x.listA)
		m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.regions = append(x.regions, m)
	}
	x.done(3)
	x.b.n.Sleep(1, true)
	if hold {
		x.other.Enter()
	}
	return x
}

// TestGraceHoldsCompletionsOnly: while an invalidation waits for a shard, what is behind it in its
// queue executes, other queues of its shard complete, and only its queue's completions wait; in
// order, once the last shard has passed.
func TestGraceHoldsCompletionsOnly(t *testing.T) {
	x := newGraceWorld(t, true)
	x.m.mapSG(x.listA)
	x.a.recv(t, 1, x.a.mem.SGE(0, 64))
	x.regions[0].inv(10, x.regions[0].key, rxe.SendSignaled)
	x.regions[1].inv(11, x.regions[1].key, rxe.SendSignaled)
	x.m.reg(12, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.b.send(t, rxe.SendWR{ID: 13, Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)}})
	x.f.Run(x.f.Now() + 1_000_000)
	for i, m := range x.regions[:2] {
		if s := m.tab.Lookup(m.key.Index()).State; s != mr.StateFree {
			t.Errorf("region %d is %v: its invalidation has not executed", i, s)
		}
	}
	if s := x.m.tab.Lookup(x.m.key.Index()).State; s != mr.StateValid {
		t.Errorf("REG_MR behind the invalidations has not executed: %v", s)
	}
	wantStatus(t, x.wait(x.a, 1)[0], rxe.WCSuccess)                  // the SEND has arrived
	x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCSuccess) // other queues of the shard
	x.wantProbe(rxe.WRRDMARead, x.regions[2].key, fastVA, 64, rxe.WCSuccess)
	if n := x.b.cq.Len(); n != 0 {
		t.Fatalf("%d completions while a shard may hold the old views", n)
	}
	x.other.Leave()
	x.b.n.Sleep(1, false)
	for i, c := range x.wait(x.b, 4) {
		if wantStatus(t, c, rxe.WCSuccess); int(c.WRID) != 10+i {
			t.Errorf("completion %d is of %d", i, c.WRID)
		}
	}
}

// TestSleepersDoNotHoldGrace: shards that are asleep, or that nobody has ever driven, are not waited
// for.
func TestSleepersDoNotHoldGrace(t *testing.T) {
	x := newGraceWorld(t, false)
	x.b.n.Sleep(2, true)
	x.regions[0].inv(10, x.regions[0].key, rxe.SendSignaled)
	x.done(1)
}

// TestInvalidationsShareGrace: invalidations of a batch begin two epochs at most, the one that
// somebody waits for and the one behind it.
func TestInvalidationsShareGrace(t *testing.T) {
	x := newGraceWorld(t, false)
	g := x.b.n.Dev.Grace()
	before := g.Start()
	for range 10 {
		for _, m := range x.regions {
			m.inv(10, m.key, 0)
			m.key = m.key.Inc()
			m.reg(11, fastVA, 16384, sim.AllAccess, 0)
		}
	}
	x.regions[0].inv(12, x.regions[0].key, rxe.SendSignaled)
	x.done(1)
	if n := g.Start() - before - 1; n > 2 {
		t.Errorf("31 invalidations took %d epochs", n)
	}
}

// TestRetransmitWithDeadLKey: what is sent again is read again: a WRITE whose own region was
// invalidated meanwhile, on another queue, completes with a local protection error.
func TestRetransmitWithDeadLKey(t *testing.T) {
	x := newAttack(t)
	local := newFast(t, x.b, 4)
	local.mapSG(x.listA)
	local.reg(1, fastVA, 16384, mr.LocalWrite, rxe.SendSignaled)
	x.done(1)
	lost := 0
	x.f.SetFaults(sim.Faults{Script: func(_ uint64, from, _ *sim.Node, _ []byte) sim.Verdict {
		if from == x.b.n && lost == 0 {
			lost++
			return sim.Drop
		}
		return sim.Pass
	}})
	x.b.send(t, rxe.SendWR{ID: 2, Opcode: rxe.WRRDMAWrite, RemoteAddr: x.a.mem.Addr, RKey: x.a.mem.Key,
		SGEs: []rxe.SGE{{Addr: fastVA, Length: 64, LKey: local.key}}})
	x.f.Run(x.f.Now() + 100_000)
	q, cq := x.qp(x.b, 0)
	peer, _ := x.qp(x.a, 0)
	x.ok(sim.Connect(x.b.n, q, x.a.n, peer, sim.ConnAttr{}))
	x.m.post(q, rxe.SendWR{ID: 3, Opcode: rxe.WRLocalInv, RKey: local.key, Flags: rxe.SendSignaled})
	var c [1]rxe.CQE
	x.f.RunUntil(x.f.Now()+1_000_000, func() bool { return cq.Poll(c[:]) == 1 })
	wantStatus(t, c[0], rxe.WCSuccess)
	got := x.wait(x.b, 1)[0]
	if wantStatus(t, got, rxe.WCLocProtErr); got.WRID != 2 || lost != 1 {
		t.Errorf("completion %+v, %d frames lost", got, lost)
	}
	if count(x.a.mem.Buf[:64], 0xaa) == 64 {
		t.Error("the dead region was read")
	}
}

// TestGraceAtTheLastMoment: two invalidations wait for one shard each. The first to pass wakes the
// owner; while that looks whether the second has passed, and before it wishes to be woken again, it
// does. Nobody wakes the owner for it, so that it must not sleep.
func TestGraceAtTheLastMoment(t *testing.T) {
	for _, remote := range []bool{false, true} {
		x := newGraceWorld(t, true)
		owner, early, late := x.b.q.Shard(), x.other, x.b.n.Dev.Shards()[2]
		x.b.n.Sleep(2, true)
		second, cq2 := x.qp(x.b, owner.ID) // a local one behind the first would not be looked at yet
		peer, _ := x.qp(x.a, 0)
		x.ok(sim.Connect(x.b.n, second, x.a.n, peer, sim.ConnAttr{}))
		invalidate := func(i int) {
			if !remote {
				x.m.post([]*rxe.QP{x.b.q, second}[i], rxe.SendWR{ID: 10, Opcode: rxe.WRLocalInv,
					RKey: x.regions[i].key, Flags: rxe.SendSignaled})
			} else {
				x.b.recv(t, 10, x.b.mem.SGE(0, 64))
				x.a.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRSendWithInv,
					SGEs: []rxe.SGE{x.a.mem.SGE(0, 8)}, Imm: uint32(x.regions[i].key)})
			}
			x.f.Run(x.f.Now() + 1_000_000)
		}
		invalidate(0)
		late.Enter()
		invalidate(1)
		if early.Leave(); early.Wakeups() != 1<<owner.ID {
			t.Fatal("the first shard to pass does not wake the owner")
		}
		hooked := false
		rxe.SetGraceHook(owner, func() {
			if !hooked {
				hooked = true
				if late.Leave(); late.Wakeups() != 0 {
					t.Fatal("the second shard to pass wakes the owner: no such moment")
				}
			}
		})
		owner.Enter()
		owner.Turn(x.f.Now())
		again := owner.Leave()
		rxe.SetGraceHook(owner, nil)
		if n := x.b.cq.Len() + cq2.Len(); !hooked || n < 2 && !again {
			t.Errorf("remote %v: %d completions, and the shard may sleep", remote, n)
		}
	}
}

// TestErrorBehindGrace: what was executed, or has failed, behind an invalidation that waits for grace
// keeps its own status when the QP goes to error meanwhile, by whichever cause. Only what follows the
// failure is flushed.
func TestErrorBehindGrace(t *testing.T) {
	for _, how := range []string{"peer", "application", "not at all"} {
		t.Run(how, func(t *testing.T) {
			x := newGraceWorld(t, true)
			x.m.mapSG(x.listA)
			x.a.recv(t, 1, x.a.mem.SGE(0, 64))
			x.regions[0].inv(10, x.regions[0].key, rxe.SendSignaled)
			x.m.reg(11, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
			x.b.send(t, rxe.SendWR{ID: 12, Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)}})
			x.regions[1].inv(13, x.regions[1].key.Inc(), 0)
			x.regions[2].inv(14, x.regions[2].key, rxe.SendSignaled)
			x.f.Run(x.f.Now() + 1_000_000)
			switch how {
			case "peer":
				x.a.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{x.a.mem.SGE(0, 8)},
					RemoteAddr: fastVA, RKey: 1})
			case "application":
				x.ok(x.b.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
			}
			x.f.Run(x.f.Now() + 1_000_000)
			if n := x.b.cq.Len(); n != 0 {
				t.Fatalf("%d completions while a shard may hold the old view", n)
			}
			x.other.Leave()
			x.b.n.Sleep(1, false)
			want := []rxe.WCStatus{rxe.WCSuccess, rxe.WCSuccess, rxe.WCSuccess, rxe.WCLocQPOpErr,
				rxe.WCWRFlushErr}
			for i, c := range x.wait(x.b, len(want)) {
				if int(c.WRID) != 10+i || c.Status != want[i] {
					t.Errorf("completion %d is of %d, %v; want %v", i, c.WRID, c.Status, want[i])
				}
			}
			if st := x.m.tab.Lookup(x.regions[2].key.Index()).State; st != mr.StateValid {
				t.Errorf("what was flushed has run: %v", st)
			}
		})
	}
}

// TestFlushedBehindFailure: local operations that have run behind a work request that then fails are
// flushed with all that follows it: no success comes behind an error.
func TestFlushedBehindFailure(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	w := x.window(mr.KindWindow1)
	num, err := x.m.tab.StageBind(w.key.Index())
	x.ok(err)
	x.b.send(t, rxe.SendWR{ID: 10, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)},
		RemoteAddr: fastVA, RKey: 1})
	x.m.reg(11, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.b.send(t, rxe.SendWR{ID: 12, Opcode: rxe.WRBindMW, MWKey: w.key, RKey: w.key.Inc(), MWType1: true,
		Parent: x.b.mem.Key, RemoteAddr: winVA, Length: winLen, Access: rw, List: num})
	want := []rxe.WCStatus{rxe.WCRemAccessErr, rxe.WCWRFlushErr, rxe.WCWRFlushErr}
	for i, c := range x.wait(x.b, len(want)) {
		if int(c.WRID) != 10+i || c.Status != want[i] {
			t.Errorf("completion %d is of %d, %v; want %v", i, c.WRID, c.Status, want[i])
		}
	}
	if st := x.m.tab.Lookup(x.m.key.Index()).State; st != mr.StateValid {
		t.Fatalf("REG_MR has not run before the failure: %v", st)
	}
}
