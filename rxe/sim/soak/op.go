package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers the operations of a reliable connection: what they are and how they are posted.

// op is one operation: what it does and what must come of it.
type op struct {
	kind     Kind
	flags    rxe.SendFlags
	verified bool // WRITE: compared with its source
	kept     bool // WRITE: a READ behind it reads the data, which therefore stays
	reread   bool // READ: of what the WRITE before it wrote
	shared   bool // addition to the shared counter
	freeing  bool // has taken from tgt
	fetching bool // has taken from dst
	frozen   bool // the region has gone meanwhile
	whole    bool // and the data was complete then
	bad      bool // must fail
	n        uint32
	last     wire.PSN
	imm      uint32
	rkey     mr.Key
	life     uint32 // of the lease
	addr     uint64
	src, dst vec
	tgtEnd   uint64
	dstEnd   uint64
	add      uint64 // FETCH_ADD, ATOMIC WRITE: operand; CMP_SWP: what is compared
	swap     uint64
	orig     uint64 // what an atomic must return
	after    uint64 // what the word is then
	lease    *lease
	*extra
}

// extra is what few operations have.
type extra struct {
	want   rxe.WCStatus // it must fail with
	why    string
	list   uint32 // REG_MR, BIND_MW: what was staged
	bind   *bind
	badKey mr.Key // lkey of a work request that must fail for it
	lkey   mr.Key // of our own region, which src lies in, at laddr
	laddr  uint64
	snap   []byte // READ: what it must bring, when the source has changed since
}

// plain is what most operations have instead: it is only read.
var plain extra

// more makes room for what is to be set.
func (o *op) more() *extra {
	if o.extra == &plain {
		o.extra = new(extra)
	}
	return o.extra
}

// weights of the operations of a reliable connection.
var weights = [...]struct {
	kind   Kind
	weight int
}{{RCSend, 20}, {RCSendImm, 8}, {RCWrite, 24}, {RCWriteImm, 8}, {RCRead, 14}, {RCFetchAdd, 6},
	{RCCmpSwp, 5}, {RCAtomicWrite, 4}, {RCFlush, 3}}

// wheel is a wheel of fortune with the weights.
var wheel = func() (w []Kind) {
	for _, x := range weights {
		for range x.weight {
			w = append(w, x.kind)
		}
	}
	return w
}()

// poisonEvery is how many operations, on average, stand between two that must fail. A power of two.
const poisonEvery = 256

// size draws a message's length.
func (e *end) size() uint32 {
	r, limit := e.w.r, e.c.maxMsg
	u := r.Intn(100)
	switch {
	case u < e.c.small:
		return uint32(r.Intn(min(limit, 64) + 1))
	case u < 80:
		return uint32(r.Intn(min(limit, 640) + 1))
	case u < 98:
		return uint32(r.Intn(min(limit, 8*int(e.c.attr.PMTU)) + 1))
	}
	if u == 98 { // whole packets
		k := 1 + r.Intn(4)
		return min(uint32(k)*e.c.attr.PMTU, uint32(limit))
	}
	return uint32(r.Intn(limit + 1))
}

// source takes n bytes out of the host's pool, in one to four pieces.
func (h *host) source(n uint32) (v vec) {
	r := h.w.r
	u := r.Uint64()
	k := 1
	if u&3 == 0 {
		k += int(u >> 8 & 3)
	}
	for ; k > 1 && n > 0; k-- {
		m := uint32(r.Intn(int(n) + 1))
		v.add(h.pool.off+h.poolAt(m), m)
		n -= m
	}
	v.add(h.pool.off+h.poolAt(n), n)
	return v
}

// poolAt picks n bytes of a pool, mostly in the same part of it, for the sake of the cache.
func (h *host) poolAt(n uint32) uint32 { return uint32(h.w.r.Intn(min(poolSize-int(n), poolHot))) }

// next begins a new operation.
func (e *end) next(k Kind) *op {
	o := e.op(e.made)
	*o = op{kind: k, extra: &plain}
	if e.unsignaled >= int(e.depth)/3 || e.w.r.Uint64()&1 == 0 {
		o.flags = rxe.SendSignaled
	}
	return o
}

