package rxe

import (
	"encoding/binary"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file carries out what the checks have admitted: it touches memory and the key table, moves
// PSN and MSN, and makes receive completions.

// execute carries out one request packet.
func (q *QP) execute(p *wire.Packet) verdict {
	r := &q.resp
	f := p.Info.Flags
	switch {
	case f&wire.FlagSend != 0:
		if v := q.executeSend(p); !v.ok() {
			return v
		}
	case f&wire.FlagWrite != 0:
		if v := q.executeWrite(p); !v.ok() {
			return v
		}
	case f&wire.FlagRead != 0:
		return q.acceptRead(p)
	default:
		return q.executeAtomic(p)
	}
	var epoch mr.Epoch
	if f&wire.FlagInv != 0 {
		var v verdict
		if epoch, v = q.invalidate(mr.Key(p.Inv())); !v.ok() {
			return v
		}
	}
	r.psn = p.PSN.Next()
	if f&wire.FlagEnd == 0 {
		r.kind = f & (wire.FlagSend | wire.FlagWrite)
		return accepted
	}
	r.kind = 0
	r.msn = (r.msn + 1) & wire.PSNMask
	if f&(wire.FlagSend|wire.FlagImm) != 0 {
		q.completeRecv(p, epoch)
	}
	return accepted
}

// invalidate carries out what a SEND_WITH_INV asks for, after its data is placed and before it
// counts as executed. It returns the grace that the completion waits for. The peer learns of a
// failure by a NAK remote access error, and the receive WQE fails with REM_INV_REQ_ERR.
func (q *QP) invalidate(key mr.Key) (mr.Epoch, verdict) {
	if _, fault := q.dev.keys.Invalidate(key, q.pd, uint32(q.qpn)); fault != mr.FaultNone {
		q.shard.C.KeyFaults[fault]++
		v := remoteAccess(fault)
		v.reason, v.status = ReasonInvalidate, WCRemInvReqErr
		return 0, v
	}
	if mutant.GraceSendInv {
		return 0, accepted
	}
	return q.dev.grace.Next(), accepted
}

// executeSend places a SEND's payload into the receive WQE's buffers.
func (q *QP) executeSend(p *wire.Packet) verdict {
	r := &q.resp
	if p.Info.Flags&wire.FlagStart != 0 {
		r.got = 0
	}
	n := uint64(p.PayloadLen)
	if r.got+n > min(r.recv.length, MaxMessage) {
		v := invalidRequest(ReasonRecvTooSmall)
		v.status = WCLocLenErr
		return v
	}
	last := p.Info.Flags&wire.FlagEnd != 0
	f := q.scatterRecv(r.got, p.Data0, last && len(p.Data1) == 0)
	if f == mr.FaultNone && len(p.Data1) > 0 {
		f = q.scatterRecv(r.got+uint64(len(p.Data0)), p.Data1, last)
	}
	if f != mr.FaultNone {
		return remoteOp(faultReason(f), WCLocProtErr)
	}
	r.got += n
	return accepted
}

// scatterRecv writes src at offset off into the buffers of the receive WQE in hand. Those of an SRQ
// are of the SRQ's protection domain, which need not be the QP's.
func (q *QP) scatterRecv(off uint64, src []byte, last bool) mr.Fault {
	pd := q.pd
	if q.srq != nil && !mutant.SRQDomain {
		pd = q.srq.PD
	}
	return q.scatter(pd, q.resp.sges[:q.resp.recv.nsge], off, src, last)
}

// executeWrite places a WRITE's payload. The key is looked up for each packet, for all that is
// still to come: invalidated between two packets, the message ends here.
func (q *QP) executeWrite(p *wire.Packet) verdict {
	r := &q.resp
	if p.Info.Flags&wire.FlagRETH != 0 {
		h := p.RETH()
		r.va, r.rkey, r.length = h.VA(), mr.Key(h.RKey()), h.Length()
		r.resid = uint64(r.length)
	}
	if r.resid == 0 {
		return accepted // the key of an empty WRITE is not looked at (IBTA C9-88)
	}
	v, f := q.shard.check(r.rkey, q.pd, q.qpn, mr.RemoteWrite, r.va, r.resid)
	if mutant.RespViewKept {
		v, f = q.keepView(p, v, f)
	}
	if f != mr.FaultNone {
		return remoteAccess(f)
	}
	q.shard.copyHook()
	off := v.Offset(r.va)
	last := p.Info.Flags&wire.FlagEnd != 0
	var ok bool
	switch {
	case !last:
		ok = v.List().CopyIn(off, p.Data0) && v.List().CopyIn(off+uint64(len(p.Data0)), p.Data1)
	case len(p.Data1) == 0:
		ok = v.List().CopyInLast(off, p.Data0)
	default:
		ok = v.List().CopyIn(off, p.Data0) && v.List().CopyInLast(off+uint64(len(p.Data0)), p.Data1)
	}
	if !ok {
		return refused(q.shard.memoryFault())
	}
	r.va += uint64(p.PayloadLen)
	r.resid -= uint64(p.PayloadLen)
	return accepted
}

// copyHook is where tests step between a key check and the copy it allowed.
func (s *Shard) copyHook() {
	if s.TestHook != nil {
		s.TestHook()
	}
}

// completeRecv makes the receive completion of the message that has just ended, after the grace of
// epoch if that is not zero.
func (q *QP) completeRecv(p *wire.Packet, epoch mr.Epoch) {
	r := &q.resp
	f := p.Info.Flags
	c := CQE{WRID: r.recv.id, QPN: q.qpn, Opcode: WCRecv, ByteLen: uint32(r.got)}
	if f&wire.FlagWrite != 0 {
		c.Opcode, c.ByteLen = WCRecvRDMAWithImm, r.length
	}
	if mutant.RespByteLen {
		c.ByteLen = uint32(r.recv.length)
	}
	if mutant.RespImmLength && f&wire.FlagWrite != 0 {
		c.ByteLen = uint32(p.PayloadLen)
	}
	if f&wire.FlagImm != 0 {
		c.Flags |= WCWithImm
		c.Imm = p.Imm()
	}
	if f&wire.FlagInv != 0 {
		c.Flags |= WCWithInv
		c.Imm = p.Inv()
	}
	q.finishRecv(&c, p.Solicited, epoch)
}

// acceptRead admits a READ: its responses are made when it is their turn.
func (q *QP) acceptRead(p *wire.Packet) verdict {
	h := p.RETH()
	va, key, n := h.VA(), mr.Key(h.RKey()), h.Length()
	if n > 0 {
		if _, f := q.shard.check(key, q.pd, q.qpn, mr.RemoteRead, va, uint64(n)); f != mr.FaultNone {
			return remoteAccess(f)
		}
	}
	r := &q.resp
	count := packets(n, q.pmtu)
	if !mutant.RespMSNReads {
		r.msn = (r.msn + 1) & wire.PSNMask
	}
	q.addResource(resource{op: p.Op, first: p.PSN, last: p.PSN.Add(count - 1), va: va, rkey: key, length: n})
	r.psn = r.psn.Add(count)
	return accepted
}

// executeAtomic carries out CMP_SWAP, FETCH_ADD, ATOMIC WRITE and FLUSH: once, the result is kept
// for a duplicate.
func (q *QP) executeAtomic(p *wire.Packet) verdict {
	r := &q.resp
	var orig uint64
	var f mr.Fault
	switch p.Op {
	case wire.RCCmpSwap, wire.RCFetchAdd:
		orig, f = q.fetch(p)
	case wire.RCAtomicWrite:
		f = q.atomicWrite(p)
	case wire.RCFlush:
		f = q.flushMemory(p)
	default:
		return invalidRequest(ReasonOpUnsupported)
	}
	if f != mr.FaultNone {
		return refused(f)
	}
	r.msn = (r.msn + 1) & wire.PSNMask
	q.addResource(resource{op: p.Op, first: p.PSN, last: p.PSN, orig: orig})
	r.psn = r.psn.Next()
	return accepted
}

func (q *QP) fetch(p *wire.Packet) (orig uint64, f mr.Fault) {
	h := p.AtomicETH()
	va := h.VA()
	v, f := q.shard.check(mr.Key(h.RKey()), q.pd, q.qpn, mr.RemoteAtomic, va, 8)
	if f != mr.FaultNone {
		return 0, f
	}
	q.shard.copyHook()
	var ok bool
	if p.Op == wire.RCCmpSwap {
		orig, ok = v.List().CmpSwap(v.Offset(va), h.Compare(), h.SwapAdd())
	} else {
		orig, ok = v.List().FetchAdd(v.Offset(va), h.SwapAdd())
	}
	if !ok {
		return 0, q.shard.memoryFault()
	}
	return orig, mr.FaultNone
}

func (q *QP) atomicWrite(p *wire.Packet) mr.Fault {
	h := p.RETH()
	v, f := q.shard.check(mr.Key(h.RKey()), q.pd, q.qpn, mr.RemoteWrite, h.VA(), 8)
	if f != mr.FaultNone {
		return f
	}
	var b [8]byte
	n := copy(b[:], p.Data0)
	copy(b[n:], p.Data1)
	q.shard.copyHook()
	if !v.List().Store8(v.Offset(h.VA()), binary.NativeEndian.Uint64(b[:])) {
		return q.shard.memoryFault()
	}
	return mr.FaultNone
}

// flushMemory checks a FLUSH's key and range. Our copies are visible to every reader of the
// memory once made, so that global visibility needs nothing more; persistence is a right that only
// regions get whose memory keeps what is stored.
func (q *QP) flushMemory(p *wire.Packet) mr.Fault {
	if mutant.RespFlushKey {
		return mr.FaultNone
	}
	h, fe := p.RETH(), p.FETH()
	need := flushAccess(fe.Placement())
	key := mr.Key(h.RKey())
	if fe.Selectivity() == 1 {
		_, f := q.dev.keys.CheckWhole(key, q.pd, uint32(q.qpn), need)
		if f != mr.FaultNone {
			q.shard.C.KeyFaults[f]++
		}
		return f
	}
	if h.Length() == 0 {
		return mr.FaultNone
	}
	_, f := q.shard.check(key, q.pd, q.qpn, need, h.VA(), uint64(h.Length()))
	return f
}

// memoryFault counts memory that was there by its key and not when it was touched: the file behind it
// has been cut short, or cannot be read.
func (s *Shard) memoryFault() mr.Fault {
	s.C.KeyFaults[mr.FaultMemory]++
	return mr.FaultMemory
}

// refused is the verdict on a fault: memory that fails is the responder's trouble, a remote
// operational error, all else the peer's.
func refused(f mr.Fault) verdict {
	if f == mr.FaultMemory {
		return remoteOp(ReasonMemory, WCLocAccessErr)
	}
	return remoteAccess(f)
}

// faultReason turns a key fault into the engine's reason.
func faultReason(f mr.Fault) Reason {
	switch f {
	case mr.FaultKeyIndex:
		return ReasonKeyIndex
	case mr.FaultVariant:
		return ReasonKeyVariant
	case mr.FaultState, mr.FaultPending:
		return ReasonKeyState
	case mr.FaultPD:
		return ReasonKeyPD
	case mr.FaultAccess:
		return ReasonKeyAccess
	case mr.FaultQP:
		return ReasonKeyQP
	case mr.FaultKind:
		return ReasonKeyKind
	case mr.FaultBound:
		return ReasonKeyBound
	case mr.FaultMemory:
		return ReasonMemory
	}
	return ReasonKeyRange
}
