package rxe

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Limits of a device, as rxe's where it has one.
const (
	MaxShards   = 64
	MaxRdAtomic = 128
	PKeyDefault = 0xffff
	QPNGSI      = wire.QPN(1)
	QPNMulti    = wire.QPN(0xffffff)
	QKeyGSI     = 0x80010000
	firstQPN    = 17
)

// Config sets up a Device. Zero values take the defaults named.
type Config struct {
	Shards    int           // 1..64, default 1
	Keys      *mr.Table     // default: a table of its own
	Grace     *mr.Grace     // default: one over Shards
	Rand      func() uint64 // required: seeds QPN allocation; the engine has no other randomness
	MaxPMTU   uint32        // largest path MTU of the port in bytes, default 4096
	MaxQP     int           // QPs per shard at most, 1..2^20, default 65536
	Window    uint32        // packets in flight per QP at most, 1..2^22, default 128
	MinWindow uint32        // of these a QP may always have, whatever is lost: 1..Window, default 2
	NoProbe   bool          // plain go-back-N: only NAKs and the ACK timeout make a QP send again
	Budget    uint32        // chunks in flight of all RC QPs of a shard together, default 2 × Window
	VLAN      uint16        // tag of the port's datagrams, 0 = none; connections bring their own
	AckEvery  uint32        // AckReq at least every so many packets, default 64
	Credits   bool          // responders advertise receive credits (IBTA 9.7.7.2) instead of "not given"
	Handover  uint32        // frames between two shards, power of two, default 256
}

func (c *Config) validate() error {
	def := func(v *uint32, d uint32) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Shards == 0 {
		c.Shards = 1
	}
	if c.Shards < 0 || c.Shards > MaxShards {
		return fmt.Errorf("%d shards: must be 1..%d", c.Shards, MaxShards)
	}
	if c.Rand == nil {
		return errors.New("Config.Rand is required")
	}
	def(&c.MaxPMTU, 4096)
	def(&c.Window, 128)
	def(&c.MinWindow, min(windowMin, c.Window))
	def(&c.Budget, 2*c.Window)
	def(&c.AckEvery, 64)
	def(&c.Handover, 256)
	if c.MaxQP == 0 {
		c.MaxQP = 1 << 16
	}
	if !validPMTU(c.MaxPMTU) || c.MaxQP < 1 || c.MaxQP > 1<<20 || c.Window > 1<<22 ||
		c.VLAN > 4094 || c.MinWindow > c.Window || c.Handover != ringSlots(c.Handover) {
		return errors.New("Config: PMTU, QP limit, window or hand-over size out of range")
	}
	if c.Grace == nil {
		c.Grace = mr.NewGrace(c.Shards)
	}
	if c.Keys == nil {
		c.Keys = mr.New(mr.MaxLimit, uint32(c.Rand()), c.Grace)
	}
	return nil
}

// Device is one RoCE port: shards, and the tables they share. Tables are written by control calls
// and read by every shard through atomic loads.
type Device struct {
	cfg     Config
	keys    *mr.Table
	grace   *mr.Grace
	shards  []*Shard
	qps     qpTable
	gids    atomic.Pointer[[]wire.GID]
	groups  atomic.Pointer[map[wire.GID][]*QP]
	ahs     ahTable
	nextCQ  atomic.Uint32
	portMTU atomic.Uint32 // largest path MTU at present
	mu      sync.Mutex    // control calls that change shared tables; never taken by the packet path
}

// NewDevice makes the engine of one port. now is the driver's time.
func NewDevice(cfg Config, now Time) (*Device, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("rxe device: %w", err)
	}
	d := &Device{cfg: cfg, keys: cfg.Keys, grace: cfg.Grace}
	d.qps.next = firstQPN + wire.QPN(cfg.Rand()%(1<<23))
	d.gids.Store(new([]wire.GID))
	d.portMTU.Store(cfg.MaxPMTU)
	groups := map[wire.GID][]*QP{}
	d.groups.Store(&groups)
	for i := range cfg.Shards {
		d.shards = append(d.shards, newShard(d, i, now))
	}
	for _, s := range d.shards {
		s.inbound = make([]*handover, cfg.Shards)
		for j := range s.inbound {
			s.inbound[j] = newHandover(cfg.Handover)
		}
	}
	return d, nil
}

// Shards are the device's shards.
func (d *Device) Shards() []*Shard { return d.shards }

// Keys is the hardware key table.
func (d *Device) Keys() *mr.Table { return d.keys }

// Grace is the reclamation clock over the shards.
func (d *Device) Grace() *mr.Grace { return d.grace }

// Config is what the device was made with, defaults filled in.
func (d *Device) Config() Config { return d.cfg }

// SetGIDs replaces the port's addresses: where datagrams may be sent to. Any goroutine.
func (d *Device) SetGIDs(gids []wire.GID) {
	g := append([]wire.GID(nil), gids...)
	d.gids.Store(&g)
}

func (d *Device) local(g *wire.GID) bool {
	for i, gids := 0, *d.gids.Load(); i < len(gids); i++ {
		if gids[i] == *g {
			return true
		}
	}
	return false
}

// qpTable maps a 24-bit QPN to its QP by two array look-ups. Numbers are given out cyclically, so
// that a late packet of a dead QP does not find a new one; chunks no QP lives in are dropped.
type qpTable struct {
	chunks [1 << 12]atomic.Pointer[qpChunk]
	next   wire.QPN
	count  int
}

type qpChunk struct {
	qp   [1 << 12]atomic.Pointer[QP]
	live int
}

func (t *qpTable) get(n wire.QPN) *QP {
	c := t.chunks[n>>12&0xfff].Load()
	if c == nil {
		return nil
	}
	return c.qp[n&0xfff].Load()
}

func (t *qpTable) put(n wire.QPN, q *QP) {
	c := t.chunks[n>>12].Load()
	if c == nil {
		c = new(qpChunk)
		t.chunks[n>>12].Store(c)
	}
	c.qp[n&0xfff].Store(q)
	c.live++
	t.count++
}

func (t *qpTable) remove(n wire.QPN) {
	c := t.chunks[n>>12].Load()
	c.qp[n&0xfff].Store(nil)
	t.count--
	if c.live--; c.live == 0 {
		t.chunks[n>>12].Store(nil)
	}
}

// maxQPs is how many QPs a device can have: half of the numbers, so that none is used again soon.
const maxQPs = 1 << 23

// alloc finds the next free number. There is one as long as there are no more than maxQPs.
func (t *qpTable) alloc() wire.QPN {
	for {
		n := t.next
		t.next++
		if t.next >= QPNMulti {
			t.next = firstQPN
		}
		if t.get(n) == nil {
			return n
		}
	}
}

// QPByNumber finds a live QP. Any goroutine.
func (d *Device) QPByNumber(n wire.QPN) *QP { return d.qps.get(n & 0xffffff) }

// QPCount is how many QPs exist.
func (d *Device) QPCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.qps.count
}
