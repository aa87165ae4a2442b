package perf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Op is what a test does to the other side's memory.
type Op int

// The operations that can be tested.
const (
	Write Op = iota
	Read
	Send
	Atomic // FETCH_ADD
)

var opNames = [...]string{"RDMA_Write", "RDMA_Read", "Send", "Atomic FETCH_AND_ADD"}

// String is the name that perftest's tables give the operation.
func (o Op) String() string { return opNames[o] }

// A Test is one of perftest's programs, without its "ib_".
type Test struct {
	Name    string
	Op      Op
	Latency bool // else bandwidth
}

var tests = []Test{
	{"write_bw", Write, false}, {"write_lat", Write, true},
	{"read_bw", Read, false}, {"read_lat", Read, true},
	{"send_bw", Send, false}, {"send_lat", Send, true},
	{"atomic_bw", Atomic, false}, {"atomic_lat", Atomic, true},
}

// Tests returns all tests.
func Tests() []Test { return slices.Clone(tests) }

// Lookup finds a test by name, with or without "ib_" in front.
func Lookup(name string) (Test, error) {
	for _, t := range tests {
		if t.Name == strings.TrimPrefix(name, "ib_") {
			return t, nil
		}
	}
	var names []string
	for _, t := range tests {
		names = append(names, t.Name)
	}
	return Test{}, fmt.Errorf("there is no test %q; there are %s", name, strings.Join(names, ", "))
}

// Transport is the service of the QPs.
type Transport string

// The transports.
const (
	RC Transport = "RC"
	UC Transport = "UC"
	UD Transport = "UD"
)

// Progress says who drives the shards.
type Progress string

// The ways of progress. Without one, latency tests use Caller and bandwidth tests Poller.
const (
	Caller Progress = "caller" // the goroutine that polls for completions
	Poller Progress = "poller" // a thread of its own
)

// Defaults, those of perftest where it has them.
const (
	DefaultPort      = 18515
	DefaultTXDepth   = 128
	DefaultRXDepth   = 512
	DefaultCQMod     = 100
	defaultBWSize    = 65536
	defaultLatSize   = 2
	atomicSize       = 8
	maxSize          = 1 << 31
	maxAllSize       = 1 << 23
	maxQPs           = 16384
	maxDepth         = 1 << 15
	defaultWriteBW   = 5000
	defaultIters     = 1000
	localAckTimeout  = 14 // 4.096 µs × 2^14 = 67 ms
	defaultMinRNR    = 12 // 0.64 ms
	defaultRetries   = 7
	defaultRdAtomic  = 16
	atomicsInFlight  = defaultRdAtomic
	inlineWrite      = 220 // bytes sent inline in latency tests
	inlineSend       = 236
	inlineUD         = 188
	maxInlineSize    = 1024
	grhLen           = 40 // of a UD receive
	defaultGIDIndex  = -1
	patternSeed      = 0x726f786965 // "roxie"
	ringBytes        = 1 << 22      // of receive slots for each QP, at most
	largeMessageSize = 8192
)

// Config describes a run. The zero value of a field means its default.
type Config struct {
	Test      Test
	Transport Transport // RC
	Size      int       // bytes of a message; 65536 (bandwidth) or 2 (latency); atomics: 8
	All       bool      // sizes 2, 4, … instead, up to Largest, on UD up to the PMTU
	Largest   int       // 2^23
	Iters     int       // messages of each QP and size; 5000 for write_bw, else 1000
	Duration  time.Duration
	PMTU      int // 256 … 4096; the largest that fits the link, of both sides the smaller one
	QPs       int // 1
	TXDepth   int // 128
	RXDepth   int // 512
	CQMod     int // work requests per signaled one, bandwidth only; 100
	Inline    int // greatest size sent inline; -1 never; 0: latency tests as perftest, bandwidth never
	Timeout   int // local ACK timeout, 4.096 µs × 2^n, 1 to 31: 14 (67 ms)
	Events    bool
	Progress  Progress
	// Bidirectional has both ends send at a time (bandwidth). It cannot be verified.
	Bidirectional bool
	// GC disturbs an end that runs as a process of its own, to see what that does to latencies.
	GC GC
	// CM connects the QPs by RDMA-CM, at Port. It cannot be verified.
	CM bool

	Verify bool
	Inject int // bytes to flip after arrival, before they are checked

	Interface string
	GIDIndex  int // -1: the first IPv4 address, else the first
	VLAN      int
	Queues    int // 1
	Mode      string
	CPU       int // that drives the first shard, -1: any
	Port      int // 18515

	Server  string // address to connect to; empty: be the server
	Capture string // pcapng file, both directions
	Control string // path of a control socket (package observe); empty: none; in a Pair the client's
}

// Check says what makes no sense in a configuration.
func (c Config) Check() error { return c.validate() }

