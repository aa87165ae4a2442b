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

// MR is a memory region (struct ibv_mr): memory that the device may read and write for posted work
// requests and for peers, within its access rights.
//
// A region of RegMR or AllocMR is registered from the start. One of AllocFastMR is registered by
// REG_MR work requests and taken away by LOCAL_INV, or by a peer's SEND_WITH_INV. Such a region has
// two sides: this is the application's, with the key and the memory of the next registration;
// what the device honours changes only when those work requests execute, in the order of their send
// queue. The methods of one fast region are for one goroutine at a time.
type MR struct {
	handle
	pd     *PD
	buf    []byte // keeps the memory alive; nil for fast regions
	addr   uint64
	length uint64
	key    mr.Key
	access Access
	fast   bool
	mapped bool // fast: MapSG has chosen memory
	file   bool // the memory is mapped from a file
}

// RegMR registers buf (ibv_reg_mr). The memory is kept alive until Dereg. Peers see it at Addr.
// Errors: ErrInvalid for no memory or, as ibv_reg_mr(3) has it, for remote write or atomic rights
// without LocalWrite; mr.ErrAccess, mr.ErrExhausted.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	m := &MR{handle: handle{ctx: pd.ctx}, pd: pd, buf: buf, access: access}
	if err := m.register(); err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), err)
	}
	return m, nil
}

// RegMapped is RegMR for memory that is mapped from a file (mmap with MAP_SHARED), which stays the
// caller's: unmap it after Dereg. When the file is cut short, or reading it fails, the packet that
// touches the missing page is answered with a NAK remote operational error and its QP goes to ERR;
// own work requests fail with WCLocProtErr. The process lives. A page that is not in memory stalls
// the shard until it is read: see to it beforehand (MADV_POPULATE_READ, mlock).
func (pd *PD) RegMapped(buf []byte, access Access) (*MR, error) {
	m := &MR{handle: handle{ctx: pd.ctx}, pd: pd, buf: buf, access: access, file: true}
	if err := m.register(); err != nil {
		return nil, fmt.Errorf("register %d mapped bytes: %w", len(buf), err)
	}
	return m, nil
}

// AllocMR maps size bytes of fresh zeroed memory, page aligned and outside the Go heap, and
// registers it. Its memory is given back by Close, of the MR or of the Context, not by Dereg.
func (pd *PD) AllocMR(size int, access Access) (*MR, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, ErrInvalid)
	}
	buf, err := mapMemory(size)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	m := &MR{handle: handle{ctx: pd.ctx}, pd: pd, buf: buf, access: access}
	if err := m.register(); err != nil {
		unmapMemory(buf)
		return nil, fmt.Errorf("register %d bytes: %w", size, err)
	}
	pd.ctx.mu.Lock()
	defer pd.ctx.mu.Unlock()
	if pd.ctx.mapped == nil { // closed meanwhile
		unmapMemory(buf)
		return nil, ErrClosed
	}
	pd.ctx.mapped[m] = buf
	return m, nil
}

// checkAccess refuses what a peer could change and the owner not.
func checkAccess(a Access) error {
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 {
		return fmt.Errorf("%v needs local-write: %w", a, ErrInvalid)
	}
	return nil
}

func (m *MR) register() error {
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
	m.key = key
	v, err := m.view(m.pd, m.buf, m.access)
	if err == nil {
		err = keys.Publish(v)
	}
	if err != nil {
		_ = keys.Free(key.Index())
		c.unuse(&m.pd.handle)
		return err
	}
	m.addr, m.length = v.IOVA(), v.Length()
	return nil
}

