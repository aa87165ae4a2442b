package verbs

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers what work requests register, bind and invalidate. Such an object has two sides:
// here is the application's, with the next key and the next memory; the device honours what
// REG_MR, BIND_MW and LOCAL_INV have put in force when they executed (package mr).

// AllocFastMR makes a region without memory (ib_alloc_mr, IB_MR_TYPE_MEM_REG), for at most maxSegs
// pieces of memory at a time. Errors: ErrInvalid, mr.ErrExhausted, ErrClosed, ErrForeign.
func (pd *PD) AllocFastMR(maxSegs int) (*MR, error) {
	c := pd.ctx
	if maxSegs < 1 || maxSegs > mr.MaxLimit {
		return nil, fmt.Errorf("allocate fast region of %d segments, 1 to %d are possible: %w", maxSegs,
			mr.MaxLimit, ErrInvalid)
	}
	if err := c.use(&pd.handle); err != nil {
		return nil, fmt.Errorf("allocate fast region: %w", err)
	}
	key, err := c.dev.Keys().AllocFast(pd.num, maxSegs)
	if err != nil {
		c.unuse(&pd.handle)
		return nil, fmt.Errorf("allocate fast region of %d segments: %w", maxSegs, err)
	}
	return &MR{handle: handle{ctx: c}, pd: pd, key: key, fast: true}, nil
}

// MapSG chooses the memory that the next REG_MR posted for a fast region registers: segs in this
// order, of any length and alignment, addressed from iova on (ib_map_mr_sg). What is in force or
// posted already keeps its own. Registering again without mapping again takes the same memory. No
// segs at all: none, so that the memory of the last call can be given back once what was registered
// is invalidated. Errors: ErrInvalid for a region that is not a fast one, and for no bytes;
// mr.ErrListSize for more segments than AllocFastMR was told.
func (m *MR) MapSG(segs [][]byte, iova uint64) error {
	if !m.fast || m.gone.Load() {
		return fmt.Errorf("map memory to region %#x, which is not a fast one, or not any more: %w",
			uint32(m.key), ErrInvalid)
	}
	if len(segs) == 0 {
		m.addr, m.length, m.mapped = 0, 0, false
		return m.ctx.dev.Keys().Unmap(m.key.Index())
	}
	n, err := m.ctx.dev.Keys().Map(m.key.Index(), segs)
	if err != nil {
		return fmt.Errorf("map %d segments: %w", len(segs), err)
	}
	m.addr, m.length, m.mapped = iova, n, true
	return nil
}

// UpdateKey chooses the variant, the low 8 bits of the key, for the next REG_MR of a fast region
// (ib_update_fast_reg_key). The keys of other regions are what they are.
func (m *MR) UpdateKey(variant uint8) {
	if m.fast {
		m.key = mr.MakeKey(m.key.Index(), variant)
	}
}

// IncRKey returns a key with the next variant (ib_inc_rkey): what UpdateKey or a bind takes next.
func IncRKey(key Key) Key { return key.Inc() }

// MWType is the type of a memory window.
type MWType uint8

// The types (enum ibv_mw_type). Type 2 windows are of type 2B: bound to one QP.
const (
	MWType1 MWType = 1
	MWType2 MWType = 2
)

// MW is a memory window: part of a region under a key of its own, bound and taken away by work
// requests (struct ibv_mw). Its methods are for one goroutine at a time.
type MW struct {
	handle
	pd  *PD
	typ MWType
	key mr.Key
}

// AllocMW makes a window that is not bound (ibv_alloc_mw).
func (pd *PD) AllocMW(t MWType) (*MW, error) {
	kind := mr.KindWindow2
	switch t {
	case MWType1:
		kind = mr.KindWindow1
	case MWType2:
	default:
		return nil, fmt.Errorf("allocate window of type %d: %w", t, ErrInvalid)
	}
	c := pd.ctx
	if err := c.use(&pd.handle); err != nil {
		return nil, fmt.Errorf("allocate window: %w", err)
	}
	key, err := c.dev.Keys().Alloc(kind, pd.num)
	if err != nil {
		c.unuse(&pd.handle)
		return nil, fmt.Errorf("allocate window: %w", err)
	}
	return &MW{handle: handle{ctx: c}, pd: pd, typ: t, key: key}, nil
}

// Type is the window's type.
func (w *MW) Type() MWType { return w.typ }

// RKey is the window's key: the one it was allocated with, or that of the last BIND_MW posted. After a
// BIND_MW that failed or was flushed it is not in force: end such a window and allocate another.
func (w *MW) RKey() Key { return w.key }

// Dealloc ends the window, bound or not (ibv_dealloc_mw). A second call does nothing.
func (w *MW) Dealloc() error {
	return w.ctx.dropKey(&w.handle, w.pd, w.key.Index())
}

// dropKey takes an index out of the key table, waits for grace and frees it.
func (c *Context) dropKey(h *handle, pd *PD, index uint32) error {
	first, err := h.bury()
	if err != nil || !first || c.isClosed() {
		return err
	}
	if _, fault := c.dev.Keys().Unpublish(index); fault == mr.FaultBound {
		c.mu.Lock()
		h.dead = false
		h.gone.Store(false)
		c.mu.Unlock()
		return fmt.Errorf("free key: windows are bound to the region: %w", ErrBusy)
	}
	c.waitGrace()
	err = c.dev.Keys().Free(index)
	c.unuse(&pd.handle)
	if err != nil {
		return fmt.Errorf("free key: %w", err)
	}
	return nil
}

// encodeKeyed posts REG_MR and BIND_MW: what they will put in force is captured now and goes by
// number. q.sendMu is held.
func (q *QP) encodeKeyed(wr *SendWR, r *rxe.SendWR) error {
	keys := q.ctx.dev.Keys()
	var index uint32
	var err error
	switch {
	case wr.Opcode == WRRegMR && wr.MR != nil:
		m := wr.MR
		switch {
		case m.ctx != q.ctx:
			return ErrForeign
		case !m.fast || m.gone.Load() || !m.mapped || checkAccess(wr.Access) != nil:
			return ErrInvalid
		}
		r.RKey, r.RemoteAddr = m.key, m.addr
		index = m.key.Index()
		iova := m.addr
		if wr.Access&ZeroBased != 0 {
			iova = 0
		}
		r.List, err = keys.Stage(mr.Region{Key: m.key, Access: wr.Access, IOVA: iova, Length: m.length})
	case wr.Opcode == WRBindMW && wr.MW != nil && wr.MR != nil:
		w := wr.MW
		if w.ctx != q.ctx || wr.MR.ctx != q.ctx {
			return ErrForeign
		}
		r.MWKey, r.RKey, r.MWType1 = w.key, wr.Key, w.typ == MWType1
		if r.MWType1 {
			r.RKey = w.key.Inc()
		}
		r.Parent, r.RemoteAddr, r.Length, r.Access = wr.MR.key, wr.Addr, wr.Length, wr.Access
		index = w.key.Index()
		if r.RKey.Index() != index || w.gone.Load() || wr.MR.gone.Load() {
			return ErrInvalid
		}
		r.List, err = keys.StageBind(index)
	default:
		return ErrInvalid
	}
	if err != nil {
		return err
	}
	if err = q.qp.PostSend(r); err != nil {
		keys.Unstage(index, r.List)
		return err
	}
	if wr.Opcode == WRBindMW {
		wr.MW.key = r.RKey
	} else {
		wr.MR.access = wr.Access
	}
	return nil
}
