package verbs

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file covers what work requests register, bind and invalidate. Such an object has two sides:
// here is the application's, with the next key and the next memory; the device honours what
// REG_MR, BIND_MW and LOCAL_INV have put in force when they executed (package mr).

// FastMR is a region that REG_MR work requests give memory and key, and LOCAL_INV work requests or a
// peer's SEND_WITH_INV take them away (ib_alloc_mr, IB_MR_TYPE_MEM_REG). Its methods are for one
// goroutine at a time.
type FastMR struct {
	handle
	pd     *PD
	key    mr.Key
	iova   uint64
	length uint64
	mapped bool
}

// AllocFastMR makes a region without memory, for at most maxSegs pieces of it at a time.
func (pd *PD) AllocFastMR(maxSegs int) (*FastMR, error) {
	c := pd.ctx
	if err := c.use(&pd.handle); err != nil {
		return nil, fmt.Errorf("allocate fast region: %w", err)
	}
	key, err := c.dev.Keys().AllocFast(pd.num, maxSegs)
	if err != nil {
		c.unuse(&pd.handle)
		return nil, fmt.Errorf("allocate fast region of %d segments: %w", maxSegs, err)
	}
	return &FastMR{handle: handle{ctx: c}, pd: pd, key: key}, nil
}

// MapSG chooses the memory that the next REG_MR posted for this region registers: segs in this
// order, addressed from iova on (ib_map_mr_sg). What is registered or posted already keeps its own.
func (m *FastMR) MapSG(segs [][]byte, iova uint64) error {
	n, err := m.ctx.dev.Keys().Map(m.key.Index(), segs)
	if err != nil {
		return fmt.Errorf("map %d segments: %w", len(segs), err)
	}
	m.iova, m.length, m.mapped = iova, n, true
	return nil
}

// UpdateKey chooses the variant, the low 8 bits of the key, for the next REG_MR
// (ib_update_fast_reg_key).
func (m *FastMR) UpdateKey(variant uint8) { m.key = mr.MakeKey(m.key.Index(), variant) }

// Key is the key that the next REG_MR installs: lkey and rkey.
func (m *FastMR) Key() Key { return m.key }

// Addr is the address of the first byte that the next REG_MR gives the region.
func (m *FastMR) Addr() uint64 { return m.iova }

// Len is the length in bytes of what is mapped.
func (m *FastMR) Len() uint64 { return m.length }

// SGE names n bytes from offset off on, by the present key.
func (m *FastMR) SGE(off, n int) SGE {
	return SGE{Addr: m.iova + uint64(off), Length: uint32(n), LKey: m.key}
}

// Dereg ends the region, whatever its state; when it returns the device touches its memory no more.
// It fails with ErrBusy while windows are bound to it. A second call does nothing.
func (m *FastMR) Dereg() error {
	return m.ctx.dropKey(&m.handle, m.pd, m.key.Index())
}

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

// RKey is the window's key: the one it was allocated with, or that of the last BIND_MW posted.
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
	case wr.Opcode == WRRegMR && wr.FastMR != nil:
		m := wr.FastMR
		if m.ctx != q.ctx || !m.mapped {
			return ErrForeign
		}
		r.RKey, r.RemoteAddr = m.key, m.iova
		index = m.key.Index()
		iova := m.iova
		if wr.Access&ZeroBased != 0 {
			iova = 0
		}
		r.List, err = keys.Stage(mr.Region{Key: m.key, Access: wr.Access, IOVA: iova, Length: m.length})
	case wr.Opcode == WRBindMW && wr.MW != nil && wr.MR != nil:
		w := wr.MW
		if w.ctx != q.ctx || wr.MR.pd.ctx != q.ctx {
			return ErrForeign
		}
		r.MWKey, r.RKey, r.MWType1 = w.key, wr.Key, w.typ == MWType1
		if r.MWType1 {
			r.RKey = w.key.Inc()
		}
		r.Parent, r.RemoteAddr, r.Length, r.Access = wr.MR.key, wr.Addr, wr.Length, wr.Access
		index = w.key.Index()
		if r.RKey.Index() != index {
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
	}
	return nil
}
