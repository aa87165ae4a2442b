package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/internal/netdev"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file is the life of an interface: open, serve, close; again when it has gone and come back.

// retryEvery is how often an interface that is not there is looked for.
const retryEvery = time.Second

// station serves one interface.
type station struct {
	srv   *Server
	iface Interface
	log   *slog.Logger
	stop  context.CancelFunc
	done  chan struct{}
	first chan error // the outcome of the first try to open

	change chan struct{} // the services are to be looked at again

	wanted func() map[string]service // those of the configuration, by key
}

func (s *Server) startStation(ctx context.Context, i Interface) *station {
	ctx, stop := context.WithCancel(ctx)
	st := &station{srv: s, iface: i, log: s.log.With("interface", i.Name), stop: stop,
		done: make(chan struct{}), first: make(chan error, 1), change: make(chan struct{}, 1),
		wanted: s.services}
	go func() {
		defer close(st.done)
		st.run(ctx)
	}()
	return st
}

// run opens the interface until ctx ends, again and again if need be. What cannot be mended by
// waiting ends the first try only: later the interface may have been made anew, and differently.
func (st *station) run(ctx context.Context) {
	said := ""
	for first := true; ctx.Err() == nil; first = false {
		err := st.open(ctx, first)
		if err != nil && st.barred(err) {
			if first {
				st.first <- nil
			}
			return
		}
		if first && err != nil && !waits(err) {
			st.first <- err
			return
		}
		if first && err != nil {
			st.first <- nil
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			st.log.Warn("waiting for the interface", "error", err)
		}
		if err == nil {
			said = ""
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// waits reports whether an interface that cannot be opened may yet come.
func waits(err error) bool { return errors.Is(err, netdev.ErrNoLink) || errors.Is(err, verbs.ErrDown) }

// open serves the interface until it has gone (nil) or ctx ends (nil), or says why it cannot.
func (st *station) open(ctx context.Context, first bool) error {
	dev, err := st.openDevice(ctx)
	if err != nil {
		return err
	}
	m, err := cm.New(dev, &cm.Config{Keepalive: st.iface.Keepalive,
		Machine: rcm.Config{ConfirmTimeout: establish}})
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	st.log.Info("interface opened", "queues", st.iface.Queues, "xdp", dev.XDPMode(), "zero-copy", dev.ZeroCopy())
	ctx, gone := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { st.watch(ctx, dev, gone) })
	watch.Go(func() { st.watchQPs(ctx, dev) })
	st.srv.hub.Attach(dev)
	st.srv.control.Attach(dev)
	st.serve(ctx, &host{dev: dev, m: m, iface: st.iface, limits: st.srv.limits, log: st.log,
		export: st.srv.export}, func() {
		if first {
			st.first <- nil
		}
	})
	why := context.Cause(ctx)
	gone(nil)
	watch.Wait()
	st.srv.hub.Detach(dev)
	st.srv.control.Detach(dev)
	if err := errors.Join(m.Close(), dev.Close()); err != nil {
		st.log.Warn("interface closed", "error", err)
	}
	if errors.Is(why, errLinkGone) {
		st.log.Error("interface has gone: all its connections are over, waiting for it to come back")
	} else {
		st.log.Info("interface closed")
	}
	return nil
}

var errLinkGone = errors.New("interface has gone")

// watch follows the device's events: the log tells of them, and the end of the interface ends gone.
func (st *station) watch(ctx context.Context, dev *verbs.Context, gone context.CancelCauseFunc) {
	for {
		e, err := dev.AsyncEvent(ctx)
		if err != nil {
			return
		}
		switch e.Type {
		case verbs.EventDeviceFatal:
			gone(errLinkGone)
		case verbs.EventPortErr:
			st.log.Warn("port error: no carrier, or the interface is down", "event", e.String())
		case verbs.EventPortActive, verbs.EventGIDChange:
			st.log.Info("event", "event", e.String())
		default:
			st.log.Debug("event", "event", e.String())
		}
	}
}

// failure is a QP that failed, with the reason.
type failure struct {
	qp     *verbs.QP
	reason verbs.Reason
}

// failureBacklog is how many failures wait to be logged; more are only counted.
const failureBacklog = 256

// watchQPs logs which QPs fail until ctx ends. Those that end in order are not among them.
func (st *station) watchQPs(ctx context.Context, dev *verbs.Context) {
	failed := make(chan failure, failureBacklog)
	var more atomic.Uint64
	defer dev.OnQPFailure(func(q *verbs.QP, why verbs.Reason) {
		select {
		case failed <- failure{q, why}:
		default:
			more.Add(1)
		}
	})()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-failed:
			args := []any{"qp", fmt.Sprintf("%#x", f.qp.Num()), "type", fmt.Sprint(f.qp.Type()), "reason", f.reason.String()}
			if a, _ := f.qp.Query(); a.DestQPN != 0 {
				args = append(args, "peer", a.AH.DGID.Addr(), "peer-qp", fmt.Sprintf("%#x", a.DestQPN))
			}
			if n := more.Swap(0); n > 0 {
				args = append(args, "more", n)
			}
			st.log.Warn("QP failed", args...)
		}
	}
}

// running is a service that has been started.
type running struct {
	stop context.CancelFunc
	up   chan struct{} // it listens, or never will
	done chan struct{}
}

func (r *running) end() {
	r.stop()
	<-r.done
}

// serve runs the services that the configuration asks for, and follows its changes, until ctx ends.
// All of them end at once then, each with its connections. ready is called when the first ones listen.
func (st *station) serve(ctx context.Context, h *host, ready func()) {
	services := map[string]*running{}
	for {
		want := st.wanted()
		for key, r := range services {
			if _, keep := want[key]; !keep {
				r.end()
				delete(services, key)
			}
		}
		for key, s := range want {
			if services[key] == nil {
				services[key] = st.start(ctx, h, s)
			}
		}
		if ready != nil {
			for _, r := range services {
				<-r.up
			}
			ready()
			ready = nil
		}
		select {
		case <-st.change:
			continue
		case <-ctx.Done():
		}
		break
	}
	for _, r := range services {
		r.stop()
	}
	for _, r := range services {
		<-r.done
	}
}

func (st *station) start(ctx context.Context, h *host, s service) *running {
	ctx, stop := context.WithCancel(ctx)
	r := &running{stop: stop, up: make(chan struct{}), done: make(chan struct{})}
	own := *h
	own.log = h.log.With("service", s.name)
	own.up = sync.OnceFunc(func() { close(r.up) })
	go func() {
		defer close(r.done)
		defer own.up()
		err := s.run(ctx, &own)
		if errors.Is(err, cm.ErrClosed) || errors.Is(err, verbs.ErrClosed) {
			return // the interface has gone, which is said once
		}
		if err != nil && ctx.Err() == nil {
			own.log.Error("service has ended", "error", err)
		}
	}()
	return r
}

// await returns the outcome of the first try to open.
func (st *station) await(ctx context.Context) error {
	select {
	case err := <-st.first:
		if err != nil {
			return fmt.Errorf("interface %s: %w", st.iface.Name, err)
		}
		return nil
	case <-ctx.Done():
		return nil
	}
}
