package rxe_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// partly is a QP with a READ of 100 PSNs, so that its answer comes in parts.
type partly struct {
	*rawPeer
	n int // bytes
}

func newPartly(t *testing.T, retry uint8) *partly {
	p := &partly{qpIn(t, rxe.StateRTS, rawConfig{retry: retry, rnr: 7, rd: 4}), 256*99 + 17}
	p.asked(p.post(p.readWR(1, p.n)), 0, 16)
	return p
}

// asked compares requests with pairs of first PSN and number of PSNs.
func (p *partly) asked(s []sent, want ...int) {
	p.t.Helper()
	if len(s) != len(want)/2 {
		p.t.Fatalf("asked %d times, want %d: %v", len(s), len(want)/2, s)
	}
	for i, k := range s {
		first, count := want[2*i], want[2*i+1]
		length := min(256*count, p.n-256*first)
		if k.op != wire.RCReadRequest || k.psn != ourPSN.Add(uint32(first)) || k.length != length || k.va != 0x5000+uint64(256*first) {
			p.t.Fatalf("asked for PSN +%d, %d bytes at %#x; want +%d, %d bytes", k.psn.Diff(ourPSN), k.length, k.va, first, length)
		}
	}
}

// answer gives PSNs from..to-1 of the answer to a request for first..last.
func (p *partly) answer(from, to, first, last int) (out []sent) {
	p.t.Helper()
	for i := from; i < to; i++ {
		op := wire.RCReadRespMiddle
		if i == first {
			op = wire.RCReadRespFirst
		}
		if i == last {
			op = wire.RCReadRespLast
		}
		out = append(out, p.inject(p.response(op, ourPSN.Add(uint32(i)), min(256, p.n-256*i)))...)
	}
	return out
}

// rest serves what is asked for until nothing is, from PSN next on; todo has been asked for already.
func (p *partly) rest(todo []sent, next int) {
	p.t.Helper()
	for len(todo) > 0 {
		k := todo[0]
		first, count := int(k.psn.Diff(ourPSN)), (k.length+255)/256
		if first != next || rxe.ReadsOutstanding(p.q) > 2 {
			p.t.Fatalf("asked for PSN +%d, want +%d; %d requests outstanding", first, next, rxe.ReadsOutstanding(p.q))
		}
		next += count
		todo = append(todo[1:], p.answer(first, next, first, next-1)...)
	}
	if next != 100 || rxe.ReadsOutstanding(p.q) != 0 {
		p.t.Fatalf("answered up to PSN +%d, %d requests outstanding", next, rxe.ReadsOutstanding(p.q))
	}
	for i, x := range p.mem.Buf[0x8000:][:p.n] {
		if x != byte(ourPSN.Add(uint32(i/256))) {
			p.t.Fatalf("byte %d is wrong", i)
		}
	}
}

// TestReadInParts: a READ longer than the window is asked for in parts that it holds, at most two
// outstanding and no more than the depth allows; each is a request of its own to the responder, and what
// is lost is asked for again up to where its request ended.
func TestReadInParts(t *testing.T) {
	p := newPartly(t, 7)
	p.asked(p.answer(0, 5, 0, 15)) // the window is 21 now, 10 are free: not yet half
	p.asked(p.answer(5, 6, 0, 15), 16, 12)
	p.asked(p.answer(6, 15, 0, 15))          // two are outstanding
	p.asked(p.answer(15, 16, 0, 15), 28, 20) // the first is answered
	again := p.inject(p.response(wire.RCReadRespMiddle, ourPSN.Add(20), 256))
	p.asked(again, 16, 12, 28, 20) // what is lost is asked for in the same parts
	p.asked(p.answer(16, 28, 16, 27))
	todo := p.advance(2 * ackT14)
	p.asked(todo[:1], 28, 20) // nothing came: the window is small, the part as it was
	p.rest(todo, 28)
	p.wantWC("1:success")
}

// TestReadPartResumed: a part of which some is there is asked for from there on to where its request ended,
// and the answer may go on with MIDDLE and LAST as rxe's does.
func TestReadPartResumed(t *testing.T) {
	p := newPartly(t, 7)
	p.asked(p.answer(0, 10, 0, 15), 16, 12)
	p.asked(p.inject(p.response(wire.RCReadRespMiddle, ourPSN.Add(12), 256)), 10, 6, 16, 12)
	p.asked(p.answer(10, 16, -1, 15))
	p.rest(p.advance(2*ackT14), 16)
	p.wantWC("1:success")
}

// TestReadPartEnds: the answer to each part ends with LAST where its request ended, not before and not
// behind.
func TestReadPartEnds(t *testing.T) {
	for name, last := range map[string]int{"early": 14, "late": 99} {
		t.Run(name, func(t *testing.T) {
			p := newPartly(t, 7)
			p.answer(0, 16, 0, last)
			p.wantWC("1:bad response error")
			p.state(rxe.StateErr)
		})
	}
}

