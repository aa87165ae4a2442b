package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers what goes wrong for a while, beside the faults of single frames: paths that are
// cut, shards that sleep, TX rings that are full, receives that are not posted, send queues that
// stall.

// chaos schedules troubles one after the other.
type chaos struct {
	off    bool
	mends  []func()   // of the troubles that last
	join   func()     // the hosts that are cut off from each other, nil: none are
	faults sim.Faults // of single frames
	mercy  bool       // no faults and troubles for now
}

const (
	chaosGap   = 150_000   // ns between two troubles at most
	chaosLasts = 1_500_000 // ns a trouble lasts at most
	severEvery = 256       // troubles to one path that is cut for so long that retries run out

	// Troubles begin in the first chaosBusy of each chaosPeriod only, ns. Else they follow each other
	// so closely that now and then all eight tries of a request, 1 ms apart, met one.
	chaosPeriod = 8_000_000
	chaosBusy   = 4_000_000

	// All faults and troubles end while a request has no more than mercyLeft tries left: one that runs
	// out of them then has found an error, not bad luck. Looked at every mercyEvery, ns, which is less
	// than the shortest ACK timeout.
	mercyLeft  = 2
	mercyEvery = 500_000
)

func (w *world) startChaos() {
	if s := w.o.Script; s != nil {
		s.Start(w.f, w.ordered)
	}
	if w.o.Calm || w.o.Script != nil {
		return
	}
	w.chaos.faults = w.o.Faults
	if w.o.Faults.Duplicate > 0 {
		w.chaos.faults.Script = w.echo
		w.f.SetFaults(w.chaos.faults)
	}
	w.f.At(chaosGap, w.nextTrouble)
	if !w.lossy {
		w.f.At(mercyEvery, w.mercy)
	}
}

// mercy ends faults and troubles while a connection that is not cut off is at its last tries.
func (w *world) mercy() {
	if w.chaos.off {
		return
	}
	needed := false
	for _, c := range w.conns {
		needed = needed || c.desperate()
	}
	if needed != w.chaos.mercy {
		w.chaos.mercy = needed
		if needed {
			w.f.SetFaults(sim.Faults{})
			w.endTroubles()
		} else {
			w.f.SetFaults(w.chaos.faults)
		}
	}
	w.f.At(w.f.Now()+mercyEvery, w.mercy)
}

// desperate reports whether a request of the connection has few tries left, and should succeed.
func (c *conn) desperate() bool {
	if c.typ != rxe.RC || c.severed || c.dying {
		return false
	}
	for _, e := range []*end{c.a, c.b} {
		if r := e.q.Inspect().Requester; r.HasOldest && r.Retries <= mercyLeft {
			return true
		}
	}
	return false
}

// echo lets many a SEND_WITH_INV come again late, when the region is perhaps registered anew.
func (w *world) echo(_ uint64, _, _ *sim.Node, b []byte) sim.Verdict {
	if op := wire.Opcode(b[w.bth]); (op == wire.RCSendOnlyInv || op == wire.RCSendLastInv) && w.r.Intn(3) == 0 {
		return sim.Echo
	}
	return sim.Chance
}

func (w *world) nextTrouble() {
	if w.chaos.off {
		return
	}
	if phase := w.f.Now() % chaosPeriod; phase >= chaosBusy {
		w.f.At(w.f.Now()+chaosPeriod-phase, w.nextTrouble)
		return
	}
	if w.chaos.mercy {
		w.f.At(w.f.Now()+mercyEvery, w.nextTrouble)
		return
	}
	r := w.r
	lasts := rxe.Time(1000 + r.Intn(chaosLasts))
	if r.Intn(4) != 0 {
		lasts /= 20
	}
	h := w.pick()
	i := r.Intn(len(h.n.Dev.Shards()))
	if r.Intn(severEvery) == 0 {
		w.sever(h, w.pick())
	}
	switch r.Intn(8) {
	case 0:
		w.sleep(h, i, lasts)
	case 1:
		w.partition(h, w.pick(), lasts)
	case 2:
		w.fillTx(h, i, lasts)
	case 3:
		w.holdTx(h, i, lasts)
	case 4:
		w.rnrStorm(h, lasts)
	default:
		e := w.conns[r.Intn(len(w.conns))].a
		if r.Intn(2) == 0 {
			e = e.peer
		}
		if r.Intn(2) == 0 {
			w.stall(e, lasts)
		} else {
			e.drain()
		}
	}
	w.f.At(w.f.Now()+rxe.Time(r.Intn(chaosGap)), w.nextTrouble)
}

// lasts undoes a trouble later, or when troubles end.
func (w *world) lasts(d rxe.Time, mend func()) {
	mend = once(mend)
	w.chaos.mends = append(w.chaos.mends, mend)
	if len(w.chaos.mends) > 256 {
		w.chaos.mends = append(w.chaos.mends[:0], w.chaos.mends[128:]...)
	}
	w.f.At(w.f.Now()+d, mend)
}

// once is f the first time it is called, and nothing later.
func once(f func()) func() {
	done := false
	return func() {
		if !done {
			done = true
			f()
		}
	}
}

// endTroubles undoes all troubles but a cut.
func (w *world) endTroubles() {
	for _, mend := range w.chaos.mends {
		mend()
	}
	w.chaos.mends = w.chaos.mends[:0]
}

// endChaos undoes all troubles for good.
func (w *world) endChaos() {
	w.chaos.off = true
	w.endTroubles()
	if w.chaos.join != nil {
		w.chaos.join()
	}
	w.f.At(w.f.Now(), w.tick)
}

