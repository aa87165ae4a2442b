package soak

import (
	"encoding/binary"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers connections and their ends: how they are made, and made again.

func host64(b []byte) uint64       { return binary.NativeEndian.Uint64(b) }
func putHost64(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

// conn is a connection of two QPs.
type conn struct {
	w      *world
	num    int
	typ    rxe.QPType
	a, b   *end
	attr   sim.ConnAttr
	access mr.Access
	maxMsg int // bytes
	small  int // percent of messages that are tiny
	inline uint32
	slow   bool // nothing holds it back but a timer
	keeper bool // it lends regions to other connections

	dying   bool // an error has come; no new work until it is made anew
	buried  bool // and the QPs are gone
	looks   int  // for that
	severed bool // cut for so long that retries run out
}

// end is one side: requester of one stream, responder of the other.
type end struct {
	w    *world
	c    *conn
	h    *host
	peer *end
	name string
	q    *rxe.QP
	scq  *cqApp
	rcq  *cqApp
	rxq  *rxq
	wc   wireState

	// Requester. Operations are kept from their invention until they complete:
	// done ≤ posted ≤ made. Those from posted on are held back.
	ops                [opRing]op
	done, posted, made uint32
	checked            uint32 // WRITEs before it have been compared
	depth              uint32
	unsignaled         int
	answered           int // READs and atomics among them
	nextPSN            wire.PSN
	held               bool   // until the peer is through with a region
	stalled            bool   // for a while
	attack             mr.Key // the stale key that a work request uses
	tgt                area   // where WRITEs go, in the peer's arena
	tgtReg             *region
	dst                area   // where READs and atomics put what they bring
	cell               uint32 // a word of the peer's that only we change
	cellReg            *region
	cellVal            uint64 // once all is executed
	uc                 ucFlow

	// Errors.
	failed  bool // a completion was no success
	poison  *poison
	doubt   []op // flushed: executed or not
	sqd     bool // the QP is in SQD
	lastWQE bool // the SRQ gives this QP nothing more
	risky   bool // a request of ours may be refused, for its region is taken away

	// Responder.
	expect  []message // that must come, oldest first
	expectN int       // taken from the front
	leases  []*lease  // of regions we own
	grants  []*lease  // of the peer's that we may use
	dirty   bool
}

const opRing = 32

func (e *end) op(i uint32) *op { return &e.ops[i%opRing] }

// String names the end.
func (e *end) String() string { return e.name }

func (c *conn) String() string {
	s := func(e *end) string {
		return fmt.Sprintf("%v (QP %#x, %v): %d posted, %d held, %d receives posted, %d messages to come, "+
			"CQEs waiting %d; SQ %d; next %v, buried %v last %v", e, e.q.QPN(), e.q.State(), e.posted-e.done, e.made-e.posted, e.rxq.posted,
			len(e.expect)-e.expectN, e.scq.cq.Len(), e.q.SQ.Len(), e.op(e.done).kind, e.c.buried, e.lastWQE)
	}
	return fmt.Sprintf("%s; %s; dying %v", s(c.a), s(c.b), c.dying)
}

func (c *conn) idle() bool {
	return !c.dying && c.a.done == c.a.made && c.b.done == c.b.made && c.a.idleLeases() && c.b.idleLeases() &&
		(c.typ != rxe.RC || c.a.expectN == len(c.a.expect) && c.b.expectN == len(c.b.expect))
}

func (w *world) buildConns() {
	r := w.r
	for i, n := 0, 3+r.Intn(5); i < n; i++ {
		w.addConn(rxe.RC)
	}
	w.addConn(rxe.RC).loop()
	for range 3 {
		w.addConn(rxe.RC).keep()
	}
	for i, n := 0, 1+r.Intn(2); i < n; i++ {
		w.addConn(rxe.UC)
	}
	for _, c := range w.conns {
		c.a.setUpMemory()
		c.b.setUpMemory()
	}
}

func (w *world) pick() *host { return w.hosts[w.r.Intn(len(w.hosts))] }

// addConn decides what a connection is like and lends it memory.
func (w *world) addConn(typ rxe.QPType) *conn {
	r := w.r
	c := &conn{w: w, num: len(w.conns), typ: typ}
	c.maxMsg = []int{256, 1200, 2048, 2048, 4096}[r.Intn(5)]
	if typ == rxe.RC && r.Intn(16) == 0 {
		c.maxMsg = 40000
	}
	c.small = 30 + r.Intn(60)
	c.inline = uint32(r.Intn(4) * 64)
	pmtu := uint32(256 << r.Intn(5))
	if r.Intn(2) == 0 {
		pmtu = 256 << r.Intn(3)
	}
	c.access = sim.AllAccess
	c.attr = sim.ConnAttr{PMTU: pmtu, Timeout: 8 + uint8(r.Intn(3)), Retry: 7, RNRRetry: 7,
		RNRTimer: 1 + uint8(r.Intn(8)), RdAtomic: 1 << r.Intn(5), Access: c.access}
	if typ == rxe.RC && r.Intn(6) == 0 {
		c.access &^= mr.RemoteAtomic
		c.attr.Access = c.access
	}
	ha, hb := w.pick(), w.pick()
	for hb == ha {
		hb = w.pick()
	}
	c.between(ha, hb)
	c.slow = typ == rxe.UC
	w.conns = append(w.conns, c)
	return c
}

func (c *conn) between(ha, hb *host) {
	c.a, c.b = c.w.newEnd(c, ha, 'a'), c.w.newEnd(c, hb, 'b')
	c.a.peer, c.b.peer = c.b, c.a
}

// loop makes a connection one inside a device. Nothing but a timer holds it back.
func (c *conn) loop() {
	c.between(c.a.h, c.a.h)
	c.slow = true
}

// keep makes a connection one that does little but lend regions, which ends of busy connections between
// the same hosts use. Its QPs have shards to themselves, and its queues are mostly empty: what they
// invalidate is invalidated at once, whatever other shards are doing.
func (c *conn) keep() {
	like := c.w.conns[c.w.r.Intn(len(c.w.conns)-1)]
	for like.slow {
		like = c.w.conns[c.w.r.Intn(len(c.w.conns)-1)]
	}
	c.between(like.a.h, like.b.h)
	c.slow, c.keeper = true, true
}

// shard picks where the end's QP lives.
func (e *end) shard() *rxe.Shard {
	s := e.h.n.Dev.Shards()
	last := len(s) - 1
	if last == 0 || e.c.keeper {
		return s[last]
	}
	return s[e.w.r.Intn(last)]
}

func (w *world) newEnd(c *conn, h *host, side byte) *end {
	r := w.r
	e := &end{w: w, c: c, h: h, name: fmt.Sprintf("%v connection %d%c", c.typ, c.num, side)}
	e.depth = uint32(4 + r.Intn(opRing-6))
	e.scq, e.rcq = h.cqs[r.Intn(len(h.cqs))], h.cqs[r.Intn(len(h.cqs))]
	return e
}

// setUpMemory gives an end memory and a receive queue. The hosts are all there.
func (e *end) setUpMemory() {
	r, c := e.w.r, e.c
	size := uint32(min(max(4*c.maxMsg, 4<<10), 1<<16))
	e.dst = newArea(&e.h.arena, size)
	p := e.peer.h
	if c.typ == rxe.UC {
		e.setUpUC()
	} else {
		e.tgt = newArea(&p.arena, size)
		iova := r.Uint64() >> 20 << 12 // + tgt.off: as unaligned as the memory
		iova += uint64(e.tgt.off)
		e.tgtReg = p.register(p.pd, e.tgt.off, size, iova, sim.AllAccess)
		e.cell = p.grow(16)
		e.cell += -e.cell & 7
		p.setWord(e.cell, 0)
		e.cellReg = p.register(p.pd, e.cell, 8, iova>>12<<12+1<<31, sim.AllAccess)
	}
	e.rxq = e.h.newRxq(e.shard(), uint32(c.maxMsg), c.typ == rxe.UC)
	if c.typ == rxe.RC {
		e.addLeases()
	}
}

// connect makes the QPs and connects them.
func (c *conn) connect() {
	r := c.w.r
	c.attr.PSN = wire.PSN(r.Uint64() & wire.PSNMask)
	if r.Intn(2) == 0 {
		c.attr.PSN = wire.PSNMask - wire.PSN(r.Intn(64)) // soon to wrap
	}
	for _, e := range []*end{c.a, c.b} {
		e.create()
	}
	c.w.must(sim.Connect(c.a.h.n, c.a.q, c.b.h.n, c.b.q, c.attr))
	c.a.start(c.attr.PSN, c.attr.PSN.Add(0x1000))
	c.b.start(c.attr.PSN.Add(0x1000), c.attr.PSN)
	c.dying, c.buried, c.severed = false, false, c.severable()
}

func (e *end) create() {
	c := e.c
	in := rxe.QPInit{Type: c.typ, PD: e.h.pd, SendCQ: e.scq.cq, RecvCQ: e.rcq.cq, MaxSendWR: opRing,
		MaxRecvWR: uint32(len(e.rxq.slots)), MaxSend: maxSGE, MaxRecv: maxSGE, MaxInline: c.inline,
		SRQ: e.rxq.srq, Context: e}
	q, err := e.h.n.Dev.CreateQP(e.rxq.shard, in)
	e.w.must(err)
	e.q = q
	e.h.ends[q.QPN()] = e
	e.rxq.attach(e)
}

// start sets everything that begins anew with a connection.
func (e *end) start(sq, rq wire.PSN) {
	e.done, e.posted, e.made, e.checked = 0, 0, 0, 0
	e.nextPSN = sq
	e.wc = wireState{next: sq, acked: sq.Add(wire.PSNMask), came: rq, said: rq.Add(wire.PSNMask),
		naked: rq.Add(wire.PSNMask)}
	e.held, e.stalled, e.failed, e.sqd, e.poison, e.attack = false, false, false, false, nil, 0
	e.unsignaled, e.answered, e.lastWQE, e.risky = 0, 0, false, false
	e.expect, e.expectN = e.expect[:0], 0
	e.doubt = e.doubt[:0]
	e.tgt.reset()
	e.dst.reset()
}

// freshen posts what the end can post now.
func (e *end) freshen() {
	e.rxq.refill()
	e.topUp()
}

// topUp invents operations until the queue is as deep as it should be.
func (e *end) topUp() {
	if e.c.dying || e.w.failed() {
		return
	}
	if e.c.typ != rxe.RC {
		if e.w.stopping && e.c.typ == rxe.UC && e.unsignaled > 0 && e.room(1) {
			e.unsignaled = opRing
			e.inventUC()
			e.release()
		}
		return
	}
	switch {
	case e.w.stopping:
		e.windUp()
	case !e.c.slow:
		for e.room(1) && e.invent() {
		}
	}
	e.release()
}

// release posts what is not held back.
func (e *end) release() {
	if e.held || e.stalled || e.posted == e.made {
		return
	}
	for ; e.posted != e.made; e.posted++ {
		e.post(e.posted)
	}
	e.q.RingDoorbell()
	e.w.f.KickShard(e.h.n, e.q.Shard().ID)
}

func (e *end) lastChecks() {
	if e.c.typ == rxe.UC {
		e.checkUCArea()
		return
	}
	if !e.c.dying && e.h.n.Dev.QPByNumber(e.q.QPN()) == e.q && e.q.State() != rxe.StateRTS {
		e.w.violate("%v ends in %v", e, e.q.State())
	}
	if v := e.peer.h.word(e.cell); v != e.cellVal {
		e.w.violate("%v: its word at the peer is %#x, want %#x", e, v, e.cellVal)
	}
}
