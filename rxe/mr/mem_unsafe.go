package mr

import (
	"sync/atomic"
	"unsafe"
)

// This file is the only one with unsafe: addresses of memory, atomics on plain bytes, and one array
// index. An aligned word never leaves the page, nor the heap block, of a byte inside it.

// at returns the entry of an index, of which the lower bits count. Indexing the array would load its
// first byte as well, to find a nil chunk, of which there is none: one more cache line for every
// check, and one that others write, for it holds the entries 0 to 7.
func (c *chunk) at(index uint32) *atomic.Pointer[View] {
	const size = unsafe.Sizeof(c[0])
	return (*atomic.Pointer[View])(unsafe.Add(unsafe.Pointer(c), uintptr(index%chunkLen)*size))
}

// AddrOf returns the virtual address of b's first byte, the natural IOVA of a region; 0 for an
// empty slice without memory.
func AddrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// LoadFlag reads one byte with acquire semantics: if it sees the last byte of an inbound WRITE, all
// bytes of that WRITE are visible to the caller. It reads the aligned 8-byte word around p, so that
// the race detector, which knows words only, takes plain writes to p's neighbours for races.
//
// The checks of -race want a word inside the object; here it may reach into the rest of its block.
//
//go:nocheckptr
func LoadFlag(p *byte) byte {
	lane := uintptr(unsafe.Pointer(p)) & 7
	word := atomic.LoadUint64((*uint64)(unsafe.Add(unsafe.Pointer(p), -int(lane))))
	return (*[8]byte)(unsafe.Pointer(&word))[lane]
}

// copyLast copies src to dst (same length, not 0) so that the last byte becomes visible last, with
// the bytes of src in the aligned 8-byte word around it; others in that word keep their value.
//
//go:nocheckptr
func copyLast(dst, src []byte) {
	last := unsafe.Pointer(&dst[len(dst)-1])
	lane := int(uintptr(last) & 7) // place of the last byte in its word
	ours := min(lane+1, len(src))  // bytes of that word that src brings
	rest := len(src) - ours
	copy(dst[:rest], src[:rest])
	word := (*uint64)(unsafe.Add(last, -lane))
	if ours == 8 {
		atomic.StoreUint64(word, toHost([8]byte(src[rest:])))
		return
	}
	for {
		old := atomic.LoadUint64(word)
		with := old
		copy((*[8]byte)(unsafe.Pointer(&with))[lane+1-ours:lane+1], src[rest:])
		if atomic.CompareAndSwapUint64(word, old, with) {
			return
		}
	}
}

// wordOf returns the 8 bytes at b as an atomic word, or nil if they are not aligned in memory.
func wordOf(b []byte) *uint64 {
	p := unsafe.Pointer((*[8]byte)(b))
	if uintptr(p)&7 != 0 {
		return nil
	}
	return (*uint64)(p)
}

// toHost and fromHost turn 8 bytes into a number in the host's byte order and back.
func toHost(b [8]byte) uint64   { return *(*uint64)(unsafe.Pointer(&b)) }
func fromHost(v uint64) [8]byte { return *(*[8]byte)(unsafe.Pointer(&v)) }
