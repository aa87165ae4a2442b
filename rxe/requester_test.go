package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

const (
	ackT14 = rxe.Time(4096 << 14) // ACK timeout 14: 67.1 ms
	ms     = rxe.Time(1_000_000)
)

func (p *rawPeer) writeWR(id uint64, n int) rxe.SendWR {
	return rxe.SendWR{ID: id, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.mem.SGE(0, n)}, RemoteAddr: 0x5000, RKey: 0x777}
}

func (p *rawPeer) readWR(id uint64, n int) rxe.SendWR {
	return rxe.SendWR{ID: id, Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.mem.SGE(0x8000, n)}, RemoteAddr: 0x5000, RKey: 0x777}
}

func ack(psn wire.PSN) packet {
	return packet{op: wire.RCAck, psn: psn, syn: wire.AckSyndrome(31)}
}

func nak(psn wire.PSN, code wire.NAKCode) packet {
	return packet{op: wire.RCAck, psn: psn, syn: wire.NAKSyndrome(code)}
}

func rnr(psn wire.PSN, code uint8) packet {
	return packet{op: wire.RCAck, psn: psn, syn: wire.RNRSyndrome(code)}
}

// wantWC expects these completions, in order, as "id:status".
func (p *rawPeer) wantWC(want ...string) {
	p.t.Helper()
	var got []string
	for _, c := range p.poll() {
		got = append(got, fmt.Sprintf("%d:%v", c.WRID, c.Status))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.t.Fatalf("completions %v, want %v", got, want)
	}
}

// TestSegmentation: opcodes, payloads, RETH and AckReq of messages around the path MTU.
func TestSegmentation(t *testing.T) {
	for _, c := range []struct {
		op   rxe.WROpcode
		n    int
		want string
	}{
		{rxe.WRSend, 0, "RC_SEND_ONLY"},
		{rxe.WRSend, 256, "RC_SEND_ONLY"},
		{rxe.WRSend, 257, "RC_SEND_FIRST RC_SEND_LAST"},
		{rxe.WRSendWithImm, 10, "RC_SEND_ONLY_IMM"},
		{rxe.WRSendWithImm, 700, "RC_SEND_FIRST RC_SEND_MIDDLE RC_SEND_LAST_IMM"},
		{rxe.WRSendWithInv, 10, "RC_SEND_ONLY_INV"},
		{rxe.WRSendWithInv, 700, "RC_SEND_FIRST RC_SEND_MIDDLE RC_SEND_LAST_INV"},
		{rxe.WRRDMAWrite, 0, "RC_WRITE_ONLY"},
		{rxe.WRRDMAWrite, 700, "RC_WRITE_FIRST RC_WRITE_MIDDLE RC_WRITE_LAST"},
		{rxe.WRRDMAWriteWithImm, 256, "RC_WRITE_ONLY_IMM"},
		{rxe.WRRDMAWriteWithImm, 300, "RC_WRITE_FIRST RC_WRITE_LAST_IMM"},
		{rxe.WRRDMARead, 700, "RC_READ_REQUEST"},
	} {
		t.Run(fmt.Sprintf("%d/%d", c.op, c.n), func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			out := p.post(rxe.SendWR{ID: 1, Opcode: c.op, SGEs: []rxe.SGE{p.mem.SGE(0, c.n)}, RemoteAddr: 0x5000, RKey: 0x777, Imm: 0xfeed})
			var ops []string
			var data []byte
			for i, s := range out {
				ops = append(ops, s.op.String())
				data = append(data, s.payload...)
				if s.psn != ourPSN.Add(uint32(i)) {
					t.Errorf("packet %d: psn %#x", i, s.psn)
				}
				if last := i == len(out)-1; last && !s.ackReq {
					t.Error("no AckReq on the last packet")
				}
			}
			if got := fmt.Sprint(ops); got != "["+c.want+"]" {
				t.Fatalf("opcodes %s, want %s", got, c.want)
			}
			if c.op != rxe.WRRDMARead && !bytes.Equal(data, p.mem.Buf[:c.n]) {
				t.Error("payload differs")
			}
			if c.op == rxe.WRRDMAWrite && (out[0].va != 0x5000 || out[0].rkey != 0x777 || out[0].length != c.n) {
				t.Errorf("RETH %+v", out[0])
			}
		})
	}
}

