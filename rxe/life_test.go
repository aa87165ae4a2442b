package rxe_test

import (
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestCase52DestroyWithTimers: QPs are destroyed and reset with an ACK timer, an RNR wait, answers and
// ACKs owed, completions that wait for grace: nothing is sent or fires afterwards, the rest goes on.
func TestCase52DestroyWithTimers(t *testing.T) {
	setups := map[string]func(p *rawPeer){
		"ACK timer": func(p *rawPeer) { p.post(p.writeWR(1, 8)) },
		"RNR wait": func(p *rawPeer) {
			p.post(p.sendWR(1, 8))
			p.inject(rnr(ourPSN, 20))
		},
		"answers owed": func(p *rawPeer) { p.receive(p.read(firstPSN, 0, 2000), p.add(firstPSN.Add(8), 1)) },
		"ACK owed":     func(p *rawPeer) { p.receive(p.write(firstPSN, 0, 8)) },
		"NAK owed":     func(p *rawPeer) { p.receive(p.write(firstPSN.Next(), 0, 8)) },
		"doorbell": func(p *rawPeer) {
			wr := p.writeWR(1, 8)
			p.must(p.q.PostSend(&wr))
			p.q.RingDoorbell()
		},
		"half a message": func(p *rawPeer) {
			p.recv(1, 1000)
			p.inject(packet{op: wire.RCSendFirst, psn: firstPSN, payload: fill(256, 1)})
		},
		"completion awaits grace": func(p *rawPeer) {
			key, err := p.n.Dev.Keys().AllocFast(p.q.Init().PD, 1)
			p.must(err)
			p.recv(1, 1000)
			p.receive(packet{op: wire.RCSendOnlyInv, psn: firstPSN, inv: uint32(key)})
		},
	}
	for name, setup := range setups {
		for _, destroy := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7, rnr: 7})
				setup(p)
				p.poll()
				if destroy {
					p.n.Dev.DestroyQP(p.q)
					p.n.Dev.DestroyQP(p.q) // twice is fine
				} else {
					p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState))
				}
				if out := p.advance(5000 * ms); len(out) != 0 || p.s.Deadline() != rxe.Never || p.s.Pending() {
					t.Fatalf("sent %d packets, deadline %v", len(out), p.s.Deadline())
				}
				p.wantWC()
				if p.n.Dev.QPCount() != map[bool]int{true: 0, false: 1}[destroy] {
					t.Fatalf("%d QPs", p.n.Dev.QPCount())
				}
				if destroy {
					if err := p.q.Modify(&rxe.QPAttr{State: rxe.StateInit}, rxe.AttrState); !errors.Is(err, rxe.ErrBadState) {
						t.Fatalf("modify a destroyed QP: %v", err)
					}
					if err := p.q.PostSend(&rxe.SendWR{Opcode: rxe.WRSend}); !errors.Is(err, rxe.ErrBadState) {
						t.Fatalf("post to a destroyed QP: %v", err)
					}
					p.q.RingDoorbell()
					p.run()
					return
				}
				c := rawConfig{retry: 7, rnr: 7}
				p.setDefaults(&c)
				p.bring(rxe.StateRTS, c) // and it works again
				wantAck(t, p.inject(p.write(firstPSN, 0, 8)), firstPSN, 1)
				one(t, p.post(p.writeWR(3, 8)))
				p.inject(ack(ourPSN))
				p.wantWC("3:success")
			})
		}
	}
}

