package mr

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
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
	if new(List).CopyIn(0, []byte{1}) || !new(List).CopyIn(0, nil) || !new(List).CopyInLast(0, nil) {
		t.Error("an empty list holds nothing but nothing")
	}
}

func TestListReset(t *testing.T) {
	l := NewList(make([]byte, 1), make([]byte, 20), make([]byte, 3), make([]byte, 50))
	mem := make([]byte, 8)
	l.Reset([][]byte{mem})
	if l.Len() != 8 || l.NumSegs() != 1 || !l.CopyIn(0, []byte{9, 9, 9, 9, 9, 9, 9, 9}) || mem[7] != 9 {
		t.Errorf("length %d, memory %v", l.Len(), mem)
	}
	if l.CopyIn(8, []byte{1}) {
		t.Error("old segments are still there")
	}
}

// TestAtomics compares all 8-byte operations with a flat model, for every offset of every shape.
func TestAtomics(t *testing.T) {
	for name, lens := range listShapes {
		segs, guards := scatter(lens)
		l := NewList(segs...)
		rng := rand.New(rand.NewPCG(3, 4))
		want := make([]byte, l.Len())
		for i := range want {
			want[i] = byte(rng.Uint32())
		}
		l.CopyIn(0, want)
		for off := 0; off+8 <= len(want); off++ {
			word := want[off : off+8]
			was := binary.NativeEndian.Uint64(word)
			add := rng.Uint64()
			if old, ok := l.FetchAdd(uint64(off), add); !ok || old != was {
				t.Fatalf("%s: fetch-add at %d: %#x, want %#x", name, off, old, was)
			}
			was += add
			if old, ok := l.CmpSwap(uint64(off), was+1, 0); !ok || old != was {
				t.Fatalf("%s: compare-swap that differs at %d: %#x, want %#x", name, off, old, was)
			}
			next := rng.Uint64()
			if old, ok := l.CmpSwap(uint64(off), was, next); !ok || old != was {
				t.Fatalf("%s: compare-swap at %d: %#x, want %#x", name, off, old, was)
			}
			if old, _ := l.FetchAdd(uint64(off), 0); old != next {
				t.Fatalf("%s: compare-swap at %d left %#x, want %#x", name, off, old, next)
			}
			last := rng.Uint64()
			if !l.Store8(uint64(off), last) {
				t.Fatalf("%s: store at %d refused", name, off)
			}
			binary.NativeEndian.PutUint64(word, last)
		}
		if got := bytes.Join(segs, nil); !bytes.Equal(got, want) {
			t.Errorf("%s: memory is %x, want %x", name, got, want)
		}
		if !guards() {
			t.Errorf("%s: bytes outside the list changed", name)
		}
	}
}

// TestAtomicsExclude: additions at overlapping addresses, aligned and not, whole and cut in two, from
// several goroutines and through several lists, lose nothing. The numbers added carry into no
// higher byte than the operation's own, so that the sum of all is known.
func TestAtomicsExclude(t *testing.T) {
	const rounds = 20000
	mem := make([]byte, 24)
	whole, cut := NewList(mem), NewList(mem[:5], mem[5:11], mem[11:12], mem[12:])
	var start, end sync.WaitGroup
	start.Add(1)
	for _, c := range []struct {
		l   *List
		off uint64
		add uint64
	}{{whole, 8, 1}, {whole, 4, 1 << 32}, {cut, 8, 1}, {cut, 3, 1 << 40}, {whole, 8, 1}} {
		end.Go(func() { // all of them add 1 to byte 8
			start.Wait()
			for range rounds {
				c.l.FetchAdd(c.off, c.add)
			}
		})
	}
	start.Done()
	end.Wait()
	if got := binary.LittleEndian.Uint64(mem[8:]); got != 5*rounds {
		t.Errorf("got %d, want %d", got, 5*rounds)
	}
}

// TestAtomicsWithProcessor: aligned words are atomic with sync/atomic of the application.
func TestAtomicsWithProcessor(t *testing.T) {
	const rounds = 20000
	mem := make([]byte, 8)
	l, word := NewList(mem), wordOf(mem)
	if word == nil {
		t.Fatal("not aligned")
	}
	var end sync.WaitGroup
	end.Go(func() {
		for range rounds {
			l.FetchAdd(0, 1)
		}
	})
	end.Go(func() {
		for range rounds {
			for old, _ := l.FetchAdd(0, 0); ; {
				now, _ := l.CmpSwap(0, old, old+1)
				if now == old {
					break
				}
				old = now
			}
		}
	})
	end.Go(func() {
		for range rounds {
			atomic.AddUint64(word, 1)
		}
	})
	end.Wait()
	if got := atomic.LoadUint64(word); got != 3*rounds {
		t.Errorf("got %d, want %d", got, 3*rounds)
	}
}

