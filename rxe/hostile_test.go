package rxe_test

import (
	"bytes"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestCase17AnyOpcode: every opcode, pad and length in a well-sealed frame, at every QP type: no
// panic.
func TestCase17AnyOpcode(t *testing.T) {
	for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ})
		p.recv(1, 64)
		for op := 0; op < 256; op++ {
			for n := 0; n < 80; n += 3 {
				b := make([]byte, 4096)
				p.tmpl.Begin(b, wire.Opcode(op))
				bth := (*wire.BTH)(b[p.tmpl.BTHOffset():])
				bth.SetPSN(firstPSN)
				l := p.tmpl.Finish(wire.Frame{Head: b}, wire.Opcode(op), n)
				p.s.Enter()
				p.s.Receive(p.now, wire.Frame{Head: b[:l]})
				p.run()
			}
		}
	}
}

// FuzzReceive feeds arbitrary packet fields to a live QP with work outstanding: no panic, no byte
// outside the region, no completion that was not asked for.
func FuzzReceive(f *testing.F) {
	f.Add(uint8(4), uint32(0), uint64(memAddr), uint32(8), []byte("hello"), uint8(0))
	f.Add(uint8(0x10), uint32(1), uint64(0), uint32(0), []byte{}, uint8(0x1f))
	f.Add(uint8(0x11), uint32(2), uint64(0), uint32(0), []byte{}, uint8(0x60))
	f.Add(uint8(0x0c), uint32(0), uint64(memAddr+100), uint32(2000), []byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, op uint8, psn uint32, va uint64, length uint32, payload []byte, syn uint8) {
		if !wire.Opcode(op).Known() || len(payload) > 5000 {
			return
		}
		for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
			p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ, pmtu: 1024, retry: 3, rnr: 3})
			p.recv(1, 100)
			p.recv(2, 100)
			if typ != rxe.UD {
				p.post(p.writeWR(3, 3000))
			}
			if typ == rxe.RC {
				p.post(p.readWR(4, 3000))
			}
			base := firstPSN
			if wire.Opcode(op).Info().Flags&wire.FlagResponse != 0 {
				base = ourPSN
			}
			k := packet{op: wire.Opcode(op), psn: base.Add(psn), va: va, rkey: p.mem.Key, length: int(length),
				payload: payload, syn: wire.Syndrome(syn), swap: va, compare: uint64(length), qkey: 0x11111111,
				imm: length, inv: psn, place: syn & 3, sel: syn >> 7}
			p.inject(k)
			k.psn = k.psn.Next()
			p.inject(k, k)
			p.advance(20 * ms)
			if n := len(p.poll()); n > 4 {
				t.Fatalf("%d completions of 4 work requests", n)
			}
			p.checkGuards()
		}
	})
}

// TestCase20HostileWQE: a poster that changes records while they are read, and writes nonsense into
// indices, gets failed work requests; the engine touches nothing outside the rings.
func TestCase20HostileWQE(t *testing.T) {
	r := uint64(1)
	next := func() uint64 { r = r*6364136223846793005 + 1442695040888963407; return r >> 11 }
	n := 500
	if raceEnabled {
		n = 50
	}
	for i := 0; i < n; i++ {
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		wr := p.writeWR(1, 8)
		p.must(p.q.PostSend(&wr))
		mem := rxe.QueueMemory(&p.q.SQ)
		for j := 0; j < 1+int(next()%6); j++ {
			mem[next()%16] = next() << (next() % 40)
		}
		if next()%4 == 0 {
			rxe.QueueIndex(&p.q.SQ).Store(uint32(next()))
		}
		p.q.RingDoorbell()
		p.run()
		p.advance(10 * ms)
		p.poll()
	}
}

