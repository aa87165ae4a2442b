package mr

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
