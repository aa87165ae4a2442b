package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file copies payload between packets and the memory that SGEs of a work request name.

// gather copies n payload bytes from offset off of e's message into f at byte position at. The
// position in the SGEs is remembered, so that a message is walked once. It is false when a local
// key does not allow it; e has failed then.
func (q *QP) gather(f *Frame, at int, e *sendEntry, off uint32, n int) bool {
	if n == 0 {
		return true
	}
	head := f.Head[at:]
	if len(head) > n {
		head = head[:n]
	}
	if !q.gatherTo(head, e, off) {
		return false
	}
	if rest := n - len(head); rest > 0 {
		return q.gatherTo(f.Tail[:rest], e, off+uint32(len(head)))
	}
	return true
}

func (q *QP) gatherTo(dst []byte, e *sendEntry, off uint32) bool {
	r := &q.req
	if e.inline {
		getInline(dst, q.SQ.slot(r.cur)[sendHeaderWords:], off)
		return true
	}
	sges := r.sgesOf(r.cur)
	if r.offset != off && !mutant.ReqStaleCursor || r.gatherOf != r.cur {
		r.seekSGE(sges, off)
	}
	for len(dst) > 0 {
		if r.sgeAt >= len(sges) {
			e.fail(WCLocLenErr, ReasonMsgTooLong)
			return false
		}
		sge := &sges[r.sgeAt]
		n := min(sge.Length-r.sgeOff, uint32(len(dst)))
		if n > 0 {
			va := sge.Addr + uint64(r.sgeOff)
			v, fault := q.shard.check(sge.LKey, q.pd, q.qpn, 0, va, uint64(n))
			if fault == mr.FaultNone && !v.List().CopyOut(v.Offset(va), dst[:n]) {
				fault = q.shard.memoryFault()
			}
			if fault != mr.FaultNone {
				e.fail(WCLocProtErr, faultReason(fault))
				return false
			}
		}
		dst = dst[n:]
		r.offset += n
		if r.sgeOff += n; r.sgeOff == sge.Length {
			r.sgeAt, r.sgeOff = r.sgeAt+1, 0
		}
	}
	return true
}

// seekSGE finds message offset off in the SGEs of the current entry.
func (r *requester) seekSGE(sges []SGE, off uint32) {
	r.gatherOf, r.offset = r.cur, off
	r.sgeAt, r.sgeOff = 0, off
	for r.sgeAt < len(sges) && r.sgeOff >= sges[r.sgeAt].Length {
		r.sgeOff -= sges[r.sgeAt].Length
		r.sgeAt++
	}
}

// sendFault stops the send queue at an entry that has just failed: it completes with its status
// when all before it have completed.
func (q *QP) sendFault() int {
	q.req.halted = true
	q.shard.C.SendErr++
	q.retire()
	return 0
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
