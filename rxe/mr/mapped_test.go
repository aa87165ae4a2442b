package mr

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// mapFile maps a new file of n bytes.
func mapFile(t testing.TB, n int) (f *os.File, b []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	b, err = syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Munmap(b)
		_ = f.Close()
	})
	return f, b
}

// TestMappedCut: a file that is cut short makes accesses fail, and no more than that; what is left
// works, and all works when the file is back.
func TestMappedCut(t *testing.T) {
	page := os.Getpagesize()
	f, b := mapFile(t, 4*page)
	l := NewMappedList(b)
	cut := uint64(2 * page)
	ops := map[string]func(off uint64) bool{
		"CopyIn":     func(off uint64) bool { return l.CopyIn(off, make([]byte, 3000)) },
		"CopyOut":    func(off uint64) bool { return l.CopyOut(off, make([]byte, 3000)) },
		"CopyInLast": func(off uint64) bool { return l.CopyInLast(off, make([]byte, 3000)) },
		"FetchAdd":   func(off uint64) bool { _, ok := l.FetchAdd(off, 1); return ok },
		"FetchAdd odd": func(off uint64) bool { // the slow way, with all the locks
			_, ok := l.FetchAdd(off+1, 1)
			return ok
		},
		"CmpSwap": func(off uint64) bool { _, ok := l.CmpSwap(off, 0, 1); return ok },
		"Store8":  func(off uint64) bool { return l.Store8(off, 1) },
	}
	for _, step := range []struct {
		size  int
		whole bool
	}{{4 * page, true}, {2 * page, false}, {4 * page, true}} {
		if err := f.Truncate(int64(step.size)); err != nil {
			t.Fatal(err)
		}
		for name, op := range ops {
			for range 2 { // the second one finds no lock held
				if !op(64) {
					t.Errorf("%s in a file of %d bytes fails at 64", name, step.size)
				}
				if op(cut+64) != step.whole {
					t.Errorf("%s at %d in a file of %d bytes: %v", name, cut+64, step.size, !step.whole)
				}
				if strings.HasPrefix(name, "Copy") && op(cut-1000) != step.whole {
					t.Errorf("%s over the end at %d of a file of %d bytes: %v", name, cut, step.size, !step.whole)
				}
			}
		}
	}
	if !l.CopyIn(cut, []byte("back")) || !bytes.Equal(b[cut:cut+4], []byte("back")) {
		t.Error("bytes do not arrive")
	}
}

// TestMappedForeignPanic: only faults in the list's memory are caught.
func TestMappedForeignPanic(t *testing.T) {
	page := os.Getpagesize()
	f, b := mapFile(t, 2*page)
	l := NewMappedList(b[:page])
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a fault elsewhere was taken for one of the list")
		}
	}()
	l.CopyIn(0, b[page:page+8]) // src is what faults first: elsewhere
}

// BenchmarkMapped shows what the guard costs a copy of 4096 bytes, and that other lists pay nothing.
func BenchmarkMapped(b *testing.B) {
	_, mem := mapFile(b, 1<<20)
	src := make([]byte, 4096)
	for name, l := range map[string]*List{"plain": NewList(mem), "mapped": NewMappedList(mem)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4096)
			for i := range b.N {
				l.CopyIn(uint64(i&255)<<12, src)
			}
		})
	}
}
