package cm

import (
	"container/heap"
	"time"
)

// Time is a point on the driver's monotonic clock in nanoseconds; its origin is the driver's
// affair.
type Time int64

// Never is a deadline that does not come.
const Never Time = 1<<63 - 1

// add returns t+d, not past Never.
func (t Time) add(d time.Duration) Time {
	if t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

// Timeout returns 4.096 µs·2ⁿ, the unit of CM's and the transport's 5-bit timeout codes.
func Timeout(code uint8) time.Duration { return 4096 * time.Nanosecond << (code & 31) }

// ackTimeout returns the local ACK timeout code for a peer's ACK delay and the packet lifetime, one
// way, all three codes. The sum delay + 2·life has no code of its own: the larger addend is taken,
// one code more if the other one is within a step of it.
func ackTimeout(delay, life uint8) uint8 {
	twice := life + 1
	large, small := max(delay, twice), min(delay, twice)
	if small+1 >= large {
		large++
	}
	return min(large, 31)
}

// timerHeap orders connections by deadline; those without one are not in it.
type timerHeap []*conn

func (h timerHeap) Len() int { return len(h) }

// Less breaks ties by age, so that the order of expiry does not depend on the heap's history.
func (h timerHeap) Less(i, j int) bool {
	if h[i].deadline != h[j].deadline {
		return h[i].deadline < h[j].deadline
	}
	return h[i].seq < h[j].seq
}

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

func (h *timerHeap) Push(x any) {
	c := x.(*conn)
	c.slot = len(*h)
	*h = append(*h, c)
}

func (h *timerHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.slot = -1
	return c
}

// arm sets c's only timer; what it means depends on c's state. Never disarms it.
func (m *Machine) arm(c *conn, at Time) {
	c.deadline = at
	switch {
	case at == Never && c.slot >= 0:
		heap.Remove(&m.timers, c.slot)
	case at == Never:
	case c.slot >= 0:
		heap.Fix(&m.timers, c.slot)
	default:
		heap.Push(&m.timers, c)
	}
}

// armAfter sets c's timer d from now.
func (m *Machine) armAfter(c *conn, d time.Duration) { m.arm(c, m.now.add(d)) }

// Deadline returns when to call Expire, or Never.
func (m *Machine) Deadline() Time {
	if len(m.timers) == 0 {
		return Never
	}
	return m.timers[0].deadline
}

// Expire runs the timers that are due at now.
func (m *Machine) Expire(now Time) {
	m.now = now
	for len(m.timers) > 0 && m.timers[0].deadline <= now {
		c := m.timers[0]
		m.arm(c, Never)
		if f := onTimer[c.state]; f != nil {
			f(m, c)
		}
	}
}
