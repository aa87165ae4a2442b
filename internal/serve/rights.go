package serve

import (
	"context"
	"errors"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/starter"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is about an endpoint that has no right to open an interface itself.

// Opener gives the privileged part of an interface, as a starter.Client does.
type Opener interface {
	Open(ctx context.Context, name string) (*verbs.Prepared, error)
}

// OpenWith makes the endpoint open interfaces with what o gives instead of rights of its own. It is
// called before Run.
func (s *Server) OpenWith(o Opener) { s.opener = o }

// device is how the interface is opened.
func (i *Interface) device() *verbs.Config {
	c := &verbs.Config{Queues: i.Queues, VLAN: i.VLAN}
	switch i.Mode {
	case "native":
		c.Mode = bpf.Native
	case "generic":
		c.Mode = bpf.Generic
	}
	return c
}

// Device tells how an interface is opened; ok is false if it is not configured. It is a
// starter.Lookup.
func (c *Config) Device(name string) (cfg *verbs.Config, ok bool) {
	for i := range c.Interfaces {
		if c.Interfaces[i].Name == name {
			return c.Interfaces[i].device(), true
		}
	}
	return nil, false
}

// LockedMemory returns how many bytes the endpoint may have to lock: the frames of its interfaces, and
// all that exports may take.
func (c *Config) LockedMemory() uint64 {
	n := uint64(c.Limits.Memory)
	for _, i := range c.Interfaces {
		n += verbs.LockedMemory(i.Queues)
	}
	return n
}

// openDevice opens the interface with the endpoint's own rights, or with what the opener gives.
func (st *station) openDevice(ctx context.Context) (*verbs.Context, error) {
	cfg := st.iface.device()
	if o := st.srv.opener; o != nil {
		var err error
		if cfg.Prepared, err = o.Open(ctx, st.iface.Name); err != nil {
			return nil, err
		}
	}
	return verbs.Open(st.iface.Name, cfg)
}

// barred reports whether the interface cannot be opened any more, and says so.
func (st *station) barred(err error) bool {
	if !errors.Is(err, starter.ErrNoStarter) {
		return false
	}
	st.log.Error("port error: the interface stays closed until the endpoint is started again; "+
		"with a starter (serve --starter) it would be opened when it comes back", "error", err)
	return true
}
