package mr

import "sync/atomic"

// Info is what is published at an index.
type Info struct {
	Key    Key
	Kind   Kind
	State  State // StateInvalid: nothing
	PD     PD
	Access Access
	QPN    uint32 // type 2 window: the QP it is bound to
	Parent uint32 // window: index of the region it is bound to
	Bound  int    // region: windows bound to it
	Segs   int    // segments of the list
	IOVA   uint64
	Length uint64
}

// Lookup tells what is published at an index, for tools and tests.
func (t *Table) Lookup(index uint32) Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pool(index); p != nil {
		p.mu.Lock() // views are not recycled under our eyes
		defer p.mu.Unlock()
	}
	v := t.load(index)
	if v == vacant {
		return Info{}
	}
	info := Info{
		Key: v.Key(), Kind: v.Kind(), State: v.State(), PD: v.PD(), Access: v.Access(),
		QPN: v.qpn, Parent: v.parent, Bound: v.Bound(), IOVA: v.iova, Length: v.length,
	}
	if v.list != nil {
		info.Segs = v.list.NumSegs()
	}
	return info
}

// List tells what is published, by index. Entries change meanwhile: each is whole, together they are
// of no single moment. For the control path.
func (t *Table) List() (out []Info) {
	t.mu.Lock()
	n := uint32(len(t.slots))
	t.mu.Unlock()
	for i := uint32(1); i < n; i++ {
		if info := t.Lookup(i); info.State != StateInvalid {
			out = append(out, info)
		}
	}
	return out
}

// Uses reports whether an access that begins now could reach memory of mem, or one that a work request
// staged already could begin: whether the memory is in a list that is in force, staged, or mapped
// for the next Stage. Accesses that began earlier end with their grace. So whoever gives memory
// back lets nobody register it any more, asks here, then waits for grace. For the control path: it
// looks at every index.
func (t *Table) Uses(mem []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for index := range uint32(len(t.slots)) {
		s := t.slot(index)
		if s == nil {
			continue
		}
		if s.kind != KindUser {
			if t.pool(index).uses(mem, t.entry(index)) {
				return true
			}
		} else if l := t.load(index).list; l != nil && l.overlaps(mem) {
			return true
		}
	}
	return false
}

// uses is Uses for the index whose entry is e.
func (p *pool) uses(mem []byte, e *atomic.Pointer[View]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest != nil && p.latest.overlaps(mem) {
		return true
	}
	for _, b := range *p.ring.Load() {
		if b.list == nil || !b.list.overlaps(mem) {
			continue
		}
		// A live buffer's view is in force, or about to be, as long as its free view is not.
		if s := b.state.Load(); s == bufStaged || s == bufLive && e.Load() != b.free {
			return true
		}
	}
	return false
}

// overlaps reports whether a byte of mem is in the list.
func (l *List) overlaps(mem []byte) bool {
	first, n := AddrOf(mem), uint64(len(mem))
	for _, s := range l.segs {
		if at := AddrOf(s); at-first < n || first-at < uint64(len(s)) {
			return true
		}
	}
	return false
}
