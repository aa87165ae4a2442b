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
func (k *kit) mw(pd *verbs.PD, typ verbs.MWType) *verbs.MW {
	w, err := pd.AllocMW(typ)
	k.must(err)
	if err == nil {
		k.undo = append(k.undo, w.Dealloc)
	}
	return w
}

// bind binds a window to the region at an offset of the window's memory.
func (k *kit) bind(e *end, w *verbs.MW, m *verbs.MR, off, n uint64, access verbs.Access) verbs.WCStatus {
	if k.err != nil {
		return noCompletion
	}
	return e.status(verbs.SendWR{Opcode: verbs.WRBindMW, MW: w, MR: m, Key: verbs.IncRKey(w.RKey()),
		Addr: m.Addr() + off, Length: n, Access: access})
}

// window tries one access through a window over bytes 8192 to 12287 of 64 KiB.
func (k *kit) window(typ verbs.MWType, op verbs.WROpcode, off int64, n int, ok bool) {
	c, w := k.pair(), k.mw(k.owner.pd, typ)
	if bound := k.bind(c.o, w, k.owner.window, winAt, winLen, rw); bound != verbs.WCSuccess {
		k.say("bind: %s", text(bound))
		return
	}
	mem := k.owner.window.Bytes()
	fill(mem, 0xaa)
	at := uint64(int64(k.owner.window.Addr()+winAt) + off)
	st := c.rdma(op, n, at, w.RKey())
	moved := changed(mem, 0xaa)
	if op == verbs.WRRDMARead {
		moved = count(k.peer.mem.Bytes()[:n], 0xaa)
	}
	k.say("%s, %d bytes", text(st), moved)
	if ok {
		k.pass = st == verbs.WCSuccess && moved == n
	} else {
		k.pass = st == verbs.WCRemAccessErr && moved == 0
	}
}

func otherWindowRules() []rule {
	const w, bindErr = verbs.WRRDMAWrite, verbs.WCMWBindErr
	type2 := func(k *kit, c pair, access verbs.Access) *verbs.MW {
		win := k.mw(k.owner.pd, verbs.MWType2)
		if st := k.bind(c.o, win, k.owner.window, winAt, winLen, access); st != verbs.WCSuccess {
			k.say("bind: %s", text(st))
		}
		return win
	}
	at := func(k *kit) uint64 { return k.owner.window.Addr() + winAt }
	return []rule{
		{"W2", "type 2 is bound from free only: MW_BIND_ERR", func(k *kit) {
			c := k.pair()
			st := k.bind(c.o, type2(k, c, rw), k.owner.window, winAt+winLen, winLen, rw)
			k.say("%s, QP %v", text(st), k.state(c))
			k.pass = st == bindErr && k.state(c) == verbs.StateErr
		}},
		{"W3", "type 2 through another QP: refused", func(k *kit) {
			win := type2(k, k.pair(), rw)
			k.reach(k.pair(), w, win.RKey(), at(k), 64, false)
		}},
		{"W4 type 1", "LOCAL_INV of a type 1 window: error", func(k *kit) {
			c, win := k.pair(), k.mw(k.owner.pd, verbs.MWType1)
			st := c.o.status(inv(win.RKey()))
			k.say("%s, QP %v", text(st), k.state(c))
			k.pass = st == verbs.WCLocQPOpErr
		}},
		{"W4 region", "LOCAL_INV of a user region: error", func(k *kit) {
			c := k.pair()
			st := c.o.status(inv(k.owner.window.RKey()))
			k.say("%s, QP %v", text(st), k.state(c))
			k.pass = st == verbs.WCLocQPOpErr
		}},
		{"W4 type 2", "LOCAL_INV of a type 2 window: success, the key is dead", func(k *kit) {
			c := k.pair()
			win := type2(k, c, rw)
			st := c.o.status(inv(win.RKey()))
			k.say("%s", text(st))
			if k.reach(c, w, win.RKey(), at(k), 64, false); st != verbs.WCSuccess {
				k.pass = false
			}
		}},
		{"W6", "read-only window: READ works, WRITE is refused", func(k *kit) {
			c := k.pair()
			win := type2(k, c, verbs.RemoteRead)
			st := c.rdma(verbs.WRRDMARead, 64, at(k), win.RKey())
			k.say("READ %s", text(st))
			if k.reach(c, w, win.RKey(), at(k), 64, false); st != verbs.WCSuccess {
				k.pass = false
			}
		}},
		{"W7 region", "bind to a region of another domain: MW_BIND_ERR", func(k *kit) {
			k.badBind(k.owner.pd, k.owner.other, winAt, winLen)
		}},
		{"W7 window", "bind of a window of another domain: MW_BIND_ERR", func(k *kit) {
			k.badBind(k.owner.pd2, k.owner.window, winAt, winLen)
		}},
		{"W8", "bind with address + length = 2^64 + 64: MW_BIND_ERR", func(k *kit) {
			k.badBind(k.owner.pd, k.owner.window, winAt, -(k.owner.window.Addr()+winAt)+64)
		}},
		{"W9", "zero-based window, WRITE of 64 at 16: at the window's byte 16", func(k *kit) {
			c := k.pair()
			win := type2(k, c, rw|verbs.ZeroBased)
			k.reach(c, w, win.RKey(), 16, 64, true)
			mem := k.owner.window.Bytes()
			if k.pass = k.pass && mem[winAt+16] == 0x5a && mem[winAt+79] == 0x5a; k.pass {
				k.say("in the right place")
			}
		}},
		{"WX local", "LOCAL_INV through another QP, same domain: error, window untouched",
			func(k *kit) { k.foreignInv(k.owner.pd, false) }},
		{"WX local PD", "LOCAL_INV through another QP, other domain: error, window untouched",
			func(k *kit) { k.foreignInv(k.owner.pd2, false) }},
		{"WX remote", "SEND_WITH_INV through another QP, same domain: errors, window untouched",
			func(k *kit) { k.foreignInv(k.owner.pd, true) }},
		{"WX remote PD", "SEND_WITH_INV through another QP, other domain: errors, window untouched",
			func(k *kit) { k.foreignInv(k.owner.pd2, true) }},
		{"PD", "user region of another domain: refused", func(k *kit) {
			k.reach(k.pair(), w, k.owner.other.RKey(), k.owner.other.Addr(), 64, false)
		}},
	}
}

