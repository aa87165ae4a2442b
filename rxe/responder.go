package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the road from a request packet to its execution: the chain of checks in the
// order Linux rxe has them (its resp_states), each with the NAK the rules name.

// responder is the serving half of a QP.
type responder struct {
	psn PSN    // expected next
	msn uint32 // messages completed, 24 bits

	// The message in progress.
	kind   wire.Flags // FlagSend or FlagWrite; 0 between messages
	recv   recvEntry
	sges   []SGE
	got    uint64 // bytes placed
	va     uint64 // WRITE: where the next packet goes
	resid  uint64 // WRITE: bytes still to come
	length uint32 // WRITE: the message's
	rkey   mr.Key
	skip   bool // UC: rest of this message is dropped

	// What is owed to the peer, in this order: queued answers, a NAK, an ACK.
	resources []resource
	nextRes   uint32
	queue     []uint16 // resources to answer, oldest first
	nakOwed   bool
	nakSyn    wire.Syndrome
	nakPSN    PSN
	ackOwed   bool
	force     bool // the ACK has waited long enough
	nakSent   bool // one NAK a gap
	failing   bool // the QP is in ERR and owes the NAK that says why

	established bool
	lastWQE     bool          // in ERR with an SRQ: the event is still to come
	deferred    []deferredCQE // receive completions that wait for grace, in order
}

type deferredCQE struct {
	cqe       CQE
	epoch     mr.Epoch // 0: only waits for those before it
	solicited bool
}

func (r *responder) reset(q *QP) {
	*r = responder{sges: r.sges, resources: r.resources[:0], queue: r.queue[:0]}
}

// stopped drops what is owed when the QP leaves the working states, except the NAK that tells the
// peer why and the answers before it.
func (r *responder) stopped() {
	if !r.failing {
		r.queue = r.queue[:0]
		r.nakOwed = false
	}
	r.ackOwed, r.force = false, false
	r.kind = 0
}

// urgent reports whether answers or a NAK wait, or an ACK that must not wait longer.
func (r *responder) urgent() bool { return len(r.queue) > 0 || r.nakOwed || r.force }

// owes reports whether there is anything to send to the peer.
func (r *responder) owes() bool { return len(r.queue) > 0 || r.nakOwed || r.ackOwed }

// verdict is what the checks say about a request. It has four small fields and no more, so that the
// compiler keeps it in registers: each packet has a dozen of them.
type verdict struct {
	reason Reason
	syn    wire.Syndrome // NAK or RNR NAK to send
	status WCStatus      // for a receive WQE held, if the QP fails
	how    outcome
}

// outcome is what becomes of a request.
type outcome uint8

const (
	pass   outcome = iota // it is carried out
	wait                  // not now: RNR NAK
	fail                  // QP to ERR
	silent                // not even a NAK: as if the packet were lost
)

var accepted = verdict{}

func (v verdict) ok() bool { return v.how == pass }

// event is what the application learns if the QP fails and no receive WQE is held.
func (v verdict) event() EventType {
	switch v.syn.NAK() {
	case wire.NAKInvalidRequest:
		return EventQPReqErr
	case wire.NAKRemoteAccess:
		return EventQPAccessErr
	}
	return EventQPFatal
}

func invalidRequest(why Reason) verdict {
	return verdict{why, wire.NAKSyndrome(wire.NAKInvalidRequest), WCRemInvReqErr, fail}
}

func remoteAccess(f mr.Fault) verdict {
	return verdict{faultReason(f), wire.NAKSyndrome(wire.NAKRemoteAccess), WCLocAccessErr, fail}
}

func remoteOp(why Reason, st WCStatus) verdict {
	return verdict{why, wire.NAKSyndrome(wire.NAKRemoteOp), st, fail}
}