// TestReadPartsRetryCount: each answer gives the READ all its retries back; without one retry_cnt counts.
func TestReadPartsRetryCount(t *testing.T) {
	p := newPartly(t, 1)
	p.asked(p.advance(ackT14+ms), 0, 16)
	p.asked(p.answer(0, 16, 0, 15)[:1], 16, 5) // the window is 8 since the loss
	for i := range 3 {
		todo := p.advance(ackT14 + ms) // the last retry each time
		p.answer(16+i, 17+i, -1, 24)
		if len(todo) != 1 || int(todo[0].psn.Diff(ourPSN)) != 16+i {
			t.Fatalf("round %d: asked %v", i, todo)
		}
	}
	p.wantWC()
	p.advance(ackT14 + ms)
	p.wantWC()
	p.advance(ackT14 + ms)
	p.wantWC("1:transport retry counter exceeded")
}

// TestReadPartsFence: a fenced WRITE waits for the answer to the last part; one without goes out behind the
// last request.
func TestReadPartsFence(t *testing.T) {
	for _, flags := range []rxe.SendFlags{0, rxe.SendFence} {
		p := newPartly(t, 7)
		w := p.writeWR(2, 8)
		w.Flags = flags
		if s := p.post(w); len(s) != 0 {
			t.Fatalf("sent before the READ is asked for: %v", s)
		}
		todo, next, wrote := p.answer(0, 16, 0, 15), 16, -1
		for len(todo) > 0 {
			k := todo[0]
			todo = todo[1:]
			if k.op != wire.RCReadRequest {
				continue
			}
			first := next
			for next += (k.length + 255) / 256; first < next; first++ {
				out := p.answer(first, first+1, int(k.psn.Diff(ourPSN)), next-1)
				for _, k := range out {
					if k.op == wire.RCWriteOnly {
						wrote = first + 1
					}
				}
				todo = append(todo, out...)
			}
		}
		if fenced := flags != 0; fenced != (wrote == 100) || wrote < 0 {
			t.Errorf("flags %d: WRITE sent when %d PSNs were answered", flags, wrote)
		}
		p.inject(ack(ourPSN.Add(100)))
		p.wantWC("1:success", "2:success")
	}
}

// TestReadPartRefused: the peer refuses a part, its region being gone: the READ fails. An empty receive
// queue, which a READ never meets, is waited for like any other.
func TestReadPartRefused(t *testing.T) {
	p := newPartly(t, 7)
	p.asked(p.answer(0, 16, 0, 15), 16, 12, 28, 20)
	p.asked(p.inject(rnr(ourPSN.Add(16), 1)))
	p.asked(p.advance(ms), 16, 12, 28, 20)
	p.inject(nak(ourPSN.Add(16), wire.NAKRemoteAccess))
	p.wantWC("1:remote access error")

	p = newPartly(t, 7) // behind answers that are missing still
	p.asked(p.answer(0, 6, 0, 15), 16, 12)
	p.inject(nak(ourPSN.Add(16), wire.NAKRemoteAccess))
	p.wantWC("1:remote access error")
}

// TestReadPartsLossy: long READs of depth 1, when one part is outstanding at a time, to 16, through loss,
// duplicates and reordering, over the end of PSNs: all is read, and the depth is kept.
func TestReadPartsLossy(t *testing.T) {
	for seed := range uint64(24) {
		depth := []uint8{1, 2, 3, 16}[seed%4]
		drop := []float64{0.002, 0.02, 0.05}[seed%3]
		p := newPair(t, pairConfig{mem: 1 << 20, sim: sim.Config{Seed: seed, Faults: sim.Faults{Drop: drop, Duplicate: 0.02, Reorder: 0.02}},
			conn: sim.ConnAttr{PMTU: 512, RdAtomic: depth, PSN: 0xfffff0, Timeout: 8}})
		for i := range 6 {
			n := 100_000 + 7777*i
			p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{p.a.mem.SGE(150_000*i, n)}, RemoteAddr: memAddr + uint64(i), RKey: p.b.mem.Key})
			p.a.send(t, rxe.SendWR{ID: uint64(i), Opcode: rxe.WRRDMAWrite, Flags: rxe.SendFence, SGEs: []rxe.SGE{p.a.mem.SGE(150_000*i, 1)}, RemoteAddr: memAddr + 1000_000, RKey: p.b.mem.Key})
			for _, c := range p.wait(p.a, 2) {
				wantStatus(t, c, rxe.WCSuccess)
			}
			if !bytes.Equal(p.a.mem.Buf[150_000*i:][:n], p.b.mem.Buf[i:][:n]) {
				t.Fatalf("seed %d: %d bytes differ", seed, n)
			}
		}
		if c := p.b.q.Shard().C; c.Drops[rxe.ReasonNoResources] != 0 || rxe.ReadsOutstanding(p.a.q) != 0 {
			t.Fatalf("seed %d: depth %d was exceeded", seed, depth)
		}
	}
}

// TestReadLength: the longest READ has 2^23-1 PSNs; one more is refused at post.
func TestReadLength(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{pmtu: 256})
	wr := rxe.SendWR{ID: 2, Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{{Addr: memAddr, Length: 256 * (1<<23 - 1), LKey: p.mem.Key}}}
	one(t, p.post(wr))
	wr.SGEs[0].Length++
	if err := p.q.PostSend(&wr); !errors.Is(err, rxe.ErrReadLen) {
		t.Fatalf("a READ of 2^23 PSNs: %v", err)
	}
}
