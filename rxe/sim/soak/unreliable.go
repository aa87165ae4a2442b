package soak

import (
	"bytes"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the unreliable services. Messages may be lost, and on UC and UD the network may
// double them and change their order; but one that arrives is whole, is one that was sent, and goes to
// where it was sent. Each SEND begins with its number.

const numberLen = 8

// letter is an unreliable message that was sent.
type letter struct {
	num       uint64
	from      *end
	to        *end // nil: a group
	kind      Kind
	n         uint32
	src       vec // behind the number
	imm       uint32
	slot      int  // UC WRITE
	banned    bool // must not arrive
	solicited bool
	group     int // to nil: which
	got       int
}

const letters = 1 << 13

// post is where all letters of a run are known.
type udState struct {
	ends  []*end
	ring  [letters]letter
	next  uint64
	group [2]wire.GID // all are members of the first, every other one of the second
}

func (u *udState) write() *letter {
	u.next++
	x := &u.ring[u.next%letters]
	*x = letter{num: u.next}
	return x
}

// find returns a letter; nil when it was too long ago or there is none.
func (u *udState) find(num uint64) *letter {
	if x := &u.ring[num%letters]; x.num == num && num != 0 {
		return x
	}
	return nil
}

// ucFlow is what an end of an unreliable connection has besides.
type ucFlow struct {
	area    uint32 // at the peer: slots that are always written with the same bytes
	slots   int
	size    uint32
	reg     *region
	numbers uint32 // of our letters, by place in the queue
	ahs     []*rxe.AH
	groupAH [2]*rxe.AH
}

func (e *end) setUpUC() {
	u, p := &e.uc, e.peer.h
	u.slots, u.size = 4, uint32(e.c.maxMsg)
	u.area = p.blur(uint32(u.slots) * u.size)
	u.reg = p.register(p.pd, u.area, uint32(u.slots)*u.size, 0x6000_0000+uint64(u.area), sim.AllAccess)
	u.numbers = e.h.grow(opRing * numberLen)
}

// slotSource is what WRITEs to a slot are made of.
func (e *end) slotSource(slot int, n uint32) vec {
	return one(e.h.pool.off+uint32(slot)*64, n)
}

func (e *end) inventUC() bool {
	r := e.w.r
	k := UCSend + Kind(r.Intn(4))
	o := e.next(k)
	x := e.w.ud.write()
	x.from, x.to, x.kind, x.imm = e, e.peer, k, uint32(r.Uint64())
	if k == UCSend || k == UCSendImm {
		o.n = max(e.size(), numberLen)
		x.src = e.text(o.n - numberLen)
		o.src = x.src
	} else {
		x.slot = r.Intn(e.uc.slots)
		o.n = min(e.size(), e.uc.size)
		x.src = e.slotSource(x.slot, o.n)
		o.src = x.src
		o.rkey, o.addr = e.uc.reg.key, e.uc.reg.iova+uint64(x.slot)*uint64(e.uc.size)
		x.imm = uint32(x.num)
		e.garbleEmpty(o)
	}
	x.n, o.imm = o.n, x.imm
	e.numbered(x)
	e.add(o)
	x.solicited = o.flags&rxe.SendSolicited != 0
	return true
}

// text is what stands behind the number: one element less, then, is left for it.
func (e *end) text(n uint32) vec {
	v := e.h.source(n)
	if v.num == maxSGE {
		v = one(e.h.pool.off+uint32(e.w.r.Intn(64)), n)
	}
	return v
}

// trickle posts a few unreliable messages now and then: nothing else holds them back.
func (w *world) trickle() {
	if w.stopping || w.failed() {
		return
	}
	if w.trickled*looseShare <= w.f.Stats.Packets {
		e := w.loose[w.r.Intn(len(w.loose))]
		for k := 1 + w.r.Intn(8); k > 0 && e.room(1) && !e.c.dying; k-- {
			e.invent()
			w.trickled++
		}
		e.release()
	}
	w.f.At(w.f.Now()+rxe.Time(w.r.Intn(trickleGap)), w.trickle)
}

const (
	trickleGap = 4_000
	looseShare = 5 // packets to one of these messages
)

// numbered stores a letter's number where the work request will find it.
func (e *end) numbered(x *letter) {
	e.h.setWord(e.uc.numbers+e.made%opRing*numberLen, x.num)
}

// unreliableWR fills in a SEND: the number, then the text.
func (e *end) unreliableWR(wr *rxe.SendWR, o *op, i uint32) {
	if e.c.typ == rxe.UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = uint32(o.add), rxe.QPN(o.swap), uint32(o.orig)
	}
	v := one(e.uc.numbers+i%opRing*numberLen, numberLen)
	for _, p := range o.src.pieces() {
		v.add(p.off, p.n)
	}
	wr.SGEs = e.h.sge(&v)
}

