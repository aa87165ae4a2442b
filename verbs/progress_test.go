package verbs

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestServerThatNeverPolls: WRITE, READ and atomics are served although the application on the
// other side does nothing at all.
func TestServerThatNeverPolls(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{size: 1 << 17}, ConnOptions{})
		for _, n := range []int{1, 5000, 100001} {
			testWrite(t, a, b, n)
			testRead(t, a, b, n)
		}
		testAtomics(t, a, b)
		if n := b.cq.Len(); n != 0 {
			t.Errorf("%d completions on the passive side", n)
		}
	})
}

// TestSleepAfterCompletion: a client that polls for its answer and then sleeps does not keep the
// acknowledgement it owes.
func TestSleepAfterCompletion(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{}, ConnOptions{Timeout: 17}) // 537 ms
		var took []time.Duration
		for range 5 {
			a.recv(1, a.mr.SGE(0, 64))
			b.send(SendWR{Opcode: WRSend, SGList: []SGE{b.mr.SGE(0, 64)}})
			start := time.Now()
			poll1(t, a.cq) // and go away, an acknowledgement owed
			b.done(WCSuccess)
			took = append(took, time.Since(start))
		}
		time.Sleep(time.Second)
		if s := b.qp.Stats(); s.Retransmits != 0 || s.Timeouts != 0 {
			t.Errorf("%d retransmissions, %d timeouts", s.Retransmits, s.Timeouts)
		}
		t.Logf("completions of the peer: %v", took)
	})
}

// poll1 takes one completion by nothing but Poll.
func poll1(t testing.TB, q *CQ) WC {
	t.Helper()
	var wc [1]WC
	for start := time.Now(); time.Since(start) < testPatience; {
		if n, err := q.Poll(wc[:]); err != nil || n == 1 {
			if err != nil || wc[0].Status != WCSuccess {
				t.Fatalf("poll: %v, %+v", err, wc[0])
			}
			return wc[0]
		}
	}
	t.Fatal("no completion")
	return WC{}
}

// TestPostAndGo: what was posted goes out, is repeated and completes although nobody polls.
func TestPostAndGo(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{size: 1 << 20}, ConnOptions{})
		time.Sleep(5 * time.Millisecond) // threads asleep
		a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(),
			RKey: b.mr.RKey()})
		for start := time.Now(); a.cq.Len() == 0; {
			if time.Since(start) > testPatience {
				t.Fatal("no completion")
			}
			time.Sleep(time.Millisecond)
		}
		a.done(WCSuccess)
	})
}

// TestLoadFlag: who sees the last byte of a WRITE sees all of it, for sizes of 1 to 4096 bytes: 10^6
// times over a veth, half of them in each mode. It stops early on a busy machine.
func TestLoadFlag(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		count, limit := 250_000, 4*time.Second
		if w.name == "veth" {
			count, limit = 500_000, 15*time.Second
		}
		if raceEnabled {
			if w.name == "veth" {
				t.Skip("the race detector cannot see through a veth")
			}
			count = 10_000
		}
		loadFlag(t, w, cfg, count, limit)
	})
}

const (
	flagSlots    = 16
	flagSlotSize = 4096 + 64
)

