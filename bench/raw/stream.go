package raw

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/xdp"
)

// errDown says that an interface went down or away in the middle.
var errDown = errors.New("raw: the link went down")

// settle is how long frames may be under way before they count as lost.
const settle = time.Second

// Stream sends frames from A to B as fast as they go and counts those that arrive. The sender
// stays so little ahead that the receiver always has chunks for what comes, so that nothing is
// lost on a veth. It stops early, with ctx's error, when ctx ends.
func Stream(ctx context.Context, c Config) (Result, error) {
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	a, b, err := openBoth(&c)
	defer func() {
		_ = a.close()
		_ = b.close()
	}()
	if err != nil {
		return Result{}, err
	}
	s := &stream{Config: c, ctx: ctx, a: a, b: b, window: uint64(c.FillDepth) / b.parts}
	if c.Threads == 1 {
		err = <-c.locked(0, s.oneThread)
	} else {
		sender := c.locked(0, s.sender)
		err = errors.Join(<-c.locked(1, s.receiver), <-sender)
	}
	if err != nil {
		return Result{}, err
	}
	r := Result{
		FrameSize: c.FrameSize, Threads: c.Threads, Frames: s.meter.count, Elapsed: s.meter.elapsed,
		Lost: s.sent.Load() - s.received, Mode: b.mode, ZeroCopy: b.ZeroCopy(), CPU: s.meter.cpu,
	}
	r.Mpps = float64(r.Frames) / r.Elapsed.Seconds() / 1e6
	r.Gbps = r.Mpps * float64(8*c.FrameSize) / 1e3
	return r, nil
}

// locked runs f on a thread of its own, pinned if so configured, that ends with it.
func (c *Config) locked(thread int, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: pinning must not outlive it
		err := c.pin(thread)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return done
}

// stream is one measurement.
type stream struct {
	Config
	ctx    context.Context
	a, b   *end
	window uint64 // frames the sender may be ahead of the receiver

	// the sender's
	next  uint64 // number of the next frame
	floor uint64 // frames before this are taken for lost
	shut  idler  // while the window is shut
	since time.Time

	// the receiver's
	received uint64
	last     uint64 // number after that of the last frame
	meter    meter

	// between them, told once a batch
	sent     atomic.Uint64
	progress atomic.Uint64 // as last
	stop     atomic.Bool
	ended    atomic.Bool // sent is final
}

// send fills and kicks one batch.
func (s *stream) send() error {
	s.a.Reap()
	base := max(s.progress.Load(), s.floor)
	room := s.window - (s.next - base)
	if room == 0 {
		s.blocked()
	} else {
		s.shut.empty = 0
	}
	for range min(uint64(s.Batch), room) {
		head, ok := s.reserve()
		if !ok {
			break
		}
		s.a.header(head, uint32(s.next))
		s.a.Submit(s.FrameSize)
		s.next++
	}
	s.sent.Store(s.next)
	if s.a.Kick() > xdp.KickAgain {
		return errDown
	}
	return nil
}

// blocked opens the window again when its last frames must have been lost.
func (s *stream) blocked() {
	if s.shut.empty == 0 {
		s.since = time.Now()
	}
	s.shut.wait()
	if s.shut.empty%1024 == 0 && time.Since(s.since) > settle {
		s.floor, s.shut.empty = s.next, 0
	}
}

func (s *stream) reserve() (head []byte, ok bool) {
	if s.a.parts <= 2 {
		head, _, ok = s.a.Reserve()
		return head, ok
	}
	if _, ok = s.a.ReserveParts(s.FrameSize); !ok {
		return nil, false
	}
	return s.a.ReservedPart(0), true
}

// receive takes what is there and returns how many frames that were.
func (s *stream) receive() int {
	n := s.b.Receive(64)
	if n == 0 {
		return 0
	}
	for i := range n {
		head, _, _ := s.b.Packet(i)
		if len(head) >= headerLen {
			s.last += uint64(sequence(head)-uint32(s.last)) + 1
		}
	}
	s.b.Release()
	s.received += uint64(n)
	s.progress.Store(s.last)
	return n
}

// oneThread does both sides' work in turn.
func (s *stream) oneThread() error {
	for i := 0; ; i++ {
		if err := s.send(); err != nil {
			return err
		}
		for s.receive() != 0 {
		}
		if i%16 == 0 && s.meter.over(s.Duration, s.received) {
			s.ended.Store(true)
			return s.finish()
		}
		if i%256 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
	}
}

func (s *stream) sender() error {
	defer s.ended.Store(true)
	for !s.stop.Load() {
		if err := s.send(); err != nil {
			s.stop.Store(true)
			return err
		}
	}
	return nil
}

func (s *stream) receiver() error {
	defer s.stop.Store(true)
	var idle idler
	for i := 0; !s.stop.Load(); i++ {
		if s.receive() != 0 {
			idle.empty = 0
		} else {
			idle.wait()
		}
		if i%32 == 0 && s.meter.over(s.Duration, s.received) {
			s.stop.Store(true)
			return s.finish()
		}
		if i%256 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
	}
	return nil
}

// finish takes what is still under way.
func (s *stream) finish() error {
	for end := time.Now().Add(settle); time.Now().Before(end); {
		ended := s.ended.Load()
		if s.receive(); ended && s.received >= s.sent.Load() {
			break
		}
	}
	return s.ctx.Err()
}

// idler is for a thread that spins on a ring.
type idler struct {
	empty int // looks in a row that found nothing
	junk  int // keeps the loop in wait from being left out
}

// wait is called after a look that found nothing. It stays off for about a microsecond, as each
// look takes the cache line away from the other side, and now and then lets others have the core,
// for machines that have not enough of them.
func (i *idler) wait() {
	if i.empty++; i.empty%128 == 0 {
		yield()
		return
	}
	for n := range 2000 {
		i.junk ^= n
	}
}

// yield offers the core to other threads.
func yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// meter counts what happens in a duration, after a tenth of it to warm up.
type meter struct {
	start   time.Time
	warm    bool
	base    uint64
	count   uint64
	elapsed time.Duration
	cpu     time.Duration // of the thread that asks, meanwhile
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail on Linux
	return time.Duration(ts.Nano())
}

// over takes the count so far and says whether the time is over.
func (m *meter) over(d time.Duration, count uint64) bool {
	now := time.Now()
	switch {
	case m.start.IsZero():
		m.start = now
	case !m.warm && now.Sub(m.start) >= d/10:
		m.warm, m.start, m.base, m.cpu = true, now, count, threadTime()
	case m.warm && now.Sub(m.start) >= d:
		m.count, m.elapsed, m.cpu = count-m.base, now.Sub(m.start), threadTime()-m.cpu
		return true
	}
	return false
}
