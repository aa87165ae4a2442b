package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math/bits"

	"github.com/roxie-rdma/roxie/rxe"
)

// Trace is a digest of everything that happens on a fabric: two runs with equal digests have sent
// the same frames at the same times. A frame enters by a 64-bit hash over all its bytes.
type Trace struct {
	sum hash.Hash
	buf [4096]byte
	n   int
}

// NewTrace starts a digest.
func NewTrace() *Trace { return &Trace{sum: sha256.New()} }

// Note adds three words: a completion, an event, anything that must be the same next time.
func (t *Trace) Note(a, b, c uint64) {
	if t.n+24 > len(t.buf) {
		t.flush()
	}
	p := t.buf[t.n : t.n+24]
	binary.LittleEndian.PutUint64(p, a)
	binary.LittleEndian.PutUint64(p[8:], b)
	binary.LittleEndian.PutUint64(p[16:], c)
	t.n += 24
}

// Frame adds a frame and the time at which node number from sent it.
func (t *Trace) Frame(now rxe.Time, from int, b []byte) {
	t.Note(uint64(now), uint64(from)<<32|uint64(len(b)), hash64(b))
}

func (t *Trace) flush() {
	t.sum.Write(t.buf[:t.n])
	t.n = 0
}

// Sum returns the digest so far.
func (t *Trace) Sum() (d [sha256.Size]byte) {
	t.flush()
	t.sum.Sum(d[:0])
	return d
}

// hash64 mixes all bytes of b, four words at a time in two chains.
func hash64(b []byte) uint64 {
	const k0, k1, k2, k3 = 0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3
	x, y := uint64(len(b))^k0, uint64(k1)
	for ; len(b) >= 32; b = b[32:] {
		le := binary.LittleEndian
		x = mix(le.Uint64(b)^k1^x, le.Uint64(b[8:])^k2)
		y = mix(le.Uint64(b[16:])^k3^y, le.Uint64(b[24:])^k0)
	}
	for ; len(b) >= 8; b = b[8:] {
		x = mix(binary.LittleEndian.Uint64(b)^k2^x, k3)
	}
	var last [8]byte
	copy(last[:], b)
	return mix(x^binary.LittleEndian.Uint64(last[:]), y^k2)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
