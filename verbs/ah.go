package verbs

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// AH is an address handle: where a datagram goes (struct ibv_ah).
type AH struct {
	handle
	pd *PD
	ah *rxe.AH
}

// CreateAH makes an address handle (ibv_create_ah). It looks up route and neighbour, like Modify.
func (pd *PD) CreateAH(a *AHAttr) (*AH, error) {
	c := pd.ctx
	av, err := c.addressVector(a, 0, 0)
	if err == nil {
		err = c.use(&pd.handle)
	}
	if err != nil {
		return nil, fmt.Errorf("create AH to %v: %w", a.DGID, err)
	}
	ah, err := c.dev.CreateAH(pd.num, av)
	if err != nil {
		c.unuse(&pd.handle)
		return nil, fmt.Errorf("create AH to %v: %w", a.DGID, err)
	}
	return &AH{handle: handle{ctx: c}, pd: pd, ah: ah}, nil
}

// Destroy ends the handle (ibv_destroy_ah). Work requests that name it and are not yet sent fail.
func (a *AH) Destroy() error {
	if first, err := a.bury(); err != nil || !first {
		return err
	}
	a.ctx.dev.DestroyAH(a.ah)
	a.ctx.unuse(&a.pd.handle)
	return nil
}

const defaultHopLimit = 64

// resolver finds link addresses.
type resolver interface {
	Resolve(ctx context.Context, index int, dst netip.Addr) (wire.MAC, error)
}

// addressVector looks up the way to a peer. local and remote are the QPNs of a connection.
func (c *Context) addressVector(a *AHAttr, local, remote QPN) (rxe.AV, error) {
	c.mu.Lock()
	link := c.link
	var src wire.GID
	if a.SGIDIndex >= 0 && a.SGIDIndex < len(c.gids) {
		src = c.gids[a.SGIDIndex]
	}
	c.mu.Unlock()
	if src == (wire.GID{}) {
		return rxe.AV{}, fmt.Errorf("GID index %d of %s: no such address: %w", a.SGIDIndex, c.name,
			ErrAttrValue)
	}
	if src.IsIPv4() != a.DGID.IsIPv4() {
		return rxe.AV{}, fmt.Errorf("GID index %d is %v, the destination %v: one is IPv4, the other IPv6: %w",
			a.SGIDIndex, netdev.AddrOf(src), netdev.AddrOf(a.DGID), ErrAttrValue)
	}
	av := rxe.AV{Path: wire.Path{
		SrcMAC: link.MAC, VLAN: -1, Src: src, Dst: a.DGID, TClass: a.TrafficClass,
		FlowLabel: a.FlowLabel & 0xfffff, HopLimit: a.HopLimit,
	}}
	if av.Path.HopLimit == 0 {
		av.Path.HopLimit = defaultHopLimit
	}
	if c.cfg.VLAN != 0 {
		av.Path.VLAN = int16(c.cfg.VLAN)
	}
	flow := av.Path.FlowLabel
	if flow == 0 && remote != 0 {
		flow = wire.FlowLabel(local, remote)
	}
	av.Path.SrcPort = wire.SourcePort(flow)
	if c.isLocal(a.DGID) {
		av.Loopback, av.Path.DstMAC = true, link.MAC
		return av, nil
	}
	dst := netdev.AddrOf(a.DGID)
	if a.DGID.IsMulticast() {
		av.Path.DstMAC = wire.MulticastMAC(a.DGID)
		return av, nil
	}
	route, err := c.net.Route(link.Index, netdev.AddrOf(src), dst)
	if err != nil {
		return rxe.AV{}, err
	}
	av.Path.DstMAC, err = c.net.Resolve(context.Background(), link.Index, route.NextHop)
	return av, err
}

// isLocal reports whether g is an address of this device.
func (c *Context) isLocal(g wire.GID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.gids {
		if own == g && g != (wire.GID{}) {
			return true
		}
	}
	return false
}

// checkPMTU refuses a path MTU whose packets the link does not carry.
func (c *Context) checkPMTU(a *QPAttr, mask AttrMask) error {
	c.mu.Lock()
	mtu := c.usableMTU()
	c.mu.Unlock()
	ipv6 := mask&AttrAV != 0 && !a.AH.DGID.IsIPv4()
	best := netdev.PMTU(mtu, ipv6)
	if a.PathMTU <= best {
		return nil
	}
	need := netdev.LinkMTU(a.PathMTU, ipv6)
	if c.cfg.VLAN != 0 {
		need += 4
	}
	return fmt.Errorf("PATH_MTU %d needs a link MTU of %d, %s has %d: take PATH_MTU %d or less, or "+
		"`ip link set %s mtu %d`: %w", a.PathMTU, need, c.name, c.link.MTU, best, c.name, need, ErrAttrValue)
}
