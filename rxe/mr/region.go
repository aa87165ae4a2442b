package mr

import "github.com/roxie-rdma/roxie/rxe/internal/mutant"

// This file covers fast-register regions: mapped and staged by the application's side, registered
// and invalidated by the shards that execute REG_MR, LOCAL_INV and SEND_WITH_INV.

// AllocFast reserves an index for a fast region of at most maxSegs segments and returns its first
// key. The entry is free. The error is ErrExhausted, ErrPD, or ErrListSize for maxSegs below 1.
func (t *Table) AllocFast(pd PD, maxSegs int) (Key, error) {
	if maxSegs < 1 {
		return 0, ErrListSize
	}
	return t.alloc(KindFast, pd, maxSegs)
}

// open publishes the first view of a fast region or window. The caller holds t.mu.
func (t *Table) open(kind Kind, pd PD, key Key, maxSegs int) {
	t.lives++
	p := newPool(kind, pd, maxSegs, t.lives*0x9e3779b1>>16)
	b := p.take(t.grace)
	first := b.free
	if kind == KindWindow1 {
		first = b.valid
		first.set(kind, &Region{Key: key, PD: pd})
	} else {
		first.setFree(kind, key, pd)
	}
	b.state.Store(bufLive)
	t.setPool(key.Index(), p)
	t.entry(key.Index()).Store(first)
}

// Map makes segs the list that later calls of Stage show, and returns its length in bytes. Packets
// do not see it before a REG_MR staged afterwards executes; registrations already staged or in
// force keep theirs. The list keeps the memory, not segs. The error is ErrKey, or ErrListSize for
// more segments than AllocFast was told or no byte at all.
func (t *Table) Map(index uint32, segs [][]byte) (uint64, error) {
	p := t.pool(index)
	if p == nil || p.kind != KindFast {
		return 0, ErrKey
	}
	if len(segs) > p.maxSegs {
		return 0, ErrListSize
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.spare) == 0 {
		p.collect(t.grace)
	}
	l := p.spareList()
	if mutant.KeyMapLive && p.latest != nil {
		l, p.latest = p.latest, nil
	}
	l.Reset(segs)
	if l.Len() == 0 {
		p.spare = append(p.spare, l)
		return 0, ErrListSize
	}
	if old := p.latest; old != nil && old.refs == 0 {
		poisonList(&old.List)
		p.spare = append(p.spare, old)
	}
	p.latest = l
	return l.Len(), nil
}

