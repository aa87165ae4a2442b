//go:build !race

package verbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mapMemory maps zeroed memory outside the heap.
func mapMemory(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map memory: %w", err)
	}
	return b, nil
}

func unmapMemory(b []byte) { _ = unix.Munmap(b) }
