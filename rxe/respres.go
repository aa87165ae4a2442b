package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the road back: responder resources, duplicates, ACKs and NAKs.

// resource remembers a READ, atomic, ATOMIC WRITE or FLUSH until as many others as the peer may
// have outstanding have replaced it: for its answer, and for answering again.
type resource struct {
	op     wire.Opcode
	queued bool // an answer is to be made
	done   bool // has been answered once
	first  PSN  // of the original request
	last   PSN
	start  PSN // what is being answered now: all of it, or the part asked for again
	end    PSN
	cur    PSN
	va     uint64 // of the original request
	length uint32
	part   uint32 // bytes being answered
	rkey   mr.Key
	orig   uint64 // atomic's original value
}

// pending reports whether the peer still waits for the answer. That it is made again does not mean
// so: the repeated request may be a late copy.
func (res *resource) pending() bool { return res.queued && !res.done }

// unanswered is how many requests the peer waits for. They are the latest ones.
func (r *responder) unanswered() (n int) {
	for i := range r.resources {
		if r.resources[i].pending() {
			n++
		}
	}
	return n
}

// resize makes room for n outstanding READs and atomics of the peer, at least those unanswered. The
// latest n are kept.
func (r *responder) resize(n int) {
	old, at, queue := r.resources, int(r.nextRes), r.queue
	r.resources, r.nextRes, r.queue = make([]resource, n), 0, make([]uint16, 0, n)
	if n == 0 || len(old) == 0 {
		return
	}
	index := make(map[uint16]uint16, n) // old to new
	for i := max(0, len(old)-n); i < len(old); i++ {
		from := (at + i) % len(old)
		if old[from].op != 0 {
			index[uint16(from)] = uint16(r.nextRes)
			r.resources[r.nextRes] = old[from]
			r.nextRes++
		}
	}
	r.nextRes %= uint32(n)
	for _, i := range queue {
		if to, kept := index[i]; kept {
			r.queue = append(r.queue, to)
		}
	}
}

// addResource stores a new request and queues its answer. The caller has made sure of a slot.
func (q *QP) addResource(res resource) {
	r := &q.resp
	i := r.nextRes
	if r.resources[i].queued {
		// Being answered again, although the peer has gone on: a late copy of its request.
		r.unqueue(uint16(i))
	}
	res.start, res.end, res.cur, res.part = res.first, res.last, res.first, res.length
	r.resources[i] = res
	if r.nextRes++; r.nextRes == uint32(len(r.resources)) {
		r.nextRes = 0
	}
	q.queueAnswer(uint16(i))
}

// unqueue gives up an answer.
func (r *responder) unqueue(i uint16) {
	r.resources[i].queued = false
	for at, j := range r.queue {
		if j == i {
			r.queue = r.queue[:at+copy(r.queue[at:], r.queue[at+1:])]
			return
		}
	}
}

// queueAnswer puts an answer into the queue, which is in the order of PSNs: behind a loss the peer asks
// again for several, and takes them in that order only.
func (q *QP) queueAnswer(i uint16) {
	r := &q.resp
	if res := &r.resources[i]; !res.queued {
		res.queued = true
		r.queue = append(r.queue, i)
		for at := len(r.queue) - 1; at > 0; at-- {
			before := r.queue[at-1]
			if r.resources[before].first.Diff(res.first) < 0 {
				break
			}
			r.queue[at-1], r.queue[at] = i, before
		}
	}
	q.shard.wantSend(q)
}

