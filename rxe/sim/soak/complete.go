package soak

import "github.com/roxie-rdma/roxie/rxe"

// This file covers completions of the send queue: order, status, and what must be in memory then.

// sendDone checks a send completion.
func (e *end) sendDone(c *rxe.CQE) {
	w := e.w
	i := uint32(c.WRID)
	if c.WRID>>32 != 0 || i-e.done >= e.posted-e.done {
		w.violate("%v: work request %d completes, but %d to %d are outstanding: %+v", e, c.WRID, e.done,
			int64(e.posted)-1, *c)
		return
	}
	for ; e.done != i; e.done++ { // unsignaled ones retire with those behind them
		o := e.op(e.done)
		if o.flags&rxe.SendSignaled != 0 || e.failed && !o.kind.local() {
			w.violate("%v: %v %d has no completion, %d has one", e, o.kind, e.done, i)
			return
		}
		e.finish(o)
	}
	if w.failed() {
		return
	}
	o := e.op(i)
	if c.Opcode != completionOps[o.kind] {
		w.violate("%v: %v %d completes as %v", e, o.kind, i, c.Opcode)
		return
	}
	if c.Status != rxe.WCSuccess {
		e.sendFailed(o, c)
	} else {
		e.sendSucceeded(o, c)
	}
	e.done = i + 1
}

func (e *end) sendSucceeded(o *op, c *rxe.CQE) {
	w := e.w
	want := uint32(0)
	if o.kind.answered() {
		want = o.n
	}
	switch {
	case o.flags&rxe.SendSignaled == 0:
		w.violate("%v: unsignaled %v %d has a completion", e, o.kind, e.done)
	case e.failed && !o.kind.local(): // an invalidation that had run completes behind an error
		w.violate("%v: %v %d succeeds behind an error", e, o.kind, e.done)
	case c.ByteLen != want:
		w.violate("%v: %v of %d bytes completes with %d", e, o.kind, o.n, c.ByteLen)
	default:
		e.finish(o)
	}
}

// finish checks an operation that has succeeded, and gives back what it used.
func (e *end) finish(o *op) {
	w := e.w
	if o.bad {
		w.violate("%v: %v %d succeeds: %s", e, o.kind, e.done, o.why)
		return
	}
	if o.kind <= RCFlush && e.c.typ == rxe.RC && e.remote() && e.wc.acked.Diff(o.last) < 0 {
		w.violate("%v: %v %d completes, but its PSN %#x is not acknowledged, only %#x", e, o.kind, e.done,
			o.last, e.wc.acked)
		return
	}
	w.res.Ops[o.kind]++
	switch {
	case o.kind == RCWrite || o.kind == RCWriteImm:
		e.verify(o)
	case o.kind.answered():
		e.answered--
		e.finishAnswered(o)
	case o.kind.local():
		e.finishKeyed(o)
	}
	if o.lease != nil && o.usesLease() {
		o.lease.landed(o)
	}
	if o.freeing {
		e.tgt.free(o.tgtEnd)
	}
	if o.fetching {
		e.dst.free(o.dstEnd)
	}
}

// usesLease reports whether the operation goes through its region, and is not about it.
func (o *op) usesLease() bool { return o.kind == RCWrite || o.kind == RCRead }

// remote reports whether the connection crosses the fabric, where frames are seen.
func (e *end) remote() bool { return e.h != e.peer.h }

// verify compares a WRITE's target with its source, once.
func (e *end) verify(o *op) {
	if o.verified || o.n == 0 {
		return
	}
	o.verified = true
	p := e.peer.h
	if o.frozen { // compared when the region went
		if !o.whole {
			e.w.violate("%v: a WRITE succeeds that an invalidation has cut", e)
		}
		return
	}
	if !same(e.h.mem, &o.src, p.mem, &o.dst, o.n) {
		e.w.violate("%v: %d bytes of a %v are not what was sent", e, o.n, o.kind)
		return
	}
	switch {
	case o.kept, o.lease != nil:
		p.settle(&o.dst)
	default:
		p.scrubAll(&o.dst)
	}
}

// checkThrough compares the targets of all WRITEs before operation i: a message that has been
// received says that they have been executed.
func (e *end) checkThrough(i uint32) {
	if int32(e.checked-e.done) < 0 {
		e.checked = e.done
	}
	for ; int32(e.checked-i) <= 0; e.checked++ {
		if o := e.op(e.checked); (o.kind == RCWrite || o.kind == RCWriteImm) && !o.bad {
			e.verify(o)
		}
	}
}

// finishAnswered checks what a READ or atomic has brought.
func (e *end) finishAnswered(o *op) {
	w, p := e.w, e.peer.h
	switch o.kind {
	case RCRead:
		if !e.brought(o) {
			w.violate("%v: %d bytes of a READ are not what is there", e, o.n)
			return
		}
		e.h.scrubAll(&o.dst)
		if o.reread {
			p.scrubAll(&o.src)
		}
	case RCFetchAdd, RCCmpSwp, RCAtomicWrite:
		if o.kind != RCAtomicWrite {
			got := e.gathered(&o.dst)
			if o.shared {
				p.noteShared(got)
			} else if got != o.orig {
				w.violate("%v: %v returned %#x, want %#x", e, o.kind, got, o.orig)
				return
			}
			e.h.scrubAll(&o.dst)
		}
		if !o.shared && o.lease == nil {
			putHost64(p.shadow[e.cell:], o.after)
		}
	}
}

// brought compares a READ's buffer with what must be in it.
func (e *end) brought(o *op) bool {
	if o.snap != nil {
		v := one(0, o.n)
		return same(e.h.mem, &o.dst, o.snap, &v, o.n)
	}
	return same(e.h.mem, &o.dst, e.peer.h.mem, &o.src, o.n)
}