// add puts a finished operation into the queue.
func (e *end) add(o *op) {
	if o.flags&rxe.SendSignaled != 0 {
		e.unsignaled = 0
	} else {
		e.unsignaled++
	}
	u := e.w.r.Uint64()
	if u&15 == 0 {
		o.flags |= rxe.SendFence
	}
	if u>>8&3 == 0 {
		o.flags |= rxe.SendSolicited
	}
	if k := o.kind; (k <= RCWriteImm || k == UCWrite || k == UCWriteImm || k == RCAtomicWrite) && o.n <= e.c.inline && u>>16&1 == 0 &&
		o.badKey == 0 && o.lkey == 0 {
		o.flags |= rxe.SendInline
	}
	if o.kind.answered() {
		e.answered++
	}
	e.nextPSN = e.nextPSN.Add(packetsOf(o.kind, o.n, e.c.attr.PMTU))
	o.last = e.nextPSN.Add(wire.PSNMask)
	e.made++
}

// expects makes the message of o one that must arrive at the peer.
func (e *end) expects(o *op, says word) {
	e.peer.expect = append(e.peer.expect, message{kind: o.kind, n: o.n, imm: o.imm, src: o.src,
		solicited: o.flags&rxe.SendSolicited != 0, op: e.made - 1, lease: o.lease, says: says})
}

// invent makes one operation and adds it. It is false when there is no room.
func (e *end) invent() bool {
	switch e.c.typ {
	case rxe.UC:
		return e.inventUC()
	case rxe.UD:
		return e.inventUD()
	}
	r := e.w.r
	u := r.Uint64()
	if u&7 == 0 && e.inventKeyed() {
		return true
	}
	if u>>8&(poisonEvery-1) == 0 && e.inventPoison() {
		return true
	}
	k := wheel[r.Intn(len(wheel))]
	if k == RCWrite && u>>20&7 == 0 {
		return e.inventReread()
	}
	return e.inventPlain(k)
}

// inventPlain makes an operation of kind k on memory of its own.
func (e *end) inventPlain(k Kind) bool {
	if (k == RCFetchAdd || k == RCCmpSwp) && e.c.access&mr.RemoteAtomic == 0 {
		k = RCSend
	}
	o := e.next(k)
	switch k {
	case RCSend, RCSendImm:
		o.n = e.size()
		o.src = e.h.source(o.n)
		o.imm = uint32(e.w.r.Uint64())
		e.add(o)
		e.expects(o, saysNothing)
	case RCWrite, RCWriteImm:
		o.n = e.size()
		if !e.target(o, o.n) {
			return false
		}
		o.imm = uint32(e.w.r.Uint64())
		e.add(o)
		if k == RCWriteImm {
			e.expects(o, saysNothing)
		}
	case RCRead:
		o.n = e.size()
		if !e.landing(o, o.n) {
			return false
		}
		p := e.peer.h.pool
		at := e.peer.h.poolAt(o.n)
		o.src = one(p.off+at, o.n)
		o.addr, o.rkey = p.iova+uint64(at), p.key
		e.garbleEmpty(o)
		e.add(o)
	case RCFlush:
		o.n = e.size()
		o.addr, o.rkey = e.tgtReg.iova+uint64(e.w.r.Intn(int(e.tgt.size-o.n))), e.tgtReg.key
		if o.imm = uint32(1 + e.w.r.Intn(3)); e.w.r.Intn(2) == 0 {
			o.imm |= flushWhole
		} else {
			e.garbleEmpty(o)
		}
		e.add(o)
	default:
		return e.inventAtomic(o)
	}
	return true
}

// flushWhole in a FLUSH's imm asks for the whole region; the lower bits are its type.
const flushWhole = 1 << 8

// garbleEmpty gives an operation of no bytes any key and address: they are not looked at
// (IBTA C9-88).
func (e *end) garbleEmpty(o *op) {
	if o.n == 0 && e.w.r.Intn(2) == 0 {
		o.addr, o.rkey = e.w.r.Uint64(), mr.Key(e.w.r.Uint64())
	}
}

// target lends n bytes of the peer's memory to a WRITE.
func (e *end) target(o *op, n uint32) bool {
	gap := uint32(e.w.r.Intn(8))
	off, until, ok, clean := e.tgt.take(n + gap)
	if !ok {
		return false
	}
	if !clean {
		e.foul(e.peer.h, off, n+gap, "a WRITE's target")
		return false
	}
	off += gap
	o.src, o.dst = e.h.source(n), one(off, n)
	o.tgtEnd, o.freeing = until, true
	o.addr, o.rkey = e.tgtReg.iova+uint64(off-e.tgt.off), e.tgtReg.key
	e.garbleEmpty(o)
	return true
}

// landing lends memory of our own to what an operation brings back.
func (e *end) landing(o *op, n uint32) bool {
	off, until, ok, clean := e.dst.take(n + 24)
	if !ok {
		return false
	}
	if !clean {
		e.foul(e.h, off, n+24, "a READ's buffer")
		return false
	}
	o.dst = e.w.scatter(off, n, 24)
	o.dstEnd, o.fetching = until, true
	return true
}

