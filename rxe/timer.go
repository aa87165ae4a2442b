package rxe

import "math/bits"

// Time is a point on the driver's monotonic clock in nanoseconds. Its origin is the driver's
// affair; the engine only compares and adds.
type Time int64

// Never is a deadline that does not come.
const Never Time = 1<<63 - 1

const (
	tickShift  = 13 // one tick of the wheel is 8.192 µs
	wheelBits  = 6
	wheelSlots = 1 << wheelBits
	wheelDepth = 9 // all of Time: 63-13 bits
)

// timerNode is one QP's place in a wheel. The wanted deadline may be moved later without touching
// the wheel: the node is then found too early and is put back (an ACK costs one store).
type timerNode struct {
	next, prev *timerNode
	qp         *QP
	at         Time // what the owner wants; Never = disarmed
	filed      Time // where the wheel holds it
	level      int8 // -1 when not in the wheel
	slot       uint8
}

// wheel is a hierarchical timing wheel: insert, remove and advance cost the same for one timer and
// for a million. It fires no earlier than asked and at most one tick later.
type wheel struct {
	tick  int64 // all slots before this tick are empty
	used  [wheelDepth]uint64
	slots [wheelDepth][wheelSlots]timerNode // list heads
	due   timerNode                         // list head of expired nodes
	count int
}

func (w *wheel) init(now Time) {
	w.tick = int64(now) >> tickShift
	for l := range w.slots {
		for i := range w.slots[l] {
			h := &w.slots[l][i]
			h.next, h.prev = h, h
		}
	}
	w.due.next, w.due.prev = &w.due, &w.due
}

// set moves n's deadline. Later deadlines are lazy; earlier ones refile the node.
func (w *wheel) set(n *timerNode, at Time) {
	n.at = at
	if n.level >= 0 {
		if at >= n.filed {
			return
		}
		w.unlink(n)
	}
	if at != Never {
		w.file(n)
	}
}

// clear disarms n; the wheel drops it when it comes across it.
func (w *wheel) clear(n *timerNode) { n.at = Never }

// remove takes n out at once, for objects that go away.
func (w *wheel) remove(n *timerNode) {
	n.at = Never
	if n.level >= 0 {
		w.unlink(n)
	}
}

func (w *wheel) unlink(n *timerNode) {
	n.prev.next, n.next.prev = n.next, n.prev
	if n.level < wheelDepth {
		h := &w.slots[n.level][n.slot]
		if h.next == h {
			w.used[n.level] &^= 1 << n.slot
		}
	}
	n.next, n.prev, n.level = nil, nil, -1
	w.count--
}

// file puts n into the slot of its deadline, rounded up to a tick.
func (w *wheel) file(n *timerNode) {
	n.filed = n.at
	tick := int64(n.at>>tickShift) + 1
	if n.at > Never-(1<<(tickShift+1)) {
		tick = int64(Never >> tickShift)
	}
	var h *timerNode
	if tick <= w.tick {
		h, n.level, n.slot = &w.due, wheelDepth, 0
	} else {
		level := (bits.Len64(uint64(tick^w.tick)) - 1) / wheelBits
		slot := uint8(tick >> (wheelBits * level) & (wheelSlots - 1))
		h, n.level, n.slot = &w.slots[level][slot], int8(level), slot
		w.used[level] |= 1 << slot
	}
	n.prev, n.next = h.prev, h
	h.prev.next, h.prev = n, n
	w.count++
}

// advance moves the wheel to now: whatever may be due is collected for pop.
func (w *wheel) advance(now Time) {
	to := int64(now) >> tickShift
	for w.tick < to {
		if w.count == 0 {
			w.tick = to
			return
		}
		next, level := w.nextSlot()
		if next > to {
			w.tick = to
			return
		}
		w.tick = next
		h := &w.slots[level][next>>(wheelBits*level)&(wheelSlots-1)]
		w.used[level] &^= 1 << uint8(next>>(wheelBits*level)&(wheelSlots-1))
		for h.next != h {
			n := h.next
			n.prev.next, n.next.prev = n.next, n.prev
			n.level = -1
			w.count--
			w.refile(n)
		}
	}
}

// refile puts a node that left its slot where it now belongs: a lower level, the due list, or
// nowhere if it was disarmed meanwhile.
func (w *wheel) refile(n *timerNode) {
	if n.at == Never {
		n.next, n.prev = nil, nil
		return
	}
	w.file(n)
}

// nextSlot finds the earliest occupied slot: the tick at which it begins. It lies after the current
// tick, because a node is filed by the highest digit in which the two differ.
func (w *wheel) nextSlot() (tick int64, level int) {
	best := int64(1<<63 - 1)
	for l := 0; l < wheelDepth; l++ {
		if w.used[l] == 0 {
			continue
		}
		shift := wheelBits * l
		cur := w.tick >> shift
		pos := uint(cur) & (wheelSlots - 1)
		rest := bits.RotateLeft64(w.used[l], -int(pos))
		ahead := int64(bits.TrailingZeros64(rest))
		if t := (cur + ahead) << shift; t < best {
			best, level = t, l
		}
	}
	return best, level
}

// pop returns a node whose deadline has passed, or nil. The node is out of the wheel. Time does not
// go back: a now before what advance has seen counts as that.
func (w *wheel) pop(now Time) *timerNode {
	now = max(now, Time(w.tick<<tickShift))
	for w.due.next != &w.due {
		n := w.due.next
		w.unlink(n)
		if n.at == Never {
			continue
		}
		if n.at > now {
			w.file(n)
			continue
		}
		n.at = Never
		return n
	}
	return nil
}

// deadline is when advance should next be called. It may be early, never late.
func (w *wheel) deadline() Time {
	if w.due.next != &w.due {
		return Time(w.tick << tickShift)
	}
	if w.count == 0 {
		return Never
	}
	tick, _ := w.nextSlot()
	if tick >= int64(Never>>tickShift) {
		return Never
	}
	return Time(tick << tickShift)
}

// AckTimeout is the retransmission time for the 5-bit local ACK timeout attribute: 4.096 µs × 2^n,
// or Never for 0 (IBTA 9.7.6.1.3).
func AckTimeout(exp uint8) Time {
	if exp == 0 {
		return Never
	}
	return Time(4096) << (exp & 31)
}
