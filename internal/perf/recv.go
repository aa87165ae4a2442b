package perf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file is about what arrives: receives, control messages, comparing.

// prepareRecvs makes the work requests for receives, once for the run.
func (r *run) prepareRecvs() {
	passive := r.cfg.Server == ""
	switch t := r.cfg.Test; {
	case t.Op == Send && (passive || t.Latency || r.duplex):
		r.recvs = r.cfg.recvDepth(&r.layout)
	case r.lap && r.cfg.Transport == UC && passive:
		r.recvs = r.cfg.controlRecvs(&r.layout)
	case r.lap || r.paced && !passive:
		r.recvs = controlSlots
	}
	r.control = r.lap || r.paced && !passive
	r.owe = uint64(max(1, min(r.recvs/4, recvBatch)))
	r.recvWRs = make([]verbs.RecvWR, recvBatch)
	r.recvSGE = make([]verbs.SGE, recvBatch)
	for i := range r.recvWRs {
		r.recvWRs[i].SGList = r.recvSGE[i : i+1 : i+1]
	}
}

// firstRecvs posts what a QP must have before the other side starts. What is left of a previous
// size are receives for control messages, which are all alike.
func (r *run) firstRecvs(c *conn) error {
	if r.control {
		if c.primed {
			return nil
		}
		c.primed = true
	}
	return r.postRecvs(c, uint64(r.recvs))
}

// postRecvs posts n receives, with buffers in the order of the ring.
func (r *run) postRecvs(c *conn, n uint64) error {
	if r.cfg.All && !r.control {
		// None may be left over, as their buffers do not fit the next size.
		n = min(n, r.expected()-min(c.recvs, r.expected()))
	}
	for n > 0 {
		wrs := r.recvWRs[:min(n, recvBatch)]
		for i := range wrs {
			at, length := r.buffer(c, c.recvs+uint64(i))
			wrs[i].WRID = workID(idRecv, c.index, uint64(at))
			r.recvSGE[i] = verbs.SGE{Addr: r.mem.Addr() + uint64(at), LKey: c.lkey, Length: length}
		}
		posted, err := c.qp.PostRecvList(wrs)
		c.recvs += uint64(posted)
		if err != nil {
			return fmt.Errorf("post receives to QP %d: %w", c.index, err)
		}
		n -= uint64(posted)
	}
	return nil
}

// buffer is where the receive posted as the n-th of a QP puts what arrives.
func (r *run) buffer(c *conn, n uint64) (at int, length uint32) {
	if r.control {
		return r.plan.controlAt(c.index) + int(n%uint64(r.plan.controls))*controlSize, controlSize
	}
	slot := int(n & (r.slots - 1))
	return r.plan.ringAt(c.index) + slot*r.stride, uint32(r.offset + r.size)
}

// received takes the completion of a receive whose buffer is at a place in the memory.
func (r *run) received(c *conn, wc *verbs.WC, at int) error {
	if r.control && wc.Opcode == verbs.WCRecv {
		if err := r.controlArrived(c, at); err != nil {
			return err
		}
		return r.postRecvs(c, 1)
	}
	n := c.arrived
	if r.imm {
		n = nearest(c.checked, wc.Imm)
		c.checked = max(c.checked, n+1)
	}
	c.arrived++
	if r.lap {
		r.check.check(r.slot(c, n), c.index, n, r.slots)
		return r.postRecvs(c, 1)
	}
	if want := r.offset + r.size; int(wc.ByteLen) != want {
		return fmt.Errorf("QP %d: message %d has %d bytes instead of %d", c.index, n, wc.ByteLen, want)
	}
	at += r.offset
	r.check.check(r.mem.Bytes()[at:at+r.size], c.index, n, r.slots)
	if c.owed++; c.owed < r.owe {
		return nil
	}
	n, c.owed = c.owed, 0
	if err := r.postRecvs(c, n); err != nil {
		return err
	}
	if r.paced && c.arrived-c.checked >= r.every {
		c.checked = c.arrived
		return r.postControl(c, idAck, c.checked)
	}
	return nil
}

// nearest is the number with these low 32 bits that is nearest to another one.
func nearest(to uint64, low uint32) uint64 { return to + uint64(int64(int32(low-uint32(to)))) }

// controlArrived takes a control message of a verified test: at the passive end, that so many
// messages have been written; at the active one, that so many were checked.
func (r *run) controlArrived(c *conn, at int) error {
	count := binary.BigEndian.Uint64(r.mem.Bytes()[at:])
	if r.cfg.Server != "" {
		c.acked, c.heard = max(c.acked, count), r.now()
		return nil
	}
	if r.cfg.Transport == RC {
		if count > c.checked+r.slots {
			return errors.New("the other end overwrites messages before they were checked")
		}
		if c.checked < count {
			c.due = max(c.due, count)
			return nil
		}
	}
	c.checked = max(c.checked, count)
	return r.postControl(c, idAck, c.checked)
}

// compare compares a bite of what has come, and answers when all of that is compared.
func (r *run) compare(c *conn) error {
	end := min(c.due, c.checked+uint64(r.bite))
	for ; c.checked < end; c.checked++ {
		if got := r.slot(c, c.checked); r.cfg.Test.Op == Atomic {
			r.check.checkValue(binary.NativeEndian.Uint64(got), c.checked, c.index)
		} else {
			r.check.check(got, c.index, c.checked, r.slots)
		}
	}
	if r.lap {
		c.arrived = c.checked
		if c.checked == c.due {
			return r.postControl(c, idAck, c.checked)
		}
	}
	return nil
}
