package srp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// Channel is one RDMA channel of a session. Its methods may be called from several goroutines.
type Channel struct {
	s    *Session
	qp   *verbs.QP
	cq   *verbs.CQ
	conn *cm.Conn
	// Memory of units: sendSize bytes for each task, recvSize for each receive.
	sends, recvs *verbs.MR
	stop         context.CancelFunc // of run
	stopped      chan struct{}
	tmLock       sync.Mutex // one task management function at a time

	mu      sync.Mutex
	pool    pool
	live    []*task // by index: waiting for an answer
	all     []*task
	idle    []*task
	tm      *task // for task management
	tags    uint64
	credits int
	room    chan struct{} // closed when a task or a credit has become free
	end     *EndError     // why there are no more answers
	ended   chan struct{} // closed when end is set
	descs   [MaxDescs]Desc
	sges    [1]verbs.SGE
}

const (
	// tmCredits is what is kept for task management, which must not wait for commands.
	tmCredits = 1
	sendSize  = 256
	// MaxTIIU is the longest unit that is taken from a target, in bytes.
	MaxTIIU = 1024
	// spareRecvs are receives for units that a target sends unasked.
	spareRecvs = 4
)

// What a completion is of, in the upper 8 bits of its number.
const (
	idRecv = iota
	idSend
	idLocal
	idNotice
)

func workID(kind, index int) uint64 { return uint64(kind)<<56 | uint64(index) }

// EndError says why a channel has ended.
type EndError struct{ Cause error }

// Error gives the cause.
func (e *EndError) Error() string { return "channel has ended: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *EndError) Unwrap() error { return e.Cause }

// newChannel makes the QP and all it needs; it can receive when newChannel returns.
func newChannel(s *Session) (c *Channel, err error) {
	depth := s.opts.Depth
	c = &Channel{s: s, room: make(chan struct{}), ended: make(chan struct{}), stopped: make(chan struct{}), stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.destroy())
		}
	}()
	recvs, sends := depth+1+spareRecvs, (depth+1)*(2*MaxDescs+1)+spareRecvs
	if c.cq, err = s.dev.CreateCQ(recvs + sends + 1); err != nil {
		return c, err
	}
	if c.sends, err = s.pd.RegMR(make([]byte, (depth+1)*sendSize), verbs.LocalWrite); err != nil {
		return c, err
	}
	if c.recvs, err = s.pd.RegMR(make([]byte, recvs*MaxTIIU), verbs.LocalWrite); err != nil {
		return c, err
	}
	c.qp, err = s.dev.CreateQP(s.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq,
		Shard: -1, Cap: verbs.QPCap{MaxSendWR: sends + 1, MaxRecvWR: recvs, MaxInline: CredRspSize}})
	if err != nil {
		return c, err
	}
	if c.pool, err = newPool(s.pd, depth*MaxDescs); err != nil {
		return c, err
	}
	for i := range depth {
		c.all = append(c.all, newTask(i))
	}
	c.idle = slices.Clone(c.all)
	c.tm = newTask(depth)
	c.all = append(c.all, c.tm)
	c.live = make([]*task, depth+1)
	if err := cm.Prepare(c.qp, access); err != nil {
		return c, err
	}
	for i := range recvs {
		if err := c.postRecv(i); err != nil {
			return c, err
		}
	}
	return c, nil
}

// buffer is where a task's unit stands.
func (c *Channel) buffer(index int) []byte { return c.sends.Bytes()[index*sendSize:][:0:sendSize] }

func (c *Channel) postRecv(i int) error {
	return c.qp.PostRecv(&verbs.RecvWR{WRID: workID(idRecv, i),
		SGList: []verbs.SGE{c.recvs.SGE(i*MaxTIIU, MaxTIIU)}})
}

// open begins to take answers. The target allows for so many requests.
func (c *Channel) open(conn *cm.Conn, credits int) {
	c.conn, c.credits = conn, credits
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.run(ctx)
	go func() {
		select {
		case <-conn.Done():
			if !c.s.leaving.Load() {
				_ = c.fail(errEnded)
			}
		case <-ctx.Done():
		}
	}()
}

// close logs the channel out, and frees it. Nobody is in Do any more.
func (c *Channel) close(ctx context.Context) error {
	var err error
	if c.conn != nil {
		err = c.conn.Disconnect(ctx)
		if c.Err() != nil {
			err = nil // the peer is gone, and need not answer
		}
		_ = c.fail(errors.New("logged out"))
		c.stop()
		<-c.stopped
	}
	return errors.Join(err, c.destroy())
}

func (c *Channel) destroy() error {
	var errs []error
	if c.qp != nil {
		errs = append(errs, c.qp.Destroy())
	}
	errs = append(errs, c.pool.close())
	for _, m := range []*verbs.MR{c.sends, c.recvs} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Destroy())
	}
	return errors.Join(errs...)
}

// Err says why the channel has ended, nil while it lives.
func (c *Channel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		return nil
	}
	return c.end
}

// fail ends the channel for a reason, unless it has ended, and returns why it has.
func (c *Channel) fail(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.die(why)
	return c.end
}

// die is fail with c.mu held. All that wait are told; what they have lent stays lent until close.
func (c *Channel) die(why error) {
	if c.end != nil {
		return
	}
	c.end = &EndError{why}
	close(c.ended)
	for _, t := range c.live {
		if t != nil && t.waiting {
			signal(t.done)
		}
	}
	c.wake()
}

