package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers the end of a lease: from when nothing may touch its memory any more, and what waits
// for that.

// ended is called when an invalidation of a life with memory v has completed: nobody may touch that
// memory any more.
func (l *lease) ended(num uint32, key mr.Key, v *vec, by string) {
	e := l.own
	for _, c := range e.w.conns { // whoever has used it: a later life may have another user already
		if c.a.peer.h == e.h {
			c.a.freezeAll(l, v)
		}
		if c.b.peer.h == e.h {
			c.b.freezeAll(l, v)
		}
	}
	if !e.h.cleanAll(v) {
		e.w.violate("%v: memory of a region has changed when %s completes", e, by)
		return
	}
	e.h.scrubAll(v)
	if v.p[0].off < l.half[1] {
		l.taken[0] = false
	} else {
		l.taken[1] = false
	}
	if l.life.num == num && !l.life.gone {
		l.life.gone = true
		l.state = leaseIdle
		l.tryQueued()
		if e.c.keeper {
			e.w.f.At(e.w.f.Now()+rxe.Time(e.w.r.Intn(5000)), l.goOn)
		}
	}
	if l.life.key != key || l.life.gone {
		e.h.buried(key)
	}
}

// freezeAll settles all operations of ours through a region that has gone.
func (e *end) freezeAll(l *lease, v *vec) {
	for i := e.done; i != e.made; i++ {
		if o := e.op(i); o.lease == l && o.n > 0 && overlaps(v, o) {
			e.freeze(o)
		}
	}
	for i := range e.doubt {
		if o := &e.doubt[i]; o.lease == l && o.n > 0 && overlaps(v, o) {
			e.freeze(o)
		}
	}
}

// overlaps reports whether the operation is on memory of v.
func overlaps(v *vec, o *op) bool {
	m := &o.dst
	if o.kind == RCRead {
		m = &o.src
	} else if o.kind != RCWrite {
		return false
	}
	for _, a := range m.pieces() {
		for _, b := range v.pieces() {
			if a.off < b.off+b.n && b.off < a.off+a.n {
				return true
			}
		}
	}
	return false
}

// freeze settles an operation of ours whose region has gone: what is in memory now is all it will
// ever do.
func (e *end) freeze(o *op) {
	p := e.peer.h
	switch {
	case o.frozen:
	case o.kind == RCRead:
		o.more().snap = nil
		for _, q := range o.src.pieces() {
			o.snap = append(o.snap, p.mem[q.off:q.off+q.n]...)
		}
	case o.verified:
		o.whole = true
	default:
		if !mixed(&p.arena, &o.dst, e.h.mem, &o.src, o.n) {
			e.w.violate("%v: a WRITE cut by an invalidation left bytes that are neither old nor new", e)
		}
		o.whole = same(e.h.mem, &o.src, p.mem, &o.dst, o.n)
		p.settle(&o.dst)
	}
	o.frozen = true
}

// idleLeases reports whether nothing is lent or borrowed.
func (e *end) idleLeases() bool {
	for _, l := range e.leases {
		if l.state != leaseIdle || l.queued {
			return false
		}
	}
	return len(e.grants) == 0 && !e.held
}

// windUp gives back what is borrowed and takes away what was lent.
func (e *end) windUp() {
	for i := len(e.grants) - 1; i >= 0; i-- {
		e.closeGrant(e.grants[i])
	}
	for _, l := range e.leases {
		if l.state == leaseClosed && e.room(1) {
			l.takeAway()
		}
		l.tryQueued()
	}
	if e.unsignaled > 0 && e.room(1) { // the last one must be signaled, or nobody hears of its end
		e.unsignaled = opRing
		e.inventPlain(RCFlush)
	}
}
