package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestCase9ReadIntoSmallRing: an 8 MiB READ and the WRITE the other way through transmit rings of 16
// frames: the sender paces itself by the frames it is given; nothing is lost, nothing sent again, even
// though the receiving ring holds as few.
func TestCase9ReadIntoSmallRing(t *testing.T) {
	const n = 8 << 20
	p := newPair(t, pairConfig{mem: n, sim: sim.Config{RxRing: 64, Spread: 50}, node: sim.NodeConfig{TxBurst: 16},
		conn: sim.ConnAttr{PMTU: 1024, Timeout: 14}})
	p.a.send(t, rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.a.mem.SGE(0, n)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
	wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
	if !bytes.Equal(p.a.mem.Buf, p.b.mem.Buf) {
		t.Fatal("data differs")
	}
	c := counters(p.a.n, p.b.n)
	if c.Retransmits != 0 || c.Timeouts != 0 || c.NAKsSent != 0 || c.DuplicateRequest != 0 || p.f.Stats.Overflows != 0 {
		t.Fatalf("%d retransmissions, %d timeouts, %d NAKs, %d frames lost in rings", c.Retransmits, c.Timeouts, c.NAKsSent, p.f.Stats.Overflows)
	}
}

func counters(nodes ...*sim.Node) (c rxe.Counters) {
	for _, n := range nodes {
		for _, s := range n.Dev.Shards() {
			c.Add(&s.C)
		}
	}
	return c
}

// TestCase14LateReceive: SENDs to a receiver that posts a second late wait for it, with rnr_retry 7.
func TestCase14LateReceive(t *testing.T) {
	p := newPair(t, pairConfig{conn: sim.ConnAttr{RNRTimer: 12}})
	for i := range 10 {
		p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.a.mem.SGE(i, 2000)}})
	}
	p.f.Run(1_000_000_000)
	if p.a.cq.Len() != 0 || p.b.q.Stats.RNRSent < 1000 {
		t.Fatalf("%d completions, %d RNR NAKs in a second", p.a.cq.Len(), p.b.q.Stats.RNRSent)
	}
	for i := range 10 {
		p.b.recv(t, uint64(i), p.b.mem.SGE(4000*i, 2000))
	}
	for i, c := range p.wait(p.b, 10) {
		wantStatus(t, c, rxe.WCSuccess)
		if !bytes.Equal(p.b.mem.Buf[4000*i:][:2000], p.a.mem.Buf[i:][:2000]) {
			t.Fatalf("message %d differs", i)
		}
	}
	for _, c := range p.wait(p.a, 10) {
		wantStatus(t, c, rxe.WCSuccess)
	}
}

// TestCase15LongPath: with a window to match, a path of 10 ms is filled: a hundred megabytes in
// little more than the time the window's growth takes, not a round trip per 128 packets.
func TestCase15LongPath(t *testing.T) {
	const n, msgs = 1 << 20, 100
	p := newPair(t, pairConfig{mem: n, sim: sim.Config{Latency: 5_000_000, RxRing: 1 << 20},
		node: sim.NodeConfig{TxBurst: 4096, Device: rxe.Config{Window: 1 << 17}}, conn: sim.ConnAttr{PMTU: 4096, Timeout: 16}})
	for range msgs {
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, n)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
	}
	for _, c := range p.wait(p.a, msgs) {
		wantStatus(t, c, rxe.WCSuccess)
	}
	const roundTrip = 10_000_000
	capped := rxe.Time(n*msgs/4096/128) * roundTrip // as rxe, with 128 packets in flight
	if got := p.f.Now(); got > capped/10 || p.a.q.Stats.Retransmits != 0 {
		t.Fatalf("%v ms, %d retransmissions; with 128 packets in flight it would be %v ms", got/1e6, p.a.q.Stats.Retransmits, capped/1e6)
	}
}

// TestHandoverCongestion: frames that arrive on another shard than their QP's go through a small ring:
// what does not fit is dropped, counted, and sent again; all data arrives, the shards never wait.
func TestHandoverCongestion(t *testing.T) {
	const n = 200_000
	p := newPair(t, pairConfig{mem: n, node: sim.NodeConfig{Shards: 2, Device: rxe.Config{Handover: 4, Window: 64}}, shardB: 1,
		conn: sim.ConnAttr{PMTU: 1024, Timeout: 10}})
	for i := range 5 {
		p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, n)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
	}
	for _, c := range p.wait(p.a, 5) {
		wantStatus(t, c, rxe.WCSuccess)
	}
	if !bytes.Equal(p.a.mem.Buf, p.b.mem.Buf) {
		t.Fatal("data differs")
	}
	c := counters(p.a.n, p.b.n)
	if c.Drops[rxe.ReasonHandoverFull] == 0 || c.Handovers == 0 || c.Retransmits < c.Drops[rxe.ReasonHandoverFull]/10 {
		t.Fatalf("%d dropped, %d handed over, %d sent again", c.Drops[rxe.ReasonHandoverFull], c.Handovers, c.Retransmits)
	}
}

