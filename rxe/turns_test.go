package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// A driver is not asked for a frame when there is nothing to send: not behind the only request, not
// behind its ACK, not when the ACK has come. While there is more it is.
func TestNothingToSendIsSeen(t *testing.T) {
	d, err := sim.NewDirect(sim.DirectConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := d.A.QP.Shard(), d.B.QP.Shard()
	a.Enter()
	b.Enter()
	var buf [256]byte // the messages are short
	now := rxe.Time(1000)
	pass := func(from, to *rxe.Shard) {
		t.Helper()
		from.Turn(now)
		if !from.CanTransmit() {
			t.Fatal("nothing to send, although something is due")
		}
		n := from.Transmit(now, rxe.Frame{Head: buf[:]})
		if n == 0 {
			t.Fatal("no frame, although something is due")
		}
		to.Receive(now, rxe.Frame{Head: buf[:n]})
		now += 1000
	}
	none := func(s *rxe.Shard, when string) {
		t.Helper()
		if s.Turn(now); s.CanTransmit() {
			t.Errorf("%s: asks for a frame", when)
		}
	}
	for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead, rxe.WRAtomicFetchAdd, rxe.WRSend} {
		wr := d.WR(op, 8)
		for range 2 {
			if err := d.Post(&wr); err != nil {
				t.Fatal(err)
			}
		}
		d.A.QP.RingDoorbell()
		pass(a, b)
		if !a.CanTransmit() {
			t.Fatalf("%v: the second request is forgotten", op)
		}
		pass(a, b)
		none(a, op.String()+": all requests are sent")
		for range 2 {
			if b.Turn(now); b.CanTransmit() {
				pass(b, a)
			}
		}
		none(b, op.String()+": all is answered")
		none(a, op.String()+": all answers are there")
		var wc [8]rxe.CQE
		if n := d.A.CQ.Poll(wc[:]); n != 2 {
			t.Fatalf("%v: %d completions, want 2", op, n)
		}
		d.B.CQ.Poll(wc[:])
	}
}
