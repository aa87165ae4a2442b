package rxe_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestResendFromElement: a retransmission that begins in the middle of a message finds its place in the
// elements again, zero-length ones included.
func TestResendFromElement(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	sges := []rxe.SGE{p.mem.SGE(10, 100), {}, p.mem.SGE(1000, 300), p.mem.SGE(5000, 500)}
	var want []byte
	for _, s := range sges {
		want = append(want, p.mem.Buf[max(s.Addr, memAddr)-memAddr:][:s.Length]...)
	}
	first := p.post(rxe.SendWR{ID: 1, Opcode: rxe.WRSend, SGEs: sges})
	for k := uint32(0); k < uint32(len(first)); k++ {
		var data []byte
		for _, s := range p.inject(nak(ourPSN.Add(k), wire.NAKPSNSeq)) {
			data = append(data, s.payload...)
		}
		if !bytes.Equal(data, want[256*k:]) {
			t.Fatalf("resent from packet %d: other bytes", k)
		}
	}
	p.inject(ack(ourPSN.Add(3)))
	p.wantWC("1:success")
}

// TestHostileSend: what a poster in shared memory writes into a record, bypassing the checks at post,
// fails with the status the rules name, and sends nothing.
func TestHostileSend(t *testing.T) {
	for name, c := range map[string]struct {
		wr     rxe.SendWR
		change func(p *rawPeer, m []uint64)
		want   rxe.WCStatus
	}{
		"READ of 2^23 packets":   {rxe.SendWR{Opcode: rxe.WRRDMARead}, func(p *rawPeer, m []uint64) { m[0] |= 1 << 16; m[6], m[7] = memAddr, 1<<31 }, rxe.WCLocLenErr},
		"message over 2^31":      {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] |= 2 << 16; m[7], m[9] = 1<<31, 1 }, rxe.WCLocLenErr},
		"misaligned atomic":      {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] = uint64(rxe.WRAtomicFetchAdd) | 1<<16; m[2] = 3; m[7] = 8 }, rxe.WCLocQPOpErr},
		"atomic of 4 bytes":      {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] = uint64(rxe.WRAtomicCmpSwap) | 1<<16; m[7] = 4 }, rxe.WCLocQPOpErr},
		"ATOMIC WRITE of 16":     {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] = uint64(rxe.WRAtomicWrite) | 1<<16; m[7] = 16 }, rxe.WCLocQPOpErr},
		"more inline data":       {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] |= uint64(rxe.SendInline)<<8 | 5000<<32 }, rxe.WCLocQPOpErr},
		"no such operation":      {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] = 12 }, rxe.WCLocQPOpErr},
		"invalid beyond all":     {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] = 255 }, rxe.WCLocQPOpErr},
		"elements beyond limits": {rxe.SendWR{Opcode: rxe.WRSend}, func(p *rawPeer, m []uint64) { m[0] |= 5 << 16 }, rxe.WCLocQPOpErr},
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			c.wr.ID = 1
			p.must(p.q.PostSend(&c.wr))
			m := rxe.QueueMemory(&p.q.SQ)
			c.change(p, m)
			p.q.RingDoorbell()
			if out := p.run(); len(out) != 0 {
				t.Fatalf("sent %+v", out)
			}
			p.wantWC("1:" + c.want.String())
			p.state(rxe.StateErr)
		})
	}
}

// TestCase20IndexGoesBack: a producer index that moves back, or too far, takes nothing and does not
// disturb what is in flight.
func TestCase20IndexGoesBack(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7})
	for i := uint64(1); i < 5; i++ {
		p.post(p.writeWR(i, 8))
	}
	index := rxe.QueueIndex(&p.q.SQ)
	for _, bad := range []uint32{2, 0, 17, 1 << 31, 1<<32 - 1} {
		index.Store(bad)
		p.q.RingDoorbell()
		if out := p.run(); len(out) != 0 {
			t.Fatalf("index %d: sent %+v", bad, out)
		}
	}
	index.Store(4)
	p.inject(ack(ourPSN.Add(3)))
	p.wantWC("1:success", "2:success", "3:success", "4:success")
}

