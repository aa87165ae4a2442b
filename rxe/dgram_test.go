package rxe_test

import (
	"bytes"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

const udQKey = 0x11111111

func (p *rawPeer) datagram(psn wire.PSN, n int) packet {
	return packet{op: wire.UDSendOnly, psn: psn, qkey: udQKey, srcQP: 0x77, payload: fill(n, 7)}
}

// TestUDReceive: the 40-byte GRH area, lengths, flags and the sender's QPN (IPv4 and IPv6 headers).
func TestUDReceive(t *testing.T) {
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD})
	p.recv(1, 200)
	p.inject(p.datagram(5, 30))
	c := p.poll()
	if len(c) != 1 || c[0].Status != rxe.WCSuccess || c[0].ByteLen != 70 || c[0].SrcQP != 0x77 || c[0].Flags != rxe.WCGRH {
		t.Fatalf("completion %+v", c)
	}
	if !bytes.Equal(p.mem.Buf[40:70], fill(30, 7)) {
		t.Fatal("payload differs")
	}
	if !bytes.Equal(p.mem.Buf[:20], make([]byte, 20)) || p.mem.Buf[20] != 0x45 ||
		!bytes.Equal(p.mem.Buf[32:36], []byte{10, 0, 0, 254}) {
		t.Fatalf("GRH area % x", p.mem.Buf[:40])
	}
}

// TestUDDrops: what the rules drop silently is dropped, counted, and costs no receive WQE.
func TestUDDrops(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rawPeer, *packet)
		reason rxe.Reason
	}{
		"Q_Key":          {func(_ *rawPeer, k *packet) { k.qkey++ }, rxe.ReasonQKey},
		"too long":       {func(_ *rawPeer, k *packet) { k.payload = fill(61, 1) }, rxe.ReasonRecvTooSmall},
		"address":        {func(p *rawPeer, _ *packet) { p.path.Dst[15] = 99; p.tmpl.Init(&p.path, p.q.QPN(), 0xffff) }, rxe.ReasonNotLocal},
		"P_Key":          {func(p *rawPeer, _ *packet) { p.tmpl.Init(&p.path, p.q.QPN(), 0x8001) }, rxe.ReasonPKey},
		"QP":             {func(p *rawPeer, _ *packet) { p.tmpl.Init(&p.path, p.q.QPN()+1, 0xffff) }, rxe.ReasonNoQP},
		"service":        {func(p *rawPeer, k *packet) { k.op = wire.RCSendOnly }, rxe.ReasonQPType},
		"no receive WQE": {func(p *rawPeer, _ *packet) { p.inject(p.datagram(1, 8)); p.poll() }, rxe.ReasonNoRecvWQE},
	} {
		t.Run(name, func(t *testing.T) {
			p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD})
			p.recv(1, 100)
			k := p.datagram(5, 30)
			c.change(p, &k)
			if s := p.inject(k); len(s) != 0 {
				t.Fatalf("answered: %+v", s)
			}
			if p.s.C.Drops[c.reason] != 1 {
				t.Fatalf("%v counted %d times", c.reason, p.s.C.Drops[c.reason])
			}
			if c.reason != rxe.ReasonNoRecvWQE {
				p.wantWC()
				if p.q.RQ.Len() != 1 {
					t.Fatal("a receive WQE is gone")
				}
			}
		})
	}
}

func (p *rawPeer) ah(dst wire.Path) *rxe.AH {
	p.t.Helper()
	a, err := p.n.Dev.CreateAH(p.q.Init().PD, rxe.AV{Path: dst})
	p.must(err)
	return a
}

