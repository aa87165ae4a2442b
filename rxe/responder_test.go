package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

func fill(n int, x byte) []byte { return bytes.Repeat([]byte{x}, n) }

// write is a WRITE_ONLY of n bytes at offset off of the region.
func (p *rawPeer) write(psn wire.PSN, off, n int) packet {
	return packet{op: wire.RCWriteOnly, psn: psn, ackReq: true, va: memAddr + uint64(off),
		rkey: p.mem.Key, length: n, payload: fill(n, byte(psn))}
}

// TestC9_105Duplicate: a duplicate SEND or WRITE is acknowledged with the latest PSN and not
// executed again.
func TestC9_105Duplicate(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	wantAck(t, p.inject(p.write(firstPSN, 0, 8)), firstPSN, 1)
	wantAck(t, p.inject(p.write(firstPSN.Next(), 0, 8)), firstPSN.Next(), 2)
	p.mem.Buf[0] = 99
	wantAck(t, p.inject(p.write(firstPSN, 0, 8)), firstPSN.Next(), 2)
	if p.mem.Buf[0] != 99 {
		t.Fatal("duplicate WRITE was executed again")
	}
	p.recv(1, 100)
	send := packet{op: wire.RCSendOnly, psn: firstPSN.Add(2), ackReq: true, payload: fill(5, 1)}
	wantAck(t, p.inject(send), firstPSN.Add(2), 3)
	p.recv(2, 100)
	wantAck(t, p.inject(send), firstPSN.Add(2), 3)
	if c := p.poll(); len(c) != 1 || c[0].WRID != 1 {
		t.Fatalf("completions %+v", c)
	}
}

// TestOneNAKPerGap: one NAK until the missing packet has come, one more for the next gap.
func TestOneNAKPerGap(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	wantNAK(t, p.inject(p.write(firstPSN.Add(1), 0, 8)), firstPSN, wire.NAKPSNSeq)
	if s := p.inject(p.write(firstPSN.Add(2), 0, 8), p.write(firstPSN.Add(3), 0, 8)); len(s) != 0 {
		t.Fatalf("second NAK for one gap: %+v", s)
	}
	wantAck(t, p.inject(p.write(firstPSN, 0, 8)), firstPSN, 1)
	wantNAK(t, p.inject(p.write(firstPSN.Add(2), 0, 8)), firstPSN.Add(1), wire.NAKPSNSeq)
	p.state(rxe.StateRTS)
}

// TestAckCoalescing: one ACK covers a batch.
func TestAckCoalescing(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	var ks []packet
	for i := uint32(0); i < 5; i++ {
		ks = append(ks, p.write(firstPSN.Add(i), 0, 8))
	}
	wantAck(t, p.inject(ks...), firstPSN.Add(4), 5)
}

// TestC9_148ReadMSN: the MSN counts a READ when it is accepted, so that the first packet of its answer, and the ACK of
// what is executed meanwhile, know of it.
func TestC9_148ReadMSN(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	w := p.write(firstPSN.Add(3), 0, 8)
	w.ackReq = true
	p.receive(p.read(firstPSN, 0, 600))
	first := one(t, p.transmit(1))
	p.receive(w)
	rest := p.run()
	if first.op != wire.RCReadRespFirst || first.msn != 1 {
		t.Errorf("first answer: %v", first)
	}
	if len(rest) != 3 || rest[1].op != wire.RCReadRespLast || rest[1].msn != 2 || rest[2].op != wire.RCAck || rest[2].msn != 2 {
		t.Errorf("then %v", rest)
	}
}

