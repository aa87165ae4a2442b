package perf

import (
	"context"
	"net/netip"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// This file is the server of a device that is open already, and stays so.

// Admit takes a client into account before anything is made for it, until free is called.
type Admit func(peer netip.Addr, qps int, memory int64) (free func(), err error)

// Respond serves one client with -R on an open device, as a server does that was started for it, and
// gives back everything but the device, its manager and the listener. cfg's Interface, Server and
// Capture are not used.
func Respond(ctx context.Context, dev *verbs.Context, m *cm.Manager, l *cm.Listener, cfg Config,
	admit Admit) error {
	cfg.CM, cfg.Server = true, ""
	if err := cfg.validate(); err != nil {
		return err
	}
	e := &endpoint{cfg: cfg, dev: dev, manager: m, listener: l}
	if err := e.choose(); err != nil {
		return err
	}
	sizes, err := cfg.sizes(e.pmtu)
	if err != nil {
		return err
	}
	free := func() {}
	defer func() {
		e.release()
		free()
	}()
	e.admit = func(r *cm.Request) error {
		p := cfg.plan(sizes)
		f, err := admit(r.RemoteAddr().Addr(), cfg.QPs+1, int64(p.total()))
		if err != nil {
			_ = r.RejectFor(rcm.ReasonNoResources, nil)
			return err
		}
		free = f
		return nil
	}
	_, err = e.session(ctx, &Hooks{})
	return err
}

// release gives back what a session has made.
func (e *endpoint) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, c := range e.conns {
		if c.cm != nil {
			_ = c.cm.Disconnect(ctx) // a client that is gone does not answer
		}
		_ = c.qp.Destroy()
		if c.ah != nil {
			_ = c.ah.Destroy()
		}
	}
	if e.control != nil {
		_ = e.control.Close()
		e.control.destroy()
	}
	if e.cq != nil {
		_ = e.cq.Destroy()
	}
	if e.mem != nil {
		_ = e.mem.Close()
	}
	if e.pd != nil {
		_ = e.pd.Dealloc()
	}
}
