package bpf

import "fmt"

// Verdict says what the steering program did with a frame and why. All but [VerdictRedirected]
// mean that the frame went on to the kernel's stack.
type Verdict uint32

// The order is that of enum verdict in roxie.bpf.c.
const (
	// VerdictRedirected: ours, handed to the AF_XDP socket of its queue. The socket may still drop
	// it for want of a free frame or ring entry; its own statistics count that.
	VerdictRedirected Verdict = iota
	// VerdictNotIP: neither IPv4 nor IPv6 behind Ethernet and at most one 802.1Q tag.
	VerdictNotIP
	// VerdictNotUDP: another protocol, or an IPv6 extension header other than a fragment header.
	VerdictNotUDP
	// VerdictOtherPort: UDP to a destination port other than 4791.
	VerdictOtherPort
	// VerdictFragment: a fragment of a UDP datagram (IPv4) or any fragment (IPv6).
	VerdictFragment
	// VerdictQinQ: two VLAN tags, or a service tag (802.1ad).
	VerdictQinQ
	// VerdictOtherAddress: RoCEv2 to a pair of VLAN and address that is not in the table.
	VerdictOtherAddress
	// VerdictNoSocket: RoCEv2 for us, but the queue it arrived on has no socket.
	VerdictNoSocket
	// VerdictTruncated: the frame ends before its headers, or before the length they announce.
	VerdictTruncated
	// VerdictMalformed: a wrong IP version, or header or UDP lengths that contradict each other.
	VerdictMalformed

	// NumVerdicts is the number of verdicts.
	NumVerdicts = iota
)

var verdictNames = [NumVerdicts]string{
	VerdictRedirected:   "redirected",
	VerdictNotIP:        "not_ip",
	VerdictNotUDP:       "not_udp",
	VerdictOtherPort:    "other_port",
	VerdictFragment:     "fragment",
	VerdictQinQ:         "qinq",
	VerdictOtherAddress: "other_address",
	VerdictNoSocket:     "no_socket",
	VerdictTruncated:    "truncated",
	VerdictMalformed:    "malformed",
}

// String returns the verdict in lower case with underscores, fit for a metric's label.
func (v Verdict) String() string {
	if v < NumVerdicts {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint32(v))
}

// Stats counts frames by [Verdict] since [Load]; index it by one.
type Stats [NumVerdicts]uint64

// Frames returns how many frames the program has seen.
func (s *Stats) Frames() uint64 {
	var n uint64
	for _, c := range s {
		n += c
	}
	return n
}

// Stats sums the program's per-CPU counters. They are read while the program runs, so the counts
// of different verdicts may be a few frames apart. It allocates; call it from the control path.
// Errors: [ErrClosed].
func (p *Program) Stats() (Stats, error) {
	var s Stats
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return s, ErrClosed
	}
	for v := range s {
		if err := p.objs.Counters.Lookup(uint32(v), &p.perCPU); err != nil {
			return s, fmt.Errorf("read counter %s: %w", Verdict(v), err)
		}
		for _, c := range p.perCPU {
			s[v] += c
		}
	}
	return s, nil
}
