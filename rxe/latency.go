package rxe

import "math/bits"

// This file covers how long work requests take, without cost to the packet path: a QP times one
// message at a time, with the time of the batch that is at hand anyway.

// LatencyBuckets is how many buckets a Latency has: bucket i counts times under 2^i ns, the last one
// all that are longer.
const LatencyBuckets = 40

// LatencyOp classes work requests for their latency.
type LatencyOp uint8

// The classes. Binds and registrations are not timed.
const (
	LatencySend LatencyOp = iota
	LatencyWrite
	LatencyRead
	LatencyAtomic
	LatencyOther // FLUSH, ATOMIC WRITE

	NumLatencyOps
)

var latencyOpNames = [NumLatencyOps]string{"send", "write", "read", "atomic", "other"}

// String returns the class in lower case, fit for a metric's label.
func (o LatencyOp) String() string { return latencyOpNames[o] }

// Latency is a histogram of times from a message's first packet to its completion. It is a sample:
// each QP times one message, and the next one when that has completed.
type Latency struct {
	Buckets [LatencyBuckets]uint64
	Count   uint64
	Sum     Time // ns
}

func (l *Latency) add(d Time) {
	l.Buckets[min(bits.Len64(uint64(max(d, 0))), LatencyBuckets-1)]++
	l.Count++
	l.Sum += d
}

// Latencies are those of all classes.
type Latencies [NumLatencyOps]Latency

// latencyOps is the table of classes by operation.
var latencyOps = [...]LatencyOp{
	WRSend: LatencySend, WRSendWithImm: LatencySend, WRSendWithInv: LatencySend,
	WRRDMAWrite: LatencyWrite, WRRDMAWriteWithImm: LatencyWrite, WRRDMARead: LatencyRead,
	WRAtomicCmpSwap: LatencyAtomic, WRAtomicFetchAdd: LatencyAtomic,
	WRFlush: LatencyOther, WRAtomicWrite: LatencyOther,
}

// stopwatch times one entry of a send queue.
type stopwatch struct {
	runs bool
	of   uint32 // index
	at   Time
}

// completed takes the time of the entry that was timed and retires.
func (q *QP) completed(op WROpcode) {
	w := &q.req.watch
	w.runs = false
	if int(op) < len(latencyOps) {
		q.shard.Latency[latencyOps[op]].add(q.shard.now - w.at)
	}
}
