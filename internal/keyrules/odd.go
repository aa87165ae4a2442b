package keyrules

import (
	"github.com/roxie-rdma/roxie/verbs"
)

// world is a registered fast region with a QP that registered it.
type world struct {
	k    *kit
	own  pair // the owner's work requests
	m    region
	mem  memory
	key  verbs.Key
	regs verbs.WCStatus
}

// world makes one: the region in a domain, the QP in the same or the other.
func (k *kit) world(of, qp domain, register bool) *world {
	w := &world{k: k, own: k.pairIn(qp), m: k.fast(of, 4), mem: k.pages(4, 0xaa)}
	w.m.mapTo(w.mem, fixIOVA)
	w.key = w.m.key()
	if register {
		w.regs = reg(w.own.o, w.m)
	}
	return w
}

// usual is a world in one domain, registered.
func (k *kit) usual() *world { return k.world(home, home, true) }

// alive tells whether a WRITE through the key works.
func (w *world) alive() bool {
	w.mem.fill(0xaa)
	st := w.k.try(verbs.WRRDMAWrite, 4096, fixIOVA, w.key)
	return st == verbs.WCSuccess && w.mem.count(0x5a) == 4096
}

func (w *world) life() (alive bool, text string) {
	if w.alive() {
		return true, "key works"
	}
	return false, "key is dead"
}

// refusal judges a local operation that must fail with its own status and end its QP.
func (k *kit) refusal(q ownerQP, st, want verbs.WCStatus) {
	state := q.state()
	k.say("%s, QP %v", text(st), state)
	k.refused = st != verbs.WCSuccess && st != noCompletion && state == verbs.StateErr
	k.pass = k.refused && st == want
}

// refuse runs a LOCAL_INV or REG_MR that must fail with its own status, end its QP and change
// nothing.
func (k *kit) refuse(w *world, q ownerQP, st verbs.WCStatus) {
	k.refusal(q, st, verbs.WCLocQPOpErr)
	alive, life := w.life()
	k.say("%s", life)
	k.pass, k.refused = k.pass && alive, k.refused && alive
}

// nothing says how an access of n bytes ended that must be refused.
func (k *kit) nothing(m memory, st verbs.WCStatus) {
	n := changed(m, 0xaa)
	k.say("%s, %d bytes", text(st), n)
	k.pass = st == verbs.WCRemAccessErr && n == 0
}