// state is the state of the owner's QP of a connection.
func (k *kit) state(c pair) verbs.QPState {
	if k.err != nil {
		return 0
	}
	return c.o.qp.State()
}

// reach accesses the memory of windows.
func (k *kit) reach(c pair, op verbs.WROpcode, key verbs.Key, va uint64, n int, ok bool) {
	if k.err != nil {
		return
	}
	mem := k.owner.window.Bytes()
	fill(mem, 0xaa)
	st := c.rdma(op, n, va, key)
	moved := changed(mem, 0xaa)
	k.say("%s %s, %d bytes", opName(op), text(st), moved)
	if ok {
		k.pass = st == verbs.WCSuccess && moved == n
	} else {
		k.pass = st == verbs.WCRemAccessErr && moved == 0
	}
}

// badBind is a bind of a type 2 window that must fail.
func (k *kit) badBind(of *verbs.PD, m *verbs.MR, off, n uint64) {
	c := k.pair()
	st := k.bind(c.o, k.mw(of, verbs.MWType2), m, off, n, rw)
	k.say("%s, QP %v", text(st), k.state(c))
	k.pass = st == verbs.WCMWBindErr && k.state(c) == verbs.StateErr
}

// foreignInv lets somebody invalidate a window through a QP that it is not bound to.
func (k *kit) foreignInv(of *verbs.PD, remote bool) {
	c, other := k.pair(), k.pairIn(of)
	win := k.mw(k.owner.pd, verbs.MWType2)
	if k.bind(c.o, win, k.owner.window, winAt, winLen, rw) != verbs.WCSuccess {
		return
	}
	var ok bool
	if remote {
		sent, got := k.sendInv(other, win.RKey())
		ok = sent == verbs.WCRemAccessErr && got == verbs.WCRemInvReqErr
	} else {
		st := other.o.status(inv(win.RKey()))
		k.say("%s", text(st))
		ok = st == verbs.WCLocQPOpErr
	}
	k.reach(c, verbs.WRRDMAWrite, win.RKey(), k.owner.window.Addr()+winAt, 64, true)
	k.pass = k.pass && ok
}
