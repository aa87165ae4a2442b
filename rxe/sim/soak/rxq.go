package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
)

// This file covers receives: buffers, their queues, and what must arrive in them.

const maxSGE = 4

// rslot is a receive buffer.
type rslot struct {
	off, size uint32
	v         vec // as posted
	out       bool
}

// rxq is a receive queue, of one QP or shared by those of a shard.
type rxq struct {
	h      *host
	shard  *rxe.Shard
	e      *end // nil: shared
	srq    *rxe.SRQ
	slots  []rslot
	free   []uint16
	order  []uint16 // posted, oldest first; own queues only
	posted int
	size   uint32
	fuzzy  bool // unfinished messages leave their traces (UC)
	limit  int  // shared: an event must come when fewer are left; 0 = not armed
}

// newRxq makes a receive queue for messages of up to size bytes, or joins a shared one.
func (h *host) newRxq(shard *rxe.Shard, size uint32, fuzzy bool) *rxq {
	r := h.w.r
	shared := r.Intn(3) == 0 && !fuzzy
	if shared {
		for _, q := range h.rxqs {
			if q.srq != nil && q.shard == shard && q.size >= size && r.Intn(2) == 0 {
				return q
			}
		}
	}
	n := min(2+r.Intn(15), max(2, 1<<15/int(size)))
	q := &rxq{h: h, shard: shard, size: size, fuzzy: fuzzy}
	if shared {
		n = min(2*n, 32)
		srq, err := h.n.Dev.NewSRQ(shard, h.srqPD, uint32(n), maxSGE)
		h.w.must(err)
		q.srq = srq
	}
	for i := range n {
		room := size + 32
		off := uint32(0)
		if fuzzy {
			off = h.blur(room)
		} else {
			off = h.grow(room)
		}
		q.slots = append(q.slots, rslot{off: off, size: room})
		q.free = append(q.free, uint16(i))
	}
	h.rxqs = append(h.rxqs, q)
	return q
}

// attach binds an own queue to its QP, which begins empty.
func (q *rxq) attach(e *end) {
	if q.srq != nil {
		return
	}
	q.e = e
	q.order, q.posted = q.order[:0], 0
	q.free = q.free[:0]
	for i := range q.slots {
		q.slots[i].out = false
		q.free = append(q.free, uint16(i))
	}
}

// refill posts all buffers that are free.
func (q *rxq) refill() {
	w := q.h.w
	if q.srq != nil && !q.h.n.Busy(q.shard.ID) && !w.failed() {
		q.watchLimit()
	}
	if q.h.rnr || q.e != nil && q.e.c.dying || q.srq == nil && q.e == nil || w.failed() {
		return
	}
	for len(q.free) > 0 {
		i := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		s := &q.slots[i]
		if !q.fuzzy && !q.h.clean(s.off, s.size) {
			at, got, want := q.h.dirt(s.off, s.size)
			w.violate("host %d: byte %#x of a receive buffer is %#02x, want %#02x", q.h.n.ID(), at, got, want)
			return
		}
		s.v = w.scatter(s.off, q.size, 32)
		s.out = true
		wr := rxe.RecvWR{ID: uint64(i), SGEs: q.h.sge(&s.v)}
		if q.srq != nil {
			for j := range wr.SGEs {
				wr.SGEs[j].LKey = q.h.srqMem.key
			}
			w.must(q.srq.PostRecv(&wr))
		} else {
			w.must(q.e.q.PostRecv(&wr))
			q.order = append(q.order, i)
		}
		q.posted++
	}
	if q.e != nil && q.e.q.State() == rxe.StateErr { // somebody must flush them
		q.e.q.RingDoorbell()
		w.f.KickShard(q.h.n, q.shard.ID)
	}
}

// watchLimit makes sure that an event has told of a shared queue that runs dry, and now and then asks
// for the next one.
func (q *rxq) watchLimit() {
	w := q.h.w
	if n := q.srq.Q.Len(); q.limit > 0 && n < q.limit {
		w.violate("host %d: an SRQ holds %d, and no event has told that it is less than %d", q.h.n.ID(), n,
			q.limit)
		return
	}
	if q.limit == 0 && w.r.Intn(4) == 0 {
		q.limit = 1 + w.r.Intn(len(q.slots))
		w.must(q.srq.SetLimit(uint32(q.limit)))
		q.h.collect(q.shard)
	}
}

