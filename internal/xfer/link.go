package xfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file is a client's connection to an export: blocks that move, and control messages.

// Keepalive is what a client's manager needs (cm.Config.Keepalive): an end that has died while it
// owed an answer is noticed by nothing else.
const Keepalive = 2 * time.Second

// depth is how many blocks are on their way at a time, each with a control message at most.
const depth = 8

// Errors of a connection.
var (
	ErrLost    = errors.New("connection to the export is lost")
	ErrRefused = errors.New("export refused")
	ErrRemote  = errors.New("the file behind the export has gone or fails")
)

const dialTimeout = 5 * time.Second // of one try

// connection is one connection. data and call may be used by one goroutine for each slot.
type connection struct {
	Grant
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mem  *verbs.MR // depth blocks, their control messages, and what is received
	conn *cm.Conn

	moved   [depth]chan error   // a block's READ or WRITE is complete
	replies [depth]chan Message // an answer has come
	err     error               // why it has ended; read it after dead
	dead    chan struct{}
	quit    context.CancelFunc
	done    sync.WaitGroup
}

const (
	atSends   = depth * BlockSize
	atRecvs   = atSends + depth*MessageSize
	linkBytes = atRecvs + ControlSlots*MessageSize
)

// Work request ids: kind and slot.
const (
	idData = iota << 8
	idSend
	idRecv
	idSlots = 1<<8 - 1
)

// dial connects to an export, within a time.
func dial(ctx context.Context, timeout time.Duration, dev *verbs.Context, m *cm.Manager, addr netip.AddrPort,
	h Hello) (_ *connection, err error) {
	c := &connection{dead: make(chan struct{})}
	for i := range c.moved {
		c.moved[i], c.replies[i] = make(chan error, 1), make(chan Message, 1)
	}
	defer func() {
		if err != nil {
			c.free()
		}
	}()
	if err := c.create(dev); err != nil {
		return nil, err
	}
	ctx2, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c.conn, err = m.Dial(ctx2, addr, c.qp, &cm.Params{Private: h.Marshal(), RetryCount: 4, Access: verbs.RemoteRead})
	var rej *cm.RejectError
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &rej) && ParseRefusal(rej.Private) != "":
		return nil, fmt.Errorf("%w: %s", ErrRefused, ParseRefusal(rej.Private))
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	if c.Grant, err = ParseGrant(c.conn.Private()); err != nil {
		return nil, err
	}
	run, quit := context.WithCancel(context.Background())
	c.quit = quit
	c.done.Go(func() { c.run(run) })
	return c, nil
}

