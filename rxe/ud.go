package rxe

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/roxie-rdma/roxie/rxe/internal/mutant"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers unreliable datagrams: address handles, one-packet messages, the GRH area,
// multicast groups, and QP1, which differs only in its keys.

// GRHBytes stand before the payload in every UD receive.
const GRHBytes = 40

// ErrAHLimit is returned when a device has as many address handles as it can.
var ErrAHLimit = errors.New("no free address handle")

// MaxAH is how many address handles a device has.
const MaxAH = 1 << 15

// AH is an address handle: where a datagram goes.
type AH struct {
	PD  mr.PD
	AV  AV
	num uint32
}

// Num is the handle's number, which work requests name.
func (a *AH) Num() uint32 { return a.num }

// ahTable maps numbers to address handles. Numbers are given out cyclically.
type ahTable struct {
	slots [MaxAH]atomic.Pointer[AH]
	next  uint32
	count int
}

// CreateAH makes an address handle. Any goroutine.
func (d *Device) CreateAH(pd mr.PD, av AV) (*AH, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &d.ahs
	if t.count >= MaxAH-1 {
		return nil, ErrAHLimit
	}
	for {
		if t.next = (t.next + 1) % MaxAH; t.next != 0 && t.slots[t.next].Load() == nil {
			break
		}
	}
	a := &AH{PD: pd, AV: av, num: t.next}
	t.slots[t.next].Store(a)
	t.count++
	return a, nil
}

// DestroyAH takes the handle away. Work requests that name it later fail.
func (d *Device) DestroyAH(a *AH) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ahs.slots[a.num].CompareAndSwap(a, nil) {
		d.ahs.count--
	}
}

// sendUD builds a datagram, which is complete once sent. Inside the device, or to a group with
// members here, it is (also) turned round.
func (q *QP) sendUD(f Frame, e *sendEntry) int {
	r := &q.req
	ah := q.dev.ahs.slots[uint32(e.compareAdd)%MaxAH].Load()
	switch {
	case ah == nil || ah.PD != q.pd:
		e.fail(WCLocQPOpErr, ReasonNoAH)
		return q.sendFault()
	case e.length > q.pmtu:
		// No packet, and no error either (IBTA C10-93.1.1).
		q.drop(ReasonUDLength)
		q.sentUnreliable(e)
		return -1
	}
	dest := QPN(e.compareAdd>>32) & 0xffffff
	if r.udAH != ah && !mutant.UDStaleAH || r.udDest != dest {
		q.tmpl.Init(&ah.AV.Path, dest, PKeyDefault)
		r.udAH, r.udDest = ah, dest
	}
	var to *Shard
	if ah.AV.Loopback {
		if f, to = q.loopFrame(ah, dest); to == nil {
			q.sentUnreliable(e) // nobody there, or no room: lost as on a wire
			return -1
		}
	}
	n := q.buildUD(f, e)
	if n == 0 {
		return 0
	}
	if ah.AV.Loopback {
		to.inbound[q.shard.ID].commit(n, dest)
		q.shard.C.Loopbacks++
		q.shard.wake |= 1 << to.ID
		n = -1
	} else if ah.AV.Path.Dst.IsMulticast() && wire.ParseNoICRC(cut(f, n), &q.shard.pkt) == wire.ReasonOK {
		q.shard.deliverGroup(cut(f, n), &q.shard.pkt, q)
	}
	q.sentUnreliable(e)
	return n
}

// cut limits a frame to its first n bytes.
func cut(f Frame, n int) Frame {
	if n <= len(f.Head) {
		return Frame{Head: f.Head[:n]}
	}
	return Frame{Head: f.Head, Tail: f.Tail[:n-len(f.Head)]}
}

// loopFrame is room for a datagram to a QP of this device.
func (q *QP) loopFrame(ah *AH, dest QPN) (Frame, *Shard) {
	peer := q.dev.qps.get(dest)
	if peer == nil || ah.AV.Nowhere {
		q.shard.C.Drops[ReasonNoQP]++
		return Frame{}, nil
	}
	slot := peer.shard.inbound[q.shard.ID].next(q.tmpl.BTHOffset() + maxTransport + int(q.pmtu))
	if slot == nil {
		q.shard.C.Drops[ReasonHandoverFull]++
		return Frame{}, nil
	}
	return Frame{Head: slot.buf[:cap(slot.buf)]}, peer.shard
}

func (q *QP) buildUD(f Frame, e *sendEntry) int {
	r := &q.req
	op := wire.UDSendOnly
	if e.opcode == WRSendWithImm {
		op = wire.UDSendOnlyImm
	}
	hdr := q.tmpl.Begin(f.Head, op)
	if !q.gather(&f, q.tmpl.HeaderLen(op), e, 0, int(e.length)) {
		return q.sendFault()
	}
	bth := (*wire.BTH)(hdr)
	bth.SetPSN(r.psn)
	bth.SetSolicited(e.flags&SendSolicited != 0)
	h := (*wire.DETH)(hdr[op.Info().DETHOff:])
	qkey := uint32(e.swap)
	if qkey>>31 != 0 { // a controlled Q_Key: the QP's own goes out (IBTA 10.2.5)
		qkey = q.attr.QKey
	}
	h.SetQKey(qkey)
	h.SetSrcQP(q.qpn)
	putExtensions(hdr, op, e)
	q.Stats.SentPkts++
	q.Stats.SentBytes += uint64(e.length)
	r.psn = r.psn.Next()
	r.sent = r.psn
	return q.tmpl.Finish(f, op, int(e.length))
}

