package rxe_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestCase40SGEs: 1 to 32 elements of mixed sizes, zero-length ones between them, of two regions,
// across pages and packets, on both sides: SEND, WRITE and READ move exactly the bytes they name, in
// order, and the lengths are the sums.
func TestCase40SGEs(t *testing.T) {
	qp := rxe.QPInit{MaxSendWR: 64, MaxRecvWR: 64, MaxSend: 32, MaxRecv: 32}
	p := newPair(t, pairConfig{sim: sim.Config{Seed: 40}, qp: qp, mem: 1 << 18, conn: sim.ConnAttr{PMTU: 512}})
	r := sim.NewRand(40)
	second := func(s side) *sim.Region {
		m, err := s.n.Reg(s.q.Init().PD, make([]byte, 1<<18), memAddr+1<<20, sim.AllAccess)
		p.ok(err)
		return m
	}
	ma, mb := second(p.a), second(p.b)
	for i := range ma.Buf {
		ma.Buf[i] = byte(r.Uint64())
	}
	// split names n random places of s with total bytes in all.
	split := func(s side, m *sim.Region, n, total int) (sges []rxe.SGE) {
		for at := 0; at < n; at++ {
			size := 0
			switch {
			case at == n-1:
				size = total
			case at%3 != 1: // every third is empty
				size = r.Intn(total + 1)
			}
			total -= size
			from := s.mem
			if at%2 == 1 {
				from = m
			}
			sges = append(sges, from.SGE(at*8000+r.Intn(7), size))
		}
		return sges
	}
	bytesOf := func(s side, m *sim.Region, sges []rxe.SGE) (out []byte) {
		for _, e := range sges {
			from := s.mem
			if e.LKey == m.Key {
				from = m
			}
			out = append(out, from.Buf[e.Addr-from.Addr:][:e.Length]...)
		}
		return out
	}
	for n := 1; n <= 32; n++ {
		total := r.Intn(8000)
		src, dst := split(p.a, ma, n, total), split(p.b, mb, 33-n, total)
		p.b.recv(t, 1, dst...)
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRSend, SGEs: src})
		c := p.wait(p.b, 1)[0]
		wantStatus(t, c, rxe.WCSuccess)
		wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
		if int(c.ByteLen) != total || !bytes.Equal(bytesOf(p.a, ma, src), bytesOf(p.b, mb, dst)) {
			t.Fatalf("SEND of %d elements, %d bytes, to %d: %d bytes, or other ones", n, total, 33-n, c.ByteLen)
		}
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRRDMAWrite, SGEs: src, RemoteAddr: mb.Addr + 5, RKey: mb.Key})
		wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
		if !bytes.Equal(bytesOf(p.a, ma, src), mb.Buf[5:5+total]) {
			t.Fatalf("WRITE of %d elements, %d bytes: other bytes", n, total)
		}
		for i := range mb.Buf[:total] {
			mb.Buf[i] = byte(r.Uint64())
		}
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: src, RemoteAddr: mb.Addr, RKey: mb.Key})
		c = p.wait(p.a, 1)[0]
		wantStatus(t, c, rxe.WCSuccess)
		if int(c.ByteLen) != total || !bytes.Equal(bytesOf(p.a, ma, src), mb.Buf[:total]) {
			t.Fatalf("READ into %d elements, %d bytes: %d bytes, or other ones", n, total, c.ByteLen)
		}
	}
}

// TestZeroLengthKeys: an element of no bytes is not looked up, whatever its key.
func TestZeroLengthKeys(t *testing.T) {
	p := newPair(t, pairConfig{})
	bad := rxe.SGE{Addr: 1, LKey: 0xdead}
	p.b.recv(t, 1, bad, p.b.mem.SGE(0, 100), bad)
	p.a.send(t, rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{bad, p.a.mem.SGE(7, 10), bad, p.a.mem.SGE(50, 3)}})
	wantStatus(t, p.wait(p.b, 1)[0], rxe.WCSuccess)
	wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
	if want := append(append([]byte(nil), p.a.mem.Buf[7:17]...), p.a.mem.Buf[50:53]...); !bytes.Equal(p.b.mem.Buf[:13], want) {
		t.Fatal("bytes differ")
	}
}