func oddRules() []rule {
	const write, read = verbs.WRRDMAWrite, verbs.WRRDMARead
	return []rule{
		{"X1", "LOCAL_INV with another variant: error, region untouched", func(k *kit) {
			w := k.usual()
			k.refuse(w, w.own.o, inv(w.own.o, w.key^1))
		}},
		{"X2", "LOCAL_INV of a free region by its key: no harm", func(k *kit) {
			w := k.usual()
			a, b := inv(w.own.o, w.key), inv(w.own.o, w.key)
			k.say("%s, then %s, QP %v", text(a), text(b), w.own.o.state())
			k.pass = a == verbs.WCSuccess && b == verbs.WCSuccess
		}},
		{"X3", "no bytes with a wrong key: accepted (IBTA C9-88)", func(k *kit) {
			p := k.pair()
			a := p.rdma(write, 0, 0xdeadbeef000, 0xbad00bad)
			b := p.rdma(read, 0, 0xdeadbeef000, 0xbad00bad)
			k.say("WRITE %s, READ %s", text(a), text(b))
			k.pass = a == verbs.WCSuccess && b == verbs.WCSuccess
		}},
		{"X3b", "64 bytes with key 0: refused", func(k *kit) {
			w := k.usual()
			k.nothing(w.mem, k.try(write, 64, fixIOVA, 0))
		}},
		{"X4", "region of another domain: refused", func(k *kit) {
			w := k.world(abroad, abroad, true)
			k.nothing(w.mem, k.try(write, 4096, fixIOVA, w.key))
			k.pass = k.pass && w.regs == verbs.WCSuccess
		}},
		{"X5", "REG_MR by a QP of another domain: error, nothing registered", func(k *kit) {
			w := k.world(abroad, home, true)
			k.refusal(w.own.o, w.regs, verbs.WCLocQPOpErr)
		}},
		{"X6", "LOCAL_INV by a QP of another domain: error, region untouched", func(k *kit) {
			w, other := k.usual(), k.pairIn(abroad).o
			k.refuse(w, other, inv(other, w.key))
		}},
		{"X7", "REG_MR of a registered region: error, first key untouched", func(k *kit) {
			w := k.usual()
			w.m.bump()
			k.refuse(w, w.own.o, reg(w.own.o, w.m))
		}},
		{"X8", "LOCAL_INV of key 0: error", func(k *kit) {
			w := k.usual()
			k.refuse(w, w.own.o, inv(w.own.o, 0))
		}},
		{"X8b", "LOCAL_INV of a region that no REG_MR has registered: error", func(k *kit) {
			w := k.usual()
			_, _, key := k.owner.user(home)
			k.refuse(w, w.own.o, inv(w.own.o, key))
		}},
		{"X9", "local rights only: peer refused, LOCAL_INV by its key succeeds", func(k *kit) {
			w := k.world(home, home, false)
			w.own.o.register(w.m, verbs.LocalWrite)
			a := done(w.own.o)
			b := k.try(write, 64, fixIOVA, w.key)
			c := inv(w.own.o, w.key)
			k.say("REG_MR %s; WRITE %s; LOCAL_INV %s", text(a), text(b), text(c))
			k.pass = a == verbs.WCSuccess && b == verbs.WCRemAccessErr && c == verbs.WCSuccess
		}},
		{"X10a", "SEND_WITH_INV: both succeed, the key is dead", func(k *kit) {
			w := k.usual()
			sent, got := k.sendInv(k.pair(), w.key)
			alive, life := w.life()
			k.say("%s", life)
			k.pass = sent == verbs.WCSuccess && got == verbs.WCSuccess && !alive
		}},
		{"X10b", "SEND_WITH_INV with another variant: errors, region untouched", func(k *kit) {
			w := k.usual()
			k.badSendInv(w, k.pair(), w.key^1)
		}},
		{"X10c", "SEND_WITH_INV through a QP of another domain: errors, region untouched", func(k *kit) {
			w := k.usual()
			k.badSendInv(w, k.pairIn(abroad), w.key)
		}},
		{"X11.write", "4096 bytes at 2^64-100: refused", func(k *kit) { k.wrap(write) }},
		{"X11.read", "4096 bytes at 2^64-100: refused", func(k *kit) { k.wrap(read) }},
	}
}

func (k *kit) wrap(op verbs.WROpcode) {
	w := k.usual()
	k.nothing(w.mem, k.try(op, 4096, 1<<64-100, w.key))
	k.pass = k.pass && k.read(4096, 0xaa) == 0
}

// sendInv lets the peer send 64 bytes and invalidate a key.
func (k *kit) sendInv(c pair, key verbs.Key) (sent, got verbs.WCStatus) {
	c.o.recv()
	c.post(verbs.SendWR{Opcode: verbs.WRSendWithInv, InvKey: key,
		SGList: []verbs.SGE{k.peer.mem.SGE(0, 64)}})
	sent = c.peerDone()
	wc := c.o.poll(patience)
	flag := ""
	if wc.invalidated {
		flag = " with invalidate"
	}
	k.say("sender %s, receiver %s%s", text(sent), text(wc.status), flag)
	return sent, wc.status
}

// badInv judges a SEND_WITH_INV that must be refused on both sides.
func (k *kit) badInv(sent, got verbs.WCStatus) {
	k.refused = got == verbs.WCRemInvReqErr
	k.pass = k.refused && sent == verbs.WCRemAccessErr
}

func (k *kit) badSendInv(w *world, c pair, key verbs.Key) {
	k.badInv(k.sendInv(c, key))
	alive, life := w.life()
	k.say("receiver's QP %v; %s", c.o.state(), life)
	k.pass, k.refused = k.pass && alive, k.refused && alive
}