// recvUC checks a message of an unreliable connection.
func (e *end) recvUC(c *rxe.CQE, s *rslot) bool {
	num := uint64(0)
	if c.Opcode == rxe.WCRecv {
		num = e.numberAt(s, 0, c.ByteLen)
	} else {
		num = e.w.ud.next&^0xffffffff | uint64(c.Imm)
	}
	x := e.w.ud.find(num)
	want := rxe.CQE{WRID: c.WRID, QPN: e.q.QPN(), Opcode: rxe.WCRecv, Reason: c.Reason}
	if x != nil {
		want.ByteLen = x.n
		if x.kind == UCSendImm || x.kind == UCWriteImm {
			want.Flags, want.Imm = rxe.WCWithImm, x.imm
		}
		if x.kind == UCWriteImm {
			want.Opcode = rxe.WCRecvRDMAWithImm
		}
	}
	if !e.checkLetter(c, x, num, want) {
		return false
	}
	ok := true
	if x.kind == UCWriteImm {
		at := one(x.from.uc.area+uint32(x.slot)*x.from.uc.size, x.n)
		ok = same(x.from.h.mem, &x.src, e.h.mem, &at, x.n)
	} else {
		text := s.v.sub(numberLen, x.n-numberLen)
		ok = same(x.from.h.mem, &x.src, e.h.mem, &text, x.n-numberLen)
	}
	if !ok {
		e.w.violate("%v: %d bytes of a %v are not what was sent", e, x.n, x.kind)
	}
	e.h.scrub(s.off, s.size)
	return x.solicited
}

// numberAt reads the number of a letter in a receive buffer.
func (e *end) numberAt(s *rslot, off, n uint32) uint64 {
	if n < off+numberLen {
		return 0
	}
	var b [numberLen]byte
	for i := range b {
		b[i] = e.h.mem[s.v.at(off+uint32(i))]
	}
	return host64(b[:])
}

// checkLetter makes sure that a letter that arrived was sent, to this end, and not too often.
func (e *end) checkLetter(c *rxe.CQE, x *letter, num uint64, want rxe.CQE) bool {
	w := e.w
	switch {
	case x == nil:
		w.violate("%v: a message that nobody sent, number %d of %d: %+v", e, num, w.ud.next, *c)
		return false
	case x.to != nil && x.to != e || x.to == nil && !e.member(x.group) || x.banned:
		w.violate("%v: message %d of %v is not for it: %+v", e, num, x.from, *c)
		return false
	case *c != want:
		w.violate("%v: received %+v, want %+v", e, *c, want)
		return false
	}
	if x.got++; x.got > 1 && x.to != nil && w.o.Faults.Duplicate == 0 && w.o.Script == nil {
		w.violate("%v: message %d arrives %d times", e, num, x.got)
		return false
	}
	return true
}

// checkUCArea makes sure that slots hold nothing but what was there or is always written.
func (e *end) checkUCArea() {
	u, p := &e.uc, e.peer.h
	for i := range u.slots {
		at := one(u.area+uint32(i)*u.size, u.size)
		src := e.slotSource(i, u.size)
		if !mixed(&p.arena, &at, e.h.mem, &src, u.size) {
			e.w.violate("%v: a slot of UC WRITEs holds bytes that are neither old nor sent", e)
		}
	}
}

const (
	udQKey    = 0x0badcafe
	udMax     = 1000 // longest datagram
	udLargest = udMax + rxe.GRHBytes
)

// buildUD gives hosts their datagram QPs.
func (w *world) buildUD() {
	u := &w.ud
	for i := range u.group {
		u.group[i] = wire.GIDFromIPv4([4]byte{239, 77, 0, byte(1 + i)})
		if w.bth > 50 {
			u.group[i] = wire.GID{0: 0xff, 1: 0x0e, 15: byte(0x77 + i)}
		}
	}
	for _, h := range w.hosts {
		for i, n := 0, 1+w.r.Intn(2); i < n; i++ {
			c := &conn{w: w, num: len(u.ends), typ: rxe.UD, maxMsg: udMax, small: 40}
			c.attr.PMTU = 4096
			e := w.newEnd(c, h, 'u')
			c.a = e
			u.ends = append(u.ends, e)
			e.uc.numbers = h.grow(opRing * numberLen)
			size := uint32(udLargest)
			if w.r.Intn(3) == 0 {
				size = 300 // longer ones are dropped
			}
			e.rxq = h.newRxq(e.shard(), size, false)
		}
	}
}

