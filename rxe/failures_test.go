package rxe_test

import (
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// failure is one way for a request to fail, and all that follows from it.
type failure struct {
	name string
	conn sim.ConnAttr
	// prepare may change the pair; it returns the work request of side a that fails.
	prepare func(x *failPair) rxe.SendWR

	send    rxe.WCStatus  // of the work request
	why     rxe.Reason    // its vendor_err
	nak     wire.Syndrome // on the wire; 0: none
	recv    rxe.WCStatus  // of side b's first receive
	recvWhy rxe.Reason
	event   rxe.EventType // at side b; 255: none
	states  [2]rxe.QPState
}

const noEvent = rxe.EventType(255)

// failPair is a pair with a bystander: another connection of the same shards.
type failPair struct {
	*pair
	other [2]side
	naks  []wire.Syndrome
}

func newFailPair(t testing.TB, c sim.ConnAttr) *failPair {
	x := &failPair{}
	x.pair = newPair(t, pairConfig{conn: c, sim: sim.Config{Tap: func(_ rxe.Time, _, _ *sim.Node, f []byte) {
		var k wire.Packet
		if wire.Parse(wire.Frame{Head: f}, &k) == wire.ReasonOK && k.Op == wire.RCAck && k.AETH().Syndrome().Kind() != wire.KindACK {
			x.naks = append(x.naks, k.AETH().Syndrome())
		}
	}}})
	qp := &attack{pair: x.pair}
	for i, s := range []side{x.a, x.b} {
		q, cq := qp.qp(s, 0)
		x.other[i] = side{n: s.n, q: q, cq: cq, mem: s.mem}
	}
	x.ok(sim.Connect(x.a.n, x.other[0].q, x.b.n, x.other[1].q, sim.ConnAttr{}))
	return x
}

// bystander moves one message on the other connection.
func (x *failPair) bystander() {
	x.t.Helper()
	o := x.other
	o[1].recv(x.t, 77, o[1].mem.SGE(60000, 3000))
	o[0].send(x.t, rxe.SendWR{ID: 78, Opcode: rxe.WRSend, SGEs: []rxe.SGE{o[0].mem.SGE(50000, 3000)}})
	wantStatus(x.t, x.wait(o[1], 1)[0], rxe.WCSuccess)
	wantStatus(x.t, x.wait(o[0], 1)[0], rxe.WCSuccess)
}

func (x *failPair) write(op rxe.WROpcode, key mr.Key) rxe.SendWR {
	return rxe.SendWR{Opcode: op, SGEs: []rxe.SGE{x.a.mem.SGE(0, 8)}, RemoteAddr: memAddr, RKey: key}
}

// failures is the table failure × status of 2.11 and 1.
func failures() []failure {
	invalid, access, operation := wire.NAKSyndrome(wire.NAKInvalidRequest), wire.NAKSyndrome(wire.NAKRemoteAccess), wire.NAKSyndrome(wire.NAKRemoteOp)
	both := [2]rxe.QPState{rxe.StateErr, rxe.StateErr}
	onlyA := [2]rxe.QPState{rxe.StateErr, rxe.StateRTS}
	flush := rxe.WCWRFlushErr
	return []failure{
		{"WRITE, wrong rkey", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRRDMAWrite, x.b.mem.Key.Inc()) },
			rxe.WCRemAccessErr, rxe.ReasonRemote, access, flush, rxe.ReasonFlushed, rxe.EventQPAccessErr, both},
		{"READ, wrong rkey", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRRDMARead, x.b.mem.Key.Inc()) },
			rxe.WCRemAccessErr, rxe.ReasonRemote, access, flush, rxe.ReasonFlushed, rxe.EventQPAccessErr, both},
		{"FETCH_ADD, wrong rkey", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRAtomicFetchAdd, x.b.mem.Key.Inc()) },
			rxe.WCRemAccessErr, rxe.ReasonRemote, access, flush, rxe.ReasonFlushed, rxe.EventQPAccessErr, both},
		{"ATOMIC WRITE, wrong rkey", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRAtomicWrite, x.b.mem.Key.Inc()) },
			rxe.WCRemAccessErr, rxe.ReasonRemote, access, flush, rxe.ReasonFlushed, rxe.EventQPAccessErr, both},
		{"WRITE with immediate, wrong rkey", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRRDMAWriteWithImm, x.b.mem.Key.Inc()) },
			rxe.WCRemAccessErr, rxe.ReasonRemote, access, rxe.WCLocAccessErr, rxe.ReasonKeyVariant, noEvent, both},
		{"SEND_WITH_INV, wrong key", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			return rxe.SendWR{Opcode: rxe.WRSendWithInv, Imm: uint32(x.b.mem.Key)}
		}, rxe.WCRemAccessErr, rxe.ReasonRemote, access, rxe.WCRemInvReqErr, rxe.ReasonInvalidate, noEvent, both},
		{"operation not enabled", sim.ConnAttr{Access: mr.RemoteRead}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRRDMAWrite, x.b.mem.Key) },
			rxe.WCRemInvReqErr, rxe.ReasonRemote, invalid, flush, rxe.ReasonFlushed, rxe.EventQPReqErr, both},
		{"depth of the responder 0", sim.ConnAttr{RdAtomic: 255}, func(x *failPair) rxe.SendWR {
			x.depthA(4)
			return x.write(rxe.WRRDMARead, x.b.mem.Key)
		}, rxe.WCRemInvReqErr, rxe.ReasonRemote, invalid, flush, rxe.ReasonFlushed, rxe.EventQPReqErr, both},
		{"depth of the requester 0", sim.ConnAttr{RdAtomic: 255}, func(x *failPair) rxe.SendWR { return x.write(rxe.WRRDMARead, x.b.mem.Key) },
			rxe.WCLocQPOpErr, rxe.ReasonNoResources, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"SEND longer than the receive", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			return rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.a.mem.SGE(0, 2001)}}
		}, rxe.WCRemInvReqErr, rxe.ReasonRemote, invalid, rxe.WCLocLenErr, rxe.ReasonRecvTooSmall, noEvent, both},
		{"receive with a wrong lkey", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			rxe.QueueMemory(&x.b.q.RQ)[3] += 1 << 32 // the key's variant
			return rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.a.mem.SGE(0, 8)}}
		}, rxe.WCRemOpErr, rxe.ReasonRemote, operation, rxe.WCLocProtErr, rxe.ReasonKeyVariant, noEvent, both},
		{"receive that breaks the limits", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			rxe.QueueMemory(&x.b.q.RQ)[0] = 99
			return rxe.SendWR{Opcode: rxe.WRSend}
		}, rxe.WCRemOpErr, rxe.ReasonRemote, operation, rxe.WCLocQPOpErr, rxe.ReasonBadWQE, noEvent, both},
		{"local lkey, SEND", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			return rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{{Addr: memAddr, Length: 8, LKey: x.a.mem.Key.Inc()}}}
		}, rxe.WCLocProtErr, rxe.ReasonKeyVariant, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"local lkey, READ", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			wr := x.write(rxe.WRRDMARead, x.b.mem.Key)
			wr.SGEs[0].LKey = x.a.mem.Key.Inc()
			return wr
		}, rxe.WCLocProtErr, rxe.ReasonLocalKey, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"work request that breaks the limits", sim.ConnAttr{}, func(x *failPair) rxe.SendWR {
			return rxe.SendWR{Opcode: rxe.WRSend, ID: hostileID}
		}, rxe.WCLocQPOpErr, rxe.ReasonBadWQE, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"LOCAL_INV, wrong key", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return rxe.SendWR{Opcode: rxe.WRLocalInv, RKey: 0x999900} },
			rxe.WCLocQPOpErr, rxe.ReasonKeyIndex, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"REG_MR of nothing", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return rxe.SendWR{Opcode: rxe.WRRegMR, RKey: 0x999900} },
			rxe.WCLocQPOpErr, rxe.ReasonKeyState, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"BIND_MW of nothing", sim.ConnAttr{}, func(x *failPair) rxe.SendWR { return rxe.SendWR{Opcode: rxe.WRBindMW, RKey: 0x999900, MWKey: 0x999900} },
			rxe.WCMWBindErr, rxe.ReasonKeyIndex, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"no receive, rnr_retry 0", sim.ConnAttr{RNRTimer: 5}, func(x *failPair) rxe.SendWR {
			x.noReceive()
			x.modifyA(&rxe.QPAttr{RNRRetry: 0}, rxe.AttrRNRRetry)
			return rxe.SendWR{Opcode: rxe.WRSend}
		}, rxe.WCRNRRetryExcErr, rxe.ReasonRNRNAK, wire.RNRSyndrome(5), rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"dead peer", sim.ConnAttr{Retry: 1}, func(x *failPair) rxe.SendWR {
			x.f.SetFaults(sim.Faults{Script: func(_ uint64, _, _ *sim.Node, f []byte) sim.Verdict {
				var k wire.Packet
				if wire.Parse(wire.Frame{Head: f}, &k); k.DestQP == x.b.q.QPN() {
					return sim.Drop
				}
				return sim.Pass
			}})
			return x.write(rxe.WRRDMAWrite, x.b.mem.Key)
		}, rxe.WCRetryExcErr, rxe.ReasonTimeout, 0, rxe.WCSuccess, rxe.ReasonNone, noEvent, onlyA},
		{"peer's CQ full", sim.ConnAttr{Retry: 1}, func(x *failPair) rxe.SendWR {
			for range x.b.cq.Depth() {
				rxe.PushCQE(x.b.cq, 0, &rxe.CQE{})
			}
			return rxe.SendWR{Opcode: rxe.WRSend}
		}, rxe.WCRetryExcErr, rxe.ReasonTimeout, 0, rxe.WCSuccess, rxe.ReasonNone, rxe.EventCQErr, both},
	}
}