func (e *end) foul(h *host, off, n uint32, what string) {
	at, got, want := h.dirt(off, n)
	e.w.violate("%v: byte %#x of host %d, in %s, is %#02x before use, want %#02x", e, at, h.n.ID(), what,
		got, want)
}

// inventReread makes a WRITE, and behind it a READ of the same bytes.
func (e *end) inventReread() bool {
	if e.made-e.done+2 > e.depth {
		return e.inventPlain(RCWrite)
	}
	n, head := e.size(), e.tgt.head
	w := e.next(RCWrite)
	w.n = n
	if !e.target(w, n) {
		return false
	}
	probe := op{extra: &plain}
	if !e.landing(&probe, n) {
		e.tgt.head = head // given back at once
		return e.inventPlain(RCSend)
	}
	w.kept, w.freeing = true, false
	e.add(w)
	o := e.next(RCRead)
	o.n, o.reread = n, true
	o.dst, o.dstEnd, o.fetching = probe.dst, probe.dstEnd, true
	o.src, o.addr, o.rkey = w.dst, w.addr, w.rkey
	o.tgtEnd, o.freeing = w.tgtEnd, true
	e.add(o)
	return true
}

// inventAtomic makes an atomic operation on our word at the peer, or on the counter of all.
func (e *end) inventAtomic(o *op) bool {
	r := e.w.r
	o.n = 8
	if o.kind != RCAtomicWrite && !e.landing(o, 8) {
		return false
	}
	p := e.peer.h
	at := e.cellReg
	o.orig = e.cellVal
	switch o.kind {
	case RCFetchAdd:
		o.add = r.Uint64()
		if r.Intn(3) == 0 {
			o.shared, o.add, at = true, 1, p.shared
		}
		o.after = o.orig + o.add
	case RCCmpSwp:
		o.add, o.swap, o.after = o.orig, r.Uint64(), o.orig
		if r.Intn(3) == 0 {
			o.add++ // not equal: nothing is stored
		} else {
			o.after = o.swap
		}
	case RCAtomicWrite:
		o.src = e.h.source(8)
		o.after = e.gathered(&o.src)
	}
	if !o.shared {
		e.cellVal = o.after
	}
	o.addr, o.rkey = at.iova, at.key
	e.add(o)
	return true
}

// gathered is the integer that 8 bytes of our memory make.
func (e *end) gathered(v *vec) uint64 {
	var b [8]byte
	for i := range b {
		b[i] = e.h.mem[v.at(uint32(i))]
	}
	return host64(b[:])
}

// post hands operation i to the QP.
func (e *end) post(i uint32) {
	o := e.op(i)
	wr := &e.w.wr
	*wr = rxe.SendWR{ID: uint64(i), Opcode: messageOps[o.kind], Flags: o.flags, RemoteAddr: o.addr,
		RKey: o.rkey, Imm: o.imm}
	switch o.kind {
	case RCFetchAdd:
		wr.CompareAdd = o.add
		wr.SGEs = e.h.sge(&o.dst)
	case RCCmpSwp:
		wr.CompareAdd, wr.Swap = o.add, o.swap
		wr.SGEs = e.h.sge(&o.dst)
	case RCRead:
		wr.SGEs = e.h.sge(&o.dst)
	case RCFlush:
		wr.Length, wr.FlushType, wr.FlushLevel = uint64(o.n), uint8(o.imm), uint8(o.imm>>8)
	case RegMR, LocalInv, BindMW:
		e.keyedWR(wr, o)
	case UCSend, UCSendImm, UDSend, UDSendImm:
		e.unreliableWR(wr, o, i)
	default:
		if o.lkey != 0 {
			wr.SGEs = append(e.w.sges[:0], rxe.SGE{Addr: o.laddr, Length: o.n, LKey: o.lkey})
		} else if o.flags&rxe.SendInline != 0 {
			wr.Inline = e.inlineData(&o.src)
		} else {
			wr.SGEs = e.h.sge(&o.src)
		}
	}
	if o.badKey != 0 {
		wr.SGEs[len(wr.SGEs)-1].LKey = o.badKey
	}
	if err := e.q.PostSend(wr); err != nil {
		e.w.violate("%v: posting a %v of %d bytes: %v", e, o.kind, o.n, err)
	}
}

func (e *end) inlineData(v *vec) []byte {
	b := e.w.inline[:0]
	for _, p := range v.pieces() {
		b = append(b, e.h.mem[p.off:p.off+p.n]...)
	}
	return b
}
