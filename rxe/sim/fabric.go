package sim

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
)

// Config sets up a fabric. Zero values take the defaults named.
type Config struct {
	Seed    uint64
	Latency rxe.Time // one way, default 2 µs
	Spread  rxe.Time // random addition to each step and frame, default 500 ns; keeps order
	Burst   int      // frames sent together that also arrive together, on average; default 1
	Pace    rxe.Time // a shard rests so long between two steps, so that work gathers; default 0
	Faults  Faults
	RxRing  int // frames a shard's receive ring holds, default 512
	TxRing  int // frames of a shard on their way before it must wait for completions, 0 = no limit

	// Straddle, if set, is asked each time a shard of n is between a responder's key check and the copy
	// it allowed. So long the shard then stays there, while all others run, as they do on other cores.
	Straddle func(n *Node, shard int) rxe.Time

	// Tap, if set, sees every frame that a shard sends, before the faults. to is nil when nobody has
	// the destination address, or when many have it.
	Tap func(now rxe.Time, from, to *Node, frame []byte)
	// OnDeliver, if set, sees every frame that a shard of a node is about to receive. damaged tells
	// that the fabric has changed it.
	OnDeliver func(now rxe.Time, to *Node, shard int, frame []byte, damaged bool)
	// Trace, if set, gets every frame.
	Trace *Trace
}

// Fabric is a switch with nodes and a virtual clock. One goroutine uses it.
type Fabric struct {
	cfg    Config
	dice   dice
	now    rxe.Time
	rng    *Rand
	nodes  []*Node
	ports  []*port
	events eventHeap
	steps  portHeap
	seq    uint64
	items  []item
	spare  []uint32 // free items
	pool   framePool
	inside bool // a straddle is under way
	Stats  Stats
}

// item is what an event refers to: a train or a call.
type item struct {
	train *train
	call  func()
}

// maxPorts is how many shards a fabric has at most.
const maxPorts = 1 << 16

// New makes an empty fabric at time 0.
func New(cfg Config) *Fabric {
	if cfg.Latency == 0 {
		cfg.Latency = 2000
	}
	if cfg.Spread == 0 {
		cfg.Spread = 500
	}
	cfg.Burst = max(cfg.Burst, 1)
	if cfg.RxRing == 0 {
		cfg.RxRing = 512
	}
	f := &Fabric{cfg: cfg, rng: NewRand(cfg.Seed)}
	f.SetFaults(cfg.Faults)
	return f
}

// Now is the virtual time.
func (f *Fabric) Now() rxe.Time { return f.now }

// Rand is the fabric's generator; what a workload draws from it replays with the seed.
func (f *Fabric) Rand() *Rand { return f.rng }

// SetFaults replaces the fault model from now on.
func (f *Fabric) SetFaults(x Faults) {
	x.defaults()
	f.cfg.Faults = x
	f.dice = newDice(&x)
}

// Nodes are the fabric's nodes in the order they were added.
func (f *Fabric) Nodes() []*Node { return f.nodes }

// At calls fn when the clock reaches t, or at once if it is there already.
func (f *Fabric) At(t rxe.Time, fn func()) { f.push(t, item{call: fn}) }

// push schedules an item.
func (f *Fabric) push(at rxe.Time, it item) {
	var i uint32
	if n := len(f.spare); n > 0 {
		i = f.spare[n-1]
		f.spare = f.spare[:n-1]
		f.items[i] = it
	} else {
		i = uint32(len(f.items))
		f.items = append(f.items, it)
	}
	if i > itemMask {
		panic("sim: too many events at once")
	}
	f.seq++
	f.events.push(event{max(at, f.now), f.seq<<itemBits | uint64(i)})
}

// schedule makes sure that p steps at or before at.
func (f *Fabric) schedule(p *port, at rxe.Time) {
	at = max(at, f.now, p.rested)
	if at >= p.next || p.asleep {
		return
	}
	f.seq++
	p.next, p.order = at, f.seq<<itemBits
	f.steps.move(p)
}

// unschedule takes back what schedule has planned.
func (f *Fabric) unschedule(p *port) {
	p.next = rxe.Never
	f.steps.remove(p)
}

// Kick schedules every shard of n that has something to do: after posting work.
func (f *Fabric) Kick(n *Node) {
	for _, p := range n.ports {
		if p.shard.Pending() {
			f.schedule(p, f.now)
		}
	}
}

// KickShard schedules shard i of n.
func (f *Fabric) KickShard(n *Node, i int) { f.schedule(n.ports[i], f.now) }

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
		if !f.advance(until) {
			return false
		}
	}
}

// advance lets the next thing happen, if that is not after until.
func (f *Fabric) advance(until rxe.Time) bool {
	at, isStep := rxe.Never, false
	if len(f.events.e) > 0 {
		at = f.events.e[0].at
	}
	if len(f.steps.p) > 0 {
		p := f.steps.p[0]
		if p.next < at || p.next == at && p.order < f.events.e[0].key {
			at, isStep = p.next, true
		}
	}
	if at > until || at == rxe.Never {
		if until != rxe.Never {
			f.now = max(f.now, until)
		}
		return false
	}
	f.now = at
	if isStep {
		p := f.steps.p[0]
		f.unschedule(p)
		if !p.busy { // or it looks again at the end of the step that it is in
			f.step(p)
		}
		return true
	}
	i := uint32(f.events.pop().key & itemMask)
	it := f.items[i]
	f.items[i] = item{}
	f.spare = append(f.spare, i)
	if it.train != nil {
		f.arrive(it.train)
	} else {
		it.call()
	}
	return true
}

func (f *Fabric) jitter() rxe.Time { return rxe.Time(f.rng.Intn(int(f.cfg.Spread))) }

// Audit checks that every frame is accounted for: what engines sent and the fabric multiplied was
// delivered, lost or is on its way, no buffer is missing, and shards have counted what they got.
func (f *Fabric) Audit() error {
	s := &f.Stats
	flying := uint64(f.pool.flying)
	in, out := s.Packets+s.Duplicated+s.Flooded, s.Delivered+s.Dropped+s.Unrouted+s.Overflows
	if in != out+flying {
		return fmt.Errorf("%d frames sent, duplicated and flooded, but %d ended and %d on their way",
			in, out, flying)
	}
	var waiting, received, sent uint64
	for _, p := range f.ports {
		waiting += uint64(p.waiting())
		received += p.shard.C.RcvdPkts
		sent += p.shard.C.SentPkts
	}
	switch {
	case s.Delivered != waiting+received:
		return fmt.Errorf("%d frames delivered, but shards received %d and %d wait",
			s.Delivered, received, waiting)
	case s.Packets != sent:
		return fmt.Errorf("%d frames on the fabric, but shards counted %d sent", s.Packets, sent)
	case f.pool.lent != int(flying+waiting):
		return fmt.Errorf("%d frame buffers in use for %d frames", f.pool.lent, flying+waiting)
	}
	return nil
}
