package rxe_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

func (p *rawPeer) read(psn wire.PSN, off, n int) packet {
	return packet{op: wire.RCReadRequest, psn: psn, va: memAddr + uint64(off), rkey: p.mem.Key, length: n}
}

func (p *rawPeer) add(psn wire.PSN, n uint64) packet {
	return packet{op: wire.RCFetchAdd, psn: psn, va: memAddr, rkey: p.mem.Key, swap: n}
}

// receive gives packets to the QP without letting it answer.
func (p *rawPeer) receive(ks ...packet) {
	p.t.Helper()
	p.s.Enter()
	for _, k := range ks {
		p.s.Receive(p.now, wire.Frame{Head: p.frame(k)})
	}
}

// transmit lets the QP send n packets.
func (p *rawPeer) transmit(n int) (out []sent) {
	p.t.Helper()
	for range n {
		b := make([]byte, 5000)
		l := p.s.Transmit(p.now, wire.Frame{Head: b})
		if l == 0 {
			break
		}
		out = append(out, p.parse(b[:l]))
	}
	return out
}

// TestLateCopyOfRead: a copy of an answered READ request arrives when the peer, keeping to the
// negotiated depth, has gone on: its new READ is served, the copy's answer given up.
func TestLateCopyOfRead(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 1})
	if n := len(p.inject(p.read(firstPSN, 0, 600))); n != 3 {
		t.Fatalf("%d responses", n)
	}
	p.receive(p.read(firstPSN, 0, 600)) // the copy
	p.transmit(1)
	p.receive(p.read(firstPSN.Add(3), 1000, 300))
	out := p.run()
	if len(out) != 2 || out[0].psn != firstPSN.Add(3) || !bytes.Equal(out[0].payload, p.mem.Buf[1000:1256]) {
		t.Fatalf("answered %+v", out)
	}
	p.state(rxe.StateRTS)
}

// TestDepthExceeded: a peer with more READs and atomics outstanding than negotiated is refused.
func TestDepthExceeded(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 2})
	p.receive(p.read(firstPSN, 0, 8), p.add(firstPSN.Next(), 1), p.add(firstPSN.Add(2), 1))
	out := p.run()
	if len(out) != 3 || out[0].op != wire.RCReadRespOnly || out[1].op != wire.RCAtomicAck {
		t.Fatalf("what came before must be answered: %+v", out)
	}
	wantNAK(t, out[2:], firstPSN.Add(2), wire.NAKInvalidRequest)
	p.state(rxe.StateErr)
}

// TestReadAndCopyInFlight: the copy of a READ that is being answered begins its answer again; the
// READ behind it keeps its place.
func TestReadAndCopyInFlight(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 2})
	p.receive(p.read(firstPSN, 0, 600), p.read(firstPSN.Add(3), 600, 8))
	p.transmit(1)
	p.receive(p.read(firstPSN, 0, 600))
	var psns []wire.PSN
	for _, s := range p.run() {
		psns = append(psns, s.psn)
	}
	want := []wire.PSN{firstPSN, firstPSN.Add(1), firstPSN.Add(2), firstPSN.Add(3)}
	if len(psns) != 4 || psns[0] != want[0] || psns[1] != want[1] || psns[2] != want[2] || psns[3] != want[3] {
		t.Fatalf("answers %x, want %x", psns, want)
	}
}

