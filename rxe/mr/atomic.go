package mr

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// This file covers the 8-byte atomics of a peer: ATOMIC FETCH ADD, COMPARE SWAP and ATOMIC WRITE.

// The locks of all remote atomics of the process, chosen by the address of the aligned words an
// operation touches. Regions may overlap in memory, and lists may cut a word in two, so that the
// processor's own atomics alone would not exclude an operation on an address that is not aligned.
var wordLocks [64]struct {
	sync.Mutex
	_ [56]byte
}

// words is a set of locks.
type words uint64

func wordAt(b []byte) words { return 1 << (AddrOf(b) >> 3 % uint64(len(wordLocks))) }

// lock takes the locks in ascending order, so that two sets cannot wait for each other.
func (w words) lock() {
	for ; w != 0; w &= w - 1 {
		wordLocks[bits.TrailingZeros64(uint64(w))].Lock()
	}
}

func (w words) unlock() {
	for ; w != 0; w &= w - 1 {
		wordLocks[bits.TrailingZeros64(uint64(w))].Unlock()
	}
}

// word returns the 8 bytes at off as an aligned word with its lock, or nil with all the locks
// that the scattered bytes need. The 8 bytes are inside the list.
func (l *List) word(off uint64) (*uint64, words) {
	seg, at := l.locate(off)
	if s := l.segs[seg][at:]; len(s) >= 8 {
		if p := wordOf(s); p != nil {
			return p, wordAt(s)
		}
	}
	var set words
	for i := uint64(0); i < 8; i++ {
		seg, at := l.locate(off + i)
		set |= wordAt(l.segs[seg][at:])
	}
	return nil, set
}

// FetchAdd adds to the 8 bytes at off, in host byte order, and returns what was there. ok is false,
// and nothing touched, if they are not inside the list or mapped memory does not have them. The operation is atomic with all others
// of this file on overlapping bytes of any list, and with sync/atomic when the bytes are aligned
// to 8 in memory.
func (l *List) FetchAdd(off, add uint64) (old uint64, ok bool) {
	if !l.holds(off, 8) {
		return 0, false
	}
	p, set := l.word(off)
	set.lock()
	if l.mapped {
		old, ok = l.tryFetchAdd(p, off, add)
	} else {
		old, ok = l.fetchAdd(p, off, add), true
	}
	set.unlock()
	return old, ok
}

// fetchAdd works on the aligned word p, or on scattered bytes at off. Their locks are held.
func (l *List) fetchAdd(p *uint64, off, add uint64) (old uint64) {
	if p != nil {
		return atomic.AddUint64(p, add) - add
	}
	old = l.load(off)
	l.store(off, old+add)
	return old
}

// CmpSwap stores swap in the 8 bytes at off if they equal cmp, and returns what was there. Byte
// order, ok and atomicity are those of FetchAdd.
func (l *List) CmpSwap(off, cmp, swap uint64) (old uint64, ok bool) {
	if !l.holds(off, 8) {
		return 0, false
	}
	p, set := l.word(off)
	set.lock()
	if l.mapped {
		old, ok = l.tryCmpSwap(p, off, cmp, swap)
	} else {
		old, ok = l.cmpSwap(p, off, cmp, swap), true
	}
	set.unlock()
	return old, ok
}

func (l *List) cmpSwap(p *uint64, off, cmp, swap uint64) (old uint64) {
	if p != nil {
		for old = atomic.LoadUint64(p); old == cmp; old = atomic.LoadUint64(p) {
			if atomic.CompareAndSwapUint64(p, cmp, swap) {
				break
			}
		}
	} else if old = l.load(off); old == cmp {
		l.store(off, swap)
	}
	return old
}

// Store8 stores v in the 8 bytes at off: ATOMIC WRITE. Byte order, ok and atomicity are those of
// FetchAdd.
func (l *List) Store8(off, v uint64) (ok bool) {
	if !l.holds(off, 8) {
		return false
	}
	p, set := l.word(off)
	set.lock()
	if l.mapped {
		ok = l.tryStore8(p, off, v)
	} else {
		ok = l.store8(p, off, v)
	}
	set.unlock()
	return ok
}

func (l *List) store8(p *uint64, off, v uint64) bool {
	if p != nil {
		atomic.StoreUint64(p, v)
	} else {
		l.store(off, v)
	}
	return true
}

func (l *List) load(off uint64) uint64 {
	var b [8]byte
	l.copyOut(off, b[:])
	return toHost(b)
}

func (l *List) store(off, v uint64) {
	b := fromHost(v)
	l.copyIn(off, b[:])
}
