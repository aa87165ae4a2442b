package perf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
)

// The pattern is random bytes, the same on both ends, with a count in each eighth one. A message is
// the stretch from shift(n); stretches of neighbouring messages and of neighbouring laps start at
// different counts, so that even messages of one byte differ.
const (
	shiftStep    = 8
	patternSteps = 4093 // prime: no ring size is a multiple of it
	patternSlack = shiftStep * patternSteps
)

// fillPattern writes the pattern. Its length is the largest message and patternSlack.
func fillPattern(b []byte) {
	src := rand.NewChaCha8([32]byte{'r', 'o', 'x', 'i', 'e'})
	_, _ = src.Read(b) // never an error
	for i := 0; i < len(b); i += shiftStep {
		b[i] = byte(i / shiftStep)
	}
}

// shift is where in the pattern message n of a QP starts, with a ring of slots, a power of two.
func shift(qp int, n, slots uint64) uint64 {
	// n + n/slots: one slot's next message starts slots+1 steps further, which is odd, or 2.
	return (n + n/slots + uint64(qp)*17) % patternSteps * shiftStep
}

// checker compares what arrived with the pattern.
type checker struct {
	pattern  []byte
	on       bool
	inject   int    // bytes still to flip
	verified uint64 // bytes compared
	wrong    uint64 // of them, those that differed
	first    string // where the first difference was
}

// check compares a message that arrived with message n of a QP.
func (k *checker) check(got []byte, qp int, n, slots uint64) {
	if !k.on || len(got) == 0 {
		return
	}
	if k.inject > 0 {
		k.inject--
		got[(n*31)%uint64(len(got))] ^= 0x20
	}
	at := shift(qp, n, slots)
	want := k.pattern[at : at+uint64(len(got))]
	k.verified += uint64(len(got))
	if !bytes.Equal(got, want) {
		k.explain(got, want, qp, n)
	}
}

// flag notes that the last byte of a WRITE latency test's message came as it should: it was waited
// for. With --verify-inject and messages of one byte there is no other byte to flip.
func (k *checker) flag() {
	if k.on {
		k.verified++
	}
}

// explain counts the bytes that differ and keeps the first.
func (k *checker) explain(got, want []byte, qp int, n uint64) {
	for i := range got {
		if got[i] == want[i] {
			continue
		}
		if k.first == "" {
			k.first = fmt.Sprintf("QP %d, message %d, byte %d of %d: %#02x instead of %#02x",
				qp, n, i, len(got), got[i], want[i])
		}
		k.wrong++
	}
}

// checkValue compares a 64-bit result of an atomic.
func (k *checker) checkValue(got, want uint64, qp int) {
	if !k.on {
		return
	}
	if k.inject > 0 {
		k.inject--
		got ^= 0x20
	}
	k.verified += atomicSize
	if got == want {
		return
	}
	k.wrong++
	if k.first == "" {
		k.first = fmt.Sprintf("QP %d: FETCH_ADD number %d returned %d", qp, want, got)
	}
}
