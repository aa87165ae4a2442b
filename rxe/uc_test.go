package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// uc injects packets from PSN firstPSN+at on and expects no answer.
func (p *rawPeer) uc(at uint32, ks ...packet) {
	p.t.Helper()
	for i := range ks {
		ks[i].psn = firstPSN.Add(at + uint32(i))
	}
	if s := p.inject(ks...); len(s) != 0 {
		p.t.Fatalf("a UC QP answered %+v", s)
	}
}

func ucSend(op wire.Opcode, n int, x byte) packet { return packet{op: op, payload: fill(n, x)} }

// TestUCDrops: whatever is wrong with a message, UC drops it and no other: the QP lives, nothing is
// answered, the receive WQE serves the next message, and the reason is counted (2.9).
func TestUCDrops(t *testing.T) {
	va := uint64(memAddr) + 4096
	for name, c := range map[string]struct {
		cfg    rawConfig
		ks     []packet // the bad message, rkey filled in
		reason rxe.Reason
	}{
		"gap":                   {rawConfig{}, []packet{ucSend(wire.UCSendFirst, 256, 1), {}, ucSend(wire.UCSendLast, 9, 1)}, rxe.ReasonUCGap},
		"middle without first":  {rawConfig{}, []packet{ucSend(wire.UCSendMiddle, 256, 1)}, rxe.ReasonOpSequence},
		"send within write":     {rawConfig{}, []packet{{op: wire.UCWriteFirst, va: va, length: 600, payload: fill(256, 1)}, ucSend(wire.UCSendMiddle, 256, 1)}, rxe.ReasonOpSequence},
		"short first":           {rawConfig{}, []packet{ucSend(wire.UCSendFirst, 252, 1)}, rxe.ReasonPayloadLength},
		"empty last":            {rawConfig{}, []packet{ucSend(wire.UCSendFirst, 256, 1), ucSend(wire.UCSendLast, 0, 1)}, rxe.ReasonPayloadLength},
		"long only":             {rawConfig{}, []packet{ucSend(wire.UCSendOnly, 260, 1)}, rxe.ReasonPayloadLength},
		"longer than buffers":   {rawConfig{}, []packet{ucSend(wire.UCSendFirst, 256, 1), ucSend(wire.UCSendMiddle, 256, 1), ucSend(wire.UCSendLast, 89, 1)}, rxe.ReasonRecvTooSmall},
		"write disabled":        {rawConfig{access: mr.RemoteRead}, []packet{{op: wire.UCWriteOnly, va: va, length: 4, payload: fill(4, 1)}}, rxe.ReasonOpDisabled},
		"write, other length":   {rawConfig{}, []packet{{op: wire.UCWriteOnly, va: va, length: 5, payload: fill(4, 1)}}, rxe.ReasonMessageLength},
		"write outside":         {rawConfig{}, []packet{{op: wire.UCWriteOnly, va: va - 4097, length: 4, payload: fill(4, 1)}}, rxe.ReasonKeyRange},
		"write imm outside":     {rawConfig{}, []packet{{op: wire.UCWriteOnlyImm, va: va - 4097, length: 4, payload: fill(4, 1)}}, rxe.ReasonKeyRange},
		"rest of a bad message": {rawConfig{}, []packet{ucSend(wire.UCSendFirst, 252, 1), ucSend(wire.UCSendMiddle, 256, 1)}, rxe.ReasonUCDropped},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.typ = rxe.UC
			p := qpIn(t, rxe.StateRTS, c.cfg)
			p.recv(1, 600)
			at := uint32(0)
			for _, k := range c.ks {
				if k.op != 0 {
					k.rkey = p.mem.Key
					p.uc(at, k)
				}
				at++
			}
			p.wantWC()
			p.state(rxe.StateRTS)
			if p.s.C.Drops[c.reason] != 1 {
				t.Errorf("%v counted %d times", c.reason, p.s.C.Drops[c.reason])
			}
			p.uc(at, ucSend(wire.UCSendFirst, 256, 7), ucSend(wire.UCSendLast, 10, 8))
			if got := p.poll(); len(got) != 1 || got[0].WRID != 1 || got[0].ByteLen != 266 || p.mem.Buf[0] != 7 || p.mem.Buf[265] != 8 {
				t.Errorf("next message: %+v", got)
			}
		})
	}
}

// TestUCWriteAfterAbortedSend: a plain WRITE makes no receive completion although a receive WQE is
// held from a SEND that was not finished; WRITE with immediate uses that WQE.
func TestUCWriteAfterAbortedSend(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
	p.recv(1, 600)
	write := packet{op: wire.UCWriteOnly, va: memAddr + 4096, rkey: p.mem.Key, length: 4, payload: fill(4, 5)}
	p.uc(0, ucSend(wire.UCSendFirst, 256, 1), write)
	p.wantWC()
	if p.mem.Buf[4096] != 5 {
		t.Fatal("the WRITE was not executed")
	}
	write.op, write.imm = wire.UCWriteOnlyImm, 77
	p.uc(2, write)
	if c := p.poll(); len(c) != 1 || c[0].WRID != 1 || c[0].Opcode != rxe.WCRecvRDMAWithImm || c[0].Imm != 77 || c[0].ByteLen != 4 {
		t.Fatalf("completions %+v", c)
	}
}

