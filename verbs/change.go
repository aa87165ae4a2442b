package verbs

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// ChangeKind says what a Change is about.
type ChangeKind uint8

// Changes of an open device's surroundings.
const (
	ChangeGIDs ChangeKind = iota + 1 // the interface's addresses, and with them the GID table
	ChangeWay                        // how frames get from Src to Dst: by which neighbour, or not
	ChangeGone                       // the interface does not exist any more; the last one
)

// Change is something that happened around an open device, as OnChange tells of it.
type Change struct {
	Kind ChangeKind
	// ChangeWay: the connections and address handles between these two addresses go from and to these
	// link addresses now; DstMAC is zero if the peer cannot be reached.
	Src, Dst       GID
	SrcMAC, DstMAC wire.MAC
}

// watchers are the functions of OnChange; the list is replaced as a whole.
type watchers struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*func(Change)]
}

// tell calls them.
func (w *watchers) tell(x Change) {
	if l := w.list.Load(); l != nil {
		for _, f := range *l {
			(*f)(x)
		}
	}
}

func (w *watchers) edit(f func([]*func(Change)) []*func(Change)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var old []*func(Change)
	if l := w.list.Load(); l != nil {
		old = slices.Clone(*l)
	}
	old = f(old)
	w.list.Store(&old)
}

// OnChange has f called when the device's addresses, the way to a peer or the interface itself
// change, until remove is called; a connection manager tells its users. Programs take AsyncEvent.
// f may be called from several goroutines, with parts of the device locked: it may not wait for
// anything, nor call the device. A call of f may still run when remove returns.
func (c *Context) OnChange(f func(Change)) (remove func()) {
	p := &f
	c.watchers.edit(func(l []*func(Change)) []*func(Change) { return append(l, p) })
	return func() {
		c.watchers.edit(func(l []*func(Change)) []*func(Change) {
			return slices.DeleteFunc(l, func(x *func(Change)) bool { return x == p })
		})
	}
}

// change tells of the way as it is now.
func (w *way) change() Change {
	p := &w.av.Path
	x := Change{Kind: ChangeWay, Src: p.Src, Dst: p.Dst, SrcMAC: p.SrcMAC, DstMAC: p.DstMAC}
	if w.av.Nowhere {
		x.DstMAC = wire.MAC{}
	}
	return x
}
