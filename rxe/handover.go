package rxe

import "sync/atomic"

// handover is a ring of frame copies from one shard to another, or from a shard's transmit side
// to its own receive side (loopback). One producer, one consumer; neither ever waits.
type handover struct {
	slots []handSlot
	mask  uint32
	_     [32]byte
	prod  atomic.Uint32
	_     [60]byte
	cons  atomic.Uint32
	_     [60]byte
}

type handSlot struct {
	buf  []byte // allocated at first use, as large as the first frame class that needs it
	n    int
	dest QPN
}

const handSmall = 512 // most frames of a hand-over are small or full size

func newHandover(slots uint32) *handover {
	return &handover{slots: make([]handSlot, slots), mask: slots - 1}
}

func (h *handover) pending() bool { return h.prod.Load() != h.cons.Load() }

// next is the producer's free slot with a buffer of at least n bytes, or nil.
func (h *handover) next(n int) *handSlot {
	p := h.prod.Load()
	if p-h.cons.Load() > h.mask {
		return nil
	}
	s := &h.slots[p&h.mask]
	if cap(s.buf) < n {
		size := handSmall
		for size < n {
			size *= 2
		}
		s.buf = make([]byte, size)
	}
	return s
}

// commit hands the slot that next returned to the consumer: n bytes for QP dest.
func (h *handover) commit(n int, dest QPN) {
	p := h.prod.Load()
	s := &h.slots[p&h.mask]
	s.n, s.dest = n, dest
	h.prod.Store(p + 1)
}

func (h *handover) push(f Frame, dest QPN) bool {
	s := h.next(f.Len())
	if s == nil {
		return false
	}
	n := copy(s.buf[:cap(s.buf)], f.Head)
	n += copy(s.buf[n:cap(s.buf)], f.Tail)
	h.commit(n, dest)
	return true
}

// front is the oldest frame; it stays valid until pop.
func (h *handover) front() (f Frame, dest QPN, ok bool) {
	c := h.cons.Load()
	if c == h.prod.Load() {
		return Frame{}, 0, false
	}
	s := &h.slots[c&h.mask]
	return Frame{Head: s.buf[:s.n]}, s.dest, true
}

// pop gives the slot back.
func (h *handover) pop() { h.cons.Store(h.cons.Load() + 1) }
