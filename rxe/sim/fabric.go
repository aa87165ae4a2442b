package sim

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Config sets up a fabric. Zero values take the defaults named.
type Config struct {
	Seed    uint64
	Latency rxe.Time // one way, default 2 µs
	Spread  rxe.Time // random addition to each step and frame, default 500 ns; keeps order
	Faults  Faults
	RxRing  int // frames a shard's receive ring holds, default 512
	Tap     func(now rxe.Time, from, to *Node, frame []byte)
}

// Fabric is a switch with nodes and a virtual clock. One goroutine uses it.
type Fabric struct {
	cfg    Config
	now    rxe.Time
	rng    *Rand
	nodes  []*Node
	events eventHeap
	seq    uint64
	free   [][]byte
	Stats  Stats
}

// New makes an empty fabric at time 0.
func New(cfg Config) *Fabric {
	if cfg.Latency == 0 {
		cfg.Latency = 2000
	}
	if cfg.Spread == 0 {
		cfg.Spread = 500
	}
	if cfg.RxRing == 0 {
		cfg.RxRing = 512
	}
	if cfg.Faults.ReorderBy == 0 {
		cfg.Faults.ReorderBy = 20_000
	}
	if cfg.Faults.DelayBy == 0 {
		cfg.Faults.DelayBy = 1_000_000
	}
	return &Fabric{cfg: cfg, rng: NewRand(cfg.Seed)}
}

// Now is the virtual time.
func (f *Fabric) Now() rxe.Time { return f.now }

// Rand is the fabric's generator; what a workload draws from it replays with the seed.
func (f *Fabric) Rand() *Rand { return f.rng }

// SetFaults replaces the fault model from now on.
func (f *Fabric) SetFaults(x Faults) {
	if x.ReorderBy == 0 {
		x.ReorderBy = 20_000
	}
	if x.DelayBy == 0 {
		x.DelayBy = 1_000_000
	}
	f.cfg.Faults = x
}

// Nodes are the fabric's nodes in the order they were added.
func (f *Fabric) Nodes() []*Node { return f.nodes }

// port is one shard's place on the fabric.
type port struct {
	node   *Node
	shard  *rxe.Shard
	rx     [][]byte
	next   rxe.Time // when a step is scheduled; Never = none
	lastTx rxe.Time // arrival of the last frame sent: order is kept
	asleep bool
}

// event is a frame's arrival or a shard's step.
type event struct {
	at    rxe.Time
	seq   uint64
	port  *port
	frame []byte // nil: step
}

// schedule makes sure that p steps at or before at.
func (f *Fabric) schedule(p *port, at rxe.Time) {
	if at < f.now {
		at = f.now
	}
	if at >= p.next {
		return
	}
	p.next = at
	f.push(event{at: at, port: p})
}

func (f *Fabric) push(e event) {
	f.seq++
	e.seq = f.seq
	f.events.push(e)
}

// Kick schedules every shard of n: after posting work.
func (f *Fabric) Kick(n *Node) {
	for _, p := range n.ports {
		if p.shard.Pending() {
			f.schedule(p, f.now)
		}
	}
}

// Run advances the clock to until, or until nothing is left to happen.
func (f *Fabric) Run(until rxe.Time) {
	f.RunUntil(until, func() bool { return false })
}

// RunUntil runs until done is true (checked after each event), the time is reached, or nothing is
// left to happen. It reports whether done was true.
func (f *Fabric) RunUntil(until rxe.Time, done func() bool) bool {
	for _, n := range f.nodes {
		f.Kick(n)
	}
	for {
		if done() {
			return true
		}
		if f.events.len() == 0 || f.events.min() > until {
			if until != rxe.Never {
				f.now = max(f.now, until)
			}
			return false
		}
		e := f.events.pop()
		f.now = e.at
		if e.frame != nil {
			f.arrive(e.port, e.frame)
			continue
		}
		if e.port.next == e.at { // else superseded
			e.port.next = rxe.Never
			f.step(e.port)
		}
	}
}

func (f *Fabric) arrive(p *port, frame []byte) {
	if len(p.rx) >= f.cfg.RxRing {
		f.Stats.Overflows++
		f.release(frame)
		return
	}
	f.Stats.Delivered++
	p.rx = append(p.rx, frame)
	if !p.asleep {
		f.schedule(p, f.now)
	}
}

const stepFrames = 64

// step lets one shard do a batch of work, as a driver would.
func (f *Fabric) step(p *port) {
	s := p.shard
	s.Enter()
	n := min(len(p.rx), stepFrames)
	for _, b := range p.rx[:n] {
		s.Receive(f.now, f.split(b))
		f.release(b)
	}
	p.rx = p.rx[:copy(p.rx, p.rx[n:])]
	if s.Deadline() <= f.now {
		s.Expire(f.now)
	}
	s.Turn(f.now)
	sent := 0
	for ; sent < p.node.txBurst; sent++ {
		b := f.buffer()
		n := s.Transmit(f.now, rxe.Frame{Head: b[:p.node.txHead], Tail: b[p.node.txHead:]})
		if n == 0 {
			f.release(b)
			break
		}
		f.send(p, b[:n])
	}
	if p.node.OnEvent != nil {
		for _, e := range s.Events() {
			p.node.OnEvent(e)
		}
	} else {
		s.Events()
	}
	again := s.Leave()
	for w, i := s.Wakeups(), 0; w != 0; w, i = w>>1, i+1 {
		if w&1 != 0 {
			f.schedule(p.node.ports[i], f.now+f.jitter())
		}
	}
	if len(p.rx) > 0 || again || s.Pending() {
		f.schedule(p, f.now+200+f.jitter())
	} else if d := s.Deadline(); d != rxe.Never {
		f.schedule(p, max(d, f.now+1))
	}
}