// duplicate answers a request that has been executed: never again, but never silently either.
func (q *QP) duplicate(p *wire.Packet) {
	r := &q.resp
	q.shard.C.DuplicateRequest++
	q.Stats.Duplicates++
	f := p.Info.Flags
	if f&(wire.FlagSend|wire.FlagWrite) != 0 {
		if mutant.RespWriteAgain && f&wire.FlagRETH != 0 && f&wire.FlagEnd != 0 && r.kind == 0 {
			q.executeWrite(p)
		}
		if mutant.RespInvAgain && f&wire.FlagInv != 0 {
			_, _ = q.invalidate(mr.Key(p.Inv()))
		}
		q.oweAck() // with the most recent PSN (IBTA C9-105)
		return
	}
	for n, i := 0, r.nextRes; n < len(r.resources); n++ { // the latest first
		if i == 0 {
			i = uint32(len(r.resources))
		}
		i--
		res := &r.resources[i]
		if res.op != p.Op || p.PSN.Diff(res.first) < 0 || p.PSN.Diff(res.last) > 0 {
			continue
		}
		if f&wire.FlagRead != 0 && !res.again(p, q.pmtu) {
			break
		}
		if f&wire.FlagRead == 0 {
			res.cur = res.first
			if mutant.RespAtomicAgain && f&wire.FlagAtomic != 0 {
				res.orig, _ = q.fetch(p)
			}
		}
		q.queueAnswer(uint16(i))
		return
	}
	q.drop(ReasonReplayGone)
}

// again points a READ's resource at the part that a repeated request names: it must lie inside the
// original, where its PSN says.
func (res *resource) again(p *wire.Packet, pmtu uint32) bool {
	h := p.RETH()
	off := uint64(p.PSN.Diff(res.first)) * uint64(pmtu)
	n := h.Length()
	if off > uint64(res.length) || h.VA() != res.va+off || uint64(n) > uint64(res.length)-off ||
		n == 0 && res.length != 0 {
		return false
	}
	if mr.Key(h.RKey()) != res.rkey && res.length != 0 {
		return false
	}
	res.start, res.cur, res.part = p.PSN, p.PSN, n
	res.end = p.PSN.Add(packets(n, pmtu) - 1)
	return true
}

// oweAck notes that a positive acknowledgement is due; later ones take its place.
func (q *QP) oweAck() {
	if q.state == StateErr {
		return // its completion did not fit the CQ: the peer must not take it for done
	}
	if q.resp.ackOwed {
		q.shard.C.AckDeferred++
	}
	q.resp.ackOwed = true
	q.shard.wantSend(q)
}

func (q *QP) oweNAK(syn wire.Syndrome, psn PSN) {
	q.resp.nakOwed, q.resp.nakSyn, q.resp.nakPSN = true, syn, psn
	q.shard.wantSend(q)
}

// nextResponse builds the next packet owed to the peer: answers in the order of their requests,
// then a NAK, then an ACK for all that was executed.
func (q *QP) nextResponse(f Frame) int {
	r := &q.resp
	if len(r.queue) > 0 {
		res := &r.resources[r.queue[0]]
		if res.op == wire.RCReadRequest {
			return q.sendReadResponse(f, res)
		}
		q.answered(res)
		return q.sendResult(f, res)
	}
	if r.nakOwed {
		r.nakOwed, r.ackOwed, r.force = false, false, false
		q.shard.C.NAKsSent++
		q.Stats.NAKsSent++
		return q.sendAck(f, r.nakSyn, r.nakPSN)
	}
	if r.ackOwed {
		r.ackOwed, r.force = false, false
		last := r.psn.Add(wire.PSNMask)
		if mutant.RespAckTooFar {
			last = r.psn
		}
		return q.sendAck(f, q.ackSyndrome(), last)
	}
	r.force = false
	return 0
}

// answered takes the oldest answer off the queue.
func (q *QP) answered(res *resource) {
	r := &q.resp
	res.queued = false
	res.done = res.done || res.end == res.last
	r.queue = r.queue[:copy(r.queue, r.queue[1:])]
}

// ackSyndrome carries credits: how many receive WQEs are posted, or none given.
func (q *QP) ackSyndrome() wire.Syndrome {
	if !q.dev.cfg.Credits || q.srq != nil {
		return wire.AckSyndrome(wire.CreditInvalid)
	}
	return wire.AckSyndrome(wire.CreditCode(q.RQ.posted(q.RQ.cons.Load())))
}