// Unmap forgets the list mapped last: Stage finds none until the next Map. Registrations already
// staged or in force keep theirs. The error is ErrKey.
func (t *Table) Unmap(index uint32) error {
	p := t.pool(index)
	if p == nil || p.kind != KindFast {
		return ErrKey
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.latest; old != nil && old.refs == 0 {
		poisonList(&old.List)
		p.spare = append(p.spare, old)
	}
	p.latest = nil
	return nil
}

func (p *pool) spareList() *listBuf {
	last := len(p.spare) - 1
	if last < 0 {
		return new(listBuf)
	}
	l := p.spare[last]
	p.spare = p.spare[:last]
	return l
}

// Stage captures a registration of the list mapped last, at the time a REG_MR is posted, and
// returns the number that the WQE carries. Of r, PD and List are set here. The same list may be
// staged any number of times. The error is ErrKey, ErrListSize when nothing was mapped,
// ErrPipeline, ErrAccess or ErrRange.
func (t *Table) Stage(r Region) (num uint32, err error) {
	p := t.pool(r.Key.Index())
	if p == nil || p.kind != KindFast {
		return 0, ErrKey
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil {
		return 0, ErrListSize
	}
	r.PD, r.List = p.pd, &p.latest.List
	if err := r.validate(); err != nil {
		return 0, err
	}
	b := p.take(t.grace)
	if b == nil {
		return 0, ErrPipeline
	}
	b.list = p.latest
	b.list.refs++
	b.valid.set(KindFast, &r)
	b.free.setFree(KindFast, r.Key, r.PD)
	b.state.Store(bufStaged)
	return b.num.Load(), nil
}

// Staged returns the view that Stage captured under a number, nil if there is none or its WQE was
// executed. Only for the shard whose WQE carries the number.
func (t *Table) Staged(index, num uint32) *View {
	if p := t.pool(index); p != nil && p.kind == KindFast {
		if b := p.staged(num); b != nil {
			return b.valid
		}
	}
	return nil
}

// Unstage gives up what Stage or StageBind returned, when its WQE is flushed without execution.
// Any goroutine may call it; a number that is not waiting is ignored.
func (t *Table) Unstage(index, num uint32) {
	if p := t.pool(index); p != nil {
		if b := p.staged(num); b != nil {
			b.state.CompareAndSwap(bufStaged, bufDropped)
		}
	}
}

// Register executes a REG_MR of a QP in domain pd: v, from Staged, takes the place of the free
// view. Packets can use it at once. Either way the number is used up. The faults are FaultPending
// (v is not waiting), FaultKeyIndex, FaultState (the region is not free) and FaultPD.
func (t *Table) Register(v *View, pd PD) Fault {
	b := v.buf
	if b == nil || v != b.valid || b.pool.kind != KindFast ||
		!b.state.CompareAndSwap(bufStaged, bufLive) {
		return FaultPending
	}
	e := t.entry(v.Key().Index())
	for {
		t.pause()
		old := e.Load()
		if f := old.registers(v, pd); f != FaultNone {
			b.state.Store(bufDropped)
			return f
		}
		t.pause()
		if e.CompareAndSwap(old, v) {
			t.retire(old)
			return FaultNone
		}
	}
}

// registers says whether v may take the place of old.
func (old *View) registers(v *View, pd PD) Fault {
	switch {
	case old.buf == nil, old.buf.pool != v.buf.pool: // the index has another owner
		return FaultKeyIndex
	case old.flags&flagValid != 0 && !mutant.KeyRegValid:
		return FaultState
	case old.PD() != pd:
		return FaultPD
	}
	return FaultNone
}

// Invalidate executes a LOCAL_INV, or the invalidation of a SEND_WITH_INV, for QP qpn of domain pd.
// key is the whole key that is in force. It returns the view that is gone; its memory may be in use
// by other shards until grace. A fast region that is free already, under the same key, is no fault,
// as in rxe, and old is nil; since another shard may have invalidated it just now, completions wait
// for grace then, too. The faults are
// FaultKeyIndex, FaultVariant, FaultState (a window already free), FaultPD, FaultQP (a window
// bound to another QP), FaultKind (a user region, a type 1 window) and FaultBound.
func (t *Table) Invalidate(key Key, pd PD, qpn uint32) (old *View, f Fault) {
	e := t.entry(key.Index())
	for {
		t.pause()
		v := e.Load()
		if f := v.invalidates(key, pd, qpn); f != FaultNone {
			return nil, f
		}
		if v.flags&flagValid == 0 {
			return nil, FaultNone
		}
		if mutant.KeyInvNothing {
			return v, FaultNone
		}
		window := v.Kind() == KindWindow2
		if t.pause(); !window && !v.close() {
			return nil, FaultBound
		}
		t.pause()
		if e.CompareAndSwap(v, v.buf.free) {
			if window {
				t.unbind(v)
			}
			return v, FaultNone
		}
	}
}

// invalidates says whether a QP may invalidate v through key.
func (v *View) invalidates(key Key, pd PD, qpn uint32) Fault {
	switch {
	case v == vacant:
		return FaultKeyIndex
	case v.Key() != key && !mutant.KeyInvVariant:
		return FaultVariant
	case v.Kind() != KindFast && v.Kind() != KindWindow2:
		return FaultKind
	case v.PD() != pd:
		return FaultPD
	case v.Kind() == KindFast:
		return FaultNone
	case v.flags&flagValid == 0:
		return FaultState
	case v.qpn != qpn:
		return FaultQP
	}
	return FaultNone
}

// pause is where a test can let other threads run: before each shared access of a change.
func (t *Table) pause() {
	if t.step != nil {
		t.step()
	}
}