// respond takes a request packet of an RC QP.
func (q *QP) respond(p *wire.Packet) {
	r := &q.resp
	if p.Info.Flags&wire.FlagRequest == 0 {
		q.drop(ReasonQPType)
		return
	}
	switch d := p.PSN.Diff(r.psn); {
	case d > 0 && !(mutant.RespPSNLoose && d == 1):
		q.psnAhead()
		return
	case d < 0:
		q.duplicate(p)
		return
	}
	q.commEstablished()
	v := q.checkRequest(p)
	if v.ok() {
		v = q.execute(p)
	}
	if !v.ok() {
		q.refuse(p, v)
		return
	}
	if r.nakSent {
		r.nakSent, r.nakOwed = false, false
	}
	if p.AckReq && p.Info.Flags&(wire.FlagSend|wire.FlagWrite) != 0 {
		q.oweAck()
	}
}

// commEstablished reports the first packet on a QP that is not yet in RTS (IBTA 11.6.3.1).
func (q *QP) commEstablished() {
	if q.state == StateRTR && !q.resp.established {
		q.resp.established = true
		q.shard.emit(Event{Type: EventCommEst, QP: q})
	}
}

// psnAhead answers a gap with one NAK until the missing packet has come.
func (q *QP) psnAhead() {
	r := &q.resp
	q.shard.C.OutOfSeqRequest++
	q.Stats.OutOfSeq++
	q.drop(ReasonPSNAhead)
	if !r.nakSent || mutant.RespNAKFlood {
		r.nakSent = true
		q.oweNAK(wire.NAKSyndrome(wire.NAKPSNSeq), r.psn)
	}
}

// refuse sends the NAK and, for what the peer must not do, ends the QP.
func (q *QP) refuse(p *wire.Packet, v verdict) {
	r := &q.resp
	q.drop(v.reason)
	if v.how == silent {
		return
	}
	q.oweNAK(v.syn, p.PSN)
	if v.how != fail {
		q.shard.C.SendRNRErr++
		q.Stats.RNRSent++
		if mutant.RespRNRLoses {
			r.psn = r.psn.Next()
		}
		r.nakSent = true // what follows in flight is ahead and gets no second NAK
		return
	}
	r.failing = true
	if r.recv.held {
		q.recvError(v.status, v.reason)
	} else {
		q.shard.emit(Event{Type: v.event(), QP: q, Reason: v.reason})
	}
	q.fails(v.reason)
	q.toError()
}

// recvError completes the receive WQE of the message in hand with an error.
func (q *QP) recvError(st WCStatus, why Reason) {
	c := CQE{WRID: q.resp.recv.id, QPN: q.qpn, Status: st, Reason: why, Opcode: WCRecv}
	q.finishRecv(&c, false, 0)
}

// checkRequest is the chain of checks before execution.
func (q *QP) checkRequest(p *wire.Packet) verdict {
	if v := q.checkSequence(p); !v.ok() {
		return v
	}
	if v := q.checkEnabled(p); !v.ok() {
		return v
	}
	if v := q.checkResources(p); !v.ok() {
		return v
	}
	return q.checkLength(p)
}

// checkSequence compares the opcode with the message in progress.
func (q *QP) checkSequence(p *wire.Packet) verdict {
	r := &q.resp
	f := p.Info.Flags
	if f&wire.FlagStart != 0 {
		if r.kind != 0 {
			return invalidRequest(ReasonOpSequence)
		}
		return accepted
	}
	if r.kind == 0 || f&r.kind == 0 {
		return invalidRequest(ReasonOpSequence)
	}
	return accepted
}

// checkEnabled compares the operation with the QP's access flags.
func (q *QP) checkEnabled(p *wire.Packet) verdict {
	var need mr.Access
	switch f := p.Info.Flags; {
	case f&(wire.FlagWrite|wire.FlagAtomicWrite) != 0:
		need = mr.RemoteWrite
	case f&wire.FlagRead != 0:
		need = mr.RemoteRead
	case f&wire.FlagAtomic != 0:
		need = mr.RemoteAtomic
	case f&wire.FlagFlush != 0:
		return q.checkFlush(p)
	}
	if q.attr.AccessFlags&need != need && !mutant.RespEnabled {
		return invalidRequest(ReasonOpDisabled)
	}
	return accepted
}

func flushAccess(placement uint8) (need mr.Access) {
	if placement&1 != 0 {
		need |= mr.FlushGlobal
	}
	if placement&2 != 0 {
		need |= mr.FlushPersistent
	}
	return need
}

