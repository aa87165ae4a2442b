package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the road from a response packet to a completion: ACKs, NAKs, READ and atomic
// responses, and the retirement of send queue entries.

// complete takes a response packet addressed to an RC requester.
func (q *QP) complete(p *wire.Packet) {
	r := &q.req
	if q.state != StateRTS && q.state != StateSQD {
		q.drop(ReasonQPState)
		return
	}
	if p.PSN.Diff(r.una) < 0 || p.PSN.Diff(r.sent) >= 0 {
		if p.Info.Flags&wire.FlagAck != 0 && p.PSN.Next() == r.una && p.AETH().Syndrome().Kind() == wire.KindACK {
			q.credit(p.AETH()) // the last ACK again: for its credits, or the packet came twice
			r.heardTwice()
		}
		if mutant.CompReadAgain {
			q.placeAgain(p)
		}
		q.drop(ReasonStaleAck) // of an earlier flight, or of nothing
		return
	}
	switch {
	case p.Info.Flags&wire.FlagAck != 0:
		q.completeAck(p)
	case p.Info.Flags&(wire.FlagReadResp|wire.FlagAtomicAck) != 0:
		q.completeResponse(p)
	}
}

// completeAck takes an Acknowledge packet: ACK, RNR NAK or NAK.
func (q *QP) completeAck(p *wire.Packet) {
	aeth := p.AETH()
	syn := aeth.Syndrome()
	switch syn.Kind() {
	case wire.KindACK:
		q.credit(aeth)
		x := p.PSN
		if mutant.CompAckTooFar {
			x = x.Next()
		}
		if q.ackThrough(x) {
			q.impliedNAK()
		}
		q.retire()
	case wire.KindRNR:
		q.nakRNR(p.PSN, syn.Timer())
	case wire.KindNAK:
		q.completeNAK(p.PSN, syn.NAK())
	default:
		q.drop(ReasonAckReserved)
	}
}

// completeNAK takes a NAK of PSN x. Everything before it is acknowledged.
func (q *QP) completeNAK(x PSN, code wire.NAKCode) {
	if code > wire.NAKInvalidRD {
		q.drop(ReasonAckReserved)
		return
	}
	q.Stats.NAKsRcvd++
	q.shard.C.NAKsRcvd++
	if mutant.CompNAKAcks && code == wire.NAKPSNSeq {
		x = x.Next()
	}
	if q.ackThrough(x.Add(wire.PSNMask)) && code != wire.NAKPSNSeq && !q.oldestHas(x) {
		// Refused behind an answer that is still missing: ask for that first, the peer will
		// say again what it thinks of the rest.
		q.impliedNAK()
		q.retire()
		return
	}
	q.retire()
	q.nak(code)
}

// oldestHas reports whether PSN x belongs to the oldest unacknowledged message: a READ that is cut
// in the middle, whatever part of its answer is missing.
func (q *QP) oldestHas(x PSN) bool {
	r := &q.req
	r.skipDoneLocals()
	if r.ack == r.head {
		return false
	}
	e := r.entry(r.ack)
	return e.state == entryStarted && x.Diff(e.first) >= 0 && x.Diff(e.last) <= 0
}

// nak handles the NAK codes, everything before the PSN it names being acknowledged.
func (q *QP) nak(code wire.NAKCode) {
	r := &q.req
	switch code {
	case wire.NAKPSNSeq:
		q.shard.C.RcvdSeqErr++
		if r.rnrWait {
			q.drop(ReasonRNRWait)
			return
		}
		if r.psn == r.una {
			q.drop(ReasonStaleAck) // a copy: everything is about to be sent again already
			return
		}
		if r.retries == 0 {
			q.shard.C.RetryExceededErr++
			q.failOldest(WCRetryExcErr, ReasonSeqNAK)
			return
		}
		r.retries--
		q.lost(false)
		q.rewind()
		q.armAck()
	case wire.NAKInvalidRequest:
		q.failOldest(WCRemInvReqErr, ReasonRemote)
	case wire.NAKRemoteAccess:
		q.failOldest(WCRemAccessErr, ReasonRemote)
	case wire.NAKRemoteOp:
		q.failOldest(WCRemOpErr, ReasonRemote)
	default:
		q.failOldest(WCRemInvRDReqErr, ReasonRemote)
	}
}

