package xdp

import (
	"fmt"
	"math/bits"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Socket is an AF_XDP socket bound to one queue of one interface. It belongs to one goroutine at a
// time: no method may run at the same time as another. Nothing allocates after Open but Stats'
// error paths and Close.
type Socket struct {
	fd    int
	mem   []byte // the whole UMEM
	chunk uint32 // bytes, a power of two
	shift uint32 // log2 of chunk
	zc    bool
	busy  bool // busy polling: drive receive work by calls
	sg    bool
	gone  bool

	// receiving, see rx.go
	rx      consumer[desc]
	fill    producer[uint64]
	rxBase  uint32 // offset of our first receive chunk
	rxSize  uint32 // bytes of receive chunks
	scanned uint32 // RX entries up to here belong to the batch
	held    int    // frames in the batch
	batch   []rxFrame

	// sending, see tx.go
	tx       producer[desc]
	comp     consumer[uint64]
	txBase   uint32   // offset of our first transmit chunk
	free     []uint32 // stack of the offsets of free transmit chunks
	state    []uint8  // by transmit chunk: what the kernel has of it
	txHead   uint32   // bytes of a frame's first part
	need     int      // free chunks a Reserve wants
	reserved int      // parts of the reservation, 0: none
	inFlight int      // frames submitted and not completed
	limit    int      // most of them
	maxFrame int      // bytes, from the interface's MTU
	again    bool     // the kernel left descriptors in the TX ring

	poll  [2]unix.PollFd
	nPoll int

	count   Counters
	last    KernelCounters // as they stood at Close
	owner   owners
	backend *backend // nil: the kernel

	// what only Open, Close and control calls use
	cfg     Config
	ifindex int
	ifname  string
	ctl     int      // for questions about the interface
	file    *os.File // owner of fd, if given
	umem    *UMEM
	ownUMEM bool
	chunks  span
	maps    []mapping
	xskmap  *ebpf.Map
	closed  bool
}

// FD returns the socket's descriptor, to be polled for input, or -1 after Close.
func (s *Socket) FD() int { return s.fd }

// ZeroCopy says whether the driver works on the packet memory itself.
func (s *Socket) ZeroCopy() bool { return s.zc }

// Config returns the configuration with all defaults filled in.
func (s *Socket) Config() Config { return s.cfg }

// Ifindex returns the index of the interface.
func (s *Socket) Ifindex() int { return s.ifindex }

// MaxFrame returns the longest frame Submit takes, in bytes: what the interface's MTU allowed when
// Open or RefreshMTU last looked, and what MaxParts and Config.SG allow.
func (s *Socket) MaxFrame() int { return s.maxFrame }

// setup fills in everything that needs no kernel, from a validated configuration.
func (s *Socket) setup(c Config, u *UMEM, chunks span) {
	s.cfg, s.umem, s.chunks = c, u, chunks
	s.mem = u.mem
	s.chunk = uint32(c.ChunkSize)
	s.shift = uint32(bits.TrailingZeros32(s.chunk))
	s.sg = c.SG
	s.rxBase = uint32(chunks.first) << s.shift
	s.rxSize = uint32(c.FillDepth) << s.shift
	s.txBase = s.rxBase + s.rxSize
	s.batch = make([]rxFrame, min(MaxBatch, c.RXRing))
	s.txHead = uint32(c.TXHead)
	s.need = 1
	if c.SG {
		s.need = 2
	}
	s.limit = min(c.InFlight, c.TXFrames)
	s.state = make([]uint8, c.TXFrames)
	s.free = make([]uint32, 0, c.TXFrames)
	for i := c.TXFrames - 1; i >= 0; i-- {
		s.free = append(s.free, s.txBase+uint32(i)<<s.shift)
	}
	s.poll[1] = unix.PollFd{Fd: int32(c.WakeFD), Events: unix.POLLIN}
	s.nPoll = 1
	if c.WakeFD != 0 {
		s.nPoll = 2
	}
	s.owner.init(s)
}

// prime lends all receive chunks to the kernel.
func (s *Socket) prime() {
	for i := range s.cfg.FillDepth {
		a := s.rxBase + uint32(i)<<s.shift
		s.owner.move(a, ownedFree, ownedFill)
		s.fill.put(uint64(a))
	}
	s.fill.publish()
}

// Close takes the socket out of its XSKMAP, unmaps the rings, closes the descriptor and frees the
// packet memory if it is the socket's own. Frames in flight may be lost. The queue can be bound
// again a few ms later (Open retries by itself). Slices from Packet and Reserve are invalid
// afterwards. Closing twice is fine; the other methods do nothing on a closed socket.
func (s *Socket) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.gone = true
	if s.xskmap != nil {
		// The kernel removes the socket by itself in the end; this stops the flow before the rings
		// go.
		_ = s.xskmap.Delete(s.cfg.MapOffset + uint32(s.cfg.Queue))
		_ = s.xskmap.Close()
	}
	s.retire()
	var first error
	keep := func(err error) {
		if first == nil && err != nil {
			first = err
		}
	}
	// A ring left mapped would keep the queue bound for as long as the process lives.
	for _, m := range s.maps {
		keep(m.unmap())
	}
	s.maps = nil
	if s.umem != nil {
		s.umem.leave(s.fd)
	}
	if s.file != nil {
		keep(s.file.Close())
	} else if s.fd >= 0 {
		keep(unix.Close(s.fd))
	}
	if s.ctl >= 0 {
		keep(unix.Close(s.ctl))
	}
	s.fd, s.ctl = -1, -1
	if s.umem != nil {
		s.umem.give(s.chunks)
		if s.ownUMEM {
			keep(s.umem.Close())
		}
	}
	if first != nil {
		return fmt.Errorf("close queue %d of %s: %w", s.cfg.Queue, s.ifname, first)
	}
	return nil
}

// retire puts the socket on empty rings, where every method finds nothing to do.
func (s *Socket) retire() {
	s.last = s.kernelStats()
	s.rx = newConsumer(heapRing[desc](1, 0))
	s.comp = newConsumer(heapRing[uint64](1, 0))
	s.tx = newProducer(heapRing[desc](1, 0))
	s.fill = newProducer(heapRing[uint64](1, 0))
	s.mem, s.free, s.batch = nil, nil, nil
	s.scanned, s.held, s.reserved, s.inFlight, s.again = 0, 0, 0, 0, false
}
