package cm

import (
	"container/heap"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

var (
	simSeed = flag.Uint64("sim.seed", 0, "run this one seed of TestSim and print its trace")
	simRuns = flag.Uint64("sim.runs", 10000, "seeds of TestSim")
)

// The simulation: two hosts whose applications connect, accept, reject, dawdle, disconnect and let
// go at random, on a wire that loses, duplicates and reorders; in some seeds a host is replaced by
// a new one in the middle. Everything comes from one seed.

type simWorld struct {
	t      testing.TB
	seed   uint64
	rng    *rand.Rand
	now    Time
	order  int
	todo   simQueue
	hosts  [2]*simHost
	faults simFaults
	calls  []*simCall
	hash   uint64
	seen   map[string]int // how often things happened
}

type simFaults struct {
	loss, dup float64
	jitter    time.Duration // extra delay of one packet, uniform
	crash     bool          // a host is replaced
	cut       bool          // from some time on nothing arrives
	late      bool          // applications wait for minutes before they end everything
	rude      bool          // applications destroy, forget and reject
}

type simItem struct {
	at    Time
	order int
	run   func()
}

type simQueue []simItem

func (q simQueue) Len() int      { return len(q) }
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q *simQueue) Push(x any) { *q = append(*q, x.(simItem)) }
func (q *simQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func (w *simWorld) after(d time.Duration, run func()) {
	w.order++
	heap.Push(&w.todo, simItem{w.now.add(d), w.order, run})
}

func (w *simWorld) chance(p float64) bool { return w.rng.Float64() < p }

func (w *simWorld) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d)))
}

func (w *simWorld) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed=%d at %v: %s\nreplay: go test ./rxe/cm -run 'TestSim$' -sim.seed=%d -v",
		w.seed, time.Duration(w.now), fmt.Sprintf(format, args...), w.seed)
}

func (w *simWorld) trace(format string, args ...any) {
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], w.hash)
	h.Write(b[:])
	fmt.Fprintf(h, "%d ", w.now)
	fmt.Fprintf(h, format, args...)
	w.hash = h.Sum64()
	if *simSeed != 0 {
		w.t.Logf("%14v %s", time.Duration(w.now), fmt.Sprintf(format, args...))
	}
}

func simGID(n int) wire.GID { return wire.GIDFromIPv4([4]byte{10, 0, 0, byte(n + 1)}) }

func (w *simWorld) transmit(from *simHost, out Out) {
	copies := 1
	if w.chance(w.faults.loss) {
		copies--
	}
	if w.chance(w.faults.dup) {
		copies++
	}
	w.trace("%d sends %v, %d copies", from.n, out.MAD.Attr(), copies)
	if out.MAD.Attr() == AttrREJ {
		var q REJ
		decode(&out.MAD, &q)
		w.seen[q.Reason.String()]++
	}
	to := 1 - from.n
	if out.Addr.Remote != simGID(to) || out.Addr.Local != simGID(from.n) {
		w.fail("MAD to %v", out.Addr)
	}
	for range copies {
		delay := 100*time.Microsecond + w.upTo(w.faults.jitter+1)
		w.after(delay, func() {
			h := w.hosts[to]
			w.trace("%d receives %v", to, out.MAD.Attr())
			h.m.Receive(w.now, Addr{simGID(to), simGID(from.n), 1}, out.MAD[:])
			h.settle()
		})
	}
}

// crash replaces a host.
func (w *simWorld) crash(n int) {
	w.trace("%d crashes", n)
	w.hosts[n].dead = true
	w.hosts[n] = w.boot(n)
}

func newSim(t testing.TB, seed uint64) *simWorld {
	w := &simWorld{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), seen: map[string]int{},
	}
	w.faults = simFaults{
		loss: w.rng.Float64() * 0.15, dup: w.rng.Float64() * 0.3,
		jitter: w.upTo(300 * time.Millisecond),
		crash:  w.chance(0.2), rude: w.chance(0.5), cut: w.chance(0.1), late: w.chance(0.2),
	}
	if w.chance(0.2) {
		w.faults.loss = 0.5
	}
	w.hosts[0], w.hosts[1] = w.boot(0), w.boot(1)
	for range 2 + w.rng.IntN(4) {
		from := w.rng.IntN(2)
		w.after(w.upTo(3*time.Second), func() { w.hosts[from].connect() })
	}
	if w.faults.crash {
		w.after(w.upTo(8*time.Second), func() { w.crash(w.rng.IntN(2)) })
	}
	if w.faults.cut {
		w.after(w.upTo(8*time.Second), func() { w.faults.loss = 1 })
	}
	end := 20 * time.Second
	if w.faults.late {
		end = 150 * time.Second
	}
	w.after(end, w.close)
	return w
}

// close makes the applications end what they have, each in order of its calls.
func (w *simWorld) close() {
	for _, call := range w.calls {
		for _, c := range []*simConn{call.active, call.passive} {
			if c == nil || c.host.dead || c.gone || c.over {
				continue
			}
			if c.state == EventEstablished {
				c.disconnect()
			} else {
				c.destroy()
			}
			c.host.settle()
		}
	}
}

