package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file measures crowds of connections: made, used in turn, idle; and what garbage collection
// does.

const (
	crowdDepth  = 128 // of each queue
	crowdFlight = 128 // messages under way
	wakeRest    = 20 * time.Millisecond
	wakeRounds  = 50
)

// crowd is many connections over shared CQs. Message i goes from place to place i.
type crowd struct {
	e        *ends
	links    []linked
	ca       *verbs.CQ
	from, to *verbs.MR
	wr       verbs.SendWR
	wc       [64]verbs.WC
}

// connections makes n connections, proves each, and lets some and then all of them take turns.
func (r *Loads) connections(ctx context.Context, e *ends, n int, each time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 4*waitLimit)
	defer cancel()
	heap, rss := heapNow(), rssNow()
	start := time.Now()
	c, err := newCrowd(e, n)
	if err != nil {
		return err
	}
	r.Setup = Setup{Connections: n, Seconds: time.Since(start).Seconds()}
	r.Setup.HeapPerQP = (heapNow() - heap) / uint64(2*n)
	r.Setup.RSSPerQP = (rssNow() - rss) / int64(2*n)
	if err := c.prove(ctx); err != nil {
		return err
	}
	for qps := 1; qps <= n; qps *= 10 {
		w, err := c.measure(ctx, qps, each)
		if err != nil {
			return fmt.Errorf("%d QPs: %w", qps, err)
		}
		r.QPs = append(r.QPs, w)
	}
	return nil
}

// newCrowd makes n connections.
func newCrowd(e *ends, n int) (*crowd, error) {
	c := &crowd{e: e}
	ca, cb, err := e.queues(4 * crowdFlight)
	if err != nil {
		return nil, err
	}
	c.ca = ca
	if c.from, err = e.a.memory(n * smallSize); err != nil {
		return nil, err
	}
	if c.to, err = e.b.memory(n * smallSize); err != nil {
		return nil, err
	}
	fill(c.from.Bytes(), 3)
	fill(c.to.Bytes(), 4)
	for range n {
		l, err := e.connect(ca, cb, verbs.QPCap{MaxSendWR: crowdDepth, MaxRecvWR: crowdDepth})
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w", len(c.links), err)
		}
		c.links = append(c.links, l)
	}
	c.wr = verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RKey: c.to.RKey(),
		SGList: make([]verbs.SGE, 1)}
	return c, nil
}

// prove sends a message over each connection and compares.
func (c *crowd) prove(ctx context.Context) error {
	n := len(c.links)
	if _, err := c.turns(ctx, n, func(sent int) bool { return sent >= n }); err != nil {
		return err
	}
	if !slices.Equal(c.from.Bytes(), c.to.Bytes()) {
		return fmt.Errorf("what arrived over %d connections is not what was sent", n)
	}
	return nil
}

// turns sends messages of 64 bytes over the first qps connections, one after the other, until over
// says that it is enough, and waits until all have arrived.
func (c *crowd) turns(ctx context.Context, qps int, over func(sent int) bool) (sent int, err error) {
	open := 0
	for at := 0; ; {
		for open < crowdFlight && !over(sent) {
			c.wr.SGList[0] = c.from.SGE(at*smallSize, smallSize)
			c.wr.RemoteAddr = c.to.Addr() + uint64(at*smallSize)
			if err := c.links[at].a.PostSend(&c.wr); err != nil {
				return sent, err
			}
			sent, open, at = sent+1, open+1, (at+1)%qps
		}
		if open == 0 {
			return sent, nil
		}
		got, err := next(ctx, c.ca, c.wc[:])
		if err != nil {
			return sent, err
		}
		open -= len(got)
	}
}

func (c *crowd) measure(ctx context.Context, qps int, d time.Duration) (WireQPs, error) {
	warm := max(2*qps, 1000)
	if _, err := c.turns(ctx, qps, func(sent int) bool { return sent >= warm }); err != nil {
		return WireQPs{}, err
	}
	before := c.e.drops()
	used, start := processTime(), time.Now()
	sent, err := c.turns(ctx, qps, func(sent int) bool {
		return sent%16 == 0 && time.Since(start) > d
	})
	elapsed := time.Since(start)
	user, system := processTime().since(used, elapsed.Seconds())
	w := WireQPs{QPs: qps, Mpps: float64(sent) / elapsed.Seconds() / 1e6,
		NS: float64(elapsed.Nanoseconds()) / float64(sent)}
	w.CPU = (user + system) * w.NS
	after := c.e.drops()
	w.Retransmits = after.Retransmits - before.Retransmits
	w.Dropped = after.lost() - before.lost()
	w.Packets = float64(after.Packets-before.Packets) / float64(sent)
	return w, err
}

// run leaves connections alone and looks what that costs; then it wakes them now and then.
func (r *Idle) run(ctx context.Context, e *ends, n int, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d+waitLimit)
	defer cancel()
	ca, cb, err := e.queues(64)
	if err != nil {
		return err
	}
	for range n - 1 {
		if _, err := e.connect(ca, cb, verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}); err != nil {
			return err
		}
	}
	p, err := newPinger(ctx, e)
	if err != nil {
		return err
	}
	for range 100 { // all has been used once
		if _, err := p.ping(ctx); err != nil {
			return err
		}
	}
	runtime.GC()
	time.Sleep(d / 10)
	before, start := statTicks(), time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.Connections, r.Seconds = n, time.Since(start).Seconds()
	r.Percent = float64(statTicks()-before) / ticksPerSecond / r.Seconds * 100
	var took []float64
	for range wakeRounds {
		time.Sleep(wakeRest)
		d, err := p.ping(ctx)
		if err != nil {
			return err
		}
		took = append(took, micros(d))
	}
	slices.Sort(took)
	r.WakeP50 = took[len(took)/2]
	cancel()
	return <-p.done
}

// GCEffect is what the garbage collector of both ends does to send_lat of 64 bytes in caller mode:
// least of the rounds.
type GCEffect struct {
	GC   perf.GC `json:"gc"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
}

// gc measures it in turns.
func (m *meter) gc(ctx context.Context, rounds int) ([]GCEffect, error) {
	t, err := perf.Lookup("send_lat")
	if err != nil {
		return nil, err
	}
	out := []GCEffect{{GC: perf.GCOff}, {GC: perf.GCForced}, {GC: perf.GCChurn}}
	for n := range rounds {
		for i := range out {
			x := &out[i]
			m.tell("%d/%d latency with garbage collection %s", n+1, rounds, x.GC)
			results, err := m.pair.Run(ctx, perf.Config{Test: t, Size: 64, Duration: m.duration, Verify: true,
				GIDIndex: -1, Timeout: patientTimeout, GC: x.GC}, perf.Hooks{})
			if err == nil {
				err = results[0].Err()
			}
			if err != nil {
				return nil, fmt.Errorf("GC %s: %w", x.GC, err)
			}
			l := results[0].Lat
			lower(&x.P50, l.P50)
			lower(&x.P99, l.P99)
			lower(&x.P999, l.P999)
		}
	}
	return out, nil
}

func heapNow() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
