package rxe_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

func (p *rawPeer) sendWR(id uint64, n int) rxe.SendWR {
	return rxe.SendWR{ID: id, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, n)}}
}

// TestRNRWaitEndsByProgress: a copy of the refused packet that the network made finds a receive WQE
// and is acknowledged during the wait: the wait is over, what was sent behind it goes out again, and
// nothing hangs.
func TestRNRWaitEndsByProgress(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rnr: 7, retry: 7})
	p.post(p.sendWR(1, 8))
	p.inject(rnr(ourPSN, 0)) // 655 ms
	p.inject(ack(ourPSN))
	p.wantWC("1:success")
	one(t, p.post(p.sendWR(2, 8)))
	p.inject(ack(ourPSN.Next()))
	p.wantWC("2:success")

	p.post(p.sendWR(3, 8))
	p.post(p.writeWR(4, 8))
	p.inject(rnr(ourPSN.Add(2), 0))
	if s := one(t, p.inject(ack(ourPSN.Add(2)))); s.psn != ourPSN.Add(3) {
		t.Fatalf("sent again: %+v", s)
	}
	p.inject(ack(ourPSN.Add(3)))
	p.wantWC("3:success", "4:success")
	if s := p.advance(2000 * ms); len(s) != 0 || p.s.Deadline() != rxe.Never {
		t.Fatalf("a timer is still armed; sent %+v", s)
	}
}

// TestRNRWaitBehindRead: READ responses come, an RNR NAK of a SEND behind the READ follows: the READ
// completes, the SEND waits. A response that is missing makes the RNR NAK an implied NAK.
func TestRNRWaitBehindRead(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rnr: 7, retry: 7})
	p.post(p.readWR(1, 500)) // PSNs 0, 1
	p.post(p.sendWR(2, 8))   // 2
	p.inject(p.response(wire.RCReadRespFirst, ourPSN, 256), p.response(wire.RCReadRespLast, ourPSN.Next(), 244),
		rnr(ourPSN.Add(2), 14))
	p.wantWC("1:success")
	if s := p.advance(1 * ms); len(s) != 0 {
		t.Fatalf("sent during the wait: %+v", s)
	}
	if s := one(t, p.advance(1*ms)); s.psn != ourPSN.Add(2) {
		t.Fatalf("sent after the wait: %+v", s)
	}
	p.inject(ack(ourPSN.Add(2)))
	p.wantWC("2:success")

	p = qpIn(t, rxe.StateRTS, rawConfig{rnr: 7, retry: 7})
	p.post(p.readWR(1, 500))
	p.post(p.sendWR(2, 8))
	s := p.inject(p.response(wire.RCReadRespFirst, ourPSN, 256), rnr(ourPSN.Add(2), 14))
	if len(s) != 2 || s[0].op != wire.RCReadRequest || s[0].psn != ourPSN.Next() || s[0].length != 244 || s[1].psn != ourPSN.Add(2) {
		t.Fatalf("asked again: %+v", s)
	}
}

// TestNAKInRead: a READ that is cut in the middle fails with the NAK's status, whatever part of its
// answer was lost before; a NAK of what is behind an unanswered READ is an implied NAK for the READ.
func TestNAKInRead(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	p.post(p.writeWR(1, 8))  // 0
	p.post(p.readWR(2, 900)) // 1..4
	p.post(p.writeWR(3, 8))  // 5
	p.inject(p.response(wire.RCReadRespFirst, ourPSN.Next(), 256), nak(ourPSN.Add(4), wire.NAKRemoteAccess))
	p.wantWC("1:success", "2:remote access error", "3:Work Request Flushed Error")

	p = qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	p.post(p.readWR(1, 8))  // 0
	p.post(p.writeWR(2, 8)) // 1
	s := p.inject(nak(ourPSN.Next(), wire.NAKRemoteAccess))
	if len(s) != 2 || s[0].op != wire.RCReadRequest {
		t.Fatalf("asked again: %+v", s)
	}
	p.inject(p.response(wire.RCReadRespOnly, ourPSN, 8), nak(ourPSN.Next(), wire.NAKRemoteAccess))
	p.wantWC("1:success", "2:remote access error")
}

// TestNAKCopies: copies of one NAK that the network made cost one retry, not one each; reserved NAK
// codes and syndromes are dropped and counted.
func TestNAKCopies(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 1})
	p.post(p.writeWR(1, 8))
	k := nak(ourPSN, wire.NAKPSNSeq)
	one(t, p.inject(k, k, k, k))
	p.state(rxe.StateRTS)
	for _, syn := range []wire.Syndrome{0x65, 0x7f, 0x40, 0x5f, 0x80, 0xff} {
		if s := p.inject(packet{op: wire.RCAck, psn: ourPSN, syn: syn}); len(s) != 0 {
			t.Fatalf("syndrome %#x: sent %+v", syn, s)
		}
	}
	if n := p.s.C.Drops[rxe.ReasonAckReserved]; n != 6 {
		t.Fatalf("%d reserved syndromes counted, want 6", n)
	}
	p.inject(ack(ourPSN))
	p.wantWC("1:success")
}