// TestRefusals: every wrong request gets the NAK the rules name, ends the QP, touches no memory
// and leaves its reason in the counters.
func TestRefusals(t *testing.T) {
	va, big := uint64(memAddr), 256
	cases := []struct {
		name   string
		cfg    rawConfig
		first  []packet // accepted before
		k      packet
		code   wire.NAKCode
		reason rxe.Reason
	}{
		{"middle without first", rawConfig{}, nil, packet{op: wire.RCWriteMiddle, payload: fill(big, 1)}, wire.NAKInvalidRequest, rxe.ReasonOpSequence},
		{"last without first", rawConfig{}, nil, packet{op: wire.RCSendLast, payload: fill(3, 1)}, wire.NAKInvalidRequest, rxe.ReasonOpSequence},
		{"only inside message", rawConfig{}, []packet{{op: wire.RCWriteFirst, va: va, length: 600, payload: fill(big, 1)}},
			packet{op: wire.RCWriteOnly, va: va, length: 1, payload: fill(1, 1)}, wire.NAKInvalidRequest, rxe.ReasonOpSequence},
		{"send middle inside write", rawConfig{}, []packet{{op: wire.RCWriteFirst, va: va, length: 600, payload: fill(big, 1)}},
			packet{op: wire.RCSendMiddle, payload: fill(big, 1)}, wire.NAKInvalidRequest, rxe.ReasonOpSequence},
		{"write not enabled", rawConfig{access: mr.RemoteRead}, nil, packet{op: wire.RCWriteOnly, va: va, length: 1, payload: fill(1, 1)}, wire.NAKInvalidRequest, rxe.ReasonOpDisabled},
		{"read not enabled", rawConfig{access: mr.RemoteWrite}, nil, packet{op: wire.RCReadRequest, va: va, length: 1}, wire.NAKInvalidRequest, rxe.ReasonOpDisabled},
		{"atomic not enabled", rawConfig{access: mr.RemoteWrite}, nil, packet{op: wire.RCFetchAdd, va: va}, wire.NAKInvalidRequest, rxe.ReasonOpDisabled},
		{"atomic write not enabled", rawConfig{access: mr.RemoteRead}, nil, packet{op: wire.RCAtomicWrite, va: va, length: 8, payload: fill(8, 1)}, wire.NAKInvalidRequest, rxe.ReasonOpDisabled},
		{"flush not enabled", rawConfig{access: mr.RemoteRead}, nil, packet{op: wire.RCFlush, va: va, length: 8, place: 1}, wire.NAKInvalidRequest, rxe.ReasonOpDisabled},
		{"flush of no type", rawConfig{}, nil, packet{op: wire.RCFlush, va: va, length: 8, place: 0}, wire.NAKInvalidRequest, rxe.ReasonFlushType},
		{"flush of no level", rawConfig{}, nil, packet{op: wire.RCFlush, va: va, length: 8, place: 1, sel: 2}, wire.NAKInvalidRequest, rxe.ReasonFlushType},
		{"read with depth 0", rawConfig{rd: -1}, nil, packet{op: wire.RCReadRequest, va: va, length: 1}, wire.NAKInvalidRequest, rxe.ReasonNoResources},
		{"atomic with depth 0", rawConfig{rd: -1}, nil, packet{op: wire.RCCmpSwap, va: va}, wire.NAKInvalidRequest, rxe.ReasonNoResources},
		{"first shorter than PMTU", rawConfig{}, nil, packet{op: wire.RCWriteFirst, va: va, length: 600, payload: fill(big-4, 1)}, wire.NAKInvalidRequest, rxe.ReasonPayloadLength},
		{"first longer than PMTU", rawConfig{}, nil, packet{op: wire.RCWriteFirst, va: va, length: 600, payload: fill(big+4, 1)}, wire.NAKInvalidRequest, rxe.ReasonPayloadLength},
		{"only longer than PMTU", rawConfig{}, nil, packet{op: wire.RCWriteOnly, va: va, length: 300, payload: fill(300, 1)}, wire.NAKInvalidRequest, rxe.ReasonPayloadLength},
		{"empty last", rawConfig{}, []packet{{op: wire.RCWriteFirst, va: va, length: 300, payload: fill(big, 1)}},
			packet{op: wire.RCWriteLast}, wire.NAKInvalidRequest, rxe.ReasonPayloadLength},
		{"last longer than announced", rawConfig{}, []packet{{op: wire.RCWriteFirst, va: va, length: 300, payload: fill(big, 1)}},
			packet{op: wire.RCWriteLast, payload: fill(45, 1)}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"last shorter than announced", rawConfig{}, []packet{{op: wire.RCWriteFirst, va: va, length: 300, payload: fill(big, 1)}},
			packet{op: wire.RCWriteLast, payload: fill(43, 1)}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"middle where the last is due", rawConfig{}, []packet{{op: wire.RCWriteFirst, va: va, length: 512, payload: fill(big, 1)}},
			packet{op: wire.RCWriteMiddle, payload: fill(big, 1)}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"only of another length", rawConfig{}, nil, packet{op: wire.RCWriteOnly, va: va, length: 9, payload: fill(8, 1)}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"write of more than 2^31", rawConfig{}, nil, packet{op: wire.RCWriteFirst, va: va, length: 1<<31 + 1, payload: fill(big, 1)}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"read of more than 2^31", rawConfig{}, nil, packet{op: wire.RCReadRequest, va: va, length: 1<<31 + 1}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"misaligned atomic", rawConfig{}, nil, packet{op: wire.RCFetchAdd, va: va + 4}, wire.NAKInvalidRequest, rxe.ReasonAtomicAlign},
		{"misaligned atomic write", rawConfig{}, nil, packet{op: wire.RCAtomicWrite, va: va + 1, length: 8, payload: fill(8, 1)}, wire.NAKInvalidRequest, rxe.ReasonAtomicAlign},
		{"atomic write of 0 bytes", rawConfig{}, nil, packet{op: wire.RCAtomicWrite, va: va}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"atomic write of 12 bytes", rawConfig{}, nil, packet{op: wire.RCAtomicWrite, va: va, length: 8, payload: fill(12, 1)}, wire.NAKInvalidRequest, rxe.ReasonMessageLength},
		{"write outside", rawConfig{}, nil, packet{op: wire.RCWriteOnly, va: va + 1<<16 - 7, length: 8, payload: fill(8, 1)}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"write below", rawConfig{}, nil, packet{op: wire.RCWriteOnly, va: va - 1, length: 8, payload: fill(8, 1)}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"message longer than the region", rawConfig{}, nil, packet{op: wire.RCWriteFirst, va: va, length: 1<<16 + 1, payload: fill(big, 1)}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"read outside", rawConfig{}, nil, packet{op: wire.RCReadRequest, va: va, length: 1<<16 + 1}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"Case19 write wraps", rawConfig{}, nil, packet{op: wire.RCWriteOnly, va: 1<<64 - 8, length: 16, payload: fill(16, 1)}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"Case19 read wraps", rawConfig{}, nil, packet{op: wire.RCReadRequest, va: 1<<64 - 8, length: 16}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"atomic outside", rawConfig{}, nil, packet{op: wire.RCFetchAdd, va: va + 1<<16}, wire.NAKRemoteAccess, rxe.ReasonKeyRange},
		{"SEND longer than the buffers", rawConfig{}, nil, packet{op: wire.RCSendOnly, payload: fill(101, 1)}, wire.NAKInvalidRequest, rxe.ReasonRecvTooSmall},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, c.cfg)
			p.recv(5, 100)
			psn := firstPSN
			for _, k := range c.first {
				k.psn, k.rkey = psn, p.mem.Key
				if s := p.inject(k); len(s) != 0 {
					t.Fatalf("first packet answered: %+v", s)
				}
				psn = psn.Next()
			}
			before := append([]byte(nil), p.mem.Buf...)
			c.k.psn, c.k.rkey = psn, p.mem.Key
			wantNAK(t, p.inject(c.k), psn, c.code)
			p.state(rxe.StateErr)
			if p.s.C.Drops[c.reason] != 1 {
				t.Errorf("reason %v counted %d times", c.reason, p.s.C.Drops[c.reason])
			}
			if !bytes.Equal(before, p.mem.Buf) {
				t.Error("memory changed")
			}
			if got := p.poll(); len(got) != 1 || got[0].WRID != 5 || got[0].Status == rxe.WCSuccess {
				t.Errorf("receive completions %+v", got)
			}
		})
	}
}

