package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// wireless joins two shards by plain calls: frames of one are received by the other at once. It
// measures the engine alone.
type wireless struct {
	p   *pair
	buf [4352]byte
	now rxe.Time
	wr  rxe.SendWR
	cqe [64]rxe.CQE
}

func newWireless(t testing.TB, pmtu uint32) *wireless {
	return &wireless{p: newPair(t, pairConfig{mem: 1 << 20, conn: sim.ConnAttr{PMTU: pmtu}})}
}

// shuttle moves frames both ways until neither side has any.
func (w *wireless) shuttle() (frames int) {
	sa, sb := w.p.a.q.Shard(), w.p.b.q.Shard()
	w.now += 1000
	sa.Enter()
	sb.Enter()
	for {
		n := w.pass(sa, sb) + w.pass(sb, sa)
		if n == 0 {
			break
		}
		frames += n
	}
	sa.Leave()
	sb.Leave()
	return frames
}

func (w *wireless) pass(from, to *rxe.Shard) (frames int) {
	from.Turn(w.now)
	for i := 0; i < 64; i++ {
		n := from.Transmit(w.now, rxe.Frame{Head: w.buf[:3840], Tail: w.buf[3840:]})
		if n == 0 {
			break
		}
		f := rxe.Frame{Head: w.buf[:n]}
		if n > 3840 {
			f = rxe.Frame{Head: w.buf[:3840], Tail: w.buf[3840:n]}
		}
		to.Receive(w.now, f)
		frames++
	}
	return frames
}

func (w *wireless) write(t testing.TB, n int) {
	w.wr = rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: w.wr.SGEs, RemoteAddr: w.p.b.mem.Addr,
		RKey: w.p.b.mem.Key, Flags: rxe.SendSignaled}
	if len(w.wr.SGEs) == 0 {
		w.wr.SGEs = []rxe.SGE{w.p.a.mem.SGE(0, n)}
	}
	if err := w.p.a.q.PostSend(&w.wr); err != nil {
		t.Fatal(err)
	}
}

func benchWrite(b *testing.B, size int, pmtu uint32, batch int) {
	w := newWireless(b, pmtu)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	frames := 0
	for i := 0; i < b.N; i += batch {
		for j := 0; j < batch; j++ {
			w.write(b, size)
		}
		w.p.a.q.RingDoorbell()
		frames += w.shuttle()
		if n := w.p.a.cq.Poll(w.cqe[:]); n != batch {
			b.Fatalf("%d completions of %d", n, batch)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(frames), "ns/packet")
}

func BenchmarkWrite64(b *testing.B)      { benchWrite(b, 64, 1024, 1) }
func BenchmarkWrite64x32(b *testing.B)   { benchWrite(b, 64, 1024, 32) }
func BenchmarkWrite64K1024(b *testing.B) { benchWrite(b, 65536, 1024, 1) }
func BenchmarkWrite64K4096(b *testing.B) { benchWrite(b, 65536, 4096, 1) }

// TestNoAllocs proves that a message costs no allocation in steady state.
func TestNoAllocs(t *testing.T) {
	w := newWireless(t, 1024)
	run := func() {
		w.write(t, 5000)
		w.p.a.q.RingDoorbell()
		w.shuttle()
		if w.p.a.cq.Poll(w.cqe[:]) != 1 || w.cqe[0].Status != rxe.WCSuccess {
			t.Fatal("no completion")
		}
	}
	run()
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Fatalf("%v allocations per message", n)
	}
}
