package rxe_test

import (
	"bytes"
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
