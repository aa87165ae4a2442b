package main

import (
	"fmt"
	"strings"
)

// Cell is one combination of the matrix's dimensions.
type Cell struct {
	Tool      string `json:"tool"`      // as it is called on Linux
	Role      string `json:"role"`      // roxie's: client or server
	Transport string `json:"transport"` // RC, UC, UD
	PMTU      int    `json:"pmtu"`      // bytes
	Family    string `json:"family"`    // ipv4, ipv6
	Size      int    `json:"size"`      // bytes of a message; 0: all sizes, one after the other
	QPs       int    `json:"qps"`
	LinkMTU   int    `json:"link_mtu"` // bytes
	XDP       string `json:"xdp"`      // native, generic
	Option    string `json:"option"`   // events, both, all, time, inline, cm or a scenario; "": none
}

func (c Cell) String() string {
	s := fmt.Sprintf("%s %s %s pmtu=%d %s size=%d qps=%d link=%d %s", c.Tool, c.Role, c.Transport,
		c.PMTU, c.Family, c.Size, c.QPs, c.LinkMTU, c.XDP)
	return strings.TrimSpace(s + " " + c.Option)
}

// The values of the dimensions.
var (
	tools = []string{
		"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong",
		"ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_send_lat", "ib_read_bw", "ib_read_lat",
		"ib_atomic_bw", "ib_atomic_lat", "rping",
	}
	roles      = []string{"client", "server"}
	transports = []string{"RC", "UC", "UD"}
	pmtus      = []int{256, 512, 1024, 2048, 4096}
	families   = []string{"ipv4", "ipv6"}
	sizes      = []int{0, 1, 8, 64, 4095, 65536, 1 << 20}
	qpCounts   = []int{1, 16}
	linkMTUs   = []int{1500, 4176, 4200}
	xdpModes   = []string{"native", "generic"}
	options    = []string{"", "events", "both", "all", "time", "inline", "cm"}
)

const (
	atomicSize = 8
	inlineSize = 64 // -I, where that is tried
	largestAll = 1 << 23

	// What a cell may move, so that captures stay complete and the whole stays quick.
	maxPackets = 20000
	maxBytes   = 32 << 20
	// maxBurst is how many packets the reliable pingpongs may send at once: they do so with a fixed
	// timeout of 67 ms, in which an emulated machine takes no more.
	maxBurst = 256
	// maxUnpaced is how many packets one end may send when nothing holds it back: a little less than
	// roxie's ring has room for. (The tap's queue has more.)
	maxUnpaced = 2000
	// maxTimed is how many packets a message of a test for a time may have.
	maxTimed = 16
	// Of that, what it is made to move where it can choose.
	wantPackets = 6000
	wantBytes   = 4 << 20
	wantIters   = 200
	// wantAllIters is the same for each of many sizes.
	wantAllIters = 20

	minPerftestIters = 5 // perftest takes no fewer
)

func (c *Cell) pingpong() bool { return strings.HasSuffix(c.Tool, "_pingpong") }
func (c *Cell) perftest() bool { return strings.HasPrefix(c.Tool, "ib_") }
func (c *Cell) latency() bool  { return strings.HasSuffix(c.Tool, "_lat") }

// operation is what a perftest program does: write, send, read, atomic.
func (c *Cell) operation() string {
	op, _, _ := strings.Cut(strings.TrimPrefix(c.Tool, "ib_"), "_")
	return op
}

// headers is what a packet has besides its payload, at most, on the IP layer.
func headers(family string) int {
	if family == "ipv6" {
		return 84
	}
	return 80
}

// linuxAside is what Linux takes off a link's MTU, whatever the IP version, before it chooses the path
// MTU of a connection over RDMA-CM: room for all headers (iboe_get_mtu in ib_addr.h).
const linuxAside = 96

// largestPMTU is the largest path MTU that fits the link, or is chosen for it.
func (c *Cell) largestPMTU() int {
	best, aside := 0, headers(c.Family)
	if c.linuxConnects() {
		aside = linuxAside
	}
	for _, p := range pmtus {
		if p+aside <= c.LinkMTU {
			best = p
		}
	}
	return best
}

// linuxConnects says whether Linux begins an RC connection over RDMA-CM, and so chooses its path MTU.
func (c *Cell) linuxConnects() bool {
	return (c.Option == "cm" || c.Tool == "rping") && c.Role == "server" && c.Transport == "RC"
}

// valid says whether a combination makes sense.
func (c *Cell) valid() bool {
	largest := c.largestPMTU()
	if c.PMTU > largest {
		return false
	}
	if (c.Tool == "ibv_ud_pingpong" || c.Tool == "rping") && c.PMTU != largest {
		return false // it goes by the link's
	}
	if c.pingpong() && c.Transport == "RC" && c.QPs*((c.Size+c.PMTU-1)/c.PMTU) > maxBurst {
		return false
	}
	return c.validTransport() && c.validSize() && c.validOption() &&
		c.fits(c.leastIters(), maxPackets, maxBytes)
}