// TestInline: every length up to the limit, for all operations that take inline data: the data is
// copied at post, and a retransmission sends the same bytes.
func TestInline(t *testing.T) {
	p := newPair(t, pairConfig{qp: rxe.QPInit{MaxSendWR: 4, MaxRecvWR: 4, MaxInline: rxe.MaxInline},
		conn: sim.ConnAttr{PMTU: 256}})
	key, err := p.b.n.Dev.Keys().AllocFast(p.b.q.Init().PD, 1)
	p.ok(err)
	data := make([]byte, rxe.MaxInline)
	p.f.SetFaults(sim.Faults{Drop: 0.1})
	for n := 0; n <= rxe.MaxInline; n += 1 + n/17 {
		for _, op := range []rxe.WROpcode{rxe.WRSend, rxe.WRSendWithImm, rxe.WRSendWithInv, rxe.WRRDMAWrite, rxe.WRRDMAWriteWithImm} {
			for i := range data {
				data[i] = byte(i*n + int(op))
			}
			want := append([]byte(nil), data[:n]...)
			clear(p.b.mem.Buf[:rxe.MaxInline])
			if op != rxe.WRRDMAWrite {
				p.b.recv(t, 1, p.b.mem.SGE(0, rxe.MaxInline))
			}
			p.a.send(t, rxe.SendWR{Opcode: op, Flags: rxe.SendInline, Inline: data[:n], RemoteAddr: memAddr, RKey: p.b.mem.Key, Imm: uint32(key)})
			clear(data) // ours again at once
			wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
			if op != rxe.WRRDMAWrite {
				wantStatus(t, p.wait(p.b, 1)[0], rxe.WCSuccess)
			}
			if !bytes.Equal(p.b.mem.Buf[:n], want) || n < rxe.MaxInline && p.b.mem.Buf[n] != 0 {
				t.Fatalf("opcode %d, %d bytes inline: other bytes arrived", op, n)
			}
		}
	}
	if p.a.q.Stats.Retransmits == 0 {
		t.Fatal("nothing was sent again")
	}
}

// TestInlineRefused: operations that have no data of their own to send, and more data than the queue
// was made for.
func TestInlineRefused(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{inline: 64})
	for _, op := range []rxe.WROpcode{rxe.WRRDMARead, rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd, rxe.WRLocalInv, rxe.WRRegMR,
		rxe.WRBindMW, rxe.WRFlush} {
		wr := rxe.SendWR{Opcode: op, Flags: rxe.SendInline, Inline: make([]byte, 4000)}
		if err := p.q.PostSend(&wr); !errors.Is(err, rxe.ErrInlineOp) {
			t.Errorf("opcode %d: %v", op, err)
		}
	}
	for n, want := range map[int]error{64: nil, 65: rxe.ErrInlineSize} {
		wr := rxe.SendWR{Opcode: rxe.WRSend, Flags: rxe.SendInline, Inline: make([]byte, n)}
		if err := p.q.PostSend(&wr); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, c := range []struct {
		n    int
		addr uint64
	}{{7, 0}, {9, 0}, {8, 4}} {
		wr := rxe.SendWR{Opcode: rxe.WRAtomicWrite, Flags: rxe.SendInline, Inline: make([]byte, c.n), RemoteAddr: c.addr}
		if err := p.q.PostSend(&wr); !errors.Is(err, rxe.ErrAlignment) {
			t.Errorf("ATOMIC WRITE of %d bytes to %d: %v", c.n, c.addr, err)
		}
	}
}