// TestLastByteLast: whoever sees the last byte through LoadFlag sees the rest. The race detector
// checks the order that luck does not show.
func TestLastByteLast(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9, 16, 61, 1000} {
		for at := range 8 {
			mem := make([]byte, n+at+16)
			word := (at + n - 1) &^ 7 // where the flag's word starts
			l := NewList(mem[:word/2], mem[word/2:])
			last := &mem[at+n-1]
			const rounds = 50
			var seen atomic.Int32
			var end sync.WaitGroup
			end.Go(func() {
				src := make([]byte, n)
				for r := range rounds {
					for seen.Load() != int32(r) {
						runtime.Gosched()
					}
					for i := range src {
						src[i] = byte(r + 1)
					}
					l.CopyInLast(uint64(at), src)
				}
			})
			for r := range rounds {
				for LoadFlag(last) != byte(r+1) {
					runtime.Gosched()
				}
				for i, b := range mem[min(at, word):word] {
					if b != byte(r+1) {
						t.Errorf("%d bytes at %d: byte %d is %d when the last is %d", n, at, i, b, r+1)
					}
				}
				seen.Store(int32(r + 1))
			}
			end.Wait()
		}
	}
}

// TestLastByteKeepsNeighbours: bytes in the last one's word belong to others, who may write them at
// the same time.
func TestLastByteKeepsNeighbours(t *testing.T) {
	const rounds = 20000
	mem := make([]byte, 8)
	a, b := NewList(mem[:2]), NewList(mem[2:3])
	var end sync.WaitGroup
	for i, l := range []*List{a, b} {
		end.Go(func() {
			for r := range rounds {
				src := []byte{byte(r), byte(r)}[:l.Len()]
				l.CopyInLast(0, src)
				last := &mem[1+i]
				if got := LoadFlag(last); got != byte(r) {
					t.Errorf("list %d round %d: %d", i, r, got)
					return
				}
			}
		})
	}
	end.Wait()
	if mem[3] != 0 {
		t.Error("a byte of nobody changed")
	}
}

func TestAddrOf(t *testing.T) {
	mem := make([]byte, 100)
	if AddrOf(mem[10:])-AddrOf(mem) != 10 || AddrOf(mem) == 0 || AddrOf(nil) != 0 {
		t.Errorf("%#x and %#x", AddrOf(mem), AddrOf(mem[10:]))
	}
}

// FuzzList drives a list of any shape with any operations against a flat model.
func FuzzList(f *testing.F) {
	f.Add([]byte{3, 5, 64, 2, 0, 1, 2, 0, 3, 1, 0, 8, 2, 60, 20, 3, 0, 0, 4, 5, 0, 5, 9, 0})
	f.Add([]byte{1, 200, 0, 199, 1, 1, 200, 1, 2, 255, 255})
	f.Fuzz(func(t *testing.T, in []byte) {
		next := func() int {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return int(b)
		}
		lens := make([]int, next()%9)
		for i := range lens {
			lens[i] = next()
		}
		segs, guards := scatter(lens)
		l := new(List)
		l.Reset(append([][]byte{make([]byte, 3), make([]byte, 9)}, make([]byte, 2)))
		l.Reset(segs)
		model := make([]byte, l.Len())
		for step := byte(1); len(in) > 0; step++ {
			op, off, n := next(), next()*next()/16, next()
			fits, fits8 := off+n <= len(model), off+8 <= len(model)
			buf := bytes.Repeat([]byte{step}, n)
			ok, want := false, fits
			switch op % 6 {
			case 0, 1:
				ok = l.CopyIn(uint64(off), buf)
				if op%6 == 1 {
					ok = l.CopyInLast(uint64(off), buf)
				}
				if fits {
					copy(model[off:], buf)
				}
			case 2:
				ok = l.CopyOut(uint64(off), buf)
				if fits && !bytes.Equal(buf, model[off:off+n]) {
					t.Fatalf("read %d at %d: %x, want %x", n, off, buf, model[off:off+n])
				}
			case 3:
				_, ok = l.FetchAdd(uint64(off), uint64(n)<<20)
				if want = fits8; fits8 {
					binary.NativeEndian.PutUint64(model[off:], binary.NativeEndian.Uint64(model[off:])+uint64(n)<<20)
				}
			case 4:
				_, ok = l.CmpSwap(uint64(off), 0, uint64(n))
				if want = fits8; fits8 && binary.NativeEndian.Uint64(model[off:]) == 0 {
					binary.NativeEndian.PutUint64(model[off:], uint64(n))
				}
			case 5:
				ok = l.Store8(uint64(off), uint64(n)<<33)
				if want = fits8; fits8 {
					binary.NativeEndian.PutUint64(model[off:], uint64(n)<<33)
				}
			}
			if ok != want {
				t.Fatalf("operation %d, %d at %d of %d: %v", op%6, n, off, len(model), ok)
			}
		}
		if got := bytes.Join(segs, nil); !bytes.Equal(got, model) {
			t.Fatalf("memory is %x, want %x", got, model)
		}
		if !guards() {
			t.Fatal("bytes outside the list changed")
		}
	})
}
