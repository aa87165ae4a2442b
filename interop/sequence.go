package main

import (
	"fmt"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// sequence follows the PSNs of a capture.
type sequence struct {
	pmtu  int
	flows map[flowID]*flow
	// again counts requests that were sent again, by whether Linux did.
	again map[bool]int
	early int   // of those, Linux's before their time
	rnr   int   // RNR NAKs
	err   error // the first fault
}

// flowID names the requests that go to one QP.
type flowID struct {
	fromGuest bool
	qp        wire.QPN
}

// flow is where the requests to a QP are.
type flow struct {
	started bool
	next    wire.PSN  // expected
	last    time.Time // of the last request
	again   bool      // the last one was sent again
	// spurious: the repetition that goes on began before its time
	spurious bool
	asked    bool // an RNR NAK has asked to repeat since
}

func newSequence(pmtu int) *sequence {
	return &sequence{pmtu: pmtu, flows: make(map[flowID]*flow), again: make(map[bool]int)}
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
		f = &flow{}
		s.flows[id] = f
	}
	ahead := int32(0)
	if f.started {
		ahead = p.PSN.Diff(f.next)
	}
	switch {
	case ahead > 0:
		s.fault("%d PSNs are missing before %v", ahead, p)
	case ahead < 0:
		s.again[p.fromGuest]++
		if !f.again && !f.asked && p.at.Sub(f.last) < leastTimeout {
			// rxe does not stop its timer when all is acknowledged: it may fire for what was sent
			// since ("we still might get spurious timeouts", rxe_comp.c).
			if !p.fromGuest {
				s.fault("sent again after %v only: %v", p.at.Sub(f.last), p)
			}
			f.spurious = true
		}
		if f.spurious {
			s.early++
		}
		f.again = true
	}
	if ahead >= 0 {
		f.next, f.started, f.again, f.spurious = p.PSN.Add(s.psns(p)), true, false, false
	}
	f.asked, f.last = false, p.at
}

// psns is how many PSNs a request takes: a READ as many as its response has packets.
func (s *sequence) psns(p *packet) uint32 {
	if p.Info.Flags&wire.FlagRead == 0 {
		return 1
	}
	n := (int(p.RETH().Length()) + s.pmtu - 1) / s.pmtu
	return uint32(max(n, 1))
}

// ack looks for what should not be.
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
	}
}

// verdict sums up a capture of so many packets to so many QPs. Both ends may repeat little, and each
// QP once: when the guest does not run for longer than a timeout, that is what all of them do.
func (s *sequence) verdict(packets, qps int) error {
	if s.err != nil {
		return s.err
	}
	limit := max(packets/retransmitShare, retransmitFloor*qps)
	if n := s.again[false] + s.again[true] - s.early; n > limit {
		return fmt.Errorf("%d of %d packets were sent again, more than %d", n, packets, limit)
	}
	return nil
}
