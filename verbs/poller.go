package verbs

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/xdp"
)

// This file is where frames meet the engine: ring → engine → memory and back, one turn at a time.
//
// A shard is moved by whoever holds poller.mu: its thread, a goroutine in CQ.Poll (caller mode), or
// a control call. Nobody holds it for longer than one turn.

// Bounds of one turn.
const (
	rxBatch = 64 // frames
	txBatch = 64
)

// How the thread and the goroutines in Poll share a shard in caller mode.
const (
	callerGrace = 50 * time.Microsecond // nobody polled for that long: the thread takes over
	callerGone  = 2 * time.Millisecond  // nobody polled for that long: the next one is new
	watchFine   = 32                    // looks at a new one, callerGrace apart,
	watchCoarse = time.Millisecond      // and then in steps of this
	watchQuiet  = 4                     // vain ones of these: nothing moves, sleep for frames
)

// How many vain turns of a thread, or calls of Poll, go by between two offers of the CPU to others. A
// goroutine that moves the shard itself waits longer than a peer takes to answer.
const (
	yieldEvery     = 8
	callerPatience = 64
)

// clockBase is the origin of the engine's time.
var clockBase = time.Now()

// clock is the monotonic time since the process began, read once a batch.
func clock() rxe.Time { return rxe.Time(time.Since(clockBase)) }

// poller is one shard with its link, and the thread that moves it when nobody else does.
type poller struct {
	mu    sync.Mutex // holds the shard, the link and the fields of the next block
	shard *rxe.Shard
	link  Link
	sock  *xdp.Socket // the link's, if it has one: called without the interface
	owed  bool        // a goroutine in Poll left with answers unsent
	again bool        // the kernel left frames in the TX ring, or there was no room for more
	gone  bool        // the interface does not exist any more
	shut  bool        // closed: nothing moves

	wakeAt  rxe.Time // when the sleeping thread wakes by itself
	backoff rxe.Time // how long it sleeps before it tries to send again

	ctx     *Context
	index   int
	caller  bool // ProgressCaller
	capture func(dir Direction, shard int, t time.Time, head, tail []byte)

	_      [64]byte
	wanted atomic.Int32  // control calls that wait for mu
	asleep atomic.Bool   // the thread sleeps, or is about to: wake it
	seen   atomic.Int64  // when a goroutine in Poll was last here
	moved  atomic.Uint32 // changes when such a goroutine moves frames
	came   atomic.Bool   // one has come after a while without
	stop   atomic.Bool
	tick   *time.Timer   // this and fine are the thread's
	fine   int           // close looks left
	poke   chan struct{} // ends a coarse look
	done   chan struct{} // closed by the thread when it ends
}

// wake ends the thread's sleep, if it sleeps. Any goroutine.
func (p *poller) wake() {
	if p.asleep.Load() && p.asleep.CompareAndSwap(true, false) {
		p.link.Wake()
	}
}

// hold takes the shard for a control call. The thread and goroutines in Poll let it go first.
func (p *poller) hold() {
	p.wanted.Add(1)
	p.mu.Lock()
	p.wanted.Add(-1)
	p.shard.Enter()
}

// release lets the shard go after hold or in Poll: it hands out events, wakes other shards, and the
// thread if what is left to do cannot wait for it to wake by itself.
func (p *poller) release() {
	again := p.shard.Leave()
	wake := p.finish()
	if p.asleep.Load() && (again || p.owed || p.again || p.shard.Pending() ||
		p.shard.Deadline() < p.wakeAt) {
		p.wake()
	}
	p.mu.Unlock()
	p.ctx.wakeShards(wake)
}

// finish hands out the events of an activity and returns the shards to wake.
func (p *poller) finish() uint64 {
	if e := p.shard.Events(); len(e) > 0 {
		p.ctx.deliver(e)
	}
	return p.shard.Wakeups()
}