// TestCase87QPNs: QP numbers are not used again before all others were; a late packet of a dead QP
// finds nobody.
func TestCase87QPNs(t *testing.T) {
	f := sim.New(sim.Config{Seed: 87})
	n, err := f.AddNode(sim.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cq, _ := n.Dev.NewCQ(16)
	in := rxe.QPInit{Type: rxe.RC, PD: 1, SendCQ: cq, RecvCQ: cq}
	seen := map[rxe.QPN]bool{}
	last := rxe.QPN(0)
	for i := range 20000 {
		q, err := n.Dev.CreateQP(n.Dev.Shards()[0], in)
		if err != nil {
			t.Fatal(err)
		}
		if seen[q.QPN()] || q.QPN() <= 16 || q.QPN() >= rxe.QPNMulti || i > 0 && q.QPN() != last+1 {
			t.Fatalf("QPN %#x after %#x", q.QPN(), last)
		}
		last = q.QPN()
		seen[last] = true
		n.Dev.DestroyQP(q)
		if n.Dev.QPByNumber(last) != nil {
			t.Fatal("a destroyed QP is found")
		}
	}
	rxe.SetNextQPN(n.Dev, rxe.QPNMulti-1)
	a, err := n.Dev.CreateQP(n.Dev.Shards()[0], in)
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.Dev.CreateQP(n.Dev.Shards()[0], in)
	if err != nil || a.QPN() != rxe.QPNMulti-1 || b.QPN() != 17 {
		t.Fatalf("QPNs at the end: %#x, %#x, %v", a.QPN(), b.QPN(), err)
	}
	rxe.SetNextQPN(n.Dev, 17) // one that lives is passed over
	if c, err := n.Dev.CreateQP(n.Dev.Shards()[0], in); err != nil || c.QPN() != 18 {
		t.Fatalf("QPN %#x, %v", c.QPN(), err)
	}
}

// TestCreateLimits: what a QP, a CQ, a device cannot be (Case85).
func TestCreateLimits(t *testing.T) {
	f := sim.New(sim.Config{})
	n, err := f.AddNode(sim.NodeConfig{Device: rxe.Config{MaxQP: 1}})
	if err != nil {
		t.Fatal(err)
	}
	cq, _ := n.Dev.NewCQ(16)
	good := rxe.QPInit{Type: rxe.RC, PD: 1, SendCQ: cq, RecvCQ: cq}
	for name, c := range map[string]struct {
		change func(*rxe.QPInit)
		err    error
	}{
		"no type":      {func(q *rxe.QPInit) { q.Type = 0 }, rxe.ErrQPType},
		"unknown type": {func(q *rxe.QPInit) { q.Type = 9 }, rxe.ErrQPType},
		"no CQ":        {func(q *rxe.QPInit) { q.SendCQ = nil }, rxe.ErrNoCQ},
		"no PD":        {func(q *rxe.QPInit) { q.PD = 0 }, rxe.ErrQPCap},
		"send depth":   {func(q *rxe.QPInit) { q.MaxSendWR = 1<<20 + 1 }, rxe.ErrQPCap},
		"recv depth":   {func(q *rxe.QPInit) { q.MaxRecvWR = 1<<20 + 1 }, rxe.ErrQPCap},
		"send SGEs":    {func(q *rxe.QPInit) { q.MaxSend = 33 }, rxe.ErrQPCap},
		"recv SGEs":    {func(q *rxe.QPInit) { q.MaxRecv = 33 }, rxe.ErrQPCap},
		"inline":       {func(q *rxe.QPInit) { q.MaxInline = 1025 }, rxe.ErrQPCap},
	} {
		in := good
		c.change(&in)
		if _, err := n.Dev.CreateQP(n.Dev.Shards()[0], in); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
	}
	if n.Dev.QPCount() != 0 {
		t.Fatalf("%d QPs after failures", n.Dev.QPCount())
	}
	q, err := n.Dev.CreateQP(n.Dev.Shards()[0], good)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 { // MaxQP is rounded up to 64
		_, err = n.Dev.CreateQP(n.Dev.Shards()[0], good)
	}
	if !errors.Is(err, rxe.ErrQPLimit) || n.Dev.QPCount() != 64 {
		t.Fatalf("%d QPs, %v", n.Dev.QPCount(), err)
	}
	n.Dev.DestroyQP(q)
	if _, err := n.Dev.CreateQP(n.Dev.Shards()[0], good); err != nil {
		t.Fatalf("a place is free: %v", err)
	}
	for _, depth := range []int{0, -1, rxe.MaxCQE + 1} {
		if _, err := n.Dev.NewCQ(depth); !errors.Is(err, rxe.ErrCQSize) {
			t.Errorf("CQ of %d: %v", depth, err)
		}
	}
	rnd := func() uint64 { return 1 }
	for name, c := range map[string]rxe.Config{
		"no Rand": {}, "shards": {Rand: rnd, Shards: 65}, "PMTU": {Rand: rnd, MaxPMTU: 1500}, "QPs": {Rand: rnd, MaxQP: 1<<20 + 1},
		"window": {Rand: rnd, Window: 1<<22 + 1}, "hand-over": {Rand: rnd, Handover: 100}, "VLAN": {Rand: rnd, VLAN: 4095},
	} {
		if _, err := rxe.NewDevice(c, 0); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestAHLimit: address handles run out, and are free again when destroyed; a destroyed one fails what
// names it.
func TestAHLimit(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD})
	var ahs []*rxe.AH
	for len(ahs) < rxe.MaxAH-1 {
		a, err := p.n.Dev.CreateAH(p.q.Init().PD, rxe.AV{Path: p.ours()})
		p.must(err)
		ahs = append(ahs, a)
	}
	if _, err := p.n.Dev.CreateAH(1, rxe.AV{}); !errors.Is(err, rxe.ErrAHLimit) {
		t.Fatalf("one more: %v", err)
	}
	wr := p.sendWR(1, 8)
	wr.AH = ahs[5].Num()
	one(t, p.post(wr))
	p.n.Dev.DestroyAH(ahs[5])
	p.n.Dev.DestroyAH(ahs[5])
	if s := p.post(wr); len(s) != 0 {
		t.Fatalf("sent %+v", s)
	}
	p.wantWC("1:success", "1:local QP operation error")
	if a, err := p.n.Dev.CreateAH(1, rxe.AV{}); err != nil || a.Num() != ahs[5].Num() {
		t.Fatalf("number %d, %v", a.Num(), err)
	}
}

// TestErrFlushesInOrder: the way to ERR completes what is done, then flushes the send queue, then the
// receive queue; one completion each; what is posted later is flushed, too (2.10).
func TestErrFlushesInOrder(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	for i := uint64(1); i < 5; i++ {
		wr := p.writeWR(i, 8) // unsignaled
		p.must(p.q.PostSend(&wr))
	}
	p.q.RingDoorbell()
	p.run()
	p.recv(10, 100)
	p.recv(11, 100)
	p.inject(ack(ourPSN.Next()))
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	p.run()
	p.wantWC("3:Work Request Flushed Error", "4:Work Request Flushed Error", "10:Work Request Flushed Error", "11:Work Request Flushed Error")
	p.recv(12, 100)
	p.q.RingDoorbell()
	if out := p.inject(p.write(firstPSN, 0, 8), ack(ourPSN.Add(3))); len(out) != 0 {
		t.Fatalf("sent %+v in ERR", out)
	}
	p.wantWC("12:Work Request Flushed Error")
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState)) // again
	p.wantWC()
}

