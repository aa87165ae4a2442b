package soak

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

const arenaMax = 4 << 20

// host is one device with an application.
type host struct {
	arena
	w       *world
	n       *sim.Node
	pd      mr.PD
	foreign mr.PD
	cqs     []*cqApp
	ends    map[rxe.QPN]*end
	rxqs    []*rxq
	local   *region // the whole arena, for our own work requests
	srqMem  *region // the same, in the domain of shared receive queues
	srqPD   mr.PD
	window  uint32     // of the device
	pool    *region    // the sources, readable by peers
	alien   *region    // of the foreign domain
	shared  *region    // counter that all peers add 1 to
	dead    []mr.Key   // were in force, and are not
	lent    []*lease   // all regions that ends of this host lend
	hot     int        // of them, taken away from under their users
	rnr     bool       // no receives are posted
	serving [8]serving // by shard
	watched bool       // shards that sleep will be looked at

	adds  uint64   // completed additions to the shared counter
	slack uint64   // additions that may have been executed or not
	seen  []uint64 // values the counter has had, one bit each
}

func (w *world) addHost(v6 bool, pace rxe.Time) {
	r := w.r
	h := &host{w: w, ends: map[rxe.QPN]*end{}}
	h.mem, h.shadow = w.o.Scratch.arena(len(w.hosts))
	shards := 1 + r.Intn(4)
	dev := rxe.Config{Window: 16 << r.Intn(5), AckEvery: 1 << r.Intn(7), Credits: r.Intn(3) == 0,
		Handover: 32 << r.Intn(3), MaxQP: 1 << 12}
	burst := max(1<<r.Intn(7), int(pace/500)) // two frames a microsecond get through at least
	n, err := w.f.AddNode(sim.NodeConfig{Shards: shards, V6: v6, Device: dev, TxBurst: burst,
		TxHead: 256 + r.Intn(3600)})
	w.must(err)
	h.n = n
	h.pd, h.foreign, h.srqPD, h.window = n.AllocPD(), n.AllocPD(), n.AllocPD(), dev.Window
	n.OnEvent = h.event
	h.grow(0)
	pool := h.grow(poolSize)
	copy(h.mem[pool:pool+poolSize], junk[r.Intn(4096):])
	copy(h.shadow[pool:], h.mem[pool:pool+poolSize])
	h.pool = h.register(h.pd, pool, poolSize, 0x2000_0000+uint64(r.Intn(4096)), mr.RemoteRead)
	alien := h.grow(256)
	h.alien = h.register(h.foreign, alien, 256, h.addr(alien), sim.AllAccess)
	at := h.grow(16)
	at += -at & 7
	h.setWord(at, 0)
	h.shared = h.register(h.pd, at, 8, h.addr(at), mr.LocalWrite|mr.RemoteAtomic)
	for i, k := 0, 1+r.Intn(3); i < k; i++ {
		h.addCQ()
	}
	w.hosts = append(w.hosts, h)
}

// ready registers the arena once all of it is there.
func (h *host) ready() {
	h.local = h.register(h.pd, 0, uint32(len(h.mem)), arenaBase, mr.LocalWrite)
	h.srqMem = h.register(h.srqPD, 0, uint32(len(h.mem)), arenaBase, mr.LocalWrite)
}

// word reads 8 bytes as the machine's integer, from memory.
func (h *host) word(off uint32) uint64 { return host64(h.mem[off:]) }

// setWord sets 8 bytes in memory and shadow.
func (h *host) setWord(off uint32, v uint64) {
	putHost64(h.mem[off:], v)
	putHost64(h.shadow[off:], v)
}

// event takes what the device reports.
func (h *host) event(e rxe.Event) {
	switch e.Type {
	case rxe.EventCompletion:
		for _, a := range h.cqs {
			if a.cq == e.CQ {
				a.fired()
			}
		}
	case rxe.EventCQErr:
		h.w.violate("CQ %d of host %d overflows", e.CQ.Num, h.n.ID())
	case rxe.EventSRQLimit:
		for _, q := range h.rxqs {
			if q.srq == e.SRQ {
				q.limitReached()
			}
		}
	case rxe.EventQPLastWQE:
		if x := h.ends[e.QP.QPN()]; x != nil && x.q == e.QP {
			x.lastWQE = true
		}
	case rxe.EventSQDrained:
		if x := h.ends[e.QP.QPN()]; x != nil && x.q == e.QP {
			x.drained()
		}
	}
}

// collect takes what a control call has made the device report.
func (h *host) collect(s *rxe.Shard) {
	for _, e := range s.Events() {
		h.event(e)
	}
}

