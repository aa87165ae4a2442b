package mr

import (
	"bytes"
	"encoding/binary"
	"testing"
)

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
					binary.NativeEndian.PutUint64(model[off:],
						binary.NativeEndian.Uint64(model[off:])+uint64(n)<<20)
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