// startUD makes the QPs.
func (w *world) startUD() {
	for _, e := range w.ud.ends {
		e.create()
		w.must(sim.ReadyUD(e.q, udQKey))
		for i, g := range w.ud.group {
			if e.member(i) {
				w.must(e.h.n.Dev.AttachMulticast(e.q, g))
			}
		}
		for _, h := range w.hosts {
			ah, err := e.h.n.Dev.CreateAH(e.h.pd, e.h.n.Path(h.n))
			w.must(err)
			e.uc.ahs = append(e.uc.ahs, ah)
		}
		for i, g := range w.ud.group {
			av := e.h.n.Path(e.h.n)
			av.Loopback, av.Path.Dst, av.Path.DstMAC = false, g, wire.MulticastMAC(g)
			var err error
			e.uc.groupAH[i], err = e.h.n.Dev.CreateAH(e.h.pd, av)
			w.must(err)
		}
	}
	w.loose = append(w.loose, w.ud.ends...)
	for _, c := range w.conns {
		if c.slow {
			w.loose = append(w.loose, c.a, c.b)
		}
	}
	for _, e := range w.ud.ends {
		e.rxq.refill()
	}
	w.trickle()
}

// member reports whether a datagram QP is in a group.
func (e *end) member(group int) bool { return group == 0 || e.c.num%2 == 0 }

func (e *end) inventUD() bool {
	w := e.w
	k := UDSend + Kind(w.r.Intn(2))
	o := e.next(k)
	x := w.ud.write()
	x.from, x.kind, x.imm = e, k, uint32(w.r.Uint64())
	o.n = max(e.size(), numberLen)
	x.src = e.text(o.n - numberLen)
	o.src, x.n, o.imm = x.src, o.n, x.imm
	qkey := uint32(udQKey)
	if w.r.Intn(16) == 0 {
		qkey, x.banned = udQKey+1, true
	}
	o.orig = uint64(qkey)
	if w.r.Intn(12) == 0 {
		x.group = w.r.Intn(2)
		o.add, o.swap = uint64(e.uc.groupAH[x.group].Num()), uint64(rxe.QPNMulti)
	} else {
		x.to = w.ud.ends[w.r.Intn(len(w.ud.ends))]
		o.add, o.swap = uint64(e.uc.ahs[x.to.h.n.ID()].Num()), uint64(x.to.q.QPN())
	}
	e.numbered(x)
	e.add(o)
	x.solicited = o.flags&rxe.SendSolicited != 0
	return true
}

// recvUD checks a datagram: GRH, source, content.
func (e *end) recvUD(c *rxe.CQE, s *rslot) bool {
	num := e.numberAt(s, rxe.GRHBytes, c.ByteLen)
	x := e.w.ud.find(num)
	want := rxe.CQE{WRID: c.WRID, QPN: e.q.QPN(), Opcode: rxe.WCRecv, Reason: c.Reason, Flags: rxe.WCGRH}
	if x != nil {
		want.ByteLen, want.SrcQP = x.n+rxe.GRHBytes, x.from.q.QPN()
		if x.kind == UDSendImm {
			want.Flags |= rxe.WCWithImm
			want.Imm = x.imm
		}
	}
	if !e.checkLetter(c, x, num, want) {
		return false
	}
	if x.to == nil && x.from == e {
		e.w.violate("%v: receives its own datagram to the group", e)
	}
	text := s.v.sub(rxe.GRHBytes+numberLen, x.n-numberLen)
	if !same(x.from.h.mem, &x.src, e.h.mem, &text, x.n-numberLen) {
		e.w.violate("%v: %d bytes of a datagram are not what was sent", e, x.n)
	}
	if err := e.checkGRH(s, x); err != nil {
		e.w.violate("%v: %v", e, err)
	}
	got := s.v.sub(0, c.ByteLen)
	e.h.scrubAll(&got)
	return x.solicited
}

// checkGRH looks at the 40 bytes before a datagram.
func (e *end) checkGRH(s *rslot, x *letter) error {
	var grh [rxe.GRHBytes]byte
	for i := range grh {
		grh[i] = e.h.mem[s.v.at(uint32(i))]
	}
	dst := e.h.n.GID
	if x.to == nil {
		dst = e.w.ud.group[x.group]
	}
	src := x.from.h.n.GID
	if src.IsIPv4() {
		var none [20]byte
		if !bytes.Equal(grh[:20], none[:]) || !bytes.Equal(grh[32:36], src[12:]) || !bytes.Equal(grh[36:40], dst[12:]) {
			return fmt.Errorf("GRH area %x does not hold the IPv4 header from %v to %v", grh, src, dst)
		}
		return nil
	}
	if !bytes.Equal(grh[8:24], src[:]) || !bytes.Equal(grh[24:40], dst[:]) {
		return fmt.Errorf("GRH %x is not from %v to %v", grh, src, dst)
	}
	return nil
}
