package rxe_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// FuzzWQE is a poster that shares memory with the engine and means no good: it changes records before,
// between and while they are read, and moves its index. No panic, no byte outside the region, and no
// more completions than work requests.
//
// Of the input's steps of three bytes, the first says what happens: post a good work request, change a
// word of the send or receive queue's memory (the second byte: which; the third: to what), move the
// producer index, or let the engine run. Beside that a goroutine keeps writing the last word chosen,
// while the engine runs; not under the race detector, which would rightly complain.
func FuzzWQE(f *testing.F) {
	f.Add([]byte{0, 0, 0, 9, 0, 0})
	f.Add([]byte{0, 0, 0, 2, 0, 255, 9, 0, 0, 0, 1, 0, 3, 7, 128, 9, 0, 0})
	f.Add([]byte{1, 0, 0, 2, 6, 0, 9, 0, 0, 0, 2, 0, 2, 7, 200, 9, 0, 0, 4, 3, 0, 9, 0, 0})
	f.Add([]byte{0, 3, 0, 2, 3, 9, 9, 0, 0, 5, 0, 255, 9, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 600 {
			return
		}
		p := qpIn(t, rxe.StateRTS, rawConfig{pmtu: 256, retry: 1, rnr: 1})
		send, recv := rxe.QueueMemory(&p.q.SQ), rxe.QueueMemory(&p.q.RQ)
		scribbler := startScribbler()
		defer scribbler.stop()
		posted := 0
		for ; len(in) >= 3; in = in[3:] {
			at, val := int(in[1]), nonsense[in[2]%uint8(len(nonsense))]^uint64(in[2])<<(in[1]%64)
			switch in[0] % 10 {
			case 0, 1:
				wr := p.writeWR(uint64(posted), 8+int(in[2])*8)
				if in[0]%10 == 1 {
					wr = p.readWR(uint64(posted), 8+int(in[2])*8)
				}
				if p.q.PostSend(&wr) == nil {
					posted++
				}
			case 2, 3:
				send[at%len(send)] = val
				scribbler.word(&send[at%len(send)])
			case 4:
				recv[at%len(recv)] = val
				scribbler.word(&recv[at%len(recv)])
			case 5:
				rxe.QueueIndex(&p.q.SQ).Store(uint32(val))
				posted = 1 << 30 // whatever it now says is posted
			case 6:
				wr := rxe.RecvWR{ID: 7, SGEs: []rxe.SGE{p.mem.SGE(0, 64)}}
				if p.q.PostRecv(&wr) == nil {
					posted++
				}
			case 7:
				p.inject(packet{op: wire.RCSendOnly, psn: firstPSN.Add(uint32(at)), payload: make([]byte, 8)})
			default:
				p.q.RingDoorbell()
				scribbler.run(true)
				p.run()
				p.advance(2 * ms)
				scribbler.run(false)
			}
		}
		scribbler.stop()
		p.q.RingDoorbell()
		p.run()
		p.advance(20 * ms)
		if n := len(p.poll()); n > posted {
			t.Fatalf("%d completions of %d work requests", n, posted)
		}
		p.checkGuards()
	})
}

// nonsense are words that queues hate.
var nonsense = [...]uint64{0, 1, 1<<64 - 1, 1 << 63, 1 << 32, 1<<32 - 1, 0xff << 16, 32 << 16, 33 << 16, 0x7fffffff,
	memAddr, memAddr - 1, memAddr<<32 | 4096}

// scribbler writes one word after the other while the engine runs.
type scribbler struct {
	at   atomic.Pointer[uint64]
	on   atomic.Bool
	quit atomic.Bool
	done chan struct{}
}

func startScribbler() *scribbler {
	s := &scribbler{done: make(chan struct{})}
	if raceEnabled {
		close(s.done)
		return s
	}
	go func() {
		defer close(s.done)
		for i := 0; !s.quit.Load(); i++ {
			if w := s.at.Load(); w != nil && s.on.Load() {
				*w = nonsense[i%len(nonsense)]
			} else {
				runtime.Gosched()
			}
		}
	}()
	return s
}

func (s *scribbler) word(w *uint64) { s.at.Store(w) }
func (s *scribbler) run(on bool)    { s.on.Store(on) }

func (s *scribbler) stop() {
	s.quit.Store(true)
	<-s.done
}
