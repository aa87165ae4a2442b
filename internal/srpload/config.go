package srpload

import (
	"fmt"
	"time"
)

// Workload is how registrations are used.
type Workload string

// The workloads.
const (
	SRP  Workload = "srp"  // a new list for every I/O
	RTRS Workload = "rtrs" // lists mapped once
)

// Inv says who takes keys away.
type Inv string

// Who invalidates.
const (
	InvMixed  Inv = "mixed"  // the target for every other I/O, in its answer
	InvLocal  Inv = "local"  // the initiator, by LOCAL_INV
	InvRemote Inv = "remote" // the target, by SEND_WITH_INV
)

// Progress says who moves packets.
type Progress string

// The ways of progress.
const (
	Caller Progress = "caller" // the goroutine that polls
	Poller Progress = "poller" // a thread of its own
)

// Defaults and limits.
const (
	DefaultChannels = 4
	DefaultDepth    = 32
	DefaultPort     = 18516
	MinSize         = 512
	MaxSize         = 1 << 20

	maxChannels = 256
	maxDepth    = 1024
	warmUp      = 200 * time.Millisecond
	page        = 4096
	slotBytes   = MaxSize + 2*page // memory of the largest I/O
	maxSegs     = slotBytes/page + 1
	patternLen  = 4 << 20
)

// Config describes a run. The zero value of a field means its default.
type Config struct {
	Workload   Workload // SRP
	Persistent bool     // fixed registrations
	Inv        Inv      // InvMixed; not with Persistent
	Channels   int      // 4; each is a QP
	Depth      int      // 32: I/Os outstanding of each channel
	Size       int      // bytes of every I/O, 512 to 2^20; 0: log-uniform between these
	Duration   time.Duration
	Progress   Progress // Caller
	Seed       uint64
	PMTU       int // 0: the largest that fits the link

	Interface string
	GIDIndex  int // -1: the first IPv4 address, else the first
	Queues    int // 1
	CPU       int // that moves the packets, -1: any
	Port      int // TCP, 18516

	Server string // address of the target; empty: be the target
	Inject int    // bytes to change before they are compared, for tests of the comparison
}

// Check says what makes no sense in a configuration.
func (c Config) Check() error { return c.validate() }

func (c *Config) validate() error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Channels, DefaultChannels)
	def(&c.Depth, DefaultDepth)
	def(&c.Port, DefaultPort)
	def(&c.Queues, 1)
	if c.Workload == "" {
		c.Workload = SRP
	}
	if c.Inv == "" {
		c.Inv = InvMixed
	}
	if c.Progress == "" {
		c.Progress = Caller
	}
	if c.Duration == 0 {
		c.Duration = 5 * time.Second
	}
	for _, f := range []struct {
		flag            string
		value, min, max int
	}{
		{"--channels", c.Channels, 1, maxChannels},
		{"--depth", c.Depth, 1, maxDepth},
		{"-p", c.Port, 1, 65535},
		{"--queues", c.Queues, 1, 64},
		{"--verify-inject", c.Inject, 0, 1 << 30},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s %d is out of range, %d to %d", f.flag, f.value, f.min, f.max)
		}
	}
	switch {
	case c.Size != 0 && (c.Size < MinSize || c.Size > MaxSize):
		return fmt.Errorf("-s %d is out of range, %d to %d", c.Size, MinSize, MaxSize)
	case c.Duration < 0:
		return fmt.Errorf("-D %v is negative", c.Duration)
	case c.Workload != SRP && c.Workload != RTRS:
		return fmt.Errorf("there is no workload %q", c.Workload)
	case c.Inv != InvMixed && c.Inv != InvLocal && c.Inv != InvRemote:
		return fmt.Errorf("--invalidate %s: mixed, local or remote", c.Inv)
	case c.Progress != Caller && c.Progress != Poller:
		return fmt.Errorf("--progress %s: caller or poller", c.Progress)
	case c.PMTU != 0 && (c.PMTU < 256 || c.PMTU > 4096 || c.PMTU&(c.PMTU-1) != 0):
		return fmt.Errorf("-m %d is no path MTU: 256, 512, 1024, 2048 or 4096", c.PMTU)
	}
	return nil
}

// largest is the size of the largest I/O.
func (c *Config) largest() int {
	if c.Size != 0 {
		return c.Size
	}
	return MaxSize
}

// slotLen is the memory of one slot of the initiator: whole pages, with room for an unaligned list.
func (c *Config) slotLen() int { return (c.largest()+page-1)/page*page + 2*page }

// remoteInv says whether the target invalidates the key of I/O n.
func (c *Config) remoteInv(n uint64) bool {
	switch {
	case c.Persistent, c.Inv == InvLocal:
		return false
	case c.Inv == InvRemote:
		return true
	}
	return n%2 == 0
}