// run goes to the end: no packet on the wire, no timer, no connection.
func (w *simWorld) run() {
	for {
		at, host := Never, -1
		for i, h := range w.hosts {
			if d := h.m.Deadline(); d < at {
				at, host = d, i
			}
		}
		if len(w.todo) > 0 && w.todo[0].at <= at {
			item := heap.Pop(&w.todo).(simItem)
			w.now = item.at
			item.run()
			continue
		}
		if host < 0 {
			break
		}
		w.now = at
		if w.now > Time(10*time.Minute) {
			w.fail("no end: %d and %d connections", w.hosts[0].m.Len(), w.hosts[1].m.Len())
		}
		w.hosts[host].m.Expire(w.now)
		w.hosts[host].settle()
		// A keepalive alone must not keep the world going.
		if len(w.todo) == 0 && w.now > Time(160*time.Second) {
			w.close()
		}
	}
	for _, h := range w.hosts {
		for i, n := range h.m.Stats().Duplicates {
			w.seen[(AttrREQ+Attr(i)).String()+" again"] += int(n)
		}
		if h.m.Len() != 0 || h.m.HalfOpen() != 0 {
			w.fail("%d: %d connections left", h.n, h.m.Len())
		}
	}
	for _, call := range w.calls {
		if a := call.active; !a.host.dead && !a.over && !a.gone {
			w.fail("call %d has no end, last event %v", call.n, a.state)
		}
	}
}

func TestSim(t *testing.T) {
	if *simSeed != 0 {
		newSim(t, *simSeed).run()
		return
	}
	runs := *simRuns
	if testing.Short() {
		runs = min(runs, 500)
	}
	total := map[string]int{}
	for seed := range runs {
		w := newSim(t, seed+1)
		w.run()
		for what, n := range w.seen {
			total[what] += n
		}
	}
	t.Log(total)
	if runs < 5000 {
		return
	}
	// A simulation in which nothing happens would find nothing.
	for k := EventConnectRequest; k <= EventKeepalive; k++ {
		if total[k.String()] < int(runs)/100 {
			t.Errorf("%v only %d times in %d runs", k, total[k.String()], runs)
		}
	}
	for _, a := range []Attr{
		AttrREQ, AttrMRA, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrSIDRREQ,
	} {
		if total[a.String()+" again"] < int(runs)/100 {
			t.Errorf("duplicates of %v: only %d in %d runs", a, total[a.String()+" again"], runs)
		}
	}
	for _, r := range []Reason{
		ReasonStaleConn, ReasonTimeout, ReasonConsumer, ReasonInvalidCommID,
	} {
		if total[r.String()] < int(runs)/200 {
			t.Errorf("%v: only %d in %d runs", r, total[r.String()], runs)
		}
	}
}

// TestSimDeterminism: a seed is a whole history.
func TestSimDeterminism(t *testing.T) {
	for seed := range uint64(20) {
		a, b := newSim(t, seed+1), newSim(t, seed+1)
		a.run()
		b.run()
		if a.hash != b.hash {
			t.Errorf("seed %d: %x and %x", seed, a.hash, b.hash)
		}
	}
}

// checkInvariants compares m's accounts with its connections.
func checkInvariants(t testing.TB, m *Machine) {
	t.Helper()
	half, remote, qps, armed := 0, 0, 0, 0
	waiting := map[*listener]int{}
	for id, c := range m.conns {
		if c.id != id || c.state == StateIdle {
			t.Fatalf("connection %x filed under %x in state %v", c.id, id, c.state)
		}
		if c.state.halfOpen() {
			half++
		}
		if c.inRemote {
			remote++
			if m.byRemote[c.key] != c {
				t.Fatal("byRemote has another connection")
			}
		}
		if c.inQP {
			qps++
			if m.byQP[c.qpKey] != c {
				t.Fatal("byQP has another connection")
			}
		}
		if (c.slot >= 0) != (c.deadline != Never) || c.slot >= 0 && m.timers[c.slot] != c {
			t.Fatal("timer")
		}
		if c.slot >= 0 {
			armed++
		}
		if c.listener != nil {
			waiting[c.listener]++
		}
	}
	if half != m.half || remote != len(m.byRemote) || qps != len(m.byQP) || armed != len(m.timers) {
		t.Fatalf("half-open %d/%d, remote %d/%d, QPs %d/%d, timers %d/%d", half, m.half,
			remote, len(m.byRemote), qps, len(m.byQP), armed, len(m.timers))
	}
	for _, n := range m.halfPeer {
		half -= n
	}
	if half != 0 {
		t.Fatal("half-open by peer")
	}
	for _, l := range m.listeners {
		if l.waiting != waiting[l] {
			t.Fatalf("listener waits for %d, %d are there", l.waiting, waiting[l])
		}
	}
	if f := &m.farewells; len(f.byKey) > len(f.order) || len(f.order) > m.cfg.MaxFarewells {
		t.Fatalf("%d farewells, %d in order", len(f.byKey), len(f.order))
	}
}
