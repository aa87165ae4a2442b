package sim

import "math/bits"

// Rand is a small deterministic generator (SplitMix64). The zero value is a valid seed.
type Rand struct{ s uint64 }

// NewRand starts a generator.
func NewRand(seed uint64) *Rand { return &Rand{s: seed} }

// Uint64 returns the next 64 random bits.
func (r *Rand) Uint64() uint64 {
	r.s += 0x9e3779b97f4a7c15
	z := r.s
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Intn returns a number in 0..n-1; n is at least 1.
func (r *Rand) Intn(n int) int {
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(hi)
}

// Chance is true with probability p.
func (r *Rand) Chance(p float64) bool {
	return p > 0 && float64(r.Uint64()>>11)/(1<<53) < p
}
