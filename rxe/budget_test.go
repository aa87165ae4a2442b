package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// crowd is many connections between one shard and one shard.
func crowd(t *testing.T, n int, c pairConfig) (*pair, []side) {
	p := newPair(t, c)
	sides := []side{p.a}
	for len(sides) < n {
		x := &attack{pair: p}
		qa, cqa := x.qp(p.a, 0)
		qb, _ := x.qp(p.b, 0)
		p.ok(sim.Connect(p.a.n, qa, p.b.n, qb, c.conn))
		sides = append(sides, side{n: p.a.n, q: qa, cq: cqa, mem: p.a.mem})
	}
	return p, sides
}

var usual = pairConfig{mem: 1 << 18, conn: sim.ConnAttr{Timeout: 14}}

// TestBudget: forty QPs with long messages overrun no ring of 512 frames, all get their share, and
// the account is even in the end.
func TestBudget(t *testing.T) {
	p, sides := crowd(t, 40, usual)
	for range 4 {
		for _, s := range sides {
			s.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, 1<<17)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
		}
	}
	least, most := 1<<30, 0
	for i := 0; i < 40; i++ {
		p.f.Run(p.f.Now() + 100_000)
	}
	for _, s := range sides {
		n := int(s.q.Stats.SentPkts)
		least, most = min(least, n), max(most, n)
	}
	if least == 0 || most > 2*least+64 {
		t.Errorf("one QP sent %d packets, another %d", least, most)
	}
	for _, s := range sides {
		for _, c := range p.wait(s, 4) {
			wantStatus(t, c, rxe.WCSuccess)
		}
	}
	shard := sides[0].q.Shard()
	if shard.C.Retransmits != 0 || p.f.Stats.Overflows != 0 {
		t.Errorf("%d retransmissions, %d frames met a full ring", shard.C.Retransmits, p.f.Stats.Overflows)
	}
	if n := rxe.InFlight(shard); n != 0 {
		t.Errorf("%d packets left in the account", n)
	}
}

// TestBudgetDeadPeer: QPs whose peers are gone do not keep the others from sending.
func TestBudgetDeadPeer(t *testing.T) {
	p, sides := crowd(t, 20, usual)
	for i, s := range sides[1:] {
		if i < 10 {
			p.b.n.Dev.DestroyQP(p.b.n.Dev.QPByNumber(s.q.Query().DestQPN))
		}
		s.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, 1<<17)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
	}
	for _, s := range sides[11:] {
		wantStatus(t, p.wait(s, 1)[0], rxe.WCSuccess)
	}
	if now := p.f.Now(); now > 60*ms {
		t.Errorf("living QPs were done after %d ms", now/ms)
	}
	for _, s := range sides[1:11] {
		wantStatus(t, p.wait(s, 1)[0], rxe.WCRetryExcErr)
	}
	if n := rxe.InFlight(sides[0].q.Shard()); n != 0 {
		t.Errorf("%d packets left in the account", n)
	}
}

