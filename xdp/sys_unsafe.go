package xdp

// All of the package's unsafe code: mapped offsets become typed slices and atomics, and structs go
// through getsockopt and setsockopt.

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is one mmapped region; unmap it exactly once.
type mapping []byte

func (m mapping) unmap() error {
	if m == nil {
		return nil
	}
	return unix.Munmap(m)
}

// mapRing maps one of the four rings. off is one of the XDP_*_PGOFF_* constants.
func mapRing[T any](fd int, pgoff int64, size int, o unix.XDPRingOffset) (ring[T], mapping, error) {
	var zero T
	length := int(o.Desc) + size*int(unsafe.Sizeof(zero))
	m, err := unix.Mmap(fd, pgoff, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring[T]{}, nil, err
	}
	r := ring[T]{
		producer: (*atomic.Uint32)(unsafe.Pointer(&m[o.Producer])),
		consumer: (*atomic.Uint32)(unsafe.Pointer(&m[o.Consumer])),
		flags:    (*atomic.Uint32)(unsafe.Pointer(&m[o.Flags])),
		entries:  unsafe.Slice((*T)(unsafe.Pointer(&m[o.Desc])), size),
		mask:     uint32(size - 1),
	}
	return r, m, nil
}

// registerUMEM makes mem the packet memory of fd.
func registerUMEM(fd int, mem []byte, chunk int) error {
	reg := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))),
		Len:  uint64(len(mem)),
		Size: uint32(chunk),
	}
	return setsockopt(fd, unix.XDP_UMEM_REG, &reg)
}

func setsockopt[T any](fd, opt int, v *T) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt),
		uintptr(unsafe.Pointer(v)), unsafe.Sizeof(*v), 0)
	if e != 0 {
		return e
	}
	return nil
}

func getsockopt[T any](fd, opt int, v *T) error {
	size := uint32(unsafe.Sizeof(*v))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt),
		uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// mmapOffsets asks where in the mappings the indices, flags and entries are. Kernels before 5.4
// have no flag words and answer with a shorter struct.
func mmapOffsets(fd int) (unix.XDPMmapOffsets, error) {
	var off unix.XDPMmapOffsets
	if err := getsockopt(fd, unix.XDP_MMAP_OFFSETS, &off); err != nil {
		return off, fmt.Errorf("get ring offsets: %w", err)
	}
	if off.Rx.Flags == 0 || off.Cr.Desc == 0 {
		return off, fmt.Errorf("get ring offsets: %w (needs Linux 5.4 or later)", ErrNotSupported)
	}
	return off, nil
}

// sendto kicks the transmit side: no data, MSG_DONTWAIT. It never sleeps, and takes some 100 µs for a
// batch of large frames. The runtime is not told: after 20 µs its monitor would give the processor to
// another thread, look again every 20 µs, and so take time from a busy machine.
func sendto(fd int) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

// recvfrom kicks the receive side of drivers that wait for it, and does the busy polling.
func recvfrom(fd int) unix.Errno {
	_, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}