// TestCase22OpcodeLength is the grid of request opcode, payload length and path MTU: FIRST and MIDDLE
// are exactly the path MTU, LAST 1 to the path MTU, ONLY 0 to the path MTU; all else is NAK 0x61, and
// nothing of it reaches memory.
func TestCase22OpcodeLength(t *testing.T) {
	ops := []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendLastInv, wire.RCSendOnly,
		wire.RCSendOnlyImm, wire.RCSendOnlyInv, wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm,
		wire.RCWriteOnly, wire.RCWriteOnlyImm}
	pmtus := []int{256, 512, 1024, 2048, 4096}
	if raceEnabled {
		pmtus = pmtus[:1]
	}
	for _, pmtu := range pmtus {
		for _, op := range ops {
			for _, n := range []int{0, 1, 2, 3, 4, pmtu - 4, pmtu - 1, pmtu, pmtu + 1, pmtu + 4} {
				f := op.Info().Flags
				legal := n <= pmtu && (f&wire.FlagEnd != 0 || n == pmtu) && (f&wire.FlagStart != 0 || n > 0)
				opcodeLength(t, pmtu, op, n, legal)
			}
		}
	}
}

func opcodeLength(t *testing.T, pmtu int, op wire.Opcode, n int, legal bool) {
	t.Helper()
	p := qpIn(t, rxe.StateRTS, rawConfig{pmtu: pmtu})
	p.recv(1, 20000)
	f := op.Info().Flags
	k := packet{op: op, psn: firstPSN, ackReq: true, payload: fill(n, 0xee), va: memAddr, rkey: p.mem.Key}
	if f&wire.FlagInv != 0 {
		key, err := p.n.Dev.Keys().AllocFast(p.q.Init().PD, 1)
		p.must(err)
		k.inv = uint32(key)
	}
	k.length = n
	if f&wire.FlagEnd == 0 {
		k.length = n + 2*pmtu
	}
	if f&wire.FlagStart == 0 {
		first := packet{op: wire.RCSendFirst, psn: firstPSN, payload: fill(pmtu, 1)}
		if f&wire.FlagWrite != 0 {
			first = packet{op: wire.RCWriteFirst, psn: firstPSN, va: memAddr, rkey: p.mem.Key, length: pmtu + max(n, 1), payload: fill(pmtu, 1)}
			if f&wire.FlagEnd == 0 {
				first.length += pmtu
			}
		}
		if s := p.inject(first); len(s) != 0 {
			t.Fatalf("PMTU %d: FIRST answered %+v", pmtu, s)
		}
		k.psn = k.psn.Next()
	}
	s := one(t, p.inject(k))
	if legal && s.syn.Kind() != wire.KindACK || !legal && s.syn != wire.NAKSyndrome(wire.NAKInvalidRequest) {
		t.Errorf("PMTU %d, %v, %d bytes: syndrome %#x, legal %v", pmtu, op, n, s.syn, legal)
	}
	if !legal && bytes.Contains(p.mem.Buf, fill(64, 0xee)) {
		t.Errorf("PMTU %d, %v, %d bytes: refused data reached memory", pmtu, op, n)
	}
}

// TestCase18AtomicWriteLength: exactly 8 bytes in RETH and packet.
func TestCase18AtomicWriteLength(t *testing.T) {
	step := 1
	if raceEnabled {
		step = 4
	}
	for reth := 0; reth <= 16; reth += step {
		for _, n := range []int{0, 4, 7, 8, 12, 16} {
			p := qpIn(t, rxe.StateRTS, rawConfig{})
			s := one(t, p.inject(packet{op: wire.RCAtomicWrite, psn: firstPSN, va: memAddr, rkey: p.mem.Key, length: reth, payload: fill(n, 1)}))
			if ok := s.op == wire.RCReadRespOnly; ok != (reth == 8 && n == 8) {
				t.Errorf("RETH length %d, %d bytes: answered %v", reth, n, s.op)
			}
		}
	}
}

// TestPathMTUs moves messages of critical lengths by every operation, at every path MTU, over IPv4 and
// IPv6, with and without a VLAN tag: the frames are exactly as long as the headers and the payload make
// them.
func TestPathMTUs(t *testing.T) {
	for _, pmtu := range []uint32{256, 512, 1024, 2048, 4096} {
		for _, v6 := range []bool{false, true} {
			for _, vlan := range []int16{-1, 100} {
				t.Run(fmt.Sprintf("%d/IPv6=%v/VLAN=%d", pmtu, v6, vlan), func(t *testing.T) { pathMTU(t, pmtu, v6, vlan) })
			}
		}
	}
}