// TestMoreBadResponses: answers of the wrong kind to atomics, ATOMIC WRITE and FLUSH, and a READ answer
// with a syndrome that is no ACK.
func TestMoreBadResponses(t *testing.T) {
	for name, c := range map[string]struct {
		wr rxe.SendWR
		k  packet
		ok bool // dropped instead
	}{
		"READ answer for an atomic":      {rxe.SendWR{Opcode: rxe.WRAtomicFetchAdd}, packet{op: wire.RCReadRespOnly, payload: fill(8, 1)}, false},
		"data for ATOMIC WRITE":          {rxe.SendWR{Opcode: rxe.WRAtomicWrite}, packet{op: wire.RCReadRespOnly, payload: fill(8, 1)}, false},
		"atomic answer for ATOMIC WRITE": {rxe.SendWR{Opcode: rxe.WRAtomicWrite}, packet{op: wire.RCAtomicAck}, false},
		"answer for a WRITE":             {rxe.SendWR{Opcode: rxe.WRRDMAWrite}, packet{op: wire.RCReadRespOnly}, false},
		"NAK in a READ answer":           {rxe.SendWR{Opcode: rxe.WRRDMARead}, packet{op: wire.RCReadRespOnly, syn: 0x60, payload: fill(8, 1)}, true},
		"reserved syndrome":              {rxe.SendWR{Opcode: rxe.WRRDMARead}, packet{op: wire.RCReadRespOnly, syn: 0x41, payload: fill(8, 1)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			c.wr.ID, c.wr.SGEs, c.wr.RemoteAddr = 1, []rxe.SGE{p.mem.SGE(0, 8)}, 0x5000
			p.post(c.wr)
			if c.k.psn = ourPSN; c.k.syn == 0 {
				c.k.syn = wire.AckSyndrome(31)
			}
			before := append([]byte(nil), p.mem.Buf...)
			p.inject(c.k)
			if c.ok {
				p.wantWC()
				p.state(rxe.StateRTS)
			} else {
				p.wantWC("1:bad response error")
				p.state(rxe.StateErr)
			}
			if !bytes.Equal(before, p.mem.Buf) {
				t.Error("memory changed")
			}
		})
	}
}

// TestImpliedNAKRetries: implied NAKs without progress use up the retries like all losses.
func TestImpliedNAKRetries(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 0})
	p.post(p.readWR(1, 8))
	p.post(p.writeWR(2, 8))
	p.inject(ack(ourPSN.Next()))
	p.wantWC("1:transport retry counter exceeded", "2:Work Request Flushed Error")
}

// TestLocalOpsBetweenAnswers: local operations between READs are passed over by whatever completes them.
func TestLocalOpsBetweenAnswers(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 4})
	m := &fast{t: t, s: side{n: p.n, q: p.q, cq: p.cq, mem: p.mem}, tab: p.n.Dev.Keys(), pd: p.q.Init().PD}
	var err error
	m.key, err = m.tab.AllocFast(m.pd, 1)
	p.must(err)
	m.mapSG(make([]byte, 4096))
	p.post(p.readWR(1, 8))
	m.reg(2, fastVA, 4096, sim.AllAccess, rxe.SendSignaled)
	p.post(p.readWR(3, 8))
	m.inv(4, m.key, rxe.SendSignaled)
	p.post(p.readWR(5, 8))
	p.inject(p.response(wire.RCReadRespOnly, ourPSN, 8))
	p.wantWC("1:success", "2:success")
	p.inject(p.response(wire.RCReadRespOnly, ourPSN.Next(), 8))
	p.wantWC("3:success", "4:success")
	p.inject(p.response(wire.RCReadRespOnly, ourPSN.Add(2), 8))
	p.wantWC("5:success")
}

