package soak

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file covers a run: the world it builds, its end, and what must be true then.

const (
	runTime   = 10_000_000_000 // virtual, and 50 µs a packet: else nothing moves any more
	drainTime = 3_000_000_000  // virtual: longer than any chain of retries
	restTime  = 20_000_000     // until the last frame of the last flight is gone
)

// world is everything of one run.
type world struct {
	o     Options
	f     *sim.Fabric
	r     *sim.Rand
	trace *sim.Trace
	hosts []*host
	conns []*conn
	res   Result

	bth      int  // offset of the BTH in every frame
	muffled  int  // work requests that had to be refused, and whose NAK did not arrive
	stopping bool // no new work
	ticks    int  // since then
	lossy    bool // so many frames are lost that retries run out
	wr       rxe.SendWR
	sges     [maxPieces]rxe.SGE
	cqes     [64]rxe.CQE
	pkt      wire.Packet
	dirty    []*end
	inline   [rxe.MaxInline]byte
	ud       udState
	holder   *end     // whose queue is held back for a region's sake
	trickled uint64   // their messages
	loose    []*end   // of unreliable services, and inside a device
	cut      [2]*host // from each other, for long
	chaos    chaos
}

// Run carries out one run. A panic of the engine is a violation.
func Run(o Options) Result {
	if o.Packets == 0 {
		o.Packets = DefaultPackets
	}
	w := &world{o: o, r: sim.NewRand(o.Seed ^ 0x736f616b), trace: sim.NewTrace()}
	w.lossy = o.Faults.Loss() > 0.04
	w.build()
	w.load()
	w.collect()
	return w.res
}

// load is the run from its first packet to its last.
func (w *world) load() {
	defer func() {
		if p := recover(); p != nil {
			w.violate("panic: %v\n%s", p, calls(debug.Stack()))
		}
	}()
	w.begin()
	ends := func() bool { return w.f.Stats.Packets >= w.o.Packets || w.failed() }
	w.f.RunUntil(runTime+rxe.Time(w.o.Packets)*50_000, ends)
	if !w.failed() && w.f.Stats.Packets < w.o.Packets {
		w.violate("nothing happens any more after %d of %d packets", w.f.Stats.Packets, w.o.Packets)
	}
	w.finish()
}

// calls are the lines of a stack that name our own files.
func calls(stack []byte) string {
	var out []string
	for _, line := range strings.Split(string(stack), "\n") {
		if i := strings.Index(line, "/rxe/"); i >= 0 && line[0] == '\t' && len(out) < 12 {
			out = append(out, "\t"+line[i+1:])
		}
	}
	return strings.Join(out, "\n")
}

func (w *world) must(err error) {
	if err != nil {
		panic(fmt.Sprintf("soak: seed=%d: %v", w.o.Seed, err))
	}
}

// violate notes a violation. The run ends at the first one.
func (w *world) violate(format string, args ...any) {
	if len(w.res.Violations) < 8 {
		w.res.Violations = append(w.res.Violations,
			Violation{Seed: w.o.Seed, At: w.f.Now(), Text: fmt.Sprintf(format, args...)})
	}
}

func (w *world) failed() bool { return len(w.res.Violations) > 0 }

// build makes hosts and connections.
func (w *world) build() {
	r := w.r
	pace := rxe.Time(r.Intn(2000 << r.Intn(5))) // frames are taken one by one, or many at a time
	cfg := sim.Config{Seed: w.o.Seed, Latency: 1000 + rxe.Time(r.Intn(4000)), Burst: 8, Pace: pace,
		Spread: 100 + rxe.Time(r.Intn(900)), Faults: w.o.Faults, RxRing: 256 << r.Intn(2),
		Straddle: w.straddle, Trace: w.trace, Tap: w.tap, OnDeliver: w.delivered}
	if r.Intn(2) == 0 {
		cfg.TxRing = 64 << r.Intn(3)
	}
	w.f = sim.New(cfg)
	v6 := r.Intn(4) == 0
	w.bth = 14 + 20 + 8
	if v6 {
		w.bth += 20
	}
	for i, n := 0, 2+r.Intn(3); i < n; i++ {
		w.addHost(v6, pace)
	}
	w.buildConns()
	w.buildUD()
	for _, h := range w.hosts {
		h.ready()
	}
	for _, c := range w.conns {
		c.connect()
	}
}

// begin starts the load.
func (w *world) begin() {
	for _, h := range w.hosts {
		for _, q := range h.rxqs {
			q.refill()
		}
		for _, a := range h.cqs {
			a.arm()
		}
	}
	for _, c := range w.conns {
		c.a.topUp()
		c.b.topUp()
	}
	w.startUD()
	w.startChaos()
}

// finish lets all work end without faults, and checks what is left.
func (w *world) finish() {
	if w.failed() {
		return
	}
	w.stopping = true
	w.endChaos()
	w.f.SetFaults(sim.Faults{})
	w.f.RunUntil(w.f.Now()+drainTime, func() bool { return w.failed() || w.idle() })
	if !w.failed() && !w.idle() {
		w.violate("hangs: %s", w.hung())
	}
	if w.failed() {
		return
	}
	w.f.RunUntil(w.f.Now()+restTime, w.failed)
	if !w.failed() {
		w.lastChecks()
	}
}

func (w *world) idle() bool {
	for _, c := range w.conns {
		if !c.idle() {
			return false
		}
	}
	return true
}

// hung names what does not end.
func (w *world) hung() string {
	for _, c := range w.conns {
		if !c.idle() {
			return c.String()
		}
	}
	return "nothing"
}

func (w *world) lastChecks() {
	for _, h := range w.hosts {
		h.lastChecks()
	}
	for _, c := range w.conns {
		c.a.lastChecks()
		c.b.lastChecks()
	}
	if w.muffled > 4 && w.muffled > int(w.res.Attacks)/3 && !w.lossy {
		w.violate("%d of %d refused work requests ended in a timeout", w.muffled, w.res.Attacks)
	}
	if err := w.f.Audit(); err != nil {
		w.violate("frames: %v", err)
	}
}

// collect sums counters and closes the digest.
func (w *world) collect() {
	w.res.Stats = w.f.Stats
	w.res.Until = w.f.Now()
	for _, h := range w.hosts {
		for _, s := range h.n.Dev.Shards() {
			c := s.C
			w.res.Counters.Add(&c)
		}
	}
	w.res.Trace = w.trace.Sum()
}
