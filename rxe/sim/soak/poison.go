package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers work requests that must fail: attacks with keys that are stale, guessed, foreign or
// too weak, and mistakes of the application. Each ends its connection.

// poison is the way in which a work request is wrong.
type poison struct {
	why  string
	want rxe.WCStatus // at the requester
	recv rxe.WCStatus // of the receive it takes, if it takes one
	make func(e *end, o *op) bool
}

// rarePoisons are those at the end of the list, which the state of things allows now and then only.
const rarePoisons = 6

var poisons = []poison{
	{"the key is guessed", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		for {
			o.rkey = mr.Key(e.w.r.Uint64())
			if o.rkey.Index() > 4096 { // far above all that are in use
				return e.reach(o, anyAccess)
			}
		}
	}},
	{"the key is 0", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		o.rkey = 0
		return e.reach(o, anyAccess)
	}},
	{"the key's variant is another", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		o.rkey = e.tgtReg.key&^0xff | mr.Key(uint8(e.tgtReg.key)+1+uint8(e.w.r.Intn(255)))
		return e.reach(o, anyAccess)
	}},
	{"the key is stale", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		dead := e.peer.h.dead
		if len(dead) == 0 {
			return false
		}
		o.rkey = dead[e.w.r.Intn(len(dead))]
		e.attack = o.rkey
		return e.reach(o, anyAccess)
	}},
	{"the region is of another domain", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		a := e.peer.h.alien
		o.rkey, o.addr = a.key, a.iova
		return e.reach(o, anyAccess)
	}},
	{"the region may not be written", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		p := e.peer.h.pool
		o.rkey, o.addr = p.key, p.iova
		return e.reach(o, mr.RemoteWrite|mr.RemoteAtomic|mr.FlushGlobal)
	}},
	{"the region is for atomics only", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		p := e.peer.h.shared
		o.rkey, o.addr = p.key, p.iova
		return e.reach(o, mr.RemoteRead|mr.RemoteWrite|mr.FlushGlobal)
	}},
	{"it ends one byte behind the region", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		o.rkey = e.tgtReg.key
		o.addr, o.n = e.tgtReg.iova+uint64(e.tgtReg.n)-7, 8
		return e.reach(o, anyAccess)
	}},
	{"it begins one byte before the region", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		o.rkey, o.addr, o.n = e.tgtReg.key, e.tgtReg.iova-1, 8
		return e.reach(o, mr.RemoteWrite|mr.RemoteRead)
	}},
	{"its address wraps", rxe.WCRemAccessErr, 0, func(e *end, o *op) bool {
		o.rkey, o.addr = e.tgtReg.key, 1<<64-4
		return e.reach(o, mr.RemoteWrite|mr.RemoteRead)
	}},
	{"a local key is wrong", rxe.WCLocProtErr, 0, func(e *end, o *op) bool {
		o.kind = RCWrite
		o.src = e.h.source(uint32(1 + e.w.r.Intn(64)))
		o.n = o.src.len()
		o.more().badKey = e.h.alien.key
		o.rkey, o.addr = e.tgtReg.key, e.tgtReg.iova
		return o.src.p[o.src.num-1].n > 0
	}},
	{"the SEND is longer than the buffer", rxe.WCRemInvReqErr, rxe.WCLocLenErr, func(e *end, o *op) bool {
		o.kind = RCSend
		o.n = e.peer.rxq.size + 1
		if o.n > poolSize/2 {
			return false
		}
		o.src = e.h.source(o.n)
		return true
	}},
	{"the key to invalidate is wrong", rxe.WCRemAccessErr, rxe.WCRemInvReqErr, func(e *end, o *op) bool {
		o.kind, o.n = RCSendInv, 8
		o.src = e.h.source(8)
		o.imm = uint32(e.tgtReg.key) // a user region
		if dead := e.peer.h.dead; len(dead) > 0 && e.w.r.Intn(2) == 0 {
			// A fast region that is free takes its last key once more; another variant not.
			o.imm = uint32(dead[e.w.r.Intn(len(dead))]) ^ 0x80
			e.attack = mr.Key(o.imm)
			return !e.peer.h.lives(e.attack)
		}
		return true
	}},
	{"LOCAL_INV is of a user region", rxe.WCLocQPOpErr, 0, func(e *end, o *op) bool {
		o.kind, o.rkey = LocalInv, e.h.pool.key
		return true
	}},
	{"it leaves the window", rxe.WCRemAccessErr, 0, beyondWindow},
	{"the window is bound to another QP", rxe.WCRemAccessErr, 0, strangeWindow},
	{"LOCAL_INV has another variant", rxe.WCLocQPOpErr, 0, func(e *end, o *op) bool {
		for _, l := range e.leases {
			if l.kind == fastMR && l.state == leaseOpen && !l.next {
				o.kind, o.rkey = LocalInv, l.life.key^0x40
				return true
			}
		}
		return false
	}},
	{"REG_MR is of a region that is registered", rxe.WCLocQPOpErr, 0, func(e *end, o *op) bool {
		for _, l := range e.leases {
			if l.kind == fastMR && l.state == leaseOpen && !l.next {
				var err error
				o.kind, o.rkey, o.addr = RegMR, l.life.key, 0x1000
				o.more().list, err = e.h.n.Dev.Keys().Stage(mr.Region{Key: o.rkey, IOVA: 0x1000, Length: 8})
				e.w.must(err)
				return true
			}
		}
		return false
	}},
	{"BIND_MW passes the end of the region", rxe.WCMWBindErr, 0, func(e *end, o *op) bool {
		for _, l := range e.leases {
			if l.parent != nil && l.state == leaseIdle {
				var err error
				o.kind, o.addr = BindMW, l.parent.iova+16
				o.more().bind = &bind{window: l.key, parent: l.parent.key, length: uint64(l.parent.n) - 15,
					access: mr.RemoteRead, type1: l.kind == window1}
				o.rkey = l.key.Inc()
				o.more().list, err = e.h.n.Dev.Keys().StageBind(l.index)
				e.w.must(err)
				return true
			}
		}
		return false
	}},
	{"the QP does not allow atomics", rxe.WCRemInvReqErr, 0, func(e *end, o *op) bool {
		if e.c.access&mr.RemoteAtomic != 0 {
			return false
		}
		o.kind, o.n, o.rkey, o.addr = RCFetchAdd, 8, e.cellReg.key, e.cellReg.iova
		return e.landing(o, 8)
	}},
}

