package rxe

import "github.com/roxie-rdma/roxie/rxe/wire"

// This file tells drivers what frames were about, and which QPs failed. A driver that captures calls
// ReceiveTraced and TransmitTraced in place of Receive and Transmit: the engine does the same either
// way, and pays nothing for the telling when nobody asks.

// traceEntries is how many send WQEs a trace looks through for the one of a PSN.
const traceEntries = 4096

// maxFailures is how many failures wait to be collected.
const maxFailures = 1024

// Trace is what the engine knows of one frame.
type Trace struct {
	QP    QPN    // of this end: the one that sent the frame or that it is for; with HasQP
	WRID  uint64 // the work request's ID; with HasWR
	Drop  Reason // why a received frame was dropped or refused; ReasonNone: it was not
	HasQP bool
	HasWR bool // of the send queue, or with Recv of the receive queue
	Recv  bool
	Again bool // sent before; of a received one: a duplicate request, which has no receive WQE
	// Handed is set for a frame that was given to the shard of its QP. What that shard made of it
	// is not known.
	Handed bool
}

// ReceiveTraced is Receive, and fills t.
func (s *Shard) ReceiveTraced(now Time, f Frame, t *Trace) {
	*t = Trace{Drop: ReasonNone}
	var q *QP
	var flags wire.Flags
	if p := &s.pkt; wire.ParseNoICRC(f, p) == wire.ReasonOK && p.DestQP != QPNMulti {
		flags = p.Info.Flags
		if q = s.dev.qps.get(p.DestQP); q != nil {
			t.QP, t.HasQP = q.qpn, true
			if q.shard == s && flags&wire.FlagResponse != 0 {
				t.WRID, t.HasWR = q.sendWQE(p.PSN)
			}
		}
	}
	drops, handed, dup := s.C.Drops, s.C.Handovers, s.C.DuplicateRequest
	s.Receive(now, f)
	t.Again = s.C.DuplicateRequest != dup
	t.Handed = s.C.Handovers != handed
	for r := range drops {
		if s.C.Drops[r] != drops[r] {
			t.Drop = Reason(r)
			return
		}
	}
	if q != nil && q.shard == s && !t.Again && flags&(wire.FlagSend|wire.FlagConsumesRecv) != 0 {
		t.WRID, t.HasWR, t.Recv = q.resp.recv.id, true, true
	}
}

// TransmitTraced is Transmit, and fills t if there was a frame to send.
func (s *Shard) TransmitTraced(now Time, f Frame, t *Trace) int {
	again := s.C.Retransmits
	n := s.Transmit(now, f)
	if n == 0 {
		return 0
	}
	*t = Trace{Drop: ReasonNone, Again: s.C.Retransmits != again}
	h := min(n, len(f.Head))
	p := &s.pkt
	q := s.dev.qps.get(s.sender)
	if q == nil || wire.ParseNoICRC(Frame{Head: f.Head[:h], Tail: f.Tail[:n-h]}, p) != wire.ReasonOK {
		return n
	}
	t.QP, t.HasQP = q.qpn, true
	if p.Info.Flags&wire.FlagResponse == 0 {
		t.WRID, t.HasWR = q.sendWQE(p.PSN)
	}
	return n
}

// sendWQE finds the WR ID of the send WQE that a PSN belongs to: one in flight, or the last one that
// was sent.
func (q *QP) sendWQE(x PSN) (id uint64, ok bool) {
	r := &q.req
	if len(r.entries) == 0 {
		return 0, false
	}
	for i, n := r.tail-1, 0; i-r.tail+1 <= r.head-r.tail && n < traceEntries; i, n = i+1, n+1 {
		e := r.entry(i)
		if !e.local() && e.state != entryNew &&
			x.Diff(e.first) >= 0 && e.last.Diff(x) >= 0 {
			return e.id, true
		}
	}
	return 0, false
}

// Failure is a QP that went to ERR, or SQE, by itself.
type Failure struct {
	QP     *QP
	Reason Reason
}

// Failures returns the QPs that failed since the last call; not those that an application moved to
// ERR. The slice is valid until the next call of any method of the shard. What nobody collects is
// forgotten beyond a bound.
func (s *Shard) Failures() []Failure {
	f := s.failures
	s.failures = s.failures[:0]
	return f
}

// fails notes that the QP is about to fail. Its first failure counts.
func (q *QP) fails(why Reason) {
	if q.state == StateErr {
		return
	}
	s := q.shard
	q.lastErr = LastError{Reason: why, At: s.now}
	if len(s.failures) < maxFailures {
		s.failures = append(s.failures, Failure{QP: q, Reason: why})
	}
}