// TestUDSend: one packet with DETH and no AckReq (Case11); the controlled Q_Key; what cannot be
// sent fails locally and stops the send queue in SQE, from where RTS goes on.
func TestUDSend(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD})
	out := wire.Path{SrcMAC: p.n.MAC, DstMAC: wire.MAC{2, 9}, VLAN: -1, Src: p.n.GID, Dst: wire.GIDFromIPv4([4]byte{10, 0, 0, 9}), HopLimit: 1, SrcPort: 0xc001}
	ah := p.ah(out)
	wr := rxe.SendWR{ID: 1, Opcode: rxe.WRSendWithImm, Imm: 5, SGEs: []rxe.SGE{p.mem.SGE(0, 100)}, AH: ah.Num(), RemoteQPN: 0x99, RemoteQKey: 1 << 31}
	s := one(t, p.post(wr))
	if s.op != wire.UDSendOnlyImm || s.ackReq || s.imm != 5 || s.psn != ourPSN || !bytes.Equal(s.payload, p.mem.Buf[:100]) {
		t.Fatalf("sent %+v", s)
	}
	p.wantWC("1:success")
	for name, bad := range map[string]rxe.SendWR{
		"no AH": {AH: 999},
		"lkey":  {AH: ah.Num(), SGEs: []rxe.SGE{{Addr: memAddr, Length: 4, LKey: 77}}},
	} {
		bad.ID, bad.Opcode = 2, rxe.WRSend
		if s := p.post(bad); len(s) != 0 {
			t.Fatalf("%s: sent %+v", name, s)
		}
		if c := p.poll(); len(c) != 1 || c[0].Status == rxe.WCSuccess {
			t.Fatalf("%s: %+v", name, c)
		}
		p.state(rxe.StateSQE)
		wr.ID = 3
		if s := p.post(wr); len(s) != 0 {
			t.Fatalf("%s: sent in SQE", name)
		}
		p.wantWC("3:Work Request Flushed Error")
		p.recv(8, 100)
		p.inject(p.datagram(1, 4))
		p.wantWC("8:success")
		p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
	}
	wr.ID = 4
	one(t, p.post(wr))
	p.wantWC("4:success")
}

// TestUC: a gap drops its message and no other; the receive WQE serves the next one; nothing is
// ever answered.
func TestUC(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UC})
	p.recv(1, 2000)
	in := func(op wire.Opcode, psn uint32, n int, x byte) {
		t.Helper()
		if s := p.inject(packet{op: op, psn: firstPSN.Add(psn), payload: fill(n, x)}); len(s) != 0 {
			t.Fatalf("answered: %+v", s)
		}
	}
	in(wire.UCSendFirst, 0, 256, 1)
	in(wire.UCSendLast, 2, 10, 1) // 1 is lost
	in(wire.UCSendMiddle, 3, 256, 1)
	in(wire.UCSendFirst, 4, 256, 2)
	in(wire.UCSendMiddle, 5, 256, 2)
	in(wire.UCSendLast, 6, 10, 2)
	c := p.poll()
	if len(c) != 1 || c[0].WRID != 1 || c[0].ByteLen != 522 || p.mem.Buf[0] != 2 || p.mem.Buf[521] != 2 {
		t.Fatalf("completions %+v", c)
	}
	in(wire.UCSendOnly, 7, 4, 3) // no receive WQE: dropped
	p.recv(2, 100)
	in(wire.UCSendOnlyImm, 9, 4, 4)
	in(wire.UCWriteOnly, 10, 4, 5) // rkey 0: dropped
	p.wantWC("2:success")
	p.state(rxe.StateRTS)
	w := packet{op: wire.UCWriteOnly, psn: firstPSN.Add(11), va: memAddr + 500, rkey: p.mem.Key, length: 4, payload: fill(4, 6)}
	p.inject(w)
	if p.mem.Buf[503] != 6 {
		t.Fatal("WRITE was not executed")
	}
	out := p.post(rxe.SendWR{ID: 3, Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, 600)}})
	if len(out) != 3 || out[0].op != wire.UCSendFirst || out[2].op != wire.UCSendLast || out[2].ackReq {
		t.Fatalf("sent %+v", out)
	}
	p.wantWC("3:success")
}

