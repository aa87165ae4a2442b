package mr

import (
	"math"
	"sync/atomic"
)

// Kind says what stands behind a key.
type Kind uint8

// The kinds.
const (
	KindUser    Kind = iota // registered from the control path (RegMR), never invalidated by a WR
	KindFast                // fast-register region: REG_MR, LOCAL_INV, SEND_WITH_INV
	KindWindow1             // memory window of type 1: bound again and again, any QP of its PD
	KindWindow2             // memory window of type 2B: bound from free, to one QP
	numKinds
)

// String returns the kind's name.
func (k Kind) String() string {
	if k < numKinds {
		return [numKinds]string{"user", "fast", "window1", "window2"}[k]
	}
	return "unknown"
}

// State is the state of an entry.
type State uint8

// The states.
const (
	StateInvalid State = iota // nothing published at the index
	StateFree                 // allocated, no memory behind it: every access is a fault
	StateValid                // registered or bound
)

// String returns the state's name.
func (s State) String() string {
	if s <= StateValid {
		return [...]string{"invalid", "free", "valid"}[s]
	}
	return "unknown"
}

// The upper bits of View.flags stand above every right, so that one compare tests rights, state
// and kind together.
const (
	flagKindShift = 28
	flagWindow    = 1 << 30 // a check needs to look at more
	flagValid     = 1 << 31
)

// ident is a key and its domain, to be compared at once.
type ident uint64

func identOf(key Key, pd PD) ident { return ident(key)<<32 | ident(pd) }

// View is what the packet path honours for one key: immutable from the moment it is published,
// until it was replaced and grace has passed over it (see Grace). It fills one cache line.
type View struct {
	id     ident  // key and PD
	flags  uint32 // rights, kind, flagWindow, flagValid
	qpn    uint32 // type 2 window: the QP it is bound to; else 0
	iova   uint64 // 0 when zero-based
	length uint64
	base   uint64 // where iova lies in list
	list   *List
	buf    *buffer      // what the view is recycled with; nil for user regions
	parent uint32       // window: index of the region it is bound to
	bound  atomic.Int32 // windows bound to this view; boundClosed once it is on its way out
}

// boundClosed in View.bound: no window can be bound any more. It never opens again, which is what
// makes binding and invalidating exclude each other.
const boundClosed = -1

// Key returns the full key.
func (v *View) Key() Key { return Key(v.id >> 32) }

// PD returns the protection domain.
func (v *View) PD() PD { return PD(v.id) }

// Kind returns the kind.
func (v *View) Kind() Kind { return Kind(v.flags >> flagKindShift & 3) }

// State returns StateFree or StateValid.
func (v *View) State() State {
	if v.flags&flagValid != 0 {
		return StateValid
	}
	return StateFree
}

// Access returns the rights.
func (v *View) Access() Access { return Access(v.flags) & accessAll }

// IOVA returns the first address the key grants; 0 for a zero-based region or window.
func (v *View) IOVA() uint64 { return v.iova }

// Length returns the number of bytes the key grants from IOVA on.
func (v *View) Length() uint64 { return v.length }

// Base returns the offset of IOVA in List, in bytes.
func (v *View) Base() uint64 { return v.base }

// List returns the memory; a window returns its region's list. Nil in state free and for a window
// of type 1 that is not bound.
func (v *View) List() *List { return v.list }

// QPN returns the QP a type 2 window is bound to, and 0 for everything else.
func (v *View) QPN() uint32 { return v.qpn }

// Parent returns the index of the region a window is bound to, and 0 for everything else.
func (v *View) Parent() uint32 { return v.parent }

// Bound returns how many windows are bound to the region right now.
func (v *View) Bound() int { return int(max(v.bound.Load(), 0)) }

// Offset turns an address that Check has accepted into an offset in List.
func (v *View) Offset(va uint64) uint64 { return va - v.iova + v.base }

// Region describes a registration.
type Region struct {
	Key    Key    // full key; its index was given out by Alloc
	PD     PD     // not 0
	Access Access // ZeroBased needs IOVA 0
	IOVA   uint64 // address of the first byte; IOVA+Length does not pass 2^64
	Length uint64 // bytes; 0 grants nothing
	Base   uint64 // offset of the first byte in List; Base+Length is inside List
	List   *List  // the memory; only Length 0 goes without
}

func (r *Region) validate() error {
	switch {
	case r.PD == 0:
		return ErrPD
	case r.Key.Index() == 0:
		return ErrKey
	case r.Access&^accessAll != 0, r.Access&ZeroBased != 0 && r.IOVA != 0:
		return ErrAccess
	case !spans(r.IOVA, r.Length, math.MaxUint64):
		return ErrRange
	}
	if r.Length == 0 {
		return nil
	}
	if r.List == nil || r.Base > r.List.Len() || r.Length > r.List.Len()-r.Base {
		return ErrRange
	}
	return nil
}

// spans reports whether n bytes from first on end at or before last.
func spans(first, n, last uint64) bool {
	return n == 0 || first <= last && n-1 <= last-first
}

// set makes v a valid view of r. Nobody else may see v yet.
func (v *View) set(kind Kind, r *Region) {
	v.id, v.qpn, v.parent = identOf(r.Key, r.PD), 0, 0
	v.iova, v.length, v.base, v.list = r.IOVA, r.Length, r.Base, r.List
	v.flags = uint32(r.Access) | uint32(kind)<<flagKindShift | flagValid
	if kind == KindWindow1 || kind == KindWindow2 {
		v.flags |= flagWindow
	}
	v.bound.Store(0)
}

// setFree makes v the free view of a key. Nobody else may see v yet.
func (v *View) setFree(kind Kind, key Key, pd PD) {
	v.id, v.qpn, v.parent = identOf(key, pd), 0, 0
	v.iova, v.length, v.base, v.list = 0, 0, 0, nil
	v.flags = uint32(kind) << flagKindShift
	v.bound.Store(0)
}

// NewView makes the view of a user region, ready for Publish or Rereg. It returns ErrPD, ErrKey,
// ErrAccess or ErrRange when r is not possible.
func NewView(r Region) (*View, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	v := new(View)
	v.set(KindUser, &r)
	return v, nil
}
