package xdp

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// UMEM is packet memory, cut into chunks, that several sockets of one network namespace may share.
// Each socket owns a span of chunks of its own from Open to Close; no chunk is ever seen by two of
// them. Its methods may be called from any goroutine.
type UMEM struct {
	mem   mapping
	chunk int

	mu    sync.Mutex
	used  []span // sorted by first
	users []int  // descriptors of the bound sockets; new ones join through the first
}

// span is a run of chunks owned by one socket.
type span struct{ first, count int }

// NewUMEM maps memory for frames chunks of chunkSize bytes, 2048 or 4096 (0: 4096). Sockets share
// it through Config.UMEM; each takes Config.FillDepth+Config.TXFrames chunks of it. It is locked
// and charged against RLIMIT_MEMLOCK when the first socket opens.
func NewUMEM(frames, chunkSize int) (*UMEM, error) {
	if chunkSize == 0 {
		chunkSize = DefaultChunkSize
	}
	if chunkSize != 2048 && chunkSize != 4096 {
		return nil, fmt.Errorf("chunk size %d: want 2048 or 4096", chunkSize)
	}
	// Offsets are kept in 32 bits.
	if frames < 1 || frames > 1<<31/chunkSize {
		return nil, fmt.Errorf("UMEM of %d chunks: want 1 to %d", frames, 1<<31/chunkSize)
	}
	size := (frames*chunkSize + 4095) &^ 4095
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d KiB of packet memory: %w", size>>10, err)
	}
	return &UMEM{mem: mem, chunk: chunkSize}, nil
}

// Frames returns the number of chunks, ChunkSize their size in bytes.
func (u *UMEM) Frames() int { return len(u.mem) / u.chunk }

// ChunkSize returns the size of a chunk in bytes.
func (u *UMEM) ChunkSize() int { return u.chunk }

// Close unmaps the memory. It returns ErrInUse while sockets use it; closing twice is fine.
func (u *UMEM) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.used) != 0 {
		return fmt.Errorf("close UMEM with %d sockets: %w", len(u.used), ErrInUse)
	}
	mem := u.mem
	u.mem = nil
	return mem.unmap()
}

// take finds count free chunks in a row, first fit.
func (u *UMEM) take(count int) (span, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mem == nil {
		return span{}, fmt.Errorf("UMEM: %w", ErrClosed)
	}
	at, i := 0, 0
	for ; i < len(u.used) && u.used[i].first-at < count; i++ {
		at = u.used[i].first + u.used[i].count
	}
	if at+count > u.Frames() {
		return span{}, fmt.Errorf("UMEM of %d chunks has no %d free in a row", u.Frames(), count)
	}
	s := span{at, count}
	u.used = slices.Insert(u.used, i, s)
	return s, nil
}

// give returns what take gave.
func (u *UMEM) give(s span) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := slices.Index(u.used, s); i >= 0 {
		u.used = slices.Delete(u.used, i, i+1)
	}
}

// join binds fd by calling bind with the descriptor of a socket that already uses this memory, or
// with -1 after having registered the memory on fd itself.
func (u *UMEM) join(fd int, rings func() error, bind func(shared int) error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	shared := -1
	if len(u.users) != 0 {
		shared = u.users[0]
	} else if err := u.register(fd); err != nil {
		return err
	}
	if err := rings(); err != nil {
		return err
	}
	if err := bind(shared); err != nil {
		return err
	}
	u.users = append(u.users, fd)
	return nil
}

// register makes the memory known to the kernel, raising the limit on locked memory where the first
// try meets it and the process may.
func (u *UMEM) register(fd int) error {
	err := registerUMEM(fd, u.mem, u.chunk)
	if errors.Is(err, unix.ENOBUFS) && raiseMemlock() == nil {
		err = registerUMEM(fd, u.mem, u.chunk)
	}
	if err != nil {
		return adviseUMEM(err, len(u.mem))
	}
	return nil
}

// raiseMemlock lifts RLIMIT_MEMLOCK, to the hard limit if no more is allowed.
func raiseMemlock() error {
	inf := uint64(unix.RLIM_INFINITY)
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: inf, Max: inf}) == nil {
		return nil
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return err
	}
	if lim.Cur >= lim.Max {
		return unix.EPERM
	}
	lim.Cur = lim.Max
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &lim)
}

// leave undoes join, before fd is closed.
func (u *UMEM) leave(fd int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := slices.Index(u.users, fd); i >= 0 {
		u.users = slices.Delete(u.users, i, i+1)
	}
}
