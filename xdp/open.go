package xdp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How long Open waits for a queue whose last user has closed it: the kernel tears a socket down
// later.
const (
	rebindWait  = time.Second
	rebindEvery = 4 * time.Millisecond
)

// Open makes a socket, registers its memory, maps its rings, binds it to the queue and enters it
// in the XSKMAP. The calling goroutine's thread must be in the network namespace of the interface;
// the socket can be used from any thread afterwards. Open waits up to a second for a queue that is
// being freed, then returns a *BusyError. Other errors to test for: ErrDown, ErrGone, ErrZeroCopy,
// ErrNotSupported, unix.EPERM.
func Open(c Config) (*Socket, error) {
	s := &Socket{fd: -1, ctl: -1, file: c.Socket}
	if err := s.open(c); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Socket) open(c Config) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	if err := s.openUMEM(c); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	if s.file != nil {
		s.fd = int(s.file.Fd())
	} else {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("xdp: %w", adviseSocket(err))
		}
		s.fd = fd
	}
	if err := s.findInterface(); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	if err := s.umem.join(s.fd, s.makeRings, s.bind); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	s.poll[0] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
	if err := s.options(); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	s.prime()
	if c.XSKMAP != nil {
		m, err := c.XSKMAP.Clone()
		if err != nil {
			return fmt.Errorf("xdp: clone XSKMAP: %w", err)
		}
		s.xskmap = m
		key := s.cfg.MapOffset + uint32(s.cfg.Queue)
		if err := m.Put(key, uint32(s.fd)); err != nil {
			return fmt.Errorf("xdp: enter queue %d in XSKMAP at %d: %w", c.Queue, key, err)
		}
	}
	return nil
}

func (s *Socket) openUMEM(c Config) error {
	u, count := c.UMEM, c.FillDepth+c.TXFrames
	if u == nil {
		var err error
		if u, err = NewUMEM(count, c.ChunkSize); err != nil {
			return err
		}
		s.ownUMEM = true
	}
	s.umem = u
	chunks, err := u.take(count)
	if err != nil {
		return err
	}
	s.setup(c, u, chunks)
	return nil
}

// findInterface resolves name and index in the thread's network namespace and reads the MTU. The
// control socket made here keeps that namespace for RefreshMTU (AF_XDP sockets answer no such
// ioctl).
func (s *Socket) findInterface() error {
	ctl, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open control socket: %w", err)
	}
	s.ctl = ctl
	name := s.cfg.Interface
	if s.cfg.Ifindex != 0 {
		if name, err = interfaceName(s.ctl, s.cfg.Ifindex); err != nil {
			return fmt.Errorf("find interface %d: %w", s.cfg.Ifindex, err)
		}
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("find interface %q: %w", name, err)
	}
	if err := unix.IoctlIfreq(s.ctl, unix.SIOCGIFINDEX, ifr); err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	s.ifname, s.ifindex = name, int(ifr.Uint32())
	s.cfg.Interface, s.cfg.Ifindex = name, s.ifindex
	return s.RefreshMTU()
}

// RefreshMTU reads the interface's MTU again, for MaxFrame; call it when the link has changed. It
// returns ErrGone if the interface does not exist any more.
func (s *Socket) RefreshMTU() error {
	if s.closed {
		return fmt.Errorf("read MTU: %w", ErrClosed)
	}
	name, err := interfaceName(s.ctl, s.ifindex)
	if err != nil {
		return fmt.Errorf("read MTU of %s: %w: %w", s.ifname, ErrGone, err)
	}
	s.ifname = name
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("read MTU of %s: %w", name, err)
	}
	if err := unix.IoctlIfreq(s.ctl, unix.SIOCGIFMTU, ifr); err != nil {
		return fmt.Errorf("read MTU of %s: %w", name, err)
	}
	s.setMaxFrame(int(ifr.Uint32()))
	return nil
}

func (s *Socket) setMaxFrame(mtu int) {
	parts := 1
	if s.sg {
		parts = min(MaxParts, s.cfg.TXFrames)
	}
	s.maxFrame = min(mtu+MinFrame, int(s.txHead)+(parts-1)*int(s.chunk))
}

