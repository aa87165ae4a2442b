package sim

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the road of a frame: out of a shard, through the faults, into another one.

const (
	stepFrames = 64   // frames a shard receives in one step
	stepGap    = 200  // ns between two steps of a busy shard, at least
	bufSize    = 4352 // largest frame
)

// port is one shard's place on the fabric.
type port struct {
	num     uint32
	node    *Node
	shard   *rxe.Shard
	scratch []byte
	rx      []frame
	rxHead  int
	next    rxe.Time // when a step is scheduled; Never = none
	order   uint64   // of scheduling
	place   int      // in the heap; -1 = not there
	rested  rxe.Time // no step before
	lastTx  rxe.Time // arrival of the last frame sent: order is kept
	open    []*train // of this step
	asleep  bool
	busy    bool // a step is under way

	flying   int // frames sent without completion
	withheld int // completions held back
	holdTx   bool
	txFull   bool
	starved  bool // a full TX ring has ended the last step
}

func (p *port) waiting() int { return len(p.rx) - p.rxHead }

// frame is a frame on its way, in a buffer of its own.
type frame struct {
	b       []byte
	damaged bool
}

// train is a burst of frames that arrive together.
type train struct {
	from, to *port
	at       rxe.Time
	frames   []frame
}

// framePool lends buffers of a few sizes, so that what is on its way lies close together.
type framePool struct {
	free   [4][][]byte
	trains []*train
	lent   int // buffers
	flying int // frames in trains
}

var bufClasses = [4]int{128, 576, 1216, bufSize}

func (p *framePool) copyOf(b []byte) []byte {
	c := 0
	for len(b) > bufClasses[c] {
		c++
	}
	p.lent++
	var buf []byte
	if n := len(p.free[c]); n > 0 {
		buf = p.free[c][n-1]
		p.free[c] = p.free[c][:n-1]
	} else {
		buf = make([]byte, bufClasses[c])
	}
	return buf[:copy(buf[:cap(buf)], b)]
}

func (p *framePool) release(b []byte) {
	p.lent--
	c := 0
	for cap(b) > bufClasses[c] {
		c++
	}
	p.free[c] = append(p.free[c], b)
}

func (p *framePool) train(from, to *port, at rxe.Time) *train {
	n := len(p.trains)
	if n == 0 {
		return &train{from: from, to: to, at: at}
	}
	t := p.trains[n-1]
	p.trains = p.trains[:n-1]
	t.from, t.to, t.at = from, to, at
	return t
}

// arrive puts a train's frames into the receive ring. To the sender they are sent, as on veth.
func (f *Fabric) arrive(t *train) {
	p := t.to
	for _, x := range t.frames {
		f.pool.flying--
		if p.waiting() >= f.cfg.RxRing {
			f.Stats.Overflows++
			f.pool.release(x.b)
			continue
		}
		f.Stats.Delivered++
		p.rx = append(p.rx, x)
	}
	f.sent(t.from, len(t.frames))
	t.frames = t.frames[:0]
	f.pool.trains = append(f.pool.trains, t)
	if !p.asleep && p.waiting() > 0 {
		f.schedule(p, f.now)
	}
}

// sent gives a shard n TX completions.
func (f *Fabric) sent(p *port, n int) {
	if p.holdTx {
		p.withheld += n
		return
	}
	p.flying -= n
	if p.starved && !p.txFull {
		p.starved = false
		f.schedule(p, f.now+f.jitter())
	}
}

// room is how many frames p may send now, and whether its TX ring is the limit.
func (f *Fabric) room(p *port) (n int, ring bool) {
	n = p.node.txBurst
	switch {
	case p.txFull:
		return 0, true
	case f.cfg.TxRing > 0 && f.cfg.TxRing-p.flying < n:
		return max(f.cfg.TxRing-p.flying, 0), true
	}
	return n, false
}

// step lets one shard do a batch of work, as a driver would.
func (f *Fabric) step(p *port) {
	s := p.shard
	p.busy = true
	p.rested = f.now + f.cfg.Pace
	s.Enter()
	f.receive(p)
	if s.Deadline() <= f.now {
		s.Expire(f.now)
	}
	s.Turn(f.now)
	full := f.transmit(p)
	if events := s.Events(); len(events) > 0 && p.node.OnEvent != nil {
		for _, e := range events {
			p.node.OnEvent(e)
		}
	}
	again := s.Leave()
	for w, i := s.Wakeups(), 0; w != 0; w, i = w>>1, i+1 {
		if w&1 != 0 {
			f.schedule(p.node.ports[i], f.now+f.jitter())
		}
	}
	p.busy = false
	if p.waiting() > 0 || again || s.Announced() || !full && s.CanTransmit() {
		f.schedule(p, f.now+stepGap+f.jitter())
	} else if d := s.Deadline(); d != rxe.Never {
		f.schedule(p, max(d, f.now+1))
	}
}