// TestCase3RetryCount: a dead peer sees 1 + retry_cnt transmissions, 7 included, then RETRY_EXC_ERR;
// each wait lies between T and 4T.
func TestCase3RetryCount(t *testing.T) {
	for _, retry := range []uint8{0, 1, 7} {
		p := qpIn(t, rxe.StateRTS, rawConfig{retry: retry})
		sends := len(p.post(p.writeWR(9, 8)))
		for i := 0; i < 40; i++ {
			sends += len(p.advance(ackT14 / 4))
		}
		sends += len(p.advance(40 * ackT14))
		if sends != 1+int(retry) {
			t.Fatalf("retry_cnt %d: %d transmissions", retry, sends)
		}
		p.wantWC("9:transport retry counter exceeded")
		p.state(rxe.StateErr)
	}
}

// TestTimerRange: the ACK timer fires between T and 4T (IBTA 9.7.6.1.3), for every exponent.
func TestTimerRange(t *testing.T) {
	for exp := uint8(1); exp <= 24; exp++ {
		p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7, timeout: exp})
		p.post(p.writeWR(1, 8))
		wait := rxe.AckTimeout(exp)
		if s := p.advance(wait - 1); len(s) != 0 {
			t.Fatalf("timeout %d: sent again before T", exp)
		}
		if s := p.advance(3 * wait); len(s) == 0 {
			t.Fatalf("timeout %d: nothing within 4T", exp)
		}
	}
}

// TestCase2RNRRetry: rnr_retry counts 0 to 6 and is without end at 7.
func TestCase2RNRRetry(t *testing.T) {
	for _, n := range []uint8{0, 1, 6, 7} {
		p := qpIn(t, rxe.StateRTS, rawConfig{rnr: n, retry: 1})
		out := p.post(rxe.SendWR{ID: 4, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, 8)}})
		tries := 0
		for len(out) > 0 && tries < 100 {
			tries += len(out)
			p.inject(rnr(ourPSN, 1))
			out = p.advance(1 * ms)
		}
		if n == 7 {
			if tries != 100 {
				t.Fatalf("rnr_retry 7 gave up after %d", tries)
			}
			continue
		}
		if tries != int(n)+1 {
			t.Fatalf("rnr_retry %d: %d transmissions", n, tries)
		}
		p.wantWC("4:RNR retry counter exceeded")
	}
}

// TestCase1RNRWait: during an RNR wait nothing is sent and the ACK timer does not run; NAKs and
// further RNR NAKs of the same flight are ignored.
func TestCase1RNRWait(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rnr: 7, retry: 7, timeout: 1})
	p.post(rxe.SendWR{ID: 1, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, 8)}})
	p.inject(rnr(ourPSN, 14)) // 1.28 ms
	if s := p.post(p.writeWR(2, 8)); len(s) != 0 {
		t.Fatal("sent during an RNR wait")
	}
	p.inject(nak(ourPSN, wire.NAKPSNSeq), rnr(ourPSN, 14))
	if s := p.advance(1_280_000 - 1000); len(s) != 0 {
		t.Fatal("sent before the delay was over")
	}
	if s := p.advance(20_000); len(s) < 2 || s[0].psn != ourPSN {
		t.Fatalf("after the delay: %+v", s)
	}
	if p.s.C.Timeouts != 0 {
		t.Fatal("the ACK timer ran")
	}
	p.inject(ack(ourPSN.Next()))
	p.wantWC("1:success", "2:success")
}