// TestC9_88ZeroLength: no key is looked at when nothing is moved.
func TestC9_88ZeroLength(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	wantAck(t, p.inject(packet{op: wire.RCWriteOnly, psn: firstPSN, ackReq: true, rkey: 0xdeadbeef, va: 1}), firstPSN, 1)
	s := one(t, p.inject(packet{op: wire.RCReadRequest, psn: firstPSN.Next(), rkey: 0xdeadbeef, va: 1}))
	if s.op != wire.RCReadRespOnly || len(s.payload) != 0 || s.psn != firstPSN.Next() || s.msn != 2 {
		t.Fatalf("answer %+v", s)
	}
	// The answer was lost: rxe never answers again, we do.
	again := one(t, p.inject(packet{op: wire.RCReadRequest, psn: firstPSN.Next(), rkey: 0xdeadbeef, va: 1}))
	if again.op != wire.RCReadRespOnly {
		t.Fatalf("answer %+v", again)
	}
}

// TestReadDuplicates: a READ is executed again from memory, whole or in part; a part that does not
// lie inside the original is dropped.
func TestReadDuplicates(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	read := packet{op: wire.RCReadRequest, psn: firstPSN, va: memAddr + 4, rkey: p.mem.Key, length: 600}
	check := func(got []sent, ops []wire.Opcode, from int) {
		t.Helper()
		if len(got) != len(ops) {
			t.Fatalf("%d responses, want %d", len(got), len(ops))
		}
		off := 4 + from*256
		for i, s := range got {
			if s.op != ops[i] || s.psn != firstPSN.Add(uint32(from+i)) || !bytes.Equal(s.payload, p.mem.Buf[off:off+len(s.payload)]) {
				t.Fatalf("response %d: %v psn %#x", i, s.op, s.psn)
			}
			off += len(s.payload)
		}
		if off != 604 {
			t.Fatalf("responses end at %d", off)
		}
	}
	all := []wire.Opcode{wire.RCReadRespFirst, wire.RCReadRespMiddle, wire.RCReadRespLast}
	check(p.inject(read), all, 0)
	p.mem.Buf[10]++
	check(p.inject(read), all, 0)
	part := read
	part.psn, part.va, part.length = firstPSN.Next(), read.va+256, 600-256
	check(p.inject(part), []wire.Opcode{wire.RCReadRespFirst, wire.RCReadRespLast}, 1)
	for _, bad := range []packet{
		{op: wire.RCReadRequest, psn: firstPSN.Next(), va: read.va, rkey: p.mem.Key, length: 600},
		{op: wire.RCReadRequest, psn: firstPSN, va: read.va, rkey: p.mem.Key, length: 601},
		{op: wire.RCReadRequest, psn: firstPSN, va: read.va, rkey: p.mem.Key + 1, length: 600},
		{op: wire.RCReadRequest, psn: firstPSN, va: 1<<64 - 8, rkey: p.mem.Key, length: 600},
	} {
		if s := p.inject(bad); len(s) != 0 {
			t.Fatalf("bad duplicate answered: %+v", s)
		}
	}
	if p.s.C.Drops[rxe.ReasonReplayGone] != 4 {
		t.Fatalf("drops %d", p.s.C.Drops[rxe.ReasonReplayGone])
	}
}

