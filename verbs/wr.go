package verbs

import (
	"github.com/roxie-rdma/roxie/rxe"
)

// SendWR is a send work request (struct ibv_send_wr). Posting copies it; SGList and what the other
// slices and pointers refer to are the application's again when the post returns, the memory that
// SGEs name only with the completion.
type SendWR struct {
	WRID   uint64 // returned in the completion
	Opcode WROpcode
	Flags  SendFlags
	SGList []SGE  // local memory, in message order
	Inline []byte // with SendInline: the data itself, instead of SGList

	RemoteAddr uint64 // WRITE, READ, atomics, FLUSH: address in the peer's region
	RKey       Key    // its key; LOCAL_INV: the key to invalidate
	Imm        uint32 // immediate data
	InvKey     Key    // SEND_WITH_INV: the peer's key to invalidate
	CompareAdd uint64 // CMP_SWP: compare; FETCH_ADD: what to add
	Swap       uint64 // CMP_SWP

	AH         *AH    // UD: where to
	RemoteQPN  QPN    // UD
	RemoteQKey uint32 // UD; with bit 31 set, the QP's own goes out

	MR        *MR    // REG_MR: the region, with its present key and memory; BIND_MW: the parent
	MW        *MW    // BIND_MW: the window
	Key       Key    // BIND_MW, type 2: the new key, of the window's index
	Access    Access // REG_MR, BIND_MW
	Addr      uint64 // BIND_MW: first byte, in the region's addresses
	Length    uint64 // BIND_MW, FLUSH: bytes
	FlushType uint8  // FLUSH: 1 global visibility, 2 persistence
	FlushMR   bool   // FLUSH: the whole region, not a range
}

// RecvWR is a receive work request (struct ibv_recv_wr).
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// PostSend adds a work request to the send queue (ibv_post_send). The errors are those of this
// package that start with Err, as they are: ErrQueueFull, ErrBadState, ErrBadOpcode, ErrTooManySGE,
// ErrInlineSize, ErrInlineOp, ErrMsgSize, ErrAlignment, ErrReadLen, ErrForeign; nothing is posted
// then. What can only be seen later, such as a wrong key, ends in a completion.
func (q *QP) PostSend(wr *SendWR) error {
	q.sendMu.Lock()
	err := q.encode(wr)
	q.sendMu.Unlock()
	if err != nil {
		return err
	}
	q.qp.RingDoorbell()
	q.poller.wake()
	return nil
}

// PostSendList posts work requests in order, with one doorbell. posted is how many were taken: all,
// or as many as stand before the one err is about.
func (q *QP) PostSendList(wrs []SendWR) (posted int, err error) {
	q.sendMu.Lock()
	for posted < len(wrs) {
		if err = q.encode(&wrs[posted]); err != nil {
			break
		}
		posted++
	}
	q.sendMu.Unlock()
	if posted > 0 {
		q.qp.RingDoorbell()
		q.poller.wake()
	}
	return posted, err
}

// encode puts wr into the send queue. q.sendMu is held.
func (q *QP) encode(wr *SendWR) error {
	r := rxe.SendWR{
		ID: wr.WRID, Opcode: wr.Opcode, Flags: wr.Flags, SGEs: wr.SGList, Inline: wr.Inline,
		RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, Imm: wr.Imm,
	}
	switch wr.Opcode {
	case WRSend, WRSendWithImm:
		if q.datagram {
			if wr.AH == nil || wr.AH.pd != q.pd {
				return ErrForeign
			}
			r.AH, r.RemoteQPN, r.RemoteQKey = wr.AH.num, wr.RemoteQPN, wr.RemoteQKey
		}
	case WRSendWithInv:
		r.Imm = uint32(wr.InvKey)
	case WRAtomicCmpSwap, WRAtomicFetchAdd:
		r.CompareAdd, r.Swap = wr.CompareAdd, wr.Swap
	case WRFlush:
		r.Length, r.FlushType = wr.Length, wr.FlushType
		if wr.FlushMR {
			r.FlushLevel = 1
		}
	case WRRegMR, WRBindMW:
		return q.encodeKeyed(wr, &r)
	}
	return q.qp.PostSend(&r)
}

// PostRecv adds a work request to the receive queue (ibv_post_recv). Errors as PostSend's.
func (q *QP) PostRecv(wr *RecvWR) error {
	q.recvMu.Lock()
	r := rxe.RecvWR{ID: wr.WRID, SGEs: wr.SGList}
	err := q.qp.PostRecv(&r)
	q.recvMu.Unlock()
	q.ringDead(err == nil)
	return err
}

// PostRecvList posts work requests in order; posted is how many were taken.
func (q *QP) PostRecvList(wrs []RecvWR) (posted int, err error) {
	q.recvMu.Lock()
	for posted < len(wrs) {
		r := rxe.RecvWR{ID: wrs[posted].WRID, SGEs: wrs[posted].SGList}
		if err = q.qp.PostRecv(&r); err != nil {
			break
		}
		posted++
	}
	q.recvMu.Unlock()
	q.ringDead(posted > 0)
	return posted, err
}

// ringDead makes the shard of a QP in ERR flush what was just posted. The QP entered ERR before its
// shard looked at the queue, or sees the work request there.
func (q *QP) ringDead(posted bool) {
	if posted && q.qp.State() == StateErr {
		q.qp.RingDoorbell()
		q.poller.wake()
	}
}
