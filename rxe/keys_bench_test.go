package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// pairs posts and executes pairs of REG_MR and LOCAL_INV through a send queue, without a wire.
type pairs struct {
	x    *attack
	key  mr.Key
	mem  [][]byte
	anew bool // MapSG before each REG_MR
	now  rxe.Time
	cqe  [64]rxe.CQE
	buf  [256]byte
}

func newPairs(t testing.TB, anew bool) *pairs {
	x := newAttack(t)
	p := &pairs{x: x, key: x.m.key, mem: [][]byte{make([]byte, 100), make([]byte, 4096)}, anew: anew}
	x.m.mapSG(p.mem...)
	return p
}

// run executes n pairs, of which the last LOCAL_INV is signaled.
func (p *pairs) run(n int) {
	tab, q := p.x.m.tab, p.x.b.q
	for i := range n {
		if p.anew {
			if _, err := tab.Map(p.key.Index(), p.mem); err != nil {
				p.x.t.Fatal(err)
			}
		}
		num, err := tab.Stage(mr.Region{Key: p.key, Access: sim.AllAccess, IOVA: fastVA, Length: 4196})
		if err != nil {
			p.x.t.Fatal(err)
		}
		reg := rxe.SendWR{Opcode: rxe.WRRegMR, RKey: p.key, List: num}
		inv := rxe.SendWR{Opcode: rxe.WRLocalInv, RKey: p.key}
		if i == n-1 {
			inv.Flags = rxe.SendSignaled
		}
		if q.PostSend(&reg) != nil || q.PostSend(&inv) != nil {
			p.x.t.Fatal("post")
		}
		p.key = p.key.Inc()
	}
	q.RingDoorbell()
	s := q.Shard()
	for got := 0; got == 0; got = p.x.b.cq.Poll(p.cqe[:]) {
		p.now += 1000
		s.Enter()
		s.Turn(p.now)
		if s.CanTransmit() {
			s.Transmit(p.now, rxe.Frame{Head: p.buf[:]})
		}
		s.Leave()
	}
	if p.cqe[0].Status != rxe.WCSuccess {
		p.x.t.Fatal(p.cqe[0].Status)
	}
}

// BenchmarkRegInv measures a pair of REG_MR and LOCAL_INV from post to completion, in batches.
func BenchmarkRegInv(b *testing.B) {
	for _, c := range []struct {
		name  string
		batch int
		anew  bool
	}{{"1", 1, false}, {"32", 32, false}, {"32_mapped", 32, true}} {
		b.Run(c.name, func(b *testing.B) {
			p := newPairs(b, c.anew)
			p.run(c.batch)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += c.batch {
				p.run(c.batch)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpairs/s")
		})
	}
}

// TestNoAllocsPerPair proves that a registration and an invalidation allocate nothing.
func TestNoAllocsPerPair(t *testing.T) {
	for _, anew := range []bool{false, true} {
		p := newPairs(t, anew)
		run := func() { p.run(32) }
		for range 10 {
			run()
		}
		if n := testing.AllocsPerRun(200, run); n != 0 {
			t.Errorf("%v allocations for 32 pairs", n)
		}
	}
}