// validate fills in the defaults and refuses what makes no sense.
func (c *Config) validate() error {
	if c.Test.Name == "" {
		return errors.New("no test given")
	}
	c.fillDefaults()
	if err := c.checkTransport(); err != nil {
		return err
	}
	least := 1
	if c.Transport == UD {
		least = 0 // what one packet takes, see sizes
	}
	for _, f := range []struct {
		flag            string
		value, min, max int
	}{
		{"-s", c.Size, least, maxSize},
		{"-n", c.Iters, 1, 1 << 40},
		{"-q", c.QPs, 1, maxQPs},
		{"-t", c.TXDepth, 1, maxDepth},
		{"-r", c.RXDepth, 1, maxDepth},
		{"-Q", c.CQMod, 1, maxDepth},
		{"--inline", c.Inline, -1, maxInlineSize},
		{"-p", c.Port, 1, 65535},
		{"-u", c.Timeout, 1, 31},
		{"-x", c.GIDIndex, -1, math.MaxInt32},
		{"--vlan", c.VLAN, 0, 4094},
		{"--queues", c.Queues, 1, 4096},
		{"--cpu", c.CPU, -1, math.MaxInt32},
		{"--verify-inject", c.Inject, 0, 1 << 40},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s %d is out of range, %d to %d", f.flag, f.value, f.min, f.max)
		}
	}
	switch {
	case c.Duration < 0:
		return fmt.Errorf("-D %v is negative", c.Duration)
	case c.PMTU != 0 && (c.PMTU < 256 || c.PMTU > 4096 || c.PMTU&(c.PMTU-1) != 0):
		return fmt.Errorf("-m %d is no path MTU: 256, 512, 1024, 2048 or 4096", c.PMTU)
	case c.Progress != Caller && c.Progress != Poller:
		return fmt.Errorf("--progress %s: caller or poller", c.Progress)
	case c.Mode != "auto" && c.Mode != "native" && c.Mode != "generic":
		return fmt.Errorf("--xdp %s: auto, native or generic", c.Mode)
	case c.Test.Op == Atomic && c.Size != atomicSize:
		return fmt.Errorf("-s %d: atomics are %d bytes long", c.Size, atomicSize)
	case c.Test.Op == Atomic && c.All:
		return fmt.Errorf("-a: atomics have one size, %d bytes", atomicSize)
	case c.All && c.Duration != 0:
		// perftest refuses it as well: which size would the time be of?
		return errors.New("-a and -D exclude each other")
	case c.Bidirectional && c.Test.Latency:
		return errors.New("-b: latency tests go both ways anyway")
	case c.Bidirectional && c.Verify:
		return errors.New("-b and --verify exclude each other: run both directions one by one")
	case c.CM && c.Verify:
		return errors.New("-R and --verify exclude each other: perftest's exchange, which -R goes with, " +
			"has no place for what was verified")
	case c.CM && c.Transport == UC:
		return errors.New("-R -c UC: RDMA-CM's TCP port space has reliable connections only")
	case c.Test.Latency && c.QPs != 1:
		return fmt.Errorf("-q %d: latency tests have one QP", c.QPs)
	}
	return nil
}

func (c *Config) fillDefaults() {
	lat := c.Test.Latency
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Transport == "" {
		c.Transport = RC
	}
	c.Transport = Transport(strings.ToUpper(string(c.Transport)))
	switch {
	case c.Test.Op == Atomic:
		set(&c.Size, atomicSize)
	case lat:
		set(&c.Size, defaultLatSize)
	case c.Transport != UD: // on UD: as much as one packet takes, once the PMTU is known
		set(&c.Size, defaultBWSize)
	}
	if c.Test.Name == "write_bw" {
		set(&c.Iters, defaultWriteBW)
	}
	set(&c.Iters, defaultIters)
	set(&c.Largest, maxAllSize)
	set(&c.QPs, 1)
	set(&c.TXDepth, DefaultTXDepth)
	set(&c.RXDepth, DefaultRXDepth)
	set(&c.CQMod, DefaultCQMod)
	set(&c.Timeout, localAckTimeout)
	set(&c.Queues, 1)
	set(&c.Port, DefaultPort)
	c.CQMod = min(c.CQMod, c.TXDepth)
	if c.Mode == "" {
		c.Mode = "auto"
	}
	if c.Progress == "" {
		c.Progress = Poller
		if lat {
			c.Progress = Caller
		}
	}
	if c.Inject > 0 {
		c.Verify = true
	}
}

func (c *Config) checkTransport() error {
	switch c.Transport {
	case RC:
		return nil
	case UC:
		if c.Test.Op == Read || c.Test.Op == Atomic {
			return fmt.Errorf("-c UC: %s needs RC", c.Test.Name)
		}
		return nil
	case UD:
		if c.Test.Op != Send {
			return fmt.Errorf("-c UD: %s needs a connection; UD has send_bw and send_lat", c.Test.Name)
		}
		return nil
	}
	return fmt.Errorf("-c %s: RC, UC or UD", c.Transport)
}

// sizes are the message sizes of a run at a path MTU, in order.
func (c *Config) sizes(pmtu int) ([]int, error) {
	if !c.All {
		size := c.Size
		if size == 0 {
			size = pmtu
		}
		if c.Transport == UD && size > pmtu {
			return nil, fmt.Errorf("-s %d: a UD message is one packet, at most %d bytes here; "+
				"give "+
				"-s %d, or a larger -m on a larger link MTU", size, pmtu, pmtu)
		}
		return []int{size}, nil
	}
	largest := c.Largest
	if c.Transport == UD {
		largest = min(largest, pmtu)
	}
	var all []int
	for s := 2; s <= largest; s *= 2 {
		all = append(all, s)
	}
	return all, nil
}

// inline is the greatest message that is posted with its data in the work request.
func (c *Config) inline() int {
	switch {
	case c.Test.Op == Read || c.Test.Op == Atomic || c.Inline < 0:
		return 0
	case c.Inline > 0:
		return c.Inline
	case !c.Test.Latency:
		return 0
	case c.Transport == UD:
		return inlineUD
	case c.Test.Op == Send:
		return inlineSend
	}
	return inlineWrite
}
