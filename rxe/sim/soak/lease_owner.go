package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers the owner's side of a lease: it is opened, announced, used by its own key and taken
// away.

// workLease opens a region that is idle, and takes away one that the peer is through with.
func (e *end) workLease(l *lease) bool {
	if !e.room(4) {
		return false
	}
	r := e.w.r
	switch l.state {
	case leaseIdle:
		if l.queued {
			l.tryQueued()
			return false
		}
		if l.rude || l.parent != nil && e.h.attacked(l.key.Inc()) {
			return false // the peer does not know yet, or somebody tries the next key
		}
		return l.openNext()
	case leaseClosed:
		l.takeAway()
		if l.kind == fastMR && r.Intn(2) == 0 { // at once the next one, as ib_srp does
			l.openNext()
		}
		return true
	case leaseOpen:
		if l.kind == fastMR && !l.next && e.w.holder == nil && r.Intn(4) == 0 {
			return l.prepare()
		}
		if l.parent != nil && !l.rude && r.Intn(8) == 0 {
			l.tryParent()
		}
		if !l.next && r.Intn(60) == 0 && !e.w.stopping {
			l.snatch()
			return true
		}
	}
	return false
}

// tryParent tries to deregister the region of a window that is bound to it.
func (l *lease) tryParent() {
	if _, f := l.own.h.n.Dev.Keys().Unpublish(l.parent.key.Index()); f != mr.FaultBound {
		l.own.w.violate("%v: deregistering a region with a window gives %v", l.own, f)
	}
}

// toy maps lists and prepares registrations that are never posted, while the last one may still be in
// use: its list and its view must not be taken for them.
func (l *lease) toy() {
	if l.state != leaseTaken || l.own.c.dying {
		return
	}
	w, keys := l.own.w, l.own.h.n.Dev.Keys()
	toy := l.half[1] + l.size
	var nums [6]uint32
	for i := range nums {
		_, err := keys.Map(l.index, [][]byte{l.own.h.mem[toy : toy+16]})
		w.must(err)
		nums[i], err = keys.Stage(mr.Region{Key: l.key, Access: mr.RemoteWrite | mr.LocalWrite, Length: 16})
		w.must(err)
	}
	for _, n := range nums {
		keys.Unstage(l.index, n)
	}
}

func (l *lease) openNext() bool {
	x, ok := l.newLife()
	return ok && l.open(x)
}

// open registers or binds x and tells the peer.
func (l *lease) open(x life) bool {
	e := l.own
	e.w.res.Grants++
	keys := e.h.n.Dev.Keys()
	switch l.kind {
	case fastMR:
		l.register(&x)
	case window1, window2:
		o := e.next(BindMW)
		o.lease, o.addr = l, e.h.addr(x.v.p[0].off)
		o.more().bind = &bind{window: l.key, parent: l.parent.key, length: uint64(x.n), access: x.access,
			type1: l.kind == window1}
		l.key = l.key.Inc()
		x.key, o.rkey = l.key, l.key
		var err error
		o.more().list, err = keys.StageBind(l.index)
		e.w.must(err)
		e.add(o)
	case userMR:
		x.key = l.key
		v, err := mr.NewView(mr.Region{Key: x.key, PD: e.h.pd, Access: x.access, IOVA: x.iova,
			Length: uint64(x.n), List: mr.NewList(e.h.mem[x.v.p[0].off : x.v.p[0].off+x.n])})
		e.w.must(err)
		e.w.must(keys.Publish(v))
	}
	e.h.alive(x.key)
	l.begin(x)
	l.announce()
	return true
}

// begin makes x the life in force, as far as the application knows.
func (l *lease) begin(x life) {
	l.life, l.state = x, leaseOpening
	l.user, l.flying = nil, 0
	l.back, l.rude, l.asking, l.next, l.buried, l.queued = false, false, false, false, false, false
}

// snatch takes the region away while it is in use.
func (l *lease) snatch() {
	l.makeRude()
	l.takeAway()
	if l.kind == fastMR && l.own.room(2) && l.own.w.r.Intn(2) == 0 {
		l.queueNext()
	}
	l.own.release()
}

