package xdp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// kernel is the other end of all the rings of two sockets in plain memory: it moves what one sends
// into the chunks the other lends, as a veth pair would.
type kernel struct {
	side [2]kernelSide
	// split is the largest part of a received frame.
	split uint32
	// errno, if not empty, is what the next calls return, one each; EBUSY drops a frame.
	errno []unix.Errno
	// manual: Kick moves nothing; the test calls move.
	manual bool
}

type kernelSide struct {
	s    *Socket
	tx   consumer[desc]
	comp producer[uint64]
	fill consumer[uint64]
	rx   producer[desc]
}

// newPair joins two sockets whose ring indices start at at.
func newPair(tb testing.TB, c Config, at uint32) (*Socket, *Socket, *kernel) {
	tb.Helper()
	k := &kernel{split: 3840}
	for i := range k.side {
		k.side[i] = newMemSocket(tb, c, at, k)
	}
	return k.side[0].s, k.side[1].s, k
}

func newMemSocket(tb testing.TB, c Config, at uint32, k *kernel) kernelSide {
	tb.Helper()
	c.Interface = "memory"
	must(tb, c.validate())
	count := c.FillDepth + c.TXFrames
	u := &UMEM{mem: make([]byte, (count+3)*c.ChunkSize), chunk: c.ChunkSize}
	_, err := u.take(3) // so that no address of ours is 0
	must(tb, err)
	chunks, err := u.take(count)
	must(tb, err)
	s := &Socket{fd: -1, ctl: -1}
	s.setup(c, u, chunks)
	s.setMaxFrame(9000)
	s.backend = &backend{send: func(s *Socket) unix.Errno { return k.send(s) }}
	rx, fill := heapRing[desc](c.RXRing, at), heapRing[uint64](c.FillRing, at)
	tx, comp := heapRing[desc](c.TXRing, at), heapRing[uint64](c.CompletionRing, at)
	tx.flags.Store(flagNeedWakeup)
	s.attach(rx, fill, tx, comp)
	side := kernelSide{s: s, tx: newConsumer(tx), comp: newProducer(comp),
		fill: newConsumer(fill), rx: newProducer(rx)}
	s.prime()
	return side
}

func (k *kernel) send(s *Socket) unix.Errno {
	from, to := &k.side[0], &k.side[1]
	if s == to.s {
		from, to = to, from
	}
	if len(k.errno) != 0 {
		e := k.errno[0]
		k.errno = k.errno[1:]
		if e == unix.EBUSY {
			k.take(from)
		}
		return e
	}
	if !k.manual {
		for k.move(from, to) {
		}
	}
	return 0
}

// take consumes one frame from the TX ring and completes it; it returns its parts.
func (k *kernel) take(from *kernelSide) (frame []byte, ok bool) {
	for {
		if from.tx.ready(1) == 0 {
			return nil, false
		}
		d := from.tx.entries[from.tx.next&from.tx.mask]
		frame = append(frame, from.s.umem.mem[d.addr:d.addr+uint64(d.len)]...)
		from.tx.release(from.tx.next + 1)
		from.comp.put(d.addr)
		if d.options&optContd == 0 {
			from.comp.publish()
			return frame, true
		}
	}
}

// move takes one frame from one side to the other, or drops it for want of chunks.
func (k *kernel) move(from, to *kernelSide) bool {
	frame, ok := k.take(from)
	if !ok {
		return false
	}
	parts := uint32(1)
	if n := uint32(len(frame)); n > k.split {
		parts = (n + k.split - 1) / k.split
	}
	if to.fill.ready(parts) < parts || to.rx.room(parts) < parts {
		return true
	}
	for len(frame) > 0 {
		a := to.fill.entries[to.fill.next&to.fill.mask] + RXReserve
		to.fill.release(to.fill.next + 1)
		n := copy(to.s.umem.mem[a:], frame[:min(len(frame), int(k.split))])
		frame = frame[n:]
		d := desc{addr: a, len: uint32(n)}
		if len(frame) > 0 {
			d.options = optContd
		}
		to.rx.put(d)
	}
	to.rx.publish()
	return true
}

// sendPattern queues one frame of n bytes and returns its content.
func sendPattern(tb testing.TB, s *Socket, n int) []byte {
	tb.Helper()
	parts, ok := s.ReserveParts(n)
	if !ok {
		tb.Fatalf("no room for %d bytes: %+v", n, s.Stats())
	}
	want := fillReserved(s, parts, n)
	if !s.Submit(n) {
		tb.Fatalf("%d bytes refused", n)
	}
	return want
}
