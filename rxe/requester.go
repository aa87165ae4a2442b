package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the road from a work request in the send queue to a request packet.

// Window bounds in packets. A veth ring holds 256 frames, a fill ring 256 to 512: the start is
// what any path holds, the rest is earned by acknowledgements.
const (
	windowStart = 16
	windowMin   = 2
)

// requester is the sending half of a QP. Send queue indices run freely; entries are the private
// copies of taken records, at index modulo ring size:
//
//	tail ≤ ack ≤ cur ≤ head ≤ producer index
//
// tail is the oldest entry not retired, ack the oldest the network still owes something, cur the
// one being sent, head the next record to take. PSNs: una ≤ psn ≤ sent ≤ nxt: a rewind puts psn
// back to una, sent has never been sent, nxt is given to the next message.
type requester struct {
	entries []sendEntry
	sges    []SGE
	maxSGE  uint32

	tail, ack, cur, head uint32
	una, psn, sent, nxt  PSN

	flight

	ackAt      Time   // when the ACK timer runs out
	armedAt    Time   // when it was set
	counted    uint32 // chunks in flight that the shard's budget knows of
	aged       uint32 // the oldest packets in flight that it no longer counts
	unasked    uint32 // packets since the last AckReq
	reads      uint32 // READs and atomics in flight
	limit      uint32 // MSN + credits: SSN that may be sent, when limited
	ssn        uint32 // sequence number of the last message started
	limited    bool   // the peer gives credits
	retries    uint8  // left
	rnrRetries uint8
	rnrWait    bool // nothing is sent until the timer
	draining   bool // SQD
	halted     bool // an entry has failed; it completes when its turn comes
	ended      bool // one has completed with an error: all that follow are flushed
	rewound    bool // implied NAK taken for una already

	// Gather position: message offset of entry gatherOf, and the SGE it falls into.
	sgeAt    int
	sgeOff   uint32
	offset   uint32
	gatherOf uint32

	watch stopwatch

	udAH   *AH // what the QP's template was made for
	udDest QPN
}

func (r *requester) reset(q *QP) {
	entries, sges := r.entries, r.sges
	q.shard.inFlight -= r.counted
	c := q.SQ.cons.Load()
	*r = requester{entries: entries, sges: sges, maxSGE: q.init.MaxSend,
		tail: c, ack: c, cur: c, head: c, gatherOf: c - 1}
	cfg := &q.dev.cfg
	r.cwnd, r.ssthresh = min(max(windowStart, cfg.MinWindow), cfg.Window), cfg.Window
}

// start sets the first PSN (RTR to RTS).
func (r *requester) start(psn PSN) { r.una, r.psn, r.sent, r.nxt = psn, psn, psn, psn }

func (r *requester) resetRetries(q *QP) {
	r.retries, r.rnrRetries = q.attr.RetryCnt, q.attr.RNRRetry
	r.rewound = false
}

// entry is the private copy of index i.
func (r *requester) entry(i uint32) *sendEntry { return &r.entries[i&uint32(len(r.entries)-1)] }

// sgesOf are the SGEs of index i.
func (r *requester) sgesOf(i uint32) []SGE {
	o := (i & uint32(len(r.entries)-1)) * r.maxSGE
	return r.sges[o : o+uint32(r.entry(i).nsge)]
}

// take copies the next posted record, if there is one.
func (q *QP) take() bool {
	r := &q.req
	if q.SQ.posted(r.head) == 0 {
		return false
	}
	if r.entries == nil {
		n := ringSlots(q.SQ.depth)
		r.entries = make([]sendEntry, n)
		r.sges = make([]SGE, n*r.maxSGE)
	}
	e := r.entry(r.head)
	o := (r.head & uint32(len(r.entries)-1)) * r.maxSGE
	decodeSend(q.SQ.slot(r.head), e, r.sges[o:o+r.maxSGE], q.init.MaxInline)
	r.head++
	if e.state == entryNew && !postable(q.typ, e.opcode) {
		e.fail(WCLocQPOpErr, ReasonBadWQE)
	}
	if e.state == entryNew && e.opcode == WRRDMARead && packets(e.length, q.pmtu) > maxOutstanding {
		e.fail(WCLocLenErr, ReasonMsgTooLong)
	}
	if e.state == entryNew && atomicOp(e.opcode) && (e.length != 8 || e.remoteAddr%8 != 0) {
		e.fail(WCLocQPOpErr, ReasonBadWQE)
	}
	return true
}

