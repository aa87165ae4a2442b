package ramdisk

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/internal/srp"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

const (
	unitSize   = 512
	spareUnits = 8
	byeTime    = 2 * time.Second
	capacityOp = 0x9e
	inquiryOp  = 0x12
)

// channel is one connection of an initiator.
type channel struct {
	t     *Target
	port  srp.PortID
	pd    *verbs.PD
	cq    *verbs.CQ
	qp    *verbs.QP
	conn  *cm.Conn
	units *verbs.MR // received
	data  *verbs.MR // srp.MaxIO for each slot

	mu       sync.Mutex
	slots    []*slot
	idle     []*slot
	waiting  [][]byte // commands for which no slot is free
	told     bool     // the unit attention
	due      int32    // credits of requests that are through
	gone     bool
	finished sync.WaitGroup // timers of thinking
}

// slot is a command in work.
type slot struct {
	index    int
	cmd      srp.Cmd
	x        srp.Transfer
	busy     bool
	thinking bool
	timer    *time.Timer
	reads    int // RDMA READs that have not completed
	size     int
}

// What a completion is of.
const (
	idUnit = iota << 32
	idRead
	idAnswer
	idOther
)

func newChannel(t *Target, port srp.PortID) (c *channel, err error) {
	c = &channel{t: t, port: port}
	defer func() {
		if err != nil {
			c.destroy()
		}
	}()
	if c.pd, err = t.dev.AllocPD(); err != nil {
		return c, err
	}
	n := t.cfg.Credits + spareUnits
	sends := n * (srp.MaxDescs + 2)
	if c.cq, err = t.dev.CreateCQ(2*n + sends); err != nil {
		return c, err
	}
	if c.units, err = c.pd.RegMR(make([]byte, n*unitSize), verbs.LocalWrite); err != nil {
		return c, err
	}
	if c.data, err = c.pd.RegMR(make([]byte, t.cfg.Credits*srp.MaxIO), verbs.LocalWrite); err != nil {
		return c, err
	}
	c.qp, err = t.dev.CreateQP(c.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq,
		Shard: -1,
		Cap:   verbs.QPCap{MaxSendWR: sends, MaxRecvWR: n, MaxInline: unitSize}})
	if err != nil {
		return c, err
	}
	for i := range t.cfg.Credits {
		c.slots = append(c.slots, &slot{index: i})
	}
	c.idle = append(c.idle, c.slots...)
	if err := cm.Prepare(c.qp, 0); err != nil {
		return c, err
	}
	for i := range n {
		if err := c.postRecv(i); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *channel) postRecv(i int) error {
	return c.qp.PostRecv(&verbs.RecvWR{WRID: idUnit | uint64(i),
		SGList: []verbs.SGE{c.units.SGE(i*unitSize, unitSize)}})
}

func (c *channel) destroy() {
	for _, f := range []func() error{
		func() error { return c.qp.Destroy() }, func() error { return c.units.Close() },
		func() error { return c.data.Close() }, func() error { return c.cq.Destroy() },
	} {
		if c.qp != nil {
			_ = f()
		}
	}
	if c.pd != nil {
		_ = c.pd.Dealloc()
	}
}

// leave ends the connection.
func (c *channel) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), byeTime)
	defer cancel()
	_ = c.conn.Disconnect(ctx) // the peer may be gone
}

// serve works until the connection ends.
func (c *channel) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.conn.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	var wc [32]verbs.WC
	for c.cq.Wait(ctx) == nil {
		n, err := c.cq.Poll(wc[:])
		c.mu.Lock()
		for i := range wc[:n] {
			if err == nil {
				err = c.complete(&wc[i])
			}
		}
		c.mu.Unlock()
		if err != nil {
			break
		}
	}
	c.leave()
	c.mu.Lock()
	c.gone = true
	for _, s := range c.slots {
		if s.timer != nil && s.timer.Stop() {
			c.finished.Done()
		}
	}
	c.mu.Unlock()
	c.finished.Wait()
}

var errFailed = errors.New("a work request failed")

// complete takes a completion. c.mu is held.
func (c *channel) complete(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		return errFailed
	}
	index := int(uint32(wc.WRID))
	switch wc.WRID &^ 0xffffffff {
	case idUnit:
		err := c.unit(c.units.Bytes()[index*unitSize:][:wc.ByteLen])
		return errors.Join(err, c.postRecv(index))
	case idAnswer:
		return c.freed(c.slots[index])
	case idRead:
		s := c.slots[index]
		if s.reads--; s.reads == 0 {
			c.t.transfer(s.x, c.buffer(s))
			return c.answer(s, &srp.Rsp{})
		}
	}
	return nil
}

func (c *channel) buffer(s *slot) []byte { return c.data.Bytes()[s.index*srp.MaxIO:][:s.size] }

// unit takes a unit of the initiator.
func (c *channel) unit(b []byte) error {
	if len(b) == 0 || c.t.cfg.Silent {
		return nil
	}
	switch srp.Opcode(b[0]) {
	case srp.OpCmd:
		return c.command(b)
	case srp.OpTskMgmt:
		return c.manage(b)
	case srp.OpCredRsp, srp.OpAERRsp:
		return nil
	}
	return errors.New("an unknown unit")
}

// command begins a command.
func (c *channel) command(b []byte) error {
	if len(c.idle) == 0 {
		if len(c.waiting) == c.t.cfg.Credits {
			return errors.New("more commands than there are credits")
		}
		c.waiting = append(c.waiting, bytes.Clone(b))
		return nil
	}
	s := c.idle[len(c.idle)-1]
	if err := s.cmd.Decode(b); err != nil {
		return err
	}
	c.idle = c.idle[:len(c.idle)-1]
	s.busy, s.reads, s.size = true, 0, 0
	for _, d := range s.cmd.Data {
		s.size += int(d.Len)
	}
	x, isTransfer := srp.DecodeTransfer(&s.cmd.CDB)
	s.x = x
	if err := c.check(s, isTransfer); err != nil {
		var sense errSense
		errors.As(err, &sense)
		return c.answer(s, &srp.Rsp{Status: srp.CheckCondition, Sense: srp.Sense(sense).Encode()})
	}
	if isTransfer {
		return c.think(s)
	}
	return c.tell(s)
}

// check says why a command is to be refused.
func (c *channel) check(s *slot, isTransfer bool) error {
	op := s.cmd.CDB[0]
	switch {
	case srp.OfLUN(s.cmd.LUN) != 0:
		return errUnit
	case !c.told && op != inquiryOp:
		c.told = true
		return errAttention
	case isTransfer:
		n := uint64(c.t.cfg.Blocks)
		if s.x.LBA > n || uint64(s.x.Blocks) > n-s.x.LBA {
			return errRange
		}
		dir := srp.DataIn
		if s.x.Write {
			dir = srp.DataOut
		}
		if s.size != int(s.x.Blocks)*c.t.cfg.BlockSize || s.size > srp.MaxIO || s.cmd.Dir != dir {
			return errField
		}
	case op == inquiryOp && s.cmd.CDB[1] != 0:
		return errField // no vital product data
	case op != inquiryOp && op != capacityOp && op != 0:
		return errOpcode
	}
	return nil
}