// view makes what the device is to honour for the region.
func (m *MR) view(pd *PD, buf []byte, access Access) (*mr.View, error) {
	if len(buf) == 0 {
		return nil, fmt.Errorf("no memory: %w", ErrInvalid)
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	iova := mr.AddrOf(buf)
	if access&ZeroBased != 0 {
		iova = 0
	}
	list := mr.NewList(buf)
	if m.file {
		list = mr.NewMappedList(buf)
	}
	return mr.NewView(mr.Region{Key: m.key, PD: pd.num, Access: access, IOVA: iova,
		Length: uint64(len(buf)), List: list})
}

// ReregFlags say what Rereg changes (enum ibv_rereg_mr_flags).
type ReregFlags uint32

// What Rereg can change, with libibverbs' numbers.
const (
	ReregTranslation ReregFlags = 1 << iota // the memory
	ReregPD
	ReregAccess
)

// Rereg changes memory, domain or rights of a region of RegMR or AllocMR in one step
// (ibv_rereg_mr): a packet finds the old registration or the new one. The keys stay. When it
// returns nothing of the old one is in use any more: memory it has left is the application's,
// rights it has lost are gone. Arguments without their flag are not looked at. The region is
// unchanged after an error: ErrBusy while windows are bound to it, ErrInvalid for a fast region
// and as in RegMR, ErrForeign, ErrClosed, mr.ErrAccess.
func (m *MR) Rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	if err := m.rereg(flags, pd, buf, access); err != nil {
		return fmt.Errorf("register region %#x again: %w", uint32(m.key), err)
	}
	return nil
}

func (m *MR) rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	c := m.ctx
	if flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 || m.fast {
		return ErrInvalid
	}
	if flags&ReregPD == 0 {
		pd = m.pd
	}
	if flags&ReregTranslation == 0 {
		buf = m.buf
	}
	if flags&ReregAccess == 0 {
		access = m.access
	}
	if pd == nil {
		return ErrInvalid
	}
	v, err := m.view(pd, buf, access)
	if err != nil {
		return err
	}
	if err := c.use(&m.handle, &pd.handle); err != nil { // nobody ends it meanwhile
		return err
	}
	switch _, fault := c.dev.Keys().Rereg(v); fault {
	case mr.FaultNone:
	case mr.FaultBound:
		c.unuse(&m.handle, &pd.handle)
		return fmt.Errorf("windows are bound to it: %w", ErrBusy)
	default:
		c.unuse(&m.handle, &pd.handle)
		return fmt.Errorf("%v: %w", fault, ErrInvalid)
	}
	c.waitGrace()
	c.unuse(&m.handle, &m.pd.handle)
	m.pd, m.buf, m.access, m.addr, m.length = pd, buf, access, v.IOVA(), v.Length()
	return nil
}

// Bytes is the region's memory, nil for a fast region. After a completion about it the application
// may read and write it; while the device works on it, only LoadFlag may look.
func (m *MR) Bytes() []byte { return m.buf }

// Addr is the address of the first byte for SGEs and for peers (the IOVA); 0 with ZeroBased. Of a
// fast region, it is the one of the next registration.
func (m *MR) Addr() uint64 { return m.addr }

// Len is the region's size in bytes; of a fast region, what is mapped for the next registration.
func (m *MR) Len() int { return int(m.length) }

// LKey is the key for SGEs; of a fast region, the one of the next registration.
func (m *MR) LKey() Key { return m.key }

// RKey is the key for peers; of a fast region, the one of the next registration.
func (m *MR) RKey() Key { return m.key }

// Access returns the rights; of a fast region, those of the last REG_MR posted.
func (m *MR) Access() Access { return m.access }

// SGE names n bytes from offset off on, by the present key.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.addr + uint64(off), Length: uint32(n), LKey: m.key}
}

// Dereg takes the region away from the device, whatever its state (ibv_dereg_mr): when it returns,
// no shard reads or writes the memory any more, and work requests and peers that still name it
// fail. It fails with ErrBusy while memory windows are bound to the region. A second call does
// nothing.
func (m *MR) Dereg() error {
	return m.ctx.dropKey(&m.handle, m.pd, m.key.Index())
}

// Close is Dereg, and gives memory of AllocMR back to the system: Bytes must not be touched
// afterwards. While another region lies in this memory, or a fast region has it mapped for its next
// registration, the region is gone but its memory stays, and Close fails with ErrBusy: call
// it again later.
func (m *MR) Close() error {
	if err := m.Dereg(); err != nil {
		return err
	}
	c := m.ctx
	c.mu.Lock()
	buf := c.mapped[m] // nil: nothing of ours, or given back
	c.mu.Unlock()
	if buf == nil {
		return nil
	}
	if c.dev.Keys().Uses(buf) {
		return fmt.Errorf("unmap memory of region %#x: another region lies in it: %w", uint32(m.key),
			ErrBusy)
	}
	c.waitGrace() // for regions that were in it until just now
	c.mu.Lock()
	_, ours := c.mapped[m]
	delete(c.mapped, m)
	c.mu.Unlock()
	if ours {
		unmapMemory(buf)
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
