package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
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

// TestRNRWaitMovesOn: during the wait for one SEND the RNR NAK of a later one comes: copies of what is
// between have been accepted. That is acknowledged, and the later one has a wait of its own.
func TestRNRWaitMovesOn(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rnr: 7, retry: 7})
	for i := range 3 {
		p.post(p.sendWR(uint64(i+1), 8))
	}
	p.inject(rnr(ourPSN, 14)) // 1.28 ms
	p.advance(1 * ms)
	if s := p.inject(rnr(ourPSN.Add(2), 14), ack(ourPSN.Next())); len(s) != 0 {
		t.Fatalf("sent during the wait: %+v", s)
	}
	p.wantWC("1:success", "2:success")
	if s := p.advance(1_280_000 - 1000); len(s) != 0 {
		t.Fatalf("sent during the second wait: %+v", s)
	}
	if s := one(t, p.advance(20_000)); s.psn != ourPSN.Add(2) {
		t.Fatalf("sent after the wait: %+v", s)
	}
	p.inject(ack(ourPSN.Add(2)))
	p.wantWC("3:success")
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

// TestWindow: a requester starts with 16 packets, asks for an ACK before it stops and opens the window
// with what is acknowledged. A loss halves it when a round trip takes twice as long as it may, else not.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		delay rxe.Time
		want  int
	}{{15_000, 32}, {20_000, 16}} {
		p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
		out := p.post(p.writeWR(1, 256*200))
		if len(out) != 16 || !out[15].ackReq {
			t.Fatalf("%d packets at first, AckReq on the last: %v", len(out), out[len(out)-1].ackReq)
		}
		p.advance(10_000)
		out = p.inject(ack(ourPSN.Add(15)))
		if len(out) != 32 || !out[31].ackReq {
			t.Fatalf("%d packets after 16 acknowledged, want 32", len(out))
		}
		p.advance(c.delay)
		out = p.inject(nak(ourPSN.Add(16), wire.NAKPSNSeq))
		if len(out) != c.want || out[0].psn != ourPSN.Add(16) {
			t.Fatalf("%d packets after a loss %d µs later, want %d", len(out), c.delay/1000, c.want)
		}
	}
}

// TestWindowRow: losses in flight after flight halve the window, though the delay says nothing.
func TestWindowRow(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	p.post(p.writeWR(1, 256*1000))
	p.advance(10_000)
	p.inject(ack(ourPSN.Add(15)))
	x, was := ourPSN.Add(16), 32
	for i := range 6 {
		p.advance(10_000)
		n := len(p.inject(nak(x, wire.NAKPSNSeq)))
		if i == 4 && n > (was+was/3)/2 || i < 4 && n < was {
			t.Fatalf("%d packets after loss %d, %d before", n, i+1, was)
		}
		x, was = x.Add(uint32(n)/3), n
	}
}

// TestProbe: where a packet that was sent again is lost as well, one packet goes out long before the ACK
// timeout, which is no retry; its ACK makes the rest follow. A READ is left to the timeout.
func TestProbe(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 1})
	p.post(p.writeWR(1, 256*40))
	p.advance(10_000)
	p.inject(ack(ourPSN.Add(15)))
	p.advance(10_000)
	p.inject(nak(ourPSN.Add(16), wire.NAKPSNSeq))
	out := p.advance(10 * ms)
	if len(out) != 1 || out[0].psn != ourPSN.Add(16) || !out[0].ackReq {
		t.Fatalf("probes %+v", out)
	}
	if out := p.advance(ackT14 - 11*ms); len(out) != 0 {
		t.Fatalf("%d packets after the probe", len(out))
	}
	if out := p.inject(ack(ourPSN.Add(16))); len(out) != 23 || out[0].psn != ourPSN.Add(17) {
		t.Fatalf("%d packets after its ACK", len(out))
	}
	p.inject(nak(ourPSN.Add(17), wire.NAKPSNSeq))
	p.inject(ack(ourPSN.Add(39)))
	p.wantWC("1:success")
	p.post(p.readWR(2, 8))
	if out := p.advance(ackT14 - ms); len(out) != 0 {
		t.Fatalf("%d packets after a READ", len(out))
	}
}

// TestProbeNotOfBusyPeer: an ACK timeout alone makes the path one that loses packets, until the peer
// acknowledges a packet twice: it had come, and the peer was busy. No probe goes out after that.
func TestProbeNotOfBusyPeer(t *testing.T) {
	for _, busy := range []bool{true, false} {
		p := qpIn(t, rxe.StateRTS, rawConfig{retry: 3})
		write := func(x rxe.PSN) {
			t.Helper()
			if out := p.post(p.writeWR(1, 8)); len(out) != 1 || out[0].psn != x {
				t.Fatalf("posted: %+v, want PSN %v", out, x)
			}
		}
		write(ourPSN)
		p.advance(10_000)
		p.inject(ack(ourPSN))
		write(ourPSN.Add(1))
		out := p.advance(ackT14 + ms) // and a probe
		if len(out) != 2 || out[0].psn != ourPSN.Add(1) || out[1].psn != out[0].psn {
			t.Fatalf("after the ACK timeout: %+v", out)
		}
		p.inject(ack(ourPSN.Add(1)))
		write(ourPSN.Add(2))
		if busy {
			p.inject(ack(ourPSN.Add(1)))
		}
		want := map[bool]int{true: 0, false: 1}[busy]
		if out := p.advance(ackT14 - ms); len(out) != want {
			t.Fatalf("busy %v: %d packets before the next ACK timeout, want %d", busy, len(out), want)
		}
	}
}