// TestCase48DepthChangedInSQD: MAX_DEST_RD_ATOMIC is changed in SQD while the peer's READs are
// outstanding: they are answered, duplicates are known; fewer than are outstanding is refused. In RTS
// the table does not allow it.
func TestCase48DepthChangedInSQD(t *testing.T) {
	depth := func(p *rawPeer, n uint8) error {
		return p.q.Modify(&rxe.QPAttr{MaxDestRdAtomic: n}, rxe.AttrMaxDestRdAtomic)
	}
	var ae *rxe.AttrError
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 4})
	if err := depth(p, 8); !errors.As(err, &ae) || ae.Extra != rxe.AttrMaxDestRdAtomic {
		t.Fatalf("in RTS: %v", err)
	}
	copy(p.mem.Buf, make([]byte, 8))
	for i := uint32(0); i < 6; i++ { // the ring goes round
		p.inject(p.add(firstPSN.Add(i), 1))
	}
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD}, rxe.AttrState))
	p.receive(p.read(firstPSN.Add(6), 100, 300), p.read(firstPSN.Add(8), 500, 8))
	p.transmit(1)
	if err := depth(p, 1); !errors.Is(err, rxe.ErrBadState) {
		t.Fatalf("fewer than outstanding: %v", err)
	}
	p.must(depth(p, 3))
	out := p.run()
	if len(out) != 2 || out[0].psn != firstPSN.Add(7) || out[1].psn != firstPSN.Add(8) ||
		!bytes.Equal(out[1].payload, p.mem.Buf[500:508]) {
		t.Fatalf("answers %+v", out)
	}
	if s := one(t, p.inject(p.add(firstPSN.Add(5), 1))); s.orig != 5 {
		t.Fatalf("replayed original %d, want 5", s.orig)
	}
	if s := p.inject(p.add(firstPSN.Add(4), 1)); len(s) != 0 {
		t.Fatalf("forgotten atomic answered: %+v", s)
	}
	p.must(depth(p, 5))
	for i := uint32(9); i < 14; i++ {
		if s := one(t, p.inject(p.add(firstPSN.Add(i), 1))); s.orig != uint64(i-3) {
			t.Fatalf("original %d at PSN +%d", s.orig, i)
		}
	}
	for i := uint32(9); i < 14; i++ {
		if s := one(t, p.inject(p.add(firstPSN.Add(i), 1))); s.orig != uint64(i-3) {
			t.Fatalf("replayed original %d at PSN +%d", s.orig, i)
		}
	}
}

// TestDuplicateReadRevalidatesKey: a READ executed again needs the key again: gone meanwhile, the peer
// gets a NAK remote access error (2.7). The QP goes on: the copy may have been late in the network,
// long after the peer had its data and the region was given back.
func TestDuplicateReadRevalidatesKey(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	p.inject(p.read(firstPSN, 0, 600))
	p.n.Dev.Keys().Unpublish(p.mem.Key.Index())
	wantNAK(t, p.inject(p.read(firstPSN, 0, 600)), firstPSN, wire.NAKRemoteAccess)
	wantNAK(t, p.inject(p.read(firstPSN.Add(1), 256, 344)), firstPSN.Add(1), wire.NAKRemoteAccess)
	p.state(rxe.StateRTS)
	if len(p.events) != 0 {
		t.Fatalf("events %+v", p.events)
	}
	p.recv(1, 0)
	send := packet{op: wire.RCSendOnly, psn: firstPSN.Add(3), ackReq: true}
	wantAck(t, p.inject(send), firstPSN.Add(3), 2)
}

// TestReadCutInTheMiddle: the key of a READ goes while it is answered: the answer ends with a NAK that
// names the PSN whose data is refused.
func TestReadCutInTheMiddle(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	p.receive(p.read(firstPSN, 0, 600))
	if s := one(t, p.transmit(1)); s.op != wire.RCReadRespFirst {
		t.Fatalf("got %+v", s)
	}
	p.n.Dev.Keys().Unpublish(p.mem.Key.Index())
	wantNAK(t, p.run(), firstPSN.Next(), wire.NAKRemoteAccess)
	p.state(rxe.StateErr)
}

func wantEvent(t testing.TB, events []rxe.Event, typ rxe.EventType, q *rxe.QP) {
	t.Helper()
	n := 0
	for _, e := range events {
		if e.Type == typ && e.QP == q {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d events %q, want 1: %+v", n, typ, events)
	}
}

// TestCase8NAKWithoutRecv: an error in a packet that takes no receive WQE is answered like any other,
// and, there being no completion, reported by an event (Case47).
func TestCase8NAKWithoutRecv(t *testing.T) {
	for name, c := range map[string]struct {
		k     packet
		code  wire.NAKCode
		event rxe.EventType
	}{
		"WRITE, bad rkey":  {packet{op: wire.RCWriteOnly, va: memAddr, rkey: 1, length: 4, payload: fill(4, 1)}, wire.NAKRemoteAccess, rxe.EventQPAccessErr},
		"READ, bad rkey":   {packet{op: wire.RCReadRequest, va: memAddr, rkey: 1, length: 4}, wire.NAKRemoteAccess, rxe.EventQPAccessErr},
		"atomic, bad rkey": {packet{op: wire.RCCmpSwap, va: memAddr, rkey: 1}, wire.NAKRemoteAccess, rxe.EventQPAccessErr},
		"ATOMIC WRITE":     {packet{op: wire.RCAtomicWrite, va: memAddr, rkey: 1, length: 8, payload: fill(8, 1)}, wire.NAKRemoteAccess, rxe.EventQPAccessErr},
		"FLUSH":            {packet{op: wire.RCFlush, va: memAddr, rkey: 1, length: 8, place: 1}, wire.NAKRemoteAccess, rxe.EventQPAccessErr},
		"bad sequence":     {packet{op: wire.RCWriteLast, payload: fill(4, 1)}, wire.NAKInvalidRequest, rxe.EventQPReqErr},
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			c.k.psn = firstPSN
			wantNAK(t, p.inject(c.k), firstPSN, c.code)
			wantEvent(t, p.events, c.event, p.q)
		})
	}
}