func loadFlag(t *testing.T, w wireKind, cfg Config, count int, limit time.Duration) {
	a, b := newPair(t, w, cfg, endConfig{size: flagSlots * flagSlotSize}, ConnOptions{})
	sizes := 4096
	if raceEnabled {
		// A longer WRITE arrives in two pieces. Where the second has less than a word, LoadFlag's
		// word holds bytes of the first, which the race detector does not tell from the flag.
		sizes = 3700
	}
	size := func(i int) int { return i%sizes + 1 }
	at := func(i int) int { return i%flagSlots*flagSlotSize + i%13 } // odd alignments
	value := func(i int) byte { return byte(i%255) + 1 }
	var seen, stop atomic.Int64
	stop.Store(int64(count))
	var wg sync.WaitGroup
	wg.Go(func() { // the writer: never more than a slot ahead
		var wc [16]WC
		sge := make([]SGE, 1)
		completed := 0
		for i := 0; int64(i) < stop.Load(); {
			// Seen is not enough: until its completion a WRITE may be sent again.
			free := int64(i)-seen.Load() < flagSlots && i-completed < flagSlots
			if free && a.qp.State() == StateRTS {
				off := i % flagSlots * flagSlotSize
				src := a.mr.Bytes()[off : off+size(i)]
				for j := range src {
					src[j] = value(i)
				}
				sge[0] = a.mr.SGE(off, size(i))
				err := a.qp.PostSend(&SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: sge,
					RemoteAddr: b.mr.Addr() + uint64(at(i)), RKey: b.mr.RKey()})
				if err == nil {
					i++
				} else if err != ErrQueueFull {
					t.Error(err)
					return
				}
			}
			n, _ := a.cq.Poll(wc[:])
			completed += n
			for _, c := range wc[:n] {
				if c.Status != WCSuccess {
					t.Errorf("completion %+v", c)
					stop.Store(0)
				}
			}
			if n == 0 {
				runtime.Gosched()
			}
		}
	})
	pattern := make([][]byte, 256)
	for v := range pattern {
		pattern[v] = bytes.Repeat([]byte{byte(v)}, 4096)
	}
	var wc [4]WC
	start, i := time.Now(), 0
	for ; int64(i) < stop.Load(); i++ {
		msg := b.mr.Bytes()[at(i) : at(i)+size(i)]
		for LoadFlag(&msg[len(msg)-1]) != value(i) {
			if _, err := b.cq.Poll(wc[:]); err != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
			if stop.Load() == 0 {
				break
			}
		}
		if stop.Load() != 0 && !bytes.Equal(msg, pattern[value(i)][:len(msg)]) {
			t.Fatalf("WRITE %d of %d bytes: last byte seen before the others: % x", i, len(msg), msg)
		}
		clear(msg)
		seen.Store(int64(i + 1))
		if i%1024 == 0 && time.Since(start) > limit {
			stop.Store(int64(i + 1))
		}
	}
	stop.Store(0)
	wg.Wait()
	t.Logf("%d WRITEs in %v, %d retransmissions", i, time.Since(start).Round(time.Millisecond),
		a.qp.Stats().Retransmits)
}

// TestWriteIsNoVainPoll: a call of Poll that has brought a WRITE, which completes nothing here, does not
// count among the vain ones after which the CPU is offered to others: the answer would wait.
func TestWriteIsNoVainPoll(t *testing.T) {
	a, b := newPair(t, wires[0], Config{Progress: ProgressCaller}, endConfig{}, ConnOptions{})
	const many = 1 << 20
	for try := range 1000 {
		flag := byte(try%255) + 1
		a.mr.Bytes()[0] = flag
		b.cq.mu.Lock()
		b.cq.vain = many
		b.cq.mu.Unlock()
		a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		var wc [1]WC
		for start := time.Now(); LoadFlag(&b.mr.Bytes()[0]) != flag; {
			if _, err := b.cq.Poll(wc[:]); err != nil || time.Since(start) > testPatience {
				t.Fatalf("waited in vain: %v", err)
			}
		}
		a.done(WCSuccess)
		if b.cq.vain < many {
			return
		}
	} // the thread may have been quicker, but not each time
	t.Error("WRITEs came, and all calls of Poll counted as vain")
}

// slowLink takes longer to kick than a thread waits for a goroutine that polls.
type slowLink struct {
	Link
	kicked func()
}

func (l *slowLink) Kick() {
	time.Sleep(2 * callerGrace)
	l.kicked()
	l.Link.Kick()
}

