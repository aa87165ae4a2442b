package keyrules

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// rule is one entry of the table.
type rule struct {
	id, rule string
	run      func(*kit)
}

var rules = concat(heldRules(), patternRules(), streamRules(), oddRules(), windowRules())

func concat(lists ...[]rule) (out []rule) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// held is F4 and F5: a LOCAL_INV waits in the owner's queue, the application has prepared the next
// registration, and the peer uses the old key.
type held struct {
	op      verbs.WROpcode
	pagesB  int    // of the next list; the registered one has 4
	iova    uint64 // of both lists; 0: their addresses
	atNew   bool   // the access is at the next list's address
	off, n  int
	refused bool // by the rules; else it must reach the registered list
	noMap   bool // the next list is not mapped: a control
}

func heldRules() (out []rule) {
	const w, r = verbs.WRRDMAWrite, verbs.WRRDMARead
	for _, c := range []struct {
		id, rule string
		held
	}{
		{"F4.control", "old key, no new list: reaches A", held{op: w, pagesB: 4, n: 16384, noMap: true}},
		{"F4.write", "old key reaches A, never B", held{op: w, pagesB: 4, iova: fixIOVA, n: 16384}},
		{"F4.read", "old key reads A, never B", held{op: r, pagesB: 4, iova: fixIOVA, n: 16384}},
		{"F4.write1", "old key reaches A, never B",
			held{op: w, pagesB: 4, iova: fixIOVA, off: 100, n: 64}},
		{"F4.write.natural", "old key at A's address reaches A", held{op: w, pagesB: 4, n: 16384}},
		{"F4.read.natural", "old key at A's address reads A", held{op: r, pagesB: 4, n: 16384}},
		{"F5.newiova.write", "old key at B's address is refused",
			held{op: w, pagesB: 4, atNew: true, n: 16384, refused: true}},
		{"F5.newiova.read", "old key at B's address is refused",
			held{op: r, pagesB: 4, atNew: true, n: 16384, refused: true}},
		{"F5.longer.write", "behind A's end, inside B's length: refused",
			held{op: w, pagesB: 8, iova: fixIOVA, off: 16384, n: 16384, refused: true}},
		{"F5.longer.read", "behind A's end, inside B's length: refused",
			held{op: r, pagesB: 8, iova: fixIOVA, off: 16384, n: 16384, refused: true}},
		{"F5.shorter.write", "inside A, behind B's end: reaches A",
			held{op: w, pagesB: 1, iova: fixIOVA, off: 4096, n: 8192}},
		{"F5.shorter.read", "inside A, behind B's end: reads A",
			held{op: r, pagesB: 1, iova: fixIOVA, off: 4096, n: 8192}},
	} {
		out = append(out, rule{c.id, c.rule, c.held.run})
	}
	return out
}

func (h held) run(k *kit) {
	hold := k.pair()
	m := k.fast(k.owner.pd, 16)
	a, listA := pages(4, 0xaa)
	b, listB := pages(h.pagesB, 0xbb)
	addr := func(mem []byte) uint64 {
		if h.iova != 0 {
			return h.iova
		}
		return k.addressOf(mem)
	}
	if k.err != nil {
		return
	}
	// 1. Register A.
	k.must(m.MapSG(listA, addr(a)))
	old, oldAddr := m.RKey(), m.Addr()
	ok := hold.o.status(reg(m)) == verbs.WCSuccess
	// 2. Hold the queue, LOCAL_INV behind the SEND.
	hold.o.post(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{k.owner.mem.SGE(0, 16)}})
	hold.o.post(inv(old))
	time.Sleep(5 * time.Millisecond)
	// 3. Prepare the next registration, and post nothing.
	bump(m)
	if !h.noMap {
		k.must(m.MapSG(listB, addr(b)))
	}
	// 4. The access under test.
	at := oldAddr
	if h.atNew {
		at = m.Addr()
	}
	st := k.try(h.op, h.n, at+uint64(h.off), old)
	if h.op == verbs.WRRDMAWrite {
		inA, inB := changed(a, 0xaa), changed(b, 0xbb)
		k.say("%s; changed A=%d B=%d", text(st), inA, inB)
		ok = ok && (h.refused && st == verbs.WCRemAccessErr && inA == 0 || !h.refused &&
			st == verbs.WCSuccess && inA == h.n) && inB == 0
	} else {
		got := k.peer.mem.Bytes()[:h.n]
		inA, inB := count(got, 0xaa), count(got, 0xbb)
		k.say("%s; read from A=%d B=%d", text(st), inA, inB)
		ok = ok && (h.refused && st == verbs.WCRemAccessErr && inA == 0 || !h.refused &&
			st == verbs.WCSuccess && inA == h.n) && inB == 0
	}
	ok = ok && hold.o.ready() == 0
	k.pass = ok && h.release(k, hold, m, old, a, b)
}

// release lets the queue go: steps 5 to 8.
func (h held) release(k *kit, hold pair, m *verbs.MR, old verbs.Key, a, b []byte) bool {
	if k.err != nil {
		return false
	}
	k.must(hold.p.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{k.peer.mem.SGE(1<<16, 64)}}))
	ok := hold.o.succeeds(2)
	fill(a, 0xaa)
	fill(b, 0xbb)
	for _, key := range []verbs.Key{old, m.RKey()} { // 6, 7: neither is registered
		st := k.try(h.op, 64, m.Addr(), key)
		ok = ok && st == verbs.WCRemAccessErr && changed(a, 0xaa)+changed(b, 0xbb) == 0
	}
	ok = ok && hold.o.status(reg(m)) == verbs.WCSuccess // 8
	list := b
	if h.noMap {
		list = a
	}
	return ok && k.try(verbs.WRRDMAWrite, 64, m.Addr(), m.RKey()) == verbs.WCSuccess &&
		count(list, 0x5a) == 64
}

