package rxe_test

import (
	"encoding/binary"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file says what the rules of keys mean, in the plainest way: an object an index, a list of
// byte positions behind it. Nothing here is shared with package mr but the names.

// piece is a stretch of the owner's memory.
type piece struct{ at, n int }

// object is what stands behind one index of the owner's key table.
type object struct {
	kind mr.Kind
	pd   mr.PD
	dead bool // freed; another object may have the index

	// What packets see.
	key    mr.Key
	valid  bool
	access mr.Access
	iova   uint64
	length uint64
	bytes  []int // position in memory of each byte of the registration
	qp     *rxe.QP
	parent *object // window: what it is bound to
	bound  int     // region: windows bound to it

	// The application's side.
	soft   mr.Key // key of the next registration or binding
	mapped []piece
}

// staged is what a posted REG_MR or BIND_MW will put in force.
type staged struct {
	obj    *object
	key    mr.Key
	access mr.Access
	iova   uint64
	length uint64
	bytes  []int

	window, parent mr.Key // BIND_MW
}

// model predicts.
type model struct {
	objects map[uint32]*object // by index
	mem     []byte
}

func (m *model) byKey(key mr.Key) *object { return m.objects[key.Index()] }

// positions are the bytes of a list, in order.
func positions(list []piece) (out []int) {
	for _, p := range list {
		for i := range p.n {
			out = append(out, p.at+i)
		}
	}
	return out
}

// check says whether QP q of domain pd may access n bytes at va through key, and which they are.
func (m *model) check(key mr.Key, pd mr.PD, q *rxe.QP, need mr.Access, va, n uint64) ([]int,
	mr.Fault) {
	o := m.byKey(key)
	window := o != nil && (o.kind == mr.KindWindow1 || o.kind == mr.KindWindow2)
	switch {
	case o == nil:
		return nil, mr.FaultKeyIndex
	case o.key != key:
		return nil, mr.FaultVariant
	case !o.valid:
		return nil, mr.FaultState
	case o.pd != pd:
		return nil, mr.FaultPD
	case o.qp != nil && o.qp != q:
		return nil, mr.FaultQP
	case window && need&^mr.LocalWrite == 0:
		return nil, mr.FaultKind
	case o.access&need != need:
		return nil, mr.FaultAccess
	case va < o.iova || va-o.iova >= o.length || n > o.length-(va-o.iova):
		return nil, mr.FaultRange
	}
	off := va - o.iova
	return o.bytes[off : off+n], mr.FaultNone
}

// register executes a REG_MR.
func (m *model) register(s *staged, pd mr.PD) mr.Fault {
	o := s.obj
	switch {
	case o.dead:
		return mr.FaultPending
	case o.valid:
		return mr.FaultState
	case o.pd != pd:
		return mr.FaultPD
	}
	o.key, o.valid, o.access = s.key, true, s.access
	o.iova, o.length, o.bytes = s.iova, s.length, s.bytes
	return mr.FaultNone
}

// invalidate executes a LOCAL_INV or what a SEND_WITH_INV asks for.
func (m *model) invalidate(key mr.Key, pd mr.PD, q *rxe.QP) mr.Fault {
	o := m.byKey(key)
	switch {
	case o == nil:
		return mr.FaultKeyIndex
	case o.key != key:
		return mr.FaultVariant
	case o.kind == mr.KindUser || o.kind == mr.KindWindow1:
		return mr.FaultKind
	case o.pd != pd:
		return mr.FaultPD
	case o.kind == mr.KindWindow2 && !o.valid:
		return mr.FaultState
	case o.kind == mr.KindWindow2 && o.qp != q:
		return mr.FaultQP
	case o.bound > 0:
		return mr.FaultBound
	}
	o.free()
	return mr.FaultNone
}

// free takes away what is in force; the key stays.
func (o *object) free() {
	if o.parent != nil {
		o.parent.bound--
	}
	o.valid, o.access, o.iova, o.length = false, 0, 0, 0
	o.bytes, o.qp, o.parent = nil, nil, nil
}

// bind executes a BIND_MW; false if it must fail.
func (m *model) bind(s *staged, pd mr.PD, q *rxe.QP) bool {
	w := s.obj
	if w.dead || w.key != s.window || w.pd != pd || w.kind == mr.KindWindow2 && w.valid {
		return false
	}
	if s.length == 0 {
		if w.kind == mr.KindWindow2 || s.access&mr.ZeroBased != 0 {
			return false
		}
		w.free()
		w.key, w.valid, w.access, w.iova = s.key, true, s.access, s.iova
		return true
	}
	if s.access&mr.ZeroBased != 0 && w.kind == mr.KindWindow1 {
		return false
	}
	p := m.byKey(s.parent)
	if p == nil || p.key != s.parent || p.kind == mr.KindWindow1 || p.kind == mr.KindWindow2 ||
		!p.valid || p.pd != pd || p.access&mr.MWBind == 0 || p.access&mr.ZeroBased != 0 {
		return false
	}
	if s.access&(mr.RemoteWrite|mr.RemoteAtomic) != 0 && p.access&mr.LocalWrite == 0 {
		return false
	}
	if s.iova < p.iova || s.iova-p.iova > p.length || s.length > p.length-(s.iova-p.iova) {
		return false
	}
	w.free()
	off := s.iova - p.iova
	w.key, w.valid, w.access = s.key, true, s.access
	w.iova, w.length, w.bytes = s.iova, s.length, p.bytes[off:off+s.length]
	if s.access&mr.ZeroBased != 0 {
		w.iova = 0
	}
	if w.kind == mr.KindWindow2 {
		w.qp = q
	}
	w.parent = p
	p.bound++
	return true
}

// info is what the key table must say of an object.
func (o *object) info() mr.Info {
	i := mr.Info{Key: o.key, Kind: o.kind, State: mr.StateFree, PD: o.pd, Access: o.access,
		Bound: o.bound, IOVA: o.iova, Length: o.length}
	if o.valid {
		i.State = mr.StateValid
	}
	if o.qp != nil {
		i.QPN = uint32(o.qp.QPN())
	}
	if o.parent != nil {
		i.Parent = o.parent.key.Index()
	}
	return i
}

// get and put move bytes to and from positions of the memory.
func (m *model) get(at []int) []byte {
	out := make([]byte, len(at))
	for i, p := range at {
		out[i] = m.mem[p]
	}
	return out
}

func (m *model) put(at []int, data []byte) {
	for i, p := range at {
		m.mem[p] = data[i]
	}
}

// atomic executes an atomic operation on 8 bytes and returns what was there.
func (m *model) atomic(at []int, op rxe.WROpcode, arg, swap uint64) uint64 {
	old := binary.NativeEndian.Uint64(m.get(at))
	next := old
	switch op {
	case rxe.WRAtomicFetchAdd:
		next += arg
	case rxe.WRAtomicCmpSwap:
		if old == arg {
			next = swap
		}
	case rxe.WRAtomicWrite:
		next = arg
	}
	m.put(at, binary.NativeEndian.AppendUint64(nil, next))
	return old
}
