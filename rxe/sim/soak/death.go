package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers the end of a connection in an error: what each work request may then report, what
// may be in memory, and how the connection is made anew.

// sendFailed checks a send completion with an error.
func (e *end) sendFailed(o *op, c *rxe.CQE) {
	w := e.w
	first := !e.failed
	e.failed = true
	switch {
	case o.bad && first && c.Status == o.want:
		w.res.Attacks++
	case c.Status == rxe.WCWRFlushErr && (!first || e.c.dying || e.peer.poison != nil || e.peer.risky):
	case first && c.Status == rxe.WCRemAccessErr && o.lease != nil && o.usesLease() && o.lease.mayBeGone(o):
	case first && c.Status == rxe.WCRetryExcErr && e.peer.wc.refused && w.faulty():
		w.muffled++ // the NAK was lost, or came before an answer; the peer is in ERR and says no more
	case first && c.Status == rxe.WCRetryExcErr && (w.lossy || e.c.severed || e.peer.failed || e.peer.poison != nil):
	default:
		w.violate("%v: %v %d of %d bytes fails with %v (%v); it should %s", e, o.kind, e.done, o.n, c.Status,
			c.Reason, o.outcome())
		return
	}
	if o.kind.answered() {
		e.answered--
	}
	if o.lease != nil && o.usesLease() {
		o.lease.landed(o)
	}
	if !o.bad {
		e.doubt = append(e.doubt, *o)
	} else {
		e.unharmed(o)
	}
	e.c.die()
}

// faulty reports whether frames may be lost or late.
func (w *world) faulty() bool { return w.f.Stats.Dropped+w.f.Stats.Corrupted+w.f.Stats.Reordered > 0 }

// outcome says what an operation should have come to.
func (o *op) outcome() string {
	if o.bad {
		return "fail with " + o.want.String() + " because " + o.why
	}
	return "succeed"
}

// mayBeGone reports whether the region may have gone before o was executed.
func (l *lease) mayBeGone(o *op) bool {
	return l.rude || l.life.cut || l.buried || l.life.gone || l.life.num != o.life
}

// unharmed checks that an operation which failed has written nothing.
func (e *end) unharmed(o *op) {
	if l := o.lease; l != nil && l.life.num != o.life {
		return // the memory is the next life's by now, whose own checks watch it
	}
	h := e.peer.h
	if o.kind == RCRead || o.kind == RCFetchAdd || o.kind == RCCmpSwp {
		h = e.h
	}
	if o.n > 0 && !h.cleanAll(&o.dst) {
		e.w.violate("%v: a %v that failed (%s) has changed memory", e, o.kind, o.why)
	}
}

// recvFailed checks a receive completion with an error.
func (e *end) recvFailed(c *rxe.CQE, s *rslot) {
	w := e.w
	var m *message
	if e.expectN < len(e.expect) {
		m = &e.expect[e.expectN]
	}
	switch {
	case m != nil && m.poison && c.Status == m.want:
		w.res.Attacks++
		e.expectN++
	case c.Status == rxe.WCWRFlushErr && (e.c.dying || e.failed || e.poison != nil || e.peer.poison != nil ||
		e.risky || e.peer.risky || w.lossy || e.c.severed):
	default:
		w.violate("%v: receive %d fails with %v (%v)", e, c.WRID, c.Status, c.Reason)
		return
	}
	if m != nil && m.kind != RCWriteImm && !e.h.cleanAll(&s.v) {
		if !mixed(&e.h.arena, &s.v, e.peer.h.mem, &m.src, s.v.len()) {
			w.violate("%v: a receive that failed holds bytes that are neither old nor sent", e)
		}
		e.h.settle(&s.v)
	}
	e.c.die()
}

// die stops a connection's work. Whatever is posted completes in error from here on.
func (c *conn) die() {
	if c.dying {
		return
	}
	c.dying, c.looks = true, 0
	c.w.res.Renewals++
	for _, e := range []*end{c.a, c.b} {
		for e.made != e.posted { // what was held back is never posted
			e.made--
			o := e.op(e.made)
			if o.list != 0 {
				e.h.n.Dev.Keys().Unstage(o.rkey.Index(), o.list)
			}
			if o.lease != nil && o.usesLease() {
				o.lease.landed(o)
			}
		}
		if e.held {
			e.held, c.w.holder = false, nil
		}
	}
	c.w.f.At(c.w.f.Now()+100, func() { c.w.held(c.kill, c.a, c.b) })
}

