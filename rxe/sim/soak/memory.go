package soak

import (
	"bytes"
	"encoding/binary"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// This file covers memory: arenas, shadows, and who may use which part of them when.

const (
	poolSize  = 1 << 16 // bytes of an arena that never change: sources of SENDs, WRITEs and READs
	poolHot   = 8 << 10
	guard     = 64 // bytes between two areas
	maxPieces = 6
	scrubbers = 8 << 10 // offsets in junk that scrubs begin at: few, for the sake of the cache
)

// piece is a run of bytes in an arena.
type piece struct{ off, n uint32 }

// vec is a message's memory, in order.
type vec struct {
	p   [maxPieces]piece
	num int
}

func (v *vec) add(off, n uint32) {
	v.p[v.num] = piece{off, n}
	v.num++
}

func one(off, n uint32) (v vec) {
	v.add(off, n)
	return v
}

func (v *vec) pieces() []piece { return v.p[:v.num] }

// sub is the part of v from off on, n bytes long.
func (v *vec) sub(off, n uint32) (s vec) {
	for _, p := range v.pieces() {
		if off >= p.n {
			off -= p.n
			continue
		}
		if n == 0 {
			break
		}
		k := min(p.n-off, n)
		s.add(p.off+off, k)
		n, off = n-k, 0
	}
	return s
}

// random bytes that arenas are filled with and scrubbed from.
var junk = func() []byte {
	r := sim.NewRand(0x726f786965)
	b := make([]byte, 1<<18)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}()

// arena is all memory of a host, and its shadow.
type arena struct {
	mem, shadow []byte
	brk         uint32
	rolling     uint32 // where the next scrub takes its bytes
	fuzzy       []piece
}

// grow adds n bytes with a guard behind them. The arena never moves: regions lie in it.
func (a *arena) grow(n uint32) (off uint32) {
	off = a.brk
	end := int(off + n + guard)
	if end > cap(a.mem) {
		panic("soak: arena is full")
	}
	for len(a.mem) < end {
		take := junk[:min(len(junk), end-len(a.mem))]
		a.mem = append(a.mem, take...)
		a.shadow = append(a.shadow, take...)
	}
	a.brk = uint32(end)
	return off
}

// blur adds n bytes whose content nobody can predict: the audit passes them over.
func (a *arena) blur(n uint32) (off uint32) {
	off = a.grow(n)
	a.fuzzy = append(a.fuzzy, piece{off, n})
	return off
}

// clean reports whether memory is what it must be.
func (a *arena) clean(off, n uint32) bool {
	return bytes.Equal(a.mem[off:off+n], a.shadow[off:off+n])
}

// dirt finds the first byte that is not.
func (a *arena) dirt(off, n uint32) (at uint32, got, want byte) {
	for i := off; i < off+n; i++ {
		if a.mem[i] != a.shadow[i] {
			return i, a.mem[i], a.shadow[i]
		}
	}
	return 0, 0, 0
}

// scrub overwrites memory as an application does that has used what it was sent.
func (a *arena) scrub(off, n uint32) {
	if n == 0 {
		return
	}
	if a.rolling += 56; a.rolling >= scrubbers {
		a.rolling %= 55
	}
	from := junk[a.rolling : a.rolling+n]
	copy(a.mem[off:], from)
	copy(a.shadow[off:], from)
}

func (a *arena) scrubAll(v *vec) {
	for _, p := range v.pieces() {
		a.scrub(p.off, p.n)
	}
}

// settle takes memory as it is for right.
func (a *arena) settle(v *vec) {
	for _, p := range v.pieces() {
		copy(a.shadow[p.off:p.off+p.n], a.mem[p.off:p.off+p.n])
	}
}

// cleanAll is clean for all of v.
func (a *arena) cleanAll(v *vec) bool {
	for _, p := range v.pieces() {
		if !a.clean(p.off, p.n) {
			return false
		}
	}
	return true
}

// audit compares everything with the shadow.
func (a *arena) audit() (at uint32, ok bool) {
	from := uint32(0)
	for _, z := range append(a.fuzzy, piece{a.brk, 0}) {
		if !a.clean(from, z.off-from) {
			at, _, _ = a.dirt(from, z.off-from)
			return at, false
		}
		from = z.off + z.n
	}
	return 0, true
}

// same reports whether n bytes of two vectors are equal.
func same(a []byte, x *vec, b []byte, y *vec, n uint32) bool {
	if x.num == 1 && y.num == 1 {
		i, j := x.p[0].off, y.p[0].off
		return bytes.Equal(a[i:i+n], b[j:j+n])
	}
	var xi, yi int
	var xo, yo uint32
	for n > 0 {
		p, q := x.p[xi], y.p[yi]
		k := min(p.n-xo, q.n-yo, n)
		if !bytes.Equal(a[p.off+xo:p.off+xo+k], b[q.off+yo:q.off+yo+k]) {
			return false
		}
		n -= k
		if xo += k; xo == p.n {
			xi, xo = xi+1, 0
		}
		if yo += k; yo == q.n {
			yi, yo = yi+1, 0
		}
	}
	return true
}

// mixed reports whether each byte of dst is what it was or what src would make it.
func mixed(dst *arena, y *vec, src []byte, x *vec, n uint32) bool {
	for i := uint32(0); i < n; i++ {
		j := y.at(i)
		if dst.mem[j] != dst.shadow[j] && (i >= x.len() || dst.mem[j] != src[x.at(i)]) {
			return false
		}
	}
	return true
}

// at is the arena offset of byte i.
func (v *vec) at(i uint32) uint32 {
	for _, p := range v.pieces() {
		if i < p.n {
			return p.off + i
		}
		i -= p.n
	}
	panic("soak: offset outside a vector")
}

func (v *vec) len() (n uint32) {
	for _, p := range v.pieces() {
		n += p.n
	}
	return n
}

// area is a part of an arena that is lent in order and comes back in order.
type area struct {
	a          *arena
	off, size  uint32
	head, tail uint64
}

func newArea(a *arena, size uint32) area { return area{a: a, off: a.grow(size), size: size} }

// take lends n bytes. ok is false when there is no room, clean when somebody has written there. until
// gives them back, and all before them.
func (r *area) take(n uint32) (off uint32, until uint64, ok, clean bool) {
	pos, skip := uint32(r.head%uint64(r.size)), uint32(0)
	if pos+n > r.size {
		skip, pos = r.size-pos, 0
	}
	if r.head+uint64(skip+n)-r.tail > uint64(r.size) {
		return 0, 0, false, true
	}
	r.head += uint64(skip + n)
	off = r.off + pos
	return off, r.head, true, r.a.clean(off, n)
}

func (r *area) free(until uint64) { r.tail = max(r.tail, until) }

// reset takes everything back.
func (r *area) reset() { r.tail = r.head }

// fixed addresses, so that frames are the same in every process.
const arenaBase = 0x7f00_0000_0000

func (h *host) addr(off uint32) uint64 { return arenaBase + uint64(off) }

// region is user memory registered through the control path.
type region struct {
	key    mr.Key
	iova   uint64
	off, n uint32
	access mr.Access
}

// register registers part of the arena at iova.
func (h *host) register(pd mr.PD, off, n uint32, iova uint64, access mr.Access) *region {
	keys := h.n.Dev.Keys()
	key, err := keys.Alloc(mr.KindUser, pd)
	h.w.must(err)
	v, err := mr.NewView(mr.Region{Key: key, PD: pd, Access: access, IOVA: iova, Length: uint64(n),
		List: mr.NewList(h.mem[off : off+n])})
	h.w.must(err)
	h.w.must(keys.Publish(v))
	return &region{key: key, iova: iova, off: off, n: n, access: access}
}
