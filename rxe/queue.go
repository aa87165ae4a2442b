package rxe

import "sync/atomic"

// Queue is a ring of fixed-size records in flat memory with one producer and one consumer. The
// memory and both indices are given from outside: heap memory in tests, shared memory between
// processes. Indices run freely modulo 2^32.
//
// A send queue is produced by the application and consumed by the QP's shard. Reading a record is
// always done once, into a private copy that is checked afterwards: the producer may be hostile.
type Queue struct {
	mem    []uint64
	prod   *atomic.Uint32
	cons   *atomic.Uint32
	stride uint32 // words per record
	mask   uint32 // slots - 1
	depth  uint32 // records it holds at most
}

// ringSlots is the power of two that holds depth records.
func ringSlots(depth uint32) uint32 {
	n := uint32(1)
	for n < depth {
		n <<= 1
	}
	return n
}

// NewQueue makes a ring of depth records of stride words on the heap.
func NewQueue(depth, stride uint32) Queue {
	n := ringSlots(depth)
	idx := new([32]atomic.Uint32) // producer and consumer on lines of their own
	return Queue{
		mem: make([]uint64, uint64(n)*uint64(stride)), prod: &idx[0], cons: &idx[16],
		stride: stride, mask: n - 1, depth: depth,
	}
}

// Depth is how many records the queue holds at most.
func (q *Queue) Depth() int { return int(q.depth) }

// Len is how many records are posted and not yet given back. Either side may call it.
func (q *Queue) Len() int { return int(q.prod.Load() - q.cons.Load()) }

// slot is the record memory of index i.
func (q *Queue) slot(i uint32) []uint64 {
	o := uint64(i&q.mask) * uint64(q.stride)
	return q.mem[o : o+uint64(q.stride) : o+uint64(q.stride)]
}

// reserve returns the producer's next record and its index, or nil when the queue is full.
func (q *Queue) reserve() ([]uint64, uint32) {
	p := q.prod.Load()
	if p-q.cons.Load() >= q.depth {
		return nil, 0
	}
	return q.slot(p), p
}

// posted is how many records after index from, which lies between the indices, the consumer may
// take. A producer index that is not within depth of the consumer, or was moved back, is a broken
// producer: nothing is taken.
func (q *Queue) posted(from uint32) uint32 {
	c := q.cons.Load()
	all, taken := q.prod.Load()-c, from-c
	if all > q.depth || taken > all {
		return 0
	}
	return all - taken
}
