package keyrules

import (
	"github.com/roxie-rdma/roxie/verbs"
)

// world is a registered fast region with a QP that registered it.
type world struct {
	k    *kit
	own  pair // the owner's work requests
	m    *verbs.MR
	mem  []byte
	key  verbs.Key
	regs verbs.WCStatus
}

// world makes one: the region in a domain, the QP in the same or the other.
func (k *kit) world(region, qp *verbs.PD, register bool) *world {
	w := &world{k: k, own: k.pairIn(qp), m: k.fast(region, 4), regs: verbs.WCSuccess}
	mem, list := pages(4, 0xaa)
	w.mem = mem
	if k.err != nil {
		return w
	}
	k.must(w.m.MapSG(list, fixIOVA))
	w.key = w.m.RKey()
	if register {
		w.regs = w.own.o.status(reg(w.m))
	}
	return w
}

// usual is a world in one domain, registered.
func (k *kit) usual() *world { return k.world(k.owner.pd, k.owner.pd, true) }

// alive tells whether a WRITE through the key works.
func (w *world) alive() bool {
	if w.k.err != nil {
		return false
	}
	fill(w.mem, 0xaa)
	st := w.k.try(verbs.WRRDMAWrite, 4096, fixIOVA, w.key)
	return st == verbs.WCSuccess && count(w.mem, 0x5a) == 4096
}

func (w *world) life() string {
	if w.alive() {
		return "key works"
	}
	return "key is dead"
}

// refuse runs a local operation that must fail with its own status, end its QP and change nothing.
func (k *kit) refuse(w *world, e *end, wr verbs.SendWR, want verbs.WCStatus) {
	if k.err != nil {
		return
	}
	st := e.status(wr)
	k.say("%s, QP %v; %s", text(st), e.qp.State(), w.life())
	k.pass = st == want && e.qp.State() == verbs.StateErr && w.alive()
}

