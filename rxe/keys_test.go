package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// TestF1: the SRP pattern, unsignaled throughout: LOCAL_INV, key+1, new list, REG_MR, with a remote
// WRITE and READ each cycle.
func TestF1(t *testing.T) {
	x := newAttack(t)
	lists := [][]byte{x.listA, x.listB}
	x.m.mapSG(x.listA)
	x.m.reg(0, fastVA, 16384, sim.AllAccess, 0)
	n := 10000
	if testing.Short() {
		n = 1000
	}
	for i := 1; i <= n; i++ {
		old := x.m.key
		x.m.inv(0, old, 0)
		x.m.key = old.Inc()
		list, other := lists[i%2], bytes.Clone(lists[1-i%2])
		x.m.mapSG(list[:8192], list[8192:])
		x.m.reg(0, fastVA, 16384, sim.AllAccess, 0)
		x.f.Run(x.f.Now() + 3000) // the queue has executed; nothing was signaled
		x.a.mem.Buf[0], x.a.mem.Buf[1] = byte(i), byte(i>>8)
		x.a.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{x.a.mem.SGE(0, 5000)}, RemoteAddr: fastVA + 4000, RKey: x.m.key})
		x.a.send(t, rxe.SendWR{ID: 2, Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{x.a.mem.SGE(20000, 5000)}, RemoteAddr: fastVA + 4000, RKey: x.m.key})
		for _, c := range x.wait(x.a, 2) {
			wantStatus(t, c, rxe.WCSuccess)
		}
		if !bytes.Equal(list[4000:9000], x.a.mem.Buf[:5000]) || !bytes.Equal(x.a.mem.Buf[20000:25000], x.a.mem.Buf[:5000]) {
			t.Fatalf("cycle %d: data in the wrong pages", i)
		}
		if !bytes.Equal(lists[1-i%2], other) {
			t.Fatalf("cycle %d: the list before was written", i)
		}
	}
	if got := x.b.cq.Len(); got != 0 {
		t.Fatalf("%d completions of unsignaled work", got)
	}
}

// TestF2: the RTRS pattern: mapped once, registered and invalidated for ever.
func TestF2(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	for i := 0; i < 50; i++ {
		x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(1)
		x.listA[100] = 0
		x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA+100, 1, rxe.WCSuccess)
		if x.listA[100] != 0x11 {
			t.Fatal("WRITE did not reach the list")
		}
		x.m.inv(2, x.m.key, rxe.SendSignaled)
		x.done(1)
		if i%2 == 0 {
			x.m.key = x.m.key.Inc()
		}
	}
}

// TestF3: a software key bump changes nothing for packets.
func TestF3(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.done(1)
	old := x.m.key
	x.m.key = old.Inc()
	x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCRemAccessErr)
	x.wantProbe(rxe.WRRDMAWrite, old, fastVA, 64, rxe.WCSuccess)
}

// TestF4 is the seed's test: with LOCAL_INV queued but held, the next list mapped must not be
// reachable through the old key. Linux rxe 6.12 writes 16384 bytes into list B here.
func TestF4(t *testing.T) {
	for _, n := range []int{64, 16384} {
		for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead} {
			x := newAttack(t)
			x.m.mapSG(x.listA)
			x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
			x.done(1)
			x.hold()
			old := x.m.key
			x.m.inv(2, old, rxe.SendSignaled)
			x.m.key = old.Inc()
			x.m.mapSG(x.listB)
			x.wantProbe(op, old, fastVA, n, rxe.WCSuccess)
			if x.b.cq.Len() != 0 {
				t.Fatal("LOCAL_INV completed while held")
			}
			if count(x.listB, 0xbb) != len(x.listB) {
				t.Fatal("list B was written through the old key")
			}
			if op == rxe.WRRDMAWrite && count(x.listA, 0x11) != n {
				t.Fatal("the WRITE did not reach list A")
			}
			if op == rxe.WRRDMARead && count(x.a.mem.Buf[:n], 0xaa) != n {
				t.Fatal("the READ did not come from list A")
			}
			x.letGo()
			x.done(2)
			x.wantProbe(op, old, fastVA, n, rxe.WCRemAccessErr)
			x.wantProbe(op, x.m.key, fastVA, n, rxe.WCRemAccessErr)
			x.m.reg(3, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
			x.done(1)
			x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, n, rxe.WCSuccess)
			if count(x.listB, 0x11) != n {
				t.Fatal("the new key does not reach list B")
			}
		}
	}
}