func (c *connection) create(dev *verbs.Context) (err error) {
	if c.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if c.mem, err = c.pd.AllocMR(linkBytes, verbs.LocalWrite); err != nil {
		return err
	}
	if c.cq, err = dev.CreateCQ(2*depth + ControlSlots + 8); err != nil {
		return err
	}
	c.qp, err = dev.CreateQP(c.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq, Shard: -1,
		Cap: verbs.QPCap{MaxSendWR: 4 * depth, MaxRecvWR: ControlSlots}})
	if err != nil {
		return err
	}
	if err := cm.Prepare(c.qp, verbs.RemoteRead); err != nil {
		return err
	}
	for i := range ControlSlots {
		if err := c.recv(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) recv(slot int) error {
	return c.qp.PostRecv(&verbs.RecvWR{WRID: uint64(idRecv | slot),
		SGList: []verbs.SGE{c.mem.SGE(atRecvs+slot*MessageSize, MessageSize)}})
}

// block is a slot's buffer.
func (c *connection) block(slot int) []byte { return c.mem.Bytes()[slot*BlockSize:][:BlockSize] }

// run hands completions to the slots until the connection ends.
func (c *connection) run(ctx context.Context) {
	defer close(c.dead)
	var wc [32]verbs.WC
	for {
		if err := c.cq.Wait(ctx); err != nil {
			c.err = fmt.Errorf("%w: %w", ErrLost, err)
			return
		}
		n, err := c.cq.Poll(wc[:])
		if err != nil {
			c.err = fmt.Errorf("%w: %w", ErrLost, err)
			return
		}
		for i := range wc[:n] {
			if c.err = c.completion(&wc[i]); c.err != nil {
				return
			}
		}
	}
}

// completion returns an error when it says that no more will come.
func (c *connection) completion(wc *verbs.WC) error {
	slot := int(wc.WRID & idSlots)
	switch wc.Status {
	case verbs.WCSuccess:
	case verbs.WCRemOpErr:
		return ErrRemote
	case verbs.WCWRFlushErr:
		return fmt.Errorf("%w: the other end has closed it", ErrLost)
	case verbs.WCRetryExcErr:
		return fmt.Errorf("%w: the other end does not answer", ErrLost)
	default:
		return fmt.Errorf("%v: %v (%v)", wc.Opcode, wc.Status, wc.VendorErr)
	}
	switch wc.WRID &^ idSlots {
	case idData:
		c.moved[slot] <- nil
	case idRecv:
		at := atRecvs + slot*MessageSize
		m, err := ParseMessage(c.mem.Bytes()[at : at+int(wc.ByteLen)])
		if err != nil || m.ID >= depth {
			return fmt.Errorf("%w: answer %d, %w", ErrProtocol, m.ID, err)
		}
		if err := c.recv(slot); err != nil {
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
		select {
		case c.replies[m.ID] <- m:
		default:
			return fmt.Errorf("%w: an answer that nobody asked for", ErrProtocol)
		}
	}
	return nil
}

// post starts a block's READ or WRITE.
func (c *connection) post(slot int, op verbs.WROpcode, off uint64, n int) error {
	return c.why(c.qp.PostSend(&verbs.SendWR{WRID: uint64(idData | slot), Opcode: op, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{c.mem.SGE(slot*BlockSize, n)}, RemoteAddr: c.Addr + off, RKey: verbs.Key(c.RKey)}))
}

// await waits for it.
func (c *connection) await(ctx context.Context, slot int) error {
	select {
	case err := <-c.moved[slot]:
		return err
	case <-c.dead:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// call sends a slot's control message and waits for the answer. What was posted before it, the other
// end has carried out by then.
func (c *connection) call(ctx context.Context, slot int, m Message) (Message, error) {
	m.ID = uint32(slot)
	at := atSends + slot*MessageSize
	m.Put(c.mem.Bytes()[at:])
	err := c.qp.PostSend(&verbs.SendWR{WRID: uint64(idSend | slot), Opcode: verbs.WRSend,
		Flags: verbs.SendSignaled, SGList: []verbs.SGE{c.mem.SGE(at, MessageSize)}})
	if err != nil {
		return m, c.why(err)
	}
	select {
	case m = <-c.replies[slot]:
	case <-c.dead:
		return m, c.err
	case <-ctx.Done():
		return m, context.Cause(ctx)
	}
	switch m.Status {
	case OK:
		return m, nil
	case StatusIO:
		return m, ErrRemote
	}
	return m, fmt.Errorf("%w: %v", ErrRefused, m.Status)
}

// why turns an error of posting into the end of the connection, if that is the reason.
func (c *connection) why(err error) error {
	if err == nil || c.conn.Err() == nil && c.qp.State() == verbs.StateRTS {
		return err
	}
	select {
	case <-c.dead:
		return c.err
	default:
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
}

// close disconnects and gives everything back.
func (c *connection) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Disconnect(ctx) // an end that is gone does not answer
	c.quit()
	c.done.Wait()
	c.free()
}

func (c *connection) free() {
	if c.qp != nil {
		_ = c.qp.Destroy()
	}
	if c.cq != nil {
		_ = c.cq.Destroy()
	}
	if c.mem != nil {
		_ = c.mem.Close()
	}
	if c.pd != nil {
		_ = c.pd.Dealloc()
	}
}
