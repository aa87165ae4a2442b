package soak

import "github.com/roxie-rdma/roxie/rxe/mr"

// This file covers memory that is lent to the peer by key: registered or bound, announced, used,
// given back or taken away, and never touched again.
//
//	idle ──REG_MR, BIND_MW, RegMR + SEND──► opening ──told──► open ──peer's SEND──► closed ──► idle
//	  ▲                                                        │      LOCAL_INV, BIND_MW, DeregMR │
//	  └──────────────────── peer's SEND_WITH_INV ◄─────────────┘◄──────────── or without asking ──┘

type leaseKind uint8

const (
	fastMR leaseKind = iota
	window1
	window2
	userMR
	numLeaseKinds
)

type leaseState uint8

const (
	leaseIdle leaseState = iota
	leaseOpening
	leaseOpen
	leaseClosed  // the peer has said that it is through
	leaseTaken   // the invalidation is posted
	leaseWaiting // DeregMR waits for grace
)

// lease is a region or window of one end, which its peer uses.
type lease struct {
	own    *end
	kind   leaseKind
	state  leaseState
	index  uint32
	key    mr.Key // of the present or next life
	parent *region
	half   [2]uint32 // two parts of the arena, used in turns, so that both lists are alive at once
	size   uint32    // of each
	taken  [2]bool   // a life is in it whose end has not been completed

	life   life
	user   *end // who uses it: the peer, or another end of its host, on another QP and shard
	flying int  // operations of the user under way
	back   bool // the user is through, and the peer is to say so once they have completed
	rude   bool // it is taken away without asking: what is under way may fail
	buried bool // it goes with its connection: the same
	queued bool // the life after this one is registered, and waits to be announced
	asking bool // the peer has posted its closing message
	uses   int  // of the user, left
	next   bool // the life after this one is registered, held back in the queue
	ahead  life
}

// life is what one registration grants.
type life struct {
	num    uint32
	key    mr.Key
	v      vec
	n      uint32
	iova   uint64
	access mr.Access
	used   uint32 // bytes handed out
	cut    bool   // is to be taken away while the user works
	gone   bool   // invalidated, and complete
}

// bind is what a BIND_MW says beyond an op.
type bind struct {
	window, parent mr.Key
	length         uint64
	access         mr.Access
	type1          bool
}

const leaseSize = 2048

// addLeases gives an end the regions it will lend.
func (e *end) addLeases() {
	r, h := e.w.r, e.h
	n := 1 + r.Intn(3)
	if e.c.keeper {
		n += 2
	}
	for i := 0; i < n; i++ {
		l := &lease{own: e, kind: leaseKind(r.Intn(int(numLeaseKinds))), size: leaseSize}
		if e.c.keeper && r.Intn(2) == 0 {
			l.kind = fastMR
		}
		off := h.grow(2*l.size + guard)
		l.half = [2]uint32{off, off + l.size + guard}
		if l.kind == window1 || l.kind == window2 {
			l.parent = h.register(h.pd, off, 2*l.size+guard, h.addr(off), mr.LocalWrite|mr.MWBind)
		}
		l.allocate()
		e.leases = append(e.leases, l)
		h.lent = append(h.lent, l)
	}
}

// allocate takes an index of the key table.
func (l *lease) allocate() {
	h, keys := l.own.h, l.own.h.n.Dev.Keys()
	var err error
	switch l.kind {
	case fastMR:
		l.key, err = keys.AllocFast(h.pd, 5)
	case window1:
		l.key, err = keys.Alloc(mr.KindWindow1, h.pd)
	case window2:
		l.key, err = keys.Alloc(mr.KindWindow2, h.pd)
	case userMR:
		l.key, err = keys.Alloc(mr.KindUser, h.pd)
	}
	h.w.must(err)
	l.index = l.key.Index()
	l.state = leaseIdle
}

// newLife decides what the next registration grants, in a half that is not in use. It is false when
// there is none, or when somebody has written to it.
func (l *lease) newLife() (x life, ok bool) {
	which := 0
	if l.taken[0] {
		if which = 1; l.taken[1] {
			return x, false
		}
	}
	x = l.draw(l.half[which])
	if !l.clean(&x.v) {
		return x, false
	}
	l.taken[which] = true
	return x, true
}

// draw decides about a life in the memory from base on.
func (l *lease) draw(base uint32) life {
	w := l.own.w
	r := w.r
	x := life{num: l.life.num + 1}
	if l.kind == fastMR {
		at := base
		k := 1 + r.Intn(5)
		for i := 0; i < k; i++ {
			room := base + l.size - at
			if room < 64 {
				break
			}
			n := 16 + uint32(r.Intn(int(min(room-32, 900))))
			x.v.add(at, n)
			at += n + uint32(r.Intn(16))
		}
		r2 := x.v.num - 1 // the list is not in the order of the memory
		for i := range x.v.pieces() {
			j := i + r.Intn(r2-i+1)
			x.v.p[i], x.v.p[j] = x.v.p[j], x.v.p[i]
		}
	} else {
		n := 256 + uint32(r.Intn(int(l.size-256)))
		x.v.add(base+uint32(r.Intn(int(l.size-n)+1)), n)
	}
	x.n = x.v.len()
	rights := mr.RemoteRead | mr.RemoteWrite
	switch r.Intn(6) {
	case 0:
		rights = mr.RemoteRead
	case 1:
		rights = mr.RemoteWrite
	}
	x.access = rights
	if l.kind == fastMR || l.kind == userMR {
		x.access |= mr.LocalWrite
		x.iova = r.Uint64() >> 16
	} else {
		x.iova = l.own.h.addr(x.v.p[0].off)
	}
	if (l.kind == window2 || l.kind == userMR || l.kind == fastMR) && r.Intn(4) == 0 {
		x.access |= mr.ZeroBased
		x.iova = 0
	}
	return x
}

// clean makes sure that nobody has written to a life's memory while it was not lent.
func (l *lease) clean(v *vec) bool {
	for _, p := range v.pieces() {
		if !l.own.h.clean(p.off, p.n) {
			l.own.foul(l.own.h, p.off, p.n, "a region before it is registered")
			return false
		}
	}
	return true
}

// inventKeyed makes an operation about a region: our own, or one of the peer's. It is false when
// there is none to make.
func (e *end) inventKeyed() bool {
	r := e.w.r
	if n := len(e.grants); n > 0 && r.Intn(4) != 0 {
		return e.useGrant(e.grants[r.Intn(n)])
	}
	if n := len(e.leases); n > 0 {
		return e.workLease(e.leases[r.Intn(n)])
	}
	return false
}

// room reports whether k more operations fit into the queue.
func (e *end) room(k uint32) bool { return e.made-e.done+k <= e.depth }
