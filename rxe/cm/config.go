package cm

import (
	"errors"
	"time"
)

// Config is what a Machine needs to know; zero fields take their defaults.
type Config struct {
	// Rand returns 64 random bits; required. Communication ids come from it: an attacker who does
	// not see the traffic must guess them, so production uses a cryptographic source.
	Rand func() uint64
	// GUID is the CA's, in every REQ and REP; required, unique among the hosts that connect.
	GUID uint64
	// PKey of all connections; 0 = 0xffff, the default partition.
	PKey uint16
	// MaxMTU is the largest PMTU code (1 = 256 … 5 = 4096) accepted in a REQ; 0 = 5. See SetMaxMTU.
	MaxMTU uint8

	// ResponseTimeout is the code 4.096 µs·2ⁿ that REQs carry for both directions; 0 = 20 (4.3 s).
	ResponseTimeout uint8
	// RetryFirst is the time to the first retransmission; it doubles up to the peer's promised
	// response time plus two packet lifetimes. 0 = 500 ms.
	RetryFirst time.Duration
	// MaxRetries is how often a REQ, DREQ or SIDR_REQ is retransmitted, 1 … 15; 0 = 15.
	MaxRetries uint8
	// ServiceTimeout is the code in our MRAs, 1 … 31; 0 = 24 (68.7 s).
	ServiceTimeout uint8
	// AcceptTimeout is how long a request waits for Accept or Reject; 0 = 60 s.
	AcceptTimeout time.Duration
	// ConfirmTimeout is how long the peer has to confirm what was accepted; 0 = as long as REPs are
	// sent again, which takes a minute.
	ConfirmTimeout time.Duration
	// AckDelay is our target ACK delay code; 0 = 15 (134 ms).
	AckDelay uint8
	// PacketLife is the packet lifetime code of our paths; 0 = 16 (268 ms).
	PacketLife uint8
	// Keepalive is the interval of EventKeepalive on established connections; 0 = none. See
	// SetKeepalive.
	Keepalive time.Duration
	// ProbeStale: when a REQ or REP says that a connection's remote QP has been reused, ask for a
	// keepalive on that connection instead of ending it with a DREQ as the rules say. A peer that
	// lost it lets the keepalive time out; a forged or replayed REQ does no harm.
	ProbeStale bool

	MaxConns        int // connections in any state; 0 = 65536
	MaxHalfOpen     int // requests received and not yet established; 0 = 4096
	MaxHalfOpenPeer int // the same for one peer address; 0 = 128
	MaxEvents       int // events not yet polled above which no request is taken; 0 = 16384
	MaxQueue        int // MADs not yet pulled, above which they are dropped; 0 = 4096
	MaxFarewells    int // rejected and resolved requests remembered for duplicates; 0 = 1024
}

// Bounds on what a peer may make us wait.
const (
	maxTimeoutCode = 21 // 8.6 s: a peer's response timeout and ACK delay, and the ACK timeout in a REQ
	maxLifeCode    = 19 // 2.1 s: the packet lifetime in a REQ
	maxServiceCode = 25 // 137 s: an MRA
)

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// validate fills defaults.
func (c *Config) validate() error {
	if c.Rand == nil {
		return errors.New("cm config: Rand is required")
	}
	if c.GUID == 0 {
		return errors.New("cm config: GUID is required")
	}
	orDefault(&c.PKey, 0xffff)
	orDefault(&c.MaxMTU, 5)
	orDefault(&c.ResponseTimeout, 20)
	orDefault(&c.RetryFirst, 500*time.Millisecond)
	orDefault(&c.MaxRetries, 15)
	orDefault(&c.ServiceTimeout, 24)
	orDefault(&c.AcceptTimeout, 60*time.Second)
	orDefault(&c.AckDelay, 15)
	orDefault(&c.PacketLife, 16)
	orDefault(&c.MaxConns, 65536)
	orDefault(&c.MaxHalfOpen, 4096)
	orDefault(&c.MaxHalfOpenPeer, 128)
	orDefault(&c.MaxEvents, 16384)
	orDefault(&c.MaxQueue, 4096)
	orDefault(&c.MaxFarewells, 1024)
	switch {
	case c.MaxMTU > 5:
		return errors.New("cm config: MaxMTU is a code from 1 to 5")
	case c.MaxRetries > 15:
		return errors.New("cm config: MaxRetries has 4 bits")
	case max(c.ResponseTimeout, c.AckDelay) > maxTimeoutCode || c.PacketLife > maxLifeCode:
		return errors.New("cm config: a timeout code is above 21 (8.6 s), a lifetime above 19")
	case c.ServiceTimeout > 31:
		return errors.New("cm config: ServiceTimeout is a code of 5 bits")
	case c.RetryFirst < time.Millisecond:
		return errors.New("cm config: RetryFirst is below 1 ms")
	case min(c.AcceptTimeout, c.ConfirmTimeout, c.Keepalive) < 0:
		return errors.New("cm config: a duration is negative")
	case min(c.MaxConns, c.MaxHalfOpen, c.MaxHalfOpenPeer, c.MaxEvents, c.MaxQueue,
		c.MaxFarewells) < 1:
		return errors.New("cm config: a limit is negative")
	}
	return nil
}