const hostileID = 4711

func (x *failPair) modifyA(a *rxe.QPAttr, mask rxe.AttrMask) {
	x.ok(x.a.q.Modify(&rxe.QPAttr{State: rxe.StateSQD}, rxe.AttrState))
	x.ok(x.a.q.Modify(a, mask))
	x.ok(x.a.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
}

// depthA gives only the requester side a depth.
func (x *failPair) depthA(n uint8) { x.modifyA(&rxe.QPAttr{MaxQPRdAtomic: n}, rxe.AttrMaxQPRdAtomic) }

// noReceive takes side b's receives away.
func (x *failPair) noReceive() {
	rxe.QueueIndex(&x.b.q.RQ).Store(0)
}

// TestFailureStatus: each failure has its status, NAK, event and state at both ends, exactly one
// completion for each work request, in order, with what is behind it flushed; and another connection of
// the same shards moves data before, while and after.
func TestFailureStatus(t *testing.T) {
	for _, f := range failures() {
		t.Run(f.name, func(t *testing.T) { oneFailure(t, f) })
	}
}

func oneFailure(t *testing.T, f failure) {
	x := newFailPair(t, f.conn)
	x.bystander()
	x.b.recv(t, 10, x.b.mem.SGE(0, 2000))
	x.b.recv(t, 11, x.b.mem.SGE(2000, 2000))
	wr := f.prepare(x)
	hostile := wr.ID == hostileID
	wr.ID = 1
	wr.Flags = 0 // unsignaled: an error always makes a completion
	x.ok(x.a.q.PostSend(&wr))
	if hostile {
		rxe.QueueMemory(&x.a.q.SQ)[0] |= 200 << 16 // elements
	}
	x.ok(x.a.q.PostSend(&rxe.SendWR{ID: 2, Opcode: rxe.WRRDMAWrite}))
	x.a.q.RingDoorbell()
	x.bystander()
	got := x.wait(x.a, 2)
	if got[0].WRID != 1 || got[0].Status != f.send || got[0].Reason != f.why {
		t.Errorf("work request %d: %v (%v), want %v (%v)", got[0].WRID, got[0].Status, got[0].Reason, f.send, f.why)
	}
	if got[1].WRID != 2 || got[1].Status != rxe.WCWRFlushErr || got[1].Reason != rxe.ReasonFlushed {
		t.Errorf("work request behind it: %d: %v (%v)", got[1].WRID, got[1].Status, got[1].Reason)
	}
	x.f.Run(x.f.Now() + 20*ms)
	if n := x.a.cq.Len(); n != 0 {
		t.Errorf("%d completions too many", n)
	}
	var nak wire.Syndrome
	if len(x.naks) > 0 {
		nak = x.naks[0]
	}
	if nak != f.nak || len(x.naks) > 1 {
		t.Errorf("NAKs %#x, want %#x", x.naks, f.nak)
	}
	checkReceives(t, x, f)
	checkFailEvents(t, x, f)
	if a, b := x.a.q.State(), x.b.q.State(); a != f.states[0] || b != f.states[1] {
		t.Errorf("states %v and %v, want %v", a, b, f.states)
	}
	x.bystander()
}

// checkReceives: in ERR every receive has completed, the first with its own status.
func checkReceives(t *testing.T, x *failPair, f failure) {
	t.Helper()
	buf := make([]rxe.CQE, x.b.cq.Depth())
	var got []string
	for _, c := range buf[:x.b.cq.Poll(buf)] {
		if c.WRID != 0 {
			got = append(got, fmt.Sprintf("%d: %v (%v)", c.WRID, c.Status, c.Reason))
		}
	}
	var want []string
	if f.recv != rxe.WCSuccess {
		want = []string{fmt.Sprintf("10: %v (%v)", f.recv, f.recvWhy), fmt.Sprintf("11: %v (%v)", rxe.WCWRFlushErr, rxe.ReasonFlushed)}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("receives %q, want %q", got, want)
	}
}

func checkFailEvents(t *testing.T, x *failPair, f failure) {
	t.Helper()
	var got []rxe.EventType
	for _, e := range x.events {
		got = append(got, e.Type)
		if e.CQ != nil && e.CQ != x.b.cq || e.QP != nil && e.QP != x.b.q {
			t.Errorf("%v names another object", e.Type)
		}
	}
	var want []rxe.EventType
	if f.event != noEvent {
		want = []rxe.EventType{f.event}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %v, want %v", got, want)
	}
}
