package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe"
)

// QPCap are the sizes of a QP's queues (struct ibv_qp_cap).
type QPCap struct {
	MaxSendWR  int // work requests outstanding, 0 to 2^20
	MaxRecvWR  int
	MaxSendSGE int // SGEs a work request, 1 to 32 (0: 1)
	MaxRecvSGE int
	MaxInline  int // bytes, 0 to 1024
}

// QPInitAttr is what a QP is created with (struct ibv_qp_init_attr).
type QPInitAttr struct {
	Type   QPType
	SendCQ *CQ
	RecvCQ *CQ
	SRQ    *SRQ // if set, receives come from it; the QP then lives on its shard
	Cap    QPCap
	SigAll bool // every send work request makes a completion
	// Shard is the queue the QP lives on, from 0; negative takes one after the other. With an SRQ it
	// is not looked at.
	Shard int
}

// AHAttr is a way to a peer (struct ibv_ah_attr).
type AHAttr struct {
	DGID         GID
	SGIDIndex    int // index of the own address in the GID table
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits; 0: none on the wire, the UDP source port comes from the QPNs
	HopLimit     uint8  // 0: 64
}

// QPAttr are the attributes of a QP (struct ibv_qp_attr). Units and ranges are libibverbs', but for
// PathMTU, which is in bytes.
type QPAttr struct {
	State            QPState
	CurState         QPState
	EnSQDAsyncNotify bool
	AccessFlags      Access // what the peer may do
	PKeyIndex        uint16 // 0
	Port             uint8  // 1
	QKey             uint32 // UD
	AH               AHAttr // AttrAV
	PathMTU          int    // payload bytes: 256, 512, 1024, 2048, 4096
	Timeout          uint8  // 0 to 31: 4.096 µs × 2^n, 0 = never
	RetryCnt         uint8  // 0 to 7
	RNRRetry         uint8  // 0 to 7, 7 = for ever
	RQPSN            PSN
	SQPSN            PSN
	MaxQPRdAtomic    uint8 // own READs and atomics in flight, 0 to 128
	MaxDestRdAtomic  uint8 // the peer's
	MinRNRTimer      uint8 // 0 to 31, code of the RNR timer table
	DestQPN          QPN
}

// QP is a queue pair (struct ibv_qp).
type QP struct {
	handle
	qp       *rxe.QP
	pd       *PD
	init     QPInitAttr
	poller   *poller
	datagram bool

	sendMu sync.Mutex // posters
	recvMu sync.Mutex

	way way // to the peer of a connection; the shard is held

	onEstablished atomic.Pointer[func()]
}

// CreateQP makes a QP in state RESET (ibv_create_qp). Errors: ErrForeign, ErrInvalid, rxe.ErrQPCap,
// rxe.ErrQPType, rxe.ErrQPLimit, rxe.ErrGSIInUse, rxe.ErrSRQShard, ErrClosed.
func (c *Context) CreateQP(pd *PD, a *QPInitAttr) (*QP, error) {
	if pd == nil || a == nil || a.SendCQ == nil || a.RecvCQ == nil {
		return nil, fmt.Errorf("create QP: no PD or no CQ: %w", ErrInvalid)
	}
	q := &QP{handle: handle{ctx: c}, pd: pd, init: *a, datagram: a.Type == UD || a.Type == GSI}
	in, err := q.engineInit()
	if err == nil {
		err = c.use(q.needs()...)
	}
	if err != nil {
		return nil, fmt.Errorf("create %v QP: %w", a.Type, err)
	}
	if q.poller, err = c.place(a); err == nil {
		unlock := lockCQs(a.SendCQ, a.RecvCQ)
		q.poller.hold()
		q.qp, err = c.dev.CreateQP(q.poller.shard, in)
		q.poller.release()
		unlock()
	}
	if err != nil {
		c.unuse(q.needs()...)
		return nil, fmt.Errorf("create %v QP: %w", a.Type, err)
	}
	bit := uint64(1) << q.poller.index
	a.SendCQ.shards.Or(bit)
	a.RecvCQ.shards.Or(bit)
	c.mu.Lock()
	c.qps[q] = struct{}{}
	c.mu.Unlock()
	return q, nil
}

// needs are the objects the QP keeps alive.
func (q *QP) needs() []*handle {
	h := []*handle{&q.pd.handle, &q.init.SendCQ.handle, &q.init.RecvCQ.handle}
	if q.init.SRQ != nil {
		h = append(h, &q.init.SRQ.handle)
	}
	return h
}

