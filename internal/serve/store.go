package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/xfer"
)

// This file is the memory of exports. A shard must never wait for a page to be read: before a peer is
// let in, the memory is populated and locked by a goroutine of its own.

// warmStep is how much is populated by one system call.
const warmStep = 8 << 20

// store is the memory of an export.
type store struct {
	name  string
	spec  string // all of its configuration but the list of peers
	write bool
	mem   []byte
	file  *os.File // nil: memory
	log   *slog.Logger
	warm  chan struct{} // closed when the memory has been populated
	hold  hashing
	free  func() // of the limiter

	unlocked sync.Once // said that not all of it can be locked

	content atomic.Int64 // bytes, where there is no file to tell

	ctx  context.Context // ends with the export
	stop context.CancelCauseFunc

	mu       sync.Mutex
	cfg      Export // its list of peers is what may change
	sessions map[*guest]struct{}
	closed   bool
	gone     sync.WaitGroup // sessions, and the warming goroutine
}

// guest is a connection to an export.
type guest struct {
	peer netip.Addr
	stop context.CancelCauseFunc
}

var (
	errGone       = errors.New("export has been taken away")
	errNotAllowed = errors.New("peer is not on the export's list any more")
)

func specOf(e *Export) string { return fmt.Sprintf("%s %d %s %v", e.Name, e.Size, e.File, e.Write) }

// openStore maps an export's memory.
func openStore(e Export, l *limiter, hold hashing, log *slog.Logger) (_ *store, err error) {
	s := &store{name: e.Name, spec: specOf(&e), write: e.Write, cfg: e, log: log.With("export", e.Name),
		warm: make(chan struct{}), hold: hold, sessions: map[*guest]struct{}{}}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			err = fmt.Errorf("export %s: %w", e.Name, err)
			s.release()
		}
	}()
	size := e.Size
	if e.File != "" {
		if size, err = s.openFile(&e); err != nil {
			return nil, err
		}
	}
	if s.free, err = l.reserve(size); err != nil {
		return nil, err
	}
	flags, fd, prot := unix.MAP_PRIVATE|unix.MAP_ANON, -1, unix.PROT_READ|unix.PROT_WRITE
	if s.file != nil {
		flags, fd = unix.MAP_SHARED, int(s.file.Fd())
		if !e.Write {
			prot = unix.PROT_READ
		}
	}
	if s.mem, err = unix.Mmap(fd, 0, int(size), prot, flags); err != nil {
		return nil, fmt.Errorf("map %s: %w", FormatSize(size), err)
	}
	s.content.Store(size)
	s.gone.Go(s.warmUp)
	return s, nil
}

// openFile opens the file behind an export and returns the size of the region. The file may be
// shorter: what is missing gives a NAK until a peer makes room for it (RESIZE).
func (s *store) openFile(e *Export) (size int64, err error) {
	flags := os.O_RDONLY
	if e.Write {
		flags = os.O_RDWR | os.O_CREATE
	}
	if s.file, err = os.OpenFile(e.File, flags, 0o600); err != nil {
		return 0, err
	}
	info, err := s.file.Stat()
	if err != nil {
		return 0, err
	}
	if size = e.Size; size == 0 {
		size = info.Size()
	}
	if size == 0 {
		return 0, fmt.Errorf("%s is empty: give the size that it may grow to", e.File)
	}
	return size, nil
}

// warmUp populates and locks what is there, before the first peer is let in.
func (s *store) warmUp() {
	defer close(s.warm)
	n, err := s.length()
	if err == nil {
		err = s.populate(0, n, s.file == nil)
	}
	if err != nil && s.ctx.Err() == nil {
		s.log.Warn("memory could not be read ahead: peers may wait for the disk", "error", err)
	}
}

// populate brings a range that begins on a page into memory and keeps it there, in steps between
// which it can be stopped.
func (s *store) populate(off, n int64, write bool) error {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	for end := off + n; off < end; off += warmStep {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		b := s.mem[off:min(off+warmStep, end)]
		if err := unix.Madvise(b, advice); err != nil {
			return fmt.Errorf("populate: %w", err)
		}
		switch err := unix.Mlock(b); {
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOMEM): // the limit on locked memory
			s.unlocked.Do(func() {
				s.log.Warn("memory cannot be locked: peers may wait for the disk when the machine is short of it; "+
					"raise LimitMEMLOCK= or ulimit -l to what exports take", "error", err)
			})
		case err != nil:
			return fmt.Errorf("lock: %w", err)
		}
	}
	return nil
}

