package verbs

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe"
)

// ErrCQOverflow is returned by Poll and Wait when more completions came than the CQ holds: some are
// lost, and the QPs that made them are in state ERR.
var ErrCQOverflow = errors.New("completion queue overflowed: make it as deep as all work it serves")

// WC is a work completion (struct ibv_wc). With a Status other than WCSuccess only WRID, Status,
// QPN and VendorErr are valid.
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode
	Flags     WCFlags
	VendorErr Reason // why, in more detail than Status
	ByteLen   uint32 // receives, READs and atomics: bytes placed
	Imm       uint32 // with WCWithImm: immediate data
	InvKey    Key    // with WCWithInv: the key that the sender invalidated
	QPN       QPN    // of the local QP
	SrcQP     QPN    // UD receives: the sender's
}

// CQ is a completion queue (struct ibv_cq).
type CQ struct {
	handle
	cq     *rxe.CQ
	shards atomic.Uint64 // of the QPs that use it, by bit
	caller bool
	notify chan struct{}

	mu  sync.Mutex // one poller at a time
	tmp [16]rxe.CQE

	vain     uint // calls of Poll since one found something
	patience uint // of these before the CPU is offered to others
}

// CreateCQ makes a completion queue for depth completions, 1 to rxe.MaxCQE (ibv_create_cq).
func (c *Context) CreateCQ(depth int) (*CQ, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	q, err := c.dev.NewCQ(depth)
	if err != nil {
		return nil, fmt.Errorf("create CQ of %d: %w", depth, err)
	}
	cq := &CQ{handle: handle{ctx: c}, cq: q, caller: c.cfg.Progress == ProgressCaller,
		notify: make(chan struct{}, 1)}
	cq.patience = yieldEvery
	if cq.caller {
		cq.patience = callerPatience
	}
	c.cqs.Store(q, cq)
	return cq, nil
}

// Depth is how many completions the queue holds.
func (q *CQ) Depth() int { return q.cq.Depth() }

// Len is how many completions wait.
func (q *CQ) Len() int { return q.cq.Len() }

// Poll moves up to len(wc) completions to wc and returns how many; it never waits (ibv_poll_cq). In
// caller mode it also moves the shards of the QPs that use the queue. Errors: ErrCQOverflow,
// ErrClosed.
func (q *CQ) Poll(wc []WC) (int, error) {
	q.mu.Lock()
	n, moved := q.take(wc), false
	if n == 0 && q.caller {
		moved = q.drive()
		n = q.take(wc)
	}
	yield, others := false, false
	if q.vain++; n > 0 || moved { // what moved may be a WRITE that the application looks for in memory
		q.vain = 0
	} else {
		yield = q.vain%q.patience == 0
		others = !q.caller || q.vain%(othersEvery*q.patience) == 0
	}
	q.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	if yield {
		if others {
			runtime.Gosched()
		}
		yieldCPU()
	}
	return 0, q.err()
}

// err is why no completion will come any more, if that is so.
func (q *CQ) err() error {
	switch {
	case q.cq.Dead():
		return ErrCQOverflow
	case q.ctx.isClosed():
		return ErrClosed
	}
	return nil
}

// drive moves the queue's shards, once. It reports whether frames came or went.
func (q *CQ) drive() (moved bool) {
	for set := q.shards.Load(); set != 0; set &= set - 1 {
		if q.ctx.pollers[bits.TrailingZeros64(set)].drive() {
			moved = true
		}
	}
	return moved
}

// take copies completions from the lanes. q.mu is held.
func (q *CQ) take(wc []WC) int {
	total := 0
	for total < len(wc) {
		want := min(len(wc)-total, len(q.tmp))
		n := q.cq.Poll(q.tmp[:want])
		for i := range q.tmp[:n] {
			e := &q.tmp[i]
			w := &wc[total+i]
			w.WRID, w.Status, w.Opcode, w.Flags = e.WRID, e.Status, e.Opcode, e.Flags
			w.VendorErr, w.ByteLen, w.Imm = e.Reason, e.ByteLen, e.Imm
			w.QPN, w.SrcQP, w.InvKey = e.QPN, e.SrcQP, 0
			if e.Flags&WCWithInv != 0 {
				w.InvKey = Key(e.Imm)
			}
		}
		total += n
		if n < want {
			break
		}
	}
	return total
}

// ReqNotify asks for one notification when the next completion comes or, with solicitedOnly, the
// next solicited or failed one (ibv_req_notify_cq). What is there already makes none: poll once
// more after asking.
func (q *CQ) ReqNotify(solicitedOnly bool) { q.cq.Arm(solicitedOnly) }

// Notify is where notifications arrive (the completion channel). Several may become one.
func (q *CQ) Notify() <-chan struct{} { return q.notify }

// Wait returns when there is something to poll, or with an error: ctx's, ErrCQOverflow, ErrClosed.
// It asks for notification and takes it from the Notify channel: use one or the other, and Wait
// from one goroutine at a time. It spins as long as a thread would, then sleeps.
func (q *CQ) Wait(ctx context.Context) error {
	for spinUntil := clock() + rxe.Time(max(q.ctx.cfg.Spin, 0)); ; {
		if q.cq.Len() > 0 {
			return nil
		}
		if err := q.err(); err != nil {
			return err
		}
		if q.caller && clock() < spinUntil {
			q.mu.Lock()
			q.drive()
			q.mu.Unlock()
			continue
		}
		q.ReqNotify(false)
		if q.cq.Len() > 0 {
			return nil
		}
		q.handBack()
		select {
		case <-q.notify:
		case <-ctx.Done():
			return fmt.Errorf("wait for completion: %w", context.Cause(ctx))
		case <-q.ctx.closed:
			return ErrClosed
		}
	}
}

// handBack lets the threads have the shards at once: this goroutine goes to sleep.
func (q *CQ) handBack() {
	if !q.caller {
		return
	}
	for set := q.shards.Load(); set != 0; set &= set - 1 {
		q.ctx.pollers[bits.TrailingZeros64(set)].callerLeaves()
	}
}

// Resize changes the depth (ibv_resize_cq). It fails when more completions wait than would fit.
func (q *CQ) Resize(depth int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.ctx.pollers {
		p.hold()
		defer p.release()
	}
	if err := q.cq.Resize(depth); err != nil {
		return fmt.Errorf("resize CQ to %d: %w", depth, err)
	}
	return nil
}

// Destroy ends the queue (ibv_destroy_cq). It fails with ErrBusy while QPs use it.
func (q *CQ) Destroy() error {
	first, err := q.bury()
	if err != nil {
		return fmt.Errorf("destroy CQ: %w", err)
	}
	if first {
		q.ctx.cqs.Delete(q.cq)
	}
	return nil
}
