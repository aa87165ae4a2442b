package rxe

import (
	"errors"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// CQE is one completion as a poller sees it.
type CQE struct {
	WRID    uint64
	ByteLen uint32 // receives, READ and atomics
	Imm     uint32 // immediate data, or the invalidated key
	QPN     wire.QPN
	SrcQP   wire.QPN // UD receives
	Status  WCStatus
	Opcode  WCOpcode
	Flags   WCFlags
	// Reason says why, in more detail than Status (vendor_err).
	Reason Reason
}

// ErrCQSize is returned for a completion queue of impossible size.
var ErrCQSize = errors.New("completion queue size is out of range")

// MaxCQE is the largest completion queue.
const MaxCQE = 1 << 22

const cqeWords = 4 // id | status, opcode, flags, reason, qpn | length, imm | source QP

// What an armed CQ waits for.
const (
	cqIdle uint32 = iota
	cqArmed
	cqArmedSolicited
)

// cqLane is the ring between one shard and the CQ's poller. Each lane can hold the whole CQ, so
// only the CQ-wide count decides about overflow.
type cqLane struct {
	mem  []uint64
	mask uint32
	_    [32]byte
	prod atomic.Uint32
	_    [60]byte
	cons atomic.Uint32
	_    [60]byte
}

// CQ is a completion queue fed by any number of shards, one lane each, and drained by one poller.
// Order is kept within a shard, hence within a QP.
type CQ struct {
	Num   uint32
	lanes []*cqLane // by shard; nil where no QP of the shard uses it
	depth atomic.Uint32
	used  atomic.Int32  // completions in all lanes
	armed atomic.Uint32 // cqIdle, cqArmed, cqArmedSolicited
	dead  atomic.Bool   // overflowed
	next  int           // lane the poller looks at first
}

// NewCQ makes a queue of depth completions (1..MaxCQE) over the device's shards.
func (d *Device) NewCQ(depth int) (*CQ, error) {
	if depth < 1 || depth > MaxCQE {
		return nil, ErrCQSize
	}
	c := &CQ{Num: d.nextCQ.Add(1), lanes: make([]*cqLane, len(d.shards))}
	c.depth.Store(uint32(depth))
	return c, nil
}

// attach makes sure that shard s has a lane. Control path, shard held.
func (c *CQ) attach(s int) {
	if c.lanes[s] == nil {
		n := ringSlots(c.depth.Load())
		c.lanes[s] = &cqLane{mem: make([]uint64, n*cqeWords), mask: n - 1}
	}
}

// Depth is how many completions the queue holds. Any goroutine.
func (c *CQ) Depth() int { return int(c.depth.Load()) }

// Dead reports whether the queue has overflowed; it then takes no more completions.
func (c *CQ) Dead() bool { return c.dead.Load() }

// push stores e in shard s's lane. It reports whether an armed queue fired, and false in ok when
// the queue is full or dead: the first such call is the one that must raise CQ_ERR.
func (c *CQ) push(s int, e *CQE, solicited bool) (fired, ok bool) {
	if c.used.Add(1) > int32(c.depth.Load()) || c.dead.Load() {
		c.used.Add(-1)
		return false, false
	}
	c.lanes[s].put(e)
	if mutant.CQSolicited {
		solicited = false
	}
	fired = c.wants(e, solicited) && c.fire()
	if mutant.CQLostEvent && fired && mutant.Tick(16) {
		fired = false
	}
	return fired, true
}

// put publishes e. Whoever arms the queue afterwards and polls finds it; whoever armed it before is
// seen by wants.
func (l *cqLane) put(e *CQE) {
	p := l.prod.Load()
	m := l.mem[uint64(p&l.mask)*cqeWords:]
	_ = m[3]
	m[0] = e.WRID
	m[1] = uint64(e.Status) | uint64(e.Opcode)<<8 | uint64(e.Flags)<<16 | uint64(e.Reason)<<24 |
		uint64(e.QPN)<<40
	m[2] = uint64(e.ByteLen) | uint64(e.Imm)<<32
	m[3] = uint64(e.SrcQP)
	l.prod.Store(p + 1)
}

// wants reports whether the queue is armed for e.
func (c *CQ) wants(e *CQE, solicited bool) bool {
	switch c.armed.Load() {
	case cqArmed:
		return true
	case cqArmedSolicited:
		return solicited || mutant.CQUnsolicited || e.Status != WCSuccess && !mutant.CQErrorQuiet
	}
	return false
}

// fire disarms the queue. Of several shards that want to, one makes the event.
func (c *CQ) fire() bool {
	if mutant.CQStaysArmed {
		return true
	}
	return c.armed.Swap(cqIdle) != cqIdle
}

// Poll moves up to len(out) completions to out and returns how many. One caller at a time.
func (c *CQ) Poll(out []CQE) int {
	n := 0
	for i := 0; i < len(c.lanes) && n < len(out); i++ {
		at := c.next + i
		if at >= len(c.lanes) {
			at -= len(c.lanes)
		}
		if l := c.lanes[at]; l != nil {
			n += l.poll(out[n:], &c.used)
		}
	}
	if c.next++; c.next >= len(c.lanes) {
		c.next = 0
	}
	return n
}

func (l *cqLane) poll(out []CQE, used *atomic.Int32) int {
	at := l.cons.Load()
	n := min(int(l.prod.Load()-at), len(out))
	if n == 0 {
		return 0
	}
	for i := range out[:n] {
		m := l.mem[uint64((at+uint32(i))&l.mask)*cqeWords:]
		_ = m[3]
		c := &out[i]
		c.WRID, c.Status, c.Opcode = m[0], WCStatus(m[1]), WCOpcode(m[1]>>8)
		c.Flags, c.Reason, c.QPN = WCFlags(m[1]>>16), Reason(m[1]>>24), wire.QPN(m[1]>>40)
		c.ByteLen, c.Imm, c.SrcQP = uint32(m[2]), uint32(m[2]>>32), wire.QPN(m[3])
	}
	if mutant.CQSwap && n > 1 {
		out[0], out[1] = out[1], out[0]
	}
	free := n
	if mutant.CQTwice && n > 1 && n == len(out) {
		free--
	}
	l.cons.Store(at + uint32(free))
	if mutant.CQLeak && n > 1 {
		free--
	}
	used.Add(int32(-free))
	return n
}

// Len is how many completions wait. Any goroutine may call it.
func (c *CQ) Len() int { return int(c.used.Load()) }

// Arm asks for one event when a completion comes, or, with solicitedOnly, when a solicited or
// failed one comes. Arming again with less than is armed does not weaken it. As in libibverbs the
// application polls once more after arming: what was there before makes no event. Any goroutine.
func (c *CQ) Arm(solicitedOnly bool) {
	if solicitedOnly {
		c.armed.CompareAndSwap(cqIdle, cqArmedSolicited)
		return
	}
	c.armed.Store(cqArmed)
}

// Resize changes the depth. It fails when more completions wait than fit. All shards and the
// poller must be held by the caller.
func (c *CQ) Resize(depth int) error {
	if depth < 1 || depth > MaxCQE || c.Len() > depth {
		return ErrCQSize
	}
	for i, l := range c.lanes {
		if l != nil {
			c.lanes[i] = l.resized(ringSlots(uint32(depth)))
		}
	}
	c.depth.Store(uint32(depth))
	return nil
}

func (l *cqLane) resized(slots uint32) *cqLane {
	n := &cqLane{mem: make([]uint64, slots*cqeWords), mask: slots - 1}
	from, to := l.cons.Load(), l.prod.Load()
	for i := from; i != to; i++ {
		a, b := uint64(i&l.mask)*cqeWords, uint64((i-from)&n.mask)*cqeWords
		copy(n.mem[b:b+cqeWords], l.mem[a:a+cqeWords])
	}
	n.prod.Store(to - from)
	return n
}
