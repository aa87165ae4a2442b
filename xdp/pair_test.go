package xdp

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestPairSizes(t *testing.T) {
	for _, at := range starts {
		for _, chunk := range []int{2048, 4096} {
			a, b, k := newPair(t, Config{SG: true, ChunkSize: chunk, FillDepth: 64,
				TXFrames: 64}, at)
			k.split = uint32(chunk - RXReserve)
			for n := MinFrame; n <= 9014; n += 97 {
				want := sendPattern(t, a, n)
				if got := a.Kick(); got != KickSent {
					t.Fatalf("kick: %v", got)
				}
				if got := b.Receive(4); got != 1 {
					t.Fatalf("at %#x: %d frames of %d bytes", at, got, n)
				}
				if got := frame(b, 0); !bytes.Equal(got, want) {
					t.Fatalf("at %#x: frame of %d bytes differs", at, n)
				}
				if got := b.Len(0); got != n {
					t.Fatalf("at %#x: Len %d, want %d", at, got, n)
				}
				b.Release()
				if a.InFlight() != 0 || a.Pending() != 0 {
					t.Fatalf("at %#x: %d in flight, %d pending", at, a.InFlight(), a.Pending())
				}
			}
		}
	}
}

// TestPairChainStraddlesPeeks shows a frame's parts to Receive one at a time.
func TestPairChainStraddlesPeeks(t *testing.T) {
	_, b, k := newPair(t, Config{SG: true, FillDepth: 64, TXFrames: 64}, 1<<32-2)
	to := &k.side[1]
	lend := func(n uint32, more bool) {
		a := to.fill.entries[to.fill.next&to.fill.mask] + RXReserve
		if to.fill.ready(1) == 0 {
			t.Fatal("no chunk lent")
		}
		to.fill.release(to.fill.next + 1)
		d := desc{addr: a, len: n}
		if more {
			d.options = optContd
		}
		to.rx.put(d)
		to.rx.publish()
	}
	lend(100, false)
	lend(3840, true)
	if got := b.Receive(8); got != 1 || b.Len(0) != 100 {
		t.Fatalf("%d frames, want the whole one only", got)
	}
	if got := b.Receive(8); got != 0 {
		t.Fatalf("%d frames with a part missing, want 0", got)
	}
	lend(3840, true)
	if got := b.Receive(8); got != 0 {
		t.Fatalf("%d frames with a part missing, want 0", got)
	}
	lend(7, false)
	lend(60, false)
	if got := b.Receive(8); got != 2 || b.Len(0) != 7687 || b.Len(1) != 60 {
		t.Fatalf("%d frames, want 2", got)
	}
	head, tail, parts := b.Packet(0)
	if len(head) != 3840 || len(tail) != 3840 || parts != 3 || len(b.Part(0, 2)) != 7 {
		t.Fatalf("parts of %d, %d; %d parts", len(head), len(tail), parts)
	}
	b.Release()
	if got := to.fill.ready(64); got != 64 {
		t.Fatalf("%d chunks lent after release, want all 64", got)
	}
}

// TestPairBadEntries: addresses the kernel should never give are counted and skipped.
func TestPairBadEntries(t *testing.T) {
	a, b, k := newPair(t, Config{SG: true, FillDepth: 8, TXFrames: 8}, 1<<32-1)
	to, from := &k.side[1], &k.side[0]
	own := uint64(b.rxBase)
	for _, d := range []desc{
		{addr: 1 << 40, len: 64},                           // beyond the UMEM
		{addr: 0, len: 64},                                 // someone else's
		{addr: uint64(b.txBase), len: 64},                  // our own transmit chunk
		{addr: own + 256, len: 3841},                       // crosses the chunk's end
		{addr: own + 256, len: 3840, options: optContd},    // a chain with
		{addr: own - 4096 + 256, len: 10, options: 0},      // a bad end
		{addr: own + 4096 + 256, len: 3840, options: 0x40}, // sound; unknown bits do not matter
	} {
		to.rx.put(d)
	}
	to.rx.publish()
	if got := b.Receive(8); got != 1 || b.Len(0) != 3840 {
		t.Fatalf("%d frames, want the sound one", got)
	}
	if got := b.Stats().RXInvalid; got != 5 {
		t.Errorf("RXInvalid is %d, want 5", got)
	}

	sendPattern(t, a, 100)
	sendPattern(t, a, 5000)
	if a.Kick() != KickSent || a.Pending() != 0 {
		t.Fatal("frames not completed")
	}
	for _, addr := range []uint64{1 << 40, 0, uint64(a.rxBase), uint64(a.txBase), ^uint64(0)} {
		from.comp.put(addr)
	}
	from.comp.publish()
	if got := a.Reap(); got != 0 {
		t.Errorf("%d chunks came home from spurious completions", got)
	}
	if got := a.Stats().BadCompletions; got != 5 {
		t.Errorf("BadCompletions is %d, want 5", got)
	}
	if a.Pending() != 0 || a.InFlight() != 0 || len(a.free) != 8 {
		t.Errorf("%d pending, %d in flight, %d free", a.Pending(), a.InFlight(), len(a.free))
	}
}