// receiveUD takes a datagram.
func (q *QP) receiveUD(p *wire.Packet) {
	if !p.Dst.IsMulticast() && !q.dev.local(&p.Dst) || max(p.VLAN, 0) != int16(q.dev.cfg.VLAN) {
		q.drop(ReasonNotLocal)
		return
	}
	if p.DETH().QKey() != q.attr.QKey && !mutant.RespUDQKey {
		q.drop(ReasonQKey)
		return
	}
	r := &q.resp
	if !r.recv.held {
		if v := q.takeRecv(); !v.ok() {
			if v.how != fail {
				q.drop(v.reason)
				return
			}
			q.recvError(v.status, v.reason)
			q.fails(v.reason)
			q.toError()
			return
		}
	}
	n := uint64(GRHBytes + p.PayloadLen)
	if n > r.recv.length {
		q.drop(ReasonRecvTooSmall) // the WQE serves the next datagram
		if mutant.UDEatsWQE {
			q.skipRecv()
		}
		return
	}
	q.Stats.RcvdPkts++
	q.Stats.RcvdBytes += uint64(p.PayloadLen)
	wire.GRH(p, &q.shard.grh)
	f := q.scatterRecv(0, q.shard.grh[:], false)
	if f == mr.FaultNone {
		f = q.scatterRecv(GRHBytes, p.Data0, false)
	}
	if f == mr.FaultNone {
		f = q.scatterRecv(GRHBytes+uint64(len(p.Data0)), p.Data1, false)
	}
	if f != mr.FaultNone {
		q.drop(faultReason(f))
		q.recvError(WCLocProtErr, faultReason(f))
		q.fails(faultReason(f))
		q.toError()
		return
	}
	c := CQE{WRID: r.recv.id, QPN: q.qpn, Opcode: WCRecv, ByteLen: uint32(n),
		SrcQP: p.DETH().SrcQP(), Flags: WCGRH}
	if p.Info.Flags&wire.FlagImm != 0 {
		c.Flags |= WCWithImm
		c.Imm = p.Imm()
	}
	q.finishRecv(&c, p.Solicited, 0)
}

// deliverGroup gives a multicast datagram to every member but the sender: here at once, to other
// shards as copies.
func (s *Shard) deliverGroup(f Frame, p *wire.Packet, sender *QP) {
	members := (*s.dev.groups.Load())[p.Dst]
	delivered := false
	for _, m := range members {
		if m == sender && !mutant.UDOwnGroup || sender == nil && p.DETH().SrcQP() == m.qpn && s.dev.local(&p.Src) {
			continue
		}
		delivered = true
		if m.shard != s {
			s.handOver(m.shard, f, m.qpn)
			continue
		}
		m.receive(p)
	}
	if !delivered && sender == nil {
		s.C.Drops[ReasonNoGroup]++
	}
}

// AttachMulticast makes q a member of a group (UD only). The interface must let the group in; that
// is the driver's work. Errors: ErrQPType, ErrBadState. The shard must be held.
func (d *Device) AttachMulticast(q *QP, group wire.GID) error {
	if q.typ != UD || !group.IsMulticast() {
		return ErrQPType
	}
	if q.dead {
		return fmt.Errorf("QP is destroyed: %w", ErrBadState)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range (*d.groups.Load())[group] {
		if m == q {
			return nil
		}
	}
	d.setGroup(group, append(append([]*QP(nil), (*d.groups.Load())[group]...), q))
	return nil
}

// DetachMulticast ends q's membership. It reports whether the group has no member left.
func (d *Device) DetachMulticast(q *QP, group wire.GID) (last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.detach(q, group)
	return len((*d.groups.Load())[group]) == 0
}

func (d *Device) detach(q *QP, group wire.GID) {
	var rest []*QP
	for _, m := range (*d.groups.Load())[group] {
		if m != q {
			rest = append(rest, m)
		}
	}
	d.setGroup(group, rest)
}

func (d *Device) detachAll(q *QP) {
	for group, members := range *d.groups.Load() {
		for _, m := range members {
			if m == q {
				d.detach(q, group)
				break
			}
		}
	}
}

// setGroup replaces the map that shards read: copied, changed, published.
func (d *Device) setGroup(group wire.GID, members []*QP) {
	next := make(map[wire.GID][]*QP, len(*d.groups.Load())+1)
	for g, m := range *d.groups.Load() {
		next[g] = m
	}
	next[group] = members
	if len(members) == 0 {
		delete(next, group)
	}
	d.groups.Store(&next)
}