// TestAttributesKept: a refused Modify changes nothing; what was set is what Query returns.
func TestAttributesKept(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 4, retry: 3, rnr: 2, timeout: 9})
	before := p.q.Query()
	if before.PathMTU != 256 || before.RetryCnt != 3 || before.RNRRetry != 2 || before.Timeout != 9 || before.MaxQPRdAtomic != 4 ||
		before.MinRNRTimer != 12 || before.DestQPN != peerQPN || before.SQPSN != ourPSN || before.RQPSN != firstPSN || before.State != rxe.StateRTS {
		t.Fatalf("attributes %+v", before)
	}
	for name, c := range map[string]struct {
		a    rxe.QPAttr
		mask rxe.AttrMask
	}{
		"not allowed":   {rxe.QPAttr{Timeout: 1}, rxe.AttrTimeout},
		"wrong state":   {rxe.QPAttr{CurState: rxe.StateSQD, MinRNRTimer: 1}, rxe.AttrCurState | rxe.AttrMinRNRTimer},
		"out of range":  {rxe.QPAttr{MinRNRTimer: 32}, rxe.AttrMinRNRTimer},
		"no such state": {rxe.QPAttr{State: 7, AccessFlags: mr.RemoteRead}, rxe.AttrState | rxe.AttrAccessFlags},
	} {
		if err := p.q.Modify(&c.a, c.mask); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if got := p.q.Query(); got != before {
			t.Errorf("%s: changed to %+v", name, got)
		}
	}
	p.must(p.q.Modify(&rxe.QPAttr{CurState: rxe.StateRTS, MinRNRTimer: 3, AccessFlags: mr.RemoteRead},
		rxe.AttrCurState|rxe.AttrMinRNRTimer|rxe.AttrAccessFlags))
	if got := p.q.Query(); got.MinRNRTimer != 3 || got.AccessFlags != mr.RemoteRead {
		t.Errorf("attributes %+v", got)
	}
	if s := one(t, p.inject(packet{op: wire.RCSendOnly, psn: firstPSN})); s.syn != wire.RNRSyndrome(3) {
		t.Errorf("syndrome %#x", s.syn)
	}
}