// TestAckBehindRewind: the ACK of the first transmission arrives when the send position has gone
// back: what it acknowledges is not sent again, a READ in between is asked for where it stands.
func TestAckBehindRewind(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7, rd: 4})
	p.post(p.writeWR(1, 700)) // 0..2
	p.post(p.writeWR(2, 8))   // 3
	p.post(p.readWR(3, 8))    // 4
	p.post(p.writeWR(4, 8))   // 5
	s := p.inject(nak(ourPSN.Next(), wire.NAKPSNSeq), ack(ourPSN.Add(3)))
	p.wantWC("1:success", "2:success")
	if len(s) != 2 || s[0].psn != ourPSN.Add(4) || s[1].psn != ourPSN.Add(5) {
		t.Fatalf("sent again: %+v", s)
	}
	p.inject(p.response(wire.RCReadRespOnly, ourPSN.Add(4), 8), ack(ourPSN.Add(5)))
	p.wantWC("3:success", "4:success")
}

// TestAckStorm: a peer that acknowledges everything many times over, old and new, changes nothing
// but what is outstanding.
func TestAckStorm(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	for i := uint32(0); i < 20; i++ {
		p.post(p.writeWR(uint64(i), 300)) // 2 PSNs
		var storm []packet
		for j := uint32(0); j < 40; j++ {
			storm = append(storm, ack(ourPSN.Add(j)), ack(ourPSN.Add(wire.PSNMask-j)))
		}
		if s := p.inject(storm...); len(s) != 0 {
			t.Fatalf("message %d: sent %+v", i, s)
		}
		if c := p.poll(); len(c) != 1 || c[0].WRID != uint64(i) || c[0].Status != rxe.WCSuccess {
			t.Fatalf("message %d: %+v", i, c)
		}
	}
	if s := p.advance(1000 * ms); len(s) != 0 || p.s.C.Retransmits != 0 {
		t.Fatal("something was sent again")
	}
}

// TestCreditUpdate: the last ACK again, with more credits, lets a requester go on that has run out
// of them (IBTA 9.7.7.2).
func TestCreditUpdate(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	credits := func(psn wire.PSN, n, msn uint32) packet {
		return packet{op: wire.RCAck, psn: psn, syn: wire.AckSyndrome(wire.CreditCode(n)), msn: msn}
	}
	one(t, p.post(p.sendWR(1, 8)))
	p.inject(credits(ourPSN, 0, 1))
	one(t, p.post(p.sendWR(2, 8))) // one may always go
	for i := uint64(3); i < 6; i++ {
		if s := p.post(p.sendWR(i, 8)); len(s) != 0 {
			t.Fatal("sent without credit")
		}
	}
	if s := p.inject(credits(ourPSN, 3, 1)); len(s) != 2 {
		t.Fatalf("with credits for messages up to 4: %d packets, want 2", len(s))
	}
}

// TestReadInParts: a READ longer than the window is asked for in parts that it holds, at most two
// outstanding and no more than the depth allows; each is a request of its own to the responder, and what
// is lost is asked for again up to where its request ended.
func TestReadInParts(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7, rd: 4})
	const n = 256*99 + 17                  // 100 PSNs
	asked := func(s []sent, want ...int) { // pairs of first PSN and number of PSNs
		t.Helper()
		if len(s) != len(want)/2 {
			t.Fatalf("asked %d times, want %d: %+v", len(s), len(want)/2, s)
		}
		for i, k := range s {
			first, count := want[2*i], want[2*i+1]
			length := min(256*count, n-256*first)
			if k.op != wire.RCReadRequest || k.psn != ourPSN.Add(uint32(first)) || k.length != length || k.va != 0x5000+uint64(256*first) {
				t.Fatalf("asked for PSN +%d, %d bytes at %#x; want +%d, %d bytes", k.psn.Diff(ourPSN), k.length, k.va, first, length)
			}
		}
	}
	answer := func(from, to, first, last int) (out []sent) { // PSNs from..to-1 of the request first..last
		t.Helper()
		for i := from; i < to; i++ {
			op := wire.RCReadRespMiddle
			if i == first {
				op = wire.RCReadRespFirst
			}
			if i == last {
				op = wire.RCReadRespLast
			}
			out = append(out, p.inject(p.response(op, ourPSN.Add(uint32(i)), min(256, n-256*i)))...)
		}
		return out
	}
	asked(p.post(p.readWR(1, n)), 0, 16)
	asked(answer(0, 5, 0, 15)) // the window is 21 now, 10 are free: not yet half
	asked(answer(5, 6, 0, 15), 16, 12)
	asked(answer(6, 15, 0, 15))          // two are outstanding
	asked(answer(15, 16, 0, 15), 28, 20) // the first is answered
	again := p.inject(p.response(wire.RCReadRespMiddle, ourPSN.Add(20), 256))
	asked(again, 16, 12, 28, 20) // what is lost is asked for in the same parts
	asked(answer(16, 28, 16, 27))
	todo := p.advance(2 * ackT14)
	asked(todo[:1], 28, 20) // nothing came: the window is small, the part as it was
	next := 28
	for len(todo) > 0 {
		k := todo[0]
		first, count := int(k.psn.Diff(ourPSN)), (k.length+255)/256
		if first != next || rxe.ReadsOutstanding(p.q) > 2 {
			t.Fatalf("asked for PSN +%d, want +%d; %d requests outstanding", first, next, rxe.ReadsOutstanding(p.q))
		}
		next += count
		todo = append(todo[1:], answer(first, next, first, next-1)...)
	}
	p.wantWC("1:success")
	if next != 100 || rxe.ReadsOutstanding(p.q) != 0 {
		t.Fatalf("answered up to PSN +%d, %d requests outstanding", next, rxe.ReadsOutstanding(p.q))
	}
	for i, x := range p.mem.Buf[0x8000:][:n] {
		if x != byte(ourPSN.Add(uint32(i/256))) {
			t.Fatalf("byte %d is wrong", i)
		}
	}
}