func (f *Fabric) jitter() rxe.Time { return rxe.Time(f.rng.Uint64() % uint64(f.cfg.Spread)) }

// split gives a frame in two pieces, now and then at an odd place.
func (f *Fabric) split(b []byte) rxe.Frame {
	if f.rng.Uint64()&7 != 0 || len(b) < 64 {
		return rxe.Frame{Head: b}
	}
	at := 14 + f.rng.Intn(len(b)-14)
	return rxe.Frame{Head: b[:at:at], Tail: b[at:]}
}

// send passes a frame through the faults to its destination.
func (f *Fabric) send(from *port, b []byte) {
	n := f.Stats.Packets
	f.Stats.Packets++
	to := f.route(from, b)
	if f.cfg.Tap != nil {
		var node *Node
		if to != nil {
			node = to.node
		}
		f.cfg.Tap(f.now, from.node, node, b)
	}
	if to == nil {
		f.Stats.Unrouted++
		f.release(b)
		return
	}
	f.fate(n, from, to, b)
}

func (f *Fabric) fate(n uint64, from, to *port, b []byte) {
	x := &f.cfg.Faults
	v := Chance
	if x.Script != nil {
		v = x.Script(n, from.node, to.node, b)
	}
	roll := func(p float64, forced Verdict) bool {
		return v == forced || v == Chance && f.rng.Chance(p)
	}
	if from.node.cut[to.node] || roll(x.Drop, Drop) {
		f.Stats.Dropped++
		f.release(b)
		return
	}
	if roll(x.Duplicate, Duplicate) {
		f.Stats.Duplicated++
		c := f.buffer()[:len(b)]
		copy(c, b)
		f.deliver(from, to, c, f.jitter())
	}
	if roll(x.Corrupt, Corrupt) {
		f.Stats.Corrupted++
		bit := f.rng.Intn((len(b) - 14) * 8)
		b[14+bit/8] ^= 1 << (bit % 8)
	}
	if v == Chance && f.rng.Chance(x.Truncate) {
		f.Stats.Truncated++
		b = b[:14+f.rng.Intn(len(b)-14)]
	}
	switch {
	case v == Chance && f.rng.Chance(x.Reorder):
		f.Stats.Reordered++
		f.deliverAt(to, b, f.now+f.cfg.Latency+rxe.Time(f.rng.Uint64()%uint64(x.ReorderBy)))
	case v == Late:
		f.Stats.Delayed++
		f.deliverAt(to, b, f.now+f.cfg.Latency+x.DelayBy)
	case v == Chance && f.rng.Chance(x.Delay):
		f.Stats.Delayed++
		f.deliver(from, to, b, rxe.Time(f.rng.Uint64()%uint64(x.DelayBy)))
	default:
		f.deliver(from, to, b, 0)
	}
}

// deliver keeps the order of a sender's frames.
func (f *Fabric) deliver(from, to *port, b []byte, extra rxe.Time) {
	at := max(f.now+f.cfg.Latency+extra+f.jitter(), from.lastTx)
	from.lastTx = at
	f.deliverAt(to, b, at)
}

func (f *Fabric) deliverAt(to *port, b []byte, at rxe.Time) {
	f.push(event{at: at, port: to, frame: b})
}

// route finds the destination port: the node by MAC, its queue by the sender's.
func (f *Fabric) route(from *port, b []byte) *port {
	mac := wire.MAC(b[:6])
	for _, n := range f.nodes {
		if n.MAC == mac || mac[0]&1 != 0 && n != from.node {
			return n.ports[from.shard.ID%len(n.ports)]
		}
	}
	return nil
}

const bufSize = 4352

func (f *Fabric) buffer() []byte {
	if n := len(f.free); n > 0 {
		b := f.free[n-1]
		f.free = f.free[:n-1]
		return b[:bufSize]
	}
	return make([]byte, bufSize)
}

func (f *Fabric) release(b []byte) {
	if cap(b) >= bufSize {
		f.free = append(f.free, b)
	}
}

// eventHeap is a binary heap by time, then order of scheduling.
type eventHeap struct{ e []event }

func (h *eventHeap) len() int      { return len(h.e) }
func (h *eventHeap) min() rxe.Time { return h.e[0].at }

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (h *eventHeap) push(x event) {
	h.e = append(h.e, x)
	i := len(h.e) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !before(&h.e[i], &h.e[up]) {
			break
		}
		h.e[i], h.e[up] = h.e[up], h.e[i]
		i = up
	}
}

func (h *eventHeap) pop() event {
	top := h.e[0]
	last := len(h.e) - 1
	h.e[0] = h.e[last]
	h.e[last] = event{}
	h.e = h.e[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && before(&h.e[c+1], &h.e[c]) {
			c++
		}
		if !before(&h.e[c], &h.e[i]) {
			break
		}
		h.e[i], h.e[c] = h.e[c], h.e[i]
		i = c
	}
	return top
}