// TestCallerMovesFrames: a goroutine in Poll is not taken for gone while it moves frames, however long
// that takes.
func TestCallerMovesFrames(t *testing.T) {
	var mine *poller
	var inside, gone atomic.Int64
	la, lb := NewLinkPair(1)
	la[0] = &slowLink{la[0], func() {
		switch {
		case mine == nil:
		case mine.callerAway() < 0:
			inside.Add(1)
		default: // it is the thread that kicks
			gone.Add(1)
		}
	}}
	ca, cb := openJoined(t, la, lb, Config{Progress: ProgressCaller}, Config{})
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connect(t, a, b, ConnOptions{})
	ca.pollers[0].hold()
	mine = ca.pollers[0]
	mine.release()
	var wc [1]WC
	for start := time.Now(); inside.Load() < 10; {
		a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		for n := 0; n == 0; {
			var err error
			if n, err = a.cq.Poll(wc[:]); err != nil || time.Since(start) > testPatience {
				t.Fatalf("%d kicks in Poll, %d by the thread: %v", inside.Load(), gone.Load(), err)
			}
		}
	}
}

// busyLink always has a frame, which is none of RoCEv2.
type busyLink struct{ Link }

func (l busyLink) Receive(int) int                { return 1 }
func (l busyLink) Packet(int) (head, tail []byte) { return make([]byte, 60), nil }
func (l busyLink) Release()                       {}

// TestBusyThreadGivesWay: a thread that always finds something to do, in a program with no processor to
// spare, does not keep other goroutines waiting until the runtime takes its processor away.
func TestBusyThreadGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	la, lb := NewLinkPair(1)
	la[0] = busyLink{la[0]}
	ca, _ := openJoined(t, la, lb, Config{}, Config{})
	const turns = 200 // the runtime's 10 ms each would be 2 s
	before, start := ca.Stats().Total.RcvdPkts, time.Now()
	for range turns {
		runtime.Gosched()
	}
	took := time.Since(start)
	t.Logf("%d turns took %v; meanwhile %d frames came", turns, took, ca.Stats().Total.RcvdPkts-before)
	if took > time.Second {
		t.Errorf("%d turns took %v: a busy thread keeps the processor", turns, took)
	}
}

// TestIdleCostsNothing: 64 connections without traffic take less than 1 % of a core.
func TestIdleCostsNothing(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		var last *end
		for range 64 {
			a, b := newEnd(t, ca, endConfig{size: 4096}), newEnd(t, cb, endConfig{size: 4096})
			connect(t, a, b, ConnOptions{Timeout: 14}) // 67 ms
			testWrite(t, a, b, 100)
			last = a
		}
		poll := make([]WC, 1)
		_, _ = last.cq.Poll(poll)
		time.Sleep(300 * time.Millisecond) // timers that were armed run out
		runtime.GC()
		const window = 500 * time.Millisecond
		used := window
		for range 3 { // the runtime may have something to do in one of them
			before := cpuTime(t)
			time.Sleep(window)
			used = min(used, cpuTime(t)-before)
		}
		t.Logf("CPU used in %v: %v", window, used)
		if used > window/100 {
			t.Errorf("idle for %v used %v of CPU, want 1 %% at most", window, used)
		}
	})
}

func cpuTime(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWaitSleepsAndWakes: Wait in both modes returns for a message that comes much later, ends with
// its context, and with the device.
func TestWaitSleepsAndWakes(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{}, ConnOptions{})
		b.recv(1, b.mr.SGE(0, 64))
		time.AfterFunc(30*time.Millisecond, func() {
			_ = a.qp.PostSend(&SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 8)}})
		})
		b.done(WCSuccess)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if err := b.cq.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait on an idle queue: %v", err)
		}
		errs := make(chan error)
		go func() { errs <- b.cq.Wait(context.Background()) }()
		time.Sleep(5 * time.Millisecond)
		if err := b.c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-errs; err != ErrClosed {
			t.Errorf("Wait on a closed device: %v", err)
		}
	})
}
