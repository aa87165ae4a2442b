package capture

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is the way of a frame from its shard to the capture's goroutine: a ring of bytes for each
// shard, with one writer and one reader, neither of which ever waits.
//
// A record lies at a multiple of 8, in one piece; what is left at the end of the ring is skipped:
//
//	0  size of the record, all of it, or skip
//	4  bytes of the frame recorded
//	8  bytes of the frame on the wire
//	12 QPN
//	16 WR ID
//	24 nanoseconds since the capture began
//	32 flags, direction, reason, interface, shard: bytes
//	40 frame

const (
	recordHead = 40
	skip       = ^uint32(0)
)

// What a record's flags say.
const (
	hasQP uint8 = 1 << iota
	hasWR
	isRecv
	isAgain
	isHanded
)

// record is one frame as it was recorded; its data is borrowed from a ring.
type record struct {
	size   uint64
	length int // on the wire
	qp     uint32
	wr     uint64
	at     time.Duration
	flags  uint8
	dir    verbs.Direction
	drop   verbs.Reason
	iface  uint8
	shard  uint8
	data   []byte
}

// ring is a queue of records.
type ring struct {
	buf  []byte // a power of two
	lost atomic.Uint64
	seen atomic.Uint64 // frames that came by, filtered or not
	_    [40]byte
	prod atomic.Uint64
	_    [56]byte
	cons atomic.Uint64
	_    [56]byte
}

// newRing makes a ring of at least so many bytes.
func newRing(bytes int) *ring {
	n := 1 << 12
	for n < bytes {
		n <<= 1
	}
	return &ring{buf: make([]byte, n)}
}

func (r *ring) empty() bool { return r.cons.Load() == r.prod.Load() }

// reserve finds room for a record of n bytes. It is nil when the ring is full. p is the producer's
// place behind the skipped end.
func (r *ring) reserve(n uint64) (room []byte, p uint64) {
	size := uint64(len(r.buf))
	p = r.prod.Load()
	at, free := p&(size-1), size-(p-r.cons.Load())
	if rest := size - at; rest < n {
		if free < rest+n {
			return nil, p
		}
		binary.NativeEndian.PutUint32(r.buf[at:], skip)
		p += rest
		at = 0
	} else if free < n {
		return nil, p
	}
	return r.buf[at : at+n], p
}

// put records a frame, cut to snap bytes. It is the shard's.
func (r *ring) put(x *verbs.Captured, iface uint8, snap int, at time.Duration) {
	length := len(x.Head) + len(x.Tail)
	n := min(length, snap)
	size := (uint64(recordHead+n) + 7) &^ 7
	b, p := r.reserve(size)
	if b == nil {
		r.lost.Add(1)
		return
	}
	e := binary.NativeEndian
	e.PutUint32(b, uint32(size))
	e.PutUint32(b[4:], uint32(n))
	e.PutUint32(b[8:], uint32(length))
	e.PutUint32(b[12:], uint32(x.QP))
	e.PutUint64(b[16:], x.WRID)
	e.PutUint64(b[24:], uint64(at))
	b[32] = flagsOf(&x.Trace)
	b[33], b[34], b[35], b[36] = uint8(x.Dir), uint8(x.Drop), iface, uint8(x.Shard)
	d := b[recordHead : recordHead+n]
	d = d[copy(d, x.Head):]
	copy(d, x.Tail)
	r.prod.Store(p + size)
}

func flagsOf(t *verbs.Trace) (f uint8) {
	for i, on := range [...]bool{t.HasQP, t.HasWR, t.Recv, t.Again, t.Handed} {
		if on {
			f |= 1 << i
		}
	}
	return f
}

// peek is the oldest record; it stays valid until pop.
func (r *ring) peek(x *record) bool {
	size := uint64(len(r.buf))
	c := r.cons.Load()
	for {
		if c == r.prod.Load() {
			return false
		}
		at := c & (size - 1)
		b := r.buf[at:]
		e := binary.NativeEndian
		total := e.Uint32(b)
		if total == skip {
			c += size - at
			r.cons.Store(c)
			continue
		}
		n := e.Uint32(b[4:])
		*x = record{
			size: uint64(total), length: int(e.Uint32(b[8:])), qp: e.Uint32(b[12:]), wr: e.Uint64(b[16:]),
			at: time.Duration(e.Uint64(b[24:])), flags: b[32], dir: verbs.Direction(b[33]),
			drop: verbs.Reason(b[34]), iface: b[35], shard: b[36],
			data: b[recordHead : recordHead+n],
		}
		return true
	}
}

// pop gives the record of peek back.
func (r *ring) pop(x *record) { r.cons.Store(r.cons.Load() + x.size) }

// keep copies a record of another ring, and drops the oldest ones for its room. The ring is its
// caller's alone. It returns how many were dropped.
func (r *ring) keep(from *ring, x *record) (dropped int) {
	if x.size > uint64(len(r.buf))/2 {
		return 1
	}
	for {
		b, p := r.reserve(x.size)
		if b != nil {
			at := from.cons.Load() & uint64(len(from.buf)-1)
			copy(b, from.buf[at:at+x.size])
			r.prod.Store(p + x.size)
			return dropped
		}
		var old record
		if r.peek(&old) {
			r.pop(&old)
			dropped++
		}
	}
}

// reasonNone reports that nothing speaks against the frame.
func reasonNone(r verbs.Reason) bool { return r == rxe.ReasonNone }

// icrcOf tells what is known of a frame's ICRC: "ok", "bad", or "" when nobody has looked. p is
// room to work in.
func icrcOf(x *record, p *wire.Packet) string {
	switch {
	case x.dir == verbs.Inbound && x.drop == verbs.Reason(wire.ReasonICRC):
		return "bad"
	case x.dir == verbs.Inbound && x.drop < verbs.Reason(wire.ReasonICRC):
		return ""
	case x.dir == verbs.Inbound:
		return "ok"
	case len(x.data) < x.length:
		return ""
	}
	switch wire.Parse(wire.Frame{Head: x.data}, p) {
	case wire.ReasonOK:
		return "ok"
	case wire.ReasonICRC:
		return "bad"
	}
	return ""
}
