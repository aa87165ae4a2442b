package verbs

import (
	"runtime"
	"testing"
	"time"
)

// pingPong sends n messages of size bytes each way, by PostSend, PostRecv and Poll alone.
type pingPong struct {
	t    testing.TB
	ends [2]*end
	wr   [2]SendWR
	recv [2]RecvWR
	wc   [8]WC
	sent [2]int // completions
	got  [2]int
}

func newPingPong(t testing.TB, a, b *end, size int) *pingPong {
	p := &pingPong{t: t, ends: [2]*end{a, b}}
	for i, e := range p.ends {
		p.wr[i] = SendWR{Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{e.mr.SGE(0, size)}}
		p.recv[i] = RecvWR{SGList: []SGE{e.mr.SGE(e.mr.Len()/2, size)}}
	}
	return p
}

func (p *pingPong) run(n int) {
	for range n {
		for i := range p.ends {
			p.must(p.ends[1-i].qp.PostRecv(&p.recv[1-i]))
			p.must(p.ends[i].qp.PostSend(&p.wr[i]))
			sent, got := p.sent[i]+1, p.got[1-i]+1
			for start := 0; p.sent[i] < sent || p.got[1-i] < got; start++ {
				p.poll(i)
				p.poll(1 - i)
				if start > 1<<26 {
					p.t.Fatal("no completion")
				}
			}
		}
	}
}

func (p *pingPong) poll(i int) {
	n, err := p.ends[i].cq.Poll(p.wc[:])
	p.must(err)
	for _, c := range p.wc[:n] {
		if c.Status != WCSuccess {
			p.t.Fatalf("completion %+v", c)
		}
		if c.Opcode == WCRecv {
			p.got[i]++
		} else {
			p.sent[i]++
		}
	}
}

func (p *pingPong) must(err error) {
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestNoAllocation: neither posting nor polling nor what moves the shards allocates, over 10^5 WRs
// (fewer on a slow machine). The runtime may, now and then, for the threads' timers; what
// belongs to a message shows in each of three windows.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		for _, size := range []int{8, 10000} {
			a, b := newPair(t, w, cfg, endConfig{}, ConnOptions{})
			p := newPingPong(t, a, b, size)
			p.run(300) // every slot of the rings has been used
			least, messages := ^uint64(0), 0
			for range 3 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				for n := 0; n < 5000 && time.Since(start) < 400*time.Millisecond; n += 100 {
					p.run(100) // 400 work requests
					messages += 200
				}
				runtime.ReadMemStats(&after)
				least = min(least, after.Mallocs-before.Mallocs)
			}
			t.Logf("%d messages of %d bytes: %d allocations at least", messages, size, least)
			// On a busy machine there are few messages, and the runtime's own stand out.
			if least > uint64(max(messages/3/100, 24)) {
				t.Errorf("%d allocations over %d messages of %d bytes", least, messages/3, size)
			}
		}
	})
}

// BenchmarkSend measures a message there and back in one goroutine: engine, poll loop and wire.
func BenchmarkSend(b *testing.B) {
	for _, w := range wires {
		b.Run(w.name, func(b *testing.B) {
			ca, cb := w.open(b, Config{Progress: ProgressCaller}, Config{Progress: ProgressCaller})
			x, y := newEnd(b, ca, endConfig{}), newEnd(b, cb, endConfig{})
			connect(b, x, y, ConnOptions{})
			p := newPingPong(b, x, y, 8)
			p.run(10)
			b.ReportAllocs()
			b.ResetTimer()
			p.run(b.N)
		})
	}
}