func (f *Fabric) receive(p *port) {
	n := min(p.waiting(), stepFrames)
	for _, x := range p.rx[p.rxHead : p.rxHead+n] {
		if f.cfg.OnDeliver != nil {
			f.cfg.OnDeliver(f.now, p.node, p.shard.ID, x.b, x.damaged)
		}
		p.shard.Receive(f.now, f.split(x.b))
		f.pool.release(x.b)
	}
	if p.rxHead += n; p.rxHead*2 >= len(p.rx) {
		p.rx = p.rx[:copy(p.rx, p.rx[p.rxHead:])]
		p.rxHead = 0
	}
}

// transmit sends what the shard has. It reports whether it ended for want of room in the TX ring:
// completions will make the shard step again.
func (f *Fabric) transmit(p *port) (full bool) {
	room, ring := f.room(p)
	for ; room > 0; room-- {
		n := p.shard.Transmit(f.now, rxe.Frame{Head: p.scratch[:p.node.txHead],
			Tail: p.scratch[p.node.txHead:]})
		if n == 0 {
			break
		}
		f.send(p, p.scratch[:n])
	}
	for i, t := range p.open {
		f.push(t.at, item{train: t})
		p.open[i] = nil
	}
	p.open = p.open[:0]
	p.starved = room == 0 && ring
	return p.starved
}

// split gives a frame in two pieces, now and then at an odd place.
func (f *Fabric) split(b []byte) rxe.Frame {
	if f.rng.Uint64()&7 != 0 || len(b) < 64 {
		return rxe.Frame{Head: b}
	}
	at := 14 + f.rng.Intn(len(b)-14)
	return rxe.Frame{Head: b[:at:at], Tail: b[at:]}
}

// send takes a frame to its destinations.
func (f *Fabric) send(from *port, b []byte) {
	n := f.Stats.Packets
	f.Stats.Packets++
	to := f.route(from, b)
	if f.cfg.Trace != nil {
		f.cfg.Trace.Frame(f.now, int(from.num), b)
	}
	if f.cfg.Tap != nil {
		var node *Node
		if to != nil {
			node = to.node
		}
		f.cfg.Tap(f.now, from.node, node, b)
	}
	switch {
	case to != nil:
		f.pass(n, from, to, b)
	case b[0]&1 != 0:
		f.flood(n, from, b)
	default:
		f.Stats.Unrouted++
	}
}

// flood sends a multicast frame to all other nodes.
func (f *Fabric) flood(n uint64, from *port, b []byte) {
	copies := uint64(0)
	for _, node := range f.nodes {
		if node != from.node {
			copies++
			f.pass(n, from, node.ports[from.shard.ID%len(node.ports)], b)
		}
	}
	if copies == 0 {
		f.Stats.Unrouted++
	} else {
		f.Stats.Flooded += copies - 1
	}
}

// pass lets a frame meet its faults on the way to one destination.
func (f *Fabric) pass(n uint64, from, to *port, b []byte) {
	x := &f.cfg.Faults
	v := Chance
	if x.Script != nil {
		v = x.Script(n, from.node, to.node, b)
	}
	var what fate
	if v == Chance {
		what = f.dice.roll(f.rng)
	} else {
		what = v.fate()
	}
	if from.node.cuts(to.node) {
		what |= 1 << fateDrop
	}
	switch {
	case what == 0:
		f.join(from, to, frame{b: f.pool.copyOf(b)}, 0)
		return
	case what.has(fateDrop):
		f.Stats.Dropped++
		return
	case what.has(fateDuplicate):
		f.duplicate(from, to, b, v)
	}
	f.faulty(from, to, b, what)
}

