package verbs

import (
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/xdp"
)

// Progress says who moves packets.
type Progress int

const (
	// ProgressPoller leaves it to one thread a queue, which spins a while and then sleeps: best
	// throughput, costs a core.
	ProgressPoller Progress = iota
	// ProgressCaller lets the goroutine in CQ.Poll do it: lowest latency without a second core. A
	// thread takes over when nobody polled for about 50 µs.
	ProgressCaller
)

// String returns poller or caller.
func (p Progress) String() string {
	switch p {
	case ProgressPoller:
		return "poller"
	case ProgressCaller:
		return "caller"
	}
	return fmt.Sprintf("Progress(%d)", int(p))
}

// Direction of a captured frame.
type Direction uint8

// The directions, seen from this end.
const (
	Inbound  Direction = 1 // numbered as pcapng's epb_flags are
	Outbound Direction = 2
)

// Config opens a device. The zero value of each field means a good default.
type Config struct {
	// Queues is how many queues of the interface to use, from queue 0 on, 1 to 64 (0: 1). Each has
	// its own shard: socket, memory, engine and thread. Frames that arrive on the queues above go
	// to the kernel, so that normally all should be used.
	Queues int

	Progress Progress

	// Mode is how the steering program attaches: bpf.Auto, Native or Generic.
	Mode bpf.Mode

	// ZeroCopy: xdp.Auto, Require or Never.
	ZeroCopy xdp.ZeroCopy

	// VLAN is the 802.1Q tag of all traffic, 1 to 4094; 0 is none.
	VLAN int

	// Sizes of each queue's AF_XDP socket, see xdp.Config. 0 takes what suits the interface.
	FillDepth int // chunks lent to the kernel for receiving
	Frames    int // chunks for sending (xdp.Config.TXFrames)
	RingSize  int // entries of all four rings, a power of two
	TXBudget  int // descriptors the kernel takes in one call
	InFlight  int // frames sent and not completed; xdp.Unlimited: no cap

	// Spin is how long a thread looks for work before it sleeps (0: 50 µs, negative: for ever).
	Spin time.Duration

	// Pin names the CPU of each shard's thread; empty leaves it to the kernel.
	Pin []int

	// Capture, if not nil, is called with every frame received and sent, by whoever holds the
	// shard: it must not block, nor keep the slices.
	Capture func(dir Direction, shard int, t time.Time, head, tail []byte)

	// Window is the most packets in flight for each QP, 1 to 2^22 (0: the engine's default).
	Window int

	// Prepared, if not nil, is the privileged part of Open, done before. Open takes it over, also if
	// it fails; it is good for one Open.
	Prepared *Prepared

	// Seed makes QPNs, PDs and keys repeatable; 0 takes a random one.
	Seed uint64
}

const defaultSpin = 50 * time.Microsecond

// withDefaults returns a checked copy with defaults filled in.
func (c *Config) withDefaults() (Config, error) {
	out := Config{}
	if c != nil {
		out = *c
	}
	if out.Queues == 0 {
		out.Queues = 1
	}
	if out.Spin == 0 {
		out.Spin = defaultSpin
	}
	switch {
	case out.Queues < 1 || out.Queues > rxe.MaxShards:
		return out, fmt.Errorf("%d queues: want 1 to %d", out.Queues, rxe.MaxShards)
	case out.Progress != ProgressPoller && out.Progress != ProgressCaller:
		return out, fmt.Errorf("unknown %v", out.Progress)
	case out.VLAN < 0 || out.VLAN > 4094:
		return out, fmt.Errorf("VLAN %d: want 1 to 4094, or 0 for none", out.VLAN)
	case out.Window < 0 || out.Window > 1<<22:
		return out, fmt.Errorf("window of %d packets: want 1 to 4194304", out.Window)
	case len(out.Pin) != 0 && len(out.Pin) < out.Queues:
		return out, fmt.Errorf("%d CPUs to pin %d threads to", len(out.Pin), out.Queues)
	case out.RingSize != 0 && out.RingSize&(out.RingSize-1) != 0:
		return out, fmt.Errorf("ring size %d: want a power of two", out.RingSize)
	}
	return out, nil
}