// addressOf is what a region of the memory would have as its natural IOVA.
func (k *kit) addressOf(mem []byte) uint64 {
	m, err := k.owner.pd.RegMR(mem, 0)
	if err != nil {
		k.must(err)
		return 0
	}
	defer func() { k.must(m.Dereg()) }()
	return m.Addr()
}

func patternRules() []rule {
	return []rule{
		{"F1", "LOCAL_INV, key+1, new list, REG_MR back to back: data in the right pages", func(k *kit) {
			k.pass = k.cycles(200, true)
		}},
		{"F2", "REG_MR again without a new list reaches the same list", func(k *kit) {
			k.pass = k.cycles(20, false)
		}},
		{"F3", "a key changed in software: old key works, new key refused", func(k *kit) {
			h, m := k.pair(), k.fast(k.owner.pd, 16)
			a, list := pages(4, 0xaa)
			if k.err != nil {
				return
			}
			k.must(m.MapSG(list, fixIOVA))
			old := m.RKey()
			h.o.status(reg(m))
			bump(m)
			st := k.try(verbs.WRRDMAWrite, 16384, fixIOVA, old)
			reached := count(a, 0x5a)
			fill(a, 0xaa)
			st2 := k.try(verbs.WRRDMAWrite, 16384, fixIOVA, m.RKey())
			k.say("old key: %s, %d bytes; new key: %s, %d bytes", text(st), reached, text(st2),
				changed(a, 0xaa))
			k.pass = st == verbs.WCSuccess && reached == 16384 && st2 == verbs.WCRemAccessErr &&
				changed(a, 0xaa) == 0
		}},
	}
}

// cycles invalidates and registers again and again, with a WRITE through each key; with lists, two
// of them in turns.
func (k *kit) cycles(n int, remap bool) bool {
	h, x, m := k.pair(), k.pair(), k.fast(k.owner.pd, 4)
	var mems [2][]byte
	var lists [2][][]byte
	for i := range lists {
		mems[i], lists[i] = pages(4, 0xaa)
	}
	if k.err != nil {
		return false
	}
	k.must(m.MapSG(lists[0], fixIOVA))
	h.o.status(reg(m))
	good := 0
	for i := 1; i <= n; i++ {
		fill(mems[0], 0xaa)
		fill(mems[1], 0xbb)
		h.o.post(inv(m.RKey()))
		if i&1 != 0 || remap {
			bump(m)
		}
		at := 0
		if remap {
			at = i & 1
			k.must(m.MapSG(lists[at], fixIOVA))
		}
		h.o.post(reg(m))
		if !h.o.succeeds(2) {
			break
		}
		st := x.rdma(verbs.WRRDMAWrite, 16384, fixIOVA, m.RKey())
		if st == verbs.WCSuccess && count(mems[at], 0x5a) == 16384 &&
			changed(mems[1-at], [2]byte{0xbb, 0xaa}[at]) == 0 {
			good++
		}
	}
	k.say("%d of %d cycles right", good, n)
	return good == n
}

func streamRules() []rule {
	stream := func(op verbs.WROpcode) func(*kit) {
		return func(k *kit) { k.stream(op, 150) }
	}
	return []rule{
		{"F7.write", "no byte is written after the LOCAL_INV completion", stream(verbs.WRRDMAWrite)},
		{"F7.read", "no byte is read after the LOCAL_INV completion", stream(verbs.WRRDMARead)},
	}
}

// stream lets the peer access one page without pause while the owner invalidates it, at a random
// moment, and uses its memory again as soon as the completion is there.
func (k *kit) stream(op verbs.WROpcode, rounds int) {
	h, m := k.pair(), k.fast(k.owner.pd, 1)
	mem, list := pages(1, 0xaa)
	if k.err != nil {
		return
	}
	k.must(m.MapSG(list, fixIOVA))
	late, faults := 0, 0
	for range rounds {
		before := len(k.undo)
		x := k.pair()
		bump(m)
		fill(mem, 0xaa)
		fill(k.peer.mem.Bytes(), 0x5a)
		if h.o.status(reg(m)) != verbs.WCSuccess {
			faults++
		}
		const n = 32
		for i := range n {
			wr := verbs.SendWR{Opcode: op, SGList: []verbs.SGE{k.peer.mem.SGE(i%16*pageLen, pageLen)},
				RemoteAddr: fixIOVA, RKey: m.RKey()}
			if i == n-1 {
				wr.Flags = verbs.SendSignaled
			}
			if k.err == nil {
				k.must(x.p.qp.PostSend(&wr))
			}
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Microsecond)
		if h.o.status(inv(m.RKey())) != verbs.WCSuccess {
			faults++
		}
		snap := bytes.Clone(mem)
		if op == verbs.WRRDMARead {
			fill(mem, 0xee)
			snap = bytes.Clone(mem)
		}
		x.p.done() // cut or not: that depends on the machine
		if !bytes.Equal(mem, snap) || count(k.peer.mem.Bytes()[:16*pageLen], 0xee) > 0 {
			late++
		}
		for len(k.undo) > before {
			last := len(k.undo) - 1
			k.must(k.undo[last]())
			k.undo = k.undo[:last]
		}
	}
	k.say("%d of %d rounds with a late access; invalidations that failed: %d", late, rounds, faults)
	k.pass = late == 0 && faults == 0
}