// TestF5: as F4 with another IOVA and length: the registered geometry counts.
func TestF5(t *testing.T) {
	for name, c := range map[string]struct {
		list   []byte
		iova   uint64
		va     uint64
		n      int
		status rxe.WCStatus
	}{
		"new iova":     {pages(4, 0xbb), fastVA + 1<<20, fastVA + 1<<20, 16384, rxe.WCRemAccessErr},
		"longer":       {pages(8, 0xbb), fastVA, fastVA + 16384, 16384, rxe.WCRemAccessErr},
		"shorter":      {pages(1, 0xbb), fastVA, fastVA + 4096, 8192, rxe.WCSuccess},
		"old geometry": {pages(1, 0xbb), fastVA + 1<<20, fastVA, 16384, rxe.WCSuccess},
	} {
		for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead} {
			t.Run(fmt.Sprintf("%s/%d", name, op), func(t *testing.T) {
				x := newAttack(t)
				x.m.mapSG(x.listA)
				x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
				x.done(1)
				x.hold()
				old := x.m.key
				x.m.inv(2, old, 0)
				x.m.key = old.Inc()
				x.m.mapSG(c.list)
				x.m.reg(3, c.iova, uint64(len(c.list)), sim.AllAccess, 0) // held as well
				x.wantProbe(op, old, c.va, c.n, c.status)
				if count(c.list, 0xbb) != len(c.list) {
					t.Fatal("the next list was written")
				}
				if c.status != rxe.WCSuccess {
					return
				}
				if op == rxe.WRRDMAWrite && count(x.listA[c.va-fastVA:][:c.n], 0x11) != c.n {
					t.Fatal("the WRITE did not reach list A where it should")
				}
				if op == rxe.WRRDMARead && count(x.a.mem.Buf[:c.n], 0xaa) != c.n {
					t.Fatal("the READ did not come from list A")
				}
			})
		}
	}
}

// TestF6: after LOCAL_INV's completion the old key is dead, at both ends.
func TestF6(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.m.inv(2, x.m.key, rxe.SendSignaled)
	x.done(2)
	x.a.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{x.a.mem.SGE(0, 64)}, RemoteAddr: fastVA, RKey: x.m.key})
	wantStatus(t, x.wait(x.a, 1)[0], rxe.WCRemAccessErr)
	if x.b.q.State() != rxe.StateErr || x.a.q.State() != rxe.StateErr || count(x.listA, 0xaa) != len(x.listA) {
		t.Fatal("states or memory")
	}
}

// TestF7: an access is held between its key check and its copy on another shard: LOCAL_INV executes
// meanwhile, but does not complete before that shard has passed a quiescent point; after the
// completion not one byte moves. So does the peer's SEND_WITH_INV.
func TestF7(t *testing.T) {
	for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead, rxe.WRAtomicFetchAdd} {
		for _, by := range []rxe.WROpcode{rxe.WRLocalInv, rxe.WRSendWithInv} {
			t.Run(fmt.Sprintf("%d by %d", op, by), func(t *testing.T) { heldAccess(t, op, by) })
		}
	}
}

// sendInvFrame makes the frame of a SEND_WITH_INV of the peer's, which is lost on its way.
func (x *attack) sendInvFrame(key mr.Key) (frame []byte) {
	x.t.Helper()
	x.b.recv(x.t, 2, x.b.mem.SGE(0, 64))
	x.f.SetFaults(sim.Faults{Script: func(_ uint64, from, _ *sim.Node, b []byte) sim.Verdict {
		if from == x.a.n {
			frame = bytes.Clone(b)
			return sim.Drop
		}
		return sim.Pass
	}})
	x.a.send(x.t, rxe.SendWR{ID: 2, Opcode: rxe.WRSendWithInv, SGEs: []rxe.SGE{x.a.mem.SGE(0, 8)},
		Imm: uint32(key)})
	x.f.RunUntil(x.f.Now()+1_000_000, func() bool { return frame != nil })
	x.f.SetFaults(sim.Faults{})
	return frame
}

