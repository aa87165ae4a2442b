package ramdisk

import (
	"time"

	"github.com/roxie-rdma/roxie/internal/srp"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is how a channel moves data and answers.

// tell answers a command that asks for something.
func (c *channel) tell(s *slot) error {
	var out []byte
	switch s.cmd.CDB[0] {
	case inquiryOp:
		out = c.t.inquiry()
	case capacityOp:
		out = srp.Capacity{Blocks: uint64(c.t.cfg.Blocks), BlockSize: uint32(c.t.cfg.BlockSize)}.Encode()
	}
	room := s.size
	s.size = min(len(out), room)
	copy(c.buffer(s), out)
	return c.write(s, &srp.Rsp{InRes: int64(room - len(out))})
}

// think carries a transfer out, at once or after a while.
func (c *channel) think(s *slot) error {
	var d time.Duration
	if c.t.cfg.Think != nil {
		d = c.t.cfg.Think()
	}
	if d == 0 {
		return c.transfer(s)
	}
	s.thinking = true
	c.finished.Add(1)
	s.timer = time.AfterFunc(d, func() {
		defer c.finished.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.thinking && !c.gone {
			s.thinking = false
			_ = c.transfer(s) // fails when the connection has ended
		}
	})
	return nil
}

// transfer moves the data of a READ or WRITE.
func (c *channel) transfer(s *slot) error {
	if !s.x.Write {
		c.t.transfer(s.x, c.buffer(s))
		return c.write(s, &srp.Rsp{})
	}
	at := s.index * srp.MaxIO
	for _, d := range s.cmd.Data {
		wr := verbs.SendWR{WRID: idRead | uint64(s.index), Opcode: verbs.WRRDMARead,
			Flags:  verbs.SendSignaled,
			SGList: []verbs.SGE{c.data.SGE(at, int(d.Len))}, RemoteAddr: d.Addr, RKey: verbs.Key(d.Key)}
		if err := c.qp.PostSend(&wr); err != nil {
			return err
		}
		s.reads++
		at += int(d.Len)
	}
	return nil
}

// write brings data to the initiator, and the answer behind it.
func (c *channel) write(s *slot, r *srp.Rsp) error {
	at, left := s.index*srp.MaxIO, s.size
	for _, d := range s.cmd.Data {
		n := min(left, int(d.Len))
		wr := verbs.SendWR{WRID: idOther, Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{c.data.SGE(at,
			n)},
			RemoteAddr: d.Addr, RKey: verbs.Key(d.Key)}
		if n == 0 {
			break
		}
		if err := c.qp.PostSend(&wr); err != nil {
			return err
		}
		at, left = at+n, left-n
	}
	return c.answer(s, r)
}

// answer ends a command. Its slot is free when the initiator has acknowledged that, and so has all
// of the data before it.
func (c *channel) answer(s *slot, r *srp.Rsp) error {
	r.Tag, s.busy = s.cmd.Tag, false
	return c.respond(idAnswer|uint64(s.index), r)
}

// freed: a slot can take the next command.
func (c *channel) freed(s *slot) error {
	c.idle = append(c.idle, s)
	if len(c.waiting) == 0 {
		return nil
	}
	next := c.waiting[0]
	c.waiting = c.waiting[1:]
	return c.command(next)
}

// respond sends an answer, with the credits that are due.
func (c *channel) respond(id uint64, r *srp.Rsp) error {
	c.due++
	every := c.t.cfg.CreditEvery
	if every == 0 {
		r.Credits, c.due = c.due, 0
	}
	if err := c.send(id, r.Append(nil)); err != nil || every == 0 || int(c.due) < every {
		return err
	}
	n := srp.Notice{Op: srp.OpCredReq, Tag: r.Tag, Credits: c.due}
	c.due = 0
	return c.send(idOther, n.Append(nil))
}

func (c *channel) send(id uint64, unit []byte) error {
	return c.qp.PostSend(&verbs.SendWR{WRID: id, Opcode: verbs.WRSend,
		Flags: verbs.SendInline | verbs.SendSignaled, Inline: unit})
}

// manage aborts a command that is being thought about.
func (c *channel) manage(b []byte) error {
	var q srp.TskMgmt
	if err := q.Decode(b); err != nil {
		return err
	}
	status := srp.TaskFailed
	if q.Func != srp.AbortTask {
		status = srp.TaskNotSupported
	}
	for _, s := range c.slots {
		if status == srp.TaskFailed && s.busy && s.thinking && s.cmd.Tag == q.TaskTag {
			s.busy, s.thinking = false, false
			if s.timer.Stop() {
				c.finished.Done()
			}
			c.due++ // its own credit
			c.t.Aborts.Add(1)
			status = srp.TaskComplete
			if err := c.freed(s); err != nil {
				return err
			}
			break
		}
	}
	return c.respond(idOther, &srp.Rsp{Tag: q.Tag, Resp: []byte{0, 0, 0, byte(status)}})
}
