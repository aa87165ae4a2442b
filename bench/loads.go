package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file measures what many QPs do to each other, on the laboratory's veth pair with both ends in
// this process.

// Loads is what was measured.
type Loads struct {
	Fairness Fairness   `json:"fairness"`
	Beside   Beside     `json:"beside"`
	Setup    Setup      `json:"setup"`
	QPs      []WireQPs  `json:"qps"`
	Idle     Idle       `json:"idle"`
	GC       []GCEffect `json:"gc"`
}

// Fairness is of QPs that write as fast as they can at a time, in poller mode.
type Fairness struct {
	QPs     int     `json:"qps"`
	Seconds float64 `json:"seconds"`
	Gbps    float64 `json:"gbps"`
	Least   uint64  `json:"least_bytes"` // of a QP
	Most    uint64  `json:"most_bytes"`
	Ratio   float64 `json:"ratio"` // Least ÷ Most
	// User and System are the cores that both ends used meanwhile, in their own code and in the
	// kernel.
	User   float64 `json:"user_cores"`
	System float64 `json:"system_cores"`
	Drops  Drops   `json:"drops"`

	cpu float64 // ns of both ends for each packet with payload
}

// Drops are what was lost on the way or had to wait for room, both ends together.
type Drops struct {
	RXDropped   uint64 `json:"rx_dropped"`      // no chunk to receive into
	RXRingFull  uint64 `json:"rx_ring_full"`    // of the socket
	FillEmpty   uint64 `json:"fill_ring_empty"` // times
	TXFull      uint64 `json:"tx_full"`         // times that a frame waited for room
	TXAgain     uint64 `json:"tx_again"`        // calls that left frames for the next
	TXDropped   uint64 `json:"tx_dropped"`      // by the driver
	Packets     uint64 `json:"packets"`
	Retransmits uint64 `json:"retransmits"`
	Halved      uint64 `json:"window_halved"`
}