// length is how many bytes of content there are.
func (s *store) length() (int64, error) {
	if s.file == nil {
		return s.content.Load(), nil
	}
	info, err := s.file.Stat()
	if err != nil {
		return 0, err
	}
	return min(info.Size(), int64(len(s.mem))), nil
}

// awaitWarm waits until the memory has been populated.
func (s *store) awaitWarm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, warmPatience)
	defer cancel()
	select {
	case <-s.warm:
		return nil
	case <-ctx.Done():
		return errors.New("memory is still being read: try again later")
	}
}

// enter lets a peer in. leave must be called; ctx ends with the export, or when its list loses the
// peer.
func (s *store) enter(ctx context.Context, peer netip.Addr) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, errGone
	}
	ctx, stop := context.WithCancelCause(ctx)
	after := context.AfterFunc(s.ctx, func() { stop(errGone) })
	g := &guest{peer: peer, stop: stop}
	s.sessions[g] = struct{}{}
	s.gone.Add(1)
	return ctx, func() {
		after()
		stop(nil)
		s.mu.Lock()
		delete(s.sessions, g)
		s.mu.Unlock()
		s.gone.Done()
	}, nil
}

// allows reports whether a peer is on the list.
func (s *store) allows(peer netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Allows(peer)
}

// relist changes the list of peers and ends the connections of those who are not on it any more.
func (s *store) relist(e Export) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg = e
	for g := range s.sessions {
		if !e.Allows(g.peer) {
			g.stop(errNotAllowed)
		}
	}
}

// close ends all connections and gives the memory back.
func (s *store) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errGone)
	s.gone.Wait()
	s.release()
}

func (s *store) release() {
	s.stop(errGone)
	if s.mem != nil {
		_ = unix.Munmap(s.mem)
		s.mem = nil
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	if s.free != nil {
		s.free()
	}
}

// control carries out a control message, in the goroutine of its connection.
func (s *store) control(m *xfer.Message) {
	var err error
	size := uint64(len(s.mem))
	m.Status = xfer.OK
	switch {
	case (m.Op == xfer.OpResize || m.Op == xfer.OpCommit) && !s.write:
		m.Status = xfer.StatusRights
		return
	case m.Op == xfer.OpStat:
		var n int64
		n, err = s.length()
		m.Offset, m.Length = size, uint64(n)
	case m.Op == xfer.OpResize && m.Length <= size:
		err = s.resize(int64(m.Length))
	case m.Op == xfer.OpCommit && m.Length <= size:
		err = s.commit(int64(m.Length))
	case m.Op == xfer.OpDigest && m.Length <= xfer.MaxDigest && m.Offset <= size && m.Length <= size-m.Offset:
		m.Digest, err = s.digest(m.Offset, m.Length)
	default:
		m.Status = xfer.StatusBad
	}
	if err != nil {
		m.Status = xfer.StatusIO
		s.log.Info("control message failed", "op", m.Op, "error", err)
	}
}

// resize makes room for n bytes of content, and has their memory ready.
func (s *store) resize(n int64) error {
	if s.file == nil {
		s.content.Store(max(n, s.content.Load()))
		return nil
	}
	have, err := s.length()
	if err != nil {
		return err
	}
	if have < n {
		if err := s.file.Truncate(n); err != nil {
			return err
		}
	}
	return s.populate(0, n, true)
}

// commit says how long the content is and, if a file is behind it, writes it to the disk.
func (s *store) commit(n int64) error {
	s.content.Store(n)
	if s.file == nil {
		return nil
	}
	if err := s.file.Truncate(n); err != nil {
		return err
	}
	return s.file.Sync()
}

// digest hashes bytes of the region. The file may be cut meanwhile.
func (s *store) digest(off, n uint64) (sum [sha256.Size]byte, err error) {
	if err := s.hold.enter(s.ctx); err != nil {
		return sum, err
	}
	defer s.hold.leave()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		e := recover()
		if f, ok := e.(interface{ Addr() uintptr }); ok {
			err = fmt.Errorf("no memory at %#x: the file has been cut, or cannot be read", f.Addr())
		} else if e != nil {
			panic(e)
		}
	}()
	return sha256.Sum256(s.mem[off : off+n]), nil
}

// hashing bounds how many goroutines hash at a time: peers must not take all CPUs.
type hashing chan struct{}

func (h hashing) enter(ctx context.Context) error {
	select {
	case h <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h hashing) leave() { <-h }