// TestCase6ImpliedNAK: an ACK beyond an incomplete READ acknowledges what is before it and asks
// for the READ again, without completing it.
func TestCase6ImpliedNAK(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	p.post(p.writeWR(1, 8))
	p.post(p.readWR(2, 600)) // PSNs +1..+3
	p.post(p.writeWR(3, 8))  // +4
	again := p.inject(ack(ourPSN.Add(4)))
	p.wantWC("1:success")
	if len(again) != 2 || again[0].op != wire.RCReadRequest || again[0].psn != ourPSN.Add(1) || again[0].length != 600 || again[1].psn != ourPSN.Add(4) {
		t.Fatalf("asked again: %+v", again)
	}
	if s := p.inject(ack(ourPSN.Add(4))); len(s) != 0 {
		t.Fatalf("asked twice: %+v", s)
	}
	p.inject(p.response(wire.RCReadRespFirst, ourPSN.Add(1), 256), p.response(wire.RCReadRespMiddle, ourPSN.Add(2), 256),
		p.response(wire.RCReadRespLast, ourPSN.Add(3), 88), ack(ourPSN.Add(4)))
	p.wantWC("2:success", "3:success")
}

func (p *rawPeer) response(op wire.Opcode, psn wire.PSN, n int) packet {
	return packet{op: op, psn: psn, syn: wire.AckSyndrome(31), payload: fill(n, byte(psn))}
}

// TestReadResume: response k of n is lost, for every k: the rest is asked for with its own address,
// length and PSN, and rxe's opcodes for the answer are accepted as well as FIRST.
func TestReadResume(t *testing.T) {
	for k := 0; k < 4; k++ {
		for _, rxeStyle := range []bool{false, true} {
			p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
			p.post(p.readWR(1, 1000))
			op := func(i, first int) wire.Opcode {
				switch {
				case i == 3 && i == first && !rxeStyle:
					return wire.RCReadRespOnly
				case i == 3:
					return wire.RCReadRespLast
				case i == first && (!rxeStyle || first == 0):
					return wire.RCReadRespFirst
				}
				return wire.RCReadRespMiddle
			}
			size := func(i int) int { return min(256, 1000-256*i) }
			var again []sent
			for i := 0; i < 4; i++ {
				if i != k {
					again = append(again, p.inject(p.response(op(i, 0), ourPSN.Add(uint32(i)), size(i)))...)
				}
			}
			if k == 3 {
				again = p.advance(2 * ackT14)
			}
			r := one(t, again)
			if r.op != wire.RCReadRequest || r.psn != ourPSN.Add(uint32(k)) || r.va != 0x5000+uint64(256*k) || r.length != 1000-256*k {
				t.Fatalf("k=%d: asked for %+v", k, r)
			}
			p.wantWC()
			for i := k; i < 4; i++ {
				p.inject(p.response(op(i, k), ourPSN.Add(uint32(i)), size(i)))
			}
			p.wantWC("1:success")
			for i := 0; i < 1000; i++ {
				if p.mem.Buf[0x8000+i] != byte(ourPSN.Add(uint32(i/256))) {
					t.Fatalf("k=%d: byte %d wrong", k, i)
				}
			}
		}
	}
}

// TestNAKStatus: each NAK ends the work request it names with its own status; what is before it has
// succeeded, what is behind is flushed.
func TestNAKStatus(t *testing.T) {
	for code, st := range map[wire.NAKCode]rxe.WCStatus{
		wire.NAKInvalidRequest: rxe.WCRemInvReqErr, wire.NAKRemoteAccess: rxe.WCRemAccessErr,
		wire.NAKRemoteOp: rxe.WCRemOpErr, wire.NAKInvalidRD: rxe.WCRemInvRDReqErr,
	} {
		p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
		p.recv(50, 10)
		for i := uint64(1); i <= 3; i++ {
			p.post(p.writeWR(i, 8))
		}
		p.inject(nak(ourPSN.Next(), code))
		p.wantWC("1:success", "2:"+st.String(), "3:Work Request Flushed Error", "50:Work Request Flushed Error")
		p.state(rxe.StateErr)
		p.must(p.q.PostSend(&rxe.SendWR{ID: 60, Opcode: rxe.WRSend}))
		p.recv(61, 10)
		p.q.RingDoorbell()
		p.run()
		p.wantWC("60:Work Request Flushed Error", "61:Work Request Flushed Error")
	}
}

