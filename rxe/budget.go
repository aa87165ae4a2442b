package rxe

// This file covers what all RC QPs of a shard may have in flight together. A window of its own for
// each QP is not enough: the path, the peer's ring above all, holds so many frames whoever sent
// them, and hundreds of QPs with a fair window each overrun it.

// withinBudget reports whether a QP with n packets in flight may send one more. The first is free,
// so that a dead peer, whose packets stay in the budget until their retries are used up, holds
// nobody else up.
func (q *QP) withinBudget(n uint32) bool {
	if n == 0 || q.shard.inFlight < q.dev.cfg.Budget {
		return true
	}
	q.hungry = true
	return false
}

// budgetAge is how long a packet counts. What has not been acknowledged by then is in no ring any
// more: it is lost, or the path is so long that the window alone decides.
const budgetAge Time = 10_000_000

// release takes what is in flight out of the budget: it is in no ring any more.
func (q *QP) release() {
	q.req.aged = uint32(q.req.psn.Diff(q.req.una))
	q.account()
}

// account follows a change of what the QP has in flight.
func (q *QP) account() {
	r := &q.req
	n := uint32(r.psn.Diff(r.una)) - r.aged
	q.shard.inFlight += n - r.counted
	r.counted = n
}

// canUnpark reports whether a parked QP may try again.
func (s *Shard) canUnpark() bool { return !s.parked.empty() && s.inFlight < s.dev.cfg.Budget }

// park takes a QP out of the round until the budget has room. First come, first served.
func (s *Shard) park(q *QP) {
	if q.nextReady == nil {
		q.hungry, q.waits = false, true
		s.parked.add(q)
	}
}

// wantRequest puts a QP that may have requests to send on the ready list, or behind those that wait
// for the budget already: an acknowledgement is no way to jump the queue.
func (s *Shard) wantRequest(q *QP) {
	if s.parked.empty() || q.resp.urgent() {
		s.wantSend(q)
		return
	}
	s.park(q)
}

// unpark gives the QP that has waited longest its turn.
func (s *Shard) unpark() {
	q := s.parked.front()
	s.unparkQP(q)
	s.ready.add(q)
}

func (s *Shard) unparkQP(q *QP) {
	q.waits = false
	s.parked.remove(q)
}

// unlist takes a QP off whatever list it is on.
func (s *Shard) unlist(q *QP) {
	q.hungry, q.waits = false, false
	s.ready.remove(q)
}
