package xdp

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// ZeroCopy says whether the driver may, must or must not work on the packet memory itself.
type ZeroCopy uint8

// The three choices of Config.ZeroCopy.
const (
	Auto    ZeroCopy = iota // zero-copy where the driver has it, else copy; Socket.ZeroCopy tells
	Require                 // zero-copy or ErrZeroCopy
	Never                   // always copy
)

// String returns the name as in the source.
func (z ZeroCopy) String() string {
	switch z {
	case Auto:
		return "Auto"
	case Require:
		return "Require"
	case Never:
		return "Never"
	}
	return fmt.Sprintf("ZeroCopy(%d)", uint8(z))
}

// Defaults of Config. They are those measured best on veth; real NICs want a larger FillDepth (the
// NIC's ring plus the RX ring) and InFlight (the NIC's ring).
const (
	DefaultChunkSize = 4096 // bytes
	DefaultFillDepth = 512  // chunks lent to the kernel for receiving
	DefaultTXFrames  = 512  // chunks for sending
	DefaultInFlight  = 128  // frames
	DefaultTXBudget  = 256  // descriptors the kernel takes in one call
)

// RXReserve is what the kernel keeps at the start of each receive chunk: a received part has room
// for ChunkSize-RXReserve bytes (3840 of 4096, 1792 of 2048).
const RXReserve = 256

// MaxParts is the greatest number of chunks one frame may take (the kernel's MAX_SKB_FRAGS+1).
const MaxParts = 18

// MaxBatch is the most frames one Receive returns.
const MaxBatch = 256

// Unlimited, as Config.InFlight, leaves the number of frames in flight to the ring sizes.
const Unlimited = -1

// MinFrame is the shortest frame Submit takes, in bytes: an Ethernet header. The kernel would drop
// shorter ones without a word.
const MinFrame = 14

// Config describes a Socket. The zero value of each field except the interface means a good
// default.
type Config struct {
	// Interface is the name of the interface in the network namespace of the socket. Ifindex, if
	// not 0, is used instead.
	Interface string
	Ifindex   int

	// Queue is the receive and transmit queue, 0 and up. AF_XDP sockets receive only what arrives
	// on their own queue, so most programs open one Socket for each queue.
	Queue int

	// XSKMAP, if not nil, is the BPF map (type XSKMap) of the XDP program that redirects frames
	// here. Open enters the socket at key MapOffset+Queue, Close removes it. The caller keeps the
	// map.
	XSKMAP    *ebpf.Map
	MapOffset uint32

	// UMEM is packet memory to share with other sockets, of other queues or interfaces of the same
	// network namespace. Nil: the socket makes its own, of just the right size, and frees it in
	// Close. Sockets that share a UMEM must agree in SG, NeedWakeup and the zero-copy mode: what
	// the first one binds with holds for all.
	UMEM *UMEM

	// ChunkSize of the own UMEM: 2048 or 4096 bytes (0: 4096). With a shared one, 0 or its chunk
	// size.
	ChunkSize int

	// SG turns on multi-buffer frames (kernel 6.6 and up): frames larger than one chunk, in both
	// directions. The XDP program must be loaded with BPF_F_XDP_HAS_FRAGS.
	SG bool

	// FillDepth is the number of chunks for receiving, at least 1 (0: 512). Frames that arrive
	// while all of them wait in the rings are dropped and counted; a deep ring walks cold memory
	// and is slow (on veth 1024 costs a sixth, 4096 more than doubles the time for each frame).
	FillDepth int

	// TXFrames is the number of chunks for sending, at least 1, with SG at least 2 (0: 512). A
	// frame takes one chunk, or as many as it has parts, from Submit until Reap finds it
	// completed.
	TXFrames int

	// Ring sizes in entries, powers of two. 0: the least that holds FillDepth (RX, Fill) or
	// TXFrames (TX, Completion). FillRing, TXRing and CompletionRing may not be smaller than that.
	RXRing, FillRing, TXRing, CompletionRing int

	// TXHead is the size of the first part of a frame to send, in bytes, 64 to ChunkSize
	// (0: ChunkSize-RXReserve, so that frames are cut as the receiver will see them).
	TXHead int

	// InFlight is the most frames sent and not yet completed (0: 128, Unlimited: no cap). A veth's
	// ring holds 256: a cap below that loses no frame there. Completions of a tap come at once,
	// and the cap does not protect the receiver's fill ring.
	InFlight int

	// TXBudget is the most descriptors the kernel takes in one Kick in copy mode, 32 to TXRing (0:
	// 256, or TXRing if less). Kernels before 6.17 take 32; Kick then calls again.
	TXBudget int

	// ZeroCopy: Auto, Require or Never.
	ZeroCopy ZeroCopy

	// BusyPoll, if not 0, turns on preferred busy polling for that long in a call (whole µs, best
	// below 100 µs): the driver's receive work runs in the calls of this socket's owner. Of no use
	// on veth. Needs CAP_NET_ADMIN. BusyBudget is the most frames handled in one go (0: 64).
	BusyPoll   time.Duration
	BusyBudget int

	// WakeFD, if not 0, is an extra descriptor (an eventfd, as a rule) that ends Wait when it
	// becomes readable. The caller reads and closes it.
	WakeFD int

	// Socket, if not nil, is an AF_XDP socket opened before, maybe by a process with more rights.
	// Open takes it over, also when it returns an error; Close closes it.
	Socket *os.File
}

