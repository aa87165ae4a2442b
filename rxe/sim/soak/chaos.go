package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// This file covers what goes wrong for a while, beside the faults of single frames: paths that are
// cut, shards that sleep, TX rings that are full, receives that are not posted, send queues that
// stall.

// chaos schedules troubles one after the other.
type chaos struct {
	off   bool
	mends []func() // of the troubles that last
}

const (
	chaosGap   = 150_000   // ns between two troubles at most
	chaosLasts = 1_500_000 // ns a trouble lasts at most
)

func (w *world) startChaos() {
	if s := w.o.Script; s != nil {
		s.Start(w.f, w.ordered)
	}
	if w.o.Calm || w.o.Script != nil {
		return
	}
	w.f.At(chaosGap, w.nextTrouble)
}

func (w *world) nextTrouble() {
	if w.chaos.off {
		return
	}
	r := w.r
	lasts := rxe.Time(1000 + r.Intn(chaosLasts))
	if r.Intn(4) != 0 {
		lasts /= 20
	}
	h := w.pick()
	i := r.Intn(len(h.n.Dev.Shards()))
	switch r.Intn(8) {
	case 0:
		w.sleep(h, i, lasts)
	case 1:
		w.cut(h, w.pick(), lasts)
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

// lasts undoes a trouble later, or when the run ends.
func (w *world) lasts(d rxe.Time, mend func()) {
	done := false
	once := func() {
		if !done {
			done = true
			mend()
		}
	}
	w.chaos.mends = append(w.chaos.mends, once)
	if len(w.chaos.mends) > 256 {
		w.chaos.mends = append(w.chaos.mends[:0], w.chaos.mends[128:]...)
	}
	w.f.At(w.f.Now()+d, once)
}

// endChaos undoes all troubles.
func (w *world) endChaos() {
	w.chaos.off = true
	for _, mend := range w.chaos.mends {
		mend()
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
	w.f.At(w.f.Now()+20_000, w.tick)
}

func (w *world) sleep(h *host, shard int, d rxe.Time) {
	h.n.Sleep(shard, true)
	w.lasts(d, func() { h.n.Sleep(shard, false) })
}

func (w *world) cut(h, peer *host, d rxe.Time) {
	h.n.Partition(peer.n, true)
	w.lasts(d, func() { h.n.Partition(peer.n, false) })
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

// drain stops the send queue at a message's end, by SQD.
func (e *end) drain() {
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
	e.w.f.At(e.w.f.Now()+rxe.Time(e.w.r.Intn(30_000)), func() {
		if e.q != q || e.c.dying || q.State() != rxe.StateSQD {
			return
		}
		e.sqd = false
		e.w.must(q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
		e.w.f.KickShard(e.h.n, q.Shard().ID)
	})
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
