package verbs

import (
	"fmt"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/xdp"
)

// DeviceAttr are the limits of a device (struct ibv_device_attr).
type DeviceAttr struct {
	Name          string
	NodeGUID      uint64 // from the MAC address
	Shards        int    // queues in use
	MaxQP         int
	MaxQPWR       int
	MaxSGE        int
	MaxInline     int
	MaxCQE        int
	MaxMR         int
	MaxMsgSize    uint64
	MaxRdAtomic   int // READs and atomics outstanding for each QP and direction
	MaxSRQWR      int
	MaxAH         int
	MaxFastRegSeg int // segments of a fast region
	PKeys         int
}

// PortState is the state of a port (enum ibv_port_state).
type PortState uint8

// The states a port of Ethernet takes.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

// String returns the state as ibv_devinfo prints it.
func (s PortState) String() string {
	switch s {
	case PortDown:
		return "PORT_DOWN"
	case PortActive:
		return "PORT_ACTIVE"
	}
	return fmt.Sprintf("PortState(%d)", uint8(s))
}

// PortAttr is the state of the device's port (struct ibv_port_attr).
type PortAttr struct {
	State     PortState
	LinkState string // in words: up, down, no carrier
	LinkName  string
	Ifindex   int
	MAC       wire.MAC
	LinkMTU   int
	MaxPMTU   int // largest path MTU an IPv4 peer can use, bytes
	MaxPMTU6  int // the same of an IPv6 peer
	VLAN      int // 0: none
	GIDs      int // entries of the GID table, empty ones included
}

// GIDType tells the kinds of GIDs apart.
type GIDType uint8

// RoCEv2 is the only type there is.
const RoCEv2 GIDType = 2

// String returns "RoCE v2".
func (t GIDType) String() string {
	if t == RoCEv2 {
		return "RoCE v2"
	}
	return fmt.Sprintf("GIDType(%d)", uint8(t))
}

// GIDEntry is an entry of the GID table.
type GIDEntry struct {
	Index int
	GID   GID
	Type  GIDType
}

// Device returns the limits (ibv_query_device).
func (c *Context) Device() DeviceAttr {
	cfg := c.dev.Config()
	c.mu.Lock()
	guid := guidOf(c.link.MAC)
	c.mu.Unlock()
	return DeviceAttr{
		Name: "roxie_" + c.name, NodeGUID: guid, Shards: len(c.pollers),
		MaxQP: cfg.MaxQP * len(c.pollers), MaxQPWR: rxe.MaxQPDepth, MaxSGE: rxe.MaxSGE,
		MaxInline: rxe.MaxInline, MaxCQE: rxe.MaxCQE, MaxMR: c.dev.Keys().Limit() - 1,
		MaxMsgSize: rxe.MaxMessage, MaxRdAtomic: rxe.MaxRdAtomic, MaxSRQWR: rxe.MaxQPDepth,
		MaxAH: rxe.MaxAH - 1, MaxFastRegSeg: mr.MaxLimit, PKeys: 1,
	}
}

// guidOf is the EUI-64 of a MAC address.
func guidOf(m wire.MAC) (g uint64) {
	for _, b := range []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]} {
		g = g<<8 | uint64(b)
	}
	return g
}

// Port returns the port's state (ibv_query_port).
func (c *Context) Port() PortAttr {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := PortAttr{
		State: PortDown, LinkState: c.link.State(), LinkName: c.name, Ifindex: c.link.Index,
		MAC: c.link.MAC, LinkMTU: c.link.MTU, VLAN: c.cfg.VLAN, GIDs: len(c.gids),
		MaxPMTU: c.maxPMTU(false), MaxPMTU6: c.maxPMTU(true),
	}
	if c.link.Running {
		a.State = PortActive
	}
	return a
}

// GIDs returns the entries of the GID table that are in use.
func (c *Context) GIDs() []GIDEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []GIDEntry
	for i, g := range c.gids {
		if g != (wire.GID{}) {
			out = append(out, GIDEntry{i, g, RoCEv2})
		}
	}
	return out
}

// GID returns one entry (ibv_query_gid), or an error that wraps ErrInvalid for an empty one.
func (c *Context) GID(i int) (GID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i < 0 || i >= len(c.gids) || c.gids[i] == (wire.GID{}) {
		return GID{}, fmt.Errorf("GID index %d of %s: no such address: %w", i, c.name, ErrInvalid)
	}
	return c.gids[i], nil
}

// XDPMode is how the steering program is attached: native, generic, or "" without an interface.
func (c *Context) XDPMode() string {
	if c.prog == nil {
		return ""
	}
	return c.attached.Mode.String()
}

// ZeroCopy reports whether the driver works on the packet memory of all queues itself.
func (c *Context) ZeroCopy() bool {
	for _, p := range c.pollers {
		if p.sock == nil || !p.sock.ZeroCopy() {
			return false
		}
	}
	return true
}

// Stats are the counters of a device since it was opened.
type Stats struct {
	Total  rxe.Counters // sum over the shards
	Shards []ShardStats
	BPF    bpf.Stats // verdicts of the steering program
	// EventsLost counts asynchronous events that nobody took in time.
	EventsLost uint64
	// LinkDowned counts how often the port went down.
	LinkDowned uint64
}

// ShardStats are those of one shard.
type ShardStats struct {
	rxe.Counters
	XDP xdp.Stats // of its socket; zero on a link that is no interface
}

// Stats reads the counters. It takes each shard for a moment.
func (c *Context) Stats() Stats {
	var st Stats
	for _, p := range c.pollers {
		p.hold()
		s := ShardStats{Counters: p.shard.C}
		if p.sock != nil {
			s.XDP = p.sock.Stats()
		}
		p.release()
		st.Total.Add(&s.Counters)
		st.Shards = append(st.Shards, s)
	}
	if c.prog != nil {
		st.BPF, _ = c.prog.Stats()
	}
	c.events.mu.Lock()
	st.EventsLost, st.LinkDowned = c.events.lost, c.events.downs
	c.events.mu.Unlock()
	return st
}
