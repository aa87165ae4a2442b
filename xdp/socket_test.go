package xdp

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// fillReserved writes a pattern that depends on the frame's length and the position, and returns a
// copy.
func fillReserved(s *Socket, parts, n int) []byte {
	var all []byte
	for j := range parts {
		p := s.ReservedPart(j)
		for i := range p {
			p[i] = byte(n + (len(all)+i)*7 + (len(all)+i)>>8)
		}
		all = append(all, p...)
	}
	return all[:n]
}

// frame gathers frame i of the batch.
func frame(s *Socket, i int) []byte {
	var all []byte
	_, _, parts := s.Packet(i)
	for j := range parts {
		all = append(all, s.Part(i, j)...)
	}
	return all
}

func TestFrameSizes(t *testing.T) {
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		l := newLab(t, 1, 9000)
		m := l.program(t, 1, 1, mode)
		a := l.open(t, 0, Config{SG: true})
		b := l.open(t, 1, Config{SG: true, XSKMAP: m})
		for _, n := range []int{14, 60, 64, 1082, 3839, 3840, 3841, 4096, 4154, 7680, 7936, 7937,
			9014} {
			parts, ok := a.ReserveParts(n)
			if !ok {
				t.Fatalf("mode %d: %d bytes not reserved", mode, n)
			}
			want := fillReserved(a, parts, n)
			if !a.Submit(n) {
				t.Fatalf("mode %d: %d bytes refused", mode, n)
			}
			if k := a.Kick(); k != KickSent {
				t.Fatalf("mode %d: kick of %d bytes: %v", mode, n, k)
			}
			if w := b.Wait(time.Second); w != WokenRX {
				t.Fatalf("mode %d: %d bytes did not arrive: %+v %+v", mode, n, a.Stats(), b.Stats())
			}
			if got := b.Receive(8); got != 1 {
				t.Fatalf("mode %d: %d frames of %d bytes, want 1", mode, got, n)
			}
			if got := frame(b, 0); !bytes.Equal(got, want) || b.Len(0) != n {
				t.Fatalf("mode %d: frame of %d bytes arrived with %d, or differs", mode, n,
					len(got))
			}
			b.Release()
		}
	}
}

// drain receives until want frames have come or nothing comes any more, and returns how many did.
func drain(s *Socket, want int) int {
	got := 0
	for got < want {
		n := s.Receive(64)
		if n == 0 && s.Wait(200*time.Millisecond)&WokenRX == 0 {
			break
		}
		got += n
	}
	s.Release()
	return got
}

// TestQueues opens four queues at each end, with memory of their own and shared: what queue i sends
// arrives at queue i and nowhere else.
func TestQueues(t *testing.T) {
	const queues, frames = 4, 100
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			l := newLab(t, queues, 9000)
			m := l.program(t, 1, queues, link.XDPDriverMode)
			var ends [2][queues]*Socket
			for end := range ends {
				c := Config{SG: true, FillDepth: 256, TXFrames: 128}
				if end == 1 {
					c.XSKMAP = m
				}
				if shared {
					u, err := NewUMEM(queues*384, 4096)
					must(t, err)
					t.Cleanup(func() { must(t, u.Close()) })
					c.UMEM = u
				}
				for q := range queues {
					c.Queue = q
					ends[end][q] = l.open(t, end, c)
				}
			}
			for q, s := range ends[0] {
				for i := range (q + 1) * frames / 4 {
					sendPattern(t, s, 60+40*q+i%2*4000)
					if i%16 == 15 {
						s.Kick()
					}
				}
				s.Kick()
			}
			for q, s := range ends[1] {
				want := (q + 1) * frames / 4
				if got := drain(s, want); got != want {
					t.Errorf("queue %d received %d frames, want %d: %+v", q, got, want, s.Stats())
				}
				if n := s.Receive(1); n != 0 {
					t.Errorf("queue %d received more than was sent to it", q)
				}
			}
		})
	}
}

// TestSharedMemoryOutlivesFirst: the socket that registered the memory may close before the others,
// and a new one still joins.
func TestSharedMemoryOutlivesFirst(t *testing.T) {
	l := newLab(t, 3, 1500)
	m := l.program(t, 1, 3, link.XDPDriverMode)
	u, err := NewUMEM(2*128, 4096)
	must(t, err)
	c := Config{UMEM: u, XSKMAP: m, FillDepth: 64, TXFrames: 64}
	var peers, socks [3]*Socket
	for q := range 3 {
		peers[q] = l.open(t, 0, Config{Queue: q, FillDepth: 64, TXFrames: 64})
	}
	for q := range 2 {
		c.Queue = q
		socks[q] = l.open(t, 1, c)
	}
	if _, err := l.tryOpen(1, c); err == nil {
		t.Error("a third socket found room in memory for two")
	}
	must(t, socks[0].Close())
	ping(t, peers[1], socks[1])
	c.Queue = 2
	socks[2] = l.open(t, 1, c)
	ping(t, peers[2], socks[2])
	ping(t, peers[1], socks[1])
	if err := u.Close(); err == nil {
		t.Error("UMEM closed while in use")
	}
	must(t, socks[1].Close())
	must(t, socks[2].Close())
	must(t, u.Close())
}

