package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/internal/rping"
	"github.com/roxie-rdma/roxie/internal/xfer"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file runs services on an opened device: it listens, admits and hands connections over.

const (
	backlog   = 64               // requests of a service that wait for their turn
	establish = 10 * time.Second // how long an accepted connection may stay half open
	farewell  = time.Second      // for a DREQ's answer
)

// host is what a service works with.
type host struct {
	dev    *verbs.Context
	m      *cm.Manager
	iface  Interface
	limits *limiter
	log    *slog.Logger
	export func(name string) *store // nil: there is none
	up     func()                   // the service listens; for each service its own
}

// service is one service as configured.
type service struct {
	name string
	key  string // all of its configuration: another key is another service
	run  func(ctx context.Context, h *host) error
}

// services are what a configuration asks for.
func (c *Config) services() (out []service) {
	add := func(name string, spec any, run func(ctx context.Context, h *host) error) {
		out = append(out, service{name: name, key: fmt.Sprintf("%s %+v", name, spec), run: run})
	}
	if s := c.RPing; s != nil {
		add("rping", *s, func(ctx context.Context, h *host) error {
			return h.serve(ctx, s.Port, 1, rping.Memory, func(ctx context.Context, r *cm.Request, confirmed func()) error {
				return rping.Serve(ctx, h.dev, r, rping.Config{Connected: confirmed})
			})
		})
	}
	if s := c.Echo; s != nil {
		add("echo", *s, func(ctx context.Context, h *host) error {
			return h.serve(ctx, s.Port, 1, int64(echoDepth*s.Size),
				func(ctx context.Context, r *cm.Request, confirmed func()) error {
					return h.echo(ctx, r, s.Size, confirmed)
				})
		})
	}
	for _, s := range c.Perftest {
		add("perftest "+s.Test, s, func(ctx context.Context, h *host) error { return h.perftest(ctx, s) })
	}
	if len(c.Exports) > 0 {
		port := c.ExportPort
		add("exports", port, func(ctx context.Context, h *host) error {
			return h.serve(ctx, port, 1, controlBytes, h.serveExport)
		})
	}
	return out
}

// listen listens for a service on all addresses, or on those that are configured.
func (h *host) listen(port uint16) (ls []*cm.Listener, err error) {
	configs := []cm.ListenConfig{{Backlog: backlog}}
	if len(h.iface.Addresses) > 0 {
		configs = nil
		for _, a := range h.iface.Addresses {
			configs = append(configs, cm.ListenConfig{Backlog: backlog, Local: a})
		}
	}
	for i := range configs {
		l, err := h.m.Listen(port, &configs[i])
		if err != nil {
			for _, l := range ls {
				_ = l.Close()
			}
			return nil, err
		}
		ls = append(ls, l)
	}
	return ls, nil
}

// serve takes connections for a port until ctx ends, each with what it needs of QPs and memory, and
// returns when all of them have ended. each calls confirmed when its peer has confirmed.
func (h *host) serve(ctx context.Context, port uint16, qps int, memory int64,
	each func(ctx context.Context, r *cm.Request, confirmed func()) error) error {
	return h.each(ctx, port, func(l *cm.Listener, connections *sync.WaitGroup) error {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			own, push := context.WithCancelCause(ctx)
			p, err := h.limits.admit(ctx, r.RemoteAddr().Addr(), qps, memory, push)
			if err != nil {
				push(nil)
				h.refuse(r, rcm.ReasonNoResources, err)
				continue
			}
			connections.Go(func() {
				defer p.free()
				defer push(nil)
				h.connection(own, r, func() error { return each(own, r, p.confirmed) })
			})
		}
	})
}

// connection runs one, and logs what comes of it.
func (h *host) connection(ctx context.Context, r *cm.Request, serve func() error) {
	peer := r.RemoteAddr()
	h.log.Debug("connection", "peer", peer)
	began := time.Now()
	err := serve()
	switch {
	case errors.Is(context.Cause(ctx), errPushed): // of a flood there are many
		h.log.Debug("connection ended", "peer", peer, "reason", errPushed)
		if n, say := h.limits.crowded(); say {
			h.log.Warn("a limit is reached: half-open connections make room", "so-far", n, "peer", peer)
		}
		return
	case err != nil && ctx.Err() == nil:
		h.log.Info("connection failed", "peer", peer, "error", err)
	}
	h.log.Debug("connection ended", "peer", peer, "after", time.Since(began).Round(time.Millisecond).String())
}

