package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
)

// This file covers what a requester does when no answer comes: the ACK timer, and going back to the
// oldest packet that is not acknowledged (go-back-N).

// rewind goes back to the oldest unacknowledged PSN (go-back-N).
func (q *QP) rewind() {
	r := &q.req
	r.cur, r.psn, r.aged = r.ack, r.una, 0
	q.account()
	r.unasked, r.timing, r.probing = 0, false, false
	q.shard.C.CompleterRetryErr++
	q.shard.wantRequest(q)
}

// armAck starts the retransmission timer. It may run before the ACK timeout is over: for a probe,
// and when what is in flight no longer counts in the budget.
func (q *QP) armAck() {
	at := AckTimeout(q.attr.Timeout)
	if at != Never {
		at += q.shard.now
	}
	q.req.ackAt, q.req.armedAt = at, q.shard.now
	at = min(at, q.shard.now+budgetAge)
	if q.mayProbe() {
		q.req.probeAt = q.shard.now + max(2*q.req.mean+4*q.req.swing, probeMin)
		at = min(at, q.req.probeAt)
	}
	q.shard.wheel.set(&q.timer, at)
}

// expire is the timer: the end of an RNR wait, the age of the budget, or no answer for too long.
func (q *QP) expire(now Time) {
	r := &q.req
	if q.typ != RC || q.state != StateRTS && q.state != StateSQD {
		return
	}
	if r.rnrWait {
		r.rnrWait = false
		q.rewind()
		return
	}
	switch {
	case r.una == r.sent:
		return
	case now < r.ackAt && q.mayProbe() && now >= r.probeAt:
		q.probe()
		q.shard.wheel.set(&q.timer, min(r.ackAt, now+budgetAge))
		return
	case now < r.ackAt:
		at := r.ackAt
		if q.shard.heardAt-r.armedAt >= budgetAge/2 || now-r.armedAt >= budgetLimit {
			q.release()
		} else {
			at = min(at, now+budgetAge)
		}
		if q.mayProbe() {
			at = min(at, r.probeAt)
		}
		q.shard.wheel.set(&q.timer, at)
		return
	case r.psn == r.una && q.waits() && !q.shard.canUnpark():
		q.armAck() // it has not been its turn since the last timeout: no retry to count
		return
	}
	q.shard.C.Timeouts++
	q.Stats.Timeouts++
	if r.retries == 0 && !mutant.ReqNeverEnds {
		q.shard.C.RetryExceededErr++
		q.failOldest(WCRetryExcErr, ReasonTimeout)
		return
	}
	r.retries--
	r.rewound = false
	q.lost(true)
	if !mutant.ReqTimeoutIdle {
		q.rewind()
	}
	q.armAck()
}

// checkDrained reports the end of draining in SQD.
func (q *QP) checkDrained() {
	r := &q.req
	if q.state != StateSQD || !r.draining {
		return
	}
	for i := r.tail; i != r.head; i++ {
		if s := r.entry(i).state; s == entryStarted || s == entryGrace {
			return
		}
	}
	r.draining = false
	if q.attr.EnSQDAsyncNotify {
		q.shard.emit(Event{Type: EventSQDrained, QP: q})
	}
}
