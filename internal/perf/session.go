package perf

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// Hooks are what a run tells while it runs. Each may be nil. They are called from any goroutine,
// one at a time.
type Hooks struct {
	Ready    func(net.Addr) // server: interface attached, waiting for a client
	Setup    func(*Setup)   // connected
	Progress func(*Moment)  // client, twice a second
	Result   func(*Result)  // one message size is through
}

// Moment is how far a run is.
type Moment struct {
	Size    int
	Bytes   uint64        // payload, since the start of this size
	Elapsed time.Duration // likewise
	Gbps    float64       // since the last moment
}

const progressEvery = 500 * time.Millisecond

// Run runs one end: the server, which serves one client, if cfg has no Server, else the client,
// which has the results. All is closed when it returns. It stops with ctx.
func Run(ctx context.Context, cfg Config, hooks Hooks) ([]Result, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e, err := open(cfg)
	if err != nil {
		return nil, err
	}
	return e.run(ctx, &hooks)
}

// run is Run on an opened interface.
func (e *endpoint) run(ctx context.Context, hooks *Hooks) ([]Result, error) {
	results, err := e.session(ctx, hooks)
	if closeErr := e.close(); err == nil && closeErr != nil {
		err = closeErr
	}
	return results, err
}

func (e *endpoint) session(ctx context.Context, hooks *Hooks) (results []Result, err error) {
	client := e.cfg.Server != ""
	var conn net.Conn
	if e.cfg.CM && e.manager == nil {
		if e.manager, err = cm.New(e.dev, nil); err != nil {
			return nil, fmt.Errorf("-R: %w", err)
		}
	}
	switch {
	case e.cfg.CM && client:
		conn, err = e.dialControl(ctx)
	case e.cfg.CM:
		conn, err = e.listenControl(ctx, hooks.Ready)
	case client:
		conn, err = dial(ctx, e.cfg.Server, e.cfg.Port)
	default:
		conn, err = listen(ctx, e.cfg.Port, hooks.Ready)
	}
	if err != nil {
		return nil, err
	}
	if e.foreign, err = e.greet(ctx, conn, client); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if e.foreign {
		return e.perftestSession(ctx, conn, hooks)
	}
	x, ctx := newExchange(ctx, conn, client)
	defer x.close()
	defer func() {
		if err != nil {
			x.fail(err)
		}
	}()
	if err := e.connect(ctx, x); err != nil {
		return nil, err
	}
	if hooks.Setup != nil {
		hooks.Setup(e.setup())
	}
	for i, size := range e.sizes {
		if i > 0 && e.cfg.Test.Op == Send && e.cfg.Transport != RC {
			if err := e.reconnect(ctx, x); err != nil {
				return nil, err
			}
		}
		res, err := e.one(ctx, x, size, hooks)
		if err != nil {
			return nil, err
		}
		results = append(results, res)
		if hooks.Result != nil {
			hooks.Result(&res)
		}
	}
	return results, nil
}

// one is one message size, from the first receives to the report.
func (e *endpoint) one(ctx context.Context, x *exchange, size int, hooks *Hooks) (Result, error) {
	r := newRun(ctx, e, &x.attention, size)
	defer r.close()
	for _, c := range e.conns {
		if err := r.firstRecvs(c); err != nil {
			return Result{}, err
		}
		clear(c.ring[:r.ring()])
	}
	before := e.traffic()
	if err := x.barrier(ctx); err != nil {
		return Result{}, err
	}
	x.onLine(r.close)
	var took time.Duration
	err := onThread(e.cfg, func() (err error) {
		defer r.probe()()
		if e.cfg.Server == "" {
			return r.passive()
		}
		stop := r.report(hooks)
		defer stop()
		took, err = r.active()
		return err
	})
	if err != nil {
		return Result{}, err
	}
	return e.finish(ctx, x, r, before, took)
}

func (r *run) active() (time.Duration, error) {
	if r.cfg.Test.Latency {
		return r.latency()
	}
	return r.bandwidth()
}

func (r *run) passive() error {
	if r.cfg.Test.Latency {
		return r.echo()
	}
	return r.serve()
}

// onThread runs the loop, in caller mode on a thread of its own and on the CPU that was asked for: there
// it is what moves the packets. Without, it would change threads whenever other goroutines have a turn,
// and end up on the CPU of the other end now and then.
func onThread(cfg Config, loop func() error) error {
	if cfg.Progress != Caller {
		return loop()
	}
	if cfg.CPU < 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return loop()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the affinity must not outlive the loop
		var set unix.CPUSet
		set.Set(cfg.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("--cpu %d: %w", cfg.CPU, err)
			return
		}
		done <- loop()
	}()
	return <-done
}

