package rxe_test

import (
	"encoding/binary"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file plays conversations: it gives our engine the recorded peer's packets and the recorded
// work requests, in the recorded order, and compares what it says and does.

// player plays one conversation from one end.
type player struct {
	t    testing.TB
	rec  *recording
	c    *conversation
	e    *replayEnd
	m    *matcher
	want [2][]byte // what the memory of each end should hold, by the text
	live [2][]byte // memory of the end we play

	at       int          // next step of the text
	posted   int          // posts begun
	received map[int]bool // posts whose receive has been posted
}

// patience is how long the virtual clock may run until our engine sends a recorded packet.
const patience = rxe.Time(20_000_000_000)

func (p *player) errorf(s *step, format string, a ...any) {
	p.t.Helper()
	p.t.Errorf("line %d of the text: "+format, append([]any{s.line}, a...)...)
}

// requester plays the end that posts.
func (p *player) requester() {
	p.t.Helper()
	p.e = newReplayEnd(p.t, p.rec, p.c, p.c.from, p.live[p.c.from])
	p.pump()
	for _, v := range p.c.packets {
		switch {
		case v.from != p.e.me:
			p.e.feed(v)
			p.pump()
		case p.rec.lossy:
			p.recordedRequest(v)
		default:
			p.nextRequest(v)
		}
		if p.t.Failed() {
			return
		}
	}
	for end := p.e.now + patience; !p.over() && p.e.wait(end); {
		p.pump()
	}
	if !p.over() {
		p.errorf(&p.c.steps[p.at], "our engine does not get there")
	}
	p.m.ours = p.e.sent
	if p.rec.lossy {
		p.noOthers()
	} else if p.m.next < len(p.m.ours) {
		p.t.Errorf("%d requests more than the kernel sent: %v", len(p.m.ours)-p.m.next, p.m.ours[p.m.next])
	}
}

// nextRequest expects the kernel's request as our next one.
func (p *player) nextRequest(v *packetView) {
	p.t.Helper()
	for end := p.e.now + patience; p.m.next >= len(p.e.sent) && (p.e.wait(end) || p.giveUp()); {
		p.pump()
	}
	p.m.ours = p.e.sent
	if p.m.next >= len(p.m.ours) {
		p.m.mismatch(v, nil)
		return
	}
	o := p.m.ours[p.m.next]
	p.m.next++
	if !p.m.matches(v, o) {
		p.m.mismatch(v, o)
	}
}

// recordedRequest expects the kernel's request among ours: those we have sent, or will send when
// time passes.
func (p *player) recordedRequest(v *packetView) {
	p.t.Helper()
	for end := p.e.now + patience; ; p.pump() {
		p.m.ours = p.e.sent
		if p.m.known(v) {
			return
		}
		if !p.e.wait(end) && !p.giveUp() {
			break
		}
	}
	for _, o := range p.m.ours {
		if o.p.PSN == v.p.PSN {
			p.m.mismatch(v, o)
			return
		}
	}
	p.m.mismatch(v, nil)
}

// noOthers makes sure that what we sent with a PSN of the kernel's is the kernel's.
func (p *player) noOthers() {
	p.t.Helper()
	for _, o := range p.m.ours {
		var other *packetView
		found := false
		for _, v := range p.c.packets {
			if v.from == p.e.me && v.p.PSN == o.p.PSN {
				other = v
				if found = p.m.matches(v, o); found {
					break
				}
			}
		}
		if other != nil && !found {
			p.m.mismatch(other, o)
		}
	}
}

// over reports whether the text is at its end, or where the producer gave up.
func (p *player) over() bool {
	return p.at == len(p.c.steps) || p.c.steps[p.at].kind == stepMissing
}

// giveUp goes on behind a completion that the producer waited for in vain.
func (p *player) giveUp() bool {
	if p.at == len(p.c.steps) || p.c.steps[p.at].kind != stepMissing {
		return false
	}
	p.at++
	return true
}

// pump carries out the steps of the text up to a completion that has not come yet.
func (p *player) pump() {
	p.t.Helper()
	for ; !p.over(); p.at++ {
		s := &p.c.steps[p.at]
		switch s.kind {
		case stepPost:
			p.e.post(uint64(p.posted), s.post)
			p.posted++
			continue
		case stepWC:
			p.e.run()
			var c [1]rxe.CQE
			if p.e.send.Poll(c[:]) == 0 {
				return
			}
			p.sendCompletion(s, &c[0])
		}
		p.carryOut(s)
	}
	p.e.run()
}

// sendCompletion compares a completion of the requester with the recorded one.
func (p *player) sendCompletion(s *step, c *rxe.CQE) {
	p.t.Helper()
	if c.Status != s.wc.status {
		p.errorf(s, "completes with %v (%v), want %v", c.Status, c.Reason, s.wc.status)
	}
	if int(c.WRID) >= len(p.c.posts) || p.c.posts[c.WRID] != s.post {
		p.errorf(s, "completion of post %d", c.WRID)
	}
	if c.Status != rxe.WCSuccess {
		return
	}
	if c.Opcode != s.wc.op {
		p.errorf(s, "opcode %v, want %v", c.Opcode, s.wc.op)
	}
	switch s.post.op {
	case rxe.WRRDMARead, rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd:
		if c.ByteLen != s.wc.length {
			p.errorf(s, "byte length %d, want %d", c.ByteLen, s.wc.length)
		}
	}
}

// carryOut does what a step means for memory, ours and what it should be.
func (p *player) carryOut(s *step) {
	p.t.Helper()
	switch s.kind {
	case stepWC:
		if s.wc.status == rxe.WCSuccess {
			p.effect(s.post)
		}
	case stepHold:
		binary.NativeEndian.PutUint64(p.want[s.end][s.off:], s.value)
		if s.end == p.e.me {
			binary.NativeEndian.PutUint64(p.live[s.end][s.off:], s.value)
		}
	case stepNow, stepReturned:
		if s.end == p.e.me {
			if got := binary.NativeEndian.Uint64(p.live[s.end][s.off:]); got != s.value {
				p.errorf(s, "memory holds %#x, want %#x", got, s.value)
			}
		}
	case stepBind:
		if s.end == p.e.me {
			p.e.bind(s)
		}
	}
}

// effect does to the expected memory what a successful work request does.
func (p *player) effect(q *post) {
	from, to := p.want[p.c.from], p.want[1-p.c.from]
	there := q.raddr - p.rec.ends[1-p.c.from].addr
	switch q.op {
	case rxe.WRRDMAWrite, rxe.WRRDMAWriteWithImm:
		copy(to[there:], from[:q.length])
	case rxe.WRRDMARead:
		copy(from[readAt:], to[there:][:q.length])
	case rxe.WRAtomicWrite:
		binary.NativeEndian.PutUint64(to[there:], q.compareAdd)
	case rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd:
		old := binary.NativeEndian.Uint64(to[there:])
		binary.NativeEndian.PutUint64(from[atomicAt:], old)
		switch {
		case q.op == rxe.WRAtomicFetchAdd:
			binary.NativeEndian.PutUint64(to[there:], old+q.compareAdd)
		case old == q.compareAdd:
			binary.NativeEndian.PutUint64(to[there:], q.swap)
		}
	default:
		if p.c.typ != rxe.RC && (q.recv == nil || q.recv.status != rxe.WCSuccess) {
			return // lost
		}
		at := recvAt
		if p.c.typ == rxe.UD {
			var grh [rxe.GRHBytes]byte
			wire.GRH(p.packet(q.first).p, &grh)
			at += copy(to[at:], grh[:])
		}
		copy(to[at:], from[:q.length])
	}
}

// packet is the first recorded request with this PSN.
func (p *player) packet(psn wire.PSN) *packetView {
	p.t.Helper()
	for _, v := range p.c.packets {
		if v.from == p.c.from && v.p.PSN == psn {
			return v
		}
	}
	p.t.Fatalf("no request with PSN %#x in the capture", psn)
	return nil
}

// responder plays the other end.
func (p *player) responder() {
	p.t.Helper()
	me := 1 - p.c.from
	p.e = newReplayEnd(p.t, p.rec, p.c, me, p.live[me])
	for _, v := range p.c.packets {
		if v.from == me {
			p.m.ours = p.e.sent
			p.m.response(v)
		} else {
			p.prepare(v)
			p.e.feed(v)
		}
		if p.t.Failed() {
			return
		}
	}
	for ; !p.over(); p.at++ {
		p.carryOut(&p.c.steps[p.at])
	}
	if p.m.ours = p.e.sent; !p.rec.lossy {
		for _, v := range p.m.ours[p.m.next:] {
			if !v.positiveAck() {
				p.t.Errorf("we send what the kernel did not: %v", v)
			}
		}
	}
	p.m.finish()
	p.receiveCompletions()
}

// prepare does what the text says was done before the request v came.
func (p *player) prepare(v *packetView) {
	p.t.Helper()
	k := 0
	for v.p.PSN.Diff(p.c.posts[k].last) > 0 {
		if k++; k == len(p.c.posts) {
			p.t.Fatalf("packet %d (%v): no work request has this PSN", v.n, v)
		}
	}
	for ; p.posted <= k; p.at++ {
		if p.c.steps[p.at].kind == stepPost {
			p.posted++
		}
		p.carryOut(&p.c.steps[p.at])
	}
	if w := p.c.posts[k].wc; w != nil && w.status == rxe.WCRetryExcErr {
		p.e.n.Dev.DestroyQP(p.e.q) // nobody was there: the requester gave up
	}
	psn, ok := p.c.posts[k].consumes()
	next := p.c.typ == rxe.UD || p.e.q.Query().RQPSN == psn || p.c.typ == rxe.UC && p.rec.lossy
	if ok && psn == v.p.PSN && next && !p.received[k] && !p.c.refused(v) {
		p.received[k] = true
		p.e.postRecv(uint64(k), p.c.posts[k])
	}
}

// receiveCompletions compares what the receives brought with the text.
func (p *player) receiveCompletions() {
	p.t.Helper()
	got := map[uint64]rxe.CQE{}
	for c := [1]rxe.CQE{}; p.e.recv.Poll(c[:]) == 1; {
		got[c[0].WRID] = c[0]
	}
	for k, q := range p.c.posts {
		w := q.recv
		if w == nil {
			continue
		}
		c, ok := got[uint64(k)]
		if !ok || (c.Status == rxe.WCSuccess) != (w.status == rxe.WCSuccess) {
			p.t.Errorf("post %d: receive completion %+v, the kernel's %+v", k, c, *w)
			continue
		}
		if w.status != rxe.WCSuccess {
			continue
		}
		imm := c.Imm
		if c.Flags&rxe.WCWithInv != 0 {
			for _, pair := range p.e.keys {
				if uint32(pair.ours) == imm {
					imm = uint32(pair.kernel)
				}
			}
		}
		if c.ByteLen != w.length || c.Opcode != w.op || imm != w.imm || c.SrcQP != w.srcQP ||
			(c.Flags&rxe.WCWithImm != 0) != (w.flags&recordedWithImm != 0) ||
			(c.Flags&rxe.WCWithInv != 0) != (w.flags&recordedWithInv != 0) {
			p.t.Errorf("post %d: receive completion %+v, the kernel's %+v", k, c, *w)
		}
	}
}