// receive takes what has arrived, up to a batch.
func (p *poller) receive(now rxe.Time) int {
	var n int
	if p.sock != nil {
		n = p.sock.Receive(rxBatch)
	} else {
		n = p.link.Receive(rxBatch)
	}
	if n == 0 {
		return 0
	}
	for i := range n {
		var f rxe.Frame
		if p.sock != nil {
			f.Head, f.Tail, _ = p.sock.Packet(i)
		} else {
			f.Head, f.Tail = p.link.Packet(i)
		}
		if p.capture != nil {
			p.capture(Inbound, p.index, clockBase.Add(time.Duration(now)), f.Head, f.Tail)
		}
		p.shard.Receive(now, f)
	}
	if p.sock != nil {
		p.sock.Release()
	} else {
		p.link.Release()
	}
	return n
}

// transmit sends what the shard has to send, up to a batch, in one kick.
func (p *poller) transmit(now rxe.Time) int {
	n, blocked := 0, false
	for n < txBatch && p.shard.CanTransmit() {
		var f rxe.Frame
		var ok bool
		if p.sock != nil {
			f.Head, f.Tail, ok = p.sock.Reserve()
		} else {
			f.Head, f.Tail, ok = p.link.Reserve()
		}
		if !ok {
			blocked = true
			break
		}
		size := p.shard.Transmit(now, f)
		if size == 0 {
			break
		}
		if p.capture != nil {
			h := min(size, len(f.Head))
			p.capture(Outbound, p.index, clockBase.Add(time.Duration(now)), f.Head[:h], f.Tail[:size-h])
		}
		if p.sock != nil {
			p.sock.Submit(size)
		} else {
			p.link.Submit(size)
		}
		n++
	}
	if n > 0 || p.again {
		p.again = false
		p.kick()
	}
	if p.again = p.again || blocked; !p.again {
		p.backoff = kickSoon
	}
	return n
}

// kick makes the kernel send. A kick that could not send everything is repeated in the next turn.
func (p *poller) kick() {
	if p.sock == nil {
		p.link.Kick()
		return
	}
	switch p.sock.Kick() {
	case xdp.KickAgain, xdp.KickDown:
		p.again = true
	case xdp.KickGone:
		if !p.gone {
			p.gone = true
			p.ctx.deviceGone()
		}
	}
}

// turn moves the shard once: receive, timers, what others left, transmit. It reports whether
// anything was there to do.
func (p *poller) turn(now rxe.Time) bool {
	s := p.shard
	n := p.receive(now)
	if s.Deadline() <= now {
		s.Expire(now)
	}
	s.Turn(now)
	if p.again || s.CanTransmit() {
		n += p.transmit(now)
	}
	p.owed = false
	return n > 0
}

// drive is what a goroutine in Poll does for the shard. When frames have come it goes back at once
// and leaves the answers for its next call: what the application posts now, seeing a completion or
// the last byte of a WRITE, leaves ahead of them in the same system call. Should there be no next
// call, the thread sends them.
func (p *poller) drive() {
	now := clock()
	if int64(now)-p.seen.Swap(int64(now)) > int64(callerGone) {
		p.came.Store(true)
	}
	if p.wanted.Load() != 0 || !p.mu.TryLock() {
		return
	}
	if p.shut {
		p.mu.Unlock()
		return
	}
	s := p.shard
	s.Enter()
	moved := 0
	if p.owed {
		p.owed = false
		s.Turn(now)
		moved += p.transmit(now)
	}
	got := p.receive(now)
	if s.Deadline() <= now {
		s.Expire(now)
	}
	if got > 0 {
		p.owed = true
	} else {
		s.Turn(now)
		if p.again || s.CanTransmit() {
			moved += p.transmit(now)
		}
	}
	if moved+got > 0 {
		p.moved.Add(1)
	}
	p.release()
}

// callerLeaves says that the goroutine in Wait goes to sleep: the thread takes over at once.
func (p *poller) callerLeaves() {
	p.seen.Store(int64(clock()) - int64(time.Second))
	signal(p.poke)
}

