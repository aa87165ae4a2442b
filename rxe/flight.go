package rxe

// This file covers how much a QP has in flight, and what it makes of losses.
//
// A lost packet says little about what a path holds: networks lose some at random, and go-back-N
// pays a round trip for each as it is. What the path holds shows in the delay. As long as a round
// trip takes less than twice the shortest one, at most half of the packets in flight wait in a
// queue, and a smaller window would leave the path idle. So a loss halves the window only when the
// delay has doubled: then half of it still fills the path. Three more signs count as well: a loss
// that only the ACK timeout has found, losses before the delay is known, and losses in flight after
// flight, as of a ring that is shorter than the path.

// Losses in lossyFlights flights on end, in each before three packets have arrived for four sent in
// vain, are taken for a ring that overflows.
const lossyFlights = 4

// lossyFor is for how many packets a path is thought to lose some after it has lost one.
const lossyFor = 1 << 14

// probeMin is the shortest time without progress before a probe, in ns.
const probeMin Time = 100_000

// flight is what a requester knows of its path.
type flight struct {
	cwnd, acc uint32 // window, and fraction of the next packet of growth
	ssthresh  uint32
	lossAt    PSN // una at the last loss
	recover   PSN // losses before it belong to the same episode
	timed     PSN // the packet whose round trip is measured
	lossRow   uint8
	timing    bool
	recovers  bool
	lossy     bool // has lost packets lately
	guessed   bool // that, by an ACK timeout: the peer may as well have been busy for so long
	probed    bool // since the last progress
	probing   bool // one packet is in flight, to see what the peer makes of it

	timedAt Time // when it was sent
	probeAt Time
	rtt     Time // the last round trip
	mean    Time // of round trips, 0: none was measured
	swing   Time // mean deviation
	least   Time // the shortest of late
}

// window is how many packets may be in flight.
func (r *flight) window() uint32 {
	if r.probing {
		return 1
	}
	return r.cwnd
}

// clock begins to measure the round trip of packet psn, if none is being measured.
func (r *flight) clock(psn PSN, now Time) {
	if !r.timing {
		r.timing, r.timed, r.timedAt = true, psn, now
	}
}

// clocked takes the measurement when una says that the packet has arrived. Packets that were sent
// twice are not measured: rewind forgets them (Karn's rule).
func (r *flight) clocked(una PSN, now Time) {
	if !r.timing || una.Diff(r.timed) <= 0 {
		return
	}
	r.timing = false
	r.rtt = max(now-r.timedAt, 1)
	if r.mean == 0 {
		r.mean, r.swing, r.least = r.rtt, r.rtt/2, r.rtt
		return
	}
	d := r.rtt - r.mean
	r.mean += d / 8
	r.swing += (max(d, -d) - r.swing) / 4
	r.least += (r.mean - r.least) >> 14 // paths change
	r.least = min(r.least, r.rtt)
}

// queues reports whether the delay says that packets wait in a queue, or nothing yet.
func (r *flight) queues(now Time) bool {
	rtt := r.rtt
	if r.timing {
		rtt = max(rtt, now-r.timedAt)
	}
	return rtt >= 2*r.least
}

// lost notes the loss of packet una. It halves the window, once for all losses of one flight, if
// that may help.
func (q *QP) lost(timeout bool) {
	r := &q.req
	arrived, sent := r.una.Diff(r.lossAt), r.psn.Diff(r.una)
	if r.lossy && arrived < sent*3/4 {
		r.lossRow++
	} else {
		r.lossRow = 0
	}
	r.guessed = timeout && (r.guessed || !r.lossy)
	r.lossy, r.lossAt = true, r.una
	overrun := r.lossRow >= lossyFlights
	if !timeout && (r.recovers && r.una.Diff(r.recover) < 0 || !overrun && !r.queues(q.shard.now)) {
		return
	}
	q.shard.C.WindowHalved++
	r.recovers, r.recover, r.lossRow = true, r.sent, 0
	r.ssthresh = max(r.cwnd/2, q.dev.cfg.MinWindow)
	r.cwnd, r.acc = r.ssthresh, 0
}

// grow opens the window by n acknowledged packets: by as many below the threshold, by one a
// window above it.
func (r *requester) grow(n, limit uint32) {
	if r.recovers && r.una.Diff(r.recover) >= 0 {
		r.recovers = false
	}
	if r.lossy && r.una.Diff(r.lossAt) >= lossyFor {
		r.lossy = false
	}
	r.probed, r.probing = false, false
	if r.cwnd >= limit {
		return
	}
	if r.cwnd < r.ssthresh {
		r.cwnd = min(r.cwnd+n, limit)
		return
	}
	for r.acc += n; r.acc >= r.cwnd && r.cwnd < limit; r.cwnd++ {
		r.acc -= r.cwnd
	}
}

// heardTwice notes that the peer has acknowledged the last packet once more. After an ACK timeout that
// says that it had come the first time.
func (r *flight) heardTwice() {
	if r.guessed {
		r.lossy, r.guessed = false, false
	}
}

// mayProbe reports whether a probe may be sent when nothing is heard. Go-back-N finds a lost packet
// by those behind it. Where the NAK itself is lost, or a packet that was sent again, nothing comes
// but the ACK timeout, thousands of round trips later. On a path that loses packets, one packet goes
// out before: if it was the lost one, all goes on with its ACK; if not, the ACK of a duplicate says
// what has arrived. It is no retry: the ACK timeout counts those.
func (q *QP) mayProbe() bool {
	r := &q.req
	return r.lossy && !r.probed && r.mean > 0 && q.attr.Timeout != 0 && !q.dev.cfg.NoProbe
}

// probe sends the oldest packet again, alone. READs and atomics are left to the ACK timeout.
func (q *QP) probe() {
	r := &q.req
	r.probed = true
	r.skipDoneLocals()
	if r.ack == r.head || r.entry(r.ack).answered() {
		return
	}
	q.rewind()
	r.probing = true
}