const anyAccess = mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic | mr.FlushGlobal

// reaches are the operations that go to a peer's memory, with the right each needs and whether it is
// one of 8 aligned bytes.
var reaches = [...]struct {
	kind Kind
	need mr.Access
	word bool
}{{RCWrite, mr.RemoteWrite, false}, {RCRead, mr.RemoteRead, false}, {RCFetchAdd, mr.RemoteAtomic, true},
	{RCCmpSwp, mr.RemoteAtomic, true}, {RCAtomicWrite, mr.RemoteWrite, true}, {RCFlush, mr.FlushGlobal, false}}

// reach makes an operation that needs one of the rights and goes to o.addr by o.rkey. It is o.n bytes
// long if that is not 0, and 8 at least.
func (e *end) reach(o *op, rights mr.Access) bool {
	r := e.w.r
	if o.addr == 0 {
		o.addr = e.tgtReg.iova
	}
	i := r.Intn(len(reaches))
	for ; ; i = (i + 1) % len(reaches) {
		if x := &reaches[i]; x.need&rights != 0 && x.need&e.c.access != 0 && (!x.word || o.addr%8 == 0) {
			break
		}
	}
	if o.kind = reaches[i].kind; o.n == 0 {
		o.n = uint32(8 + r.Intn(min(e.c.maxMsg, 5000)))
	}
	if reaches[i].word {
		o.n = 8
	}
	switch o.kind {
	case RCWrite, RCAtomicWrite:
		o.src = e.h.source(o.n)
		return true
	case RCFlush:
		o.imm = uint32(wire.PlacementGlobal)
		return true
	}
	return e.landing(o, o.n)
}

// beyondWindow goes to the region behind a window, where the window does not reach.
func beyondWindow(e *end, o *op) bool {
	for _, l := range e.grants {
		x := &l.life
		if l.kind != window1 && l.kind != window2 || l.asking || l.rude || l.state != leaseOpen {
			continue
		}
		o.rkey, o.addr, o.n = x.key, x.iova+uint64(x.n)-7, 8
		return e.reach(o, x.access&(mr.RemoteRead|mr.RemoteWrite))
	}
	return false
}

// strangeWindow goes through a type 2 window of another connection's.
func strangeWindow(e *end, o *op) bool {
	for _, l := range e.peer.h.lent {
		x := &l.life
		if l.kind != window2 || l.state != leaseOpen || l.own == e.peer || l.rude || l.own.c.dying {
			continue
		}
		o.rkey, o.addr, o.n = x.key, x.iova, 8
		e.attack = o.rkey
		return e.reach(o, x.access&(mr.RemoteRead|mr.RemoteWrite))
	}
	return false
}

// lives reports whether a key is in force, or may be.
func (h *host) lives(key mr.Key) bool {
	for _, e := range h.ends {
		for _, l := range e.leases {
			if l.life.key == key || l.ahead.key == key || l.key == key {
				return true
			}
		}
	}
	return false
}

// attacked reports whether a work request under way uses a key of h that is not in force, and so
// must not come into force.
func (h *host) attacked(key mr.Key) bool {
	for _, c := range h.w.conns {
		if c.a.attack == key && c.b.h == h || c.b.attack == key && c.a.h == h {
			return true
		}
	}
	return false
}

// inventPoison adds a work request that must fail, and with it the connection.
func (e *end) inventPoison() bool {
	if e.poison != nil || e.peer.poison != nil || e.held || !e.room(1) || e.risky || e.peer.risky {
		return false
	}
	for range 6 {
		p := &poisons[e.w.r.Intn(len(poisons))]
		if e.w.r.Intn(2) == 0 {
			p = &poisons[len(poisons)-1-e.w.r.Intn(rarePoisons)]
		}
		o := e.next(RCWrite)
		o.bad, o.extra = true, &extra{want: p.want, why: p.why}
		if p.make(e, o) {
			e.poisonBy(p, o)
			return true
		}
		e.attack = 0
	}
	return false
}

func (e *end) poisonBy(p *poison, o *op) {
	e.poison = p
	e.add(o)
	if o.kind.takesRecv() {
		e.expects(o, saysNothing)
		m := &e.peer.expect[len(e.peer.expect)-1]
		m.poison, m.want = true, p.recv
	}
}