// noteShared checks a value that an addition to the shared counter has returned: each one once.
func (h *host) noteShared(v uint64) {
	h.adds++
	i := int(v / 64)
	if v >= 1<<32 || v >= h.adds+h.slack+1<<20 {
		h.w.violate("shared counter of host %d returned %d after %d additions", h.n.ID(), v, h.adds)
		return
	}
	for len(h.seen) <= i {
		h.seen = append(h.seen, 0)
	}
	if h.seen[i]>>(v%64)&1 != 0 {
		h.w.violate("shared counter of host %d returned %d twice", h.n.ID(), v)
	}
	h.seen[i] |= 1 << (v % 64)
	putHost64(h.shadow[h.shared.off:], h.word(h.shared.off)) // compared with the sum at the end
}

// freeParents makes sure that regions can go once no window is bound to them.
func (h *host) freeParents() {
	for _, l := range h.lent {
		if l.parent == nil || l.state != leaseIdle {
			continue
		}
		if _, f := h.n.Dev.Keys().Unpublish(l.parent.key.Index()); f != mr.FaultNone {
			h.w.violate("host %d: a region without windows cannot be deregistered: %v", h.n.ID(), f)
		}
	}
}

func (h *host) lastChecks() {
	if v := h.word(h.shared.off); v < h.adds || v > h.adds+h.slack {
		h.w.violate("shared counter of host %d is %d after %d additions (%d more in doubt)", h.n.ID(), v,
			h.adds, h.slack)
	}
	h.setWord(h.shared.off, h.word(h.shared.off))
	if at, ok := h.audit(); !ok {
		_, got, want := h.dirt(at, 1)
		h.w.violate("host %d: byte %#x of memory is %#02x, want %#02x: written from outside its use",
			h.n.ID(), at, got, want)
	}
	for _, q := range h.rxqs {
		q.lastChecks()
	}
	h.freeParents()
	for _, a := range h.cqs {
		if n := a.cq.Len(); n != 0 {
			h.w.violate("host %d: %d completions left and no event for them", h.n.ID(), n)
		}
	}
}

// cqApp is the part of an application that waits for one completion queue.
type cqApp struct {
	h         *host
	cq        *rxe.CQ
	wake      func()
	scheduled bool
	nap       rxe.Time // how long it likes to sleep before it polls
	solicited bool     // it arms for solicited completions only, and looks by itself now and then
	armed     bool     // for solicited ones
	event     bool     // one has come since
	waiting   int      // events that may come
	sure      bool     // when it was armed no shard was in the middle of a step
	causes    int      // completions since then that make an event of a queue armed for solicited ones
}

const (
	cqDepth      = 1 << 10 // more than all work requests of a host's QPs
	solicitedNap = 30_000
)

func (h *host) addCQ() {
	cq, err := h.n.Dev.NewCQ(cqDepth)
	h.w.must(err)
	a := &cqApp{h: h, cq: cq, nap: 200 + rxe.Time(h.w.r.Intn(3000)), solicited: h.w.r.Intn(4) == 0}
	a.wake = a.run
	h.cqs = append(h.cqs, a)
}

func (a *cqApp) fired() {
	if a.waiting--; a.waiting < 0 {
		a.h.w.violate("host %d: an event of CQ %d that nobody has asked for", a.h.n.ID(), a.cq.Num)
	}
	a.event, a.waiting = true, max(a.waiting, 0)
	a.schedule(rxe.Time(a.h.w.r.Intn(int(a.nap))))
}

func (a *cqApp) schedule(in rxe.Time) {
	if !a.scheduled {
		a.scheduled = true
		a.h.w.f.At(a.h.w.f.Now()+in, a.wake)
	}
}

// arm asks for an event, then looks once more, as the rules demand.
func (a *cqApp) arm() {
	a.event, a.causes, a.sure = false, 0, !a.h.midStep()
	if a.waiting == 0 || !a.sure { // or an event is on its way already
		a.waiting++
	}
	a.armed = a.solicited
	a.cq.Arm(a.solicited)
	a.poll(true)
	if a.solicited {
		a.schedule(solicitedNap)
	}
}

func (a *cqApp) run() {
	a.scheduled = false
	a.poll(a.h.midStep())
	if a.armed && a.event && a.causes == 0 && a.sure && !a.h.w.failed() {
		a.h.w.violate("host %d: CQ %d makes an event without a solicited completion", a.h.n.ID(), a.cq.Num)
	}
	a.arm()
	a.h.w.freshen()
}

// midStep reports whether a shard is in the middle of a step: it hands out its events at the end.
func (h *host) midStep() bool {
	for i := range h.n.Dev.Shards() {
		if h.n.Busy(i) {
			return true
		}
	}
	return false
}