// TestFlushWaitsForGrace: a LOCAL_INV that has executed completes with success after its grace although
// the QP is in ERR by then; what is behind it is flushed behind it.
func TestFlushWaitsForGrace(t *testing.T) {
	p := newPair(t, pairConfig{node: sim.NodeConfig{Shards: 2}})
	m := newFast(t, p.a, 1)
	m.mapSG(make([]byte, 4096))
	m.reg(1, fastVA, 4096, sim.AllAccess, rxe.SendSignaled)
	wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
	s, other := p.a.n.Dev.Shards()[0], p.a.n.Dev.Shards()[1]
	other.Enter() // and does not pass a quiescent point
	m.inv(2, m.key, rxe.SendSignaled)
	p.a.send(t, rxe.SendWR{ID: 3, Opcode: rxe.WRSend})
	p.a.recv(t, 4)
	p.f.Run(p.f.Now() + 3000)
	s.Enter()
	p.ok(p.a.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	s.Turn(p.f.Now())
	s.Leave()
	if n := p.a.cq.Len(); n != 0 {
		t.Fatalf("%d completions before the grace", n)
	}
	other.Leave()
	got := p.wait(p.a, 3)
	for i, want := range []struct {
		id uint64
		st rxe.WCStatus
	}{{2, rxe.WCSuccess}, {3, rxe.WCWRFlushErr}, {4, rxe.WCWRFlushErr}} {
		if got[i].WRID != want.id || got[i].Status != want.st {
			t.Errorf("completion %d: %d %v, want %d %v", i, got[i].WRID, got[i].Status, want.id, want.st)
		}
	}
}

// TestCQFullAtError: the completion of an error that does not fit is CQ_ERR, and ends the QP all the
// same.
func TestCQFullAtError(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{cqDepth: 1})
	rxe.PushCQE(p.cq, 0, &rxe.CQE{WRID: 9})
	p.post(rxe.SendWR{ID: 1, Opcode: rxe.WRSend, SGEs: []rxe.SGE{{Length: 1, LKey: 3}}})
	p.state(rxe.StateErr)
	if !p.cq.Dead() || len(p.events) != 1 || p.events[0].Type != rxe.EventCQErr {
		t.Fatalf("events %+v", p.events)
	}
	p.wantWC("9:success")
}

// TestEventFlood: events that nobody collects are bounded, and what is lost is counted.
func TestEventFlood(t *testing.T) {
	p, srq := srqPeer(t, rxe.RC, func(p *rawPeer) mr.PD { return p.q.Init().PD })
	for range 1<<16 + 10 {
		p.must(srq.SetLimit(1)) // empty: fires at once
	}
	if n := len(p.s.Events()); n != 1<<16 || p.s.C.EventsLost != 10 {
		t.Fatalf("%d events, %d lost", n, p.s.C.EventsLost)
	}
}

// TestLoopbackToNobody: a connection to a QP of the device that does not exist, or does no more, fails as
// on a wire; one whose peer's shard does not run waits for it without loss.
func TestLoopbackToNobody(t *testing.T) {
	p := newPair(t, pairConfig{same: true, node: sim.NodeConfig{Shards: 2, Device: rxe.Config{Handover: 4}}, shardB: 1, conn: sim.ConnAttr{Retry: 1}})
	p.a.n.Sleep(1, true)
	for i := range 10 {
		p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, 8)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
	}
	p.f.Run(100_000)
	p.a.n.Sleep(1, false)
	for _, c := range p.wait(p.a, 10) {
		wantStatus(t, c, rxe.WCSuccess)
	}
	p.a.n.Dev.DestroyQP(p.b.q)
	p.a.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, 8)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
	wantStatus(t, p.wait(p.a, 1)[0], rxe.WCRetryExcErr)
	if c := counters(p.a.n); c.Drops[rxe.ReasonNoQP] == 0 {
		t.Fatal("drops not counted")
	}
}

