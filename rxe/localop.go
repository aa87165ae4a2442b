package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers the work requests that never leave the device: REG_MR, LOCAL_INV and BIND_MW.
// They run once, in send-queue order. The send position passes them over when it is rewound, so
// that a retransmission never runs them again. With SEND_WITH_INV in execute.go they are the only
// callers of the key table's mutators.

// runLocal executes the local operation at the send position. It is false when it cannot run yet:
// a LOCAL_INV waits until all earlier work requests of its queue are complete, so that no
// retransmission can need the key it takes away; any of them waits for READs and atomics when it
// is fenced.
func (q *QP) runLocal(e *sendEntry) bool {
	r := &q.req
	r.skipDoneLocals()
	if e.opcode == WRLocalInv && r.ack != r.cur && !mutant.ReqInvEarly || e.flags&SendFence != 0 && r.reads > 0 {
		return false
	}
	fault, grace := mr.FaultNone, false
	status := WCLocQPOpErr
	switch e.opcode {
	case WRRegMR:
		fault = q.regMR(e)
	case WRLocalInv:
		_, fault = q.dev.keys.Invalidate(e.rkey, q.pd, uint32(q.qpn))
		grace = !mutant.GraceLocalInv
	case WRBindMW:
		grace, fault = q.bindMW(e)
		status = WCMWBindErr
	}
	q.shard.C.LocalOps++
	if fault != mr.FaultNone {
		q.shard.C.KeyFaults[fault]++
		e.fail(status, faultReason(fault))
		return true
	}
	e.state = entryDone
	if grace {
		e.epoch = q.dev.grace.Next()
		e.state = entryGrace
	}
	if r.ack == r.cur {
		r.ack++
	}
	r.cur++
	q.retire()
	return true
}

// regMR publishes the view that was captured when the work request was posted.
func (q *QP) regMR(e *sendEntry) mr.Fault {
	v := q.dev.keys.Staged(e.rkey.Index(), uint32(e.swap))
	if v == nil || v.Key() != e.rkey {
		return mr.FaultPending
	}
	return q.dev.keys.Register(v, q.pd)
}

// bindMW binds, rebinds or (type 1, no length) unbinds a window. Replacing a key needs grace before
// the completion.
func (q *QP) bindMW(e *sendEntry) (grace bool, f mr.Fault) {
	b := mr.Bind{
		Window: mr.Key(e.compareAdd), Key: e.rkey, Parent: mr.Key(e.compareAdd >> 32),
		Access: mr.Access(e.swap >> 32), Addr: e.remoteAddr, Length: uint64(e.epoch),
	}
	e.epoch = 0
	num := uint32(e.swap)
	if e.flush&bindType1 != 0 {
		old, f := q.dev.keys.Bind1(num, &b, q.pd)
		return old != nil && !mutant.GraceBind, f
	}
	return false, q.dev.keys.Bind2(num, &b, q.pd, uint32(q.qpn))
}

// bindType1 marks a BIND_MW of a type 1 window in the record's flush bits.
const bindType1 = 1

// unstage gives up what a REG_MR or BIND_MW captured when it was posted and that will not run.
func (q *QP) unstage(e *sendEntry) {
	if e.state == entryNew && (e.opcode == WRRegMR || e.opcode == WRBindMW) {
		q.dev.keys.Unstage(e.rkey.Index(), uint32(e.swap))
	}
}

// discard gives up what posted work requests have captured, when they are dropped without a
// completion.
func (q *QP) discard() {
	r := &q.req
	for r.tail != r.head || q.take() {
		q.unstage(r.entry(r.tail))
		r.tail++
	}
}