// checkCPU says whether this process may run on a CPU; -1 is any.
func checkCPU(cpu int) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil || cpu < 0 || set.IsSet(cpu) {
		return nil
	}
	last := 0
	for i := range len(set) * bits.UintSize {
		if set.IsSet(i) {
			last = i
		}
	}
	return fmt.Errorf("--cpu %d: this process may run on %d CPUs, the last of which is %d", cpu,
		set.Count(), last)
}

// finish exchanges the reports: the client's says how much was sent, the server's what came.
func (e *endpoint) finish(ctx context.Context, x *exchange, r *run, before traffic,
	took time.Duration) (Result, error) {
	ours := report{Messages: r.sent(), XDPMode: e.dev.XDPMode(), ZeroCopy: e.dev.ZeroCopy(),
		figures: r.figures(took)}
	fill := func() {
		after := e.traffic()
		ours.Packets, ours.Retransmit = after.sent-before.sent, after.again-before.again
		ours.Verified, ours.Mismatches, ours.First = r.check.verified, r.check.wrong, r.check.first
	}
	fill()
	var theirs report
	var err error
	if e.cfg.Server == "" {
		if err = x.get(ctx, "report", &theirs, stepTimeout); err != nil {
			return Result{}, err
		}
		if err = r.drain(theirs.Messages); err != nil {
			return Result{}, err
		}
		ours.Messages = r.arrivals()
		fill()
		err = x.put("report", ours)
	} else {
		theirs, err = swap(ctx, x, "report", ours)
	}
	if err != nil {
		return Result{}, err
	}
	if e.cfg.Server == "" {
		ours, theirs = theirs, ours // from here on as the client sees it
	}
	return e.result(r, ours, theirs), nil
}

// figures are what this end has measured, if it was the active one.
func (r *run) figures(took time.Duration) figures {
	f := figures{Took: took, Best: r.rates.best}
	if r.lat != nil {
		f.Rounds, f.Lat = uint64(r.lat.hist.TotalCount()), r.lat.summary()
	}
	return f
}

// result puts the two reports together, with the figures of the client's.
func (e *endpoint) result(r *run, client, server report) Result {
	took := client.Took
	res := Result{
		Test: e.cfg.Test.Name, Transport: string(e.cfg.Transport), Size: r.size, PMTU: e.pmtu,
		QPs: e.cfg.QPs, Iterations: client.Messages, Seconds: took.Seconds(),
		Packets:    client.Packets + server.Packets,
		Retransmit: client.Retransmit + server.Retransmit,
		Verified:   client.Verified + server.Verified,
		Mismatches: client.Mismatches + server.Mismatches,
		XDPMode:    e.dev.XDPMode(), ZeroCopy: e.dev.ZeroCopy(), Progress: string(e.cfg.Progress),
		First: client.First,
	}
	if res.First == "" {
		res.First = server.First
	}
	arrived := client.Messages
	if counted := e.cfg.Test.Op == Send || r.imm; counted && e.cfg.Transport != RC {
		arrived = server.Messages
		res.Lost = client.Messages - min(arrived, client.Messages)
	}
	if r.lat != nil {
		res.Iterations, res.Lat = client.Rounds, client.Lat
		arrived = res.Iterations
	}
	if took > 0 {
		res.MsgRate = float64(arrived) / took.Seconds() / 1e6
		res.BWGbps = res.MsgRate * 8 * float64(r.size) / 1e3
		res.BWPeakGbps = max(client.Best*8/1e9, res.BWGbps)
	}
	return res
}

// traffic is what the device has sent so far.
type traffic struct{ sent, again uint64 }

func (e *endpoint) traffic() traffic {
	t := e.dev.Stats().Total
	return traffic{t.SentPkts, t.Retransmits}
}

// report calls the progress hook now and then until stopped.
func (r *run) report(hooks *Hooks) (stop func()) {
	if hooks.Progress == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		start := time.Now()
		var last Moment
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			m := Moment{Size: r.size, Bytes: r.moved.Load(), Elapsed: time.Since(start)}
			m.Gbps = float64(m.Bytes-last.Bytes) * 8 / float64(m.Elapsed-last.Elapsed)
			hooks.Progress(&m)
			last = m
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// reconnect takes all QPs through RESET, which forgets receives that are left over.
func (e *endpoint) reconnect(ctx context.Context, x *exchange) error {
	if err := x.barrier(ctx); err != nil {
		return err
	}
	for _, c := range e.conns {
		if err := e.initialise(c, true); err != nil {
			return err
		}
		var err error
		if c.remote, err = swap(ctx, x, "keys", e.keys(c)); err != nil {
			return err
		}
		c.peer = verbs.QPN(c.remote.QPN)
		if err := e.bringUp(c); err != nil {
			return err
		}
	}
	return x.barrier(ctx)
}
