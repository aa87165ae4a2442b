package mr

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
)

// This file covers the way of a key to its view, and the control path's changes of entries.

const (
	// MaxLimit is the greatest number of indices a table can have.
	MaxLimit = 1 << 20

	chunkShift = 14
	chunkLen   = 1 << chunkShift
	maxChunks  = 1 << 24 / chunkLen // every key has one

	// reuseDelay freed indices wait before the oldest is given out again, as long as there are
	// indices never used.
	reuseDelay = 1024
)

// chunk holds the entries of chunkLen indices.
type chunk [chunkLen]atomic.Pointer[View]

// vacant stands in entries where nothing is published, and vacantChunk where the table has not
// grown to, so that a check need not ask. It allows nothing.
var (
	vacant      = new(View)
	vacantChunk = newChunk()
)

func newChunk() *chunk {
	c := new(chunk)
	for i := range c {
		c[i].Store(vacant)
	}
	return c
}

// slot is the control side of one index.
type slot struct {
	kind    Kind
	used    bool
	variant uint8 // of the last key published here: the next life starts one higher
	gone    Epoch // Unpublish: what must pass before the index is free
}

// Table maps keys to views. Check, and the methods that execute work requests (Register,
// Invalidate, Bind1, Bind2, Staged), may be called by any number of shards at once and take no
// lock; they must be called between Grace.Enter and the next Quiesce or Leave of the calling shard.
// All others are for the control path, may be called from any goroutine, and lock.
type Table struct {
	chunks [maxChunks]atomic.Pointer[chunk]
	pools  [maxChunks]atomic.Pointer[poolChunk]
	grace  *Grace
	limit  uint32
	seed   uint32

	mu      sync.Mutex
	slots   []slot              // one an index, up to next
	next    uint32              // lowest index never used
	freed   []uint32            // FIFO from head on
	head    int                 // of freed
	count   uint32              // indices in use
	lives   uint32              // fast regions and windows there have been
	windows map[uint32]struct{} // indices of type 2 windows

	step func() // tests: called before each shared access of a change; else nil
}

// New makes a table of at most limit indices (1..MaxLimit, clamped; index 0 is one of them and
// never used). seed varies the first variant of each index. g is asked before storage is used
// again; nil stands for a device without shards, where nothing ever waits.
func New(limit, seed uint32, g *Grace) *Table {
	if g == nil {
		g = NewGrace(1)
	}
	t := &Table{
		grace: g,
		limit: min(max(limit, 1), MaxLimit),
		seed:  seed,
		slots: make([]slot, 1),
		next:  1,

		windows: make(map[uint32]struct{}),
	}
	for i := range t.chunks {
		t.chunks[i].Store(vacantChunk)
	}
	return t
}

// entry returns the entry of an index.
func (t *Table) entry(index uint32) *atomic.Pointer[View] {
	return t.chunks[index>>chunkShift%maxChunks].Load().at(index)
}

// load returns the view of an index, or vacant.
func (t *Table) load(index uint32) *View { return t.entry(index).Load() }

// Check decides whether a QP of domain pd with number qpn may use n bytes at va through key with
// the rights need. It returns the view, which is good until the caller's next quiescent point, or
// the fault. A need without any right of AccessRemote is the check of an lkey, which a window
// cannot pass; reading locally is need 0. A request of no bytes needs no check (IBTA C9-88), so
// n is not 0.
func (t *Table) Check(key Key, pd PD, qpn uint32, need Access, va, n uint64) (*View, Fault) {
	v := t.chunks[key>>(8+chunkShift)].Load().at(key.Index()).Load()
	off := va - v.iova // huge if va is lower
	flags := uint32(need) | flagValid
	if mutant.KeyVariant && v.Key().Index() == key.Index() {
		key = v.Key()
	}
	if mutant.KeyDomain {
		pd = v.PD()
	}
	if mutant.KeyRights && need&AccessRemote != 0 {
		flags = flagValid
	}
	if mutant.KeyRange && n > 1 {
		n--
	}
	if v.id == identOf(key, pd) && v.flags&(flags|flagWindow) == flags &&
		off <= v.length && n <= v.length-off {
		return v, FaultNone
	}
	// The whole check at leisure: for windows, and to name the first reason why not. It is not a
	// function of its own, because Check is faster when it calls nothing.
	switch {
	case v == vacant:
		return nil, FaultKeyIndex
	case v.id>>32 != ident(key):
		return nil, FaultVariant
	case v.flags&flagValid == 0:
		return nil, FaultState
	case v.id != identOf(key, pd):
		return nil, FaultPD
	case v.qpn != 0 && v.qpn != qpn && !mutant.KeyWindowQP:
		return nil, FaultQP
	case v.flags&flagWindow != 0 && need&AccessRemote == 0:
		return nil, FaultKind
	case v.flags&flags != flags:
		return nil, FaultAccess
	case off > v.length || n > v.length-off:
		return nil, FaultRange
	}
	return v, FaultNone
}

// CheckWhole is Check for all that a key grants, whatever its range: FLUSH of a whole region.
func (t *Table) CheckWhole(key Key, pd PD, qpn uint32, need Access) (*View, Fault) {
	for {
		v := t.load(key.Index())
		got, f := t.Check(key, pd, qpn, need, v.iova, max(v.length, 1))
		if t.load(key.Index()) == v { // else the range was another view's
			return got, f
		}
	}
}

// Len returns how many indices are in use.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.count)
}

// Limit returns how many indices can be in use at once.
func (t *Table) Limit() int { return int(t.limit) - 1 }