// each runs a loop for each listener of a port until ctx ends, and waits for their connections.
func (h *host) each(ctx context.Context, port uint16,
	loop func(l *cm.Listener, connections *sync.WaitGroup) error) error {
	ls, err := h.listen(port)
	if err != nil {
		return err
	}
	h.log.Info("listening", "port", port)
	h.up()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops, connections sync.WaitGroup
	for _, l := range ls {
		loops.Go(func() { cancel(loop(l, &connections)) })
	}
	<-ctx.Done()
	for _, l := range ls {
		_ = l.Close()
	}
	loops.Wait()
	connections.Wait()
	return context.Cause(ctx)
}

// refuse rejects a request and says why, in the log and to those who can read it.
func (h *host) refuse(r *cm.Request, reason rcm.Reason, why error) {
	h.log.Info("connection refused", "peer", r.RemoteAddr(), "reason", why)
	_ = r.RejectFor(reason, xfer.Refusal(why.Error()))
}

// admit is the limiter's for a service with one client at a time, whom nobody pushes out, and logs what
// comes of it.
func (h *host) admit(ctx context.Context, peer netip.Addr, qps int, memory int64) (func(), error) {
	p, err := h.limits.admit(ctx, peer, qps, memory, nil)
	if err != nil {
		h.log.Info("connection refused", "peer", peer, "reason", err)
		return nil, err
	}
	h.log.Debug("connection", "peer", peer, "qps", qps)
	began := time.Now()
	return func() {
		p.free()
		h.log.Debug("connection ended", "peer", peer, "after", time.Since(began).Round(time.Millisecond).String())
	}, nil
}

// perftest serves one client after the other.
func (h *host) perftest(ctx context.Context, s Perftest) error {
	admit := func(peer netip.Addr, qps int, memory int64) (func(), error) { return h.admit(ctx, peer, qps, memory) }
	return h.each(ctx, s.Port, func(l *cm.Listener, _ *sync.WaitGroup) error {
		for {
			err := perf.Respond(ctx, h.dev, h.m, l, *s.perf(), admit)
			if ctx.Err() != nil || errors.Is(err, cm.ErrClosed) || errors.Is(err, verbs.ErrClosed) {
				return err
			}
			if err != nil {
				h.log.Info("client failed", "error", err)
			}
		}
	})
}

// session is a connection's QP with its memory.
type session struct {
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mem  *verbs.MR
	conn *cm.Conn
}

// newSession makes all but the connection. Receives and sends may each be depth deep.
func newSession(dev *verbs.Context, memory, depth int, access verbs.Access) (_ *session, err error) {
	s := &session{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if s.mem, err = s.pd.AllocMR(memory, verbs.LocalWrite); err != nil {
		return nil, err
	}
	if s.cq, err = dev.CreateCQ(2*depth + 2); err != nil { // a keepalive that fails completes, too
		return nil, err
	}
	s.qp, err = dev.CreateQP(s.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, Shard: -1,
		Cap: verbs.QPCap{MaxSendWR: depth + 1, MaxRecvWR: depth}})
	if err != nil {
		return nil, err
	}
	return s, cm.Prepare(s.qp, access)
}

// accept connects.
func (s *session) accept(ctx context.Context, r *cm.Request, p *cm.Params, confirmed func()) (err error) {
	if s.conn, err = r.Accept(ctx, s.qp, p); err == nil {
		confirmed()
	}
	return err
}

// next waits for completions. It is false when the connection has ended, or ctx.
func (s *session) next(ctx context.Context, wc []verbs.WC) (n int, ok bool) {
	for {
		n, err := s.cq.Poll(wc)
		if err != nil {
			return 0, false
		}
		if n > 0 {
			return n, true
		}
		if err := s.cq.Wait(ctx); err != nil {
			return 0, false
		}
	}
}

// disconnect ends the connection, with a DREQ if the peer has not.
func (s *session) disconnect() {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		_ = s.conn.Disconnect(ctx) // a peer that is gone does not answer
	}
}

// close disconnects and gives everything back.
func (s *session) close() {
	s.disconnect()
	if s.qp != nil {
		_ = s.qp.Destroy()
	}
	if s.cq != nil {
		_ = s.cq.Destroy()
	}
	if s.mem != nil {
		_ = s.mem.Close()
	}
	if s.pd != nil {
		_ = s.pd.Dealloc()
	}
}
