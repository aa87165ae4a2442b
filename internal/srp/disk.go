package srp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
)

// rng is SplitMix64.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in 0..n-1.
func (r *rng) below(n int) int { return int(r.next() % uint64(n)) }

// area is a stretch of a disk that belongs to a load, and what each of its blocks must hold. A
// block says of itself which it is, and the how manieth that was written there:
//
//	0 magic 8 │ 8 block address │ 16 seed of the run │ 24 generation │ 32 what follows from these
type area struct {
	first uint64 // block
	block int    // bytes
	seed  uint64

	mu    sync.Mutex
	gens  []uint32 // 0: never written
	busy  []span
	freed chan struct{} // closed when a span has become free
}

// span is a range of blocks, counted from the area's first.
type span struct{ at, n int }

const (
	blockHeader = 32
	minBlock    = 512
)

var magic = []byte("roxieSRP")

func newArea(first uint64, blocks, blockSize int, seed uint64) *area {
	return &area{first: first, block: blockSize, seed: seed, gens: make([]uint32, blocks),
		freed: make(chan struct{})}
}

// claim finds blocks that nobody works on, at most n. It reports false, and a channel that tells of
// others, if that is not to be had at once.
func (a *area) claim(r *rng, n int) (s span, ok bool, freed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n = min(n, len(a.gens))
	for range 16 {
		s = span{r.below(len(a.gens) - n + 1), n}
		if !a.taken(s) {
			a.busy = append(a.busy, s)
			return s, true, nil
		}
	}
	return s, false, a.freed
}

func (a *area) taken(s span) bool {
	for _, b := range a.busy {
		if s.at < b.at+b.n && b.at < s.at+s.n {
			return true
		}
	}
	return false
}

// release ends a claim.
func (a *area) release(s span) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.busy {
		if a.busy[i] == s {
			a.busy[i] = a.busy[len(a.busy)-1]
			a.busy = a.busy[:len(a.busy)-1]
			break
		}
	}
	close(a.freed)
	a.freed = make(chan struct{})
}

// render writes to b what the blocks of a span hold that is its caller's; ahead: of the next
// generation.
func (a *area) render(b []byte, s span, ahead uint32) {
	for i := range s.n {
		block := b[i*a.block:][:a.block]
		gen := a.gens[s.at+i] + ahead
		if gen == 0 {
			clear(block)
			continue
		}
		a.renderBlock(block, a.first+uint64(s.at+i), gen)
	}
}

func (a *area) renderBlock(b []byte, lba uint64, gen uint32) {
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint64(b[8:], lba)
	le.PutUint64(b[16:], a.seed)
	le.PutUint64(b[24:], uint64(gen))
	r := rng(a.seed ^ lba<<24 ^ uint64(gen))
	for at := blockHeader; at < len(b); at += 8 {
		le.PutUint64(b[at:], r.next())
	}
}

// wrote notes that a span that is its caller's has been written.
func (a *area) wrote(s span) {
	for i := range s.n {
		a.gens[s.at+i]++
	}
}

// compare compares what was read of a span with what it must hold. want is memory to work in.
func (a *area) compare(got, want []byte, s span) error {
	a.render(want, s, 0)
	if bytes.Equal(got, want[:len(got)]) {
		return nil
	}
	for i := range s.n {
		g, w := got[i*a.block:][:a.block], want[i*a.block:][:a.block]
		if !bytes.Equal(g, w) {
			return fmt.Errorf("block %d differs: %s, wanted generation %d", a.first+uint64(s.at+i),
				a.describe(g, w), a.gens[s.at+i])
		}
	}
	return nil
}

// describe says what a wrong block holds.
func (a *area) describe(got, want []byte) string {
	at := 0
	for got[at] == want[at] {
		at++
	}
	le := binary.LittleEndian
	switch {
	case !bytes.HasPrefix(got, magic):
		return fmt.Sprintf("it begins with %.16x", got)
	case le.Uint64(got[8:]) != le.Uint64(want[8:]):
		return fmt.Sprintf("it is block %d", le.Uint64(got[8:]))
	case le.Uint64(got[16:]) != a.seed:
		return "it is of another run"
	case le.Uint64(got[24:]) != le.Uint64(want[24:]):
		return fmt.Sprintf("it is of generation %d", le.Uint64(got[24:]))
	}
	return fmt.Sprintf("byte %d is %#02x, not %#02x", at, got[at], want[at])
}

// foreign reports whether blocks hold what may be somebody's: neither zeros nor a run's blocks.
func (a *area) foreign(b []byte, s span) (lba uint64, yes bool) {
	for i := range s.n {
		g := b[i*a.block:][:a.block]
		lba = a.first + uint64(s.at+i)
		ours := bytes.HasPrefix(g, magic) && binary.LittleEndian.Uint64(g[8:]) == lba
		if !ours && len(bytes.TrimLeft(g, "\x00")) > 0 {
			return lba, true
		}
	}
	return 0, false
}