// Alloc reserves an index for a region or window of domain pd and returns its first key. A fast
// region and a type 2 window start in state free, a type 1 window valid with no range, and a user
// region's index is empty until Publish. The error is ErrExhausted or ErrPD.
// AllocFast also says how long a fast region's lists may be; here there is no bound.
func (t *Table) Alloc(kind Kind, pd PD) (Key, error) { return t.alloc(kind, pd, math.MaxInt) }

func (t *Table) alloc(kind Kind, pd PD, maxSegs int) (Key, error) {
	if pd == 0 {
		return 0, ErrPD
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	index, err := t.take()
	if err != nil {
		return 0, err
	}
	s := &t.slots[index]
	s.kind, s.used, s.gone = kind, true, 0
	s.variant++
	key := MakeKey(index, s.variant)
	t.count++
	if kind != KindUser {
		t.open(kind, pd, key, maxSegs)
	}
	if kind == KindWindow2 {
		t.windows[index] = struct{}{}
	}
	return key, nil
}

// take picks an index: a fresh one while few have been freed, else the one freed longest ago.
func (t *Table) take() (uint32, error) {
	if n := len(t.freed) - t.head; n > 0 && (n > reuseDelay || t.next == t.limit) {
		index := t.freed[t.head]
		t.head++
		if t.head*2 > len(t.freed) {
			t.freed = append(t.freed[:0], t.freed[t.head:]...)
			t.head = 0
		}
		return index, nil
	}
	if t.next == t.limit {
		return 0, ErrExhausted
	}
	index := t.next
	t.next++
	t.slots = append(t.slots, slot{variant: t.firstVariant(index)})
	if c := &t.chunks[index>>chunkShift]; c.Load() == vacantChunk {
		c.Store(newChunk())
	}
	return index, nil
}

// firstVariant mixes index and seed: nothing secret, only so that keys of two runs differ.
func (t *Table) firstVariant(index uint32) uint8 {
	return uint8((index ^ t.seed) * 0x9e3779b1 >> 24)
}

// Free gives an index back after Unpublish and its grace. The index rests before it is given out
// again, and its next life starts with the next variant, so that a stale key of this life does
// not match. The error is ErrKey, or ErrInUse while a view is published or grace has not passed.
func (t *Table) Free(index uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(index)
	if s == nil {
		return ErrKey
	}
	if t.load(index) != vacant || s.gone != 0 && !t.grace.Passed(s.gone) && !mutant.GraceDereg {
		return ErrInUse
	}
	s.used = false
	if s.kind != KindUser {
		t.setPool(index, nil)
	}
	t.freed = append(t.freed, index)
	t.count--
	return nil
}

// slot returns the slot of an index in use, or nil. The caller holds t.mu.
func (t *Table) slot(index uint32) *slot {
	if index >= uint32(len(t.slots)) || !t.slots[index].used {
		return nil
	}
	return &t.slots[index]
}

// Publish makes v the view of a user region whose index Alloc gave out and nothing was published
// at. Packets can use it at once. The error is ErrKey or ErrInUse.
func (t *Table) Publish(v *View) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	index := v.Key().Index()
	s := t.slot(index)
	if s == nil || s.kind != KindUser || v.Kind() != KindUser {
		return ErrKey
	}
	if !t.entry(index).CompareAndSwap(vacant, v) {
		return ErrInUse
	}
	s.variant = v.Key().Variant()
	return nil
}

// Unpublish takes away what is published at an index, whatever its kind and state, and returns it.
// Its memory may be used for something else, and the index be freed, only after grace. The fault is
// FaultKeyIndex if nothing is published, FaultBound if windows are bound to the region.
func (t *Table) Unpublish(index uint32) (*View, Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(index)
	if s == nil {
		return nil, FaultKeyIndex
	}
	if p := t.pool(index); p != nil {
		p.mu.Lock() // views are not recycled under our eyes
		defer p.mu.Unlock()
	}
	v, f := t.replace(index, vacant)
	if f == FaultNone {
		s.variant, s.gone = v.Key().Variant(), t.grace.Next()
		delete(t.windows, index)
	}
	return v, f
}

// Rereg replaces the view of a user region by v, which has the same index: new rights, domain,
// memory or variant. It returns the old view, whose rights are gone only after grace. The fault is
// FaultKind if v or the entry is not a user region, else as in Unpublish.
func (t *Table) Rereg(v *View) (old *View, f Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	index := v.Key().Index()
	s := t.slot(index)
	if s == nil {
		return nil, FaultKeyIndex
	}
	if s.kind != KindUser || v.Kind() != KindUser {
		return nil, FaultKind
	}
	old, f = t.replace(index, v)
	if f == FaultNone {
		s.variant = v.Key().Variant()
	}
	return old, f
}

// replace closes the view at an index to windows, and puts v in its place.
func (t *Table) replace(index uint32, v *View) (*View, Fault) {
	e := t.entry(index)
	for {
		t.pause()
		old := e.Load()
		if old == vacant {
			return nil, FaultKeyIndex
		}
		if t.pause(); !old.close() {
			return nil, FaultBound
		}
		t.pause()
		if e.CompareAndSwap(old, v) {
			t.unbind(old)
			t.retire(old)
			return old, FaultNone
		}
	}
}

// close makes sure that no window can be bound to v any more; false if one is.
func (v *View) close() bool {
	return v.bound.CompareAndSwap(0, boundClosed) || v.bound.Load() == boundClosed || mutant.KeyBoundGoes
}
