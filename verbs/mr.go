package verbs

import (
	"fmt"
	"runtime"
	"time"

	"github.com/roxie-rdma/roxie/rxe/mr"
)

// PD is a protection domain: QPs, regions, windows and address handles work together only within
// one.
type PD struct {
	handle
	num mr.PD
}

// AllocPD makes a protection domain (ibv_alloc_pd).
func (c *Context) AllocPD() (*PD, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	return &PD{handle: handle{ctx: c}, num: c.newPD()}, nil
}

// Dealloc ends the domain (ibv_dealloc_pd). It fails with ErrBusy while anything in it lives.
func (pd *PD) Dealloc() error {
	if _, err := pd.bury(); err != nil {
		return fmt.Errorf("deallocate PD: %w", err)
	}
	return nil
}

// MR is a registered memory region: memory that the device may read and write for posted work
// requests and for peers, within its access rights.
type MR struct {
	pd     *PD
	buf    []byte // keeps the memory alive
	addr   uint64
	key    mr.Key
	access Access
	owned  bool // AllocMR: mapped by us
	done   bool // deregistered; Context.mu
}

// RegMR registers buf (ibv_reg_mr). The memory is kept alive until Dereg. Peers see it at Addr.
// Remote write and atomic rights need LocalWrite, too. Errors: ErrInvalid, mr.ErrAccess,
// mr.ErrExhausted.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	m := &MR{pd: pd, buf: buf, addr: mr.AddrOf(buf), access: access}
	if err := m.register(); err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), err)
	}
	return m, nil
}

// AllocMR maps size bytes of fresh zeroed memory, page aligned and outside the Go heap, and registers
// it. Its memory is given back by Close, of the MR or of the Context, not by Dereg.
func (pd *PD) AllocMR(size int, access Access) (*MR, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, ErrInvalid)
	}
	buf, err := mapMemory(size)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	m := &MR{pd: pd, buf: buf, addr: mr.AddrOf(buf), access: access, owned: true}
	if err := m.register(); err != nil {
		unmapMemory(buf)
		return nil, fmt.Errorf("register %d bytes: %w", size, err)
	}
	pd.ctx.mu.Lock()
	pd.ctx.mapped[m] = struct{}{}
	pd.ctx.mu.Unlock()
	return m, nil
}

func (m *MR) register() error {
	if len(m.buf) == 0 {
		return fmt.Errorf("no memory: %w", ErrInvalid)
	}
	c := m.pd.ctx
	if err := c.use(&m.pd.handle); err != nil {
		return err
	}
	keys := c.dev.Keys()
	key, err := keys.Alloc(mr.KindUser, m.pd.num)
	if err != nil {
		c.unuse(&m.pd.handle)
		return err
	}
	iova := m.addr
	if m.access&ZeroBased != 0 {
		iova = 0
	}
	v, err := mr.NewView(mr.Region{Key: key, PD: m.pd.num, Access: m.access, IOVA: iova,
		Length: uint64(len(m.buf)), List: mr.NewList(m.buf)})
	if err == nil {
		err = keys.Publish(v)
	}
	if err != nil {
		_ = keys.Free(key.Index())
		c.unuse(&m.pd.handle)
		return err
	}
	m.key, m.addr = key, iova
	return nil
}

// Bytes is the region's memory. After a completion about it the application may read and write it;
// while the device works on it, only LoadFlag may look.
func (m *MR) Bytes() []byte { return m.buf }

// Addr is the address of the first byte for SGEs and for peers (the IOVA); 0 with ZeroBased.
func (m *MR) Addr() uint64 { return m.addr }

// Len is the region's size in bytes.
func (m *MR) Len() int { return len(m.buf) }

// LKey is the key for SGEs.
func (m *MR) LKey() Key { return m.key }

// RKey is the key for peers.
func (m *MR) RKey() Key { return m.key }

// Access returns the rights.
func (m *MR) Access() Access { return m.access }

// SGE names n bytes from offset off on.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.addr + uint64(off), Length: uint32(n), LKey: m.key}
}

// Dereg takes the region away from the device (ibv_dereg_mr): when it returns, no shard reads or
// writes the memory any more, and work requests and peers that still name it fail. It fails with
// ErrBusy while memory windows are bound to the region. A second call does nothing.
func (m *MR) Dereg() error {
	c := m.pd.ctx
	c.mu.Lock()
	if m.done || c.isClosed() {
		m.done = true
		c.mu.Unlock()
		return nil
	}
	_, fault := c.dev.Keys().Unpublish(m.key.Index())
	if fault == mr.FaultBound {
		c.mu.Unlock()
		return fmt.Errorf("deregister region %#x: windows are bound to it: %w", m.key, ErrBusy)
	}
	m.done = true
	c.mu.Unlock()
	c.waitGrace()
	err := c.dev.Keys().Free(m.key.Index())
	c.unuse(&m.pd.handle)
	if err != nil {
		return fmt.Errorf("free key %#x: %w", m.key, err)
	}
	return nil
}

// Close is Dereg, and gives memory of AllocMR back to the system: Bytes must not be touched
// afterwards.
func (m *MR) Close() error {
	if err := m.Dereg(); err != nil {
		return err
	}
	c := m.pd.ctx
	c.mu.Lock()
	_, mapped := c.mapped[m]
	delete(c.mapped, m)
	c.mu.Unlock()
	if mapped {
		unmapMemory(m.buf)
		m.buf = nil
	}
	return nil
}

// waitGrace waits until no shard can hold what was unpublished before. A shard that nobody moves
// does not count; the others pass within a turn.
func (c *Context) waitGrace() {
	g := c.dev.Grace()
	for e, n := g.Start(), 0; !g.Passed(e); n++ {
		if n < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
}