func pathMTU(t *testing.T, pmtu uint32, v6 bool, vlan int16) {
	longest := 0
	p := newPair(t, pairConfig{node: sim.NodeConfig{V6: v6}, conn: sim.ConnAttr{PMTU: pmtu},
		sim: sim.Config{Tap: func(_ rxe.Time, _, _ *sim.Node, f []byte) { longest = max(longest, len(f)) }}})
	for _, s := range []side{p.a, p.b} {
		av := s.q.Query().AV
		av.Path.VLAN = vlan
		s.q.SetPath(av)
	}
	m := int(pmtu)
	for _, n := range []int{0, 1, m - 1, m, m + 1, 2*m + 3} {
		p.b.recv(t, 1, p.b.mem.SGE(0, 16384))
		p.b.recv(t, 2)
		wr := rxe.SendWR{SGEs: []rxe.SGE{p.a.mem.SGE(3, n)}, RemoteAddr: memAddr + 20000, RKey: p.b.mem.Key}
		for _, op := range []rxe.WROpcode{rxe.WRSendWithImm, rxe.WRRDMAWriteWithImm, rxe.WRRDMARead} {
			wr.Opcode = op
			if op == rxe.WRRDMARead {
				wr.SGEs = []rxe.SGE{p.a.mem.SGE(30000, n)}
			}
			p.a.send(t, wr)
		}
		for _, c := range append(p.wait(p.a, 3), p.wait(p.b, 2)...) {
			wantStatus(t, c, rxe.WCSuccess)
		}
		want := p.a.mem.Buf[3 : 3+n]
		if !bytes.Equal(p.b.mem.Buf[:n], want) || !bytes.Equal(p.b.mem.Buf[20000:20000+n], want) || !bytes.Equal(p.a.mem.Buf[30000:30000+n], want) {
			t.Fatalf("%d bytes: other ones arrived", n)
		}
	}
	want := 14 + 20 + 8 + 12 + 16 + 4 + m + 4 // WRITE_ONLY_IMM
	if v6 {
		want += 20
	}
	if vlan >= 0 {
		want += 4
	}
	if longest != want {
		t.Errorf("longest frame %d bytes, want %d", longest, want)
	}
}

// TestCase28DifferentPMTU: two ends with different path MTUs do not hang: the one with the smaller is
// refused, or refuses, with NAK invalid request.
func TestCase28DifferentPMTU(t *testing.T) {
	for _, c := range []struct{ a, b uint32 }{{1024, 512}, {512, 1024}} {
		p := newPair(t, pairConfig{conn: sim.ConnAttr{PMTU: c.a}})
		p.ok(p.b.q.Modify(&rxe.QPAttr{}, rxe.AttrState))
		av := p.b.n.Path(p.a.n)
		p.ok(bringRC(p.b.q, av, p.a.q.QPN(), c.b))
		p.b.recv(t, 1, p.b.mem.SGE(0, 16384))
		p.a.send(t, rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{p.a.mem.SGE(0, 3000)}})
		wantStatus(t, p.wait(p.a, 1)[0], rxe.WCRemInvReqErr)
		wantStatus(t, p.wait(p.b, 1)[0], rxe.WCRemInvReqErr)
	}
}

// bringRC takes a QP from RESET to RTS.
func bringRC(q *rxe.QP, av rxe.AV, dest wire.QPN, pmtu uint32) error {
	a := rxe.QPAttr{Port: 1, AccessFlags: sim.AllAccess, AV: av, PathMTU: pmtu, DestQPN: dest, MaxDestRdAtomic: 4,
		MaxQPRdAtomic: 4, MinRNRTimer: 1, Timeout: 8, RetryCnt: 7, RNRRetry: 7, SQPSN: 0x1000}
	for i, m := range []rxe.AttrMask{
		rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags,
		rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN | rxe.AttrMaxDestRdAtomic | rxe.AttrMinRNRTimer,
		rxe.AttrTimeout | rxe.AttrRetryCnt | rxe.AttrRNRRetry | rxe.AttrSQPSN | rxe.AttrMaxQPRdAtomic,
	} {
		a.State = rxe.StateInit + rxe.QPState(i)
		if err := q.Modify(&a, m|rxe.AttrState); err != nil {
			return err
		}
	}
	return nil
}