func TestPairReservePlan(t *testing.T) {
	a, _, k := newPair(t, Config{SG: true, FillDepth: 8, TXFrames: 8, InFlight: 3}, 0)
	k.manual = true
	h1, t1, ok := a.Reserve()
	if !ok || len(h1) != 3840 || len(t1) != 4096 {
		t.Fatalf("reserved %d and %d bytes, %v", len(h1), len(t1), ok)
	}
	h2, _, _ := a.Reserve()
	if &h1[0] != &h2[0] {
		t.Error("a second Reserve gave other memory than the first, unsubmitted one")
	}
	a.Cancel()
	if a.Kick() != KickIdle || a.Pending() != 0 {
		t.Error("a cancelled reservation was sent")
	}
	for range 3 {
		sendPattern(t, a, 60)
	}
	if _, _, ok := a.Reserve(); ok {
		t.Error("reserved beyond the in-flight cap")
	}
	if got := a.Room(); got != 0 {
		t.Errorf("Room is %d, want 0", got)
	}
	a.Kick()
	if _, ok := k.take(&k.side[0]); !ok {
		t.Fatal("nothing in the TX ring")
	}
	if _, _, ok := a.Reserve(); !ok {
		t.Error("Reserve did not reap the completion")
	}
	if got := a.Stats().TXFull; got != 1 {
		t.Errorf("TXFull is %d, want 1", got)
	}
}

// TestPairReapWithReservation: completions between Reserve and Submit leave the reserved memory in
// place.
func TestPairReapWithReservation(t *testing.T) {
	a, b, k := newPair(t, Config{SG: true, FillDepth: 32, TXFrames: 8}, 0)
	k.manual = true
	sendPattern(t, a, 5000)
	sendPattern(t, a, 60)
	a.Kick()
	head, tail, ok := a.Reserve()
	if !ok {
		t.Fatal("no room")
	}
	for i := range head {
		head[i] = 1
	}
	for i := range tail {
		tail[i] = 2
	}
	for k.move(&k.side[0], &k.side[1]) {
	}
	if got := a.Reap(); got != 3 {
		t.Fatalf("reaped %d, want 3", got)
	}
	a.Submit(4000)
	a.Kick()
	for k.move(&k.side[0], &k.side[1]) {
	}
	if got := b.Receive(8); got != 3 {
		t.Fatalf("%d frames, want 3", got)
	}
	want := append(bytes.Repeat([]byte{1}, 3840), bytes.Repeat([]byte{2}, 160)...)
	if !bytes.Equal(frame(b, 2), want) {
		t.Error("the reserved memory was not what was sent")
	}
}

func TestPairSubmitRefuses(t *testing.T) {
	a, _, _ := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 0)
	for _, n := range []int{-1, 0, 13, 3841, 1 << 40} {
		if _, _, ok := a.Reserve(); !ok {
			t.Fatal("no room")
		}
		if a.Submit(n) {
			t.Errorf("a frame of %d bytes was taken", n)
		}
	}
	if got := a.Stats().TXRefused; got != 5 {
		t.Errorf("TXRefused is %d, want 5", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("Submit without Reserve did not panic")
		}
	}()
	a.Submit(60)
}

