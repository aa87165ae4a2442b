package rxe

import (
	"math/bits"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Frame is one Ethernet frame in at most two pieces.
type Frame = wire.Frame

// QPN is a 24-bit queue pair number, PSN a 24-bit packet sequence number.
type (
	QPN = wire.QPN
	PSN = wire.PSN
)

// MinFrame is the smallest Head a driver may offer to Transmit, in bytes: all headers and room to
// spare. Head and Tail together must hold the largest frame of the path.
const MinFrame = 256

// Bounds of one turn of the loop.
const (
	burstPackets  = 8   // a QP's share before the next one's turn
	turnHandovers = 256 // frames taken from other shards per Turn
	loopBurst     = 64  // loopback frames per Transmit call
)

// Shard is the engine behind one queue of the interface. Exactly one goroutine holds it at a time.
type Shard struct {
	dev     *Device
	ID      int
	C       Counters
	Latency Latencies // of RC work requests; read it while holding the shard
	wheel   wheel
	ready   qpList

	parked   qpList // QPs that could send requests but for the budget
	guest    *QP    // was parked; its turn lasts until it has sent a burst
	inFlight uint32 // chunks of the peers' rings that unacknowledged requests of RC QPs take
	heardAt  Time   // when a peer last acknowledged something
	bells    doorbells
	pkt      wire.Packet
	grh      [GRHBytes]byte

	inbound  []*handover // by sending shard; [ID] is the loopback of this shard
	wake     uint64      // shards to wake
	events   []Event
	waiting  []*QP // QPs whose completions wait for grace
	spare    []*QP
	sender   QPN // who sent the last frame
	failures []Failure
	qps      int
	now      Time

	// TestHook, if set, runs between each key check of a responder and the copy it allowed.
	TestHook  func()
	graceHook func() // tests: runs when grace has not passed yet, before it is waited for
}

func newShard(d *Device, id int, now Time) *Shard {
	s := &Shard{dev: d, ID: id, now: now, events: make([]Event, 0, initialQueuedEvents)}
	s.wheel.init(now)
	s.ready.init(onReady)
	s.parked.init(onParked)
	s.bells.init(d.cfg.MaxQP)
	return s
}

// Enter brings the shard online: from here until Leave its view of the key table is protected.
func (s *Shard) Enter() { s.dev.grace.Enter(s.ID) }

// Leave takes the shard offline: nobody waits for it any more. It reports whether going offline
// itself made work for the shard (a completion's grace has passed): then Enter again.
func (s *Shard) Leave() (again bool) {
	s.wake |= s.dev.grace.Leave(s.ID)
	return s.wake>>s.ID&1 != 0
}

// Turn is the quiescent point between two batches: it lets invalidations complete, takes frames
// that other shards handed over and notices new work requests.
func (s *Shard) Turn(now Time) {
	s.now = now
	s.wake |= s.dev.grace.Quiesce(s.ID)
	if len(s.waiting) > 0 {
		s.graceTurn()
	}
	for _, h := range s.inbound {
		if h.pending() {
			s.drain(h)
		}
	}
	if s.bells.any() {
		s.collectBells()
	}
}

// graceTurn retries completions that wait for grace; those still waiting queue up again.
func (s *Shard) graceTurn() {
	s.waiting, s.spare = s.spare[:0], s.waiting
	for _, q := range s.spare {
		q.graceQueued = false
		q.releaseRecv()
		q.retire()
	}
}

// waitGrace remembers that q's oldest completion needs the grace of epoch e. It reports true, and
// remembers nothing, if the last shard passes just now: nobody would wake this one for it.
func (s *Shard) waitGrace(q *QP, e mr.Epoch) (passed bool) {
	if s.graceHook != nil {
		s.graceHook()
	}
	if s.dev.grace.Want(s.ID, e) {
		return true
	}
	if !q.graceQueued {
		q.graceQueued = true
		s.waiting = append(s.waiting, q)
		s.C.GraceStalls++
	}
	return false
}

// Wakeups returns the set of shards (bit i = shard i) that have work because of this one.
func (s *Shard) Wakeups() uint64 {
	w := s.wake &^ (1 << s.ID)
	s.wake = 0
	return w
}

// Pending reports whether the shard can do something now without a frame or time passing: work
// requests announced, packets to send, frames handed over. Any goroutine may call Announced; only
// the holder may call Pending.
func (s *Shard) Pending() bool {
	return s.CanTransmit() || s.Announced()
}

// Announced reports work that other goroutines have left: doorbells and handed-over frames. A
// driver about to sleep announces that, then checks here once more. Any goroutine.
func (s *Shard) Announced() bool {
	if s.bells.any() {
		return true
	}
	for _, h := range s.inbound {
		if h.pending() {
			return true
		}
	}
	return false
}

// CanTransmit reports whether Transmit has something to do.
func (s *Shard) CanTransmit() bool { return !s.ready.empty() || s.canUnpark() }

// Deadline is when Expire should next be called; early is harmless. Never if nothing is armed.
func (s *Shard) Deadline() Time { return s.wheel.deadline() }

// Expire runs the timers that are due.
func (s *Shard) Expire(now Time) {
	s.now = now
	s.wheel.advance(now)
	for n := s.wheel.pop(now); n != nil; n = s.wheel.pop(now) {
		n.qp.expire(now)
	}
}

// Receive takes one frame from the wire. It is borrowed for the call.
func (s *Shard) Receive(now Time, f Frame) {
	s.now = now
	s.C.RcvdPkts++
	s.C.RcvdBytes += uint64(f.Len())
	p := &s.pkt
	if r := wire.Parse(f, p); r != wire.ReasonOK {
		s.C.Drops[r]++
		return
	}
	s.dispatch(f, p)
}

// dispatch finds the QP of a parsed packet: here, on another shard, or several of a group.
func (s *Shard) dispatch(f Frame, p *wire.Packet) {
	if p.DestQP == QPNMulti {
		s.deliverGroup(f, p, nil)
		return
	}
	q := s.dev.qps.get(p.DestQP)
	if q == nil {
		s.C.Drops[ReasonNoQP]++
		return
	}
	if p.Dst.IsMulticast() { // a group's datagrams are for QPN 0xffffff
		s.C.Drops[ReasonNoGroup]++
		return
	}
	if q.shard != s {
		s.handOver(q.shard, f, q.qpn)
		return
	}
	q.receive(p)
}

// handOver copies a frame to the shard that owns its QP. A full ring drops it, as a wire would.
func (s *Shard) handOver(to *Shard, f Frame, dest QPN) {
	if !to.inbound[s.ID].push(f, dest) {
		s.C.Drops[ReasonHandoverFull]++
		return
	}
	s.C.Handovers++
	if mutant.ShardHandover && mutant.Tick(8) {
		return
	}
	s.wake |= 1 << to.ID
}

// drain delivers what another shard (or our own transmit side) left for us.
func (s *Shard) drain(h *handover) {
	p := &s.pkt
	for i := 0; i < turnHandovers; i++ {
		f, dest, ok := h.front()
		if !ok {
			break
		}
		if r := wire.ParseNoICRC(f, p); r != wire.ReasonOK {
			s.C.Drops[r]++
		} else {
			p.DestQP = dest
			if q := s.dev.qps.get(dest); q != nil && q.shard == s {
				q.receive(p)
			} else {
				s.C.Drops[ReasonNoQP]++
			}
		}
		h.pop()
	}
}

// Transmit fills f with the next frame and returns its length; 0 means nothing to send now. Ready
// QPs take turns of a few packets, so that long messages do not keep others waiting.
func (s *Shard) Transmit(now Time, f Frame) int {
	s.now = now
	loops := 0
	for {
		if s.guest == nil && s.canUnpark() {
			s.unpark()
		}
		q := s.ready.front()
		if q == nil {
			return 0
		}
		q.hungry = false
		n, more := q.transmit(f)
		if q.burst++; !more || q.burst >= burstPackets {
			s.turnOver(q, more)
		}
		if n > 0 {
			s.sender = q.qpn
			s.C.SentPkts++
			s.C.SentBytes += uint64(n)
			return n
		}
		if loops++; loops >= loopBurst {
			return 0
		}
	}
}

// turnOver ends the turn of q, the front of the ready list: it has had its share, or has no more to
// send now. As long as others wait for the budget, who wants more of it queues up behind them.
func (s *Shard) turnOver(q *QP, more bool) {
	guest := s.guest == q
	if guest {
		s.guest = nil
	}
	switch {
	case more && !s.parked.empty() && !q.resp.urgent():
		s.park(q)
		more = q.resp.ackOwed
	case !more && q.hungry && guest:
		q.burst-- // this time it has sent nothing; it goes on when there is room
		s.parkFront(q)
		s.ready.remove(q)
		return
	case !more && q.hungry:
		s.park(q)
	}
	q.burst = 0
	s.ready.rotate(q, more)
}

// qpList is an intrusive list of QPs that take turns.
type qpList struct {
	head QP
	in   listID
}

// listID says by which of its links a QP is on a list; it may be on both.
type listID uint8

const (
	onReady listID = iota
	onParked
	numLists
)

// qpLink are a QP's neighbours on a list, nil if it is not on it.
type qpLink struct{ next, prev *QP }

func (l *qpList) init(in listID) {
	l.in = in
	l.head.link[in] = qpLink{&l.head, &l.head}
}

func (l *qpList) empty() bool { return l.head.link[l.in].next == &l.head }

func (l *qpList) has(q *QP) bool { return q.link[l.in].next != nil }

func (l *qpList) front() *QP {
	if q := l.head.link[l.in].next; q != &l.head {
		return q
	}
	return nil
}

// alone reports whether nobody but q is on the list.
func (l *qpList) alone(q *QP) bool { return q.link[l.in].next == q.link[l.in].prev }

// add puts q at the end, unless it is on the list already.
func (l *qpList) add(q *QP) {
	if !l.has(q) {
		l.insert(q, l.head.link[l.in].prev)
	}
}

// addFront puts q, which is not on the list, at its beginning.
func (l *qpList) addFront(q *QP) { l.insert(q, &l.head) }

func (l *qpList) insert(q, prev *QP) {
	next := prev.link[l.in].next
	q.link[l.in] = qpLink{next, prev}
	prev.link[l.in].next, next.link[l.in].prev = q, q
}

func (l *qpList) remove(q *QP) {
	k := &q.link[l.in]
	if k.next == nil {
		return
	}
	k.prev.link[l.in].next, k.next.link[l.in].prev = k.next, k.prev
	*k = qpLink{}
}

// rotate moves q to the end, or takes it out when it has nothing more to send.
func (l *qpList) rotate(q *QP, more bool) {
	l.remove(q)
	if more {
		l.add(q)
	}
}

// wantSend puts q on the ready list.
func (s *Shard) wantSend(q *QP) { s.ready.add(q) }

// doorbells is how posters announce work without a lock: one bit per QP slot, one bit per word of
// those above it.
type doorbells struct {
	words   []atomic.Uint64
	summary []atomic.Uint64
	owner   []*QP // by slot; written with the shard held
	free    []uint32
	top     uint32
}

func (b *doorbells) init(maxQP int) {
	words := (maxQP + 63) / 64
	b.words = make([]atomic.Uint64, words)
	b.summary = make([]atomic.Uint64, (words+63)/64)
}

// slot gives q a bit, or false when the shard holds as many QPs as it may.
func (b *doorbells) slot(q *QP) bool {
	if n := len(b.free); n > 0 {
		q.bell = b.free[n-1]
		b.free = b.free[:n-1]
		b.owner[q.bell] = q
		return true
	}
	if int(b.top) >= len(b.words)*64 {
		return false
	}
	q.bell = b.top
	b.top++
	b.owner = append(b.owner, q)
	return true
}

func (b *doorbells) release(q *QP) {
	b.owner[q.bell] = nil
	b.free = append(b.free, q.bell)
}

func (b *doorbells) ring(slot uint32) {
	w := slot / 64
	if b.words[w].Or(1<<(slot%64))&(1<<(slot%64)) != 0 {
		return // already rung and not yet answered
	}
	b.summary[w/64].Or(1 << (w % 64))
}

func (b *doorbells) any() bool {
	for i := range b.summary {
		if b.summary[i].Load() != 0 {
			return true
		}
	}
	return false
}

// collectBells puts every QP whose bell rang on the ready list.
func (s *Shard) collectBells() {
	b := &s.bells
	for i := range b.summary {
		if b.summary[i].Load() == 0 {
			continue
		}
		for sum := b.summary[i].Swap(0); sum != 0; sum &= sum - 1 {
			w := i*64 + bits.TrailingZeros64(sum)
			for set := b.words[w].Swap(0); set != 0; set &= set - 1 {
				if slot := w*64 + bits.TrailingZeros64(set); slot < len(b.owner) {
					if q := b.owner[slot]; q != nil && !(mutant.ShardBell && mutant.Tick(64)) {
						q.belled()
					}
				}
			}
		}
	}
}

// check is the key check of the packet path. A fault is counted by its cause; the packet or work
// request that met it is counted by whoever refuses it.
func (s *Shard) check(key mr.Key, pd mr.PD, qpn QPN, need mr.Access, va, n uint64) (*mr.View, mr.Fault) {
	v, f := s.dev.keys.Check(key, pd, uint32(qpn), need, va, n)
	if f != mr.FaultNone {
		s.C.KeyFaults[f]++
	}
	return v, f
}
