package wire

import (
	"hash/crc32"
	"syscall"
	"testing"
)

// TestFoldEdge: advance reads nothing behind a run, nor before it: both are memory that must not be
// touched here.
func TestFoldEdge(t *testing.T) {
	page := syscall.Getpagesize()
	m, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(m) }()
	run := m[page : 2*page]
	for i := range run {
		run[i] = byte(i * 7)
	}
	for _, b := range [][]byte{m[:page], m[2*page:]} {
		if err := syscall.Mprotect(b, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= page; n++ {
		for _, b := range [][]byte{run[:n], run[page-n:]} {
			if got, want := advance(icrcSeed, b), ^crc32.Update(^uint32(icrcSeed), crc32.IEEETable, b); got != want {
				t.Fatalf("%d bytes: %#x, want %#x", n, got, want)
			}
		}
	}
}