// nakRNR begins the wait the peer asked for. Until it is over nothing is sent, and the ACK timer
// does not run.
func (q *QP) nakRNR(x PSN, code uint8) {
	r := &q.req
	q.shard.C.RcvdRNRErr++
	q.Stats.RNRRcvd++
	if r.rnrWait && x == r.una {
		q.drop(ReasonRNRWait) // again: the wait goes on
		return
	}
	implied := q.ackThrough(x.Add(wire.PSNMask))
	q.retire()
	if implied {
		q.impliedNAK()
		return
	}
	if q.attr.RNRRetry != 7 || mutant.CompRNRCounted {
		if r.rnrRetries == 0 {
			q.shard.C.RetryRNRExceededErr++
			q.failOldest(WCRNRRetryExcErr, ReasonRNRNAK)
			return
		}
		r.rnrRetries--
	}
	if mutant.ReqRNRImpatient {
		q.rewind()
		return
	}
	r.rnrWait = true
	q.release() // what follows has been refused with it
	q.shard.wheel.set(&q.timer, q.shard.now+Time(wire.RNRDelay(code)))
}

// credit notes the peer's end-to-end credits (IBTA 9.7.7.2).
func (q *QP) credit(aeth *wire.AETH) {
	r := &q.req
	n, ok := wire.CreditCount(aeth.Syndrome().Credits())
	r.limited = ok
	if ok {
		r.limit = aeth.MSN() + n
		q.shard.wantSend(q)
	}
}

// ackThrough acknowledges all PSNs up to and including x. READs and atomics are not completed by
// that; it is true when one stands in the way: an implied NAK for it.
func (q *QP) ackThrough(x PSN) (implied bool) {
	r := &q.req
	was := r.una
	for r.ack != r.head {
		e := r.entry(r.ack)
		if e.local() {
			if e.state != entryDone && e.state != entryGrace {
				break
			}
			r.ack++
			continue
		}
		if e.state != entryStarted || x.Diff(e.first) < 0 {
			break
		}
		if e.answered() && !mutant.CompReadByAck {
			implied = x.Diff(r.una) >= 0
			break
		}
		if x.Diff(e.last) < 0 {
			r.una = x.Next()
			break
		}
		r.una = e.last.Next()
		e.state = entryDone
		r.ack++
	}
	q.progressed(was)
	return implied
}

// progressed follows a move of una: counters start again, the timer too, and a send position that
// was rewound behind what is now acknowledged catches up.
func (q *QP) progressed(was PSN) {
	r := &q.req
	n := r.una.Diff(was)
	if n <= 0 {
		return
	}
	if !mutant.CompRetriesKept {
		r.retries, r.rnrRetries, r.rewound = q.attr.RetryCnt, q.attr.RNRRetry, false
	}
	q.shard.heardAt = q.shard.now
	r.clocked(r.una, q.shard.now)
	r.grow(uint32(n), q.dev.cfg.Window)
	r.aged -= min(r.aged, uint32(n))
	if r.psn.Diff(r.una) < 0 {
		r.psn = r.una
	}
	if int32(r.cur-r.ack) < 0 {
		r.cur = r.ack
	}
	if r.rnrWait {
		// The packet that was refused has been accepted after all: the network had a copy of it.
		// What was sent behind it is lost.
		r.rnrWait = false
		q.rewind()
	}
	q.account()
	if r.una == r.sent {
		q.shard.wheel.clear(&q.timer)
	} else {
		q.armAck()
	}
	q.shard.wantRequest(q)
}

// impliedNAK asks again for the oldest answer, once until there is progress or a timeout.
func (q *QP) impliedNAK() {
	r := &q.req
	if r.rewound || r.rnrWait {
		return
	}
	if r.retries == 0 {
		q.shard.C.RetryExceededErr++
		q.failOldest(WCRetryExcErr, ReasonSeqNAK)
		return
	}
	r.retries--
	r.rewound = true
	q.shard.C.RcvdSeqErr++
	q.lost(false)
	q.rewind()
	q.armAck()
}