// TestBudgetHeldByTheDead: peers that vanish while all that the shard may have in flight is on its way to
// them, with an ACK timeout of seconds, do not stop the others: what is old is in nobody's ring any more.
func TestBudgetHeldByTheDead(t *testing.T) {
	c := usual
	c.conn.Timeout = 20
	p, sides := crowd(t, 8, c)
	write := func(s side, n int) {
		s.send(t, rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{s.mem.SGE(0, n)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
	}
	for _, s := range sides[:4] { // their windows are open
		write(s, 1<<18)
		write(s, 1<<18)
		p.wait(s, 2)
		p.b.n.Dev.DestroyQP(p.b.n.Dev.QPByNumber(s.q.Query().DestQPN))
		write(s, 1<<18)
	}
	p.f.Run(p.f.Now() + 1*ms)
	if n := rxe.InFlight(sides[0].q.Shard()); n < 256 {
		t.Fatalf("%d packets in flight, want the whole budget", n)
	}
	start := p.f.Now()
	for _, s := range sides[4:] {
		write(s, 1<<18)
	}
	for _, s := range sides[4:] {
		wantStatus(t, p.wait(s, 1)[0], rxe.WCSuccess)
	}
	if took := p.f.Now() - start; took > 50*ms {
		t.Errorf("living QPs were held up %d ms", took/ms)
	}
	for _, s := range sides[:4] {
		p.ok(s.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	}
	if n := rxe.InFlight(sides[0].q.Shard()); n != 0 {
		t.Errorf("%d packets left in the account", n)
	}
}

// TestParkedAnswers: a QP that waits for room in the budget with its requests answers its peer all the same.
func TestParkedAnswers(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{budget: 1})
	one(t, p.post(p.writeWR(1, 1000))) // of four packets
	k := p.write(firstPSN, 0, 8)
	k.ackReq = true
	wantAck(t, p.inject(k), firstPSN, 1)
	if out := p.inject(p.read(firstPSN.Next(), 0, 8)); len(out) != 1 || out[0].op != wire.RCReadRespOnly {
		t.Fatalf("answers %v", out)
	}
	if s := one(t, p.inject(ack(ourPSN))); s.psn != ourPSN.Next() {
		t.Fatalf("went on with %v", s)
	}
}

// TestBudgetLongRead: a long READ, whose answer takes thousands of PSNs, does not use up the account: it
// is asked for in parts, and the other QPs keep their windows.
func TestBudgetLongRead(t *testing.T) {
	run := func(read bool) rxe.Time {
		p, sides := crowd(t, 2, usual)
		if read {
			far, err := p.b.n.Reg(p.b.q.Init().PD, make([]byte, 1<<20), memAddr, sim.AllAccess)
			p.ok(err)
			quarter := p.a.mem.SGE(0, 1<<18)
			sides[0].send(t, rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{quarter, quarter, quarter, quarter}, RemoteAddr: memAddr, RKey: far.Key})
			p.f.Run(1000)
		}
		start := p.f.Now()
		sides[1].send(t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, 1<<16)}, RemoteAddr: p.b.mem.Addr, RKey: p.b.mem.Key})
		wantStatus(t, p.wait(sides[1], 1)[0], rxe.WCSuccess)
		took := p.f.Now() - start
		if read {
			wantStatus(t, p.wait(sides[0], 1)[0], rxe.WCSuccess)
		}
		if n := rxe.InFlight(sides[0].q.Shard()); n != 0 {
			t.Errorf("%d packets left in the account", n)
		}
		return took
	}
	if alone, beside := run(false), run(true); beside > alone+alone/4 {
		t.Errorf("a WRITE takes %d µs beside a READ, %d µs alone", beside/1000, alone/1000)
	} else {
		t.Logf("%d µs beside a READ, %d µs alone", beside/1000, alone/1000)
	}
}

// TestBudgetOfTheDestroyed: a QP that is destroyed or reset with packets in flight takes them out of the account.
func TestBudgetOfTheDestroyed(t *testing.T) {
	for name, end := range map[string]func(p *rawPeer){
		"destroy": func(p *rawPeer) { p.n.Dev.DestroyQP(p.q) },
		"reset":   func(p *rawPeer) { p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState)) },
		"error":   func(p *rawPeer) { p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState)) },
	} {
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		p.post(p.writeWR(1, 1000))
		p.post(p.readWR(2, 1000))
		if n := rxe.InFlight(p.s); n != 8 {
			t.Fatalf("%d packets in flight, want 8", n)
		}
		if end(p); rxe.InFlight(p.s) != 0 {
			t.Errorf("%s: %d packets left in the account", name, rxe.InFlight(p.s))
		}
	}
}

// TestBudgetDuringRNRWait: what the peer has refused for want of a receive is not on its way to it any more.
func TestBudgetDuringRNRWait(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rnr: 7})
	p.post(p.sendWR(1, 1000))
	p.post(p.writeWR(2, 1000))
	p.inject(rnr(ourPSN, 20)) // 10.24 ms
	if n := rxe.InFlight(p.s); n != 0 {
		t.Errorf("%d packets in the account during the wait", n)
	}
	if s := p.advance(20 * ms); len(s) != 8 || rxe.InFlight(p.s) != 8 {
		t.Errorf("%d packets sent after it, %d in the account", len(s), rxe.InFlight(p.s))
	}
	p.inject(ack(ourPSN.Add(7)))
	if n := rxe.InFlight(p.s); n != 0 {
		t.Errorf("%d packets left in the account", n)
	}
}