func atomicOp(op WROpcode) bool {
	return op == WRAtomicCmpSwap || op == WRAtomicFetchAdd || op == WRAtomicWrite
}

// answered reports whether an operation completes by its own response rather than an ACK, and so
// counts against the READ/atomic depth.
func (e *sendEntry) answered() bool {
	switch e.opcode {
	case WRRDMARead, WRAtomicCmpSwap, WRAtomicFetchAdd, WRFlush, WRAtomicWrite:
		return true
	}
	return false
}

func (e *sendEntry) local() bool {
	return e.opcode == WRRegMR || e.opcode == WRLocalInv || e.opcode == WRBindMW
}

// packets is how many PSNs a message of n bytes takes.
func packets(n, pmtu uint32) uint32 {
	if n == 0 {
		return 1
	}
	return (n-1)/pmtu + 1
}

// nextRequest builds the next request packet, or returns 0 when none may be sent now.
// A datagram delivered inside the device is -1.
func (q *QP) nextRequest(f Frame) int {
	e := q.nextToSend()
	if e == nil {
		return 0
	}
	switch q.typ {
	case RC:
		return q.sendRC(f, e)
	case UC:
		return q.sendUC(f, e)
	}
	return q.sendUD(f, e)
}

// hasRequests reports whether there may be a request to send: without, it need not be looked for.
func (q *QP) hasRequests() bool { return q.req.cur != q.req.head || q.SQ.posted(q.req.head) != 0 }

// nextToSend finds the entry whose packet may go out now, running local operations on the way.
func (q *QP) nextToSend() *sendEntry {
	r := &q.req
	for !r.rnrWait && (q.state == StateRTS || q.state == StateSQD) {
		if r.cur == r.head {
			if r.halted || q.state == StateSQD && !mutant.ReqSQDStarts || !q.take() {
				return nil
			}
		}
		e := r.entry(r.cur)
		switch {
		case e.state == entryFailed:
			r.halted = true
			q.retire()
			return nil
		case e.local():
			if e.state != entryNew && !mutant.ReqLocalAgain {
				r.cur++ // executed before a rewind
			} else if q.state == StateSQD || !q.runLocal(e) {
				return nil
			}
		case e.state == entryNew:
			if q.state == StateSQD && !mutant.ReqSQDStarts || !q.mayStart(e) {
				return nil
			}
			q.startMessage(e)
			return e
		case e.opcode == WRRDMARead:
			if q.readSlice(e) == 0 {
				return nil
			}
			return e
		default:
			if !q.mayContinue() {
				return nil
			}
			return e
		}
	}
	return nil
}

// mayStart applies the rules about beginning a message: fence, READ depth, credits, window.
func (q *QP) mayStart(e *sendEntry) bool {
	r := &q.req
	if q.typ != RC {
		return true
	}
	if e.flags&SendFence != 0 && r.reads > 0 && !mutant.ReqIgnoreFence {
		return false
	}
	if e.answered() {
		if q.attr.MaxQPRdAtomic == 0 {
			e.fail(WCLocQPOpErr, ReasonNoResources)
			r.halted = true
			q.retire()
			return false
		}
		if e.opcode == WRRDMARead {
			return q.readSlice(e) > 0
		}
		if r.reads >= q.readDepth() {
			return false
		}
	}
	if r.limited && !mutant.ReqCreditIgnore && e.consumesCredit() && int32((r.ssn+1-r.limit)<<8) > 0 && r.una != r.nxt {
		return false // out of credits; one message may still go when nothing is outstanding
	}
	return q.mayContinue()
}

