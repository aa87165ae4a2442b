package mr

import (
	"math/bits"
	"sync/atomic"
)

// MaxShards is the greatest number of shards, and of waiters, of a Grace.
const MaxShards = 64

// Epoch names a moment: everything unpublished before Start returned it is out of every shard's hands
// once Passed says so.
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
// that passes last gets the waiter's bit from Quiesce or Leave.
type Grace struct {
	epoch  atomic.Uint64 // the current one, from 1
	_      [56]byte
	done   atomic.Uint64 // highest epoch known to have passed
	want   atomic.Uint64 // waiters by bit
	epochs [MaxShards]atomic.Uint64
	marks  []mark
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
func (g *Grace) Enter(shard int) { g.marks[shard].Store(g.epoch.Load()) }

// Quiesce passes a quiescent point of an online shard: it holds no view from before the call. It
// returns the waiters whose epoch has passed, as bits; the caller wakes them.
func (g *Grace) Quiesce(shard int) (wake uint64) {
	g.marks[shard].Store(g.epoch.Load())
	if g.want.Load() == 0 {
		return 0
	}
	return g.wake()
}

// Leave takes a shard offline: it holds no view, and uses none before Enter. It returns the waiters
// to wake, as Quiesce does.
func (g *Grace) Leave(shard int) (wake uint64) {
	g.marks[shard].Store(0)
	if g.want.Load() == 0 {
		return 0
	}
	return g.wake()
}

// Start begins an epoch, after the unpublishing it stands for. Several unpublishings before one
// Start share it.
func (g *Grace) Start() Epoch { return Epoch(g.epoch.Add(1)) }

// next returns the epoch that must pass for what was unpublished before the call, without starting
// it: whoever asks for it uses over.
func (g *Grace) next() uint64 { return g.epoch.Load() + 1 }

// over is Passed for an epoch that next returned: it starts it if nobody has.
func (g *Grace) over(e Epoch) bool {
	for {
		now := g.epoch.Load()
		if now >= uint64(e) || g.epoch.CompareAndSwap(now, uint64(e)) {
			return g.Passed(e)
		}
	}
}

// Passed reports whether everything unpublished before Start returned e is out of all shards' hands.
// Once true it stays true.
func (g *Grace) Passed(e Epoch) bool {
	if uint64(e) <= g.done.Load() {
		return true
	}
	for i := range g.marks {
		if m := g.marks[i].Load(); m != 0 && m < uint64(e) {
			return false
		}
	}
	for {
		done := g.done.Load()
		if done >= uint64(e) || g.done.CompareAndSwap(done, uint64(e)) {
			return true
		}
	}
}

// Want registers a waiter (0..MaxShards-1: a shard, or a number beyond the shards that the caller
// gave to a goroutine of the control path) for an epoch, and reports whether it has passed already.
// If not, some later Quiesce or Leave returns the waiter's bit, once. A waiter waits for one epoch
// at a time: of two, the later one. The caller must not wait before it has left its own shard.
func (g *Grace) Want(waiter int, e Epoch) (passed bool) {
	g.epochs[waiter].Store(uint64(e))
	g.want.Or(1 << waiter)
	if !g.Passed(e) {
		return false
	}
	g.want.And(^uint64(1 << waiter))
	return true
}

// wake takes out the waiters whose epoch has passed.
func (g *Grace) wake() uint64 {
	var out uint64
	for set := g.want.Load(); set != 0; set &= set - 1 {
		waiter := bits.TrailingZeros64(set)
		if g.Passed(Epoch(g.epochs[waiter].Load())) {
			out |= 1 << waiter
		}
	}
	if out == 0 {
		return 0
	}
	return g.want.And(^out) & out // of two that saw it pass, one wakes
}
