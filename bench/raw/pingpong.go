package raw

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/xdp"
)

// PingPong sends one frame at a time from A to B and back. With one thread, both ends take turns
// in it; with two, each spins on its ring. It stops early, with ctx's error, when ctx ends.
func PingPong(ctx context.Context, c Config) (Latency, error) {
	if err := c.validate(); err != nil {
		return Latency{}, err
	}
	a, b, err := openBoth(&c)
	defer func() {
		_ = a.close()
		_ = b.close()
	}()
	if err != nil {
		return Latency{}, err
	}
	p := &pingPong{Config: c, ctx: ctx, a: a, b: b, hist: hdrhistogram.New(1, 1e10, 3)}
	if c.Threads == 1 {
		err = <-c.locked(0, p.oneThread)
	} else {
		echo := c.locked(1, p.echo)
		err = errors.Join(<-c.locked(0, p.caller), <-echo)
	}
	if err != nil {
		return Latency{}, err
	}
	half := func(ns int64) time.Duration { return time.Duration(ns) / 2 }
	return Latency{
		FrameSize: c.FrameSize, Threads: c.Threads, Rounds: uint64(p.hist.TotalCount()),
		Min: half(p.hist.Min()), P50: half(p.hist.ValueAtQuantile(50)),
		P99: half(p.hist.ValueAtQuantile(99)), P999: half(p.hist.ValueAtQuantile(99.9)),
		Max: half(p.hist.Max()), Lost: p.lost, Mode: b.mode, ZeroCopy: b.ZeroCopy(),
		Dist: perf.Dist(p.hist, 2),
	}, nil
}

// yieldEvery is how many looks at an empty ring, a few ns each, go before the core is offered to
// others.
const yieldEvery = 1 << 14

// pingPong is one measurement.
type pingPong struct {
	Config
	ctx  context.Context
	a, b *end
	hist *hdrhistogram.Histogram // whole round trips, ns
	lost uint64
	stop atomic.Bool
}

// send sends one frame to the other end.
func (p *pingPong) send(from *end, seq uint32) error {
	head, ok := p.reserve(from)
	if !ok {
		return errDown // one frame at a time always finds room, unless none completes any more
	}
	from.header(head, seq)
	from.Submit(p.FrameSize)
	if from.Kick() > xdp.KickAgain {
		return errDown
	}
	return nil
}

func (p *pingPong) reserve(e *end) (head []byte, ok bool) {
	if e.parts <= 2 {
		head, _, ok = e.Reserve()
		return head, ok
	}
	if _, ok = e.ReserveParts(p.FrameSize); !ok {
		return nil, false
	}
	return e.ReservedPart(0), true
}

// take looks once for a frame and returns its number.
func (p *pingPong) take(e *end) (seq uint32, ok bool) {
	if e.Receive(1) == 0 {
		return 0, false
	}
	head, _, _ := e.Packet(0)
	seq = sequence(head)
	e.Release()
	return seq, true
}

// await spins for frame seq and says whether it came; that of a round given up before is skipped.
func (p *pingPong) await(e *end, seq uint32, since time.Time) bool {
	for i := 1; ; i++ {
		if got, ok := p.take(e); ok && got == seq {
			return true
		}
		if i%yieldEvery != 0 {
			continue
		}
		if yield(); time.Since(since) > settle || p.stop.Load() {
			p.lost++
			return false
		}
	}
}

// over says whether the time is over, and forgets what was measured while warming up.
func (p *pingPong) over(m *meter, now time.Time) bool {
	warm := m.warm
	if m.over(p.Duration, 0) {
		return true
	}
	if !warm && m.warm {
		p.hist.Reset()
	}
	return false
}

func (p *pingPong) oneThread() error {
	return p.rounds(func(seq uint32, since time.Time) error {
		if p.await(p.b, seq, since) {
			return p.send(p.b, seq)
		}
		return nil
	})
}

func (p *pingPong) caller() error {
	defer p.stop.Store(true)
	return p.rounds(func(uint32, time.Time) error { return nil })
}

// rounds plays A, with answer for what B does in the same thread.
func (p *pingPong) rounds(answer func(seq uint32, since time.Time) error) error {
	var m meter
	for seq := uint32(0); ; seq++ {
		start := time.Now()
		if seq%64 == 0 {
			if p.over(&m, start) || p.ctx.Err() != nil || p.stop.Load() {
				return p.ctx.Err()
			}
			start = time.Now()
		}
		if err := p.send(p.a, seq); err != nil {
			return err
		}
		if err := answer(seq, start); err != nil {
			return err
		}
		if p.await(p.a, seq, start) {
			_ = p.hist.RecordValue(int64(time.Since(start)))
		}
	}
}

// echo plays B in a thread of its own.
func (p *pingPong) echo() error {
	for i := 1; ; i++ {
		if seq, ok := p.take(p.b); ok {
			if err := p.send(p.b, seq); err != nil {
				p.stop.Store(true)
				return err
			}
			i = 0
		} else if i%yieldEvery == 0 {
			if yield(); p.stop.Load() {
				return nil
			}
		}
	}
}
