package keyrules

import (
	"fmt"

	"github.com/roxie-rdma/roxie/verbs"
)

func windowRules() []rule {
	const w, r = verbs.WRRDMAWrite, verbs.WRRDMARead
	var out []rule
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		for _, c := range []struct {
			what string
			op   verbs.WROpcode
			off  int64
			n    int
			ok   bool
		}{
			{"inside", w, 0, 4096, true}, {"inside", r, 0, 4096, true},
			{"64 bytes below, inside the region", w, -8192, 64, false},
			{"64 bytes above, inside the region", w, 20000, 64, false},
			{"64 bytes above, inside the region", r, 20000, 64, false},
			{"4096 bytes across its end", w, 4000, 4096, false},
			{"the whole region through it", r, -8192, 1 << 16, false},
			{"64 bytes outside the region", w, 1 << 16, 64, false},
		} {
			verdict := "refused"
			if c.ok {
				verdict = "works"
			}
			out = append(out, rule{fmt.Sprintf("W5 type %d", typ),
				fmt.Sprintf("%s %s: %s", opName(c.op), c.what, verdict), func(k *kit) {
					k.window(typ, c.op, c.off, c.n, c.ok)
				}})
		}
	}
	return append(out, otherWindowRules()...)
}

const (
	winAt  = 8192
	winLen = 4096
)

// mw allocates a window of a domain.
func (k *kit) mw(d domain, typ verbs.MWType) window {
	w := k.owner.window(d, typ)
	k.undo = append(k.undo, w.close)
	return w
}

// bind binds a window to the user memory of a domain.
func bind(q ownerQP, w window, to domain, off, n uint64, access verbs.Access) verbs.WCStatus {
	q.bind(binding{w, to, off, n, access})
	return done(q)
}

// window tries one access through a window over bytes 8192 to 12287 of 64 KiB.
func (k *kit) window(typ verbs.MWType, op verbs.WROpcode, off int64, n int, ok bool) {
	c, w := k.pair(), k.mw(home, typ)
	if bound := bind(c.o, w, home, winAt, winLen, rw); bound != verbs.WCSuccess {
		k.say("bind: %s", text(bound))
		return
	}
	mem, addr, _ := k.owner.user(home)
	mem.fill(0xaa)
	at := uint64(int64(addr+winAt) + off)
	st := c.rdma(op, n, at, w.key())
	moved := changed(mem, 0xaa)
	if op == verbs.WRRDMARead {
		moved = k.read(n, 0xaa)
	}
	k.say("%s, %d bytes", text(st), moved)
	if ok {
		k.pass = st == verbs.WCSuccess && moved == n
	} else {
		k.pass = st == verbs.WCRemAccessErr && moved == 0
	}
}

func otherWindowRules() []rule {
	const write, bindErr = verbs.WRRDMAWrite, verbs.WCMWBindErr
	type2 := func(k *kit, c pair, access verbs.Access) window {
		win := k.mw(home, verbs.MWType2)
		if st := bind(c.o, win, home, winAt, winLen, access); st != verbs.WCSuccess {
			k.say("bind: %s", text(st))
		}
		return win
	}
	return []rule{
		{"W1", "type 1 is bound anew, then unbound: each time the old key is refused", func(k *kit) {
			k.rebind(write)
		}},
		{"W2", "type 2 is bound from free only: MW_BIND_ERR", func(k *kit) {
			c := k.pair()
			st := bind(c.o, type2(k, c, rw), home, winAt+winLen, winLen, rw)
			k.refusal(c.o, st, bindErr)
		}},
		{"W3", "type 2 through another QP: refused", func(k *kit) {
			win := type2(k, k.pair(), rw)
			k.reach(k.pair(), win.key(), k.window0(), false)
		}},
		{"W4 type 1", "LOCAL_INV of a type 1 window: error", func(k *kit) {
			c, win := k.pair(), k.mw(home, verbs.MWType1)
			k.refusal(c.o, inv(c.o, win.key()), verbs.WCLocQPOpErr)
		}},
		{"W4 region", "LOCAL_INV of a user region: error", func(k *kit) {
			c := k.pair()
			_, _, key := k.owner.user(home)
			k.refusal(c.o, inv(c.o, key), verbs.WCLocQPOpErr)
		}},
		{"W4 type 2", "LOCAL_INV of a type 2 window: success, the key is dead", func(k *kit) {
			c := k.pair()
			win := type2(k, c, rw)
			st := inv(c.o, win.key())
			k.say("%s", text(st))
			k.reach(c, win.key(), k.window0(), false)
			k.pass = k.pass && st == verbs.WCSuccess
		}},
		{"W6", "read-only window: READ works, WRITE is refused", func(k *kit) {
			c := k.pair()
			win := type2(k, c, verbs.RemoteRead)
			st := c.rdma(verbs.WRRDMARead, 64, k.window0(), win.key())
			k.say("READ %s", text(st))
			k.reach(c, win.key(), k.window0(), false)
			k.pass = k.pass && st == verbs.WCSuccess
		}},
		{"W7 region", "bind to a region of another domain: MW_BIND_ERR", func(k *kit) {
			k.badBind(home, abroad, winLen)
		}},
		{"W7 window", "bind of a window of another domain: MW_BIND_ERR", func(k *kit) {
			k.badBind(abroad, home, winLen)
		}},
		{"W8", "bind with address + length = 2^64 + 64: MW_BIND_ERR", func(k *kit) {
			k.badBind(home, home, -k.window0()+64)
		}},
		{"W9", "zero-based window, WRITE of 64 at 16: at the window's byte 16", func(k *kit) {
			c := k.pair()
			win := type2(k, c, rw|verbs.ZeroBased)
			k.reach(c, win.key(), 16, true)
			mem, _, _ := k.owner.user(home)
			k.pass = k.pass && mem.at(winAt+16) == 0x5a && mem.at(winAt+79) == 0x5a
			if k.pass {
				k.say("in the right place")
			}
		}},
		{"WX local", "LOCAL_INV through another QP, same domain: error, window untouched",
			func(k *kit) { k.foreignInv(home, false) }},
		{"WX local PD", "LOCAL_INV through another QP, other domain: error, window untouched",
			func(k *kit) { k.foreignInv(abroad, false) }},
		{"WX remote", "SEND_WITH_INV through another QP, same domain: errors, window untouched",
			func(k *kit) { k.foreignInv(home, true) }},
		{"WX remote PD", "SEND_WITH_INV through another QP, other domain: errors, window untouched",
			func(k *kit) { k.foreignInv(abroad, true) }},
		{"PD", "user region of another domain: refused", func(k *kit) {
			_, addr, key := k.owner.user(abroad)
			k.reach(k.pair(), key, addr, false)
		}},
	}
}