// TestHostileStorm: a victim QP gets thousands of well-sealed packets with random headers, payloads and
// PSNs near the right ones, is reset and connected again when it falls; the other connection of the same
// shards moves its data, in order and unchanged, and nothing outside the victim's region is written.
func TestHostileStorm(t *testing.T) {
	frames := 30000
	if raceEnabled {
		frames = 3000
	}
	x := newFailPair(t, sim.ConnAttr{})
	victim := x.other[1].q
	around := make([]byte, 3*4096)
	mem, err := x.b.n.Reg(victim.Init().PD, around[4096:8192], 1<<30, sim.AllAccess)
	x.ok(err)
	var tmpl wire.Template
	path := x.a.n.Path(x.b.n).Path
	tmpl.Init(&path, victim.QPN(), 0xffff)
	known := []wire.Opcode{}
	for op := wire.Opcode(0); op < 0x20; op++ {
		if op.Known() {
			known = append(known, op)
		}
	}
	r := sim.NewRand(99)
	buf := make([]byte, 8192)
	cqe := make([]rxe.CQE, 64)
	var reborn, moved int
	for i := 0; i < frames; i++ {
		if st := victim.State(); st == rxe.StateErr || st == rxe.StateReset {
			x.other[1].cq.Poll(cqe)
			x.ok(victim.Modify(&rxe.QPAttr{}, rxe.AttrState))
			x.ok(bringRC(victim, x.b.n.Path(x.a.n), x.other[0].q.QPN(), 256))
			reborn++
			for j := range 4 {
				_ = victim.PostRecv(&rxe.RecvWR{ID: uint64(j), SGEs: []rxe.SGE{{Addr: 1 << 30, Length: uint32(r.Intn(5000)), LKey: mem.Key}}})
			}
			for range 3 {
				_ = victim.PostSend(&rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{{Addr: 1 << 30, Length: 700, LKey: mem.Key}}, RemoteAddr: memAddr, RKey: x.a.mem.Key})
			}
			victim.RingDoorbell()
		}
		n := randomPacket(r, &tmpl, buf, known[r.Intn(len(known))], victim, mem.Key)
		s := victim.Shard()
		s.Enter()
		s.Receive(x.f.Now(), wire.Frame{Head: buf[:n]})
		s.Leave()
		x.other[1].cq.Poll(cqe)
		if i%50 == 0 {
			moved++
			x.b.recv(t, uint64(moved), x.b.mem.SGE(0, 9000))
			x.a.send(t, rxe.SendWR{ID: uint64(moved), Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.a.mem.SGE(moved%1000, 5000)}})
			c := x.wait(x.b, 1)[0]
			wantStatus(t, c, rxe.WCSuccess)
			wantStatus(t, x.wait(x.a, 1)[0], rxe.WCSuccess)
			if c.WRID != uint64(moved) || !bytes.Equal(x.b.mem.Buf[:5000], x.a.mem.Buf[moved%1000:][:5000]) {
				t.Fatalf("message %d of the other connection: %+v, or other bytes", moved, c)
			}
		}
	}
	if st := x.a.q.Stats; st.Retransmits != 0 || x.b.q.Stats.Drops != 0 {
		t.Errorf("the other connection noticed: %+v, %+v", st, x.b.q.Stats)
	}
	for i := range 4096 {
		if around[i] != 0 || around[8192+i] != 0 {
			t.Fatal("memory beside the region was written")
		}
	}
	t.Logf("victim connected %d times, %d messages beside it", reborn, moved)
}

// randomPacket writes a frame whose fields are right more often than not.
func randomPacket(r *sim.Rand, tmpl *wire.Template, buf []byte, op wire.Opcode, q *rxe.QP, key mr.Key) int {
	often := func(good, bad uint64) uint64 {
		if r.Intn(4) > 0 {
			return good
		}
		return bad
	}
	in, hdr, a := op.Info(), tmpl.Begin(buf, op), q.Query()
	bth := (*wire.BTH)(hdr)
	psn := a.RQPSN
	if in.Flags&wire.FlagResponse != 0 {
		psn = a.SQPSN.Add(wire.PSNMask - 2)
	}
	bth.SetPSN(psn.Add(uint32(often(0, r.Uint64()%8+wire.PSNMask-3))))
	bth.SetAckReq(r.Intn(2) == 0)
	va := often(1<<30+r.Uint64()%5000, r.Uint64())
	length := uint32(often(r.Uint64()%5000, r.Uint64()))
	if o := in.RETHOff; o != 0 {
		h := (*wire.RETH)(hdr[o:])
		h.SetVA(va)
		h.SetRKey(uint32(often(uint64(key), r.Uint64())))
		h.SetLength(length)
	}
	if o := in.AtomicETHOff; o != 0 {
		h := (*wire.AtomicETH)(hdr[o:])
		h.SetVA(often(va&^7, va))
		h.SetRKey(uint32(key))
	}
	if o := in.AETHOff; o != 0 {
		h := (*wire.AETH)(hdr[o:])
		h.SetSyndrome(wire.Syndrome(often(0x1f, r.Uint64())))
		h.SetMSN(uint32(r.Uint64()) & 0xffffff)
	}
	if o := in.FETHOff; o != 0 {
		(*wire.FETH)(hdr[o:]).Set(uint8(often(1, r.Uint64())), uint8(r.Intn(4)))
	}
	n := 0
	if in.Flags&wire.FlagPayload != 0 {
		n = int(often(256, r.Uint64()%600))
		if in.Flags&wire.FlagEnd != 0 {
			n = r.Intn(300)
		}
	}
	return tmpl.Finish(wire.Frame{Head: buf}, op, n)
}