// queueNext registers the next life right behind the invalidation. It is announced when the peer knows
// of the end of this one.
func (l *lease) queueNext() {
	x, ok := l.newLife()
	if !ok {
		return
	}
	l.key = l.key.Inc() // users who do not know yet must not reach it
	l.register(&x)
	l.ahead, l.queued = x, true
}

// tryQueued announces what queueNext has registered.
func (l *lease) tryQueued() {
	e := l.own
	if !l.queued || l.rude || l.state != leaseIdle || e.c.dying || !e.room(1) {
		return
	}
	e.w.res.Grants++
	l.begin(l.ahead)
	e.h.alive(l.life.key)
	l.announce()
	e.release()
}

func (l *lease) makeRude() {
	if !l.rude {
		l.rude, l.life.cut = true, true
		l.own.h.hot++
	}
	l.own.peer.risky = true
	if l.user != nil {
		l.user.risky = true
	}
}

// polite ends what makeRude has begun.
func (l *lease) polite() {
	if l.rude {
		l.rude = false
		l.own.h.hot--
	}
}

// takenBeside reports whether the owner can take the region away by a QP of another shard.
func (l *lease) takenBeside(shard int) bool {
	e := l.own
	return l.state == leaseOpen && !l.next && !l.rude && !e.c.dying && !e.held && !e.stalled && e.room(2) &&
		!e.w.stopping && (e.q.Shard().ID != shard || l.kind == userMR)
}

// register maps x's memory, chooses its key and adds a REG_MR.
func (l *lease) register(x *life) {
	e := l.own
	keys := e.h.n.Dev.Keys()
	if l.flying > 0 || e.w.r.Intn(3) == 0 { // what is under way must not reach the next life
		l.key = l.key.Inc()
	}
	for e.h.attacked(l.key) {
		l.key = l.key.Inc()
	}
	x.key = l.key
	var segs [maxPieces][]byte
	for i, p := range x.v.pieces() {
		segs[i] = e.h.mem[p.off : p.off+p.n]
	}
	_, err := keys.Map(l.index, segs[:x.v.num])
	e.w.must(err)
	o := e.next(RegMR)
	o.lease, o.rkey, o.addr = l, x.key, x.iova
	o.more().list, err = keys.Stage(mr.Region{Key: x.key, Access: x.access, IOVA: x.iova, Length: uint64(x.n)})
	e.w.must(err)
	e.add(o)
}

// announce tells the peer by a SEND.
func (l *lease) announce() {
	e := l.own
	l.uses = 1 + e.w.r.Intn(8)
	o := e.next(RCSend)
	o.n = min(e.size(), 200)
	o.src, o.lease = e.h.source(o.n), l
	e.add(o)
	e.expects(o, saysOpen)
}

// takeAway posts what ends the life in force, or begins DeregMR.
func (l *lease) takeAway() {
	e := l.own
	l.state = leaseTaken
	switch l.kind {
	case fastMR, window2:
		if l.kind == fastMR && !l.rude && e.room(2) && e.w.r.Intn(2) == 0 {
			e.useOwn(l)
		}
		o := e.next(LocalInv)
		o.lease, o.life, o.rkey, o.src = l, l.life.num, l.life.key, l.life.v
		e.add(o)
	case window1: // rebinding to nothing
		o := e.next(BindMW)
		o.lease, o.life, o.src = l, l.life.num, l.life.v
		o.more().bind = &bind{window: l.key, parent: l.parent.key, type1: true}
		l.key = l.key.Inc()
		o.rkey = l.key
		var err error
		o.more().list, err = e.h.n.Dev.Keys().StageBind(l.index)
		e.w.must(err)
		e.add(o)
	case userMR:
		l.dereg()
	}
}

// useOwn writes from our own region by its key, right before it is taken away: what is sent again must
// still find it.
func (e *end) useOwn(l *lease) {
	x := &l.life
	o := e.next(RCWrite)
	o.n = 1 + uint32(e.w.r.Intn(int(x.n)))
	if !e.target(o, o.n) {
		return
	}
	at := uint32(e.w.r.Intn(int(x.n - o.n + 1)))
	o.src = x.v.sub(at, o.n)
	m := o.more()
	m.lkey, m.laddr = x.key, x.iova+uint64(at)
	e.add(o)
}

