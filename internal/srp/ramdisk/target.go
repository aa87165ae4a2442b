package ramdisk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/internal/srp"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// Config describes a target. Zero fields take the default named.
type Config struct {
	Port      uint16     // RDMA-CM; srp.DefaultPort
	ID        srp.PortID // its own; zero: any that an initiator asks for
	Blocks    int        // 65536
	BlockSize int        // bytes; 512
	Credits   int        // requests of a channel at once; 32
	// Think is how long the target thinks about a READ or WRITE before it does anything; nil: not at
	// all. Several goroutines call it.
	Think func() time.Duration
	// CreditEvery makes a channel hold its credits back, and grant them by a CRED_REQ after so many
	// answers; 0: each answer grants its own.
	CreditEvery int
	// Spoil is how many READs bring a wrong byte.
	Spoil int
	// Silent makes the target take requests and never answer.
	Silent bool
}

// Target serves initiators.
type Target struct {
	cfg  Config
	dev  *verbs.Context
	l    *cm.Listener
	mem  []byte
	lock sync.RWMutex // of mem
	bad  atomic.Int64 // READs still to be spoiled

	mu       sync.Mutex
	channels map[*channel]struct{}
	wg       sync.WaitGroup

	Aborts atomic.Uint64 // commands that ABORT TASK has ended
}

// New makes a target that listens.
func New(dev *verbs.Context, m *cm.Manager, cfg Config) (*Target, error) {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&cfg.Blocks, 1<<16)
	def(&cfg.BlockSize, 512)
	def(&cfg.Credits, 32)
	if cfg.Port == 0 {
		cfg.Port = srp.DefaultPort
	}
	l, err := m.Listen(cfg.Port, nil)
	if err != nil {
		return nil, err
	}
	t := &Target{cfg: cfg, dev: dev, l: l, mem: make([]byte, cfg.Blocks*cfg.BlockSize),
		channels: map[*channel]struct{}{}}
	t.bad.Store(int64(cfg.Spoil))
	return t, nil
}

// Bytes is the disk. Nobody writes to it after Serve.
func (t *Target) Bytes() []byte { return t.mem }

// Poke writes to the disk behind its initiators' backs, while no command moves data.
func (t *Target) Poke(at int, b ...byte) {
	t.lock.Lock()
	defer t.lock.Unlock()
	copy(t.mem[at:], b)
}

// Serve takes logins until ctx ends, and ends all channels then.
func (t *Target) Serve(ctx context.Context) error {
	defer t.wg.Wait()
	defer t.l.Close()
	for {
		r, err := t.l.Accept(ctx)
		if err != nil {
			t.EndAll()
			if ctx.Err() != nil || errors.Is(err, cm.ErrClosed) {
				return nil
			}
			return err
		}
		t.wg.Go(func() { t.login(ctx, r) })
	}
}

// EndAll ends all channels, as a target that goes down does.
func (t *Target) EndAll() {
	t.mu.Lock()
	var all []*channel
	for c := range t.channels {
		all = append(all, c)
	}
	t.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(c.leave)
	}
	wg.Wait()
}

// reject refuses a login.
func reject(r *cm.Request, tag uint64, why srp.LoginReason) {
	rej := srp.LoginRej{Tag: tag, Reason: why, Formats: srp.FormatDirect | srp.FormatIndirect}
	_ = r.Reject(rej.Encode()) // the initiator may have given up
}

// login grants a channel, or refuses it.
func (t *Target) login(ctx context.Context, r *cm.Request) {
	var q srp.LoginReq
	if err := q.Decode(r.Private()); err != nil {
		reject(r, 0, srp.LoginUnableToEstablish)
		return
	}
	switch {
	case t.cfg.ID != srp.PortID{} && q.Target != t.cfg.ID:
		reject(r, q.Tag, srp.LoginUnableToAssociate)
		return
	case q.MaxITIU > unitSize:
		reject(r, q.Tag, srp.LoginUnitTooLong)
		return
	}
	result := uint8(0)
	if t.others(q.Initiator, !q.Multi) {
		result = 1
		if q.Multi {
			result = 2
		}
	}
	c, err := newChannel(t, q.Initiator)
	if err != nil {
		reject(r, q.Tag, srp.LoginNoResources)
		return
	}
	defer c.destroy()
	rsp := srp.LoginRsp{Tag: q.Tag, Credits: uint32(t.cfg.Credits), MaxITIU: unitSize,
		MaxTIIU: unitSize,
		Formats: srp.FormatDirect | srp.FormatIndirect, Result: result}
	if c.conn, err = r.Accept(ctx, c.qp, &cm.Params{Private: rsp.Encode()}); err != nil {
		return
	}
	t.mu.Lock()
	t.channels[c] = struct{}{}
	t.mu.Unlock()
	c.serve()
	t.mu.Lock()
	delete(t.channels, c)
	t.mu.Unlock()
}

// others says whether an initiator port has channels, and ends them if asked to.
func (t *Target) others(port srp.PortID, end bool) (found bool) {
	t.mu.Lock()
	var all []*channel
	for c := range t.channels {
		if c.port == port {
			all = append(all, c)
		}
	}
	t.mu.Unlock()
	for _, c := range all {
		if end {
			t.wg.Go(c.leave)
		}
	}
	return len(all) > 0
}

// inquiry is what the disk says of itself.
func (t *Target) inquiry() []byte {
	return srp.Inquiry{Vendor: "ROXIE", Product: "RAMDISK", Revision: "1"}.Encode()
}

// transfer moves a command's data between the disk and memory.
func (t *Target) transfer(x srp.Transfer, b []byte) {
	disk := t.mem[x.LBA*uint64(t.cfg.BlockSize):]
	if x.Write {
		t.lock.Lock()
		copy(disk, b)
		t.lock.Unlock()
		return
	}
	t.lock.RLock()
	copy(b, disk)
	t.lock.RUnlock()
	if t.cfg.Spoil > 0 && t.bad.Add(-1) >= 0 {
		b[len(b)-1] ^= 1
	}
}

// errSense is why a command is refused.
type errSense srp.Sense

func (e errSense) Error() string { return fmt.Sprint(srp.Sense(e)) }

var (
	errOpcode    = errSense{Key: srp.SenseIllegalRequest, ASC: 0x20}
	errRange     = errSense{Key: srp.SenseIllegalRequest, ASC: 0x21}
	errField     = errSense{Key: srp.SenseIllegalRequest, ASC: 0x24}
	errUnit      = errSense{Key: srp.SenseIllegalRequest, ASC: 0x25}
	errAttention = errSense{Key: srp.SenseUnitAttention, ASC: 0x29}
)