// TestCase68SourcePort: the known answers of the common formula; the port of a connection's packets is
// one and the same, requests and responses, first transmissions and others.
func TestCase68SourcePort(t *testing.T) {
	for _, c := range []struct {
		l, r  wire.QPN
		label uint32
		port  uint16
	}{{0x11, 0x11, 0x00121, 0xc121}, {0x11, 0x1234, 0x13574, 0xf570}, {0x1234, 0x11, 0x13574, 0xf570}} {
		label := wire.FlowLabel(c.l, c.r)
		if port := wire.SourcePort(label); label != c.label || port != c.port {
			t.Errorf("QPNs %#x, %#x: label %#x port %#x, want %#x %#x", c.l, c.r, label, port, c.label, c.port)
		}
	}
	seen := map[string]int{}
	p := newPair(t, pairConfig{sim: sim.Config{Seed: 68, Faults: sim.Faults{Drop: 0.05},
		Tap: func(_ rxe.Time, from, _ *sim.Node, f []byte) {
			var k wire.Packet
			if wire.Parse(wire.Frame{Head: f}, &k) == wire.ReasonOK {
				seen[fmt.Sprintf("%v %#x", k.Src, k.SrcPort)]++
			}
		}}})
	for _, s := range []side{p.a, p.b} {
		av := s.q.Query().AV
		av.Path.SrcPort = wire.SourcePort(wire.FlowLabel(p.a.q.QPN(), p.b.q.QPN()))
		s.q.SetPath(av)
	}
	for range 50 {
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: []rxe.SGE{p.a.mem.SGE(0, 3000)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.a.mem.SGE(0, 3000)}, RemoteAddr: memAddr, RKey: p.b.mem.Key})
		for _, c := range p.wait(p.a, 2) {
			wantStatus(t, c, rxe.WCSuccess)
		}
	}
	if len(seen) != 2 || p.a.q.Stats.Retransmits == 0 {
		t.Fatalf("ports %v, %d retransmissions", seen, p.a.q.Stats.Retransmits)
	}
}

// TestTrafficClass: traffic class, flow label and hop limit of the path stand in every packet.
func TestTrafficClass(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{v6: true})
	av := p.q.Query().AV
	av.Path.TClass, av.Path.FlowLabel, av.Path.HopLimit = 0xb8, 0x12345, 3
	p.q.SetPath(av)
	for _, s := range append(p.post(p.writeWR(1, 8)), p.inject(p.write(firstPSN, 0, 8))...) {
		var k wire.Packet
		if wire.Parse(wire.Frame{Head: s.frame}, &k) != wire.ReasonOK || k.TClass != 0xb8 || k.FlowLabel != 0x12345 || k.HopLimit != 3 {
			t.Errorf("%v: class %#x, label %#x, hop limit %d", k.Op, k.TClass, k.FlowLabel, k.HopLimit)
		}
	}
}

// TestMigReq: packets of connections carry MigReq 1, as a path that is not about to change demands, and
// packets with 0, as rxe sends them, are taken. Case11: AckReq stands on no packet but RC requests.
func TestCase11MigReqAndAckReq(t *testing.T) {
	for _, typ := range []rxe.QPType{rxe.RC, rxe.UC} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ})
		out := p.post(p.writeWR(1, 300))
		if typ == rxe.RC {
			out = append(out, p.inject(p.write(firstPSN, 0, 8))...)
			out = append(out, p.inject(p.read(firstPSN.Next(), 0, 300))...)
		}
		for i, s := range out {
			var k wire.Packet
			if wire.Parse(wire.Frame{Head: s.frame}, &k) != wire.ReasonOK || !k.MigReq {
				t.Errorf("%v packet %d: %v without MigReq", typ, i, k.Op)
			}
			if k.AckReq && (typ != rxe.RC || k.Info.Flags&wire.FlagRequest == 0) {
				t.Errorf("%v packet %d: %v with AckReq", typ, i, k.Op)
			}
		}
	}
}
