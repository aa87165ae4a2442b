package mr

import (
	"math/bits"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
)

// MaxShards is the greatest number of shards, and of waiters, of a Grace.
const MaxShards = 64

// Epoch names a moment: everything unpublished before Start returned it is out of every shard's
// hands once Passed says so.
type Epoch uint64

// Grace tells when no shard can hold a view any more that was unpublished earlier.
//
// A shard is online while it works and passes a quiescent point between batches, where it holds no
// view. It notes the epoch it saw there. An unpublisher starts a new epoch afterwards; when every
// online shard has noted that epoch or a later one, each has begun a batch after the unpublishing
// and cannot find the old view. A shard offline holds nothing.
//
// All accesses are sequentially consistent, which the proof needs: a shard that comes online stores
// its mark, then loads entries; a reclaimer stores the entry, then loads the marks. One of the
// two sees the other.
//
// Nobody ever blocks. Whoever cannot wait by asking again registers with Want, and the shard
// that passes last gets the waiter's bit from Quiesce or Leave. A shard's Enter, Quiesce and Leave
// are called by whoever holds the shard; everything else by anyone.
type Grace struct {
	epoch atomic.Uint64 // the current one, from 1
	_     [56]byte
	done  atomic.Uint64            // highest epoch known to have passed
	want  atomic.Uint64            // waiters by bit
	wants [MaxShards]atomic.Uint64 // the epoch each waits for
	marks []mark

	step func(p *atomic.Uint64) // tests: see pause; else nil
}

// mark is one shard's: the epoch it saw at its last quiescent point, 0 while it is offline.
type mark struct {
	atomic.Uint64
	_ [56]byte
}

// NewGrace makes a Grace for n shards (1..MaxShards, clamped), all offline.
func NewGrace(n int) *Grace {
	g := &Grace{marks: make([]mark, min(max(n, 1), MaxShards))}
	g.epoch.Store(1)
	return g
}

// Enter brings a shard online, before it may use a view.
func (g *Grace) Enter(shard int) {
	if !mutant.GraceEnter {
		g.see(shard)
	}
}

// see notes the current epoch for a shard. An epoch it has noted before needs no store: nobody
// waits for this shard.
func (g *Grace) see(shard int) {
	g.pause(&g.epoch)
	now := g.epoch.Load()
	mark := &g.marks[shard].Uint64
	g.pause(mark)
	if mark.Load() != now {
		mark.Store(now)
	}
}

// Quiesce passes a quiescent point of an online shard: it holds no view from before the call. It
// returns the waiters whose epoch has passed, as bits, the caller's own included; the caller
// wakes the others.
func (g *Grace) Quiesce(shard int) (wake uint64) {
	g.see(shard)
	return g.wake()
}

// Leave takes a shard offline: it holds no view, and uses none before Enter. It returns the waiters
// to wake, as Quiesce does; a shard that finds its own bit there has something to do before it
// sleeps.
func (g *Grace) Leave(shard int) (wake uint64) {
	g.pause(&g.marks[shard].Uint64)
	if !mutant.GraceLeave {
		g.marks[shard].Store(0)
	}
	return g.wake()
}

// Start begins an epoch, after the unpublishing it stands for. Several unpublishings before one
// Start share it.
func (g *Grace) Start() Epoch {
	g.pause(&g.epoch)
	return Epoch(g.epoch.Add(1))
}

// Next names the epoch that stands for what was unpublished before the call, without beginning it:
// the first Passed or Want for it does. Unpublishings that are not asked about until the end of a
// batch so share one epoch, and the shards' reads of it stay in their caches.
func (g *Grace) Next() Epoch {
	g.pause(&g.epoch)
	if mutant.GraceNext {
		return Epoch(g.epoch.Load())
	}
	return Epoch(g.epoch.Load() + 1)
}

// Passed reports whether everything unpublished before Start or Next returned e is out of all
// shards' hands. Once true it stays true. Any goroutine may ask, and none waits.
func (g *Grace) Passed(e Epoch) bool {
	g.pause(&g.done)
	if uint64(e) <= g.done.Load() || mutant.GraceNone {
		return true
	}
	g.begin(e)
	for i := range g.marks {
		g.pause(&g.marks[i].Uint64)
		if m := g.marks[i].Load(); m != 0 && m < uint64(e) {
			return false
		}
	}
	for {
		g.pause(&g.done)
		done := g.done.Load()
		if done >= uint64(e) {
			return true
		}
		g.pause(&g.done)
		if g.done.CompareAndSwap(done, uint64(e)) {
			return true
		}
	}
}

// begin begins the epochs up to e that Next has named and nobody has begun.
func (g *Grace) begin(e Epoch) {
	for {
		g.pause(&g.epoch)
		now := g.epoch.Load()
		if now >= uint64(e) {
			return
		}
		g.pause(&g.epoch)
		g.epoch.CompareAndSwap(now, uint64(e))
	}
}

// Want registers a waiter (0..MaxShards-1: a shard, or a number beyond the shards that the caller
// gave to a goroutine of the control path) for an epoch, and reports whether it has passed already.
// If not, some later Quiesce or Leave returns the waiter's bit, and the waiter may sleep until it
// is woken; a shard leaves first, since asleep it passes nothing. Of several epochs a waiter is
// woken for the earliest. Being woken it asks again for what it still needs, because a bit of an
// earlier Want may be on its way. One goroutine at a time calls Want for a waiter.
func (g *Grace) Want(waiter int, e Epoch) (passed bool) {
	g.pause(&g.want)
	if g.want.Load()&(1<<waiter) != 0 {
		g.pause(&g.wants[waiter])
		if g.wants[waiter].Load() <= uint64(e) {
			return g.Passed(e) // its wake-up is still to come
		}
	}
	g.pause(&g.wants[waiter])
	g.wants[waiter].Store(uint64(e))
	g.pause(&g.want)
	g.want.Or(1 << waiter)
	if !g.Passed(e) { // after the bit is there: whoever passes from here on sees it
		return false
	}
	g.pause(&g.want)
	g.want.And(^uint64(1 << waiter))
	return true
}

// wake takes out the waiters whose epoch has passed: one load when nobody waits. Of several shards
// that pass at once, the last to note it sees all marks, so that no waiter is left behind; of
// several that see a waiter's epoch pass, one gets its bit.
func (g *Grace) wake() uint64 {
	g.pause(&g.want)
	set := g.want.Load()
	if set == 0 {
		return 0
	}
	var out uint64
	for ; set != 0; set &= set - 1 {
		waiter := bits.TrailingZeros64(set)
		g.pause(&g.wants[waiter])
		if g.Passed(Epoch(g.wants[waiter].Load())) {
			out |= 1 << waiter
		}
	}
	if out == 0 {
		return 0
	}
	g.pause(&g.want)
	if mutant.GraceLostWake && mutant.Tick(4) {
		g.want.And(^out)
		return 0
	}
	return g.want.And(^out) & out
}

// pause is where a test can let other threads run: before each shared access, which is to *p.
func (g *Grace) pause(p *atomic.Uint64) {
	if g.step != nil {
		g.step(p)
	}
}