// fits says whether so many messages of each QP stay within limits.
func (c *Cell) fits(iters, packets, bytes int) bool {
	n := c.packets(iters)
	return n <= packets && c.bytes(iters) <= bytes && (c.paced() || n <= maxUnpaced*c.directions())
}

// paced says whether the receiver holds the sender back: by ACKs, or by the answer that is waited
// for.
func (c *Cell) paced() bool { return c.Transport == "RC" || c.latency() || c.pingpong() }

func (c *Cell) validTransport() bool {
	switch c.Tool {
	case "ibv_rc_pingpong", "ibv_srq_pingpong", "rping":
		return c.Transport == "RC"
	case "ibv_uc_pingpong":
		return c.Transport == "UC"
	case "ibv_ud_pingpong":
		return c.Transport == "UD"
	}
	switch c.operation() {
	case "write":
		return c.Transport != "UD"
	case "read", "atomic":
		return c.Transport == "RC"
	}
	return true
}

func (c *Cell) validSize() bool {
	switch {
	case c.operation() == "atomic":
		return c.Size == atomicSize
	case c.Size == atomicSize:
		return false // only there for atomics
	case (c.Size == 0) != (c.Option == "all"):
		return false
	case c.Transport == "UD" && c.Size > c.PMTU:
		return false
	case c.Tool == "rping":
		return c.Size >= 64 && c.Size < 65536 // its own limits
	}
	return true
}

func (c *Cell) validOption() bool {
	if c.QPs > 1 && c.Tool != "ibv_srq_pingpong" && !(c.perftest() && !c.latency()) {
		return false
	}
	if c.Tool == "rping" {
		return c.Option == "" && c.XDP == "native"
	}
	if c.pingpong() {
		return c.Option == "" || c.Option == "events"
	}
	op := c.operation()
	switch c.Option {
	case "events":
		// perftest refuses it for WRITE. In ib_send_lat it takes events of either CQ, which come over
		// one channel, for those of the one it waits for, and may wait for ever.
		return op != "write" && c.Tool != "ib_send_lat"
	case "both":
		return !c.latency()
	case "all":
		return op != "atomic" && c.QPs == 1
	case "time":
		// The time bounds what a cell sends only if the emulated machine paces it, with few packets
		// under way.
		return op != "atomic" && c.QPs == 1 && c.Size >= 4095 && c.Size <= maxTimed*c.PMTU && c.paced()
	case "cm": // -R: RDMA-CM chooses the path MTU, by the link; perftest's -R knows IPv4 only
		return c.Transport != "UC" && c.Family == "ipv4" && c.PMTU == c.largestPMTU()
	case "inline":
		return (op == "write" || op == "send") && c.Size <= inlineSize
	}
	return true
}

// leastIters is how many messages each QP has to send at least.
func (c *Cell) leastIters() int {
	switch {
	case c.Tool == "rping" && c.Size == 64:
		return 1000
	case c.perftest():
		return minPerftestIters
	case c.Tool == "ibv_srq_pingpong":
		return c.QPs
	}
	return 1
}

// iters is how many messages each QP is made to send.
func (c *Cell) iters() int {
	n := wantIters
	if c.Option == "all" {
		n = wantAllIters
	}
	n = max(n, c.leastIters())
	for n > c.leastIters() && !c.fits(n, wantPackets, wantBytes) {
		n--
	}
	return n
}

// directions is how many ends send messages.
func (c *Cell) directions() int {
	if c.Option == "both" || c.pingpong() || c.latency() && (c.operation() == "write" ||
		c.operation() == "send") || c.Tool == "rping" {
		return 2
	}
	return 1
}

// packets is about how many packets so many messages of each QP make.
func (c *Cell) packets(iters int) int {
	perSize := func(size int) int { return (size+c.PMTU-1)/c.PMTU + 1 }
	n := perSize(c.Size)
	if c.Option == "all" {
		n = 0
		for s := 2; s <= c.largest(); s *= 2 {
			n += perSize(s)
		}
	}
	qps := c.QPs
	if c.pingpong() {
		qps = 1 // its number of messages is that of all QPs
	}
	return n * iters * qps * c.directions()
}

// bytes is how many bytes of payload that is.
func (c *Cell) bytes(iters int) int {
	n := c.Size
	if c.Option == "all" {
		n = 2 * c.largest()
	}
	qps := c.QPs
	if c.pingpong() {
		qps = 1
	}
	return n * iters * qps * c.directions()
}

// largest is the greatest size that -a comes to.
func (c *Cell) largest() int {
	if c.Transport == "UD" {
		return c.PMTU
	}
	return largestAll
}
