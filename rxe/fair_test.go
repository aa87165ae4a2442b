package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// jumbo is PMTU 4096, of which a packet takes two chunks of a ring of 512.
var jumbo = pairConfig{mem: 1 << 18, conn: sim.ConnAttr{Timeout: 16, PMTU: 4096}, sim: sim.Config{RxRing: 256}}

// stream keeps eight WRITEs of 64 KiB posted on each side and counts what completes, until the clock
// has moved on by d.
func (p *pair) stream(sides []side, d rxe.Time) (bytes []int) {
	p.t.Helper()
	const size, depth = 1 << 16, 8
	post := func(s side) {
		s.send(p.t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, size)},
			RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
	}
	for _, s := range sides {
		for range depth {
			post(s)
		}
	}
	bytes = make([]int, len(sides))
	var cqe [depth]rxe.CQE
	for end := p.f.Now() + d; p.f.Now() < end; {
		p.f.Run(p.f.Now() + 30_000)
		for i, s := range sides {
			for _, c := range cqe[:s.cq.Poll(cqe[:])] {
				wantStatus(p.t, c, rxe.WCSuccess)
				bytes[i] += size
				post(s)
			}
		}
	}
	return bytes
}

// TestFair: sixteen QPs that write as fast as they can get the same share, however ACKs, doorbells and
// the budget interleave.
func TestFair(t *testing.T) {
	for _, c := range []struct {
		name           string
		sim            sim.Config
		open, measured rxe.Time
	}{
		{"frame by frame", sim.Config{}, 1 * ms, 2 * ms},
		{"in bursts", sim.Config{Burst: 32, Pace: 50_000}, 5 * ms, 50 * ms},
		{"far away", sim.Config{Burst: 8, Pace: 10_000, Latency: 200_000}, 5 * ms, 200 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := jumbo
			cfg.sim = c.sim
			cfg.sim.RxRing = jumbo.sim.RxRing
			p, sides := crowd(t, 16, cfg)
			p.stream(sides, c.open)
			least, most := 1<<62, 0
			for _, n := range p.stream(sides, c.measured) {
				least, most = min(least, n), max(most, n)
			}
			if least*10 < most*9 {
				t.Errorf("one QP wrote %d KiB, another %d", least>>10, most>>10)
			}
			t.Logf("%.3f, %d MiB each", float64(least)/float64(most), least>>20)
			if n := p.f.Stats.Overflows; n != 0 {
				t.Errorf("%d frames met a full ring", n)
			}
		})
	}
}

// TestBudgetAsleep: what is sent to a peer that does not run for 60 ms still fits its ring when it comes
// back, and nothing is sent twice.
func TestBudgetAsleep(t *testing.T) {
	for _, n := range []int{2, 16, 300} {
		p, sides := crowd(t, n, jumbo)
		for _, s := range sides { // windows are open
			s.send(t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, 1<<18)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
		}
		for _, s := range sides {
			wantStatus(t, p.wait(s, 1)[0], rxe.WCSuccess)
		}
		p.b.n.Sleep(0, true)
		for _, s := range sides {
			for range 4 {
				s.send(t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, 1<<17)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
			}
		}
		p.f.Run(p.f.Now() + 60*ms)
		p.b.n.Sleep(0, false)
		for _, s := range sides {
			for _, c := range p.wait(s, 4) {
				wantStatus(t, c, rxe.WCSuccess)
			}
		}
		if c := &sides[0].q.Shard().C; p.f.Stats.Overflows != 0 || c.Retransmits != 0 {
			t.Errorf("%d QPs: %d frames met a full ring, %d sent again", n, p.f.Stats.Overflows, c.Retransmits)
		}
	}
}
