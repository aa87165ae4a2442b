package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
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
	if q.hasRequests() {
		q.shard.wantRequest(q)
	}
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
