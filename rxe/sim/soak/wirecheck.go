package soak

import (
	"encoding/binary"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers what must be true of the frames of a reliable connection, seen from the wire.

// wireState is what the wire tells about one end.
type wireState struct {
	// As requester.
	next    wire.PSN // of the next new request
	acked   wire.PSN // highest that an acknowledgement or response, which was delivered, covers
	silence rxe.Time // RNR: until then nothing may be sent
	waits   bool     // and nothing has been sent since

	ends [endRing]wire.PSN // last PSN of each message, in order
	sent uint32            // messages in ends so far
	over uint32            // of them, acknowledged

	// As responder.
	came  wire.PSN // requests before it have been delivered, in order
	said  wire.PSN // highest acknowledged
	naked wire.PSN // gap that the last NAK named
	msn   uint32
	told  bool // msn is known

	refused bool // a request, with the NAK that ends the connection

	limit    uint32 // requester: the highest message number that a delivered credit allows
	credited bool   // and the requester has certainly seen one
}

// endRing is more than a window holds.
const endRing = 512

// tap sees each frame when it is sent.
func (w *world) tap(now rxe.Time, from, to *sim.Node, b []byte) {
	if w.o.Tap != nil {
		w.o.Tap(now, from, to, b)
	}
	if to == nil {
		return
	}
	op := wire.Opcode(b[w.bth])
	if op >= wire.UCSendFirst { // not RC
		return
	}
	dst := endOf(to, b[w.bth:])
	if dst == nil || dst.peer.h.n != from {
		return
	}
	psn := wire.PSN(binary.BigEndian.Uint32(b[w.bth+8:]) & wire.PSNMask)
	if op.Info().Flags&wire.FlagRequest != 0 {
		dst.peer.requestSent(now, op, psn, b[w.bth:])
	} else {
		dst.peer.responseSent(op, psn, b[w.bth:])
	}
}

// endOf finds the end that a packet is for.
func endOf(to *sim.Node, bth []byte) *end {
	q := to.Dev.QPByNumber(wire.QPN(binary.BigEndian.Uint32(bth[4:]) & 0xffffff))
	if q == nil {
		return nil
	}
	e, _ := q.Context().(*end)
	if e == nil || e.q != q {
		return nil
	}
	return e
}

// span is how many PSNs a request takes.
func (e *end) span(op wire.Opcode, bth []byte) uint32 {
	if op != wire.RCReadRequest {
		return 1
	}
	n := binary.BigEndian.Uint32(bth[op.Info().RETHOff+12:])
	return packetsOf(RCRead, n, e.c.attr.PMTU)
}

func (e *end) requestSent(now rxe.Time, op wire.Opcode, psn wire.PSN, bth []byte) {
	s := &e.wc
	if now < s.silence {
		e.w.violate("%v: sends PSN %#x %d ns before the end of an RNR wait", e, psn, s.silence-now)
	}
	i := op.Info()
	if i.Flags&wire.FlagEnd != 0 && i.Flags&(wire.FlagSend|wire.FlagWrite) != 0 && bth[8]>>7 == 0 {
		e.w.violate("%v: the last packet of a message, PSN %#x, asks for no ACK", e, psn)
	}
	s.waits = false
	switch d := psn.Diff(s.next); {
	case d > 0:
		e.w.violate("%v: sends PSN %#x, the next is %#x", e, psn, s.next)
	case d == 0:
		e.newRequest(op, psn)
		s.next = psn.Add(e.span(op, bth))
		if n := s.next.Diff(s.acked) - 1; n > int32(e.h.window) {
			e.w.violate("%v: %d PSNs are outstanding, the window is %d", e, n, e.h.window)
		}
		if i.Flags&(wire.FlagSend|wire.FlagWrite) == 0 || i.Flags&wire.FlagEnd != 0 {
			s.ends[s.sent%endRing] = s.next.Add(wire.PSNMask)
			s.sent++
		}
	default: // again; a READ may ask for its rest
		if end := psn.Add(e.span(op, bth)); end.Diff(s.next) > 0 {
			e.w.violate("%v: PSN %#x again, but up to %#x instead of %#x", e, psn, end, s.next)
		}
	}
}

// newRequest checks what begins with a PSN that was not sent before.
func (e *end) newRequest(op wire.Opcode, psn wire.PSN) {
	s, f := &e.wc, op.Info().Flags
	if f&wire.FlagStart == 0 && f&(wire.FlagSend|wire.FlagWrite) != 0 {
		return
	}
	if e.sqd && e.q.State() == rxe.StateSQD && f&wire.FlagRead == 0 {
		e.w.violate("%v: begins a message, PSN %#x, in SQD", e, psn)
	}
	if s.credited && f&wire.FlagSend != 0 && psn != s.acked.Next() &&
		wire.PSN((s.sent+1)&wire.PSNMask).Diff(wire.PSN(s.limit)) > 0 {
		e.w.violate("%v: begins message %d, a SEND, but has credits up to %d only", e, s.sent+1, s.limit)
	}
	if s.sent%16 == 0 {
		e.checkSlots()
	}
}

// checkSlots makes sure that slots of the send queue stay taken until their message is acknowledged.
func (e *end) checkSlots() {
	if e.failed || e.c.dying {
		return
	}
	for i := e.done; i != e.posted; i++ {
		if o := e.op(i); !o.kind.local() && o.last.Diff(e.wc.acked) > 0 {
			if n := uint32(e.q.SQ.Len()); n < e.posted-i {
				e.w.violate("%v: %d slots of the send queue are taken, %d must be", e, n, e.posted-i)
			}
			return
		}
	}
}

func (e *end) responseSent(op wire.Opcode, psn wire.PSN, bth []byte) {
	s := &e.wc
	i := op.Info()
	if i.AETHOff != 0 {
		aeth := (*wire.AETH)(bth[i.AETHOff:])
		msn := aeth.MSN()
		if d := wire.PSN(msn).Diff(wire.PSN(s.msn)); s.told && d < 0 {
			e.w.violate("%v: MSN goes back from %#x to %#x", e, s.msn, msn)
		}
		s.msn, s.told = msn, true
		if op == wire.RCAck {
			e.ackSent(aeth.Syndrome(), psn, msn)
			return
		}
	}
	if e.peer.wc.sent-e.peer.wc.over > endRing/2 { // acknowledged by answers for long
		e.peer.wc.messagesThrough(psn.Add(wire.PSNMask))
	}
	if psn.Diff(s.came) >= 0 {
		e.w.violate("%v: answers PSN %#x, but only those before %#x have come", e, psn, s.came)
	}
}

func (e *end) ackSent(syn wire.Syndrome, psn wire.PSN, msn uint32) {
	s := &e.wc
	switch syn.Kind() {
	case wire.KindACK:
		switch {
		case psn.Diff(s.came) >= 0:
			e.w.violate("%v: acknowledges PSN %#x, but only those before %#x have come", e, psn, s.came)
		case psn.Diff(s.said) < 0:
			e.w.violate("%v: acknowledges PSN %#x after %#x", e, psn, s.said)
		}
		s.said = psn
		if want := e.peer.wc.messagesThrough(psn); want != msn {
			e.w.violate("%v: acknowledges PSN %#x with MSN %d, it ends message %d", e, psn, msn, want)
		}
	case wire.KindRNR:
		if t := e.c.attr.RNRTimer; syn.Timer() != t {
			e.w.violate("%v: an RNR NAK with timer code %d, the QP has %d", e, syn.Timer(), t)
		}
	case wire.KindNAK:
		if syn.NAK() != wire.NAKPSNSeq {
			s.refused = true
			return
		}
		if psn.Diff(s.came) > 0 {
			e.w.violate("%v: expects PSN %#x, but only those before %#x have come", e, psn, s.came)
		}
		if psn.Diff(s.naked) <= 0 {
			e.w.violate("%v: a second NAK for the gap at PSN %#x", e, psn)
		}
		s.naked = psn
	}
}

// messagesThrough counts the messages that end at PSN x or before. x goes up from call to call.
func (s *wireState) messagesThrough(x wire.PSN) uint32 {
	for s.over != s.sent && s.ends[s.over%endRing].Diff(x) <= 0 {
		s.over++
	}
	return s.over & wire.PSNMask
}

// delivered sees each frame before a shard gets it.
func (w *world) delivered(now rxe.Time, to *sim.Node, shard int, b []byte, damaged bool) {
	if damaged && wire.Parse(wire.Frame{Head: b}, &w.pkt) != wire.ReasonOK || len(b) < w.bth+12 {
		return
	}
	op := wire.Opcode(b[w.bth])
	w.hosts[to.ID()].serving[shard] = serving{}
	if op >= wire.UCSendFirst {
		return
	}
	e := endOf(to, b[w.bth:])
	if e == nil {
		return
	}
	s := &e.wc
	psn := wire.PSN(binary.BigEndian.Uint32(b[w.bth+8:]) & wire.PSNMask)
	i := op.Info()
	if i.Flags&wire.FlagRequest != 0 {
		w.hosts[to.ID()].serving[shard] = serving{e, psn}
		if psn == s.came {
			s.came = psn.Add(e.span(op, b[w.bth:]))
		}
		return
	}
	covers, rnr := psn, false
	if i.AETHOff != 0 && op != wire.RCAck {
		s.credits((*wire.AETH)(b[w.bth+int(i.AETHOff):]), false)
	}
	if op == wire.RCAck {
		aeth := (*wire.AETH)(b[w.bth+int(i.AETHOff):])
		switch syn := aeth.Syndrome(); syn.Kind() {
		case wire.KindACK:
			fresh := psn.Diff(s.acked) > 0 && psn.Diff(s.next) < 0
			s.credits(aeth, fresh && shard == e.q.Shard().ID && e.q.State() == rxe.StateRTS)
		case wire.KindRNR:
			rnr = true
			e.noteRNR(now, syn, psn, shard == e.q.Shard().ID)
			covers = psn.Add(wire.PSNMask)
		case wire.KindNAK:
			covers = psn.Add(wire.PSNMask)
		}
	}
	if covers.Diff(s.acked) > 0 && covers.Diff(s.next) < 0 {
		s.acked = covers
		if !rnr { // progress ends the wait
			s.silence, s.waits = 0, false
		}
	}
}

// credits notes how far an acknowledgement lets the requester go. here tells that it sees it at once.
func (s *wireState) credits(aeth *wire.AETH, here bool) {
	n, ok := wire.CreditCount(aeth.Syndrome().Credits())
	if !ok {
		return
	}
	limit := (aeth.MSN() + n) & wire.PSNMask
	if !s.credited || wire.PSN(limit).Diff(wire.PSN(s.limit)) > 0 {
		s.limit = limit
	}
	s.credited = s.credited || here
}

// noteRNR begins the silence after an RNR NAK, where it is certain that the requester must obey: when
// no answer is missing, so that the oldest PSN outstanding is the one refused, and when no other wait
// can be under way. here tells that the QP's own shard has got it; else it is obeyed later.
func (e *end) noteRNR(now rxe.Time, syn wire.Syndrome, psn wire.PSN, here bool) {
	s := &e.wc
	if here && e.answered == 0 && psn == s.acked.Next() && !s.waits && e.q.State() == rxe.StateRTS {
		s.silence = now + rxe.Time(wire.RNRDelay(syn.Timer()))
	}
	s.waits = true
}
