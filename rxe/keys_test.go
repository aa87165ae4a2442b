package rxe_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// fast is a fast-register region of one side as an application drives it: a software key and list,
// and work requests that carry them to the hardware.
type fast struct {
	t   testing.TB
	s   side
	tab *mr.Table
	key mr.Key // software key
	pd  mr.PD
}

func newFast(t testing.TB, s side, segs int) *fast {
	t.Helper()
	pd := s.q.Init().PD
	k, err := s.n.Dev.Keys().AllocFast(pd, segs)
	if err != nil {
		t.Fatal(err)
	}
	return &fast{t: t, s: s, tab: s.n.Dev.Keys(), key: k, pd: pd}
}

// mapSG sets the software list.
func (m *fast) mapSG(segs ...[]byte) {
	m.t.Helper()
	if _, err := m.tab.Map(m.key.Index(), segs); err != nil {
		m.t.Fatal(err)
	}
}

// reg posts REG_MR of the latest list under the software key.
func (m *fast) reg(id uint64, iova, n uint64, access mr.Access, flags rxe.SendFlags) {
	m.t.Helper()
	m.regOn(m.s.q, id, iova, n, access, flags)
}

func (m *fast) regOn(q *rxe.QP, id uint64, iova, n uint64, access mr.Access, flags rxe.SendFlags) {
	m.t.Helper()
	num, err := m.tab.Stage(mr.Region{Key: m.key, Access: access, IOVA: iova, Length: n})
	if err != nil {
		m.t.Fatal(err)
	}
	m.post(q, rxe.SendWR{ID: id, Opcode: rxe.WRRegMR, RKey: m.key, List: num, Flags: flags})
}

func (m *fast) inv(id uint64, key mr.Key, flags rxe.SendFlags) {
	m.t.Helper()
	m.post(m.s.q, rxe.SendWR{ID: id, Opcode: rxe.WRLocalInv, RKey: key, Flags: flags})
}

func (m *fast) post(q *rxe.QP, wr rxe.SendWR) {
	m.t.Helper()
	if err := q.PostSend(&wr); err != nil {
		m.t.Fatal(err)
	}
	q.RingDoorbell()
}

const fastVA = 0x40000000

func pages(n int, x byte) []byte { return bytes.Repeat([]byte{x}, n*4096) }

// attack is a second connection whose requester plays the peer that holds keys.
type attack struct {
	*pair
	m     *fast
	listA []byte
	listB []byte
}

// newAttack: side b owns the region, side a reaches for it.
func newAttack(t testing.TB) *attack {
	p := newPair(t, pairConfig{conn: sim.ConnAttr{PMTU: 4096, Timeout: 16}})
	return &attack{pair: p, m: newFast(t, p.b, 16), listA: pages(4, 0xaa), listB: pages(4, 0xbb)}
}

// probe runs one WRITE or READ of n bytes at va through key on a connection of its own, so that its
// failure disturbs nobody, and returns its status.
func (x *attack) probe(op rxe.WROpcode, key mr.Key, va uint64, n int) rxe.WCStatus {
	x.t.Helper()
	qa, cq := x.qp(x.a, 0)
	qb, _ := x.qp(x.b, 0)
	x.ok(sim.Connect(x.a.n, qa, x.b.n, qb, sim.ConnAttr{PMTU: 4096, Timeout: 16}))
	for i := range x.a.mem.Buf[:n] {
		x.a.mem.Buf[i] = 0x11
	}
	wr := rxe.SendWR{ID: 1, Opcode: op, Flags: rxe.SendSignaled, SGEs: []rxe.SGE{x.a.mem.SGE(0, n)}, RemoteAddr: va, RKey: key}
	x.ok(qa.PostSend(&wr))
	qa.RingDoorbell()
	var c [1]rxe.CQE
	if !x.f.RunUntil(x.f.Now()+10_000_000_000, func() bool { return cq.Poll(c[:]) == 1 }) {
		x.t.Fatal("probe does not complete")
	}
	x.a.n.Dev.DestroyQP(qa)
	x.b.n.Dev.DestroyQP(qb)
	return c[0].Status
}

// qp makes one more QP in the protection domain of s.
func (x *attack) qp(s side, shard int) (*rxe.QP, *rxe.CQ) {
	x.t.Helper()
	cq, err := s.n.Dev.NewCQ(64)
	x.ok(err)
	in := s.q.Init()
	in.SendCQ, in.RecvCQ = cq, cq
	q, err := s.n.Dev.CreateQP(s.n.Dev.Shards()[shard], in)
	x.ok(err)
	return q, cq
}

// wantProbe expects a status; an access that is refused has touched nothing.
func (x *attack) wantProbe(op rxe.WROpcode, key mr.Key, va uint64, n int, want rxe.WCStatus) {
	x.t.Helper()
	before := x.owned()
	if st := x.probe(op, key, va, n); st != want {
		x.t.Fatalf("access with key %#x at %#x: %v, want %v", key, va, st, want)
	}
	if want == rxe.WCSuccess {
		return
	}
	if !bytes.Equal(x.owned(), before) {
		x.t.Fatalf("access with key %#x at %#x was refused, but has written", key, va)
	}
	if op == rxe.WRRDMARead && count(x.a.mem.Buf[:n], 0x11) != n {
		x.t.Fatalf("access with key %#x at %#x was refused, but has read", key, va)
	}
}

// owned is a copy of all memory of the owner's.
func (x *attack) owned() []byte { return slices.Concat(x.listA, x.listB, x.b.mem.Buf) }

func count(b []byte, x byte) int { return bytes.Count(b, []byte{x}) }

// done waits for the owner's completions and expects success.
func (x *attack) done(n int) {
	x.t.Helper()
	for _, c := range x.wait(x.b, n) {
		wantStatus(x.t, c, rxe.WCSuccess)
	}
}

// hold stalls the owner's send queue: a SEND to a peer without receives, in an RNR wait.
func (x *attack) hold() {
	x.b.send(x.t, rxe.SendWR{ID: 900, Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)}})
	x.f.Run(x.f.Now() + 100_000)
}

// letGo posts the receive that the held SEND waits for.
func (x *attack) letGo() {
	x.a.recv(x.t, 901, x.a.mem.SGE(1000, 64))
}

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
