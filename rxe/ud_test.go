package rxe_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestC10_93_1_1Oversize: a datagram longer than the path MTU is neither sent nor an error; it is
// counted. One of exactly the path MTU is sent.
func TestC10_93_1_1Oversize(t *testing.T) {
	for _, typ := range []rxe.QPType{rxe.UD, rxe.GSI} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ})
		ah := p.ah(p.ours())
		wr := p.sendWR(1, 4097)
		wr.AH, wr.RemoteQPN = ah.Num(), 5
		if s := p.post(wr); len(s) != 0 {
			t.Fatalf("%v: sent %+v", typ, s)
		}
		p.wantWC("1:success")
		p.state(rxe.StateRTS)
		if p.s.C.Drops[rxe.ReasonUDLength] != 1 {
			t.Errorf("%v: not counted", typ)
		}
		wr.SGEs[0].Length = 4096
		if s := one(t, p.post(wr)); len(s.payload) != 4096 {
			t.Errorf("%v: %d bytes sent", typ, len(s.payload))
		}
	}
}

// ours is the path from the QP under test to its peer.
func (p *rawPeer) ours() wire.Path {
	x := p.path
	x.SrcMAC, x.DstMAC, x.Src, x.Dst = x.DstMAC, x.SrcMAC, x.Dst, x.Src
	return x
}

// TestUDReceiveIPv6: the GRH area is the IPv6 header as it came, also when the frame is cut in two.
func TestUDReceiveIPv6(t *testing.T) {
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD, v6: true, vlan: 7})
	p.path.TClass, p.path.FlowLabel, p.path.HopLimit = 0x5a, 0xabcde, 9
	p.tmpl.Init(&p.path, p.q.QPN(), 0xffff)
	for _, cut := range []int{0, 20, 60, 90, 120} {
		p.recv(1, 200)
		f := p.frame(p.datagram(5, 30))
		fr := wire.Frame{Head: f}
		if cut > 0 {
			fr = wire.Frame{Head: f[:cut], Tail: f[cut:]}
		}
		clear(p.mem.Buf[:70])
		p.s.Enter()
		p.s.Receive(p.now, fr)
		p.run()
		p.wantWC("1:success")
		if !bytes.Equal(p.mem.Buf[:40], f[18:58]) || p.mem.Buf[0] != 0x65 || p.mem.Buf[1] != 0xaa || p.mem.Buf[7] != 9 {
			t.Fatalf("cut at %d: GRH area % x", cut, p.mem.Buf[:40])
		}
		if !bytes.Equal(p.mem.Buf[40:70], fill(30, 7)) {
			t.Fatalf("cut at %d: payload differs", cut)
		}
	}
}

// TestUDGRHOverSGEs: the GRH area and the payload are one message over the receive WQE's elements,
// zero-length ones and odd borders included.
func TestUDGRHOverSGEs(t *testing.T) {
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD})
	p.must(p.q.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{
		p.mem.SGE(0, 33), {}, p.mem.SGE(1000, 10), p.mem.SGE(2000, 50)}}))
	f := p.frame(p.datagram(5, 30))
	p.s.Enter()
	p.s.Receive(p.now, wire.Frame{Head: f})
	p.run()
	p.wantWC("1:success")
	want := append(append(make([]byte, 20), f[14:34]...), fill(30, 7)...)
	got := append(append(append([]byte(nil), p.mem.Buf[:33]...), p.mem.Buf[1000:1010]...), p.mem.Buf[2000:2027]...)
	if !bytes.Equal(got, want) {
		t.Fatalf("got  % x\nwant % x", got, want)
	}
}

// TestCase62UDVLAN: datagrams are taken with the port's tag only; a priority tag is none (Case62).
func TestCase62UDVLAN(t *testing.T) {
	for _, c := range []struct {
		port int
		tag  int16
		ok   bool
	}{{0, -1, true}, {0, 0, true}, {0, 100, false}, {100, 100, true}, {100, -1, false}, {100, 0, false}, {100, 101, false}} {
		p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD, vlan: c.port})
		p.path.VLAN = c.tag
		p.tmpl.Init(&p.path, p.q.QPN(), 0xffff)
		p.recv(1, 100)
		p.inject(p.datagram(1, 8))
		if got := len(p.poll()) == 1; got != c.ok {
			t.Errorf("port %d, tag %d: received %v", c.port, c.tag, got)
		}
		if !c.ok && p.s.C.Drops[rxe.ReasonNotLocal] != 1 {
			t.Errorf("port %d, tag %d: not counted", c.port, c.tag)
		}
	}
}