// completeResponse takes a READ response or atomic acknowledge. It acknowledges everything before
// it; if an answer is missing in between it is an implied NAK and its data is not used.
func (q *QP) completeResponse(p *wire.Packet) {
	r := &q.req
	if p.PSN != r.una && !mutant.CompResponseAny && q.ackThrough(p.PSN.Add(wire.PSNMask)) {
		q.retire()
		q.impliedNAK()
		return
	}
	r.skipDoneLocals()
	if r.ack == r.head || p.PSN != r.una && !mutant.CompResponseAny {
		q.retire()
		q.drop(ReasonBadResponse)
		return
	}
	e := r.entry(r.ack)
	if e.state != entryStarted || !e.answered() {
		q.failEntry(e, WCBadRespErr, ReasonBadResponse)
		return
	}
	if p.Info.Flags&wire.FlagAETH != 0 {
		if p.AETH().Syndrome().Kind() != wire.KindACK {
			q.drop(ReasonAckReserved)
			return
		}
		q.credit(p.AETH())
	}
	if st, why := q.placeResponse(p, e); st != WCSuccess {
		q.failEntry(e, st, why)
		return
	}
	was := r.una
	r.una = r.una.Next()
	r.answeredTo(e)
	if r.una.Diff(e.last) > 0 {
		e.state = entryDone
		r.ack++
	}
	q.progressed(was)
	q.retire()
}

// skipDoneLocals moves ack over executed local operations.
func (r *requester) skipDoneLocals() {
	for r.ack != r.head {
		e := r.entry(r.ack)
		if !e.local() || e.state != entryDone && e.state != entryGrace {
			return
		}
		r.ack++
	}
}

// placeResponse puts the data of one response packet where the work request wants it. Its size
// must be the one this PSN has; the opcode at the first PSN of a re-request is free (rxe resumes
// with MIDDLE or LAST).
func (q *QP) placeResponse(p *wire.Packet, e *sendEntry) (WCStatus, Reason) {
	switch e.opcode {
	case WRRDMARead:
		if p.Info.Flags&wire.FlagReadResp == 0 {
			return WCBadRespErr, ReasonBadResponse
		}
		want := min(e.length-e.next, q.pmtu)
		if uint32(p.PayloadLen) != want || p.Info.Flags&wire.FlagEnd != 0 != q.req.endsRequest(e, p.PSN) {
			return WCBadRespErr, ReasonBadResponseLen
		}
		if !q.scatterSend(e, e.next, p.Data0) ||
			!q.scatterSend(e, e.next+uint32(len(p.Data0)), p.Data1) {
			return WCLocProtErr, ReasonLocalKey
		}
		e.next += want
	case WRAtomicCmpSwap, WRAtomicFetchAdd:
		if p.Info.Flags&wire.FlagAtomicAck == 0 {
			return WCBadRespErr, ReasonBadResponse
		}
		if !q.storeOriginal(e, p.AtomicAckETH().Orig()) {
			return WCLocProtErr, ReasonLocalKey
		}
	default: // FLUSH and ATOMIC WRITE: an empty READ response
		if p.Op != wire.RCReadRespOnly || p.PayloadLen != 0 {
			return WCBadRespErr, ReasonBadResponse
		}
	}
	return WCSuccess, ReasonNone
}

// scatterSend writes src at offset off of e's SGEs.
func (q *QP) scatterSend(e *sendEntry, off uint32, src []byte) bool {
	sges := q.req.sgesOf(q.req.ack)
	return q.scatter(q.pd, sges, uint64(off), src, false) == mr.FaultNone
}

