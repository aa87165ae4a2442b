package keyrules

import (
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
	hold, m := k.pair(), k.fast(home, 16)
	a, b := k.pages(4, 0xaa), k.pages(h.pagesB, 0xbb)
	// 1. Register A.
	m.mapTo(a, h.iova)
	old, oldAddr := m.key(), m.addr()
	ok := reg(hold.o, m) == verbs.WCSuccess
	// 2. Hold the queue, LOCAL_INV behind the SEND.
	hold.o.send()
	hold.o.invalidate(old)
	time.Sleep(5 * time.Millisecond)
	// 3. Prepare the next registration, and post nothing.
	m.bump()
	if !h.noMap {
		m.mapTo(b, h.iova)
	}
	// 4. The access under test.
	at := oldAddr
	if h.atNew {
		at = m.addr()
	}
	st := k.try(h.op, h.n, at+uint64(h.off), old)
	inA, inB := changed(a, 0xaa), changed(b, 0xbb)
	if h.op == verbs.WRRDMAWrite {
		k.say("%s; changed A=%d B=%d", text(st), inA, inB)
	} else {
		inA, inB = k.read(h.n, 0xaa), k.read(h.n, 0xbb)
		k.say("%s; read from A=%d B=%d", text(st), inA, inB)
	}
	ok = ok && (h.refused && st == verbs.WCRemAccessErr && inA == 0 || !h.refused &&
		st == verbs.WCSuccess && inA == h.n) && inB == 0
	if early := hold.o.poll(0); early.status != noCompletion {
		k.say("the queue was not held: %s", text(early.status))
		ok = false
	}
	after := h.release(k, hold, m, old, a, b)
	if !after && k.err == nil {
		k.say("and afterwards the keys are wrong")
	}
	k.pass = ok && after
}

// release lets the queue go: steps 5 to 8.
func (h held) release(k *kit, hold pair, m region, old verbs.Key, a, b memory) bool {
	hold.p.recv()
	ok := succeeds(hold.o, 2)
	a.fill(0xaa)
	b.fill(0xbb)
	for _, key := range []verbs.Key{old, m.key()} { // 6, 7: neither is registered
		st := k.try(h.op, 64, m.addr(), key)
		ok = ok && st == verbs.WCRemAccessErr && changed(a, 0xaa)+changed(b, 0xbb) == 0
	}
	ok = ok && reg(hold.o, m) == verbs.WCSuccess // 8
	list := b
	if h.noMap {
		list = a
	}
	return ok && k.try(verbs.WRRDMAWrite, 64, m.addr(), m.key()) == verbs.WCSuccess &&
		list.count(0x5a) == 64
}

func patternRules() []rule {
	return []rule{
		{"F1", "LOCAL_INV, key+1, new list, REG_MR back to back: data in the right pages", func(k *kit) {
			k.pass = k.cycles(k.rounds(200), true)
		}},
		{"F2", "REG_MR again without a new list reaches the same list", func(k *kit) {
			k.pass = k.cycles(k.rounds(40), false)
		}},
		{"F3", "a key changed in software: old key works, new key refused", func(k *kit) {
			h, m, a := k.pair(), k.fast(home, 16), k.pages(4, 0xaa)
			m.mapTo(a, fixIOVA)
			old := m.key()
			reg(h.o, m)
			m.bump()
			st := k.try(verbs.WRRDMAWrite, 16384, fixIOVA, old)
			reached := a.count(0x5a)
			a.fill(0xaa)
			st2 := k.try(verbs.WRRDMAWrite, 16384, fixIOVA, m.key())
			k.say("old key: %s, %d bytes; new key: %s, %d bytes", text(st), reached, text(st2),
				changed(a, 0xaa))
			k.pass = st == verbs.WCSuccess && reached == 16384 && st2 == verbs.WCRemAccessErr &&
				changed(a, 0xaa) == 0
		}},
	}
}

// rounds is how often to do what n rounds of would do for roxie: Linux runs on an emulated machine.
func (k *kit) rounds(n int) int {
	if _, ok := k.owner.(*own); ok {
		return n
	}
	return n / 4
}