// TestHandedOverTooLate: a frame in the ring between two shards whose QP is destroyed meanwhile is
// dropped and counted.
func TestHandedOverTooLate(t *testing.T) {
	p := newPair(t, pairConfig{node: sim.NodeConfig{Shards: 2}, shardB: 1})
	p.b.n.Sleep(1, true)
	p.a.send(t, rxe.SendWR{Opcode: rxe.WRSend})
	p.f.Run(100_000)
	p.b.n.Dev.DestroyQP(p.b.q)
	p.b.n.Sleep(1, false)
	p.f.Run(200_000)
	if c := counters(p.b.n); c.Handovers != 1 || c.Drops[rxe.ReasonNoQP] != 1 {
		t.Fatalf("%d handed over, %d dropped", c.Handovers, c.Drops[rxe.ReasonNoQP])
	}
}

// TestMoreAttrValues: values out of range of the attributes that RTS and SQD take.
func TestMoreAttrValues(t *testing.T) {
	sqd := qpIn(t, rxe.StateSQD, rawConfig{})
	for name, c := range map[string]struct {
		a    rxe.QPAttr
		mask rxe.AttrMask
	}{
		"TIMEOUT":            {rxe.QPAttr{Timeout: 32}, rxe.AttrTimeout},
		"RETRY_CNT":          {rxe.QPAttr{RetryCnt: 8}, rxe.AttrRetryCnt},
		"RNR_RETRY":          {rxe.QPAttr{RNRRetry: 8}, rxe.AttrRNRRetry},
		"MAX_QP_RD_ATOMIC":   {rxe.QPAttr{MaxQPRdAtomic: 129}, rxe.AttrMaxQPRdAtomic},
		"MAX_DEST_RD_ATOMIC": {rxe.QPAttr{MaxDestRdAtomic: 129}, rxe.AttrMaxDestRdAtomic},
	} {
		if err := sqd.q.Modify(&c.a, c.mask); !errors.Is(err, rxe.ErrAttrValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UC})
	if err := p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS, SQPSN: 1 << 24}, rxe.AttrState|rxe.AttrSQPSN); !errors.Is(err, rxe.ErrAttrValue) {
		t.Errorf("SQ_PSN: %v", err)
	}
	var ae *rxe.AttrError
	if err := p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState|rxe.AttrQKey); !errors.As(err, &ae) || ae.Extra != rxe.AttrQKey {
		t.Errorf("ERR with Q_KEY: %v", err)
	}
	f := sim.New(sim.Config{})
	n, err := f.AddNode(sim.NodeConfig{Device: rxe.Config{MaxPMTU: 1024}})
	if err != nil {
		t.Fatal(err)
	}
	cq, _ := n.Dev.NewCQ(1)
	q, err := n.Dev.CreateQP(n.Dev.Shards()[0], rxe.QPInit{Type: rxe.RC, PD: 1, SendCQ: cq, RecvCQ: cq, Context: "mine"})
	if err != nil || q.Context() != "mine" || q.SQ.Depth() != 0 || n.Dev.Config().MaxPMTU != 1024 {
		t.Fatalf("QP %+v, %v", q, err)
	}
	if err := bringRC(q, n.Path(n), 5, 2048); !errors.Is(err, rxe.ErrAttrValue) {
		t.Errorf("PATH_MTU above the port's: %v", err)
	}
	if err := q.PostRecv(&rxe.RecvWR{SGEs: make([]rxe.SGE, 2)}); !errors.Is(err, rxe.ErrTooManySGE) {
		t.Errorf("receive with two elements: %v", err)
	}
	if err := q.PostRecv(&rxe.RecvWR{}); !errors.Is(err, rxe.ErrQueueFull) {
		t.Errorf("receive to a queue of none: %v", err)
	}
}
