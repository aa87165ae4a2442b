// Package raw measures what AF_XDP itself can do between two queues, with no protocol on top: the
// ceiling that an endpoint's figures are divided by. Both ends run in this process, on package
// xdp, with a tiny XDP program of their own that redirects the test's frames only and passes all
// else.
//
//	Stream:   A ── frames ──► B                frames/s and Gb/s of frames that arrived
//	PingPong: A ── frame ──► B ── frame ──► A  half the round trip
//
// Frames are counted from the Ethernet header to the last byte, without FCS. They carry EtherType
// 0x88b5 (local experiments). The payload is neither written nor read, as in a loop in C that
// shows the ceiling; the first 18 bytes are written and checked.
//
// On a veth pair the receive work of the kernel runs inside the sender's system call, so that one
// thread that does both directions is the cheapest arrangement. With two threads, each on its own
// core, the receiver spins on its ring. Which of them is the fair base depends on what is compared
// with it.
package raw

import (
	"errors"
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/xdp"
)

// End names one end of the link.
type End struct {
	// Netns is the path of a network namespace handle (/run/netns/NAME, /proc/PID/ns/net), empty
	// for that of the caller's thread.
	Netns     string
	Interface string
	Queue     int
}

// Config says what to measure. The two ends must be joined by a link that is up.
type Config struct {
	A, B End // A sends first

	// FrameSize in bytes, 18 to the link MTU plus 14.
	FrameSize int
	// Duration of the measurement, after a tenth of it to warm up (0: 1 s).
	Duration time.Duration
	// Batch is the number of frames sent with one call, Stream only (0: 32).
	Batch int
	// Threads is 1 for both ends in one thread, 2 for one each (0: 1).
	Threads int
	// CPUs pins the threads, the first to CPUs[0] and so on; nil leaves them to the scheduler.
	CPUs []int
	// FillDepth is the number of chunks lent to the kernel at each end (0: 256).
	FillDepth int
	// Generic attaches in generic (skb) mode. Otherwise native mode is tried first.
	Generic bool
}

// Result is what Stream measured.
type Result struct {
	FrameSize int           `json:"frame_size"`
	Threads   int           `json:"threads"`
	Frames    uint64        `json:"frames"` // that arrived in Elapsed
	Elapsed   time.Duration `json:"elapsed_ns"`
	Mpps      float64       `json:"mpps"` // millions of frames a second
	Gbps      float64       `json:"gbps"` // 10^9 frame bits a second
	Lost      uint64        `json:"lost"` // frames sent that did not arrive
	Mode      string        `json:"mode"` // "native" or "generic"
	ZeroCopy  bool          `json:"zerocopy"`
	CPU       time.Duration `json:"cpu_ns"` // of the receiver's thread in Elapsed; with one thread: of both
}

// Latency is what PingPong measured: half the time from before the send to after the receive of the
// answer.
type Latency struct {
	FrameSize int           `json:"frame_size"`
	Threads   int           `json:"threads"`
	Rounds    uint64        `json:"rounds"`
	Min       time.Duration `json:"min_ns"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	P999      time.Duration `json:"p999_ns"`
	Max       time.Duration `json:"max_ns"`
	Lost      uint64        `json:"lost"` // frames that did not arrive within 100 ms
	Mode      string        `json:"mode"`
	ZeroCopy  bool          `json:"zerocopy"`
	// Dist is the whole distribution.
	Dist []perf.Quantile `json:"dist,omitempty"`
}

// headerLen is what each frame starts with: Ethernet header and a 32-bit sequence number.
const headerLen = 18

// etherType of the frames: IEEE 802 local experimental 1.
const etherType = 0x88b5

func (c *Config) validate() error {
	if c.Duration == 0 {
		c.Duration = time.Second
	}
	if c.Batch == 0 {
		c.Batch = 32
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.FillDepth == 0 {
		c.FillDepth = 256
	}
	switch {
	case c.A.Interface == "" || c.B.Interface == "":
		return errors.New("raw: no interface given")
	case c.FrameSize < headerLen || c.FrameSize > 1<<16:
		return fmt.Errorf("raw: frame size %d: want %d to 65536", c.FrameSize, headerLen)
	case c.Duration < 0:
		return fmt.Errorf("raw: duration %v", c.Duration)
	case c.Batch < 1 || c.Batch > xdp.MaxBatch:
		return fmt.Errorf("raw: batch %d: want 1 to %d", c.Batch, xdp.MaxBatch)
	case c.Threads != 1 && c.Threads != 2:
		return fmt.Errorf("raw: %d threads: want 1 or 2", c.Threads)
	case c.FillDepth < 2*xdp.MaxParts || c.FillDepth > 1<<16:
		return fmt.Errorf("raw: fill depth %d: want %d to 65536", c.FillDepth, 2*xdp.MaxParts)
	case len(c.CPUs) != 0 && len(c.CPUs) < c.Threads:
		return fmt.Errorf("raw: %d CPUs for %d threads", len(c.CPUs), c.Threads)
	}
	return nil
}
