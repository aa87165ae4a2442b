package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestCase17AnyOpcode: every opcode, pad and length in a well-sealed frame, at every QP type: no
// panic, and another QP of the device does not notice.
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