// TestCase62ConnectionVLAN is the same for connections, whose tag is in the address vector.
func TestCase62ConnectionVLAN(t *testing.T) {
	for _, c := range []struct {
		own int
		tag int16
		ok  bool
	}{{0, -1, true}, {0, 0, true}, {0, 100, false}, {100, 100, true}, {100, -1, false}, {100, 0, false}, {100, 101, false}} {
		p := qpIn(t, rxe.StateRTS, rawConfig{vlan: c.own})
		p.path.VLAN = c.tag
		p.tmpl.Init(&p.path, p.q.QPN(), 0xffff)
		if got := len(p.inject(p.write(firstPSN, 0, 8))) == 1; got != c.ok {
			t.Errorf("own %d, tag %d: answered %v", c.own, c.tag, got)
		}
		if !c.ok && p.s.C.Drops[rxe.ReasonAddress] != 1 {
			t.Errorf("own %d, tag %d: not counted", c.own, c.tag)
		}
	}
}

// TestUDBadReceive: a receive WQE that names a wrong key or breaks the limits fails, and ends the QP.
func TestUDBadReceive(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD})
	p.must(p.q.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{{Addr: memAddr, Length: 100, LKey: p.mem.Key.Inc()}}}))
	p.recv(2, 100)
	p.inject(p.datagram(1, 8))
	p.wantWC("1:local protection error", "2:Work Request Flushed Error")
	p.state(rxe.StateErr)

	p = qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD})
	p.recv(1, 100)
	rxe.QueueMemory(&p.q.RQ)[0] = 77 // elements
	p.inject(p.datagram(1, 8))
	p.wantWC("1:local QP operation error")
	p.state(rxe.StateErr)
}

// TestUDKeepsWQE: a datagram that does not fit leaves the receive WQE for the next one, also when it
// came from an SRQ.
func TestUDKeepsWQE(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD})
	p.recv(1, 60)
	p.inject(p.datagram(1, 21), p.datagram(2, 20))
	if c := p.poll(); len(c) != 1 || c[0].ByteLen != 60 {
		t.Fatalf("completions %+v", c)
	}
}

// TestGSI: QP1's Q_Key is 0x80010000 whatever is set, it takes no other, sends its own for a controlled
// one, and never asks for an ACK (Case11).
func TestGSI(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.GSI}) // sets 0x11111111
	if p.q.QPN() != 1 || p.q.Query().QKey != rxe.QKeyGSI {
		t.Fatalf("QPN %d, Q_Key %#x", p.q.QPN(), p.q.Query().QKey)
	}
	p.recv(1, 400)
	k := p.datagram(1, 256)
	p.inject(k)
	p.wantWC()
	k.qkey = rxe.QKeyGSI
	k.srcQP = 1
	p.inject(k)
	if c := p.poll(); len(c) != 1 || c[0].SrcQP != 1 || c[0].ByteLen != 296 {
		t.Fatalf("completions %+v", c)
	}
	wr := p.sendWR(2, 256)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah(p.ours()).Num(), 1, rxe.QKeyGSI
	s := one(t, p.post(wr))
	var out wire.Packet
	if r := wire.Parse(wire.Frame{Head: s.frame}, &out); r != wire.ReasonOK || out.AckReq || out.DETH().QKey() != rxe.QKeyGSI ||
		out.DETH().SrcQP() != 1 || out.DestQP != 1 || len(s.frame) != 14+308 {
		t.Fatalf("sent %v, %d bytes", &out, len(s.frame))
	}
	if _, err := p.n.Dev.CreateQP(p.s, rxe.QPInit{Type: rxe.GSI, PD: 1, SendCQ: p.cq, RecvCQ: p.cq}); err == nil {
		t.Fatal("a second QP1")
	}
}