// limitReached takes the event.
func (q *rxq) limitReached() {
	if n := q.srq.Q.Len(); q.limit == 0 {
		q.h.w.violate("host %d: an SRQ tells of its limit, which is not armed", q.h.n.ID())
	} else if n >= q.limit && q.posted < q.limit {
		q.h.w.violate("host %d: an SRQ tells that it holds less than %d, but it holds %d", q.h.n.ID(), q.limit, n)
	}
	q.limit = 0
}

// lastChecks compares what the engine holds with what was posted. A QP may hold one of an SRQ's in
// hand.
func (q *rxq) lastChecks() {
	held, may := 0, 0
	switch {
	case q.srq != nil:
		held, may = q.srq.Q.Len(), q.srq.Users()
	case q.e != nil:
		held = q.e.q.RQ.Len()
	default:
		return
	}
	if held > q.posted || held+may < q.posted {
		q.h.w.violate("host %d: a receive queue holds %d work requests, %d are posted", q.h.n.ID(), held, q.posted)
	}
}

// scatter lays n bytes into 1 to 4 pieces within n+slack bytes at off.
func (w *world) scatter(off, n, slack uint32) (v vec) {
	k := 1
	if u := w.r.Uint64(); u&3 == 0 {
		k += int(u >> 8 & 3)
	}
	for ; k > 1 && n > 0; k-- {
		m := uint32(w.r.Intn(int(n) + 1))
		v.add(off, m)
		gap := uint32(w.r.Intn(int(slack)/3 + 1))
		off, n, slack = off+m+gap, n-m, slack-gap
	}
	v.add(off, n)
	return v
}

// sge names memory of the host for a work request. It is valid until the next call.
func (h *host) sge(v *vec) []rxe.SGE {
	s := h.w.sges[:v.num]
	for i, p := range v.pieces() {
		s[i] = rxe.SGE{Addr: h.addr(p.off), Length: p.n, LKey: h.local.key}
	}
	return s
}

// message is a message on its way that will take a receive.
type message struct {
	kind      Kind
	n         uint32
	imm       uint32
	solicited bool
	poison    bool // ends the connection
	want      rxe.WCStatus
	src       vec // SEND: in the sender's arena
	op        uint32
	lease     *lease // what it says about a region
	says      word
}

// word is what a message tells the application.
type word uint8

const (
	saysNothing word = iota
	saysOpen         // the region may be used
	saysClose        // it is not used any more
)

// recvDone checks a receive completion. It reports whether the message was solicited.
func (e *end) recvDone(c *rxe.CQE) (solicited bool) {
	w, q := e.w, e.rxq
	if c.WRID >= uint64(len(q.slots)) || !q.slots[c.WRID].out {
		w.violate("%v: receive %d completes but is not posted: %+v", e, c.WRID, *c)
		return false
	}
	i := uint16(c.WRID)
	s := &q.slots[i]
	s.out = false
	q.posted--
	q.free = append(q.free, i)
	if q.srq == nil {
		if q.order[0] != i {
			w.violate("%v: receive %d completes before %d, which was posted first", e, i, q.order[0])
			return false
		}
		q.order = q.order[:copy(q.order, q.order[1:])]
	}
	if c.Status != rxe.WCSuccess {
		e.recvFailed(c, s)
		return false
	}
	switch e.c.typ {
	case rxe.UC:
		return e.recvUC(c, s)
	case rxe.UD:
		return e.recvUD(c, s)
	}
	if e.expectN == len(e.expect) {
		w.violate("%v: a message that nobody sent: %+v", e, *c)
		return false
	}
	m := e.expect[e.expectN] // a copy: handling it may grow the list
	if e.expectN++; e.expectN >= 64 {
		e.expect = e.expect[:copy(e.expect, e.expect[e.expectN:])]
		e.expectN = 0
	}
	e.checkRecv(c, s, &m)
	return m.solicited
}