// Beside is the latency of 64-byte SENDs, half a round trip, alone and beside a large WRITE on another
// QP. Both ends have pollers and wait for completions, in one process.
type Beside struct {
	WriteBytes uint64  `json:"write_bytes"`
	WriteGbps  float64 `json:"write_gbps"`
	IdleP50    float64 `json:"idle_p50_us"`
	IdleP99    float64 `json:"idle_p99_us"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	Messages   int64   `json:"messages"` // beside the WRITE
}

// Setup is of connections that are made: QPs created and connected on both ends by calls.
type Setup struct {
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	HeapPerQP   uint64  `json:"heap_bytes_per_qp"` // depth 128, one SGE, no inline data, idle
	RSSPerQP    int64   `json:"rss_bytes_per_qp"`
}

// WireQPs is the cost of a WRITE of 64 bytes while so many QPs take turns.
type WireQPs struct {
	QPs  int     `json:"qps"`
	Mpps float64 `json:"mpps"`   // messages
	CPU  float64 `json:"cpu_ns"` // of both ends, a message
	// Packets are those of both ends, ACKs too, for each message. One QP's messages share an ACK;
	// those of many QPs have one each.
	Packets float64 `json:"packets"`
	NS      float64 `json:"ns"` // time, a message
	// Retransmits are packets sent again, Dropped those for which a ring had no room.
	Retransmits uint64 `json:"retransmits"`
	Dropped     uint64 `json:"dropped"`
}

// perPacket is the CPU time of both ends for each packet, in ns.
func (w *WireQPs) perPacket() float64 { return w.CPU / max(w.Packets, 1) }

// Idle is of connections that do nothing, in the default configuration.
type Idle struct {
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	Percent     float64 `json:"percent_of_core"` // both ends together, by /proc/self/stat
	WakeP50     float64 `json:"wake_p50_us"`     // half a round trip of a SEND after 20 ms of rest
}

const (
	smallSize   = 64
	streamSize  = 65536
	streamDepth = 8
)

// loadSizes are how much is measured.
type loadSizes struct {
	fairFor   time.Duration
	write     int
	besideMin time.Duration
	conns     int
	qpsFor    time.Duration
	idleFor   time.Duration
}

func loadSizesOf(quick bool) loadSizes {
	if quick {
		return loadSizes{300 * time.Millisecond, 32 << 20, 200 * time.Millisecond, 200, 50 * time.Millisecond,
			500 * time.Millisecond}
	}
	return loadSizes{5 * time.Second, bigWrite(), time.Second, 10000, 700 * time.Millisecond,
		10 * time.Second}
}

// bigWrite is 1 GiB, or less where memory is short: both ends need as much.
func bigWrite() int {
	n := 1 << 30
	for uint64(n)*4 > memoryAvailable() && n > 64<<20 {
		n /= 2
	}
	return n
}

// LoadsRun measures all but GC, which needs two processes. Without a lab, the ends are joined in memory.
func LoadsRun(ctx context.Context, l *lab.Lab, quick bool, tell func(string, ...any)) (*Loads, error) {
	r, n := &Loads{}, loadSizesOf(quick)
	for _, step := range []struct {
		name string
		run  func(*ends) error
	}{
		{"16 QPs at a time", func(e *ends) error { return r.Fairness.run(ctx, e, 16, n.fairFor) }},
		{"latency beside a large WRITE", func(e *ends) error { return r.Beside.run(ctx, e, n.write, n.besideMin) }},
		{"many connections", func(e *ends) error { return r.connections(ctx, e, n.conns, n.qpsFor) }},
		{"64 idle connections", func(e *ends) error { return r.Idle.run(ctx, e, 64, n.idleFor) }},
	} {
		tell("%s", step.name)
		e, err := openEnds(l, verbs.Config{})
		if err == nil {
			err = step.run(e)
			if closeErr := e.close(); err == nil {
				err = closeErr
			}
		}
		runtime.GC() // what one step leaves is not the next one's
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return r, nil
}

// fill makes bytes that tell their place.
func fill(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
		b = b[8:]
	}
}

// run writes on all QPs for a time, each from and to a place of its own, and compares at the end.
func (f *Fairness) run(ctx context.Context, e *ends, qps int, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d+waitLimit)
	defer cancel()
	ca, cb, err := e.queues(qps * streamDepth)
	if err != nil {
		return err
	}
	from, err := e.a.memory(qps * streamSize)
	if err != nil {
		return err
	}
	to, err := e.b.memory(qps * streamSize)
	if err != nil {
		return err
	}
	fill(from.Bytes(), 7)
	wrs := make([]verbs.SendWR, qps)
	links := make([]linked, qps)
	for i := range links {
		if links[i], err = e.connect(ca, cb, verbs.QPCap{MaxSendWR: streamDepth, MaxRecvWR: 1}); err != nil {
			return err
		}
		wrs[i] = verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
			SGList:     []verbs.SGE{from.SGE(i*streamSize, streamSize)},
			RemoteAddr: to.Addr() + uint64(i*streamSize), RKey: to.RKey()}
	}
	used, start := processTime(), time.Now()
	count := make([]uint64, qps)
	open := qps * streamDepth
	for i := range open {
		if err := links[i%qps].a.PostSend(&wrs[i%qps]); err != nil {
			return err
		}
	}
	var wc [64]verbs.WC
	for open > 0 {
		got, err := next(ctx, ca, wc[:])
		if err != nil {
			return err
		}
		over := time.Since(start) > d
		for i := range got {
			q := got[i].WRID
			if over {
				open-- // what completes later is nobody's: all had the same time
				continue
			}
			count[q] += streamSize
			if err := links[q].a.PostSend(&wrs[q]); err != nil {
				return err
			}
		}
	}
	elapsed := time.Since(start).Seconds()
	f.User, f.System = processTime().since(used, elapsed)
	packets := float64(qps*streamDepth) * streamSize / 4096 // those of the end
	for _, n := range count {
		packets += float64(n) / 4096
	}
	f.cpu = (f.User + f.System) * elapsed * 1e9 / packets
	if !bytes.Equal(from.Bytes(), to.Bytes()) {
		return fmt.Errorf("what arrived is not what was sent")
	}
	f.QPs, f.Seconds, f.Least, f.Most = qps, d.Seconds(), slices.Min(count), slices.Max(count)
	f.Ratio = float64(f.Least) / float64(max(f.Most, 1))
	for _, n := range count {
		f.Gbps += float64(n) * 8 / 1e9 / f.Seconds
	}
	f.Drops = e.drops()
	return nil
}

// drops sums up both ends' counters since they were opened.
func (e *ends) drops() (d Drops) {
	for _, x := range []*end{e.a, e.b} {
		s := x.dev.Stats()
		d.Packets += s.Total.SentPkts
		d.Retransmits += s.Total.Retransmits
		d.Halved += s.Total.WindowHalved
		for i := range s.Shards {
			x := &s.Shards[i].XDP
			d.RXDropped += x.Kernel.RXDropped
			d.RXRingFull += x.Kernel.RXRingFull
			d.FillEmpty += x.Kernel.FillRingEmpty
			d.TXFull += x.TXFull
			d.TXAgain += x.TXAgain
			d.TXDropped += x.TXDropped
		}
	}
	return d
}

// pinger sends small messages to and fro.
type pinger struct {
	link   linked
	ca, cb *verbs.CQ
	ma, mb *verbs.MR
	done   chan error
	n      uint64
}

// newPinger starts B's side, which answers until ctx ends.
func newPinger(ctx context.Context, e *ends) (*pinger, error) {
	p := &pinger{done: make(chan error, 1)}
	var err error
	if p.ca, p.cb, err = e.queues(16); err != nil {
		return nil, err
	}
	if p.ma, err = e.a.memory(4096); err != nil {
		return nil, err
	}
	if p.mb, err = e.b.memory(4096); err != nil {
		return nil, err
	}
	if p.link, err = e.connect(p.ca, p.cb, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}); err != nil {
		return nil, err
	}
	if err := p.link.b.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{p.mb.SGE(0, smallSize)}}); err != nil {
		return nil, err
	}
	go func() {
		err := p.echo(ctx)
		if ctx.Err() != nil {
			err = nil
		}
		p.done <- err
	}()
	return p, nil
}

// echo sends back what comes.
func (p *pinger) echo(ctx context.Context) error {
	recv := verbs.RecvWR{SGList: []verbs.SGE{p.mb.SGE(0, smallSize)}}
	wr := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{p.mb.SGE(64, smallSize)}}
	var wc [4]verbs.WC
	for {
		got, err := next(ctx, p.cb, wc[:])
		if err != nil {
			return err
		}
		for i := range got {
			if got[i].Opcode != verbs.WCRecv {
				continue
			}
			copy(p.mb.Bytes()[64:128], p.mb.Bytes()[:smallSize])
			if err := p.link.b.PostRecv(&recv); err != nil {
				return err
			}
			if err := p.link.b.PostSend(&wr); err != nil {
				return err
			}
		}
	}
}

// ping is one message and its answer, which is compared; it returns half the time.
func (p *pinger) ping(ctx context.Context) (time.Duration, error) {
	p.n++
	out, in := p.ma.Bytes()[64:128], p.ma.Bytes()[:smallSize]
	for i := 0; i < smallSize; i += 8 {
		binary.LittleEndian.PutUint64(out[i:], p.n*1000+uint64(i))
	}
	if err := p.link.a.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{p.ma.SGE(0, smallSize)}}); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := p.link.a.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{p.ma.SGE(64, smallSize)}}); err != nil {
		return 0, err
	}
	var took time.Duration
	var wc [4]verbs.WC
	for sent, received := false, false; !sent || !received; {
		got, err := next(ctx, p.ca, wc[:])
		if err != nil {
			return 0, err
		}
		for i := range got {
			if got[i].Opcode == verbs.WCRecv {
				took, received = time.Since(start)/2, true
			} else {
				sent = true
			}
		}
	}
	if !bytes.Equal(in, out) {
		return 0, fmt.Errorf("the answer is not what was sent")
	}
	return took, nil
}

// run measures small messages, first alone, then while the other QP writes.
func (b *Beside) run(ctx context.Context, e *ends, size int, alone time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, alone+2*waitLimit)
	defer cancel()
	p, err := newPinger(ctx, e)
	if err != nil {
		return err
	}
	bulk, err := newBulk(e, size)
	if err != nil {
		return err
	}
	start := time.Now()
	idle, err := p.until(ctx, func() bool { return time.Since(start) > alone })
	if err != nil {
		return err
	}
	start = time.Now()
	if err := bulk.post(); err != nil {
		return err
	}
	busy, err := p.until(ctx, bulk.complete)
	if err != nil {
		return err
	}
	if bulk.err != nil {
		return bulk.err
	}
	b.WriteBytes, b.WriteGbps = uint64(size), float64(size)*8/time.Since(start).Seconds()/1e9
	if !bytes.Equal(bulk.from.Bytes(), bulk.to.Bytes()) {
		return fmt.Errorf("the WRITE's bytes arrived wrong")
	}
	at := func(h *hdrhistogram.Histogram, q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e3 }
	b.IdleP50, b.IdleP99, b.P50, b.P99 = at(idle, 50), at(idle, 99), at(busy, 50), at(busy, 99)
	b.Messages = busy.TotalCount()
	cancel()
	return <-p.done
}

// until pings until over says so.
func (p *pinger) until(ctx context.Context, over func() bool) (*hdrhistogram.Histogram, error) {
	h := hdrhistogram.New(1, int64(10*time.Second), 3)
	for !over() {
		d, err := p.ping(ctx)
		if err != nil {
			return nil, err
		}
		_ = h.RecordValue(min(int64(d), int64(10*time.Second)))
	}
	return h, nil
}

// bulk is one large WRITE.
type bulk struct {
	link     linked
	cq       *verbs.CQ
	from, to *verbs.MR
	err      error
}

func newBulk(e *ends, size int) (*bulk, error) {
	b := &bulk{}
	var other *verbs.CQ
	var err error
	if b.cq, other, err = e.queues(4); err != nil {
		return nil, err
	}
	if b.from, err = e.a.memory(size); err != nil {
		return nil, err
	}
	if b.to, err = e.b.memory(size); err != nil {
		return nil, err
	}
	fill(b.from.Bytes(), 11)
	fill(b.to.Bytes(), 12) // its pages are there before the clock starts
	b.link, err = e.connect(b.cq, other, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1})
	return b, err
}

func (b *bulk) post() error {
	return b.link.a.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{b.from.SGE(0, b.from.Len())}, RemoteAddr: b.to.Addr(), RKey: b.to.RKey()})
}

// complete says whether the WRITE is through.
func (b *bulk) complete() bool {
	var wc [1]verbs.WC
	n, err := b.cq.Poll(wc[:])
	switch {
	case err != nil:
		b.err = err
	case n > 0 && wc[0].Status != verbs.WCSuccess:
		b.err = fmt.Errorf("the WRITE completed with %v", wc[0].Status)
	}
	return n > 0 || err != nil
}