func (q *QP) sendAck(f Frame, syn wire.Syndrome, psn PSN) int {
	hdr := q.begin(f.Head, wire.RCAck)
	q.putAETH(hdr, wire.RCAck, syn, psn)
	return q.tmpl.Finish(f, wire.RCAck, 0)
}

func (q *QP) putAETH(hdr []byte, op wire.Opcode, syn wire.Syndrome, psn PSN) {
	(*wire.BTH)(hdr).SetPSN(psn)
	if off := op.Info().AETHOff; off != 0 {
		h := (*wire.AETH)(hdr[off:])
		h.SetSyndrome(syn)
		h.SetMSN(q.resp.msn)
	}
	q.Stats.SentPkts++
}

// sendResult answers an atomic with its original value, FLUSH and ATOMIC WRITE with nothing.
func (q *QP) sendResult(f Frame, res *resource) int {
	op := wire.RCReadRespOnly
	if res.op == wire.RCCmpSwap || res.op == wire.RCFetchAdd {
		op = wire.RCAtomicAck
	}
	hdr := q.begin(f.Head, op)
	q.putAETH(hdr, op, q.ackSyndrome(), res.first)
	if off := op.Info().AtomicAckOff; off != 0 {
		(*wire.AtomicAckETH)(hdr[off:]).SetOrig(res.orig)
	}
	return q.tmpl.Finish(f, op, 0)
}

// sendReadResponse makes one packet of a READ's answer. The key is looked up for each: a region
// invalidated meanwhile cuts the answer with a NAK.
func (q *QP) sendReadResponse(f Frame, res *resource) int {
	k := uint32(res.cur.Diff(res.start))
	off := k * q.pmtu
	n := min(res.part-off, q.pmtu)
	op := readResponseOp(res.cur == res.start, res.cur == res.end)
	hdr := q.begin(f.Head, op)
	if n > 0 {
		va := res.va + uint64(res.start.Diff(res.first))*uint64(q.pmtu) + uint64(off)
		v, fault := q.shard.check(res.rkey, q.pd, q.qpn, mr.RemoteRead, va, uint64(n))
		if fault != mr.FaultNone {
			return q.cutRead(f, res, fault)
		}
		q.shard.copyHook()
		at := q.tmpl.HeaderLen(op)
		head := f.Head[at:min(len(f.Head), at+int(n))]
		if rest := int(n) - len(head); !v.List().CopyOut(v.Offset(va), head) ||
			rest > 0 && !v.List().CopyOut(v.Offset(va)+uint64(len(head)), f.Tail[:rest]) {
			return q.cutRead(f, res, q.shard.memoryFault())
		}
	}
	q.putAETH(hdr, op, q.ackSyndrome(), res.cur)
	q.Stats.SentBytes += uint64(n)
	if res.cur == res.end {
		q.answered(res)
	}
	res.cur = res.cur.Next()
	return q.tmpl.Finish(f, op, int(n))
}

func readResponseOp(first, last bool) wire.Opcode {
	switch {
	case first && last:
		return wire.RCReadRespOnly
	case first:
		return wire.RCReadRespFirst
	case last:
		return wire.RCReadRespLast
	}
	return wire.RCReadRespMiddle
}

// cutRead ends a READ whose region has gone, and with it the QP. Not so when the READ has been answered
// once: a late copy of the request must not end a connection whose peer has its data and has given
// the region back since. A peer that still waits is told by the NAK.
func (q *QP) cutRead(f Frame, res *resource, fault mr.Fault) int {
	r := &q.resp
	psn, v := res.cur, refused(fault)
	q.drop(v.reason)
	if res.done {
		q.answered(res)
		q.shard.C.NAKsSent++
		q.Stats.NAKsSent++
		return q.sendAck(f, v.syn, psn)
	}
	r.queue = r.queue[:0]
	r.failing, r.nakOwed = true, false
	q.shard.emit(Event{Type: v.event(), QP: q, Reason: v.reason})
	q.fails(v.reason)
	q.toError()
	q.shard.C.NAKsSent++
	q.Stats.NAKsSent++
	return q.sendAck(f, v.syn, psn)
}