func TestPairKickOutcomes(t *testing.T) {
	for _, c := range []struct {
		name      string
		errno     []unix.Errno
		want      Kicked
		delivered int
		check     func(Counters) bool
	}{
		{"sent", nil, KickSent, 3, func(c Counters) bool { return c.Kicks == 1 }},
		{"interrupted", []unix.Errno{unix.EINTR}, KickSent, 3,
			func(c Counters) bool { return c.Kicks == 2 }},
		{"dropped", []unix.Errno{unix.EBUSY}, KickSent, 2,
			func(c Counters) bool { return c.TXDropped == 1 && c.Kicks == 2 }},
		{"all dropped", []unix.Errno{unix.EBUSY, unix.EBUSY, unix.EBUSY}, KickSent, 0,
			func(c Counters) bool { return c.TXDropped == 3 && c.Kicks == 3 }},
		{"again", []unix.Errno{unix.EAGAIN}, KickAgain, 0,
			func(c Counters) bool { return c.TXAgain == 1 && c.Kicks == 1 }},
		{"dropped, again", []unix.Errno{unix.EBUSY, unix.EAGAIN}, KickAgain, 0,
			func(c Counters) bool { return c.TXDropped == 1 && c.TXAgain == 1 }},
		{"down", []unix.Errno{unix.ENETDOWN}, KickDown, 0,
			func(c Counters) bool { return c.TXDown == 1 }},
		{"gone", []unix.Errno{unix.ENXIO}, KickGone, 0,
			func(c Counters) bool { return c.Kicks == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, k := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 1<<32-2)
			k.errno = c.errno
			for range 3 {
				sendPattern(t, a, 60)
			}
			if got := a.Kick(); got != c.want {
				t.Errorf("kick: %v, want %v", got, c.want)
			}
			if got := b.Receive(8); got != c.delivered {
				t.Errorf("%d frames arrived, want %d", got, c.delivered)
			}
			if st := a.Stats().Counters; !c.check(st) {
				t.Errorf("counters %+v", st)
			}
			b.Release()
			switch c.want {
			case KickAgain, KickDown:
				// Nothing new is submitted; what was left must go now.
				if got := a.Kick(); got != KickSent || b.Receive(8) == 0 {
					t.Errorf("second kick: %v", got)
				}
			case KickGone:
				if a.Err() != ErrGone || a.Kick() != KickGone {
					t.Error("the socket forgot that its interface is gone")
				}
			case KickSent:
				if got := a.Kick(); got != KickIdle {
					t.Errorf("second kick: %v, want KickIdle", got)
				}
			}
		})
	}
}

// TestPairModel: any order of calls keeps every chunk in exactly one place and every frame in
// order.
func TestPairModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := rapid.SampledFrom(starts).Draw(rt, "at")
		a, b, k := newPair(t, Config{SG: true, FillDepth: 16, TXFrames: 16, InFlight: 5}, at)
		k.manual = true
		var want [][]byte // submitted and not yet received
		inRing := 0       // of those, how many the kernel has moved
		rt.Repeat(map[string]func(*rapid.T){
			"send": func(rt *rapid.T) {
				n := rapid.IntRange(MinFrame, 9014).Draw(rt, "n")
				if parts, ok := a.ReserveParts(n); ok {
					want = append(want, bytes.Clone(fillReserved(a, parts, n)))
					a.Submit(n)
				}
			},
			"plan":   func(*rapid.T) { a.Reserve() },
			"cancel": func(*rapid.T) { a.Cancel() },
			"kick":   func(*rapid.T) { a.Kick() },
			"reap":   func(*rapid.T) { a.Reap() },
			"move": func(*rapid.T) {
				to := &k.side[1]
				if to.fill.ready(4) < 4 || to.rx.room(4) < 4 {
					return // it would drop
				}
				if k.move(&k.side[0], to) {
					inRing++
				}
			},
			"receive": func(rt *rapid.T) {
				n := b.Receive(rapid.IntRange(1, 4).Draw(rt, "max"))
				for i := range n {
					if !bytes.Equal(frame(b, i), want[i]) {
						rt.Fatalf("frame of %d bytes arrived as %d", len(want[i]), b.Len(i))
					}
				}
				want, inRing = want[n:], inRing-n
			},
			"release": func(*rapid.T) { b.Release() },
			"": func(rt *rapid.T) {
				if inRing < 0 || a.inFlight < 0 || a.inFlight > 5 {
					rt.Fatalf("%d in ring, %d in flight", inRing, a.inFlight)
				}
				account(rt, a, &k.side[0])
				account(rt, b, &k.side[1])
			},
		})
	})
}

// account checks that every chunk of a socket is in exactly one place.
func account(rt *rapid.T, s *Socket, k *kernelSide) {
	seen := map[uint64]string{}
	put := func(a uint64, where string) {
		a &^= uint64(s.chunk - 1)
		if was, ok := seen[a]; ok {
			rt.Fatalf("chunk %#x is in %s and in %s", a, was, where)
		}
		seen[a] = where
	}
	for _, a := range s.free {
		put(uint64(a), "free stack")
	}
	for i := k.tx.next; i != s.tx.next; i++ {
		put(s.tx.entries[i&s.tx.mask].addr, "TX ring")
	}
	for i := s.comp.next; i != k.comp.next; i++ {
		put(s.comp.entries[i&s.comp.mask], "completion ring")
	}
	for i := s.rx.next; i != k.rx.next; i++ {
		put(s.rx.entries[i&s.rx.mask].addr, "RX ring")
	}
	for i := k.fill.next; i != s.fill.next; i++ {
		put(s.fill.entries[i&s.fill.mask], "fill ring")
	}
	if got, want := len(seen), s.cfg.FillDepth+s.cfg.TXFrames; got != want {
		rt.Fatalf("%d chunks accounted for, want %d", got, want)
	}
}

