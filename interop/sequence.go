package main

import (
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// sequence follows the PSNs of what roxie captured.
//
// It finds what is missing, refused, or sent again. Sending again is allowed after a timeout, and
// counted. But a machine that is emulated, on processors that others want too, now and then stands
// still for longer than the 67 ms that Linux's pingpongs and RDMA-CM tools wait for an ACK, which
// cannot be changed, nor can what RDMA-CM chooses, half a second. (On a loaded machine with two processors even a thread of real-time priority
// that sleeps for 1 ms was late by 88 ms within 20 s.) What Linux then repeats is no fault of
// roxie's if roxie had answered in time, and is told apart: needless. Of the rest, what one timeout
// has sent again counts once with those tools; with perftest, which is told to wait for a second
// unless RDMA-CM (-R) connects it, each packet counts, as all of roxie's do.
type sequence struct {
	pmtu  int
	flows map[flowID]*flow
	// again counts requests that were sent again, by whether Linux did.
	again    map[bool]int
	needless int // of those, Linux's of what roxie owed no answer to
	// timeouts is how often that began, without what was needless.
	timeouts map[bool]int
	rnr      int   // RNR NAKs
	err      error // the first fault
}

// flowID names the requests that go to one QP.
type flowID struct {
	fromGuest bool
	qp        wire.QPN
}

// flow is where the requests to a QP are.
type flow struct {
	first wire.PSN
	next  wire.PSN  // expected
	at    wire.PSN  // of the last request
	last  time.Time // when that was sent
	heard time.Time // when it came to roxie, or left it
	again bool      // the last one was sent again
	asked bool      // an RNR NAK has asked to repeat since
	// needless: the repetition that goes on is
	needless bool

	// Of a flow from Linux, roxie's answers:
	late   wire.PSN // all before it came too late
	owed   []owed   // not yet given
	answer wire.QPN // the QP of Linux's that they go to
	paired bool     // answer is known
}

// owed is a request that asks for an ACK, and when roxie had it.
type owed struct {
	psn   wire.PSN
	since time.Time
}

func newSequence(pmtu int) *sequence {
	return &sequence{pmtu: pmtu, flows: make(map[flowID]*flow), again: make(map[bool]int),
		timeouts: make(map[bool]int)}
}

func (s *sequence) fault(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// see takes the next packet.
func (s *sequence) see(p *packet) {
	if p.refused != wire.ReasonOK {
		return
	}
	switch p.Info.Service {
	case wire.RC:
		if p.Info.Flags&wire.FlagRequest != 0 {
			s.request(p)
		} else if p.Info.Flags&wire.FlagAck != 0 {
			s.ack(p)
		}
	case wire.UC:
		s.request(p)
	}
}

// request follows the requests to a QP.
func (s *sequence) request(p *packet) {
	id := flowID{p.fromGuest, p.DestQP}
	f := s.flows[id]
	if f == nil {
		f = &flow{first: p.PSN, next: p.PSN, late: p.PSN}
		s.flows[id] = f
	}
	switch ahead := p.PSN.Diff(f.next); {
	case ahead > 0:
		s.fault("%d PSNs are missing before %v", ahead, p)
	case ahead < 0:
		s.repeated(f, p)
	}
	if p.PSN.Diff(f.next) >= 0 {
		f.next, f.again, f.needless = p.PSN.Add(s.psns(p)), false, false
		if p.fromGuest && p.AckReq {
			f.owed = append(f.owed, owed{p.PSN, p.at})
		}
	}
	f.asked, f.at, f.last, f.heard = false, p.PSN, p.sent, p.at
}

// repeated judges a request that was sent again.
func (s *sequence) repeated(f *flow, p *packet) {
	s.again[p.fromGuest]++
	if p.PSN.Diff(f.at) <= 0 { // it goes back once more
		f.again, f.needless = false, false
	}
	switch waited := p.sent.Sub(f.last); {
	case f.again || f.asked: // goes on, or was asked for
	case waited < leastTimeout:
		// rxe does not stop its timer when all is acknowledged: it may fire for what was sent since
		// ("we still might get spurious timeouts", rxe_comp.c).
		if !p.fromGuest {
			s.fault("sent again after %v only: %v", waited, p)
		}
		f.needless = true
	case p.fromGuest:
		f.needless = p.at.Sub(f.heard) >= leastTimeout && !f.owes(p)
	}
	switch {
	case f.needless:
		s.needless++
	case !f.again:
		s.timeouts[p.fromGuest]++
	}
	f.again = true
}

// owes says whether roxie had not answered in time what is sent again with p.
func (f *flow) owes(p *packet) bool {
	if p.PSN.Diff(f.late) < 0 {
		return true
	}
	return len(f.owed) > 0 && p.at.Sub(f.owed[0].since) > answerTime
}

// psns is how many PSNs a request takes: a READ as many as its response has packets.
func (s *sequence) psns(p *packet) uint32 {
	if p.Info.Flags&wire.FlagRead == 0 {
		return 1
	}
	n := (int(p.RETH().Length()) + s.pmtu - 1) / s.pmtu
	return uint32(max(n, 1))
}

// ack looks for what should not be, and for roxie's answers.
func (s *sequence) ack(p *packet) {
	switch a := p.AETH().Syndrome(); a.Kind() {
	case wire.KindRNR:
		s.rnr++
		// It goes to the requester: whichever QP that sends to has to repeat.
		for id, f := range s.flows {
			if id.fromGuest != p.fromGuest {
				f.asked = true
			}
		}
	case wire.KindNAK:
		s.fault("a NAK: %v of %v", a, p)
	default:
		if f := s.answered(p); f != nil {
			f.acknowledged(p)
		}
	}
}

// answered finds the flow from Linux that an ACK of roxie's belongs to: by its PSN at first, as
// those begin anywhere among 2^24.
func (s *sequence) answered(p *packet) *flow {
	if p.fromGuest {
		return nil
	}
	for id, f := range s.flows {
		if id.fromGuest && f.paired && f.answer == p.DestQP {
			return f
		}
	}
	for id, f := range s.flows {
		if id.fromGuest && !f.paired && p.PSN.Diff(f.first) >= 0 && p.PSN.Diff(f.next) < 0 {
			f.paired, f.answer = true, p.DestQP
			return f
		}
	}
	return nil
}

// acknowledged notes that roxie has acknowledged all up to p's PSN.
func (f *flow) acknowledged(p *packet) {
	next := p.PSN.Add(1)
	for len(f.owed) > 0 && f.owed[0].psn.Diff(next) < 0 {
		if p.at.Sub(f.owed[0].since) > answerTime {
			f.late = f.owed[0].psn.Add(1)
		}
		f.owed = f.owed[1:]
	}
}

// verdict sums up a capture of so many packets of a cell. Both ends may repeat little, and each QP
// once: when the guest does not run for longer than a timeout, that is what all of them do.
func (s *sequence) verdict(packets int, c *Cell) error {
	if s.err != nil {
		return s.err
	}
	n := s.again[false] + s.timeouts[true]
	switch {
	case c.Option == "cm": // RDMA-CM chooses the timeout, of both ends
		n = s.timeouts[false] + s.timeouts[true]
	case c.perftest():
		n = s.again[false] + s.again[true] - s.needless
	}
	if limit := max(packets/retransmitShare, retransmitFloor*c.QPs); n > limit {
		return fmt.Errorf("%d of %d packets were sent again, more than %d: %d by roxie, %d by Linux after "+
			"%d timeouts, and %d needlessly", n, packets, limit, s.again[false],
			s.again[true]-s.needless, s.timeouts[true], s.needless)
	}
	return nil
}
