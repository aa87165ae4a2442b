package pingpong

import (
	"errors"
	"fmt"
	"slices"

	"github.com/roxie-rdma/roxie/bpf"
)

// Kind is what is played over.
type Kind string

// The kinds.
const (
	RC  Kind = "rc"  // reliable connection
	UC  Kind = "uc"  // unreliable connection
	UD  Kind = "ud"  // datagrams
	SRQ Kind = "srq" // several reliable connections that share a receive queue
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{RC, UC, UD, SRQ} }

// Defaults, those of rdma-core's programs.
const (
	DefaultPort    = 18515
	DefaultRXDepth = 500
	DefaultIters   = 1000
	DefaultQPs     = 16 // srq
	defaultPMTU    = 1024
	defaultSize    = 4096
	defaultUDSize  = 1024
	DefaultTimeout = 14 // 4.096 µs × 2^14 = 67 ms
)

const (
	wireDests = 256 // dests in srq's exchange, whatever the number of QPs
	maxSize   = 1 << 30
	maxDepth  = 1 << 15

	qkey        = 0x11111111
	minRNRTimer = 12 // 0.64 ms
	retries     = 7
	rdAtomic    = 1
	grhLen      = 40 // of a UD receive
)

// Config describes a run. The zero value of a field means its default.
type Config struct {
	Kind    Kind // RC
	Size    int  // bytes of a message; 4096, ud 1024
	PMTU    int  // bytes, 256 … 4096; 1024. Both ends must be given the same. Not for ud.
	RXDepth int  // receives kept posted; 500
	Iters   int  // exchanges; 1000. srq: of all QPs together
	QPs     int  // srq: 1 … 256; 16
	Timeout int  // rc, srq: local ACK timeout, 4.096 µs × 2^n, 1 to 31: 14 (67 ms)
	Events  bool // sleep until completions come
	// ExpectEcho sends new data each time and expects it back. For one end only: the other one
	// sends back what it got.
	ExpectEcho bool
	Server     string // address to connect to; empty: be the server
	Port       int    // TCP; 18515

	Interface string
	GIDIndex  int // -1: the first IPv4 address, else the first
	VLAN      int
	Mode      bpf.Mode
	Capture   string // pcapng file, both directions
}

// Check tells what is wrong with a Config, as Run would.
func (c Config) Check() error { return c.validate() }

// validate fills the defaults in and refuses what makes no sense.
func (c *Config) validate() error {
	c.fillDefaults()
	if !slices.Contains(Kinds(), c.Kind) {
		return fmt.Errorf("there is no %q pingpong; there are rc, uc, ud and srq", c.Kind)
	}
	for _, f := range []struct {
		flag            string
		value, min, max int
	}{
		{"-s", c.Size, 1, maxSize},
		{"-r", c.RXDepth, 1, maxDepth},
		{"-n", c.Iters, 1, 1 << 40},
		{"-q", c.QPs, 1, wireDests},
		{"-p", c.Port, 1, 65535},
		{"--qp-timeout", c.Timeout, 1, 31},
		{"--vlan", c.VLAN, 0, 4094},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s %d is out of range, %d to %d", f.flag, f.value, f.min, f.max)
		}
	}
	switch {
	case c.PMTU < 256 || c.PMTU > 4096 || c.PMTU&(c.PMTU-1) != 0:
		return fmt.Errorf("-m %d is no path MTU: 256, 512, 1024, 2048 or 4096", c.PMTU)
	case c.QPs > c.RXDepth:
		return fmt.Errorf("-r %d is too small for %d QPs: each needs a receive", c.RXDepth, c.QPs)
	case c.ExpectEcho && c.QPs > 1:
		return errors.New("-c needs -q 1: all QPs of srq share one buffer at the other end")
	case c.Interface == "":
		return errors.New("no interface given")
	}
	return nil
}

func (c *Config) fillDefaults() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Kind == "" {
		c.Kind = RC
	}
	if c.Kind == UD {
		set(&c.Size, defaultUDSize)
	}
	set(&c.Size, defaultSize)
	set(&c.PMTU, defaultPMTU)
	set(&c.RXDepth, DefaultRXDepth)
	set(&c.Iters, DefaultIters)
	set(&c.Port, DefaultPort)
	set(&c.Timeout, DefaultTimeout)
	if c.Kind == SRQ {
		set(&c.QPs, DefaultQPs)
	} else {
		c.QPs = 1
	}
}