// TestPKeyMembership: our P_Key is the full member 0xffff: the limited member 0x7fff matches, another
// key does not.
func TestPKeyMembership(t *testing.T) {
	for pkey, ok := range map[uint16]bool{0xffff: true, 0x7fff: true, 0xfffe: false, 0x8000: false, 0: false} {
		for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
			p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ})
			p.tmpl.Init(&p.path, p.q.QPN(), pkey)
			p.recv(1, 100)
			k := p.datagram(firstPSN, 8)
			if typ != rxe.UD {
				k = packet{op: map[rxe.QPType]wire.Opcode{rxe.RC: wire.RCSendOnly, rxe.UC: wire.UCSendOnly}[typ], psn: firstPSN, payload: fill(8, 1)}
			}
			p.inject(k)
			if got := len(p.poll()) == 1; got != ok || !ok && p.s.C.Drops[rxe.ReasonPKey] != 1 {
				t.Errorf("%v, P_Key %#x: received %v", typ, pkey, got)
			}
		}
	}
}

// TestGroupQPN: a group's datagrams go to QPN 0xffffff and to members only; a unicast QPN takes none of
// them, and 0xffffff none that are not a group's.
func TestGroupQPN(t *testing.T) {
	group := wire.GIDFromIPv4([4]byte{239, 1, 2, 3})
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD})
	p.recv(1, 100)
	to := func(dst wire.GID, qpn wire.QPN) []rxe.CQE {
		p.path.Dst = dst
		p.tmpl.Init(&p.path, qpn, 0xffff)
		p.inject(p.datagram(1, 8))
		return p.poll()
	}
	if len(to(group, rxe.QPNMulti)) != 0 {
		t.Fatal("received without being a member")
	}
	p.must(p.n.Dev.AttachMulticast(p.q, group))
	p.must(p.n.Dev.AttachMulticast(p.q, group)) // once more is fine
	if len(to(group, p.q.QPN())) != 0 {
		t.Fatal("a group's datagram came to a unicast QPN")
	}
	if len(to(p.n.GID, rxe.QPNMulti)) != 0 {
		t.Fatal("a unicast address came to QPN 0xffffff")
	}
	if len(to(group, rxe.QPNMulti)) != 1 {
		t.Fatal("a member did not receive")
	}
	if p.s.C.Drops[rxe.ReasonNoGroup] != 3 {
		t.Fatalf("%d drops counted, want 3", p.s.C.Drops[rxe.ReasonNoGroup])
	}
	if p.n.Dev.AttachMulticast(p.q, p.n.GID) == nil {
		t.Fatal("a unicast address accepted as group")
	}
	p.n.Dev.DestroyQP(p.q) // leaves its groups
	if err := p.n.Dev.AttachMulticast(p.q, group); !errors.Is(err, rxe.ErrBadState) {
		t.Fatalf("a destroyed QP became a member: %v", err)
	}
	if len(to(group, rxe.QPNMulti)) != 0 || p.s.C.Drops[rxe.ReasonNoGroup] != 4 {
		t.Fatal("a destroyed QP is still a member")
	}
	rc := qpIn(t, rxe.StateRTR, rawConfig{})
	if rc.n.Dev.AttachMulticast(rc.q, group) == nil {
		t.Fatal("an RC QP became a member")
	}
}

// TestGroupsOwnFrames: a member's own datagram that the network sends back is not given to it, but to
// the other members, over IPv6 as well.
func TestGroupsOwnFrames(t *testing.T) {
	group := wire.GID{0: 0xff, 1: 0x0e, 15: 9}
	p := qpIn(t, rxe.StateRTR, rawConfig{typ: rxe.UD, v6: true})
	p.must(p.n.Dev.AttachMulticast(p.q, group))
	p.recv(1, 100)
	p.path.Src, p.path.Dst = p.n.GID, group
	p.tmpl.Init(&p.path, rxe.QPNMulti, 0xffff)
	k := p.datagram(1, 8)
	k.srcQP = p.q.QPN()
	p.inject(k)
	p.wantWC()
	k.srcQP++
	p.inject(k)
	p.wantWC("1:success")
}