// validate fills the defaults in and refuses what cannot work.
func (c *Config) validate() error {
	if c.Interface == "" && c.Ifindex == 0 {
		return errors.New("no interface given")
	}
	if c.Queue < 0 || c.Ifindex < 0 {
		return fmt.Errorf("negative queue %d or ifindex %d", c.Queue, c.Ifindex)
	}
	if err := c.validateMemory(); err != nil {
		return err
	}
	if err := c.validateRings(); err != nil {
		return err
	}
	switch {
	case c.InFlight == 0:
		c.InFlight = DefaultInFlight
	case c.InFlight == Unlimited:
		c.InFlight = c.TXFrames
	case c.InFlight < 0:
		return fmt.Errorf("InFlight %d: want 1 and up, or Unlimited", c.InFlight)
	}
	if c.TXBudget == 0 {
		c.TXBudget = min(DefaultTXBudget, c.TXRing)
	}
	if c.TXBudget < 1 || c.TXBudget > c.TXRing {
		return fmt.Errorf("TXBudget %d: want 32 to the TX ring's %d", c.TXBudget, c.TXRing)
	}
	if c.BusyPoll < 0 || c.BusyPoll > time.Second || c.BusyBudget < 0 || c.BusyBudget > 1<<16-1 {
		return fmt.Errorf("BusyPoll %v with budget %d out of range", c.BusyPoll, c.BusyBudget)
	}
	if c.ZeroCopy > Never {
		return fmt.Errorf("unknown %v", c.ZeroCopy)
	}
	return nil
}

func (c *Config) validateMemory() error {
	if c.UMEM != nil {
		if c.ChunkSize != 0 && c.ChunkSize != c.UMEM.chunk {
			return fmt.Errorf("ChunkSize %d differs from the UMEM's %d", c.ChunkSize, c.UMEM.chunk)
		}
		c.ChunkSize = c.UMEM.chunk
	}
	if c.ChunkSize == 0 {
		c.ChunkSize = DefaultChunkSize
	}
	if c.ChunkSize != 2048 && c.ChunkSize != 4096 {
		return fmt.Errorf("ChunkSize %d: want 2048 or 4096", c.ChunkSize)
	}
	if c.FillDepth == 0 {
		c.FillDepth = DefaultFillDepth
	}
	if c.TXFrames == 0 {
		c.TXFrames = DefaultTXFrames
	}
	if c.FillDepth < 1 || c.FillDepth > 1<<16 {
		return fmt.Errorf("FillDepth %d: want 1 to 65536", c.FillDepth)
	}
	least := 1
	if c.SG {
		least = 2
	}
	if c.TXFrames < least || c.TXFrames > 1<<16 {
		return fmt.Errorf("TXFrames %d: want %d to 65536", c.TXFrames, least)
	}
	if c.TXHead == 0 {
		c.TXHead = c.ChunkSize - RXReserve
	}
	if c.TXHead < 64 || c.TXHead > c.ChunkSize {
		return fmt.Errorf("TXHead %d: want 64 to %d", c.TXHead, c.ChunkSize)
	}
	return nil
}

func (c *Config) validateRings() error {
	for _, r := range []struct {
		name  string
		size  *int
		holds int
		least int
	}{
		{"RXRing", &c.RXRing, c.FillDepth, 1},
		{"FillRing", &c.FillRing, c.FillDepth, c.FillDepth},
		{"TXRing", &c.TXRing, c.TXFrames, c.TXFrames},
		{"CompletionRing", &c.CompletionRing, c.TXFrames, c.TXFrames},
	} {
		if *r.size == 0 {
			*r.size = max(64, powerOfTwo(r.holds))
		}
		if n := *r.size; n < r.least || n > 1<<20 || n&(n-1) != 0 {
			return fmt.Errorf("%s %d: want a power of two from %d to 1048576", r.name, n, r.least)
		}
	}
	if c.SG && c.RXRing < 2*MaxParts {
		return fmt.Errorf("RXRing %d: want 64 at least with SG", c.RXRing)
	}
	return nil
}

// powerOfTwo returns the least power of two that is not below n, for n ≥ 1.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