// kill moves both QPs to ERR.
func (c *conn) kill() {
	for _, e := range []*end{c.a, c.b} {
		if e.q.State() != rxe.StateErr {
			c.w.must(e.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
			e.h.collect(e.q.Shard())
			c.w.f.KickShard(e.h.n, e.q.Shard().ID)
		}
		e.scq.schedule(0) // what was flushed by our own hand must not wait for an event
		e.rcq.schedule(0)
	}
	c.w.f.At(c.w.f.Now()+1000, c.mourn)
}

// lookAfter buries the connection once all its work requests have completed, and makes it anew once
// its regions are free.
func (c *conn) lookAfter() {
	if c.w.failed() {
		return
	}
	if c.over() {
		if !c.buried {
			c.bury()
		} else if c.free() {
			c.renew()
			return
		}
	}
	c.looks++
	c.w.f.At(c.w.f.Now()+1500*rxe.Time(1+c.looks/64), c.mourn)
}

func (c *conn) mourn() { c.w.held(c.lookAfter, c.a, c.b) }

// over reports whether every work request of both QPs has completed.
func (c *conn) over() bool {
	for _, e := range []*end{c.a, c.b} {
		e.silent()
		if e.done != e.posted || e.rxq.srq == nil && e.rxq.posted > 0 || e.rxq.srq != nil && !e.lastWQE {
			return false
		}
	}
	return true
}

// silent finishes unsignaled work requests at the end of a queue that had succeeded before the error,
// and so make no completion. Behind a failure that can only be an invalidation that had run.
func (e *end) silent() {
	if e.q.SQ.Len() > 0 || e.scq.cq.Len() > 0 {
		return
	}
	for ; e.done != e.posted; e.done++ {
		o := e.op(e.done)
		if o.flags&rxe.SendSignaled != 0 || e.failed && !o.kind.local() {
			return
		}
		e.finish(o)
	}
}

// free reports whether all regions are given back.
func (c *conn) free() bool {
	for _, e := range []*end{c.a, c.b} {
		for _, l := range e.leases {
			if l.state != leaseIdle {
				return false
			}
		}
	}
	return true
}

func (c *conn) renew() {
	c.connect()
	for _, e := range []*end{c.a, c.b} {
		e.rxq.refill()
		e.topUp()
	}
}

// bury destroys the QPs, settles what is in doubt and takes the regions away.
func (c *conn) bury() {
	for _, e := range []*end{c.a, c.b} {
		e.rcq.poll(true) // whatever the last WQE of an SRQ has left
		if n := e.q.SQ.Len(); n != 0 {
			c.w.violate("%v: %d work requests left in the queue of a QP in ERR", e, n)
		}
		delete(e.h.ends, e.q.QPN())
		e.h.n.Dev.DestroyQP(e.q)
	}
	for _, e := range []*end{c.a, c.b} {
		e.settleDoubts()
	}
	c.buried = true
	for _, e := range []*end{c.a, c.b} {
		for len(e.grants) > 0 {
			l := e.grants[0]
			e.forget(l)
			if l.own.peer != e {
				l.handBack()
			}
		}
		for _, l := range e.leases {
			l.polite()
			l.buried = true
			if l.user != nil {
				l.user.forget(l)
				l.user.risky = l.user.risky || l.flying > 0
			}
			l.asking, l.next, l.back, l.queued = false, false, false, false
			if l.state != leaseWaiting {
				l.drop()
			}
		}
	}
}

// drop gives a lease's index back, whatever is published there.
func (l *lease) drop() {
	switch _, f := l.own.h.n.Dev.Keys().Unpublish(l.index); f {
	case mr.FaultNone:
		l.state = leaseWaiting
		l.free()
	case mr.FaultKeyIndex: // a user region that is not registered now
		l.state, l.taken = leaseIdle, [2]bool{}
	default:
		l.own.w.violate("%v: a region cannot be given up: %v", l.own, f)
	}
}

// settleDoubts checks what operations that were flushed have done: all, nothing, or the beginning.
func (e *end) settleDoubts() {
	w, p := e.w, e.peer.h
	word := p.word(e.cell)
	known := word == host64(p.shadow[e.cell:])
	for i := range e.doubt {
		o := &e.doubt[i]
		switch o.kind {
		case RCWrite, RCWriteImm:
			if o.n == 0 || o.frozen {
				break
			}
			if !mixed(&p.arena, &o.dst, e.h.mem, &o.src, o.n) {
				w.violate("%v: a WRITE that was cut left bytes that are neither old nor new", e)
			}
			p.settle(&o.dst)
		case RCRead:
			e.settleRead(o)
		case RCFetchAdd, RCCmpSwp, RCAtomicWrite:
			if o.shared {
				p.slack++
			} else if word == o.after {
				known = true
			}
			if o.kind != RCAtomicWrite {
				e.h.settle(&o.dst)
			}
		}
	}
	if !known {
		w.violate("%v: its word at the peer is %#x, which no operation has made", e, word)
	}
	p.setWord(e.cell, word)
	e.cellVal = word
}

func (e *end) settleRead(o *op) {
	src, v := e.peer.h.mem, o.src
	if o.snap != nil {
		src, v = o.snap, one(0, o.n)
	}
	if o.n > 0 && !o.reread && !mixed(&e.h.arena, &o.dst, src, &v, o.n) {
		e.w.violate("%v: a READ that was cut left bytes that are neither old nor read", e)
	}
	e.h.settle(&o.dst)
}

// alive and buried keep the list of keys that must not work any more.
func (h *host) alive(key mr.Key) {
	for i, k := range h.dead {
		if k == key {
			h.dead = append(h.dead[:i], h.dead[i+1:]...)
			return
		}
	}
}

const deadKeys = 64

func (h *host) buried(key mr.Key) {
	if key == 0 {
		return
	}
	if len(h.dead) == deadKeys {
		h.dead = h.dead[:copy(h.dead, h.dead[1:])]
	}
	h.dead = append(h.dead, key)
}