// makeRings asks for the four rings and maps them.
func (s *Socket) makeRings() error {
	for _, r := range []struct {
		name      string
		opt, size int
	}{
		{"fill", unix.XDP_UMEM_FILL_RING, s.cfg.FillRing},
		{"completion", unix.XDP_UMEM_COMPLETION_RING, s.cfg.CompletionRing},
		{"RX", unix.XDP_RX_RING, s.cfg.RXRing},
		{"TX", unix.XDP_TX_RING, s.cfg.TXRing},
	} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.opt, r.size); err != nil {
			return fmt.Errorf("make %s ring of %d entries: %w", r.name, r.size, err)
		}
	}
	off, err := mmapOffsets(s.fd)
	if err != nil {
		return err
	}
	fill, err := mapOne[uint64](s, "fill", unix.XDP_UMEM_PGOFF_FILL_RING, s.cfg.FillRing, off.Fr)
	if err != nil {
		return err
	}
	comp, err := mapOne[uint64](s, "completion", unix.XDP_UMEM_PGOFF_COMPLETION_RING,
		s.cfg.CompletionRing, off.Cr)
	if err != nil {
		return err
	}
	rx, err := mapOne[desc](s, "RX", unix.XDP_PGOFF_RX_RING, s.cfg.RXRing, off.Rx)
	if err != nil {
		return err
	}
	tx, err := mapOne[desc](s, "TX", unix.XDP_PGOFF_TX_RING, s.cfg.TXRing, off.Tx)
	if err != nil {
		return err
	}
	s.attach(rx, fill, tx, comp)
	return nil
}

// attach puts the socket on its rings.
func (s *Socket) attach(rx ring[desc], fill ring[uint64], tx ring[desc], comp ring[uint64]) {
	s.rx, s.fill = newConsumer(rx), newProducer(fill)
	s.tx, s.comp = newProducer(tx), newConsumer(comp)
	s.scanned = s.rx.next
}

func mapOne[T any](s *Socket, name string, pgoff int64, size int,
	off unix.XDPRingOffset) (ring[T], error) {
	r, m, err := mapRing[T](s.fd, pgoff, size, off)
	if err != nil {
		return r, fmt.Errorf("map %s ring: %w", name, err)
	}
	s.maps = append(s.maps, m)
	return r, nil
}

// bind binds to the queue, sharing the UMEM of the socket shared unless that is -1. While the
// queue is busy it tries again, as a closed socket lets go of it only after some ms.
func (s *Socket) bind(shared int) error {
	sa := &unix.SockaddrXDP{
		Ifindex: uint32(s.ifindex),
		QueueID: uint32(s.cfg.Queue),
	}
	if shared >= 0 {
		// All other flags are inherited and must be absent.
		sa.Flags, sa.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(shared)
	} else {
		sa.Flags = unix.XDP_USE_NEED_WAKEUP
		if s.cfg.SG {
			sa.Flags |= unix.XDP_USE_SG
		}
		switch s.cfg.ZeroCopy {
		case Require:
			sa.Flags |= unix.XDP_ZEROCOPY
		case Never:
			sa.Flags |= unix.XDP_COPY
		}
	}
	for waited := time.Duration(0); ; waited += rebindEvery {
		err := unix.Bind(s.fd, sa)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return adviseBind(err, &s.cfg, s.ifname)
		}
		if waited >= rebindWait {
			return &BusyError{Interface: s.ifname, Queue: s.cfg.Queue,
				Holders: holders(s.ifindex, s.cfg.Queue)}
		}
		time.Sleep(rebindEvery)
	}
}

// options reads back what bind chose and sets what may be set on a bound socket.
func (s *Socket) options() error {
	var opt uint32
	if err := getsockopt(s.fd, unix.XDP_OPTIONS, &opt); err != nil {
		return fmt.Errorf("read back the zero-copy mode: %w", err)
	}
	s.zc = opt&unix.XDP_OPTIONS_ZEROCOPY != 0
	if s.cfg.ZeroCopy == Require && !s.zc {
		return ErrZeroCopy
	}
	if s.cfg.TXBudget >= 32 {
		// Kernels before 6.17 lack it; Kick calls again there.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, s.cfg.TXBudget)
	}
	if s.cfg.BusyPoll == 0 {
		return nil
	}
	budget := s.cfg.BusyBudget
	if budget == 0 {
		budget = 64
	}
	for _, o := range []struct{ opt, value int }{
		{unix.SO_PREFER_BUSY_POLL, 1},
		{unix.SO_BUSY_POLL, int(max(1, s.cfg.BusyPoll.Microseconds()))},
		{unix.SO_BUSY_POLL_BUDGET, budget},
	} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.opt, o.value); err != nil {
			return fmt.Errorf("turn on busy polling: %w (needs CAP_NET_ADMIN and Linux 5.11)", err)
		}
	}
	s.busy = true
	return nil
}
