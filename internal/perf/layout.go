package perf

// layout is how the memory of an end is cut for one message size. Both ends compute the same.
//
//	┌─────────┬───────────┬───────────┬─ … ─┬──────────────┐
//	│ pattern │ QP 0 ring │ QP 1 ring │     │ control, out │
//	└─────────┴───────────┴───────────┴─ … ─┴──────────────┘
//
// A ring has slots of stride bytes: where messages to this end arrive, or the results of its READs
// and atomics. Control messages and the messages of latency tests have their own place at the end.
type layout struct {
	size   int    // of a message
	offset int    // of a message in its slot: 40 bytes of GRH on UD
	stride int    // of a slot
	slots  uint64 // a power of two
}

const (
	lineBytes = 64   // slots start on a cache line of their own
	maxSlots  = 1024 // twice perftest's receive depth
	// cycleBytes is the stretch that messages go through without verification (perftest's cycle
	// buffer): it stays in the first-level cache, and larger messages all go to the same place.
	cycleBytes = 4096
	// totalRingBytes is for all QPs together, unless their two slots are more.
	totalRingBytes = 256 << 20

	controlSlots = 32 // control messages that an end can take at once, each QP
	controlSize  = lineBytes
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// powerBelow returns the largest power of two that is not above n, at least 1.
func powerBelow(n int) uint64 {
	p := uint64(1)
	for p*2 <= uint64(n) {
		p *= 2
	}
	return p
}

func (c *Config) layout(size int) layout {
	l := layout{size: size}
	if c.Transport == UD {
		l.offset = grhLen
	}
	l.stride = roundUp(l.offset+size, lineBytes)
	room := min(ringBytes, totalRingBytes/c.QPs)
	if !c.Verify && c.Test.Op != Send {
		room = cycleBytes
	}
	l.slots = min(powerBelow(max(room/l.stride, 1)), maxSlots)
	switch {
	case c.Test.Op == Send:
		// Each receive that is posted has a slot of its own.
		l.slots = max(min(l.slots, powerBelow(c.RXDepth)), 1)
		if !c.Test.Latency && c.RXDepth > 1 {
			l.slots = max(l.slots, 2)
		}
	case c.Test.Latency:
		l.slots = 1
	case c.Verify:
		l.slots = max(l.slots, 2)
	}
	return l
}

// ring is how many bytes the slots of one QP take.
func (l *layout) ring() int { return int(l.slots) * l.stride }

// plan says where everything is, for all sizes of a run.
type plan struct {
	patternLen int
	ringSpan   int // from one QP's ring to the next
	controls   int // receives of one QP that a control message may take, each with a place of its own
	tailSpan   int // control and out area of one QP
	qps        int
}

func (c *Config) plan(sizes []int) plan {
	p := plan{qps: c.QPs}
	largest := 0
	for _, s := range sizes {
		l := c.layout(s)
		p.ringSpan = max(p.ringSpan, l.ring())
		p.controls = max(p.controls, c.controlRecvs(&l))
		largest = max(largest, s)
	}
	p.patternLen = roundUp(largest+patternSlack, lineBytes)
	p.tailSpan = p.controls*controlSize + grhLen + roundUp(largest, lineBytes) + lineBytes
	p.tailSpan = roundUp(p.tailSpan, lineBytes)
	return p
}

func (p *plan) total() int { return p.patternLen + p.qps*(p.ringSpan+p.tailSpan) }

// ringAt is where QP i's slots begin.
func (p *plan) ringAt(i int) int { return p.patternLen + i*p.ringSpan }

// controlAt is where QP i's control messages arrive.
func (p *plan) controlAt(i int) int { return p.patternLen + p.qps*p.ringSpan + i*p.tailSpan }

// outAt is where QP i's messages of a latency test are made.
func (p *plan) outAt(i int) int { return p.controlAt(i) + p.controls*controlSize }

// controlRecvs is how many receives control messages have at one end. Over UC the passive end's are
// taken by WRITEs with immediate data as well.
func (c *Config) controlRecvs(l *layout) int {
	if c.Verify && c.Test.Op == Write && !c.Test.Latency && c.Transport == UC {
		return int(l.slots) + controlSlots
	}
	return controlSlots
}
