package mr

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// lists are shapes of lists: what Go gives as one, page lists with short ends, and uneven ones.
var listShapes = map[string][]int{
	"empty":           {},
	"only empties":    {0, 0},
	"one":             {100},
	"two":             {3, 100},
	"two, falling":    {100, 3},
	"pages":           {64, 64, 64, 64},
	"pages, ends":     {17, 64, 64, 5},
	"three pages":     {17, 64, 5},
	"first too long":  {65, 64, 64, 5},
	"last too long":   {5, 64, 64, 65},
	"uneven":          {1, 2, 3, 50, 1, 1, 1, 40},
	"bytes":           {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
	"with empties":    {0, 10, 0, 0, 20, 0},
	"odd sized pages": {7, 13, 13, 13, 13, 1},
}

// scatter returns segments of these lengths out of memory with a guard before and behind each, and
// a function that checks the guards.
func scatter(lens []int) (segs [][]byte, guards func() bool) {
	const guard = 16
	var all [][]byte
	for i, n := range lens {
		mem := bytes.Repeat([]byte{0xee}, n+2*guard+i%8)
		seg := mem[guard+i%8:][:n] // capacity reaches over the guard behind
		clear(seg)
		segs = append(segs, seg)
		all = append(all, mem[:guard+i%8], mem[guard+i%8+n:])
	}
	return segs, func() bool {
		for _, g := range all {
			for _, b := range g {
				if b != 0xee {
					return false
				}
			}
		}
		return true
	}
}

func TestListEveryRange(t *testing.T) {
	for name, lens := range listShapes {
		t.Run(name, func(t *testing.T) {
			segs, guards := scatter(lens)
			l := NewList(segs...)
			var want []byte
			for _, n := range lens {
				want = append(want, make([]byte, n)...)
			}
			if l.Len() != uint64(len(want)) {
				t.Fatalf("length %d, want %d", l.Len(), len(want))
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for off := range len(want) + 3 {
				for n := range len(want) + 3 - off {
					src := make([]byte, n)
					for i := range src {
						src[i] = byte(rng.Uint32())
					}
					fits := off+n <= len(want)
					copyIn := l.CopyIn
					if n%2 == 0 {
						copyIn = l.CopyInLast
					}
					if copyIn(uint64(off), src) != fits {
						t.Fatalf("write %d at %d: want %v", n, off, fits)
					}
					if fits {
						copy(want[off:], src)
					}
					got := make([]byte, n)
					if l.CopyOut(uint64(off), got) != fits {
						t.Fatalf("read %d at %d: want %v", n, off, fits)
					}
					if fits && !bytes.Equal(got, src) {
						t.Fatalf("read %d at %d: got %x, want %x", n, off, got, src)
					}
				}
			}
			if got := bytes.Join(segs, nil); !bytes.Equal(got, want) {
				t.Fatalf("memory is %x, want %x", got, want)
			}
			if !guards() {
				t.Fatal("bytes outside the list changed")
			}
		})
	}
}

func TestListOutOfRange(t *testing.T) {
	l := NewList(make([]byte, 20))
	for _, off := range []uint64{13, 20, 21, 1<<64 - 1, 1<<64 - 8} {
		b := make([]byte, 8)
		if l.CopyIn(off, b) || l.CopyInLast(off, b) || l.CopyOut(off, b) || l.Store8(off, 1) {
			t.Errorf("8 bytes at %#x accepted", off)
		}
		if _, ok := l.FetchAdd(off, 1); ok {
			t.Errorf("fetch-add at %#x accepted", off)
		}
		if _, ok := l.CmpSwap(off, 0, 1); ok {
			t.Errorf("compare-swap at %#x accepted", off)
		}
	}
	if new(List).CopyIn(0, []byte{1}) || !new(List).CopyIn(0, nil) || !new(List).CopyInLast(0,
		nil) {
		t.Error("an empty list holds nothing but nothing")
	}
}

func TestListReset(t *testing.T) {
	l := NewList(make([]byte, 1), make([]byte, 20), make([]byte, 3), make([]byte, 50))
	mem := make([]byte, 8)
	l.Reset([][]byte{mem})
	if l.Len() != 8 || l.NumSegs() != 1 || !l.CopyIn(0, []byte{9, 9, 9, 9, 9, 9, 9, 9}) ||
		mem[7] != 9 {
		t.Errorf("length %d, memory %v", l.Len(), mem)
	}
	if l.CopyIn(8, []byte{1}) {
		t.Error("old segments are still there")
	}
}
