package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestRepeatedReadsInOrder: two READs are asked for again while the second is being answered, the answer
// to the first being lost. The first comes first again, as the requests do: an answer to the second in
// front of it would be thrown away and missed afterwards.
func TestRepeatedReadsInOrder(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 4})
	a, b := p.read(firstPSN, 0, 600), p.read(firstPSN.Add(3), 600, 600) // 3 PSNs each
	c := p.add(firstPSN.Add(6), 1)
	p.receive(a, b, c)
	p.transmit(4) // a, and one packet of b
	p.receive(a, b, c)
	out := p.run()
	for i := range 7 {
		if i >= len(out) || out[i].psn != firstPSN.Add(uint32(i)) {
			t.Fatalf("answer %d of %d is not PSN +%d: %+v", i, len(out), i, out)
		}
	}
	if len(out) != 7 || out[0].op != wire.RCReadRespFirst || out[3].op != wire.RCReadRespFirst ||
		out[5].op != wire.RCReadRespLast || out[6].op != wire.RCAtomicAck {
		t.Fatalf("answers %+v", out)
	}
	// A late copy of the first request alone interrupts the second, which goes on behind it.
	d, e := p.read(firstPSN.Add(7), 0, 8), p.read(firstPSN.Add(8), 600, 600)
	p.receive(d, e)
	p.transmit(2)
	p.receive(d)
	out = p.run()
	if len(out) != 3 || out[0].psn != d.psn || out[1].op != wire.RCReadRespMiddle || out[2].op != wire.RCReadRespLast {
		t.Fatalf("answers %+v", out)
	}
}

// TestFlushBeyondDepth: rxe's requester does not count FLUSHes against the READ depth. More of them
// than there are resources is no reason to end the connection: what does not fit is as if lost, and
// comes again.
func TestFlushBeyondDepth(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 2})
	flush := func(i uint32) packet {
		return packet{op: wire.RCFlush, psn: firstPSN.Add(i), va: memAddr, rkey: p.mem.Key, length: 8, place: 1}
	}
	p.receive(flush(0), flush(1), flush(2), flush(3))
	out := p.run()
	if len(out) != 3 || out[0].op != wire.RCReadRespOnly || out[1].op != wire.RCReadRespOnly {
		t.Fatalf("answers %+v", out)
	}
	wantNAK(t, out[2:], firstPSN.Add(2), wire.NAKPSNSeq)
	if n := p.s.C.Drops[rxe.ReasonNoResources]; n != 1 {
		t.Errorf("%d FLUSHes counted as without resources", n)
	}
	if out = p.inject(flush(2), flush(3)); len(out) != 2 || out[1].psn != firstPSN.Add(3) {
		t.Fatalf("answers to the rest %+v", out)
	}
	p.state(rxe.StateRTS)

	p = qpIn(t, rxe.StateRTS, rawConfig{rd: -1}) // none negotiated: refused
	wantNAK(t, p.inject(flush(0)), firstPSN, wire.NAKInvalidRequest)
}