// window0 is the address of windows' first byte.
func (k *kit) window0() uint64 {
	_, addr, _ := k.owner.user(home)
	return addr + winAt
}

// reach writes 64 bytes to the user memory.
func (k *kit) reach(c pair, key verbs.Key, va uint64, ok bool) {
	mem, _, _ := k.owner.user(home)
	mem.fill(0xaa)
	st := c.rdma(verbs.WRRDMAWrite, 64, va, key)
	n := changed(mem, 0xaa)
	k.say("WRITE %s, %d bytes", text(st), n)
	if ok {
		k.pass = st == verbs.WCSuccess && n == 64
	} else {
		k.pass = st == verbs.WCRemAccessErr && n == 0
	}
}

// badBind is a bind of a type 2 window that must fail.
func (k *kit) badBind(of, to domain, n uint64) {
	c := k.pair()
	st := bind(c.o, k.mw(of, verbs.MWType2), to, winAt, n, rw)
	k.refusal(c.o, st, verbs.WCMWBindErr)
}

// rebind binds a type 1 window, binds it to other bytes, and unbinds it by length 0.
func (k *kit) rebind(op verbs.WROpcode) {
	c, w := k.pair(), k.mw(home, verbs.MWType1)
	var keys []verbs.Key
	ok := true
	for i, n := range []uint64{winLen, winLen, 0} {
		st := bind(c.o, w, home, winAt+uint64(i)*winLen, n, rw)
		ok = ok && st == verbs.WCSuccess
		keys = append(keys, w.key())
		if n > 0 {
			at := k.window0() + uint64(i)*winLen
			ok = ok && k.try(op, 64, at, w.key()) == verbs.WCSuccess
		}
	}
	old := 0
	mem, _, _ := k.owner.user(home)
	mem.fill(0xaa)
	for i, key := range keys {
		at := k.window0() + uint64(i)*winLen
		if k.try(op, 64, at, key) == verbs.WCRemAccessErr && changed(mem, 0xaa) == 0 {
			old++
		}
	}
	k.say("%d of %d old keys refused", old, len(keys))
	k.pass = ok && old == len(keys)
}

// foreignInv lets somebody invalidate a window through a QP that it is not bound to.
func (k *kit) foreignInv(of domain, remote bool) {
	c, other := k.pair(), k.pairIn(of)
	win := k.mw(home, verbs.MWType2)
	if st := bind(c.o, win, home, winAt, winLen, rw); st != verbs.WCSuccess {
		k.say("bind: %s", text(st))
		return
	}
	if remote {
		k.badInv(k.sendInv(other, win.key()))
	} else {
		st := inv(other.o, win.key())
		k.say("%s", text(st))
		k.refused = st != verbs.WCSuccess && st != noCompletion
		k.pass = st == verbs.WCLocQPOpErr
	}
	told, refused := k.pass, k.refused
	k.reach(c, win.key(), k.window0(), true)
	k.pass, k.refused = k.pass && told, k.pass && refused
}