// TestAtomicWriteAndFlush: both are answered with an empty READ response, count against the depth, are
// answered again without being executed again, and FLUSH checks its key for a range or for the whole
// region.
func TestAtomicWriteAndFlush(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 2})
	aw := packet{op: wire.RCAtomicWrite, psn: firstPSN, va: memAddr + 64, rkey: p.mem.Key, length: 8, payload: []byte{1, 2, 3, 4, 5, 6, 7, 8}}
	s := one(t, p.inject(aw))
	if s.op != wire.RCReadRespOnly || len(s.payload) != 0 || s.msn != 1 || !bytes.Equal(p.mem.Buf[64:72], aw.payload) {
		t.Fatalf("ATOMIC WRITE: %+v, memory % x", s, p.mem.Buf[64:72])
	}
	p.mem.Buf[64] = 99
	if s := one(t, p.inject(aw)); s.op != wire.RCReadRespOnly || p.mem.Buf[64] != 99 {
		t.Fatal("a duplicate was executed again")
	}
	psn := firstPSN.Next()
	for _, k := range []packet{
		{va: memAddr, rkey: p.mem.Key, length: 1 << 16, place: 1},
		{va: memAddr, rkey: p.mem.Key, length: 1 << 16, place: 3},
		{va: 1, rkey: p.mem.Key, length: 5, place: 2, sel: 1}, // the whole region: no range is looked at
		{rkey: 0xdead, place: 1},                              // no bytes
	} {
		k.op, k.psn = wire.RCFlush, psn
		for range 2 {
			if s := one(t, p.inject(k)); s.op != wire.RCReadRespOnly || s.psn != psn {
				t.Fatalf("FLUSH %+v: answered %+v", k, s)
			}
		}
		psn = psn.Next()
	}
	for _, whole := range []bool{false, true} {
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		k := packet{op: wire.RCFlush, psn: firstPSN, va: memAddr, rkey: p.mem.Key, length: 1<<16 + 1, place: 1}
		if whole {
			k.rkey, k.sel = p.mem.Key.Inc(), 1
		}
		wantNAK(t, p.inject(k), firstPSN, wire.NAKRemoteAccess)
	}
}

// TestSendWithInvFails: an invalidation that fails: the data is placed, the receive WQE ends with
// REM_INV_REQ_ERR, the QP in ERR, the sender gets a NAK remote access error, and the message does not
// count as executed. rxe acknowledges such a SEND.
func TestSendWithInvFails(t *testing.T) {
	for name, key := range map[string]func(p *rawPeer) uint32{
		"no region":   func(*rawPeer) uint32 { return 0x123456 },
		"user region": func(p *rawPeer) uint32 { return uint32(p.mem.Key) },
		"key 0":       func(*rawPeer) uint32 { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			p.recv(1, 100)
			out := p.inject(packet{op: wire.RCSendOnlyInv, psn: firstPSN, ackReq: true, inv: key(p), payload: fill(4, 9)})
			wantNAK(t, out, firstPSN, wire.NAKRemoteAccess)
			if out[0].msn != 0 {
				t.Errorf("MSN %d in the NAK", out[0].msn)
			}
			p.wantWC("1:remote invalid request error")
			p.state(rxe.StateErr)
			if p.s.C.Drops[rxe.ReasonInvalidate] != 1 {
				t.Error("reason not counted")
			}
		})
	}
}

