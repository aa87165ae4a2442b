package xdp

import "sync/atomic"

// desc is an entry of the RX and TX rings, as the kernel lays it out (struct xdp_desc).
type desc struct {
	addr    uint64 // offset in the UMEM
	len     uint32 // bytes
	options uint32
}

// optContd marks every part of a frame but the last (XDP_PKT_CONTD).
const optContd = 1

// flagNeedWakeup is set in a ring's flags while its other side sleeps (XDP_RING_NEED_WAKEUP).
const flagNeedWakeup = 1

// ring is the memory both sides share: two free-running 32-bit indices, a flag word, and entries.
// An index moves on by one for each entry and wraps at 2^32; entry i lives at i&mask. What one
// side writes into entries becomes visible with the release store of its index and the other
// side's acquire load, on every architecture; sync/atomic gives both.
type ring[T any] struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32
	entries  []T // length is a power of two
	mask     uint32
}

// producer is our end of a ring that we write: fill and TX. It keeps private copies of both indices
// and touches the shared ones once a batch.
type producer[T any] struct {
	ring[T]
	next      uint32 // index of the next entry to write
	published uint32 // what the other side may read up to
	seen      uint32 // the consumer index when last read
}

// newProducer takes the ring over at the index it stands at.
func newProducer[T any](r ring[T]) producer[T] {
	at := r.producer.Load()
	return producer[T]{ring: r, next: at, published: at, seen: r.consumer.Load()}
}

// room returns how many entries can be put, reading the shared index only if the private copy shows
// fewer than want.
func (p *producer[T]) room(want uint32) uint32 {
	size := uint32(len(p.entries))
	n := size - (p.next - p.seen)
	if n < want {
		p.seen = p.consumer.Load()
		n = size - (p.next - p.seen)
	}
	return n
}

// put writes the next entry. The caller knows that there is room.
func (p *producer[T]) put(v T) {
	p.entries[p.next&p.mask] = v
	p.next++
}

// publish shows all entries put so far to the other side.
func (p *producer[T]) publish() {
	p.published = p.next
	p.producer.Store(p.next)
}

// drained says whether the other side has taken every published entry.
func (p *producer[T]) drained() bool {
	p.seen = p.consumer.Load()
	return p.seen == p.published
}

// needWakeup says whether the kernel asks for a system call after publish. The store in publish is
// sequentially consistent, so the load here cannot pass it.
func (p *producer[T]) needWakeup() bool { return p.flags.Load()&flagNeedWakeup != 0 }

// consumer is our end of a ring that we read: RX and completion.
type consumer[T any] struct {
	ring[T]
	next uint32 // index of the next entry to read
	seen uint32 // the producer index when last read
}

// newConsumer takes the ring over at the index it stands at.
func newConsumer[T any](r ring[T]) consumer[T] {
	return consumer[T]{ring: r, next: r.consumer.Load(), seen: r.producer.Load()}
}

// ready returns how many entries can be read, reading the shared index only if the private copy
// shows fewer than want.
func (c *consumer[T]) ready(want uint32) uint32 {
	n := c.seen - c.next
	if n < want {
		c.seen = c.producer.Load()
		n = c.seen - c.next
	}
	return n
}

// release gives entries up to index end back to the other side.
func (c *consumer[T]) release(end uint32) {
	c.next = end
	c.consumer.Store(end)
}

// heapRing is a ring in ordinary memory that starts at index at. A closed Socket stands on empty
// ones, so that it touches no unmapped memory; tests run on them, as the race detector sees
// nothing else.
func heapRing[T any](size int, at uint32) ring[T] {
	r := ring[T]{
		producer: new(atomic.Uint32),
		consumer: new(atomic.Uint32),
		flags:    new(atomic.Uint32),
		entries:  make([]T, size),
		mask:     uint32(size - 1),
	}
	r.producer.Store(at)
	r.consumer.Store(at)
	return r
}