func (e *sendEntry) consumesCredit() bool {
	switch e.opcode {
	case WRSend, WRSendWithImm, WRSendWithInv, WRRDMAWriteWithImm:
		return true
	}
	return false
}

// maxOutstanding is how many PSNs may be unacknowledged at most: with more, new could not be told
// from old.
const maxOutstanding = 1<<23 - 1

// psnCount is how many PSNs e takes.
func (q *QP) psnCount(e *sendEntry) uint32 {
	switch e.opcode {
	case WRAtomicCmpSwap, WRAtomicFetchAdd, WRFlush, WRAtomicWrite:
		return 1
	}
	return packets(e.length, q.pmtu)
}

// solicits reports whether the message asks for an event at the peer: only one that completes a
// receive there can.
func (e *sendEntry) solicits() bool {
	return e.flags&SendSolicited != 0 && e.consumesCredit()
}

// mayContinue applies the QP's window and the shard's budget.
func (q *QP) mayContinue() bool {
	if q.typ != RC {
		return true
	}
	n := uint32(q.req.psn.Diff(q.req.una))
	limit := q.req.window()
	if mutant.ReqWindowOver {
		limit *= 2
	}
	return n < limit && q.withinBudget(n)
}

// startMessage gives e its PSNs.
func (q *QP) startMessage(e *sendEntry) {
	r := &q.req
	n := q.psnCount(e)
	if mutant.ReqPSNGap && mutant.Tick(64) {
		r.nxt, r.psn = r.nxt.Next(), r.nxt.Next()
	}
	e.first, e.last = r.nxt, r.nxt.Add(n-1)
	r.nxt = r.nxt.Add(n)
	e.state = entryStarted
	r.ssn++
	r.gatherOf, r.sgeAt, r.sgeOff, r.offset = r.cur, 0, 0, 0
	if !r.watch.runs && q.typ == RC {
		r.watch = stopwatch{true, r.cur, q.shard.now}
	}
}

// sendRC builds the packet of PSN r.psn, which belongs to e.
func (q *QP) sendRC(f Frame, e *sendEntry) int {
	r := &q.req
	if e.answered() {
		return q.sendAnswered(f, e)
	}
	k := uint32(r.psn.Diff(e.first))
	op, n := q.segment(e, k)
	last := r.psn == e.last
	hdr := q.begin(f.Head, op)
	if !q.gather(&f, q.tmpl.HeaderLen(op), e, k*q.pmtu, int(n)) {
		return q.sendFault()
	}
	bth := (*wire.BTH)(hdr)
	bth.SetPSN(r.psn)
	bth.SetSolicited(last && e.solicits() && (k == 0 || !mutant.ReqSolicited))
	r.unasked++
	if last && !mutant.ReqNoAckReq || r.unasked >= min(q.dev.cfg.AckEvery, r.cwnd/2+1) || q.windowFull() || q.leavesTight() {
		bth.SetAckReq(true)
		r.unasked = 0
		if r.psn == r.sent {
			r.clock(r.psn, q.shard.now)
		}
	}
	putExtensions(hdr, op, e)
	q.advance(e, r.psn.Next(), int(n))
	return q.tmpl.Finish(f, op, int(n))
}

// begin starts a packet of a connection. Its MigReq bit says that the path is not about to change,
// as it must where there is no alternate one (IBTA 17.2.8); rxe sends 0.
func (q *QP) begin(head []byte, op wire.Opcode) []byte {
	hdr := q.tmpl.Begin(head, op)
	(*wire.BTH)(hdr).SetMigReq(true)
	return hdr
}

// windowFull reports whether the packet being built is the last one that the window or the budget
// admits.
func (q *QP) windowFull() bool {
	r := &q.req
	return uint32(r.psn.Diff(r.una))+1 >= r.window() || q.shard.inFlight+q.chunks() >= q.dev.cfg.Budget
}