// TestLoopbackUD: datagrams between QPs of one device do not leave it: on one shard and across two, to
// itself, to nobody, and into a full ring.
func TestLoopbackUD(t *testing.T) {
	f := sim.New(sim.Config{})
	n, err := f.AddNode(sim.NodeConfig{Shards: 2, Device: rxe.Config{Handover: 4}})
	if err != nil {
		t.Fatal(err)
	}
	pd := n.AllocPD()
	mem, err := n.Reg(pd, make([]byte, 1<<16), memAddr, sim.AllAccess)
	if err != nil {
		t.Fatal(err)
	}
	var qs [3]*rxe.QP
	var cqs [3]*rxe.CQ
	for i := range qs {
		cqs[i], _ = n.Dev.NewCQ(64)
		qs[i], err = n.Dev.CreateQP(n.Dev.Shards()[i/2], rxe.QPInit{Type: rxe.UD, PD: pd, SendCQ: cqs[i], RecvCQ: cqs[i],
			MaxSendWR: 32, MaxRecvWR: 32})
		if err == nil {
			err = sim.ReadyUD(qs[i], udQKey)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ah, err := n.Dev.CreateAH(pd, n.Path(n))
	if err != nil {
		t.Fatal(err)
	}
	send := func(to rxe.QPN, count int) {
		t.Helper()
		for range count {
			wr := rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{mem.SGE(100, 50)}, AH: ah.Num(), RemoteQPN: to, RemoteQKey: udQKey}
			if err := qs[0].PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		qs[0].RingDoorbell()
		f.Run(f.Now() + 1_000_000)
	}
	for i, q := range qs {
		if err := q.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{mem.SGE(1000*(i+1), 200)}}); err != nil {
			t.Fatal(err)
		}
		send(q.QPN(), 1)
		var c [2]rxe.CQE
		if got := cqs[i].Poll(c[:]); got != 1 || c[0].SrcQP != qs[0].QPN() || c[0].ByteLen != 90 {
			t.Fatalf("QP %d: %d completions, %+v", i, got, c[0])
		}
		if !bytes.Equal(mem.Buf[1000*(i+1)+40:][:50], mem.Buf[100:150]) {
			t.Fatalf("QP %d: payload differs", i)
		}
	}
	send(0x999999, 1)
	send(qs[2].QPN(), 10)
	c := n.Dev.Shards()[0].C
	if c.Drops[rxe.ReasonNoQP] != 1 || c.Drops[rxe.ReasonHandoverFull] != 6 || f.Stats.Packets != 0 {
		t.Fatalf("drops: no QP %d, ring full %d; %d frames left", c.Drops[rxe.ReasonNoQP], c.Drops[rxe.ReasonHandoverFull], f.Stats.Packets)
	}
}

// TestGroupFrameInTwoPieces: a datagram to a group that is sent in two pieces reaches the members here whole.
func TestGroupFrameInTwoPieces(t *testing.T) {
	group := wire.GIDFromIPv4([4]byte{239, 1, 2, 3})
	p := qpIn(t, rxe.StateRTS, rawConfig{typ: rxe.UD, pmtu: 4096})
	x := &attack{pair: &pair{t: t, f: p.f}}
	member, cq := x.qp(side{n: p.n, q: p.q}, 0)
	p.must(sim.ReadyUD(member, 0x11111111))
	p.must(p.n.Dev.AttachMulticast(member, group))
	p.must(member.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{p.mem.SGE(8192, 5000)}}))
	path := p.ours()
	path.Dst, path.DstMAC = group, wire.MulticastMAC(group)
	ah := p.ah(path)
	for i := range 2000 {
		p.mem.Buf[i] = byte(i * 13)
	}
	p.must(p.q.PostSend(&rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.mem.SGE(0, 2000)}, AH: ah.Num(),
		RemoteQPN: rxe.QPNMulti, RemoteQKey: 0x11111111}))
	p.q.RingDoorbell()
	p.s.Enter()
	p.s.Turn(p.now)
	var head [rxe.MinFrame]byte
	var tail [4096]byte
	if n := p.s.Transmit(p.now, rxe.Frame{Head: head[:], Tail: tail[:]}); n < 2000 {
		t.Fatalf("sent %d bytes", n)
	}
	p.s.Leave()
	var c [1]rxe.CQE
	if cq.Poll(c[:]) != 1 || c[0].ByteLen != 2040 || !bytes.Equal(p.mem.Buf[8192+40:][:2000], p.mem.Buf[:2000]) {
		t.Fatalf("received %+v, or other bytes", c[0])
	}
}
