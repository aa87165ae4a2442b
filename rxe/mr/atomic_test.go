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

// TestAtomicsExclude: additions at overlapping addresses, aligned and not, whole and cut in two,
// from several goroutines and through several lists, lose nothing. The numbers added carry into no
// higher byte than the operation's own, so that the sum of all is known.
func TestAtomicsExclude(t *testing.T) {
	rounds := rounds(300000)
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
	if got := binary.LittleEndian.Uint64(mem[8:]); got != 5*uint64(rounds) {
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
						t.Errorf("%d bytes at %d: byte %d is %d when the last is %d", n, at, i,
							b, r+1)
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
