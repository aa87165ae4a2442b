package rxe

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// QPInit is what a QP is created with.
type QPInit struct {
	Type      QPType
	PD        mr.PD
	SendCQ    *CQ
	RecvCQ    *CQ
	SRQ       *SRQ   // RC, UC, UD: receives come from here instead of a queue of its own
	MaxSendWR uint32 // depth of the send queue, 0..2^20
	MaxRecvWR uint32 // depth of the receive queue
	MaxSend   uint32 // SGEs per send WR, 1..32
	MaxRecv   uint32 // SGEs per receive WR
	MaxInline uint32 // bytes, 0..1024
	SigAll    bool   // every send WR makes a completion
	Context   any    // the driver's handle, returned by QP.Context
}

// Errors of the control path.
var (
	ErrQPLimit  = errors.New("shard holds as many QPs as it may")
	ErrQPType   = errors.New("QP type is not supported")
	ErrQPCap    = errors.New("QP capability is out of range")
	ErrGSIInUse = errors.New("GSI QP exists already")
	ErrSRQShard = errors.New("SRQ lives on another shard")
	ErrNoCQ     = errors.New("QP needs a completion queue")
)

// QP is a queue pair: attributes, the three roles' private state, and its place in the shard.
type QP struct {
	// Links of the shard's lists, first because they are touched most.
	link        [numLists]qpLink
	burst       uint8
	turn        bool // responder and requester alternate
	graceQueued bool
	dead        bool // destroyed
	hungry      bool // the shard's budget kept it from sending

	dev    *Device
	shard  *Shard
	qpn    QPN
	typ    QPType
	pd     mr.PD
	sendCQ *CQ
	recvCQ *CQ
	srq    *SRQ
	bell   uint32
	pmtu   uint32
	sigAll bool

	state    QPState
	appState atomic.Uint32 // copy of state for posters
	attr     QPAttr
	tmpl     wire.Template
	timer    timerNode
	init     QPInit

	req  requester
	resp responder

	SQ Queue // produced by the application
	RQ Queue

	Stats   QPCounters
	lastErr LastError
}

