package rxe

import (
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file holds what planted bugs do that is too long for the place where they are planted. In
// normal builds nothing here is called: see package mutant.

// placeAgain writes the data of a READ response that was taken already to where it was written then.
func (q *QP) placeAgain(p *wire.Packet) {
	r := &q.req
	if p.Info.Flags&wire.FlagReadResp == 0 {
		return
	}
	for i := r.ack; i != r.ack-uint32(len(r.entries)); {
		i--
		e := r.entry(i)
		if e.opcode == WRRDMARead && p.PSN.Diff(e.first) >= 0 && p.PSN.Diff(e.last) <= 0 {
			off := uint64(p.PSN.Diff(e.first)) * uint64(q.pmtu)
			q.scatter(q.pd, r.sgesOf(i), off, p.Data0, false)
			return
		}
	}
}

// keepView gives all packets of a WRITE the view that its first one has found.
func (q *QP) keepView(p *wire.Packet, v *mr.View, f mr.Fault) (*mr.View, mr.Fault) {
	if p.Info.Flags&wire.FlagRETH != 0 && f == mr.FaultNone {
		keptViews[q] = v
	}
	if kept := keptViews[q]; kept != nil && p.Info.Flags&wire.FlagRETH == 0 {
		return kept, mr.FaultNone
	}
	return v, f
}

var keptViews = map[*QP]*mr.View{}

// skipRecv uses up the receive WQE in hand without a completion.
func (q *QP) skipRecv() {
	q.resp.recv.held = false
	if q.srq == nil {
		q.RQ.cons.Store(q.RQ.cons.Load() + 1)
	}
}