// prepare puts LOCAL_INV, the next REG_MR and its announcement into the queue while the peer still
// uses the region, and holds them back until it is through. What the application has changed on its
// side meanwhile must not be visible.
func (l *lease) prepare() bool {
	e := l.own
	x, ok := l.newLife()
	if !ok {
		return false
	}
	e.release()
	e.held, e.w.holder = true, e // one at a time: two could wait for each other
	l.ahead = x
	o := e.next(LocalInv)
	o.lease, o.life, o.rkey, o.src = l, l.life.num, l.life.key, l.life.v
	e.add(o)
	l.register(&l.ahead)
	e.w.res.Grants++
	l.next = true
	l.announce()
	return true
}

// letGo posts what prepare has held back.
func (l *lease) letGo() {
	e := l.own
	l.begin(l.ahead)
	e.h.alive(l.life.key)
	e.held, e.w.holder = false, nil
	e.release()
}

// told takes what a message says about the region.
func (l *lease) told(says word) {
	if l.own.c.dying {
		return // the region goes with the connection
	}
	switch says {
	case saysOpen:
		if l.state == leaseOpening {
			l.state = leaseOpen
		}
		l.user = l.own.peer.deputy(l)
		l.user.grants = append(l.user.grants, l)
	case saysClose:
		l.polite()
		l.tryQueued()
		switch {
		case l.next:
			l.letGo()
		case l.state == leaseOpen:
			l.state = leaseClosed
		}
		if l.own.c.keeper {
			l.goOn()
		}
	}
}

// goOn does at once what comes next for the region.
func (l *lease) goOn() {
	e := l.own
	if !e.w.stopping && !e.c.dying && (l.state == leaseIdle || l.state == leaseClosed) && e.workLease(l) {
		e.release()
	}
}

// deputy picks who uses a region that was announced to e: e itself, or another end of its host that is
// connected to the same one.
func (e *end) deputy(l *lease) *end {
	if l.kind == window2 || e.w.r.Intn(3) == 0 && !l.own.c.keeper {
		return e
	}
	conns := e.w.conns
	for i, at := 0, e.w.r.Intn(len(conns)); i < len(conns); i++ {
		c := conns[(at+i)%len(conns)]
		for _, u := range []*end{c.a, c.b} {
			if c.typ == rxe.RC && !c.slow && !c.dying && u.h == e.h && u.peer.h == l.own.h && u != l.own {
				return u
			}
		}
	}
	return e
}

// keyedWR fills in a work request that changes the key table.
func (e *end) keyedWR(wr *rxe.SendWR, o *op) {
	wr.List = o.list
	if b := o.bind; b != nil {
		wr.MWKey, wr.Parent, wr.Length, wr.Access, wr.MWType1 = b.window, b.parent, b.length, b.access, b.type1
	}
}

// finishKeyed takes note of a REG_MR, BIND_MW or LOCAL_INV that has completed.
func (e *end) finishKeyed(o *op) {
	if l := o.lease; l != nil && o.src.num > 0 {
		key := o.rkey
		if o.bind != nil {
			key = o.bind.window
		}
		l.ended(o.life, key, &o.src, o.kind.String())
	}
}

// dereg takes a user region away through the control path.
func (l *lease) dereg() {
	if _, f := l.own.h.n.Dev.Keys().Unpublish(l.index); f != mr.FaultNone {
		l.own.w.violate("%v: a region cannot be deregistered: %v", l.own, f)
		return
	}
	l.state = leaseWaiting
	l.free()
}

// free gives the index back as soon as the table lets it, which is after grace.
func (l *lease) free() {
	w := l.own.w
	if err := l.own.h.n.Dev.Keys().Free(l.index); err != nil {
		w.f.At(w.f.Now()+1000+rxe.Time(w.r.Intn(4000)), l.free)
		return
	}
	both := one(l.half[0], l.size)
	both.add(l.half[1], l.size)
	l.ended(l.life.num, l.life.key, &both, "DeregMR")
	l.taken = [2]bool{}
	l.allocate()
}