// poll takes all completions there are. behind tells that the queue was armed before they came, or
// at the same time.
func (a *cqApp) poll(behind bool) {
	w := a.h.w
	for {
		n := a.cq.Poll(w.cqes[:1+w.r.Intn(len(w.cqes))])
		if n == 0 {
			return
		}
		for i := 0; i < n && !w.failed(); i++ {
			a.take(&w.cqes[i], behind)
		}
	}
}

// take hands a completion to the end of its QP.
func (a *cqApp) take(c *rxe.CQE, behind bool) {
	w := a.h.w
	w.trace.Note(c.WRID, uint64(c.Status)|uint64(c.Opcode)<<8|uint64(c.Flags)<<16|uint64(c.Reason)<<24|
		uint64(c.QPN)<<32, uint64(c.ByteLen)|uint64(c.Imm)<<32)
	e := a.h.ends[c.QPN]
	if e == nil {
		w.violate("completion for QP %#x of host %d, which does not exist: %+v", c.QPN, a.h.n.ID(), *c)
		return
	}
	if c.Opcode >= rxe.WCRecv {
		solicited := e.recvDone(c)
		if solicited || c.Status != rxe.WCSuccess {
			a.causes++
		}
		if a.armed && !a.event && !behind && (solicited || c.Status != rxe.WCSuccess) {
			w.violate("%v: a solicited completion made no event", e)
		}
	} else {
		e.sendDone(c)
		if c.Status != rxe.WCSuccess {
			a.causes++
		}
		if a.armed && !a.event && !behind && c.Status != rxe.WCSuccess {
			w.violate("%v: a failed completion made no event", e)
		}
	}
	if !e.dirty {
		e.dirty = true
		w.dirty = append(w.dirty, e)
	}
}

// freshen gives new work to every end that has had completions.
func (w *world) freshen() {
	for i := 0; i < len(w.dirty); i++ {
		e := w.dirty[i]
		e.dirty = false
		e.freshen()
	}
	w.dirty = w.dirty[:0]
}

// serving is the request that a shard has got last.
type serving struct {
	e   *end
	psn wire.PSN
}

// lease is the region that the request goes through, if it does.
func (s serving) lease() *lease {
	if s.e == nil {
		return nil
	}
	u := s.e.peer
	for i := u.done; i != u.posted; i++ {
		if o := u.op(i); o.last.Diff(s.psn) >= 0 {
			if o.usesLease() && o.lease != nil && o.life == o.lease.life.num {
				return o.lease
			}
			if !o.kind.local() {
				return nil
			}
		}
	}
	return nil
}

// straddle decides how long all else goes on while a shard is between a check and its copy. Now and
// then the owner takes away just the region that is being accessed. A shard that is kept from its work
// that way may leave requests unanswered until their tries run out: not in mercy.
func (w *world) straddle(n *sim.Node, shard int) rxe.Time {
	if w.chaos.mercy {
		return 0
	}
	h := w.hosts[n.ID()]
	u := w.r.Uint64()
	long := rxe.Time(u >> 40 & 0xffff)
	if h.hot > 0 && u&1 == 0 {
		return w.straddled(h, long)
	}
	if l := h.serving[shard].lease(); l != nil {
		switch {
		case (u>>8&7 == 0 || l.own.c.keeper && u>>8&7 < 4) && l.takenBeside(shard):
			l.snatch()
			if u>>16&7 == 0 {
				w.f.At(w.f.Now()+long/2, l.own.c.die)
			}
			if l.kind == fastMR {
				w.f.At(w.f.Now()+long/2, l.toy)
			}
			return w.straddled(h, long)
		case u>>8&7 >= 5 && l.own.q.Shard().ID != shard && l.endByPeer():
			return w.straddled(h, long)
		case u>>8&7 == 4:
			return w.straddled(h, long/2)
		}
	}
	if u%128 == 2 {
		return w.straddled(h, long/8)
	}
	return 0
}

// straddled has the host looked after once the straddle is over: shards that wait for grace must have
// been woken by then.
func (w *world) straddled(h *host, d rxe.Time) rxe.Time {
	if !h.watched {
		h.watched = true
		w.f.At(w.f.Now()+d+nudgeAfter, h.watch)
	}
	return d
}

const nudgeAfter = 1500 // ns: what was woken has run

// watch wakes shards that sleep for no reason: they must find nothing to do.
func (h *host) watch() {
	h.watched = false
	h.nudgeAll()
}

// nudgeAll wakes all shards of a host that sleep.
func (h *host) nudgeAll() {
	for i := range h.n.Dev.Shards() {
		had := h.completions()
		if h.w.f.Nudge(h.n, i) || h.completions() != had {
			h.w.violate("shard %d of host %d slept although it had something to do", i, h.n.ID())
		}
	}
}

// completions is how many wait in all queues.
func (h *host) completions() (n int) {
	for _, a := range h.cqs {
		n += a.cq.Len()
	}
	return n
}