// TestCase12ErrorBetweenPackets: the QP is moved to ERR around a SEND, at every point where a driver can
// do that: each receive completes once, the SEND is executed at most once.
func TestCase12ErrorBetweenPackets(t *testing.T) {
	toErr := func(p *rawPeer) {
		p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	}
	send := packet{op: wire.RCSendOnly, psn: firstPSN, ackReq: true, payload: fill(8, 1)}
	for name, c := range map[string]struct {
		run  func(p *rawPeer)
		done int
	}{
		"before":         {func(p *rawPeer) { toErr(p); p.receive(send) }, 0},
		"behind":         {func(p *rawPeer) { p.receive(send); toErr(p) }, 1},
		"behind its ACK": {func(p *rawPeer) { p.receive(send); p.transmit(1); toErr(p); p.receive(send) }, 1},
	} {
		p := qpIn(t, rxe.StateRTS, rawConfig{recvWR: 16})
		for i := uint64(0); i < 10; i++ {
			p.recv(i, 100)
		}
		c.run(p)
		for range 5 {
			p.receive(send)
			p.run()
		}
		ok := 0
		for i, w := range p.poll() {
			if w.WRID != uint64(i) || w.Status != rxe.WCSuccess && w.Status != rxe.WCWRFlushErr {
				t.Errorf("%s: completion %d: %+v", name, i, w)
			}
			if w.Status == rxe.WCSuccess {
				ok++
			}
		}
		if ok != c.done || p.q.RQ.Len() != 0 {
			t.Errorf("%s: executed %d times, want %d; %d receives left", name, ok, c.done, p.q.RQ.Len())
		}
	}
}

// TestDatagramPSNWraps: PSNs of datagrams wrap as others do, and nobody minds theirs.
func TestDatagramPSNWraps(t *testing.T) {
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD})
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS, SQPSN: 0xffffff}, rxe.AttrState|rxe.AttrSQPSN))
	wr := p.sendWR(1, 8)
	wr.AH = p.ah(p.ours()).Num()
	for _, want := range []wire.PSN{0xffffff, 0, 1} {
		if s := one(t, p.post(wr)); s.psn != want {
			t.Errorf("PSN %#x, want %#x", s.psn, want)
		}
	}
	for i, psn := range []wire.PSN{5, 5, 0xffffff, 3} {
		p.recv(uint64(i), 100)
		p.inject(p.datagram(psn, 8))
	}
	p.wantWC("1:success", "1:success", "1:success", "0:success", "1:success", "2:success", "3:success")
}
