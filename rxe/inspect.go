package rxe

import "github.com/roxie-rdma/roxie/rxe/mr"

// This file is how a QP is looked at from outside: all that a maintainer needs to tell why it does
// what it does.

// QPInspection is a QP's state at one moment, as plain values. Times are of the driver's clock.
type QPInspection struct {
	QPN      QPN
	Type     QPType
	State    QPState
	Shard    int
	PD       mr.PD
	Attr     QPAttr
	Counters QPCounters

	Requester RequesterInspection
	Responder ResponderInspection

	Ready   bool // on the shard's list of those that may send
	Parked  bool // waits for the shard's budget
	Timer   Time // when the timer is due; Never: not armed
	Now     Time // the shard's
	SendCQ  CQInspection
	RecvCQ  CQInspection
	LastErr LastError
}

// LastError is what the QP failed of last: on its way to ERR, or SQE, other than by the application.
type LastError struct {
	Reason Reason // 0: it has not failed
	At     Time
	Status WCStatus // of the send work request that failed; WCSuccess: it was the peer's request
	WRID   uint64   // of that work request
	Opcode WROpcode
}

// RequesterInspection is the sending half. Queue indices run freely:
// Tail ≤ Ack ≤ Cur ≤ Head ≤ Posted.
type RequesterInspection struct {
	Depth, Posted, Head, Cur, Ack, Tail uint32
	Una, PSN, Sent, Next                PSN
	InFlight, Window, Threshold         uint32 // packets
	Reads                               uint32 // READs and atomics in flight
	Retries, RNRRetries                 uint8  // left
	SSN, CreditLimit                    uint32 // CreditLimit: of SSN, if Limited
	Limited, RNRWait, Draining, Halted  bool
	Recovering, Lossy, Probing          bool
	RTT, RTTMean, RTTSwing, RTTLeast    Time
	AckAt                               Time // when the ACK timer runs out, if something is in flight
	Oldest                              WQEInspection
	HasOldest                           bool // something is unacknowledged
}

// WQEInspection is a work request in a send queue.
type WQEInspection struct {
	Index       uint32
	WRID        uint64
	Opcode      WROpcode
	Flags       SendFlags
	Length      uint32
	First, Last PSN // once it is started
	Started     bool
	RemoteAddr  uint64
	RKey        mr.Key
}

// ResponderInspection is the serving half.
type ResponderInspection struct {
	PSN                       PSN // expected next
	MSN                       uint32
	Depth, Posted, Consumed   uint32 // receive queue; of an SRQ 0
	SRQ                       bool
	InMessage                 bool // between the first and the last packet of a SEND or WRITE
	Placed                    uint64
	Answers, Resources        int // READs and atomics: to answer, and remembered
	AckOwed, NAKOwed, NAKSent bool
	NAKPSN                    PSN
	Deferred                  int // receive completions that wait for grace
}

// CQInspection is a completion queue.
type CQInspection struct {
	Num        uint32
	Depth, Len int
	Dead       bool
}

// Inspect returns the QP's state. The shard must be held.
func (q *QP) Inspect() QPInspection {
	i := QPInspection{
		QPN: q.qpn, Type: q.typ, State: q.state, Shard: q.shard.ID, PD: q.pd, Attr: q.Query(),
		Counters: q.Stats, Requester: q.inspectRequester(), Responder: q.inspectResponder(),
		Ready: q.shard.ready.has(q), Parked: q.waits(), Timer: q.timer.at, Now: q.shard.now,
		SendCQ: q.sendCQ.inspect(), RecvCQ: q.recvCQ.inspect(), LastErr: q.lastErr,
	}
	return i
}

func (q *QP) inspectRequester() RequesterInspection {
	r := &q.req
	i := RequesterInspection{
		Depth: q.SQ.depth, Posted: q.SQ.prod.Load(), Head: r.head, Cur: r.cur, Ack: r.ack, Tail: r.tail,
		Una: r.una, PSN: r.psn, Sent: r.sent, Next: r.nxt,
		InFlight: uint32(max(r.psn.Diff(r.una), 0)), Window: r.window(), Threshold: r.ssthresh,
		Reads: r.reads, Retries: r.retries, RNRRetries: r.rnrRetries, SSN: r.ssn, CreditLimit: r.limit,
		Limited: r.limited, RNRWait: r.rnrWait, Draining: r.draining, Halted: r.halted,
		Recovering: r.recovers, Lossy: r.lossy, Probing: r.probing,
		RTT: r.rtt, RTTMean: r.mean, RTTSwing: r.swing, RTTLeast: r.least, AckAt: r.ackAt,
	}
	if r.ack != r.head && r.entries != nil {
		e := r.entry(r.ack)
		i.HasOldest = true
		i.Oldest = WQEInspection{Index: r.ack, WRID: e.id, Opcode: e.opcode, Flags: e.flags, Length: e.length,
			First: e.first, Last: e.last, Started: e.state != entryNew, RemoteAddr: e.remoteAddr, RKey: e.rkey}
	}
	return i
}

func (q *QP) inspectResponder() ResponderInspection {
	r := &q.resp
	i := ResponderInspection{
		PSN: r.psn, MSN: r.msn, SRQ: q.srq != nil, InMessage: r.kind != 0, Placed: r.got,
		Answers: len(r.queue), Resources: len(r.resources), AckOwed: r.ackOwed, NAKOwed: r.nakOwed,
		NAKSent: r.nakSent, NAKPSN: r.nakPSN, Deferred: len(r.deferred),
	}
	if q.srq == nil {
		i.Depth, i.Posted, i.Consumed = q.RQ.depth, q.RQ.prod.Load(), q.RQ.cons.Load()
	}
	return i
}

func (c *CQ) inspect() CQInspection {
	return CQInspection{Num: c.Num, Depth: c.Depth(), Len: c.Len(), Dead: c.Dead()}
}
