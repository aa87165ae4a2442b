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

// How many vain turns of a thread, or calls of Poll, go by between two offers of the CPU to others. A
// goroutine that moves the shard itself waits longer than a peer takes to answer. And it gives way to
// other goroutines but once in othersEvery such offers: the runtime wakes a thread to look for some, and
// that may well take the CPU that the peer runs on.
const (
	yieldEvery     = 8
	callerPatience = 64
	othersEvery    = 16
)

// A thread that always has something to move keeps its processor. Where a program has as many such
// threads as processors, each lets other goroutines run that often: the runtime would do it each 10 ms.
const giveWayEvery = 50 * time.Microsecond

// threads counts the threads of all devices of the program.
var threads atomic.Int32

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

	now     rxe.Time // the engine's: it never goes back
	wakeAt  rxe.Time // when the sleeping thread wakes by itself
	backoff rxe.Time // how long it sleeps before it tries to send again

	ctx    *Context
	index  int
	caller bool     // ProgressCaller
	taps   []*tap   // normally none
	told   Captured // what they are told of a frame

	_      [64]byte
	wanted atomic.Int32  // control calls that wait for mu
	asleep atomic.Bool   // the thread sleeps, or is about to: wake it
	dozes  atomic.Bool   // the same, but a goroutine is expected back, whose work need not wake it
	seen   atomic.Int64  // when a goroutine in Poll was last here, or callerInside
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

// rouse ends a doze: there is work that does not come from the goroutine that is expected back, or it
// is not expected any more.
func (p *poller) rouse() {
	if p.dozes.Load() && p.dozes.CompareAndSwap(true, false) {
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
	if f := p.shard.Failures(); len(f) > 0 {
		p.ctx.deliverFailures(f)
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
		if len(p.taps) == 0 {
			p.shard.Receive(now, f)
		} else {
			p.receiveTapped(now, f)
		}
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
		var size int
		if len(p.taps) == 0 {
			size = p.shard.Transmit(now, f)
		} else {
			size = p.transmitTapped(now, f)
		}
		if size == 0 {
			break
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

// run is the shard's thread.
func (p *poller) run(cpu int, spin time.Duration) {
	defer close(p.done)
	if cpu >= 0 {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		pinThread(cpu)
	}
	threads.Add(1)
	defer threads.Add(-1)
	procs := int32(runtime.GOMAXPROCS(0))
	idleSince := clock()
	gaveWay := idleSince
	for idle := 0; !p.stop.Load(); idle++ {
		if p.caller && p.watch() {
			continue
		}
		for p.wanted.Load() != 0 {
			runtime.Gosched()
		}
		if !p.caller {
			p.mu.Lock()
		} else if !p.mu.TryLock() {
			sleepThread(callerGrace) // the goroutine is back, or it is a control call
			continue
		}
		p.shard.Enter()
		now, left := clock(), p.owed
		p.now = now
		if p.turn(now) {
			idleSince, idle = now, 0
		}
		if left {
			p.fine = watchFine // this one does go away: look closely next time
		}
		again := p.shard.Leave()
		wake := p.finish()
		expected := p.caller && p.callerAway() < callerGone
		look := now-idleSince < rxe.Time(spin) && !expected
		if again || !p.again && p.shard.Pending() || spin < 0 || look {
			p.mu.Unlock()
			p.ctx.wakeShards(wake)
			if idle > 0 {
				p.yield(cpu < 0, idle)
			} else if now-gaveWay > rxe.Time(giveWayEvery) && threads.Load() >= procs {
				runtime.Gosched()
				gaveWay = now
			}
			continue
		}
		p.announce(now, expected)
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
// that, and when the thread would wake by itself. When a goroutine is expected back in Poll the thread
// sleeps a little while, and need not be woken up.
func (p *poller) announce(now rxe.Time, expected bool) {
	p.wakeAt = p.shard.Deadline()
	if p.again {
		p.wakeAt = min(p.wakeAt, now+p.backoff)
		p.backoff = min(2*p.backoff, kickLate)
	}
	if expected {
		p.wakeAt = min(p.wakeAt, now+rxe.Time(watchCoarse))
		p.dozes.Store(true)
		return
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
	if p.caller {
		p.dozes.Store(false)
	}
}

// wakeShards wakes the threads of a set of shards.
func (c *Context) wakeShards(set uint64) {
	for ; set != 0; set &= set - 1 {
		p := c.pollers[bits.TrailingZeros64(set)]
		p.wake()
		p.rouse()
	}
}