// TestAtomicReplay: a duplicate atomic returns the stored original and changes nothing; beyond the
// resource ring it is dropped.
func TestAtomicReplay(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 2})
	copy(p.mem.Buf, []byte{5, 0, 0, 0, 0, 0, 0, 0})
	add := func(psn wire.PSN) packet {
		return packet{op: wire.RCFetchAdd, psn: psn, va: memAddr, rkey: p.mem.Key, swap: 10}
	}
	for i := uint32(0); i < 3; i++ {
		if s := one(t, p.inject(add(firstPSN.Add(i)))); s.op != wire.RCAtomicAck || s.orig != uint64(5+10*i) || s.msn != i+1 {
			t.Fatalf("answer %d: %+v", i, s)
		}
	}
	for i := uint32(1); i < 3; i++ {
		if s := one(t, p.inject(add(firstPSN.Add(i)))); s.orig != uint64(5+10*i) {
			t.Fatalf("replay %d: %+v", i, s)
		}
	}
	if s := p.inject(add(firstPSN)); len(s) != 0 {
		t.Fatalf("forgotten atomic answered: %+v", s)
	}
	if p.mem.Buf[0] != 35 {
		t.Fatalf("value %d, want 35", p.mem.Buf[0])
	}
	cas := packet{op: wire.RCCmpSwap, psn: firstPSN.Add(3), va: memAddr, rkey: p.mem.Key, compare: 35, swap: 77}
	if s := one(t, p.inject(cas)); s.orig != 35 || p.mem.Buf[0] != 77 {
		t.Fatalf("CMP_SWAP: %+v, value %d", s, p.mem.Buf[0])
	}
	cas.psn, cas.swap = firstPSN.Add(4), 99
	if s := one(t, p.inject(cas)); s.orig != 77 || p.mem.Buf[0] != 77 {
		t.Fatalf("failed CMP_SWAP: %+v, value %d", s, p.mem.Buf[0])
	}
}