// tick lets every end wind up.
func (w *world) tick() {
	if w.idle() || w.failed() {
		return
	}
	for _, c := range w.conns {
		c.a.topUp()
		c.b.topUp()
	}
	gap := rxe.Time(20_000)
	if w.ticks++; w.ticks > 2000 { // it hangs, or almost
		gap *= 50
	}
	w.f.At(w.f.Now()+gap, w.tick)
}

func (w *world) sleep(h *host, shard int, d rxe.Time) {
	h.n.Sleep(shard, true)
	w.lasts(d, func() { h.n.Sleep(shard, false) })
}

func (w *world) partition(h, peer *host, d rxe.Time) {
	h.n.Partition(peer.n, true)
	w.lasts(d, func() {
		if !w.apart(h, peer) {
			h.n.Partition(peer.n, false)
		}
	})
}

// sever cuts all between two hosts for so long that every request outstanding must fail.
func (w *world) sever(h, peer *host) {
	if h == peer || w.cut[0] != nil {
		return
	}
	w.cut = [2]*host{h, peer}
	longest := rxe.Time(0)
	var all []waiting
	for _, c := range w.conns {
		if !c.severable() {
			continue
		}
		c.severed = true
		longest = max(longest, rxe.AckTimeout(c.attr.Timeout))
		for _, e := range []*end{c.a, c.b} {
			if e.wc.next != e.wc.acked.Next() {
				all = append(all, waitingOf(e))
			}
		}
	}
	h.n.Partition(peer.n, true)
	peer.n.Partition(h.n, true)
	w.chaos.join = once(func() {
		for _, x := range all {
			x.check()
		}
		w.cut, w.chaos.join = [2]*host{}, nil
		h.n.Partition(peer.n, false)
		peer.n.Partition(h.n, false)
	})
	w.f.At(w.f.Now()+longest*9+20_000_000, w.chaos.join)
}

// severable reports whether a connection runs between the hosts that are cut off from each other.
func (c *conn) severable() bool {
	return c.typ == rxe.RC && c.w.apart(c.a.h, c.b.h)
}

// apart reports whether two hosts are cut off from each other for long.
func (w *world) apart(a, b *host) bool {
	return a != b && (w.cut == [2]*host{a, b} || w.cut == [2]*host{b, a})
}

// waiting is an end whose request goes unanswered.
type waiting struct {
	e     *end
	q     *rxe.QP
	done  uint32
	acked wire.PSN
	at    rxe.Time
}

func waitingOf(e *end) waiting { return waiting{e, e.q, e.done, e.wc.acked, e.w.f.Now()} }

// check makes sure that the request has failed since. One that an answer on its way still reached has not,
// though nothing tells if it was unsignaled.
func (x waiting) check() {
	e := x.e
	if e.w.chaos.off || e.q != x.q || e.done != x.done || e.wc.acked != x.acked || e.c.dying || e.failed ||
		e.posted == e.done {
		return
	}
	e.w.violate("%v: tries for %d ms and does not give up", e, (e.w.f.Now()-x.at)/1e6)
}

func (w *world) fillTx(h *host, shard int, d rxe.Time) {
	h.n.FillTx(shard, true)
	w.lasts(d, func() { h.n.FillTx(shard, false) })
}

func (w *world) holdTx(h *host, shard int, d rxe.Time) {
	h.n.HoldTx(shard, true)
	w.lasts(d, func() { h.n.HoldTx(shard, false) })
}

// rnrStorm lets a host post no receives.
func (w *world) rnrStorm(h *host, d rxe.Time) {
	h.rnr = true
	w.lasts(d, func() {
		h.rnr = false
		for _, q := range h.rxqs {
			q.refill()
		}
	})
}

// stall keeps back what an end posts, at whatever work request its queue is.
func (w *world) stall(e *end, d rxe.Time) {
	e.stalled = true
	w.lasts(d, func() {
		e.stalled = false
		if !e.c.dying {
			e.release()
		}
	})
}

// held runs f when no shard of the ends is in the middle of a step: control calls need it held.
func (w *world) held(f func(), ends ...*end) {
	for _, e := range ends {
		if e.h.n.Busy(e.rxq.shard.ID) {
			w.f.At(w.f.Now()+500, func() { w.held(f, ends...) })
			return
		}
	}
	f()
}

// drain stops the send queue at a message's end, by SQD.
func (e *end) drain() { e.w.held(e.startDrain, e) }

func (e *end) startDrain() {
	if e.sqd || e.c.dying || e.q.State() != rxe.StateRTS {
		return
	}
	e.sqd = true
	e.w.must(e.q.Modify(&rxe.QPAttr{State: rxe.StateSQD, EnSQDAsyncNotify: true},
		rxe.AttrState|rxe.AttrEnSQDAsyncNotify))
	e.h.collect(e.q.Shard())
	e.w.f.KickShard(e.h.n, e.q.Shard().ID)
}

// drained continues after SQD.
func (e *end) drained() {
	if !e.sqd {
		e.w.violate("%v: drained, but not in SQD", e)
		return
	}
	q := e.q
	goOn := func() {
		if e.q != q || e.c.dying || q.State() != rxe.StateSQD {
			return
		}
		e.sqd = false
		e.w.must(q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
		e.w.f.KickShard(e.h.n, q.Shard().ID)
	}
	e.w.f.At(e.w.f.Now()+rxe.Time(e.w.r.Intn(30_000)), func() { e.w.held(goOn, e) })
}

// ordered carries out what a script orders beyond the fabric.
func (w *world) ordered(x sim.Order) {
	h := w.hosts[x.Node.ID()]
	switch x.What {
	case "rnr":
		w.rnrStorm(h, x.For)
	case "stall":
		for _, c := range w.conns {
			for _, e := range []*end{c.a, c.b} {
				if e.h == h {
					w.stall(e, x.For)
				}
			}
		}
	}
}