func (q *QP) checkFlush(p *wire.Packet) verdict {
	h := p.FETH()
	if h.Placement() == 0 || h.Placement() > 3 || h.Selectivity() > 1 {
		return invalidRequest(ReasonFlushType)
	}
	if need := flushAccess(h.Placement()); q.attr.AccessFlags&need != need {
		return invalidRequest(ReasonOpDisabled)
	}
	return accepted
}

// checkLength applies the payload rules by position (IBTA 9.7.4.1.4 and 9.7.4.1.6) and, for WRITE,
// the length the RETH announced.
func (q *QP) checkLength(p *wire.Packet) verdict {
	r := &q.resp
	n := uint32(p.PayloadLen)
	f := p.Info.Flags
	if f&(wire.FlagSend|wire.FlagWrite) != 0 {
		switch {
		case f&wire.FlagEnd == 0 && n != q.pmtu, n > q.pmtu, f&(wire.FlagStart|wire.FlagEnd) == wire.FlagEnd && n == 0:
			return invalidRequest(ReasonPayloadLength)
		}
	}
	switch {
	case f&wire.FlagWrite != 0:
		resid := r.resid
		if f&wire.FlagRETH != 0 {
			resid = uint64(p.RETH().Length())
			if resid > MaxMessage {
				return invalidRequest(ReasonMessageLength)
			}
		}
		if f&wire.FlagEnd != 0 && uint64(n) != resid || f&wire.FlagEnd == 0 && uint64(n) >= resid {
			return invalidRequest(ReasonMessageLength)
		}
	case f&wire.FlagRead != 0:
		if l := p.RETH().Length(); l > MaxMessage || packets(l, q.pmtu) > maxOutstanding {
			return invalidRequest(ReasonMessageLength)
		}
	case f&wire.FlagAtomic != 0:
		if p.AtomicETH().VA()%8 != 0 {
			return invalidRequest(ReasonAtomicAlign)
		}
	case f&wire.FlagAtomicWrite != 0:
		if n != 8 || p.RETH().Length() != 8 {
			return invalidRequest(ReasonMessageLength)
		}
		if p.RETH().VA()%8 != 0 {
			return invalidRequest(ReasonAtomicAlign)
		}
	}
	return accepted
}

// checkResources makes sure of a responder resource, or of a receive WQE.
func (q *QP) checkResources(p *wire.Packet) verdict {
	r := &q.resp
	f := p.Info.Flags
	if f&(wire.FlagRead|wire.FlagAtomic|wire.FlagAtomicWrite|wire.FlagFlush) != 0 {
		switch {
		case len(r.resources) == 0:
			return invalidRequest(ReasonNoResources)
		case !r.resources[r.nextRes].pending():
			return accepted
		case f&wire.FlagFlush != 0: // rxe does not count them as outstanding
			return verdict{reason: ReasonNoResources, how: silent}
		}
		return invalidRequest(ReasonNoResources)
	}
	if f&wire.FlagConsumesRecv == 0 || r.recv.held {
		return accepted
	}
	return q.takeRecv()
}

// takeRecv copies the next receive WQE, from the QP's queue or its SRQ.
func (q *QP) takeRecv() verdict {
	r := &q.resp
	src := &q.RQ
	if q.srq != nil {
		src = &q.srq.Q
	}
	at := src.cons.Load()
	if src.posted(at) == 0 {
		return verdict{reason: ReasonNoRecvWQE, syn: q.rnrSyndrome(), how: wait}
	}
	decodeRecv(src.slot(at), &r.recv, r.sges)
	r.got = 0
	if q.srq != nil {
		src.cons.Store(at + 1)
		q.srq.taken(q.shard)
	}
	if r.recv.bad {
		return remoteOp(ReasonBadWQE, WCLocQPOpErr)
	}
	return accepted
}

// rnrSyndrome asks the peer to wait.
func (q *QP) rnrSyndrome() wire.Syndrome {
	if mutant.RespRNRTimer {
		return wire.RNRSyndrome(q.attr.MinRNRTimer + 1)
	}
	return wire.RNRSyndrome(q.attr.MinRNRTimer)
}