// TestDropsCounted sends frames longer than the MTU past our own check: the driver drops each,
// which is EBUSY, and the frames around them arrive.
func TestDropsCounted(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	a := l.open(t, 0, Config{})
	b := l.open(t, 1, Config{XSKMAP: m})
	a.setMaxFrame(9000)
	for i := range 30 {
		sendPattern(t, a, []int{100, 1514, 1600}[i%3])
	}
	if k := a.Kick(); k != KickSent {
		t.Fatalf("kick: %v", k)
	}
	if got := drain(b, 20); got != 20 {
		t.Errorf("%d frames arrived, want 20", got)
	}
	st := a.Stats()
	if st.TXDropped != 10 || st.TXAgain != 0 {
		t.Errorf("%d dropped, %d again; want 10 and 0", st.TXDropped, st.TXAgain)
	}
	if a.InFlight() != 0 {
		t.Errorf("%d in flight after all, want 0", a.InFlight())
	}
}

// TestAgainCounted gives the kernel more than its budget in one go: it says EAGAIN, and Kick calls
// until everything is sent.
func TestAgainCounted(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	a := l.open(t, 0, Config{TXBudget: 32, InFlight: Unlimited})
	b := l.open(t, 1, Config{XSKMAP: m})
	for range 200 {
		sendPattern(t, a, 100)
	}
	if k := a.Kick(); k != KickSent {
		t.Fatalf("kick: %v", k)
	}
	if got := drain(b, 200); got != 200 {
		t.Errorf("%d frames arrived, want 200", got)
	}
	if st := a.Stats(); st.TXAgain < 5 || st.TXDropped != 0 {
		t.Errorf("%d again, %d dropped; want 6 and 0", st.TXAgain, st.TXDropped)
	}
}

// threaded moves the receive work of end b into a kernel thread, so that the ring of the veth can
// overflow. It goes through a sysfs mounted for that namespace.
func (l *lab) threaded(t *testing.T) {
	dir := t.TempDir()
	var err error
	within(l.b, func() {
		if err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return
		}
		if err = unix.Mount("sysfs", dir, "sysfs", 0, ""); err != nil {
			return
		}
		err = os.WriteFile(dir+"/class/net/b/threaded", []byte("1"), 0)
		_ = unix.Unmount(dir, 0)
	})
	if err != nil {
		t.Skipf("cannot make NAPI threaded: %v", err)
	}
}

// TestInFlightCapLosesNothing floods a veth whose receive work runs in another thread. With the
// cap, the driver drops nothing on the way out, and every frame is received or counted by the
// receiving socket.
func TestInFlightCapLosesNothing(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	l.threaded(t)
	const frames = 20_000
	a := l.open(t, 0, Config{})
	b := l.open(t, 1, Config{XSKMAP: m, FillDepth: 1024})
	var stop atomic.Bool
	received := make(chan struct{})
	go func() {
		defer close(received)
		for !stop.Load() {
			if b.Receive(64) == 0 {
				runtime.Gosched()
			}
		}
		drain(b, frames)
	}()
	most := 0
	for left := frames; left > 0 || a.InFlight() > 0; {
		a.Reap()
		for left > 0 {
			if _, _, ok := a.Reserve(); !ok {
				break
			}
			a.Submit(64)
			left--
		}
		most = max(most, a.InFlight())
		if k := a.Kick(); k > KickAgain {
			t.Fatalf("kick: %v", k)
		}
		runtime.Gosched()
	}
	stop.Store(true)
	<-received
	st, rx := a.Stats(), b.Stats()
	t.Logf("most in flight %d; sent %+v; received %d, kernel %+v", most, st.Counters, rx.RXFrames,
		rx.Kernel)
	if st.TXDropped != 0 {
		t.Errorf("%d frames dropped on the way out", st.TXDropped)
	}
	if most > DefaultInFlight {
		t.Errorf("%d frames in flight, cap %d", most, DefaultInFlight)
	}
	if got := rx.RXFrames + rx.Kernel.RXDropped + rx.Kernel.RXRingFull; got != frames {
		t.Errorf("%d frames accounted for, want %d", got, frames)
	}
}

// TestNoAllocation sends and receives 10^5 messages of one and two parts, with waits in between,
// and looks at the runtime's own count of allocations.
func TestNoAllocation(t *testing.T) {
	l := newLab(t, 1, 9000)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	a := l.open(t, 0, Config{SG: true})
	b := l.open(t, 1, Config{SG: true, XSKMAP: m})
	const messages = 100_000
	run := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := 0; i < messages; i += 25 {
			stream(a, b, 60+i%5000, 25)
			b.Wait(0)
		}
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	// Other goroutines of the runtime may allocate now and then: one clean run is proof.
	var n uint64
	for range 3 {
		if n = run(); n == 0 {
			break
		}
	}
	if n != 0 {
		t.Errorf("%d allocations in %d messages", n, messages)
	}
	if got := b.Stats().RXFrames; got < messages || got%messages != 0 {
		t.Errorf("%d frames arrived, want a multiple of %d", got, messages)
	}
}