// lockCQs keeps pollers of one or two CQs away, in an order of its own.
func lockCQs(a, b *CQ) (unlock func()) {
	if a == b {
		a.mu.Lock()
		return a.mu.Unlock
	}
	if a.cq.Num > b.cq.Num {
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
	return func() {
		b.mu.Unlock()
		a.mu.Unlock()
	}
}

// engineInit checks the capabilities' signs and turns them into the engine's.
func (q *QP) engineInit() (rxe.QPInit, error) {
	a := &q.init
	for _, n := range []int{a.Cap.MaxSendWR, a.Cap.MaxRecvWR, a.Cap.MaxSendSGE, a.Cap.MaxRecvSGE,
		a.Cap.MaxInline} {
		if n < 0 || n > rxe.MaxQPDepth {
			return rxe.QPInit{}, fmt.Errorf("capability %d: %w", n, ErrInvalid)
		}
	}
	a.Cap.MaxSendSGE, a.Cap.MaxRecvSGE = max(a.Cap.MaxSendSGE, 1), max(a.Cap.MaxRecvSGE, 1)
	in := rxe.QPInit{
		Type: a.Type, PD: q.pd.num, SendCQ: a.SendCQ.cq, RecvCQ: a.RecvCQ.cq,
		MaxSendWR: uint32(a.Cap.MaxSendWR), MaxRecvWR: uint32(a.Cap.MaxRecvWR),
		MaxSend: uint32(a.Cap.MaxSendSGE), MaxRecv: uint32(a.Cap.MaxRecvSGE),
		MaxInline: uint32(a.Cap.MaxInline), SigAll: a.SigAll, Context: q,
	}
	if a.SRQ != nil {
		in.SRQ = a.SRQ.srq
	}
	return in, nil
}

// place chooses the shard of a new QP.
func (c *Context) place(a *QPInitAttr) (*poller, error) {
	switch {
	case a.SRQ != nil:
		return a.SRQ.poller, nil
	case a.Shard >= len(c.pollers):
		return nil, fmt.Errorf("shard %d: the device has %d: %w", a.Shard, len(c.pollers), ErrInvalid)
	case a.Shard >= 0:
		return c.pollers[a.Shard], nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pollers[c.nextShard]
	c.nextShard = (c.nextShard + 1) % len(c.pollers)
	return p, nil
}

// Num is the QP's number, which peers address.
func (q *QP) Num() QPN { return q.qp.QPN() }

// Type is the QP's transport service.
func (q *QP) Type() QPType { return q.init.Type }

// PD is the protection domain the QP was created in.
func (q *QP) PD() *PD { return q.pd }

// Shard is the number of the queue the QP lives on, from 0.
func (q *QP) Shard() int { return q.poller.index }

// State is the QP's state, which may change at any time.
func (q *QP) State() QPState { return q.qp.State() }

// Modify changes state and attributes (ibv_modify_qp). Setting AttrAV looks up the route and the
// neighbour, which may take up to netdev.ResolveTimeout. The QP is unchanged after an error:
// *AttrError for attributes that are missing or not allowed, else one that wraps ErrAttrValue,
// ErrBadState or tells why the peer cannot be reached.
func (q *QP) Modify(a *QPAttr, mask AttrMask) error {
	e := rxe.QPAttr{
		State: a.State, CurState: a.CurState, EnSQDAsyncNotify: a.EnSQDAsyncNotify,
		AccessFlags: a.AccessFlags, PKeyIndex: a.PKeyIndex, Port: a.Port, QKey: a.QKey,
		PathMTU: uint32(max(a.PathMTU, 0)), Timeout: a.Timeout, RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry,
		RQPSN:    a.RQPSN, SQPSN: a.SQPSN, MaxQPRdAtomic: a.MaxQPRdAtomic,
		MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, DestQPN: a.DestQPN,
	}
	if mask&AttrPathMTU != 0 {
		if err := q.ctx.checkPMTU(a, mask); err != nil {
			return fmt.Errorf("modify QP %#x: %w", q.Num(), err)
		}
	}
	var w way
	if mask&AttrAV != 0 && !q.datagram {
		dest := a.DestQPN
		if mask&AttrDestQPN == 0 {
			dest = q.query().DestQPN
		}
		var err error
		if w, err = q.ctx.findWay(&a.AH, q.Num(), dest); err != nil {
			return fmt.Errorf("modify QP %#x: %w", q.Num(), err)
		}
		e.AV = w.av
	}
	q.poller.hold()
	defer q.poller.release()
	if q.poller.shut {
		return ErrClosed
	}
	if err := q.qp.Modify(&e, mask); err != nil {
		return fmt.Errorf("modify QP %#x: %w", q.Num(), err)
	}
	if mask&AttrAV != 0 {
		q.way = w
	}
	return nil
}

func (q *QP) query() rxe.QPAttr {
	q.poller.hold()
	defer q.poller.release()
	return q.qp.Query()
}

// Query returns the current attributes and what the QP was created with (ibv_query_qp).
func (q *QP) Query() (QPAttr, QPInitAttr) {
	q.poller.hold()
	e, ah := q.qp.Query(), q.way.attr
	q.poller.release()
	return QPAttr{
		State: e.State, CurState: e.CurState, EnSQDAsyncNotify: e.EnSQDAsyncNotify,
		AccessFlags: e.AccessFlags, PKeyIndex: e.PKeyIndex, Port: e.Port, QKey: e.QKey, AH: ah,
		PathMTU: int(e.PathMTU), Timeout: e.Timeout, RetryCnt: e.RetryCnt, RNRRetry: e.RNRRetry,
		RQPSN: e.RQPSN, SQPSN: e.SQPSN, MaxQPRdAtomic: e.MaxQPRdAtomic,
		MaxDestRdAtomic: e.MaxDestRdAtomic, MinRNRTimer: e.MinRNRTimer, DestQPN: e.DestQPN,
	}, q.init
}

// Stats returns the QP's counters.
func (q *QP) Stats() rxe.QPCounters {
	q.poller.hold()
	defer q.poller.release()
	return q.qp.Stats
}

// Destroy ends the QP (ibv_destroy_qp). When it returns, the device touches none of its buffers any
// more; completions it has made can still be polled, others will not come. A second call does
// nothing.
func (q *QP) Destroy() error {
	if first, err := q.bury(); err != nil || !first {
		return err
	}
	q.ctx.mu.Lock()
	delete(q.ctx.qps, q)
	q.ctx.mu.Unlock()
	q.poller.hold()
	q.ctx.dev.DestroyQP(q.qp)
	q.poller.release()
	q.ctx.groups.leaveAll(q)
	q.ctx.waitGrace()
	q.ctx.unuse(q.needs()...)
	return nil
}