// run is the shard's thread.
func (p *poller) run(cpu int, spin time.Duration) {
	defer close(p.done)
	if cpu >= 0 {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		pinThread(cpu)
	}
	idleSince := clock()
	for idle := 0; !p.stop.Load(); idle++ {
		if p.caller && p.watch() {
			continue
		}
		for p.wanted.Load() != 0 {
			runtime.Gosched()
		}
		p.mu.Lock()
		p.shard.Enter()
		now, left := clock(), p.owed
		if p.turn(now) {
			idleSince, idle = now, 0
		}
		if left {
			p.fine = watchFine // this one does go away: look closely next time
		}
		again := p.shard.Leave()
		wake := p.finish()
		look := now-idleSince < rxe.Time(spin) && !(p.caller && p.callerAway() < callerGone)
		if again || !p.again && p.shard.Pending() || spin < 0 || look {
			p.mu.Unlock()
			p.ctx.wakeShards(wake)
			if idle > 0 {
				p.yield(cpu < 0, idle)
			}
			continue
		}
		p.announce(now)
		p.mu.Unlock()
		p.ctx.wakeShards(wake)
		p.sleep(now)
	}
}

// yield lets others have the CPU between two vain turns: the goroutine that waits for what the
// shard brings may need it.
func (p *poller) yield(free bool, idle int) {
	if free {
		runtime.Gosched()
	}
	if idle%yieldEvery == 0 {
		yieldCPU()
	}
}

// How soon the thread tries again to send what the kernel would not take, at first and at last.
const (
	kickSoon = rxe.Time(20 * time.Microsecond)
	kickLate = rxe.Time(5 * time.Millisecond)
)

// announce says that the thread is about to sleep, with the shard held: whoever holds it next sees
// that, and when the thread would wake by itself.
func (p *poller) announce(now rxe.Time) {
	p.wakeAt = p.shard.Deadline()
	if p.again {
		p.wakeAt = min(p.wakeAt, now+p.backoff)
		p.backoff = min(2*p.backoff, kickLate)
	}
	p.asleep.Store(true)
}

// sleep waits for frames, for what others leave, and for the next deadline. Work announced without
// holding the shard is looked for once more: either it is seen here, or its poster sees asleep.
func (p *poller) sleep(now rxe.Time) {
	if !p.shard.Announced() && !p.stop.Load() {
		d := time.Duration(-1)
		if p.wakeAt != rxe.Never {
			d = max(0, time.Duration(p.wakeAt-now))
		}
		p.link.Wait(d)
	}
	p.asleep.Store(false)
}

// watch keeps the thread out of the way of a goroutine that polls: it looks now and then whether
// that still comes. It reports false when the thread is to move the shard.
//
// A look costs the other threads of a busy machine some 20 µs. So it looks often at a goroutine
// that has just begun, and once a millisecond at one that has been polling for long.
func (p *poller) watch() bool {
	if p.callerAway() >= callerGrace {
		return false
	}
	if p.came.Swap(false) {
		p.fine = watchFine
	}
	p.lookClosely()
	for quiet, moved := 0, p.moved.Load(); p.callerAway() < callerGrace && !p.stop.Load(); {
		if m := p.moved.Load(); m != moved {
			quiet, moved = 0, m
		} else if quiet++; quiet >= watchQuiet && p.nap() {
			return true
		}
		p.tick.Reset(watchCoarse)
		select {
		case <-p.tick.C:
		case <-p.poke:
			p.tick.Stop()
		}
	}
	return p.stop.Load()
}

// callerAway is how long ago a goroutine in Poll was last here.
func (p *poller) callerAway() time.Duration {
	return time.Duration(clock()) - time.Duration(p.seen.Load())
}

// lookClosely is the part of watch that sleeps for less than the runtime's timers can.
func (p *poller) lookClosely() {
	if p.fine == 0 {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer preciseThread()()
	for ; p.fine > 0 && p.callerAway() < callerGrace && !p.stop.Load(); p.fine-- {
		slept := clock()
		sleepThread(callerGrace)
		if time.Duration(clock()-slept) > 4*callerGrace {
			p.fine = 1 // the machine is too busy for that
		}
	}
}

// nap sleeps like an idle thread although a goroutine polls, because nothing moves. It reports
// false if something is left to do.
func (p *poller) nap() bool {
	if !p.mu.TryLock() {
		return false
	}
	if p.owed || p.again || p.shard.Pending() {
		p.mu.Unlock()
		return false
	}
	now := clock()
	p.announce(now)
	p.mu.Unlock()
	p.sleep(now)
	return true
}

// wakeShards wakes the threads of a set of shards.
func (c *Context) wakeShards(set uint64) {
	for ; set != 0; set &= set - 1 {
		c.pollers[bits.TrailingZeros64(set)].wake()
	}
}