// TestSeqNAK: NAK PSN sequence error acknowledges what is before and resends from there.
func TestSeqNAK(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 1})
	p.post(p.writeWR(1, 8))
	p.post(p.writeWR(2, 700))
	p.post(p.writeWR(3, 8))
	out := p.inject(nak(ourPSN.Add(2), wire.NAKPSNSeq))
	p.wantWC("1:success")
	if len(out) != 3 || out[0].op != wire.RCWriteMiddle || out[0].psn != ourPSN.Add(2) || out[1].op != wire.RCWriteLast || out[2].psn != ourPSN.Add(4) {
		t.Fatalf("resent %+v", out)
	}
	if !bytes.Equal(out[0].payload, p.mem.Buf[256:512]) {
		t.Fatal("resent payload differs")
	}
	p.inject(nak(ourPSN.Add(2), wire.NAKPSNSeq))
	p.wantWC("2:transport retry counter exceeded", "3:Work Request Flushed Error")
}

// TestProgressResetsRetries: any forward progress gives all retries back.
func TestProgressResetsRetries(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 1})
	p.post(p.writeWR(1, 256*6))
	for i := uint32(1); i < 6; i++ {
		p.inject(nak(ourPSN.Add(i), wire.NAKPSNSeq))
	}
	p.state(rxe.StateRTS)
	p.inject(ack(ourPSN.Add(5)))
	p.wantWC("1:success")
}

// TestCase4NoSpuriousRetry: after the last ACK the timer is silent.
func TestCase4NoSpuriousRetry(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7, timeout: 1})
	for i := 0; i < 50; i++ {
		p.post(p.writeWR(1, 8))
		p.inject(ack(ourPSN.Add(uint32(i))))
	}
	if s := p.advance(10_000 * ms); len(s) != 0 || p.s.C.Timeouts != 0 || p.s.Deadline() != rxe.Never {
		t.Fatalf("%d packets, %d timeouts, deadline %v", len(s), p.s.C.Timeouts, p.s.Deadline())
	}
}

// TestCase50Fence: a fenced request waits for all READs and atomics before it, not for the first.
func TestCase50Fence(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 4})
	for i := uint64(0); i < 3; i++ {
		p.post(p.readWR(i, 8))
	}
	wr := rxe.SendWR{ID: 9, Opcode: rxe.WRSend, Flags: rxe.SendFence, SGEs: []rxe.SGE{p.mem.SGE(0, 8)}}
	for i := uint32(0); i < 3; i++ {
		if i == 0 {
			if s := p.post(wr); len(s) != 0 {
				t.Fatal("fenced SEND went out with three READs outstanding")
			}
		}
		s := p.inject(p.response(wire.RCReadRespOnly, ourPSN.Add(i), 8))
		if got := len(s) == 1; got != (i == 2) {
			t.Fatalf("after answer %d: %+v", i, s)
		}
	}
}

// TestReadDepth: no more READs and atomics in flight than negotiated; depth 0 refuses them.
func TestReadDepth(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 2})
	for i := uint64(0); i < 2; i++ {
		one(t, p.post(p.readWR(i, 8)))
	}
	if s := p.post(p.readWR(2, 8)); len(s) != 0 {
		t.Fatal("third READ went out")
	}
	one(t, p.inject(p.response(wire.RCReadRespOnly, ourPSN, 8)))
	p = qpIn(t, rxe.StateRTS, rawConfig{rd: -1})
	p.post(p.readWR(1, 8))
	p.wantWC("1:local QP operation error")
	p.state(rxe.StateErr)
}

