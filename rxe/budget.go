package rxe

// This file covers what all RC QPs of a shard may have in flight together. A window of its own for
// each QP is not enough: the path, the peer's ring above all, holds so much whoever sent it, and
// hundreds of QPs with a fair window each overrun it.
//
// What a ring has are chunks, of 4 KiB with AF_XDP. QPs whose requests the budget holds back are
// parked, first come, first served. Each has a burst when its turn comes, and its place then is the
// last one: an acknowledgement, a doorbell or an answer to the peer is no way to jump the queue.

// chunkPMTU is the largest path MTU in bytes whose packets take one chunk each.
const chunkPMTU = 2048

// chunks is how many chunks of the peer's ring a packet of q takes at most.
func (q *QP) chunks() uint32 {
	if q.pmtu > chunkPMTU {
		return 2
	}
	return 1
}

// withinBudget reports whether a QP with n packets in flight may send one more. The first is free,
// so that a dead peer, whose packets stay in the budget until their retries are used up, holds
// nobody else up, and that a message after a rest does not wait behind long ones. But all together
// take twice the budget at most.
func (q *QP) withinBudget(n uint32) bool {
	s, room := q.shard, q.dev.cfg.Budget
	if n == 0 && s.inFlight < 2*room || s.inFlight < room && (s.guest == q || s.parked.empty()) {
		return true
	}
	q.hungry = true
	return false
}

// leavesTight reports whether the packet being built is the last of the QP's turn, and the budget may
// be used up before the next one. Then it must ask for an ACK: if all waited for room with packets in
// flight that nobody is asked to acknowledge, there would be none.
func (q *QP) leavesTight() bool {
	s := q.shard
	return q.burst == burstPackets-1 && s.inFlight >= q.dev.cfg.Budget/2 &&
		(!s.parked.empty() || !s.ready.alone(q))
}

// budgetAge is how long a packet counts at least. What has not been acknowledged by then, although
// others that were sent later have been, is in no ring any more: it is lost, or the path is so long
// that the window alone decides. Where nobody hears anything, a peer may just not run, and its ring
// is as full as it was; but it does not count for longer than budgetLimit. Both in ns.
const (
	budgetAge   Time = 10_000_000
	budgetLimit Time = 1_000_000_000
)

// release takes what is in flight out of the budget: it is in no ring any more.
func (q *QP) release() {
	q.req.aged = uint32(q.req.psn.Diff(q.req.una))
	q.account()
}

// account follows a change of what the QP has in flight.
func (q *QP) account() {
	r := &q.req
	n := (uint32(r.psn.Diff(r.una)) - r.aged) * q.chunks()
	q.shard.inFlight += n - r.counted
	r.counted = n
}

// waits reports whether the QP waits for the budget to have room.
func (q *QP) waits() bool { return q.shard.parked.has(q) }

// canUnpark reports whether a parked QP may try again.
func (s *Shard) canUnpark() bool { return !s.parked.empty() && s.inFlight < s.dev.cfg.Budget }

// park makes a QP's requests wait until the budget has room and those before it have had their turn.
func (s *Shard) park(q *QP) {
	q.hungry = false
	s.parked.add(q)
}

// parkFront parks a QP whose turn is not over.
func (s *Shard) parkFront(q *QP) {
	q.hungry = false
	s.parked.remove(q)
	s.parked.addFront(q)
}

// wantRequest puts a QP that may have requests to send on the ready list, or behind those that wait
// for the budget already.
func (s *Shard) wantRequest(q *QP) {
	if s.parked.empty() || q.req.psn == q.req.una {
		s.wantSend(q)
	} else if s.guest != q {
		s.parked.add(q)
	}
}

// unpark gives the QP that has waited longest its turn.
func (s *Shard) unpark() {
	q := s.parked.front()
	s.parked.remove(q)
	s.ready.add(q)
	s.guest = q
}

// unlist takes a QP off all lists.
func (s *Shard) unlist(q *QP) {
	q.hungry = false
	s.parked.remove(q)
	s.ready.remove(q)
	if s.guest == q {
		s.guest = nil
	}
}