// duplicate makes the second copy of a frame. It arrives together with the first or, if that is left to
// chance, often late, when the first one has been forgotten.
func (f *Fabric) duplicate(from, to *port, b []byte, v Verdict) {
	x := &f.cfg.Faults
	f.Stats.Duplicated++
	c := frame{b: f.pool.copyOf(b)}
	u := f.rng.Uint64()
	switch {
	case v == Echo, v == Chance && u&7 == 0:
		f.alone(from, to, c, rxe.Time(f.rng.Intn(int(x.DelayBy))))
	case v == Chance && u&1 == 0:
		f.alone(from, to, c, rxe.Time(f.rng.Intn(int(x.ReorderBy))))
	default:
		f.join(from, to, c, f.jitter())
	}
}

func (f *Fabric) faulty(from, to *port, b []byte, what fate) {
	x := &f.cfg.Faults
	c := frame{b: f.pool.copyOf(b)}
	if what.has(fateCorrupt) {
		f.Stats.Corrupted++
		bit := f.rng.Intn((len(b) - 14) * 8)
		c.b[14+bit/8] ^= 1 << (bit % 8)
		c.damaged = true
	}
	if what.has(fateTruncate) {
		f.Stats.Truncated++
		c.b = c.b[:14+f.rng.Intn(len(b)-14)]
		c.damaged = true
	}
	switch {
	case what.has(fateReorder):
		f.Stats.Reordered++
		f.alone(from, to, c, rxe.Time(f.rng.Intn(int(x.ReorderBy))))
	case what.has(fateLate):
		f.Stats.Delayed++
		f.alone(from, to, c, x.DelayBy)
	case what.has(fateDelay):
		f.Stats.Delayed++
		f.join(from, to, c, rxe.Time(f.rng.Intn(int(x.DelayBy))))
	default:
		f.join(from, to, c, 0)
	}
}

// alone delivers a frame whatever the order.
func (f *Fabric) alone(from, to *port, c frame, extra rxe.Time) {
	t := f.pool.train(from, to, f.now+f.cfg.Latency+extra)
	t.frames = append(t.frames, c)
	from.flying++
	f.pool.flying++
	f.push(t.at, item{train: t})
}

// join delivers a frame in order: with the train to its destination that is being put together, or
// with one of its own behind it.
func (f *Fabric) join(from, to *port, c frame, extra rxe.Time) {
	var t *train
	for i := len(from.open) - 1; i >= 0; i-- {
		if from.open[i].to == to {
			t = from.open[i]
			break
		}
	}
	if t == nil || extra != 0 || f.rng.Intn(f.cfg.Burst) == 0 {
		at := max(f.now+f.cfg.Latency+extra+f.jitter(), from.lastTx)
		from.lastTx = at
		t = f.pool.train(from, to, at)
		from.open = append(from.open, t)
	}
	t.frames = append(t.frames, c)
	from.flying++
	f.pool.flying++
}

// route finds the destination port: the node by MAC, its queue by the sender's.
func (f *Fabric) route(from *port, b []byte) *port {
	mac := wire.MAC(b[:6])
	id := int(mac[4])<<8 | int(mac[5])
	if id < 1 || id > len(f.nodes) || f.nodes[id-1].MAC != mac {
		return nil
	}
	n := f.nodes[id-1]
	return n.ports[from.shard.ID%len(n.ports)]
}

// straddle lets everything else go on while a shard is between a key check and its copy.
func (f *Fabric) straddle(p *port) {
	if f.inside {
		return
	}
	d := f.cfg.Straddle(p.node, p.shard.ID)
	if d <= 0 {
		return
	}
	f.inside = true
	for until := f.now + d; f.advance(until); {
	}
	f.inside = false
}

// Nudge wakes shard i of n for no reason, if it sleeps until a timer or for good. A shard that has
// missed no wake-up then finds nothing to do; Nudge reports whether it has sent or drained frames, or
// has reported events. Completions are for the caller to see. While another shard of n is in the
// middle of a step Nudge does nothing: that one wakes others at its end.
func (f *Fabric) Nudge(n *Node, i int) (busy bool) {
	p := n.ports[i]
	for _, o := range n.ports {
		if o.busy {
			return false
		}
	}
	timer := p.next == p.shard.Deadline() && p.next > max(p.rested, f.now+f.cfg.Spread+stepGap)
	if p.asleep || p.starved || p.waiting() > 0 || p.next != rxe.Never && !timer {
		return false
	}
	before := p.shard.C
	f.unschedule(p)
	f.step(p)
	after := p.shard.C
	after.GraceStalls = before.GraceStalls // what waits for other shards is looked at, and waits on
	return after != before
}
