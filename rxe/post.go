package rxe

// This file covers the poster's side: checking a work request and encoding it into its queue.

// PostSend encodes wr into the send queue. One poster at a time; the caller rings the doorbell
// after its last one. Errors are the Err values of this package; nothing is posted then.
func (q *QP) PostSend(wr *SendWR) error {
	switch QPState(q.appState.Load()) {
	case StateReset, StateInit, StateRTR:
		return ErrBadState
	}
	if err := q.checkSend(wr); err != nil {
		return err
	}
	m, i := q.SQ.reserve()
	if m == nil {
		return ErrQueueFull
	}
	encodeSend(m, wr)
	q.SQ.prod.Store(i + 1)
	return nil
}

// checkSend applies what can be known at post time.
func (q *QP) checkSend(wr *SendWR) error {
	if !postable(q.typ, wr.Opcode) {
		return ErrBadOpcode
	}
	if wr.Flags&SendInline != 0 {
		if !inlineOK(wr.Opcode) {
			return ErrInlineOp
		}
		if len(wr.Inline) > int(q.init.MaxInline) {
			return ErrInlineSize
		}
		if wr.Opcode == WRAtomicWrite && (len(wr.Inline) != 8 || wr.RemoteAddr%8 != 0) {
			return ErrAlignment
		}
		return nil
	}
	if len(wr.SGEs) > int(q.init.MaxSend) {
		return ErrTooManySGE
	}
	var n uint64
	for i := range wr.SGEs {
		n += uint64(wr.SGEs[i].Length)
	}
	switch wr.Opcode {
	case WRAtomicCmpSwap, WRAtomicFetchAdd, WRAtomicWrite:
		if n != 8 || wr.RemoteAddr%8 != 0 {
			return ErrAlignment
		}
	case WRRDMARead:
		if n <= MaxMessage && packets(uint32(n), q.pmtuForPost()) > maxOutstanding {
			return ErrReadLen
		}
	}
	if n > MaxMessage {
		return ErrMsgSize
	}
	return nil
}

// pmtuForPost is the path MTU for posters: set before the QP can be posted to.
func (q *QP) pmtuForPost() uint32 { return q.pmtu }

// postable is the table of operations by QP type (IBTA 10.8.2.3, as far as RoCE has them).
func postable(t QPType, op WROpcode) bool {
	switch op {
	case WRSend, WRSendWithImm:
		return true
	case WRRDMAWrite, WRRDMAWriteWithImm:
		return t == RC || t == UC
	case WRBindMW, WRLocalInv, WRRegMR:
		return t == RC || t == UC && op == WRBindMW
	case WRRDMARead, WRAtomicCmpSwap, WRAtomicFetchAdd, WRSendWithInv, WRFlush, WRAtomicWrite:
		return t == RC
	}
	return false
}

// PostRecv encodes wr into the QP's receive queue. One poster at a time. A QP in ERR is rung so
// that the shard flushes it.
func (q *QP) PostRecv(wr *RecvWR) error {
	if QPState(q.appState.Load()) == StateReset || q.srq != nil {
		return ErrBadState
	}
	if len(wr.SGEs) > int(q.init.MaxRecv) {
		return ErrTooManySGE
	}
	m, i := q.RQ.reserve()
	if m == nil {
		return ErrQueueFull
	}
	encodeRecv(m, wr)
	q.RQ.prod.Store(i + 1)
	return nil
}
