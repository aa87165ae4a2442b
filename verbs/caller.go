package verbs

import (
	"math"
	"runtime"
	"time"
)

// This file is caller mode: a goroutine in Poll moves the shard, and the shard's thread watches that
// it comes back.

// How the thread and the goroutines in Poll share a shard in caller mode.
const (
	callerGrace = 50 * time.Microsecond // nobody polled for that long: the thread takes over
	callerGone  = 2 * time.Millisecond  // nobody polled for that long: the next one is new
	watchFine   = 32                    // looks at a new one, callerGrace apart,
	watchCoarse = time.Millisecond      // and then in steps of this,
	watchLong   = 8 * time.Millisecond  // that grow up to this
	watchQuiet  = 4                     // vain ones of these: nothing moves, sleep for frames

	callerInside = math.MaxInt64 // poller.seen while a goroutine in Poll moves frames
	callerShort  = 8             // as many frames take less than callerGrace to move
)

// drive is what a goroutine in Poll does for the shard. When frames have come it goes back at once
// and leaves the answers for its next call: what the application posts now, seeing a completion or
// the last byte of a WRITE, leaves ahead of them in the same system call. Should there be no next
// call, the thread sends them. It reports whether frames came or went.
func (p *poller) drive() bool {
	now := clock()
	last := p.seen.Load()
	if last != callerInside {
		p.seen.Store(int64(now))
		if int64(now)-last > int64(callerGone) {
			p.came.Store(true)
		}
	}
	if p.wanted.Load() != 0 || !p.mu.TryLock() {
		return false
	}
	if p.shut {
		p.mu.Unlock()
		return false
	}
	p.seen.Store(callerInside)
	start := now
	now = max(now, p.now) // the thread may have been here since we looked at the clock
	p.now = now
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
	if moved+got > callerShort {
		start = clock()
	}
	p.seen.Store(int64(start))
	p.release()
	return moved+got > 0
}

// callerLeaves says that the goroutine in Wait goes to sleep: the thread takes over at once.
func (p *poller) callerLeaves() {
	p.seen.Store(int64(clock()) - int64(time.Second))
	signal(p.poke)
	p.rouse()
}

// watch keeps the thread out of the way of a goroutine that polls: it looks now and then whether
// that still comes. It reports false when the thread is to move the shard.
//
// A look costs the other threads of a busy machine some 20 µs. So it looks often at a goroutine
// that has just begun, and the less often the longer one has been polling.
func (p *poller) watch() bool {
	if p.callerAway() >= callerGrace {
		return false
	}
	if p.came.Swap(false) {
		p.fine = watchFine
	}
	p.lookClosely()
	step := watchCoarse
	for quiet, moved := 0, p.moved.Load(); p.callerAway() < callerGrace && !p.stop.Load(); {
		if m := p.moved.Load(); m != moved {
			quiet, moved = 0, m
		} else if quiet++; quiet >= watchQuiet && p.nap() {
			return true
		}
		p.tick.Reset(step)
		step = min(2*step, watchLong)
		select {
		case <-p.tick.C:
		case <-p.poke:
			p.tick.Stop()
		}
	}
	return p.stop.Load()
}

// callerAway is how long ago a goroutine in Poll was last here; less than 0 while one is.
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
	p.announce(now, false)
	p.mu.Unlock()
	p.sleep(now)
	return true
}
