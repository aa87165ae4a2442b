package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestCase41Overflow: a full CQ is one CQ_ERR event, its QP goes to ERR, and what was in the CQ can
// be polled.
func TestCase41Overflow(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{cqDepth: 3})
	for i := uint64(0); i < 10; i++ {
		p.post(p.writeWR(i, 8))
	}
	p.inject(ack(ourPSN.Add(9)))
	p.state(rxe.StateErr)
	n := 0
	for _, e := range p.events {
		if e.Type == rxe.EventCQErr && e.CQ == p.cq {
			n++
		}
	}
	if n != 1 || !p.cq.Dead() {
		t.Fatalf("%d CQ_ERR events", n)
	}
	p.wantWC("0:success", "1:success", "2:success")
}

// TestResizeKeepsOrder: completions survive a resize in order, also of a full CQ; fewer places than
// completions are refused.
func TestResizeKeepsOrder(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{cqDepth: 3})
	for i := uint64(0); i < 3; i++ {
		p.post(p.writeWR(i, 8))
	}
	p.inject(ack(ourPSN.Add(2)))
	if p.cq.Resize(2) == nil {
		t.Fatal("resize below the number of completions accepted")
	}
	p.must(p.cq.Resize(6))
	for i := uint64(3); i < 6; i++ {
		p.post(p.writeWR(i, 8))
	}
	p.inject(ack(ourPSN.Add(5)))
	p.wantWC("0:success", "1:success", "2:success", "3:success", "4:success", "5:success")
}

func completions(ev []rxe.Event) (n int) {
	for _, e := range ev {
		if e.Type == rxe.EventCompletion {
			n++
		}
	}
	return n
}

// TestArm: one event per arming; solicited arming waits for a solicited or failed completion.
func TestArm(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	for i := uint64(0); i < 9; i++ {
		p.recv(i, 64)
	}
	psn := firstPSN
	send := func(se bool) int {
		p.events = nil
		p.inject(packet{op: wire.RCSendOnly, psn: psn, se: se, payload: fill(4, 1)})
		psn = psn.Next()
		return completions(p.events)
	}
	if send(true) != 0 {
		t.Fatal("event of an idle CQ")
	}
	p.cq.Arm(false)
	if send(false) != 1 || send(false) != 0 {
		t.Fatal("armed CQ must fire once")
	}
	p.cq.Arm(true)
	if send(false) != 0 || send(true) != 1 || send(true) != 0 {
		t.Fatal("solicited arming")
	}
	p.cq.Arm(true)
	p.cq.Arm(false) // stronger
	p.cq.Arm(true)  // does not weaken
	if send(false) != 1 {
		t.Fatal("arming was weakened")
	}
	p.cq.Arm(true)
	p.events = nil
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	p.run()
	if completions(p.events) != 1 {
		t.Fatal("a failed completion must fire solicited arming")
	}
}

// TestUnsignaled: unsignaled work makes no completion and frees its slots; an error always makes one.
func TestUnsignaled(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{sendWR: 2})
	for i := uint32(0); i < 20; i++ {
		wr := p.writeWR(uint64(i), 8)
		p.must(p.q.PostSend(&wr))
		p.q.RingDoorbell()
		p.run()
		p.inject(ack(ourPSN.Add(i)))
	}
	p.wantWC()
	wr := p.writeWR(99, 8)
	p.must(p.q.PostSend(&wr))
	p.q.RingDoorbell()
	p.run()
	p.inject(nak(ourPSN.Add(20), wire.NAKRemoteAccess))
	p.wantWC("99:remote access error")
}

// TestSRQ: QPs share the queue; the limit event fires once; a QP in ERR leaves the queue alone and
// reports LAST_WQE_REACHED once (Case46); overfilling is refused (Case86).
func TestSRQ(t *testing.T) {
	base := qpIn(t, rxe.StateReset, rawConfig{})
	pd := base.n.AllocPD()
	srq, err := base.n.Dev.NewSRQ(base.s, pd, 4, 2)
	base.must(err)
	q, err := base.n.Dev.CreateQP(base.s, rxe.QPInit{Type: rxe.RC, PD: pd, SendCQ: base.cq, RecvCQ: base.cq, SRQ: srq, MaxSendWR: 4})
	base.must(err)
	base.mem, err = base.n.Reg(pd, make([]byte, 4096), memAddr, 1)
	base.must(err)
	base.q = q
	c := rawConfig{}
	base.setDefaults(&c)
	base.bring(rxe.StateRTS, c)
	for i := uint64(0); i < 4; i++ {
		base.must(srq.PostRecv(&rxe.RecvWR{ID: i, SGEs: []rxe.SGE{base.mem.SGE(0, 64)}}))
	}
	if srq.PostRecv(&rxe.RecvWR{}) == nil {
		t.Fatal("fifth receive accepted")
	}
	if q.PostRecv(&rxe.RecvWR{}) == nil {
		t.Fatal("receive posted to a QP with an SRQ")
	}
	base.must(srq.SetLimit(3))
	limits := func() (n int) {
		for _, e := range base.events {
			if e.Type == rxe.EventSRQLimit && e.SRQ == srq {
				n++
			}
		}
		return n
	}
	for i, want := range []int{0, 1, 1} {
		base.inject(packet{op: wire.RCSendOnly, psn: firstPSN.Add(uint32(i)), payload: fill(4, 1)})
		if limits() != want {
			t.Fatalf("after message %d: %d limit events, want %d", i, limits(), want)
		}
	}
	base.must(srq.Resize(8))
	base.inject(packet{op: wire.RCSendOnly, psn: firstPSN.Add(3), payload: fill(4, 1)})
	base.wantWC("0:success", "1:success", "2:success", "3:success")
	base.must(srq.PostRecv(&rxe.RecvWR{ID: 9}))
	base.must(q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	base.run()
	last := 0
	for _, e := range base.events {
		if e.Type == rxe.EventQPLastWQE && e.QP == q {
			last++
		}
	}
	if last != 1 || srq.Q.Len() != 1 {
		t.Fatalf("%d last-WQE events, %d receives left", last, srq.Q.Len())
	}
	base.wantWC()
}