// heldAccess holds an access that is invalidated by LOCAL_INV or by the peer's SEND_WITH_INV.
func heldAccess(t *testing.T, op, by rxe.WROpcode) {
	p := newPair(t, pairConfig{node: sim.NodeConfig{Shards: 2}, conn: sim.ConnAttr{PMTU: 1024, Timeout: 18}})
	x := &attack{pair: p, m: newFast(t, p.b, 4), listA: pages(4, 0xaa)}
	x.m.mapSG(x.listA)
	x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.done(1)
	qa, cqa := x.qp(x.a, 1)
	qb, _ := x.qp(x.b, 1)
	x.ok(sim.Connect(x.a.n, qa, x.b.n, qb, sim.ConnAttr{PMTU: 1024, Timeout: 18}))
	wr := rxe.SendWR{ID: 1, Opcode: op, Flags: rxe.SendSignaled, SGEs: []rxe.SGE{x.a.mem.SGE(0, 8192)}, RemoteAddr: fastVA, RKey: x.m.key}
	if op == rxe.WRAtomicFetchAdd {
		wr.SGEs = []rxe.SGE{x.a.mem.SGE(0, 8)}
	}
	clear(x.a.mem.Buf)
	var sendInv []byte
	if by == rxe.WRSendWithInv {
		sendInv = x.sendInvFrame(x.m.key)
	}
	x.ok(qa.PostSend(&wr))
	qa.RingDoorbell()

	hooks := 0
	owner, user := x.b.n.Dev.Shards()[0], x.b.n.Dev.Shards()[1]
	user.TestHook = func() { // on the second packet, between check and copy
		if hooks++; hooks != 2 && op != rxe.WRAtomicFetchAdd {
			return
		}
		user.TestHook = nil
		if sendInv == nil {
			x.m.inv(2, x.m.key, rxe.SendSignaled)
		}
		for i := 0; i < 10; i++ { // the owner's shard runs as much as it likes
			owner.Enter()
			if sendInv != nil && i == 0 {
				owner.Receive(x.f.Now(), rxe.Frame{Head: sendInv})
			}
			owner.Turn(x.f.Now())
			var b [5000]byte
			for owner.Transmit(x.f.Now(), rxe.Frame{Head: b[:]}) > 0 {
			}
			owner.Leave()
		}
		if x.b.cq.Len() != 0 {
			t.Error("the invalidation completed while an access was held")
		}
		if st := x.m.tab.Lookup(x.m.key.Index()).State; st != mr.StateFree {
			t.Errorf("the region is %v: the invalidation has not executed", st)
		}
	}
	x.f.RunUntil(x.f.Now()+1_000_000_000, func() bool { return x.b.cq.Len() == 1 })
	x.done(1)
	if user.TestHook != nil {
		t.Fatal("the access was never held")
	}
	for i := range x.listA {
		x.listA[i] = 0xee // the owner uses its memory again
	}
	var c [1]rxe.CQE
	x.f.RunUntil(x.f.Now()+10_000_000_000, func() bool { return cqa.Poll(c[:]) == 1 })
	if op == rxe.WRAtomicFetchAdd {
		return // a single packet: it was admitted before the invalidation
	}
	if c[0].Status != rxe.WCRemAccessErr {
		t.Fatalf("the rest of the message: %v", c[0].Status)
	}
	if count(x.listA, 0xee) != len(x.listA) {
		t.Fatal("memory was written after the invalidation's completion")
	}
	if op == rxe.WRRDMARead && count(x.a.mem.Buf[:8192], 0xee) != 0 {
		t.Fatal("memory was read after the invalidation's completion")
	}
}
