package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers how a requester asks for READs: in slices that the window holds.

// readDepth is how many READ and atomic requests may be outstanding.
func (q *QP) readDepth() uint32 {
	if mutant.ReqReadDepth {
		return uint32(q.attr.MaxQPRdAtomic) + 1
	}
	return uint32(q.attr.MaxQPRdAtomic)
}

// readSlice is for how many PSNs of READ e the next request may ask, 0 if for none now. The
// responder sends its answer as fast as it can, so that a long READ is asked for in parts that the
// window holds: our own ring must take them. Of one READ at most two requests are outstanding, the
// second when half of the window is free. What was asked for before and is lost is asked for again
// up to where its request ended: a responder knows a repeated request by the original.
func (q *QP) readSlice(e *sendEntry) uint32 {
	r := &q.req
	inFlight := uint32(r.psn.Diff(r.una))
	if inFlight >= r.window() {
		return 0
	}
	rest := q.psnCount(e)
	if e.state == entryStarted {
		rest = uint32(e.last.Diff(r.psn)) + 1
		if again := r.sent.Diff(r.psn); again > 0 {
			if n := e.cut.Diff(r.psn); e.asked == 2 && n > 0 {
				return uint32(n)
			}
			return min(rest, uint32(again))
		}
	}
	room := r.cwnd - inFlight
	if e.asked == 2 || r.reads >= q.readDepth() || room < min(rest, (r.cwnd+1)/2) || !q.withinBudget(inFlight) {
		return 0
	}
	budget := max(int32(q.dev.cfg.Budget-q.shard.inFlight)/int32(q.chunks()), 1)
	return min(rest, room, uint32(budget))
}

// asks notes that a request of e goes out.
func (r *requester) asks(e *sendEntry) {
	if r.psn.Diff(r.sent) < 0 && !mutant.ReqReadsLeak {
		return // again
	}
	if e.asked++; e.asked == 2 {
		e.cut = r.psn
	}
	if r.psn != e.first {
		r.ssn++ // to the responder it is a message of its own
	}
	r.reads++
}

// answeredTo follows the answer of e up to PSN una: requests that are answered are outstanding no more.
func (r *requester) answeredTo(e *sendEntry) {
	switch {
	case r.una.Diff(e.last) > 0, r.una == r.sent:
		r.reads -= uint32(e.asked)
		e.asked = 0
	case e.asked == 2 && r.una.Diff(e.cut) >= 0:
		r.reads--
		e.asked = 1
	}
}

// endsRequest reports whether x is the last PSN that an outstanding request of READ e asks for.
func (r *requester) endsRequest(e *sendEntry, x PSN) bool {
	next := x.Next()
	return x == e.last || next == r.sent || e.asked == 2 && next == e.cut
}

// sendAnswered builds a READ, atomic, FLUSH or ATOMIC WRITE request. A READ asks for a part of its
// answer, or for what is missing of such a part.
func (q *QP) sendAnswered(f Frame, e *sendEntry) int {
	r := &q.req
	off := uint32(r.psn.Diff(e.first)) * q.pmtu
	length, next := e.length-off, e.last.Next()
	var op wire.Opcode
	n := 0
	switch e.opcode {
	case WRRDMARead:
		op = wire.RCReadRequest
		if part := r.psn.Add(q.readSlice(e)); part != next {
			length, next = uint32(part.Diff(r.psn))*q.pmtu, part
		}
	case WRAtomicCmpSwap:
		op = wire.RCCmpSwap
	case WRAtomicFetchAdd:
		op = wire.RCFetchAdd
	case WRFlush:
		op = wire.RCFlush
	case WRAtomicWrite:
		op, n = wire.RCAtomicWrite, 8
	}
	hdr := q.begin(f.Head, op)
	if n > 0 && !q.gather(&f, q.tmpl.HeaderLen(op), e, 0, n) {
		return q.sendFault()
	}
	bth := (*wire.BTH)(hdr)
	bth.SetPSN(r.psn)
	bth.SetAckReq(true)
	r.unasked = 0
	i := op.Info()
	if i.RETHOff != 0 {
		h := (*wire.RETH)(hdr[i.RETHOff:])
		va := e.remoteAddr + uint64(off)
		if mutant.ReqReadResume {
			va = e.remoteAddr
		}
		h.SetVA(va)
		h.SetRKey(uint32(e.rkey))
		h.SetLength(length)
	}
	if i.FETHOff != 0 {
		(*wire.FETH)(hdr[i.FETHOff:]).Set(e.flush&15, e.flush>>4)
	}
	if i.AtomicETHOff != 0 {
		h := (*wire.AtomicETH)(hdr[i.AtomicETHOff:])
		h.SetVA(e.remoteAddr)
		h.SetRKey(uint32(e.rkey))
		if op == wire.RCCmpSwap {
			h.SetSwapAdd(e.swap)
			h.SetCompare(e.compareAdd)
		} else {
			h.SetSwapAdd(e.compareAdd)
			h.SetCompare(0)
		}
	}
	r.asks(e)
	q.advance(e, next, n)
	return q.tmpl.Finish(f, op, n)
}