// finishRecv completes the receive WQE in hand. epoch, if not zero, is the grace its completion
// waits for; completions behind it wait with it.
func (q *QP) finishRecv(c *CQE, solicited bool, epoch mr.Epoch) {
	r := &q.resp
	r.recv.held = false
	if q.srq == nil {
		q.RQ.cons.Store(q.RQ.cons.Load() + 1)
	}
	q.shard.C.RDMARecvs++
	if len(r.deferred) > 0 {
		r.deferred = append(r.deferred, deferredCQE{*c, epoch, solicited}) // the first one is waited for
		return
	}
	if epoch != 0 && !q.dev.grace.Passed(epoch) && !q.shard.waitGrace(q, epoch) {
		r.deferred = append(r.deferred, deferredCQE{*c, epoch, solicited})
		return
	}
	q.pushCQE(q.recvCQ, c, solicited)
}

// releaseRecv hands out receive completions whose grace has passed.
func (q *QP) releaseRecv() {
	r := &q.resp
	n := 0
	for ; n < len(r.deferred); n++ {
		d := &r.deferred[n]
		if d.epoch != 0 && !q.dev.grace.Passed(d.epoch) && !q.shard.waitGrace(q, d.epoch) {
			break
		}
		q.pushCQE(q.recvCQ, &d.cqe, d.solicited)
	}
	r.deferred = r.deferred[:copy(r.deferred, r.deferred[n:])]
	q.reportLastWQE()
}

// reportLastWQE tells, once in ERR and behind its last completion, that the QP takes no more from
// its SRQ (IBTA 11.6.3.2).
func (q *QP) reportLastWQE() {
	r := &q.resp
	if r.lastWQE && len(r.deferred) == 0 {
		r.lastWQE = false
		if mutant.SRQLastWQE {
			return
		}
		q.shard.emit(Event{Type: EventQPLastWQE, QP: q})
	}
}

// flushRecv completes everything posted to the receive queue with WR_FLUSH_ERR. An SRQ's entries
// stay for its other QPs.
func (q *QP) flushRecv() {
	r := &q.resp
	if r.recv.held {
		q.recvError(WCWRFlushErr, ReasonFlushed)
	}
	if q.srq != nil {
		q.reportLastWQE()
		return
	}
	for q.RQ.posted(q.RQ.cons.Load()) > 0 {
		decodeRecv(q.RQ.slot(q.RQ.cons.Load()), &r.recv, r.sges)
		q.recvError(WCWRFlushErr, ReasonFlushed)
	}
}

// respondUC takes a packet of an unreliable connection: a gap or an error drops the message.
func (q *QP) respondUC(p *wire.Packet) {
	r := &q.resp
	f := p.Info.Flags
	gap := p.PSN != r.psn
	r.psn = p.PSN.Next()
	q.commEstablished()
	if f&wire.FlagStart != 0 {
		r.kind, r.skip = 0, false // an unfinished message is forgotten, its WQE used again
	} else if gap && !mutant.RespUCGap {
		q.dropUC(ReasonUCGap)
		return
	}
	if r.skip {
		q.drop(ReasonUCDropped)
		return
	}
	v := q.checkRequest(p)
	if v.ok() {
		v = q.execute(p)
	}
	if v.ok() {
		return
	}
	if v.how == fail && r.recv.held && localFault(v.status) {
		q.recvError(v.status, v.reason)
		q.fails(v.reason)
		q.toError()
		return
	}
	q.dropUC(v.reason)
}

// localFault reports whether a status blames the receiver's own work request. One that is too small
// for the message does not count: UC drops the message then, and the WQE serves the next one.
func localFault(st WCStatus) bool {
	return st == WCLocProtErr || st == WCLocQPOpErr
}

// dropUC drops the rest of the current message. A receive WQE in hand serves the next one.
func (q *QP) dropUC(why Reason) {
	q.resp.kind, q.resp.skip = 0, true
	q.drop(why)
}
