package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// pair is two connected QPs with memory, the smallest world a test needs.
type pair struct {
	t      testing.TB
	f      *sim.Fabric
	a, b   side
	events []rxe.Event
}

type side struct {
	n   *sim.Node
	q   *rxe.QP
	cq  *rxe.CQ
	mem *sim.Region
}

type pairConfig struct {
	sim    sim.Config
	node   sim.NodeConfig
	conn   sim.ConnAttr
	qp     rxe.QPInit
	mem    int
	shardB int
	same   bool // both QPs on one device
}

const memAddr = 0x10000000

func newPair(t testing.TB, c pairConfig) *pair {
	t.Helper()
	p := &pair{t: t, f: sim.New(c.sim)}
	if c.mem == 0 {
		c.mem = 1 << 16
	}
	if c.qp.Type == 0 {
		c.qp.Type = rxe.RC
	}
	if c.qp.MaxSendWR == 0 {
		c.qp.MaxSendWR, c.qp.MaxRecvWR, c.qp.MaxSend, c.qp.MaxRecv, c.qp.MaxInline = 128, 128, 4, 4, 256
	}
	na := p.node(c.node)
	nb := na
	if !c.same {
		nb = p.node(c.node)
	}
	p.a, p.b = p.side(na, 0, c), p.side(nb, c.shardB, c)
	p.ok(sim.Connect(na, p.a.q, nb, p.b.q, c.conn))
	return p
}

func (p *pair) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) node(c sim.NodeConfig) *sim.Node {
	n, err := p.f.AddNode(c)
	p.ok(err)
	n.OnEvent = func(e rxe.Event) { p.events = append(p.events, e) }
	return n
}

func (p *pair) side(n *sim.Node, shard int, c pairConfig) (s side) {
	p.t.Helper()
	var err error
	s.n = n
	pd := n.AllocPD()
	s.cq, err = n.Dev.NewCQ(4096)
	p.ok(err)
	in := c.qp
	in.PD, in.SendCQ, in.RecvCQ = pd, s.cq, s.cq
	s.q, err = n.Dev.CreateQP(n.Dev.Shards()[shard], in)
	p.ok(err)
	s.mem, err = n.Reg(pd, make([]byte, c.mem), memAddr, sim.AllAccess)
	p.ok(err)
	for i := range s.mem.Buf {
		s.mem.Buf[i] = byte(i*7 + int(s.q.QPN()))
	}
	return s
}

func (s side) send(t testing.TB, wr rxe.SendWR) {
	t.Helper()
	wr.Flags |= rxe.SendSignaled
	if err := s.q.PostSend(&wr); err != nil {
		t.Fatalf("post send: %v", err)
	}
	s.q.RingDoorbell()
}

func (s side) recv(t testing.TB, id uint64, sges ...rxe.SGE) {
	t.Helper()
	if err := s.q.PostRecv(&rxe.RecvWR{ID: id, SGEs: sges}); err != nil {
		t.Fatalf("post recv: %v", err)
	}
}

// wait runs the fabric until the CQ of s has n completions and returns them.
func (p *pair) wait(s side, n int) []rxe.CQE {
	p.t.Helper()
	out := make([]rxe.CQE, 0, n)
	buf := make([]rxe.CQE, n)
	p.f.RunUntil(p.f.Now()+20_000_000_000, func() bool {
		got := s.cq.Poll(buf[:n-len(out)])
		out = append(out, buf[:got]...)
		return len(out) == n
	})
	if len(out) != n {
		p.t.Fatalf("%d of %d completions", len(out), n)
	}
	return out
}

func wantStatus(t testing.TB, c rxe.CQE, st rxe.WCStatus) {
	t.Helper()
	if c.Status != st {
		t.Fatalf("wr %d: status %v (%v), want %v", c.WRID, c.Status, c.Reason, st)
	}
}

func TestSend(t *testing.T) {
	for _, n := range []int{0, 1, 63, 1024, 1025, 5000} {
		p := newPair(t, pairConfig{})
		p.b.recv(t, 7, p.b.mem.SGE(100, 6000))
		p.a.send(t, rxe.SendWR{ID: 3, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.a.mem.SGE(0, n)}})
		c := p.wait(p.b, 1)[0]
		wantStatus(t, c, rxe.WCSuccess)
		if c.WRID != 7 || int(c.ByteLen) != n || c.Opcode != rxe.WCRecv {
			t.Fatalf("completion %+v", c)
		}
		wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
		if !bytes.Equal(p.a.mem.Buf[:n], p.b.mem.Buf[100:100+n]) {
			t.Fatalf("%d bytes differ", n)
		}
	}
}