// advance moves the send position behind a packet of e that has been built; the next one to send
// has PSN next.
func (q *QP) advance(e *sendEntry, next PSN, payload int) {
	r := &q.req
	if r.psn.Diff(r.sent) < 0 {
		q.shard.C.Retransmits++
		q.Stats.Retransmits++
	}
	if next.Diff(r.sent) > 0 {
		r.sent = next
	}
	r.psn = next
	if next.Diff(e.last) > 0 {
		r.cur++
		if mutant.ReqSlotEarly {
			q.SQ.cons.Store(r.cur)
		}
	}
	q.Stats.SentPkts++
	q.Stats.SentBytes += uint64(payload)
	q.account()
	if q.timer.at == Never {
		q.armAck()
	}
}

// segment gives opcode and payload size of packet k of a SEND or WRITE.
func (q *QP) segment(e *sendEntry, k uint32) (op wire.Opcode, n uint32) {
	total := uint32(e.last.Diff(e.first)) + 1
	n = q.pmtu
	if k == total-1 {
		n = e.length - k*q.pmtu
	}
	base := wire.RCSendFirst
	if e.opcode == WRRDMAWrite || e.opcode == WRRDMAWriteWithImm {
		base = wire.RCWriteFirst
	}
	if q.typ == UC {
		base |= wire.UCSendFirst
	}
	const middle, last, only, imm = 1, 2, 4, 1 // distances from FIRST in the opcode table
	switch {
	case k != total-1 && k == 0:
		return base, n
	case k != total-1:
		return base + middle, n
	}
	inv := e.opcode == WRSendWithInv
	switch {
	case inv && total == 1:
		return wire.RCSendOnlyInv, n
	case inv:
		return wire.RCSendLastInv, n
	case total == 1:
		op = base + only
	default:
		op = base + last
	}
	if e.opcode == WRSendWithImm || e.opcode == WRRDMAWriteWithImm {
		op += imm
	}
	return op, n
}

// putExtensions writes RETH, immediate and invalidated key behind the BTH.
func putExtensions(hdr []byte, op wire.Opcode, e *sendEntry) {
	i := op.Info()
	if i.RETHOff != 0 {
		h := (*wire.RETH)(hdr[i.RETHOff:])
		h.SetVA(e.remoteAddr)
		h.SetRKey(uint32(e.rkey))
		h.SetLength(e.length)
	}
	if i.ImmOff != 0 {
		(*wire.ImmDt)(hdr[i.ImmOff:]).Set(e.imm)
	}
	if i.InvOff != 0 {
		(*wire.IETH)(hdr[i.InvOff:]).SetRKey(e.imm)
	}
}

// sendUC builds a packet of an unreliable connection; the message is complete once sent.
func (q *QP) sendUC(f Frame, e *sendEntry) int {
	r := &q.req
	k := uint32(r.psn.Diff(e.first))
	op, n := q.segment(e, k)
	hdr := q.begin(f.Head, op)
	if !q.gather(&f, q.tmpl.HeaderLen(op), e, k*q.pmtu, int(n)) {
		return q.sendFault()
	}
	bth := (*wire.BTH)(hdr)
	bth.SetPSN(r.psn)
	last := r.psn == e.last
	bth.SetSolicited(last && e.solicits())
	putExtensions(hdr, op, e)
	q.Stats.SentPkts++
	q.Stats.SentBytes += uint64(n)
	r.psn = r.psn.Next()
	r.sent = r.psn
	if last {
		q.sentUnreliable(e)
	}
	return q.tmpl.Finish(f, op, int(n))
}

// sentUnreliable retires a message that needs no acknowledgement.
func (q *QP) sentUnreliable(e *sendEntry) {
	r := &q.req
	e.state = entryDone
	r.cur++
	r.ack, r.una = r.cur, r.psn
	q.retire()
}