// TestRNR: no receive WQE gives an RNR NAK with the QP's timer; nothing is applied, and the same
// packet succeeds later. A WRITE's immediate takes its WQE at the last packet.
func TestRNR(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	send := packet{op: wire.RCSendOnly, psn: firstPSN, ackReq: true, payload: fill(4, 9)}
	rnr := one(t, p.inject(send))
	if rnr.syn != wire.RNRSyndrome(12) || rnr.psn != firstPSN {
		t.Fatalf("got %+v", rnr)
	}
	if s := p.inject(packet{op: wire.RCSendOnly, psn: firstPSN.Next(), payload: fill(4, 9)}); len(s) != 0 {
		t.Fatalf("packet behind an RNR NAK answered: %+v", s)
	}
	p.recv(1, 4)
	wantAck(t, p.inject(send), firstPSN, 1)
	first := packet{op: wire.RCWriteFirst, psn: firstPSN.Add(1), va: memAddr + 1000, rkey: p.mem.Key, length: 300, payload: fill(256, 1)}
	last := packet{op: wire.RCWriteLastImm, psn: firstPSN.Add(2), ackReq: true, imm: 0xabcd, payload: fill(44, 2)}
	if s := one(t, p.inject(first, last)); s.syn != wire.RNRSyndrome(12) || s.psn != last.psn {
		t.Fatalf("got %+v", s)
	}
	if p.mem.Buf[1000+256] == 2 {
		t.Fatal("refused packet was applied")
	}
	p.recv(2, 4)
	wantAck(t, p.inject(last), last.psn, 2)
	c := p.poll()
	if len(c) != 2 || c[1].Opcode != rxe.WCRecvRDMAWithImm || c[1].Imm != 0xabcd || c[1].ByteLen != 300 {
		t.Fatalf("completions %+v", c)
	}
}

// TestResponderStates: which states execute requests (IBTA 10.3.1).
func TestResponderStates(t *testing.T) {
	for _, c := range []struct {
		st   rxe.QPState
		want bool
	}{{rxe.StateReset, false}, {rxe.StateInit, false}, {rxe.StateRTR, true}, {rxe.StateRTS, true}, {rxe.StateSQD, true}, {rxe.StateErr, false}} {
		t.Run(c.st.String(), func(t *testing.T) {
			p := qpIn(t, c.st, rawConfig{})
			if got := len(p.inject(p.write(firstPSN, 0, 8))) == 1; got != c.want {
				t.Fatalf("answered: %v, want %v", got, c.want)
			}
			if !c.want && p.s.C.Drops[rxe.ReasonQPState] != 1 {
				t.Fatal("drop not counted")
			}
		})
	}
}

// TestSendOpcodeLength is the grid of SEND opcode and payload length (Case22).
func TestSendOpcodeLength(t *testing.T) {
	for _, op := range []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly, wire.RCSendLastImm, wire.RCSendOnlyImm} {
		for _, n := range []int{0, 1, 255, 256, 257} {
			t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) {
				p := qpIn(t, rxe.StateRTS, rawConfig{})
				p.recv(1, 4096)
				psn := firstPSN
				f := op.Info().Flags
				if f&wire.FlagStart == 0 {
					p.inject(packet{op: wire.RCSendFirst, psn: psn, payload: fill(256, 1)})
					psn = psn.Next()
				}
				s := p.inject(packet{op: op, psn: psn, ackReq: true, payload: fill(n, 2)})
				legal := n <= 256 && (f&wire.FlagEnd != 0 || n == 256) && (f&wire.FlagStart != 0 || n > 0)
				if legal && s[0].syn.Kind() != wire.KindACK || !legal && s[0].syn != wire.NAKSyndrome(wire.NAKInvalidRequest) {
					t.Fatalf("syndrome %#x, legal %v", s[0].syn, legal)
				}
			})
		}
	}
}