// scatter writes src at message offset off into sges, whose keys are of domain pd. With last, the
// final byte becomes visible after all others. The caller has made sure that it fits.
func (q *QP) scatter(pd mr.PD, sges []SGE, off uint64, src []byte, last bool) mr.Fault {
	for i := 0; len(src) > 0 && i < len(sges); i++ {
		size := uint64(sges[i].Length)
		if off >= size {
			off -= size
			continue
		}
		n := min(size-off, uint64(len(src)))
		va := sges[i].Addr + off
		v, f := q.shard.check(sges[i].LKey, pd, q.qpn, mr.LocalWrite, va, n)
		if f != mr.FaultNone {
			return f
		}
		ok := false
		if last && n == uint64(len(src)) {
			ok = v.List().CopyInLast(v.Offset(va), src)
		} else {
			ok = v.List().CopyIn(v.Offset(va), src[:n])
		}
		if !ok {
			return q.shard.memoryFault()
		}
		src, off = src[n:], 0
	}
	if len(src) > 0 {
		return mr.FaultRange
	}
	return mr.FaultNone
}

// storeOriginal delivers an atomic's original value in host byte order.
func (q *QP) storeOriginal(e *sendEntry, orig uint64) bool {
	var b [8]byte
	if mutant.CompAtomicHalves {
		orig = orig<<32 | orig>>32
	}
	putHost(&b, orig)
	return q.scatterSend(e, 0, b[:])
}

// failEntry ends the QP with status at e, the oldest unacknowledged entry. It completes at once, unless
// a local operation before it still waits for grace; until then nothing is sent and the first failure
// counts.
func (q *QP) failEntry(e *sendEntry, st WCStatus, why Reason) {
	r := &q.req
	if e.state != entryFailed {
		e.fail(st, why)
	}
	r.cur, r.halted, r.rnrWait = r.ack, true, false
	q.shard.wheel.clear(&q.timer)
	q.retire()
}

// failOldest ends the QP with status at the oldest unacknowledged entry.
func (q *QP) failOldest(st WCStatus, why Reason) {
	r := &q.req
	r.skipDoneLocals()
	if r.ack == r.head {
		return
	}
	q.failEntry(r.entry(r.ack), st, why)
}

// retire completes entries in order, as far as they are done. A local operation may still wait
// for grace; a failed entry ends the send queue.
func (q *QP) retire() {
	r := &q.req
	if q.state == StateErr || q.state == StateSQE {
		q.flush()
		return
	}
	start := r.tail
	for r.tail != r.head {
		e := r.entry(r.tail)
		switch e.state {
		case entryDone:
		case entryGrace:
			if !q.dev.grace.Passed(e.epoch) && !q.shard.waitGrace(q, e.epoch) {
				q.freeSlots(start)
				return
			}
		case entryFailed:
			q.sendError(e)
			return
		default:
			if !mutant.CompRetireEarly || e.opcode != WRRDMAWrite || r.psn.Diff(e.last) <= 0 {
				q.freeSlots(start)
				return
			}
		}
		if r.watch.runs && r.watch.of == r.tail {
			q.completed(e.opcode)
		}
		r.tail++
		if q.sigAll || e.flags&SendSignaled != 0 || mutant.CompUnsignaled && mutant.Tick(32) {
			q.SQ.cons.Store(r.tail)
			start = r.tail
			if !q.sendCQE(e, WCSuccess, ReasonNone) {
				return
			}
		}
	}
	q.freeSlots(start)
}

// freeSlots gives retired slots back to the poster.
func (q *QP) freeSlots(since uint32) {
	if since != q.req.tail {
		q.SQ.cons.Store(q.req.tail)
	}
	if q.req.draining {
		q.checkDrained()
	}
}

// sendError completes the failed entry at the tail and stops the send queue: ERR for RC, SQE for
// the unreliable services (IBTA 10.3.1.6).
func (q *QP) sendError(e *sendEntry) {
	r := &q.req
	r.tail++
	r.ended, r.watch.runs = true, false
	q.SQ.cons.Store(r.tail)
	st, why := e.status, e.reason
	if !q.sendCQE(e, st, why) {
		return
	}
	q.fails(why)
	q.lastErr.WRID, q.lastErr.Opcode, q.lastErr.Status = e.id, e.opcode, st
	if q.typ == RC {
		q.toError()
		return
	}
	q.setState(StateSQE)
	q.flush()
}