// TestUCBadReceive: a receive WQE that cannot be used fails, and ends the QP: that is the receiver's
// own fault.
func TestUCBadReceive(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
	p.must(p.q.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{{Addr: memAddr, Length: 100, LKey: 3}}}))
	p.recv(2, 100)
	p.uc(0, ucSend(wire.UCSendOnly, 8, 1))
	p.wantWC("1:local protection error", "2:Work Request Flushed Error")
	p.state(rxe.StateErr)
}

// TestUCPSNWrap: a message whose PSNs wrap is whole, in both directions.
func TestUCPSNWrap(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
	p.recv(1, 2000)
	var ks []packet
	for i := 0; i < 6; i++ { // firstPSN is 0xfffffe
		op := []wire.Opcode{wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendMiddle, wire.UCSendMiddle, wire.UCSendMiddle, wire.UCSendLast}[i]
		ks = append(ks, ucSend(op, 256, byte(i)))
	}
	p.uc(0, ks...)
	if c := p.poll(); len(c) != 1 || c[0].ByteLen != 6*256 || p.mem.Buf[5*256] != 5 {
		t.Fatalf("completions %+v", c)
	}
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState))
	p.bring(rxe.StateRTR, rawConfig{typ: rxe.UC, access: mr.RemoteWrite, pmtu: 256})
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS, SQPSN: 0xffffff}, rxe.AttrState|rxe.AttrSQPSN))
	for i := uint64(0); i < 2; i++ {
		out := p.post(rxe.SendWR{ID: i, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.mem.SGE(0, 700)}, RemoteAddr: 0x5000, RKey: 7})
		for j, s := range out {
			want := []wire.Opcode{wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLast}[j]
			if psn := wire.PSN(0xffffff).Add(uint32(3*i) + uint32(j)); s.psn != psn || s.op != want || s.ackReq {
				t.Fatalf("message %d, packet %d: %v psn %#x AckReq %v, want %v %#x", i, j, s.op, s.psn, s.ackReq, want, psn)
			}
		}
		p.wantWC(fmt.Sprintf("%d:success", i))
	}
}

// TestUCSendFault: a local key that fails in the middle of a message ends it, and the send queue in
// SQE; back in RTS, the next message follows the last PSN sent, so that the peer sees no gap of ours.
func TestUCSendFault(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
	p.must(p.q.PostSend(&rxe.SendWR{ID: 1, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, 256), {Addr: memAddr, Length: 300, LKey: 9}}}))
	out := p.post(p.sendWR(2, 8))
	if s := one(t, out); s.op != wire.UCSendFirst {
		t.Fatalf("sent %+v", s)
	}
	p.wantWC("1:local protection error", "2:Work Request Flushed Error")
	p.state(rxe.StateSQE)
	p.recv(9, 100)
	p.uc(0, ucSend(wire.UCSendOnly, 8, 1))
	p.wantWC("9:success")
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
	if s := one(t, p.post(p.sendWR(3, 8))); s.op != wire.UCSendOnly || s.psn != ourPSN.Next() {
		t.Fatalf("sent %v psn %#x", s.op, s.psn)
	}
	p.wantWC("3:success")
}

// TestUCOperations: what UC can send, and what it refuses at post.
func TestUCOperations(t *testing.T) {
	for op, want := range map[rxe.WROpcode]wire.Opcode{
		rxe.WRSend: wire.UCSendOnly, rxe.WRSendWithImm: wire.UCSendOnlyImm,
		rxe.WRRDMAWrite: wire.UCWriteOnly, rxe.WRRDMAWriteWithImm: wire.UCWriteOnlyImm,
	} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
		s := one(t, p.post(rxe.SendWR{ID: 1, Opcode: op, SGEs: []rxe.SGE{p.mem.SGE(3, 50)}, RemoteAddr: 1, RKey: 2, Imm: 3}))
		if s.op != want || s.ackReq || !bytes.Equal(s.payload, p.mem.Buf[3:53]) {
			t.Errorf("opcode %d: %+v", op, s)
		}
		p.wantWC("1:success")
	}
	for _, op := range []rxe.WROpcode{rxe.WRRDMARead, rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd, rxe.WRAtomicWrite,
		rxe.WRFlush, rxe.WRSendWithInv, rxe.WRRegMR, rxe.WRLocalInv} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
		if err := p.q.PostSend(&rxe.SendWR{Opcode: op}); err != rxe.ErrBadOpcode {
			t.Errorf("opcode %d: %v", op, err)
		}
		// A hostile poster writes it into the ring.
		p.must(p.q.PostSend(&rxe.SendWR{ID: 5, Opcode: rxe.WRSend}))
		m := rxe.QueueMemory(&p.q.SQ)
		m[0] = m[0]&^0xff | uint64(op)
		p.q.RingDoorbell()
		if s := p.run(); len(s) != 0 {
			t.Errorf("opcode %d: sent %+v", op, s)
		}
		p.wantWC("5:local QP operation error")
	}
}