// TestOrderOfChecks: a request with several faults is refused for the first of them, in rxe's order
// (2.7): sequence, operation, resources, lengths, key.
func TestOrderOfChecks(t *testing.T) {
	all := packet{op: wire.RCWriteOnlyImm, va: memAddr, rkey: 1, length: 9, payload: fill(8, 1)}
	for name, c := range map[string]struct {
		cfg    rawConfig
		before []packet
		recv   bool
		k      packet
		reason rxe.Reason
	}{
		"sequence": {rawConfig{access: mr.RemoteRead}, []packet{{op: wire.RCSendFirst, payload: fill(256, 1)}}, true, all, rxe.ReasonOpSequence},
		"enabled":  {rawConfig{access: mr.RemoteRead}, nil, false, all, rxe.ReasonOpDisabled},
		"resource": {rawConfig{}, nil, false, all, rxe.ReasonNoRecvWQE},
		"length":   {rawConfig{}, nil, true, all, rxe.ReasonMessageLength},
		"key":      {rawConfig{}, nil, true, packet{op: wire.RCWriteOnlyImm, va: memAddr, rkey: 1, length: 8, payload: fill(8, 1)}, rxe.ReasonKeyIndex},
		"depth":    {rawConfig{rd: -1}, nil, true, packet{op: wire.RCFetchAdd, va: 3, rkey: 1}, rxe.ReasonNoResources},
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, c.cfg)
			if c.recv {
				p.recv(1, 1000)
			}
			psn := firstPSN
			for _, k := range c.before {
				k.psn = psn
				p.inject(k)
				psn = psn.Next()
			}
			c.k.psn = psn
			one(t, p.inject(c.k))
			if p.s.C.Drops[c.reason] != 1 || p.q.Stats.LastDrop != c.reason {
				t.Fatalf("refused for: %v", p.q.Stats.LastDrop)
			}
		})
	}
}

// TestNoAckWithoutCompletion: a message whose receive completion did not fit the CQ is not
// acknowledged: its sender must not take it for delivered.
func TestNoAckWithoutCompletion(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{cqDepth: 1})
	p.recv(1, 100)
	p.recv(2, 100)
	p.recv(3, 100)
	send := packet{op: wire.RCSendOnly, psn: firstPSN, ackReq: true, payload: fill(4, 9)}
	wantAck(t, p.inject(send), firstPSN, 1)
	send.psn = send.psn.Next()
	if s := p.inject(send); len(s) != 0 {
		t.Fatalf("answered %+v", s)
	}
	p.state(rxe.StateErr)
	p.wantWC("1:success")
}

// TestRTSWhilePacketsFlow: going from RTR to RTS in the middle of a message disturbs neither the
// message nor what is owed.
func TestRTSWhilePacketsFlow(t *testing.T) {
	p := qpIn(t, rxe.StateRTR, rawConfig{})
	p.recv(1, 1000)
	p.inject(packet{op: wire.RCSendFirst, psn: firstPSN, payload: fill(256, 1)})
	p.receive(packet{op: wire.RCSendMiddle, psn: firstPSN.Next(), ackReq: true, payload: fill(256, 2)},
		packet{op: wire.RCSendMiddle, psn: firstPSN.Add(2), payload: fill(256, 3)})
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS, SQPSN: ourPSN, Timeout: 14, MaxQPRdAtomic: 1},
		rxe.AttrState|rxe.AttrTimeout|rxe.AttrRetryCnt|rxe.AttrRNRRetry|rxe.AttrSQPSN|rxe.AttrMaxQPRdAtomic))
	wantAck(t, p.run(), firstPSN.Add(2), 0)
	wantAck(t, p.inject(packet{op: wire.RCSendLast, psn: firstPSN.Add(3), ackReq: true, payload: fill(1, 4)}), firstPSN.Add(3), 1)
	if c := p.poll(); len(c) != 1 || c[0].ByteLen != 769 || c[0].Status != rxe.WCSuccess {
		t.Fatalf("completions %+v", c)
	}
	if s := one(t, p.post(p.writeWR(2, 8))); s.psn != ourPSN {
		t.Fatalf("first PSN %#x", s.psn)
	}
}

// TestSQDServes: in SQD the responder works on, and a LOCAL_INV that is taken but has not run waits
// for RTS like any other work.
func TestSQDServes(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	key, err := p.n.Dev.Keys().AllocFast(p.q.Init().PD, 1)
	p.must(err)
	p.post(p.writeWR(1, 8))
	p.post(rxe.SendWR{ID: 2, Opcode: rxe.WRLocalInv, RKey: key}) // waits for the WRITE
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD, EnSQDAsyncNotify: true}, rxe.AttrState|rxe.AttrEnSQDAsyncNotify))
	p.recv(5, 100)
	wantAck(t, p.inject(packet{op: wire.RCSendOnly, psn: firstPSN, ackReq: true}), firstPSN, 1)
	one(t, p.inject(p.read(firstPSN.Next(), 0, 8)))
	p.inject(ack(ourPSN))
	wantEvent(t, p.events, rxe.EventSQDrained, p.q)
	p.wantWC("5:success", "1:success")
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
	p.run()
	p.run()
	p.wantWC("2:success")
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD}, rxe.AttrState))
	wantEvent(t, p.events, rxe.EventSQDrained, p.q) // not asked for again
}