// wake wakes all that wait for a task or a credit. c.mu is held.
func (c *Channel) wake() {
	close(c.room)
	c.room = make(chan struct{})
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run takes completions until ctx ends.
func (c *Channel) run(ctx context.Context) {
	defer close(c.stopped)
	var wc [32]verbs.WC
	for c.cq.Wait(ctx) == nil {
		n, err := c.cq.Poll(wc[:])
		if err != nil {
			_ = c.fail(err)
			return
		}
		c.mu.Lock()
		for i := range wc[:n] {
			c.complete(&wc[i])
		}
		c.mu.Unlock()
	}
}

// complete takes a completion. c.mu is held.
func (c *Channel) complete(wc *verbs.WC) {
	kind, index := int(wc.WRID>>56), int(uint32(wc.WRID))
	switch {
	case wc.WRID == cm.KeepaliveWRID && wc.Status != verbs.WCWRFlushErr:
		c.die(fmt.Errorf("the target gives no sign of life: %v", wc.Status))
	case wc.Status == verbs.WCWRFlushErr:
		c.flushed()
	case wc.Status == verbs.WCRetryExcErr:
		c.die(fmt.Errorf("the target does not answer: %v", wc.Status))
	case wc.Status != verbs.WCSuccess:
		c.die(fmt.Errorf("%v: %v (%v)", kindName(kind), wc.Status, wc.VendorErr))
	case kind == idSend:
		c.sent(c.all[index])
	case kind == idRecv:
		c.received(index, int(wc.ByteLen))
	}
}

// flushed: the QP is in ERR, and no work request of ours is why.
func (c *Channel) flushed() {
	if c.end != nil {
		return
	}
	if st := c.qp.Stats(); st.NAKsSent > 0 {
		c.die(fmt.Errorf("the target asked for what it may not have: %v", st.LastDrop))
		return
	}
	c.die(errEnded)
}

var errEnded = errors.New("the target has ended the connection")

func kindName(kind int) string {
	switch kind {
	case idRecv:
		return "receive"
	case idSend, idNotice:
		return "send"
	}
	return "registration or invalidation"
}

// sent: the buffer of a task's unit is free.
func (c *Channel) sent(t *task) {
	t.unsent = false
	if c.live[t.index] == nil && t != c.tm {
		c.idle = append(c.idle, t)
	}
	c.wake()
}

// received takes a unit of the target.
func (c *Channel) received(index, n int) {
	unit := c.recvs.Bytes()[index*MaxTIIU:][:n]
	if err := c.take(unit); err != nil {
		c.die(err)
		return
	}
	if err := c.postRecv(index); err != nil && c.qp.State() == verbs.StateRTS {
		c.die(err)
	}
}

func (c *Channel) take(unit []byte) error {
	if len(unit) == 0 {
		return errors.New("the target has sent an empty unit")
	}
	if Opcode(unit[0]) != OpRsp {
		return c.notice(unit)
	}
	var r Rsp
	if err := r.Decode(unit); err != nil {
		return err
	}
	c.grant(r.Credits)
	index := int(uint16(r.Tag))
	if index >= len(c.live) || c.live[index] == nil || c.live[index].tag != r.Tag {
		return fmt.Errorf("an answer to tag %#x, which no command has", r.Tag)
	}
	t := c.live[index]
	if !t.waiting {
		return fmt.Errorf("a second answer to tag %#x", r.Tag)
	}
	t.rsp = r
	n := copy(t.data[:], r.Resp)
	t.rsp.Resp, t.rsp.Sense = t.data[:n], t.data[n:n+copy(t.data[n:], r.Sense)]
	t.waiting = false
	c.takeBack(t)
	signal(t.done)
	return nil
}

// takeBack invalidates what a task has lent; the next one may have the regions at once.
func (c *Channel) takeBack(t *task) {
	if len(t.regions) == 0 {
		return
	}
	t.wrs = t.wrs[:0]
	for _, m := range t.regions {
		t.wrs = append(t.wrs, verbs.SendWR{WRID: workID(idLocal, t.index), Opcode: verbs.WRLocalInv,
			RKey: m.RKey()})
	}
	if _, err := c.qp.PostSendList(t.wrs); err != nil {
		c.die(fmt.Errorf("post an invalidation: %w", err))
	}
	c.s.Counters.invs.Add(uint64(len(t.regions)))
	c.pool.give(t.regions)
	t.regions = t.regions[:0]
}

func (c *Channel) grant(n int32) {
	c.credits += int(n)
	if n > 0 {
		c.wake()
	}
}

// notice takes a unit that the target has sent unasked.
func (c *Channel) notice(unit []byte) error {
	var n Notice
	if err := n.Decode(unit); err != nil {
		return err
	}
	c.s.Counters.notices.Add(1)
	if n.Op == OpTLogout {
		return fmt.Errorf("the target has logged us out (reason %#x)", n.Reason)
	}
	c.grant(n.Credits)
	return c.qp.PostSend(&verbs.SendWR{WRID: workID(idNotice, 0), Opcode: verbs.WRSend,
		Flags: verbs.SendInline, Inline: appendNoticeAnswer(nil, &n)})
}
