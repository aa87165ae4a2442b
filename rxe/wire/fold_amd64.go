package wire

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// hash/crc32 folds a long run in one chain, whose links wait for each other. foldVector has four
// chains, and takes a third of the time for a payload of 4 KiB. It is the same as what fold.go does
// without it; TestFold compares the two.

// foldMin is the shortest run for foldVector.
const foldMin = 256

// hasFold reports whether the processor has the carry-less multiplication of 512 bits.
var hasFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// foldBy are the multipliers of foldVector for the distances 256 bytes, 64 bytes, and, one for each
// 16 bytes of a vector, those to its last 16 bytes, which are not moved themselves.
var foldBy = func() (k [24]uint64) {
	for lane := range 4 {
		putFold(k[2*lane:], 8*256)
		putFold(k[8+2*lane:], 8*64)
	}
	for lane := range 3 {
		putFold(k[16+2*lane:], 128*(3-lane))
	}
	return k
}()

// putFold stores what moves 16 bytes by a number of bits: for the first 8 bytes and for the others.
// A product of two reflected polynomials comes out one bit too low, hence the shift.
func putFold(k []uint64, bits int) {
	k[0] = uint64(powerOfX(bits+32)) << 1
	k[1] = uint64(powerOfX(bits-32)) << 1
}

// powerOfX returns x to the power n, modulo the polynomial, in the bit order of the register.
func powerOfX(n int) uint32 {
	r := uint32(1) << 31
	for range n {
		r = r>>1 ^ crc32.IEEE&-(r&1)
	}
	return r
}

// foldVector returns 16 bytes over which a register of zero becomes what s becomes over the n bytes
// at p. n must be at least foldMin; bytes behind a multiple of 64 are left out. k is foldBy.
//
//go:noescape
func foldVector(s uint32, p *byte, n int, k *[24]uint64) (lo, hi uint64)

// fold runs the register over b, as far as the processor does that fast, and returns the rest.
func fold(s uint32, b []byte) (uint32, []byte) {
	if len(b) < foldMin || !hasFold {
		return s, b
	}
	lo, hi := foldVector(s, &b[0], len(b), &foldBy)
	return step16(0, lo, hi), b[len(b)&^63:]
}
