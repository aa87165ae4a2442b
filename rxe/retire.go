package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
)

// This file covers the end of work requests: retirement in order, completions, errors and flushes.

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
