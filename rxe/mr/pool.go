package mr

import (
	"sync"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
)

// This file holds what fast regions and windows are made of again and again without allocation: the
// buffers of an index and their way from post to execution and back.
//
//	idle ──Stage──► staged ──Register, Bind──► live ──replaced──► retired ──grace──► idle
//	                  └───── refused, Unstage ─► dropped ─────────────────────────────►┘
//
// The application's side does the left and the right ends, under the pool's mutex; a shard does
// the middle, without.

// The states of a buffer.
const (
	bufIdle    uint32 = iota // in pool.idle
	bufStaged                // filled in for a WQE that was posted and has not executed
	bufLive                  // one of its views is published
	bufRetired               // was replaced, at epoch need at the latest
	bufDropped               // was never published and never will be
)

// buffer is one registration or binding: the view while it is valid, and the one that takes its
// place when it is invalidated, with the same key.
type buffer struct {
	valid, free *View // each fills one cache line
	pool        *pool
	state       atomic.Uint32
	need        atomic.Uint64 // retired: the epoch that must pass
	num         atomic.Uint32 // slot+1 in the lower half, number of uses in the upper
	list        *listBuf      // what valid shows, fast regions only
}

// listBuf is a list with the number of buffers that are not idle and show it.
type listBuf struct {
	List
	refs int
}

// pool belongs to one index of a fast region or window.
type pool struct {
	kind    Kind
	pd      PD
	maxSegs int
	ring    atomic.Pointer[[]*buffer] // all buffers by slot; replaced by a longer copy

	mu     sync.Mutex
	idle   []*buffer
	busy   []*buffer // all others, oldest first: a queue, round, as long as the ring
	first  int       // of busy
	inUse  int       // how many are busy
	spare  []*listBuf
	latest *listBuf // what the next Stage shows
	life   uint32   // of the index; numbers of different lives differ
}

// poolChunk holds the pools of chunkLen indices, beside the entries that Check reads.
type poolChunk [chunkLen]atomic.Pointer[pool]

const (
	maxBuffers   = 1 << 14 // of a pool: bounds the registrations of one region posted at once
	collectSteps = 8       // busy buffers that one call of collect looks at
)

func newPool(kind Kind, pd PD, maxSegs int, life uint32) *pool {
	p := &pool{kind: kind, pd: pd, maxSegs: maxSegs, life: life}
	p.ring.Store(new([]*buffer))
	p.grow()
	return p
}

// pool returns the pool of an index, or nil.
func (t *Table) pool(index uint32) *pool {
	chunk := t.pools[index>>chunkShift%maxChunks].Load()
	if chunk == nil {
		return nil
	}
	return chunk[index%chunkLen].Load()
}

// setPool enters the pool of an index, nil to forget it. The caller holds t.mu.
func (t *Table) setPool(index uint32, p *pool) {
	c := &t.pools[index>>chunkShift]
	if c.Load() == nil {
		c.Store(new(poolChunk))
	}
	c.Load()[index%chunkLen].Store(p)
}

// grow doubles the buffers; false if there are maxBuffers already.
func (p *pool) grow() bool {
	old := *p.ring.Load()
	n := max(2*len(old), 1)
	if n > maxBuffers {
		return false
	}
	ring := make([]*buffer, len(old), n)
	copy(ring, old)
	for len(ring) < n {
		views := new([2]View) // two cache lines
		b := &buffer{valid: &views[0], free: &views[1], pool: p}
		b.valid.buf, b.free.buf = b, b
		ring = append(ring, b)
		b.num.Store(uint32(len(ring)) | p.life<<16)
		p.idle = append(p.idle, b)
	}
	busy := make([]*buffer, n)
	for i := range p.inUse {
		busy[i] = p.busy[(p.first+i)%len(p.busy)]
	}
	p.busy, p.first = busy, 0
	p.ring.Store(&ring)
	return true
}

// collect makes idle those of the oldest busy buffers that nobody can see any more. They come of age
// in the order they were taken, but for those that were dropped, or whose queue is slow: they
// go to the end.
func (p *pool) collect(g *Grace) {
	for range min(collectSteps, p.inUse) {
		b := p.busy[p.first]
		switch b.state.Load() {
		case bufRetired:
			if !g.Passed(Epoch(b.need.Load())) && !mutant.GraceList {
				return // nor has any that was replaced later
			}
		case bufDropped:
		default:
			p.inUse--
			p.first = (p.first + 1) % len(p.busy)
			p.use(b)
			continue
		}
		p.busy[p.first] = nil
		p.first = (p.first + 1) % len(p.busy)
		p.inUse--
		if l := b.list; l != nil {
			b.list = nil
			p.release(l)
		}
		poisonView(b.valid)
		poisonView(b.free)
		b.state.Store(bufIdle)
		p.idle = append(p.idle, b)
	}
}

// use puts a buffer at the end of the busy ones.
func (p *pool) use(b *buffer) {
	p.busy[(p.first+p.inUse)%len(p.busy)] = b
	p.inUse++
}

// release drops one reference to a list.
func (p *pool) release(l *listBuf) {
	if l.refs--; l.refs == 0 && l != p.latest {
		poisonList(&l.List)
		p.spare = append(p.spare, l)
	}
}

// take returns an idle buffer with a new number, staged; nil when too many are in use.
func (p *pool) take(g *Grace) *buffer {
	if len(p.idle) == 0 {
		p.collect(g)
	}
	if len(p.idle) == 0 && !p.grow() {
		return nil
	}
	last := len(p.idle) - 1
	b := p.idle[last]
	p.idle = p.idle[:last]
	p.use(b)
	b.num.Add(1 << 16)
	return b
}

// staged returns the buffer of a number that waits for execution, or nil.
func (p *pool) staged(num uint32) *buffer {
	slot, ring := num&0xffff-1, *p.ring.Load()
	if slot >= uint32(len(ring)) {
		return nil
	}
	// The number is read after the state: nobody writes it while the buffer is staged.
	if b := ring[slot]; b.state.Load() == bufStaged && b.num.Load() == num {
		return b
	}
	return nil
}

// retire notes that a view was replaced just now, by a view of another buffer or by none. Its
// buffer is used again after grace.
func (t *Table) retire(v *View) {
	if b := v.buf; b != nil {
		b.need.Store(uint64(t.grace.Next()))
		b.state.Store(bufRetired)
	}
}