func oddRules() []rule {
	const op = verbs.WCLocQPOpErr
	return []rule{
		{"X1", "LOCAL_INV with another variant: error, region untouched", func(k *kit) {
			w := k.usual()
			k.refuse(w, w.own.o, inv(w.key^1), op)
		}},
		{"X2", "LOCAL_INV of a free region by its key: no harm", func(k *kit) {
			w := k.usual()
			a, b := w.own.o.status(inv(w.key)), w.own.o.status(inv(w.key))
			k.say("%s, then %s, QP %v", text(a), text(b), w.own.o.qp.State())
			k.pass = a == verbs.WCSuccess && b == verbs.WCSuccess
		}},
		{"X3", "no bytes with a wrong key: accepted (IBTA C9-88)", func(k *kit) {
			p := k.pair()
			a := p.rdma(verbs.WRRDMAWrite, 0, 0xdeadbeef000, 0xbad00bad)
			b := p.rdma(verbs.WRRDMARead, 0, 0xdeadbeef000, 0xbad00bad)
			k.say("WRITE %s, READ %s", text(a), text(b))
			k.pass = a == verbs.WCSuccess && b == verbs.WCSuccess
		}},
		{"X3b", "64 bytes with key 0: refused", func(k *kit) {
			w := k.usual()
			st := k.try(verbs.WRRDMAWrite, 64, fixIOVA, 0)
			k.say("%s, %d bytes", text(st), changed(w.mem, 0xaa))
			k.pass = st == verbs.WCRemAccessErr && changed(w.mem, 0xaa) == 0
		}},
		{"X4", "region of another domain: refused", func(k *kit) {
			w := k.world(k.owner.pd2, k.owner.pd2, true)
			st := k.try(verbs.WRRDMAWrite, 4096, fixIOVA, w.key)
			k.say("%s, %d bytes", text(st), changed(w.mem, 0xaa))
			k.pass = w.regs == verbs.WCSuccess && st == verbs.WCRemAccessErr && changed(w.mem, 0xaa) == 0
		}},
		{"X5", "REG_MR by a QP of another domain: error, nothing registered", func(k *kit) {
			w := k.world(k.owner.pd2, k.owner.pd, true)
			k.say("%s, QP %v", text(w.regs), w.own.o.qp.State())
			k.pass = w.regs == op && w.own.o.qp.State() == verbs.StateErr
		}},
		{"X6", "LOCAL_INV by a QP of another domain: error, region untouched", func(k *kit) {
			w := k.usual()
			k.refuse(w, k.pairIn(k.owner.pd2).o, inv(w.key), op)
		}},
		{"X7", "REG_MR of a registered region: error, first key untouched", func(k *kit) {
			w := k.usual()
			if bump(w.m); k.err == nil {
				k.refuse(w, w.own.o, reg(w.m), op)
			}
		}},
		{"X8", "LOCAL_INV of key 0: error", func(k *kit) {
			w := k.usual()
			k.refuse(w, w.own.o, inv(0), op)
		}},
		{"X8b", "LOCAL_INV of a region that no REG_MR has registered: error", func(k *kit) {
			w := k.usual()
			k.refuse(w, w.own.o, inv(k.owner.mem.RKey()), op)
		}},
		{"X9", "local rights only: peer refused, LOCAL_INV by its key succeeds", func(k *kit) {
			w := k.world(k.owner.pd, k.owner.pd, false)
			a := w.own.o.status(verbs.SendWR{Opcode: verbs.WRRegMR, MR: w.m, Access: verbs.LocalWrite})
			b := k.try(verbs.WRRDMAWrite, 64, fixIOVA, w.key)
			c := w.own.o.status(inv(w.m.LKey()))
			k.say("REG_MR %s; WRITE %s; LOCAL_INV %s", text(a), text(b), text(c))
			k.pass = a == verbs.WCSuccess && b == verbs.WCRemAccessErr && c == verbs.WCSuccess
		}},
		{"X10a", "SEND_WITH_INV: both succeed, the key is dead", func(k *kit) {
			w := k.usual()
			sent, got := k.sendInv(k.pair(), w.key)
			k.say("%s", w.life())
			k.pass = sent == verbs.WCSuccess && got == verbs.WCSuccess && !w.alive()
		}},
		{"X10b", "SEND_WITH_INV with another variant: errors, region untouched", func(k *kit) {
			w := k.usual()
			k.badSendInv(w, k.pair(), w.key^1)
		}},
		{"X10c", "SEND_WITH_INV through a QP of another domain: errors, region untouched", func(k *kit) {
			w := k.usual()
			k.badSendInv(w, k.pairIn(k.owner.pd2), w.key)
		}},
		{"X11.write", "4096 bytes at 2^64-100: refused", func(k *kit) { k.wrap(verbs.WRRDMAWrite) }},
		{"X11.read", "4096 bytes at 2^64-100: refused", func(k *kit) { k.wrap(verbs.WRRDMARead) }},
	}
}

func (k *kit) wrap(op verbs.WROpcode) {
	w := k.usual()
	st := k.try(op, 4096, 1<<64-100, w.key)
	k.say("%s, %d bytes", text(st), changed(w.mem, 0xaa))
	k.pass = st == verbs.WCRemAccessErr && changed(w.mem, 0xaa) == 0 &&
		count(k.peer.mem.Bytes()[:4096], 0xaa) == 0
}

// sendInv lets the peer send 64 bytes and invalidate a key.
func (k *kit) sendInv(c pair, key verbs.Key) (sent, got verbs.WCStatus) {
	if k.err != nil {
		return noCompletion, noCompletion
	}
	into := k.owner.mem // of the QP's domain
	if c.o.pd == k.owner.pd2 {
		into = k.owner.other
	}
	k.must(c.o.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{into.SGE(1<<15, 64)}}))
	sent = c.p.status(verbs.SendWR{Opcode: verbs.WRSendWithInv, InvKey: key,
		SGList: []verbs.SGE{k.peer.mem.SGE(0, 64)}})
	wc := c.o.done()
	flag := ""
	if wc.Flags&verbs.WCWithInv != 0 {
		flag = " with invalidate"
	}
	k.say("sender %s, receiver %s%s", text(sent), text(wc.Status), flag)
	return sent, wc.Status
}

func (k *kit) badSendInv(w *world, c pair, key verbs.Key) {
	sent, got := k.sendInv(c, key)
	if k.err != nil {
		return
	}
	k.say("receiver's QP %v; %s", c.o.qp.State(), w.life())
	k.pass = sent == verbs.WCRemAccessErr && got == verbs.WCRemInvReqErr && w.alive()
}
