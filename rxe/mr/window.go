package mr

import "github.com/roxie-rdma/roxie/rxe/internal/mutant"

// This file covers memory windows. A bound window's view holds its region's list and its own range
// and rights, so that a check looks at nothing else. It counts in the bound word of the region's
// view. That word closes before the view is replaced and never opens again, so binding and
// invalidating the region exclude each other, and a region with windows cannot go.

// Bind is a BIND_MW request.
type Bind struct {
	Window Key    // the window's key in force
	Key    Key    // its new key; same index. For type 1 the device chooses it: Window.Inc()
	Parent Key    // the region
	Access Access // remote rights, for type 2 also ZeroBased
	Addr   uint64 // first byte, in the region's addresses
	Length uint64 // bytes; 0 unbinds a type 1 window
}

// StageBind reserves what a BIND_MW of a window will publish, at the time it is posted, and returns
// the number that the WQE carries. The error is ErrKey or ErrPipeline.
func (t *Table) StageBind(index uint32) (num uint32, err error) {
	p := t.pool(index)
	if p == nil || p.kind == KindFast {
		return 0, ErrKey
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.take(t.grace)
	if b == nil {
		return 0, ErrPipeline
	}
	b.state.Store(bufStaged)
	return b.num.Load(), nil
}

// Bind1 executes a BIND_MW of a type 1 window for a QP of domain pd. It returns the view it
// replaced, whose key stops working; completing waits for grace. Either way the number is used up.
// The faults are those of the window (FaultPending, FaultKeyIndex, FaultVariant, FaultKind,
// FaultPD, FaultAccess for rights a window cannot have) and of the region (the same, with
// FaultState when it is free or just being invalidated, FaultAccess without MWBind, without
// LocalWrite for a window that writes, or when it is zero-based, and FaultRange).
func (t *Table) Bind1(num uint32, r *Bind, pd PD) (old *View, f Fault) {
	return t.bind(KindWindow1, num, r, pd, 0)
}

// Bind2 executes a BIND_MW of a type 2 window, which must be free, for QP qpn of domain pd. The
// window works for that QP alone. The faults are those of Bind1, FaultState when the window is not
// free, and FaultRange for length 0.
func (t *Table) Bind2(num uint32, r *Bind, pd PD, qpn uint32) Fault {
	_, f := t.bind(KindWindow2, num, r, pd, qpn)
	return f
}

func (t *Table) bind(kind Kind, num uint32, r *Bind, pd PD, qpn uint32) (*View, Fault) {
	p := t.pool(r.Window.Index())
	if p == nil {
		return nil, FaultKeyIndex
	}
	b := p.staged(num)
	if b == nil || !b.state.CompareAndSwap(bufStaged, bufLive) {
		return nil, FaultPending
	}
	v := b.valid
	f := t.prepare(v, kind, r, pd, qpn)
	if f != FaultNone {
		b.state.Store(bufDropped)
		return nil, f
	}
	b.free.setFree(kind, r.Key, pd)
	e := t.entry(r.Window.Index())
	for {
		t.pause()
		old := e.Load()
		if f := old.binds(kind, r, pd, p); f != FaultNone {
			t.unbind(v)
			b.state.Store(bufDropped)
			return nil, f
		}
		t.pause()
		if e.CompareAndSwap(old, v) {
			t.unbind(old)
			t.retire(old)
			return old, FaultNone
		}
	}
}

// binds says whether the window's view in force may be replaced by a binding.
func (old *View) binds(kind Kind, r *Bind, pd PD, p *pool) Fault {
	switch {
	case old.buf == nil, old.buf.pool != p:
		return FaultKeyIndex
	case old.Key() != r.Window:
		return FaultVariant
	case old.Kind() != kind:
		return FaultKind
	case old.PD() != pd:
		return FaultPD
	case kind == KindWindow2 && old.flags&flagValid != 0:
		return FaultState
	}
	return FaultNone
}

// prepare fills in the view of a binding and counts it at the region.
func (t *Table) prepare(v *View, kind Kind, r *Bind, pd PD, qpn uint32) Fault {
	allowed := AccessRemote
	if kind == KindWindow2 {
		allowed |= ZeroBased
	}
	switch {
	case r.Key.Index() != r.Window.Index():
		return FaultKeyIndex
	case r.Access&^allowed != 0:
		return FaultAccess
	case r.Length == 0 && kind == KindWindow2:
		return FaultRange
	}
	v.set(kind, &Region{Key: r.Key, PD: pd, Access: r.Access, IOVA: r.Addr, Length: r.Length})
	v.qpn = qpn
	if r.Length == 0 {
		return FaultNone
	}
	t.pause()
	parent := t.load(r.Parent.Index())
	if f := parent.carries(r, pd); f != FaultNone {
		return f
	}
	v.list, v.base = parent.list, parent.Offset(r.Addr)
	if r.Access&ZeroBased != 0 {
		v.iova = 0
	}
	if t.pause(); !parent.attach() {
		return FaultState
	}
	v.parent = r.Parent.Index()
	if mutant.KeyWindowRange {
		v.length = parent.length - (r.Addr - parent.iova)
	}
	return FaultNone
}

// carries says whether a window of domain pd may be bound to region v as r says.
func (v *View) carries(r *Bind, pd PD) Fault {
	switch {
	case v == vacant:
		return FaultKeyIndex
	case v.Key() != r.Parent:
		return FaultVariant
	case v.Kind() == KindWindow1, v.Kind() == KindWindow2:
		return FaultKind
	case v.flags&flagValid == 0:
		return FaultState
	case v.PD() != pd:
		return FaultPD
	case v.Access()&MWBind == 0, v.Access()&ZeroBased != 0,
		r.Access&(RemoteWrite|RemoteAtomic) != 0 && v.Access()&LocalWrite == 0:
		return FaultAccess
	case !mutant.KeyBindRange && (r.Addr-v.iova > v.length || r.Length > v.length-(r.Addr-v.iova)):
		return FaultRange
	}
	return FaultNone
}

// attach counts one more window at a region's view; false once the view is on its way out.
func (v *View) attach() bool {
	for {
		n := v.bound.Load()
		if n == boundClosed {
			return false
		}
		if v.bound.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unbind takes a window's view, out of its entry or never in it, off its region. The region's entry
// cannot have changed since the window was counted there.
func (t *Table) unbind(v *View) {
	if v.parent != 0 && !mutant.KeyUnbindLeak {
		t.pause()
		t.load(v.parent).bound.Add(-1)
	}
}

// UnbindQP makes the type 2 windows bound to a destroyed QP free, under the keys they have, and
// returns how many. Their memory is out of use after grace. For the control path: the QP executes
// nothing any more.
func (t *Table) UnbindQP(qpn uint32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for index := range t.windows {
		p := t.pool(index)
		p.mu.Lock() // views are not recycled under our eyes
		e := t.entry(index)
		for v := e.Load(); v.qpn == qpn; v = e.Load() {
			if e.CompareAndSwap(v, v.buf.free) {
				t.unbind(v)
				n++
				break
			}
		}
		p.mu.Unlock()
	}
	return n
}
