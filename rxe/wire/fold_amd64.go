package wire

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// hash/crc32 folds a long run in one chain, whose links wait for each other, and leaves what is behind
// a multiple of 16 bytes to tables. foldVector has four chains, takes runs of any length, and half
// the time for a payload of 4 KiB in two pieces. It is the same as what fold.go does without it;
// TestFold compares the two.

// foldMin is the shortest run for foldVector.
const foldMin = 48

// hasFold reports whether the processor has the carry-less multiplication of 512 bits, and loads and
// shifts bytes of vectors under a mask.
var hasFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasAVX512BW &&
	cpu.X86.HasAVX512VBMI2 && cpu.X86.HasBMI2

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
// at p. n modulo 64 must not be 1, 2 or 3, nor n be 0. k is foldBy.
//
//go:noescape
func foldVector(s uint32, p *byte, n int, k *[24]uint64) (lo, hi uint64)

// fold runs the register over b, if the processor does that fast, and returns the rest.
func fold(s uint32, b []byte) (uint32, []byte) {
	if len(b) < foldMin || !hasFold {
		return s, b
	}
	for r := len(b) & 63; r != 0 && r < 4; r-- {
		s, b = s>>8^dist[0][byte(s)^b[0]], b[1:]
	}
	lo, hi := foldVector(s, &b[0], len(b), &foldBy)
	return step16(0, lo, hi), nil
}