// TestBadResponses: an answer that does not fit the request ends it with BAD_RESP_ERR and touches
// no memory; one that fits nothing outstanding is dropped.
func TestBadResponses(t *testing.T) {
	for name, k := range map[string]packet{
		"short":             {op: wire.RCReadRespFirst, payload: fill(100, 1)},
		"long":              {op: wire.RCReadRespFirst, payload: fill(260, 1)},
		"last too early":    {op: wire.RCReadRespLast, payload: fill(256, 1)},
		"atomic for a READ": {op: wire.RCAtomicAck},
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			p.post(p.readWR(1, 600))
			before := append([]byte(nil), p.mem.Buf...)
			k.psn, k.syn = ourPSN, wire.AckSyndrome(31)
			p.inject(k)
			p.wantWC("1:bad response error")
			p.state(rxe.StateErr)
			if !bytes.Equal(before, p.mem.Buf) {
				t.Error("memory changed")
			}
		})
	}
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	p.post(p.readWR(1, 600))
	p.inject(ack(ourPSN.Add(wire.PSNMask)), ack(ourPSN.Add(3)), p.response(wire.RCReadRespFirst, ourPSN.Add(9), 256))
	if p.s.C.Drops[rxe.ReasonStaleAck] != 3 {
		t.Fatalf("stale drops: %d", p.s.C.Drops[rxe.ReasonStaleAck])
	}
	p.state(rxe.StateRTS)
}

// TestCase36LocalFaults: a bad local key fails its own work request, after those before it.
func TestCase36LocalFaults(t *testing.T) {
	bad := func(p *rawPeer) rxe.SGE { return rxe.SGE{Addr: memAddr, Length: 8, LKey: p.mem.Key + 1} }
	for _, op := range []rxe.WROpcode{rxe.WRSend, rxe.WRRDMAWrite, rxe.WRAtomicWrite} {
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		p.post(p.writeWR(1, 8))
		p.post(rxe.SendWR{ID: 2, Opcode: op, SGEs: []rxe.SGE{bad(p)}})
		p.wantWC()
		p.inject(ack(ourPSN))
		p.wantWC("1:success", "2:local protection error")
	}
	for op, k := range map[rxe.WROpcode]packet{ // the answer meets the bad key
		rxe.WRRDMARead:       {op: wire.RCReadRespOnly, payload: fill(8, 1)},
		rxe.WRAtomicFetchAdd: {op: wire.RCAtomicAck},
	} {
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		p.post(rxe.SendWR{ID: 2, Opcode: op, SGEs: []rxe.SGE{bad(p)}})
		k.psn, k.syn = ourPSN, wire.AckSyndrome(31)
		p.inject(k)
		p.wantWC("2:local protection error")
		p.state(rxe.StateErr)
	}
}

// TestCredits: a requester out of end-to-end credits sends one message at a time; WRITEs do not
// need any (IBTA 9.7.7.2).
func TestCredits(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	send := rxe.SendWR{ID: 1, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, 8)}}
	one(t, p.post(send))
	p.inject(packet{op: wire.RCAck, psn: ourPSN, syn: wire.AckSyndrome(wire.CreditCode(1)), msn: 1})
	one(t, p.post(send)) // the credit
	if s := p.post(send); len(s) != 0 {
		t.Fatal("sent without credit")
	}
	out := p.inject(packet{op: wire.RCAck, psn: ourPSN.Add(1), syn: wire.AckSyndrome(0), msn: 2})
	one(t, out) // nothing outstanding: one may go
	if s := p.post(send); len(s) != 0 {
		t.Fatal("second message without credit")
	}
	if s := p.inject(packet{op: wire.RCAck, psn: ourPSN.Add(2), syn: wire.AckSyndrome(31), msn: 3}); len(s) != 1 {
		t.Fatalf("credits are not given any more, but %+v", s)
	}
}

// TestAdvertisedCredits: a responder that gives credits counts its posted receive WQEs.
func TestAdvertisedCredits(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{credits: true})
	for i := uint64(0); i < 5; i++ {
		p.recv(i, 10)
	}
	s := one(t, p.inject(packet{op: wire.RCSendOnly, psn: firstPSN, ackReq: true}))
	if n, ok := wire.CreditCount(s.syn.Credits()); !ok || n != 4 {
		t.Fatalf("credits %d %v, want 4", n, ok)
	}
}