// TestLoopback: two QPs of one device, on one shard and on two, all services; and QP to itself.
func TestLoopback(t *testing.T) {
	for _, shard := range []int{0, 1} {
		p := newPair(t, pairConfig{same: true, shardB: shard, node: sim.NodeConfig{Shards: 2}, conn: sim.ConnAttr{PMTU: 4096}})
		for i := 0; i < 50; i++ {
			p.b.recv(t, 1, p.b.mem.SGE(30000, 30000))
			p.a.send(t, rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.a.mem.SGE(0, 20000)}})
			p.b.send(t, rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.b.mem.SGE(0, 9000)}, RemoteAddr: p.a.mem.Addr, RKey: p.a.mem.Key})
			for _, c := range append(p.wait(p.a, 1), p.wait(p.b, 2)...) {
				wantStatus(t, c, rxe.WCSuccess)
			}
			if !bytes.Equal(p.b.mem.Buf[30000:50000], p.a.mem.Buf[:20000]) || !bytes.Equal(p.b.mem.Buf[:9000], p.a.mem.Buf[:9000]) {
				t.Fatal("data differs")
			}
		}
		if p.f.Stats.Packets != 0 {
			t.Fatalf("%d frames left the device", p.f.Stats.Packets)
		}
	}
}

// TestMulticast: every member but the sender gets a datagram, on the sender's device and on others,
// over several shards.
func TestMulticast(t *testing.T) {
	f := sim.New(sim.Config{})
	group := wire.GIDFromIPv4([4]byte{239, 1, 2, 3})
	type member struct {
		q   *rxe.QP
		cq  *rxe.CQ
		mem *sim.Region
		n   *sim.Node
		pd  mr.PD
	}
	var ms []member
	for i := 0; i < 2; i++ {
		n, err := f.AddNode(sim.NodeConfig{Shards: 2})
		if err != nil {
			t.Fatal(err)
		}
		for j := 0; j < 3; j++ {
			m := member{n: n, pd: n.AllocPD()}
			m.cq, _ = n.Dev.NewCQ(16)
			m.q, err = n.Dev.CreateQP(n.Dev.Shards()[j%2], rxe.QPInit{Type: rxe.UD, PD: m.pd, SendCQ: m.cq, RecvCQ: m.cq, MaxSendWR: 4, MaxRecvWR: 4})
			if err != nil {
				t.Fatal(err)
			}
			m.mem, _ = n.Reg(m.pd, make([]byte, 1024), memAddr, 1)
			if err := sim.ReadyUD(m.q, udQKey); err != nil {
				t.Fatal(err)
			}
			if err := n.Dev.AttachMulticast(m.q, group); err != nil {
				t.Fatal(err)
			}
			if err := m.q.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{m.mem.SGE(0, 500)}}); err != nil {
				t.Fatal(err)
			}
			ms = append(ms, m)
		}
	}
	s := ms[0]
	av := s.n.Path(s.n)
	av.Loopback, av.Path.Dst, av.Path.DstMAC = false, group, wire.MulticastMAC(group)
	ah, err := s.n.Dev.CreateAH(s.pd, av)
	if err != nil {
		t.Fatal(err)
	}
	wr := rxe.SendWR{ID: 9, Opcode: rxe.WRSend, Flags: rxe.SendSignaled, SGEs: []rxe.SGE{s.mem.SGE(600, 100)}, AH: ah.Num(), RemoteQPN: rxe.QPNMulti, RemoteQKey: udQKey}
	if err := s.q.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	s.q.RingDoorbell()
	f.Run(10_000_000)
	for i, m := range ms {
		b := make([]rxe.CQE, 4)
		got := b[:m.cq.Poll(b)]
		if i == 0 && (len(got) != 1 || got[0].WRID != 9) || i > 0 && (len(got) != 1 || got[0].ByteLen != 140) {
			t.Fatalf("member %d: %+v", i, got)
		}
	}
	if !ms[0].n.Dev.DetachMulticast(ms[1].q, group) {
		ms[0].n.Dev.DetachMulticast(ms[0].q, group)
		if !ms[0].n.Dev.DetachMulticast(ms[2].q, group) {
			t.Fatal("the last member was not reported")
		}
	}
}