// CreateQP makes a QP on a shard, in state RESET. The shard must be held.
func (d *Device) CreateQP(s *Shard, in QPInit) (*QP, error) {
	if err := checkQPInit(s, &in); err != nil {
		return nil, fmt.Errorf("create %v QP: %w", in.Type, err)
	}
	q := &QP{
		dev: d, shard: s, typ: in.Type, pd: in.PD, sendCQ: in.SendCQ, recvCQ: in.RecvCQ,
		srq: in.SRQ, sigAll: in.SigAll, init: in,
	}
	q.timer = timerNode{qp: q, at: Never, level: -1}
	if !s.bells.slot(q) {
		return nil, fmt.Errorf("create %v QP: %w", in.Type, ErrQPLimit)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.qps.count >= maxQPs {
		s.bells.release(q)
		return nil, fmt.Errorf("create %v QP: %w", in.Type, ErrQPLimit)
	}
	if in.Type == GSI {
		if d.qps.get(QPNGSI) != nil {
			s.bells.release(q)
			return nil, fmt.Errorf("create GSI QP: %w", ErrGSIInUse)
		}
		q.qpn = QPNGSI
	} else {
		q.qpn = d.qps.alloc()
	}
	q.sendCQ.attach(s.ID)
	q.recvCQ.attach(s.ID)
	q.SQ = NewQueue(max(in.MaxSendWR, 1), sendStride(in.MaxSend, in.MaxInline))
	q.SQ.depth = in.MaxSendWR
	if in.SRQ == nil {
		q.RQ = NewQueue(max(in.MaxRecvWR, 1), recvStride(in.MaxRecv))
		q.RQ.depth = in.MaxRecvWR
		q.resp.sges = make([]SGE, in.MaxRecv)
	} else {
		q.resp.sges = make([]SGE, in.SRQ.maxSGE)
		in.SRQ.users++
	}
	q.reset()
	d.qps.put(q.qpn, q)
	s.qps++
	return q, nil
}

func checkQPInit(s *Shard, in *QPInit) error {
	switch in.Type {
	case RC, UC, UD, GSI:
	default:
		return ErrQPType
	}
	if in.SendCQ == nil || in.RecvCQ == nil {
		return ErrNoCQ
	}
	if in.MaxSendWR > MaxQPDepth || in.MaxRecvWR > MaxQPDepth || in.MaxSend > MaxSGE ||
		in.MaxRecv > MaxSGE || in.MaxInline > MaxInline || in.PD == 0 {
		return ErrQPCap
	}
	if in.SRQ != nil && in.SRQ.shard != s {
		return ErrSRQShard
	}
	in.MaxSend, in.MaxRecv = max(in.MaxSend, 1), max(in.MaxRecv, 1)
	return nil
}

// DestroyQP takes the QP out of the device. Completions it has made stay in its CQs. The shard
// must be held; afterwards the QP's windows are gone and its buffers are the application's.
func (d *Device) DestroyQP(q *QP) {
	if q.dead {
		return
	}
	q.dead = true
	s := q.shard
	q.setState(StateReset)
	q.discard()
	s.inFlight -= q.req.counted
	q.req.counted = 0
	s.unlist(q)
	s.wheel.remove(&q.timer)
	s.bells.release(q)
	for i, w := range s.waiting {
		if w == q {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			break
		}
	}
	if q.srq != nil {
		q.srq.users--
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.detachAll(q)
	d.qps.remove(q.qpn)
	d.keys.UnbindQP(uint32(q.qpn))
	s.qps--
}

// QPN is the QP's number.
func (q *QP) QPN() QPN { return q.qpn }

// Type is the QP's transport service.
func (q *QP) Type() QPType { return q.typ }

// Shard is the shard the QP lives on.
func (q *QP) Shard() *Shard { return q.shard }

// Context is the driver's handle from QPInit.
func (q *QP) Context() any { return q.init.Context }

// Init is what the QP was created with.
func (q *QP) Init() QPInit { return q.init }

// State is the QP's state. Any goroutine; another may change it at once.
func (q *QP) State() QPState { return QPState(q.appState.Load()) }

// Query returns the current attributes. The shard must be held.
func (q *QP) Query() QPAttr {
	a := q.attr
	a.State, a.CurState = q.state, q.state
	a.SQPSN, a.RQPSN = q.req.psn, q.resp.psn
	return a
}

func (q *QP) setState(s QPState) {
	q.state = s
	q.appState.Store(uint32(s))
}

// reset puts everything but the creation parameters to its initial value; posted work is dropped
// without completions (IBTA 10.3.1.1).
func (q *QP) reset() {
	q.setState(StateReset)
	q.attr = QPAttr{Port: 1}
	if q.typ == GSI {
		q.attr.QKey = QKeyGSI
	}
	q.pmtu = q.dev.portMTU.Load()
	q.shard.unlist(q)
	q.shard.wheel.clear(&q.timer)
	q.discard()
	q.SQ.cons.Store(q.SQ.prod.Load())
	if q.srq == nil {
		q.RQ.cons.Store(q.RQ.prod.Load())
	}
	q.req.reset(q)
	q.resp.reset(q)
}

// Modify changes the QP's state and attributes as libibverbs' ibv_modify_qp. The shard must be
// held. Errors are *AttrError or wrap ErrAttrValue; the QP is unchanged then.
func (q *QP) Modify(a *QPAttr, mask AttrMask) error {
	if q.dead {
		return fmt.Errorf("QP is destroyed: %w", ErrBadState)
	}
	from, to := q.state, q.state
	if mask&AttrState != 0 {
		to = a.State
	}
	if mask&AttrCurState != 0 && a.CurState != from {
		return fmt.Errorf("CUR_STATE %v, QP is in %v: %w", a.CurState, from, ErrAttrValue)
	}
	if err := checkTransition(q.typ, from, to, mask); err != nil {
		return err
	}
	if err := checkAttrValues(q.dev, a, mask); err != nil {
		return err
	}
	if from == StateSQD && q.req.draining && to != StateErr && to != StateReset {
		return fmt.Errorf("send queue is draining: %w", ErrBadState)
	}
	if n := q.resp.unanswered(); mask&AttrMaxDestRdAtomic != 0 && int(a.MaxDestRdAtomic) < n {
		return fmt.Errorf("MAX_DEST_RD_ATOMIC %d: the peer has %d requests outstanding: %w",
			a.MaxDestRdAtomic, n, ErrBadState)
	}
	if to == StateReset {
		q.reset()
		return nil
	}
	q.apply(a, mask)
	q.enter(from, to)
	return nil
}

// apply stores the attributes of mask.
func (q *QP) apply(a *QPAttr, mask AttrMask) {
	cur := &q.attr
	set := func(bit AttrMask, f func()) {
		if mask&bit != 0 {
			f()
		}
	}
	if a.State == StateSQD && mask&AttrState != 0 { // asked for anew each time
		cur.EnSQDAsyncNotify = mask&AttrEnSQDAsyncNotify != 0 && a.EnSQDAsyncNotify
	}
	set(AttrAccessFlags, func() { cur.AccessFlags = a.AccessFlags })
	set(AttrPKeyIndex, func() { cur.PKeyIndex = a.PKeyIndex })
	set(AttrPort, func() { cur.Port = a.Port })
	set(AttrQKey, func() {
		if q.typ != GSI { // whose Q_Key is fixed
			cur.QKey = a.QKey
		}
	})
	set(AttrAV, func() { cur.AV = a.AV })
	set(AttrPathMTU, func() { cur.PathMTU, q.pmtu = a.PathMTU, a.PathMTU })
	set(AttrTimeout, func() { cur.Timeout = a.Timeout })
	set(AttrRetryCnt, func() { cur.RetryCnt = a.RetryCnt })
	set(AttrRNRRetry, func() { cur.RNRRetry = a.RNRRetry })
	set(AttrMaxQPRdAtomic, func() { cur.MaxQPRdAtomic = a.MaxQPRdAtomic })
	set(AttrMinRNRTimer, func() { cur.MinRNRTimer = a.MinRNRTimer })
	set(AttrDestQPN, func() { cur.DestQPN = a.DestQPN })
	set(AttrRQPSN, func() { cur.RQPSN, q.resp.psn = a.RQPSN, a.RQPSN })
	set(AttrSQPSN, func() {
		cur.SQPSN = a.SQPSN
		q.req.start(a.SQPSN)
	})
	set(AttrMaxDestRdAtomic, func() {
		cur.MaxDestRdAtomic = a.MaxDestRdAtomic
		q.resp.resize(int(a.MaxDestRdAtomic))
	})
	if mask&(AttrAV|AttrDestQPN) != 0 && !q.typ.datagram() {
		q.tmpl.Init(&cur.AV.Path, cur.DestQPN, PKeyDefault)
	}
	if mask&(AttrTimeout|AttrRetryCnt|AttrRNRRetry) != 0 {
		q.req.resetRetries(q)
	}
}

// enter carries out what a state begins with.
func (q *QP) enter(from, to QPState) {
	if to == StateErr {
		q.toError()
		return
	}
	q.setState(to)
	switch {
	case to == StateRTS && from != StateRTS:
		q.req.draining, q.req.ended = false, false
		q.shard.wantSend(q)
	case to == StateSQD && from != StateSQD:
		q.req.draining = true
		q.checkDrained()
	}
}

// RingDoorbell tells the shard that work was posted. Any goroutine, after publishing. The caller
// wakes the shard's driver if it sleeps.
func (q *QP) RingDoorbell() { q.shard.bells.ring(q.bell) }

// belled is the shard's answer to a doorbell.
func (q *QP) belled() {
	if q.state == StateErr || q.state == StateSQE {
		q.flush()
		return
	}
	q.shard.wantRequest(q)
}

// receive judges a packet that is addressed to this QP, then hands it to its role.
func (q *QP) receive(p *wire.Packet) {
	if p.Info.Service != q.service() {
		q.drop(ReasonQPType)
		return
	}
	if q.state < StateRTR || q.state == StateErr {
		q.drop(ReasonQPState)
		return
	}
	if p.PKey&0x7fff != PKeyDefault&0x7fff {
		q.drop(ReasonPKey)
		return
	}
	if q.typ.datagram() {
		q.receiveUD(p)
		return
	}
	if av := &q.attr.AV.Path; p.Src != av.Dst || p.Dst != av.Src || p.VLAN != av.VLAN && (p.VLAN > 0 || av.VLAN > 0) {
		q.drop(ReasonAddress)
		return
	}
	q.Stats.RcvdPkts++
	q.Stats.RcvdBytes += uint64(p.PayloadLen)
	if p.Info.Flags&wire.FlagResponse != 0 {
		q.complete(p)
		return
	}
	if q.typ == UC {
		q.respondUC(p)
		return
	}
	q.respond(p)
}

func (q *QP) service() wire.Service {
	switch q.typ {
	case RC:
		return wire.RC
	case UC:
		return wire.UC
	}
	return wire.UD
}

func (q *QP) drop(r Reason) {
	q.shard.C.Drops[r]++
	q.Stats.Drops++
	q.Stats.LastDrop = r
}

// transmit fills f with one frame of this QP, or sends one round inside the device and returns 0.
// more tells whether there may be another one: false where it is plain that there is none.
func (q *QP) transmit(f Frame) (n int, more bool) {
	if !q.attr.AV.Loopback || q.typ.datagram() {
		if n, more = q.nextFrame(f); n < 0 {
			return 0, true
		}
		return n, more
	}
	to := q.peerShard()
	if to == nil {
		// Nobody there: the frame is built and lost, as on a wire.
		n, more = q.nextFrame(f)
		if n > 0 {
			q.shard.C.Drops[ReasonNoQP]++
		}
		return 0, more
	}
	h := to.inbound[q.shard.ID]
	slot := h.next(q.tmpl.BTHOffset() + maxTransport + int(q.pmtu))
	if slot == nil {
		return 0, true // full: the QP stays ready until the other shard has drained it
	}
	n, more = q.nextFrame(Frame{Head: slot.buf[:cap(slot.buf)]})
	if n > 0 {
		h.commit(n, q.attr.DestQPN)
		q.shard.C.Loopbacks++
		q.shard.wake |= 1 << to.ID
	}
	return 0, more
}

func (q *QP) peerShard() *Shard {
	if q.attr.AV.Nowhere {
		return nil
	}
	if peer := q.dev.qps.get(q.attr.DestQPN); peer != nil {
		return peer.shard
	}
	return nil
}

// maxTransport is room for BTH, the longest extension headers, pad and ICRC.
const maxTransport = 12 + 28 + 4 + 3 + 4 + 4

// nextFrame takes turns between the two roles, one packet each: a long stream of READ responses
// does not hold up requests, nor the reverse. An owed ACK goes last, behind the requests that an
// application may have posted in answer (it rides in the same kick).
func (q *QP) nextFrame(f Frame) (n int, more bool) {
	urgent := q.typ == RC && q.resp.urgent()
	q.turn = !q.turn
	if urgent && q.turn {
		n = q.nextResponse(f)
	}
	if n == 0 {
		n = q.nextRequest(f)
	}
	if n == 0 && q.typ == RC {
		n = q.nextResponse(f)
	} else if q.burst >= burstPackets-2 && q.resp.ackOwed && q.typ == RC {
		more = true
		q.ackNext()
		return n, more
	}
	return n, n != 0 && (q.hasRequests() || q.resp.owes())
}

// ackNext makes sure that an ACK owed for long is not starved by a stream of requests.
func (q *QP) ackNext() { q.turn = false; q.resp.force = true }

// toError moves the QP to ERR: timers stop and everything posted is flushed (IBTA 10.3.1.7). The
// responder may still owe the NAK that says why.
func (q *QP) toError() {
	if q.state == StateErr {
		return
	}
	q.setState(StateErr)
	q.shard.wheel.clear(&q.timer)
	q.req.stopped(q)
	q.resp.stopped()
	q.resp.lastWQE = q.srq != nil
	q.flush()
}