// checkRecv compares a receive completion with the message that must come.
func (e *end) checkRecv(c *rxe.CQE, s *rslot, m *message) {
	w := e.w
	want := rxe.CQE{WRID: c.WRID, QPN: e.q.QPN(), Opcode: rxe.WCRecv, ByteLen: m.n, Reason: c.Reason}
	switch m.kind {
	case RCSendImm:
		want.Flags, want.Imm = rxe.WCWithImm, m.imm
	case RCSendInv:
		want.Flags, want.Imm = rxe.WCWithInv, m.imm
	case RCWriteImm:
		want.Flags, want.Imm, want.Opcode = rxe.WCWithImm, m.imm, rxe.WCRecvRDMAWithImm
	}
	if *c != want {
		w.violate("%v: received %+v, want %+v", e, *c, want)
		return
	}
	if m.kind != RCWriteImm {
		if !same(e.h.mem, &s.v, e.peer.h.mem, &m.src, m.n) {
			w.violate("%v: %d bytes of a %v are not what was sent", e, m.n, m.kind)
			return
		}
		got := s.v.sub(0, m.n)
		e.h.scrubAll(&got)
	}
	e.peer.checkThrough(m.op)
	if l := m.lease; m.kind == RCSendInv {
		l.ended(l.life.num, l.life.key, &l.life.v, "SEND_WITH_INV")
	}
	if m.lease != nil {
		m.lease.told(m.says)
		if m.kind == RCSendInv && w.r.Intn(4) != 0 {
			m.lease.goOn() // often by the same key: a copy of the SEND may come yet
		}
	}
}

// kindOf the WRs that carry messages.
var messageOps = [NumKinds]rxe.WROpcode{
	RCSend: rxe.WRSend, RCSendImm: rxe.WRSendWithImm, RCSendInv: rxe.WRSendWithInv,
	RCWrite: rxe.WRRDMAWrite, RCWriteImm: rxe.WRRDMAWriteWithImm, RCRead: rxe.WRRDMARead,
	RCCmpSwp: rxe.WRAtomicCmpSwap, RCFetchAdd: rxe.WRAtomicFetchAdd, RCAtomicWrite: rxe.WRAtomicWrite,
	RCFlush: rxe.WRFlush, UCSend: rxe.WRSend, UCSendImm: rxe.WRSendWithImm, UCWrite: rxe.WRRDMAWrite,
	UCWriteImm: rxe.WRRDMAWriteWithImm, UDSend: rxe.WRSend, UDSendImm: rxe.WRSendWithImm,
	RegMR: rxe.WRRegMR, LocalInv: rxe.WRLocalInv, BindMW: rxe.WRBindMW,
}

var completionOps = [NumKinds]rxe.WCOpcode{
	RCSend: rxe.WCSend, RCSendImm: rxe.WCSend, RCSendInv: rxe.WCSend, RCWrite: rxe.WCRDMAWrite,
	RCWriteImm: rxe.WCRDMAWrite, RCRead: rxe.WCRDMARead, RCCmpSwp: rxe.WCCompSwap,
	RCFetchAdd: rxe.WCFetchAdd, RCAtomicWrite: rxe.WCAtomicWrite, RCFlush: rxe.WCFlush,
	UCSend: rxe.WCSend, UCSendImm: rxe.WCSend, UCWrite: rxe.WCRDMAWrite, UCWriteImm: rxe.WCRDMAWrite,
	UDSend: rxe.WCSend, UDSendImm: rxe.WCSend, RegMR: rxe.WCRegMR, LocalInv: rxe.WCLocalInv,
	BindMW: rxe.WCBindMW,
}

// packetsOf is how many PSNs an operation takes.
func packetsOf(k Kind, n, pmtu uint32) uint32 {
	switch k {
	case RegMR, LocalInv, BindMW:
		return 0
	case RCCmpSwp, RCFetchAdd, RCAtomicWrite, RCFlush:
		return 1
	}
	return max((n+pmtu-1)/pmtu, 1)
}

func (k Kind) local() bool { return k == RegMR || k == LocalInv || k == BindMW }

// answered reports whether an operation is completed by a response of its own.
func (k Kind) answered() bool { return k >= RCRead && k <= RCFlush }

func (k Kind) takesRecv() bool { return k <= RCSendInv || k == RCWriteImm }