// TestReadPartsWithDepth1: with depth 1 one part is outstanding at a time; the whole is read.
func TestReadPartsWithDepth1(t *testing.T) {
	for _, depth := range []uint8{1, 2, 16} {
		p := newPair(t, pairConfig{mem: 1 << 20, sim: sim.Config{Seed: uint64(depth), Faults: sim.Faults{Drop: 0.002, Duplicate: 0.01, Reorder: 0.01}},
			conn: sim.ConnAttr{PMTU: 512, RdAtomic: depth, PSN: 0xfffff0}})
		for i := range 6 {
			n := 100_000 + 7777*i
			p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.a.mem.SGE(150_000*i, n)}, RemoteAddr: memAddr + uint64(i), RKey: p.b.mem.Key})
			p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRRDMAWrite, Flags: rxe.SendFence, SGEs: []rxe.SGE{p.a.mem.SGE(150_000*i, 1)}, RemoteAddr: memAddr + 1000_000, RKey: p.b.mem.Key})
			for _, c := range p.wait(p.a, 2) {
				wantStatus(t, c, rxe.WCSuccess)
			}
			if !bytes.Equal(p.a.mem.Buf[150_000*i:][:n], p.b.mem.Buf[i:][:n]) {
				t.Fatalf("depth %d: %d bytes differ", depth, n)
			}
		}
		if c := p.b.q.Shard().C; c.Drops[rxe.ReasonNoResources] != 0 || rxe.ReadsOutstanding(p.a.q) != 0 {
			t.Fatalf("depth %d was exceeded", depth)
		}
	}
}

// TestReadLength: the longest READ has 2^23-1 PSNs; one more is refused at post.
func TestReadLength(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{pmtu: 256})
	wr := rxe.SendWR{ID: 2, Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{{Addr: memAddr, Length: 256 * (1<<23 - 1), LKey: p.mem.Key}}}
	one(t, p.post(wr))
	wr.SGEs[0].Length++
	if err := p.q.PostSend(&wr); !errors.Is(err, rxe.ErrReadLen) {
		t.Fatalf("a READ of 2^23 PSNs: %v", err)
	}
}

// TestTimeoutNever: without an ACK timeout nothing is ever sent again.
func TestTimeoutNever(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD}, rxe.AttrState))
	p.must(p.q.Modify(&rxe.QPAttr{Timeout: 0}, rxe.AttrTimeout))
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
	p.post(p.writeWR(1, 8))
	if s := p.advance(1000_000 * ms); len(s) != 0 || p.s.Deadline() != rxe.Never {
		t.Fatalf("%d packets, deadline %v", len(s), p.s.Deadline())
	}
}

// TestRetransmitLKeyGone: a retransmission whose own lkey has gone ends with LOC_PROT_ERR (DESIGN 6).
func TestRetransmitLKeyGone(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	p.post(p.writeWR(1, 8))
	p.post(p.writeWR(2, 8))
	p.n.Dev.Keys().Unpublish(p.mem.Key.Index())
	if s := p.advance(2 * ackT14); len(s) != 0 {
		t.Fatalf("sent %+v", s)
	}
	p.wantWC("1:local protection error", "2:Work Request Flushed Error")
}

// TestWindow: a requester starts with 16 packets, asks for an ACK before it stops, opens the window
// with what is acknowledged and halves it after a loss.
func TestWindow(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	out := p.post(p.writeWR(1, 256*200))
	if len(out) != 16 || !out[15].ackReq {
		t.Fatalf("%d packets at first, AckReq on the last: %v", len(out), out[len(out)-1].ackReq)
	}
	out = p.inject(ack(ourPSN.Add(15)))
	if len(out) != 32 || !out[31].ackReq {
		t.Fatalf("%d packets after 16 acknowledged, want 32", len(out))
	}
	out = p.inject(nak(ourPSN.Add(16), wire.NAKPSNSeq))
	if len(out) != 16 || out[0].psn != ourPSN.Add(16) {
		t.Fatalf("%d packets after a loss, want 16", len(out))
	}
}
