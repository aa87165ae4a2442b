package soak

import (
	"slices"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers the peer's side of a lease: what it does with a region it was told of, and how it
// gives it back.

// useGrant makes an operation on the peer's region, or says that there will be none.
func (e *end) useGrant(l *lease) bool {
	r := e.w.r
	x := &l.life
	n := min(e.size(), 900)
	if r.Intn(4) == 0 { // in several packets
		n = min(4*e.c.attr.PMTU, x.n-x.used)
	}
	rights := x.access & (mr.RemoteRead | mr.RemoteWrite)
	k := RCWrite
	if rights == mr.RemoteRead || rights&mr.RemoteRead != 0 && r.Intn(2) == 0 {
		k = RCRead
	}
	if l.uses--; l.uses < 0 || x.used+n > x.n || e.w.stopping {
		return e.closeGrant(l)
	}
	o := e.next(k)
	o.n, o.lease = n, l
	mem := x.v.sub(x.used, n)
	if k == RCRead {
		if !e.landing(o, n) {
			return false
		}
		o.src = mem
	} else {
		o.src, o.dst = e.h.source(n), mem
	}
	o.life = x.num
	l.flying++
	if l.rude {
		e.risky = true
	}
	o.addr, o.rkey = x.iova+uint64(x.used), x.key
	x.used += n
	if x.gone && n > 0 { // we have not been told
		o.bad, o.more().want = true, rxe.WCRemAccessErr
		o.more().why = "the region is gone"
	}
	e.garbleEmpty(o)
	e.add(o)
	return true
}

// closeGrant ends the use of a region. The peer of the owner then tells it, and may take the region
// away for it: the READs before that are waited for.
func (e *end) closeGrant(l *lease) bool {
	if l.asking || !e.room(1) {
		return false
	}
	if e != l.own.peer {
		e.forget(l)
		l.back = true
		if l.flying == 0 || (l.own.c.keeper || e.w.r.Intn(4) == 0) && l.canBeSnatched() {
			l.handBack()
		}
		return false
	}
	l.asking = true
	e.forget(l)
	k := RCSend
	inv := (l.kind == fastMR || l.kind == window2) && !l.next && !l.rude && l.own.poison == nil &&
		(l.flying > 0 && l.user != e || e.w.r.Intn(2) == 0)
	if inv {
		k = RCSendInv
	}
	o := e.next(k)
	o.n = min(e.size(), 200)
	o.src, o.lease = e.h.source(o.n), l
	o.flags |= rxe.SendFence
	if l.flying > 0 && l.user != e {
		l.makeRude()
	}
	if inv {
		o.imm = uint32(l.life.key)
		l.state = leaseTaken // by the peer, when it arrives
	}
	e.add(o)
	e.expects(o, saysClose)
	return true
}

// canBeSnatched reports whether the peer may take the region away while the user still works.
func (l *lease) canBeSnatched() bool {
	return l.kind == fastMR && l.state == leaseOpen && !l.next && !l.rude && l.own.poison == nil &&
		!l.own.peer.c.dying && !l.own.w.stopping
}

// endByPeer lets the owner's peer take the region away by SEND_WITH_INV, while another end of its host
// uses it.
func (l *lease) endByPeer() bool {
	p := l.own.peer
	if l.user == nil || l.user == p || l.back || l.asking || l.flying == 0 || !l.canBeSnatched() || !p.room(1) {
		return false
	}
	l.user.forget(l)
	l.uses = 0
	if !slices.Contains(p.grants, l) {
		p.grants = append(p.grants, l)
	}
	if !p.closeGrant(l) {
		return false
	}
	p.release()
	return true
}

func (e *end) forget(l *lease) {
	for i, g := range e.grants {
		if g == l {
			e.grants = append(e.grants[:i], e.grants[i+1:]...)
			return
		}
	}
}

// handBack lets the owner's peer close what its deputy has used.
func (l *lease) handBack() {
	l.back = false
	p := l.own.peer
	if p.c.dying {
		return
	}
	l.uses = 0
	p.grants = append(p.grants, l)
	if p.c.keeper && p.closeGrant(l) {
		p.release()
	}
}

// landed takes note of an operation through the region that has completed, well or not.
func (l *lease) landed(o *op) {
	if o.life != l.life.num {
		return
	}
	if l.flying--; l.flying == 0 && l.back {
		l.handBack()
	}
}