func TestWriteRead(t *testing.T) {
	for _, n := range []int{0, 1, 1024, 1025, 30000} {
		p := newPair(t, pairConfig{})
		p.a.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, n)},
			RemoteAddr: p.b.mem.Addr + 50, RKey: p.b.mem.Key})
		p.a.send(t, rxe.SendWR{ID: 2, Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.a.mem.SGE(32768, n)},
			RemoteAddr: p.b.mem.Addr + 50, RKey: p.b.mem.Key})
		for i, c := range p.wait(p.a, 2) {
			wantStatus(t, c, rxe.WCSuccess)
			if int(c.WRID) != i+1 {
				t.Fatalf("completion %d is of wr %d", i, c.WRID)
			}
		}
		if !bytes.Equal(p.a.mem.Buf[:n], p.b.mem.Buf[50:50+n]) ||
			!bytes.Equal(p.a.mem.Buf[:n], p.a.mem.Buf[32768:32768+n]) {
			t.Fatalf("%d bytes differ", n)
		}
	}
}

// TestLossy sends a mixed load over a bad wire, many seeds, several shards.
func TestLossy(t *testing.T) {
	seeds := uint64(60)
	if raceEnabled {
		seeds = 12
	}
	for seed := uint64(0); seed < seeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { lossy(t, seed) })
	}
}

func lossy(t *testing.T, seed uint64) {
	p := newPair(t, pairConfig{
		sim:  sim.Config{Seed: seed, Faults: sim.Faults{Drop: 0.03, Duplicate: 0.02, Reorder: 0.03, Corrupt: 0.01}},
		node: sim.NodeConfig{Shards: 1 + int(seed%3)}, shardB: int(seed % (1 + seed%3)),
		conn: sim.ConnAttr{PSN: rxe.PSN(0xfffff0 + seed%8), PMTU: 256 << (seed % 5)},
		mem:  1 << 18,
	})
	r := sim.NewRand(seed)
	const msgs = 120
	var recvs, sends int
	for i := 0; i < msgs; {
		for ; i < msgs && p.a.q.SQ.Len() < 64 && recvs < i+64; i++ {
			n := r.Intn(9000)
			src := p.a.mem.SGE(r.Intn(100000), n)
			dst := p.b.mem.Addr + uint64(r.Intn(100000))
			wr := rxe.SendWR{ID: uint64(i), SGEs: []rxe.SGE{src}, RemoteAddr: dst, RKey: p.b.mem.Key}
			switch r.Intn(5) {
			case 0:
				wr.Opcode = rxe.WRSend
				p.b.recv(t, uint64(i), p.b.mem.SGE(150000+r.Intn(50000), 10000))
				recvs++
			case 1:
				wr.Opcode = rxe.WRRDMAWrite
			case 2:
				wr.Opcode = rxe.WRRDMARead
				wr.SGEs[0] = p.a.mem.SGE(150000+r.Intn(50000), n)
			case 3:
				wr.Opcode, wr.Imm = rxe.WRRDMAWriteWithImm, uint32(i)
				p.b.recv(t, uint64(i))
				recvs++
			case 4:
				wr.Opcode, wr.CompareAdd, wr.RemoteAddr = rxe.WRAtomicFetchAdd, 1, p.b.mem.Addr+200000
				wr.SGEs[0] = p.a.mem.SGE(210000, 8)
			}
			p.a.send(t, wr)
			sends++
		}
		for _, c := range p.wait(p.a, 1) {
			wantStatus(t, c, rxe.WCSuccess)
			sends--
		}
	}
	for i, c := range p.wait(p.a, sends) {
		wantStatus(t, c, rxe.WCSuccess)
		if int(c.WRID) != msgs-sends+i {
			t.Fatalf("order: %d", c.WRID)
		}
	}
	for _, c := range p.wait(p.b, recvs) {
		wantStatus(t, c, rxe.WCSuccess)
	}
}
