package soak

import (
	"slices"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

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
