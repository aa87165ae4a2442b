package rxe

import (
	"sync/atomic"
	"unsafe"
)

// QueueMemory is a queue's record memory, for tests that play a hostile poster.
func QueueMemory(q *Queue) []uint64 { return q.mem }

// QueueIndex is a queue's producer index, likewise.
func QueueIndex(q *Queue) *atomic.Uint32 { return q.prod }

// InFlight is what the shard's budget counts.
func InFlight(s *Shard) uint32 { return s.inFlight }

// PushCQE puts a completion into a CQ as shard s would.
func PushCQE(c *CQ, s int, e *CQE) (fired, ok bool) { return c.push(s, e, false) }

// CountersOf lists all counters in the order they stand in.
func CountersOf(c *Counters) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(c)), unsafe.Sizeof(*c)/8)
}

// FillCounters sets them to 1, 2, 3 and so on, and returns their number.
func FillCounters(c *Counters) int {
	all := CountersOf(c)
	for i := range all {
		all[i] = uint64(i + 1)
	}
	return len(all)
}

// SetNextQPN says which QP number is looked at first for the next QP.
func SetNextQPN(d *Device, n QPN) { d.qps.next = n }

// ReadsOutstanding is how many READ and atomic requests of a QP are not answered.
func ReadsOutstanding(q *QP) uint32 { return q.req.reads }

// SetGraceHook sets what runs when a completion of the shard has to wait for grace, before the shard
// says so.
func SetGraceHook(s *Shard, f func()) { s.graceHook = f }