// cycles invalidates and registers again and again, with a WRITE through each key; with lists, two
// of them in turns.
func (k *kit) cycles(n int, remap bool) bool {
	h, x, m := k.pair(), k.pair(), k.fast(home, 4)
	mems := [2]memory{k.pages(4, 0xaa), k.pages(4, 0xbb)}
	m.mapTo(mems[0], fixIOVA)
	reg(h.o, m)
	good := 0
	for i := 1; i <= n && k.err == nil; i++ {
		mems[0].fill(0xaa)
		mems[1].fill(0xbb)
		h.o.invalidate(m.key())
		if i&1 != 0 || remap {
			m.bump()
		}
		at := 0
		if remap {
			at = i & 1
			m.mapTo(mems[at], fixIOVA)
		}
		h.o.register(m, access)
		if !succeeds(h.o, 2) {
			break
		}
		st := x.rdma(verbs.WRRDMAWrite, 16384, fixIOVA, m.key())
		if st == verbs.WCSuccess && mems[at].count(0x5a) == 16384 &&
			changed(mems[1-at], [2]byte{0xbb, 0xaa}[at]) == 0 {
			good++
		}
	}
	k.say("%d of %d cycles right", good, n)
	return good == n
}

func streamRules() []rule {
	stream := func(op verbs.WROpcode) func(*kit) {
		return func(k *kit) { k.stream(op, k.rounds(120)) }
	}
	return []rule{
		{"F7.write", "no byte is written after the LOCAL_INV completion", stream(verbs.WRRDMAWrite)},
		{"F7.read", "no byte is read after the LOCAL_INV completion", stream(verbs.WRRDMARead)},
	}
}

// reused is what an owner writes to memory that it has taken back from its peers.
const reused = 0xee

// stream lets the peer access one page without pause while the owner invalidates it, at a random
// moment, and uses its memory again as soon as the completion is there.
func (k *kit) stream(op verbs.WROpcode, rounds int) {
	h, m, mem := k.pair(), k.fast(home, 1), k.pages(1, 0xaa)
	m.mapTo(mem, fixIOVA)
	fillWith := -1
	if op == verbs.WRRDMARead {
		fillWith = reused
	}
	late, faults, before := 0, 0, len(k.undo)
	for range rounds {
		x := k.accessed(h, m, mem, &faults)
		const n = 32
		for i := range n {
			wr := verbs.SendWR{Opcode: op, SGList: []verbs.SGE{k.peer.mem.SGE(i%16*pageLen, pageLen)},
				RemoteAddr: fixIOVA, RKey: m.key()}
			if i == n-1 {
				wr.Flags = verbs.SendSignaled
			}
			if k.err == nil {
				k.must(x.p.q.PostSend(&wr))
			}
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Microsecond)
		if h.o.take(m.key(), mem, fillWith).status != verbs.WCSuccess {
			faults++
		}
		x.peerDone() // cut or not: that depends on the machine
		if mem.taken() > 0 || k.read(16*pageLen, reused) > 0 {
			late++
		}
		k.back(before)
	}
	k.say("%d of %d rounds with a late access", late, rounds)
	if faults > 0 {
		k.say("invalidations that failed: %d", faults)
	}
	k.pass = late == 0 && faults == 0
	if s, ok := k.owner.(stopper); ok {
		k.stopped(s, op, h, m, mem)
	}
}

// accessed registers the memory anew, and connects a peer that is to access it.
func (k *kit) accessed(h pair, m region, mem memory, faults *int) pair {
	x := k.pair()
	m.bump()
	mem.fill(0xaa)
	fill(k.peer.mem.Bytes(), 0x5a)
	if reg(h.o, m) != verbs.WCSuccess {
		*faults++
	}
	return x
}

// stopped is stream without luck: the owner's responder is stopped between the check of the key and
// the copy. What waits for it has not completed then.
func (k *kit) stopped(s stopper, op verbs.WROpcode, h pair, m region, mem memory) {
	const rounds = 20
	late, faults, before := 0, 0, len(k.undo)
	for range rounds {
		x := k.accessed(h, m, mem, &faults)
		early := s.held(h.o, m, mem, op == verbs.WRRDMARead, func() {
			x.post(verbs.SendWR{Opcode: op, SGList: []verbs.SGE{k.peer.mem.SGE(0, pageLen)},
				RemoteAddr: fixIOVA, RKey: m.key()})
		})
		x.peerDone()
		if early && (mem.taken() > 0 || k.read(pageLen, reused) > 0) {
			late++
		}
		k.back(before)
	}
	k.say("%d of %d with the responder held before its copy", late, rounds)
	k.pass = k.pass && late == 0 && faults == 0
}
