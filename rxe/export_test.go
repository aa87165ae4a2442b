package rxe

import "sync/atomic"

// QueueMemory is a queue's record memory, for tests that play a hostile poster.
func QueueMemory(q *Queue) []uint64 { return q.mem }

// QueueIndex is a queue's producer index, likewise.
func QueueIndex(q *Queue) *atomic.Uint32 { return q.prod }

// InFlight is what the shard's budget counts.
func InFlight(s *Shard) uint32 { return s.inFlight }

// PushCQE puts a completion into a CQ as shard s would.
func PushCQE(c *CQ, s int, e *CQE) (fired, ok bool) { return c.push(s, e, false) }
