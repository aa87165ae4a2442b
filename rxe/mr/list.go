package mr

import "sort"

// This file covers the last step of every access: from an offset in a region to its bytes.

// List is a DMA list: the memory segments behind a region, addressed by the offset from its first
// byte. It is immutable once a view shows it, and it keeps the memory alive. All methods may be
// called from any goroutine; none allocates, and none but the 8-byte atomics locks. Two accesses
// to the same bytes are ordered by nothing but the atomics of this file: what DMA hardware gives.
type List struct {
	head []byte // the first segment, here to save a load when it is the only one
	n    uint64
	page uint64 // not 0: every segment but the first and the last has this length
	segs [][]byte
	ends []uint64 // offset of each segment's end, for lists of uneven segments

	mapped bool // a file's memory: touching it may fail, see mapped.go
}

// NewList makes a list over segs in this order. Empty segments are left out. The list keeps the
// slices' memory, not segs itself.
func NewList(segs ...[]byte) *List {
	l := new(List)
	l.Reset(segs)
	return l
}

// Reset makes l a list over segs, reusing l's storage. Only for a list that nobody else can see:
// not yet published, or replaced and past its grace.
func (l *List) Reset(segs [][]byte) {
	clear(l.segs[:cap(l.segs)])
	l.segs, l.ends, l.head, l.n, l.page = l.segs[:0], l.ends[:0], nil, 0, 0
	l.mapped = false
	for _, s := range segs {
		if len(s) > 0 {
			l.segs = append(l.segs, s[:len(s):len(s)])
			l.n += uint64(len(s))
		}
	}
	if len(l.segs) == 0 {
		return
	}
	l.head = l.segs[0]
	if l.page = pageOf(l.segs); l.page != 0 {
		return
	}
	var end uint64
	for _, s := range l.segs {
		end += uint64(len(s))
		l.ends = append(l.ends, end)
	}
}

// pageOf returns the length that all segments but the first and the last share, and that these
// two do not exceed; 0 if there is none.
func pageOf(segs [][]byte) uint64 {
	last := len(segs) - 1
	if last < 2 {
		return uint64(max(len(segs[0]), len(segs[last])))
	}
	page := len(segs[1])
	for _, s := range segs[1:last] {
		if len(s) != page {
			return 0
		}
	}
	if len(segs[0]) > page || len(segs[last]) > page {
		return 0
	}
	return uint64(page)
}

// Len returns the number of bytes.
func (l *List) Len() uint64 { return l.n }

// NumSegs returns the number of segments.
func (l *List) NumSegs() int { return len(l.segs) }

// holds reports whether n bytes from off on are inside the list.
func (l *List) holds(off, n uint64) bool { return off <= l.n && n <= l.n-off }

// locate returns the segment that holds byte off (below l.n) and the byte's place in it.
func (l *List) locate(off uint64) (seg int, at uint64) {
	head := uint64(len(l.head))
	if off < head {
		return 0, off
	}
	if l.page != 0 {
		off -= head
		return int(off/l.page) + 1, off % l.page
	}
	seg = sort.Search(len(l.ends), func(i int) bool { return off < l.ends[i] })
	return seg, off - l.ends[seg-1]
}

// CopyIn copies src to the bytes from off on. It returns false and touches nothing if they are not
// all inside the list; and false, whatever it has touched, if mapped memory does not take them.
func (l *List) CopyIn(off uint64, src []byte) bool {
	if !l.holds(off, uint64(len(src))) {
		return false
	}
	if l.mapped {
		return l.tryCopyIn(off, src)
	}
	return l.copyIn(off, src)
}

func (l *List) copyIn(off uint64, src []byte) bool {
	if len(l.segs) == 1 {
		copy(l.head[off:], src)
		return true
	}
	if len(src) == 0 {
		return true
	}
	seg, at := l.locate(off)
	for {
		n := copy(l.segs[seg][at:], src)
		if src = src[n:]; len(src) == 0 {
			return true
		}
		seg, at = seg+1, 0
	}
}

// CopyOut fills dst with the bytes from off on. It returns false and touches nothing if they are
// not all inside the list; and false if mapped memory does not give them.
func (l *List) CopyOut(off uint64, dst []byte) bool {
	if !l.holds(off, uint64(len(dst))) {
		return false
	}
	if l.mapped {
		return l.tryCopyOut(off, dst)
	}
	return l.copyOut(off, dst)
}

func (l *List) copyOut(off uint64, dst []byte) bool {
	if len(l.segs) == 1 {
		copy(dst, l.head[off:])
		return true
	}
	if len(dst) == 0 {
		return true
	}
	seg, at := l.locate(off)
	for {
		n := copy(dst, l.segs[seg][at:])
		if dst = dst[n:]; len(dst) == 0 {
			return true
		}
		seg, at = seg+1, 0
	}
}

// CopyInLast is CopyIn for the last packet of a WRITE: whoever sees the very last byte through
// LoadFlag also sees all bytes before it. What src brings of the aligned 8-byte word around the
// last byte is stored atomically and last; neighbours in that word keep their value.
func (l *List) CopyInLast(off uint64, src []byte) bool {
	if !l.holds(off, uint64(len(src))) {
		return false
	}
	if len(src) == 0 {
		return true
	}
	if l.mapped {
		return l.tryCopyInLast(off, src)
	}
	return l.copyInLast(off, src)
}

func (l *List) copyInLast(off uint64, src []byte) bool {
	seg, at := l.locate(off + uint64(len(src)) - 1)
	dst := l.segs[seg][:at+1] // ends with the last byte
	if n := len(src) - len(dst); n > 0 {
		l.copyIn(off, src[:n])
		src = src[n:]
	}
	copyLast(dst[len(dst)-len(src):], src)
	return true
}