// TestPairTwoGoroutines runs both sockets and the kernel between them at the same time. The race
// detector and arm64 judge the ordering of chunk contents and ring entries.
func TestPairTwoGoroutines(t *testing.T) {
	const total = 5000
	a, b, k := newPair(t, Config{SG: true, FillDepth: 64, TXFrames: 64, InFlight: 16}, 1<<32-500)
	k.manual = true
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		to := &k.side[1]
		for {
			select {
			case <-stop:
				return
			default:
			}
			if to.fill.ready(4) < 4 || to.rx.room(4) < 4 || !k.move(&k.side[0], to) {
				runtime.Gosched()
			}
		}
	})
	wg.Go(func() {
		for i := 0; i < total; {
			parts, ok := a.ReserveParts(size(i))
			if !ok {
				runtime.Gosched()
				continue
			}
			for j := range parts {
				p := a.ReservedPart(j)
				p[0], p[len(p)-1] = byte(i), byte(i>>8)
			}
			a.Submit(size(i))
			a.Kick()
			i++
		}
	})
	for i := 0; i < total; {
		n := b.Receive(8)
		for j := range n {
			if head, _, _ := b.Packet(j); b.Len(j) != size(i) || head[0] != byte(i) {
				t.Errorf("frame %d: %d bytes, starts with %d", i, b.Len(j), head[0])
			}
			i++
		}
		b.Release()
		if n == 0 {
			runtime.Gosched()
		}
	}
	close(stop)
	wg.Wait()
}

func size(i int) int { return MinFrame + i*131%9000 }

// TestPairClosed: a closed socket answers everything with nothing.
func TestPairClosed(t *testing.T) {
	a, _, _ := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 5)
	sendPattern(t, a, 60)
	must(t, a.Close())
	must(t, a.Close())
	_, _, ok := a.Reserve()
	if ok || a.Receive(8) != 0 || a.Reap() != 0 || a.Kick() != KickGone ||
		a.Wait(-1) != WokenGone || a.Err() != ErrGone {
		t.Error("a closed socket did something")
	}
	a.Release()
	if st := a.Stats(); st.TXFrames != 1 {
		t.Errorf("counters lost: %+v", st)
	}
}

func TestConfig(t *testing.T) {
	for i, c := range []Config{
		{},
		{Interface: "x", Queue: -1},
		{Interface: "x", ChunkSize: 8192},
		{Interface: "x", FillDepth: -1},
		{Interface: "x", SG: true, TXFrames: 1},
		{Interface: "x", TXHead: 63},
		{Interface: "x", TXHead: 4097},
		{Interface: "x", RXRing: 100},
		{Interface: "x", FillRing: 256},
		{Interface: "x", TXRing: 256},
		{Interface: "x", CompletionRing: 256},
		{Interface: "x", InFlight: -2},
		{Interface: "x", TXBudget: 1024},
		{Interface: "x", BusyBudget: -1},
		{Interface: "x", ZeroCopy: 3},
		{Interface: "x", UMEM: &UMEM{chunk: 2048}, ChunkSize: 4096},
	} {
		if err := c.validate(); err == nil {
			t.Errorf("config %d was accepted", i)
		}
	}
	c := Config{Interface: "x", FillDepth: 300, TXFrames: 65, InFlight: Unlimited}
	must(t, c.validate())
	got := fmt.Sprint(c.RXRing, c.FillRing, c.TXRing, c.CompletionRing, c.InFlight, c.TXBudget,
		c.TXHead)
	if want := "512 512 128 128 65 128 3840"; got != want {
		t.Errorf("defaults are %s, want %s", got, want)
	}
}

func TestUMEMSpans(t *testing.T) {
	u, err := NewUMEM(10, 2048)
	must(t, err)
	take := func(n int) span {
		t.Helper()
		s, err := u.take(n)
		must(t, err)
		return s
	}
	a, b, c := take(3), take(4), take(3)
	if _, err := u.take(1); err == nil {
		t.Error("took a chunk of a full UMEM")
	}
	u.give(b)
	if d := take(2); d != (span{3, 2}) {
		t.Errorf("took %v, want the gap", d)
	}
	if _, err := u.take(3); err == nil {
		t.Error("took 3 chunks where 2 are in a row")
	}
	if err := u.Close(); err == nil {
		t.Error("closed a UMEM in use")
	}
	u.give(a)
	u.give(c)
	u.give(span{3, 2})
	must(t, u.Close())
	must(t, u.Close())
	if _, err := u.take(1); err == nil {
		t.Error("took a chunk of a closed UMEM")
	}
}