// sendCQE writes a send completion. It is false when the CQ could not take it: the QP is in ERR
// then.
func (q *QP) sendCQE(e *sendEntry, st WCStatus, why Reason) bool {
	var c CQE
	c.WRID, c.QPN, c.Status, c.Reason, c.Opcode = e.id, q.qpn, st, why, wcOpcode(e.opcode)
	if st == WCSuccess {
		if e.answered() {
			c.ByteLen = e.length
		}
		q.shard.C.RDMASends++
	}
	return q.pushCQE(q.sendCQ, &c, false)
}

// pushCQE hands c to the CQ and deals with events and overflow.
func (q *QP) pushCQE(cq *CQ, c *CQE, solicited bool) bool {
	q.Stats.Completions++
	fired, ok := cq.push(q.shard.ID, c, solicited)
	if fired {
		q.shard.emit(Event{Type: EventCompletion, CQ: cq})
	}
	if ok {
		return true
	}
	q.shard.C.CQOverflows++
	if cq.dead.CompareAndSwap(false, true) {
		q.shard.emit(Event{Type: EventCQErr, CQ: cq, Reason: ReasonCQOverflow})
	}
	q.fails(ReasonCQOverflow)
	q.toError()
	return false
}

// wcOpcodes is the completion's opcode for each of a work request.
var wcOpcodes = [256]WCOpcode{
	WRSend: WCSend, WRSendWithImm: WCSend, WRSendWithInv: WCSend,
	WRRDMAWrite: WCRDMAWrite, WRRDMAWriteWithImm: WCRDMAWrite, WRRDMARead: WCRDMARead,
	WRAtomicCmpSwap: WCCompSwap, WRAtomicFetchAdd: WCFetchAdd,
	WRBindMW: WCBindMW, WRLocalInv: WCLocalInv, WRRegMR: WCRegMR,
	WRFlush: WCFlush, WRAtomicWrite: WCAtomicWrite,
}

func wcOpcode(op WROpcode) WCOpcode { return wcOpcodes[op] }

// flush completes everything posted with WR_FLUSH_ERR: both queues in ERR, the send queue in SQE.
// An executed invalidation still waits for its grace, and keeps what is behind it waiting. What was
// decided before keeps its status, up to the first that has failed or was not done.
func (q *QP) flush() {
	r := &q.req
	for {
		if r.tail == r.head && !q.take() {
			break
		}
		e := r.entry(r.tail)
		if e.state == entryGrace && !mutant.GraceFlush &&
			!q.dev.grace.Passed(e.epoch) && !q.shard.waitGrace(q, e.epoch) {
			return
		}
		st, why := r.verdict(e)
		r.tail++
		q.unstage(e)
		q.SQ.cons.Store(r.tail)
		if mutant.CompFlushLoses && r.tail == r.head && q.SQ.posted(r.head) == 0 {
			continue
		}
		if st != WCSuccess || q.sigAll || e.flags&SendSignaled != 0 {
			q.sendCQE(e, st, why)
		}
	}
	r.ack, r.cur = r.tail, r.tail
	r.una, r.psn, r.nxt, r.aged = r.sent, r.sent, r.sent, 0
	q.account()
	r.reads, r.halted, r.rnrWait = 0, false, false
	if q.state == StateErr {
		q.flushRecv()
	}
}

// verdict is how entry e, the oldest, completes in a flush: as it was decided, up to the first error.
func (r *requester) verdict(e *sendEntry) (WCStatus, Reason) {
	switch {
	case r.ended:
	case e.state == entryDone, e.state == entryGrace:
		return WCSuccess, ReasonNone
	case e.state == entryFailed:
		r.ended = true
		return e.status, e.reason
	}
	r.ended = true
	return WCWRFlushErr, ReasonFlushed
}

// stopped forgets what the requester had in flight.
func (r *requester) stopped(q *QP) {
	r.rnrWait, r.draining = false, false
}
