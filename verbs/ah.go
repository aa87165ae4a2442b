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
	pd  *PD
	num uint32 // in the engine

	ah  *rxe.AH // Context.mu
	way way     // Context.mu
}

// CreateAH makes an address handle (ibv_create_ah). It looks up route and neighbour, like Modify.
func (pd *PD) CreateAH(a *AHAttr) (*AH, error) {
	w, err := pd.ctx.findWay(a, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("create AH to %v: %w", netdev.AddrOf(a.DGID), err)
	}
	return pd.fileAH(a, w)
}

// TryCreateAH is CreateAH for who cannot wait. Where the kernel would have to ask for the neighbour's
// link address, there is no handle and no error, and the kernel does not ask. Whoever answers
// strangers begins with it: the neighbours of addresses that nobody has take seconds each, and room
// in the kernel's table.
func (pd *PD) TryCreateAH(a *AHAttr) (ah *AH, known bool, err error) {
	c := pd.ctx
	w, err := c.routeWay(a, 0, 0)
	known = err == nil
	if known && w.hop.IsValid() {
		w.av.Path.DstMAC, known, err = c.net.Lookup(c.index(), w.hop)
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("create AH to %v: %w", netdev.AddrOf(a.DGID), err)
	case !known:
		return nil, false, nil
	}
	ah, err = pd.fileAH(a, w)
	return ah, err == nil, err
}

// fileAH makes the handle of a way.
func (pd *PD) fileAH(a *AHAttr, w way) (*AH, error) {
	c := pd.ctx
	if err := c.use(&pd.handle); err != nil {
		return nil, fmt.Errorf("create AH to %v: %w", netdev.AddrOf(a.DGID), err)
	}
	ah, err := c.dev.CreateAH(pd.num, w.av)
	if err != nil {
		c.unuse(&pd.handle)
		return nil, fmt.Errorf("create AH to %v: %w", netdev.AddrOf(a.DGID), err)
	}
	h := &AH{handle: handle{ctx: c}, pd: pd, num: ah.Num(), ah: ah, way: w}
	c.mu.Lock()
	c.ahs[h] = struct{}{}
	c.mu.Unlock()
	return h, nil
}

// Destroy ends the handle (ibv_destroy_ah). Work requests that name it and are not yet sent fail. A
// second call does nothing.
func (a *AH) Destroy() error {
	if first, err := a.bury(); err != nil || !first {
		return err
	}
	c := a.ctx
	c.mu.Lock()
	delete(c.ahs, a)
	c.dev.DestroyAH(a.ah)
	c.mu.Unlock()
	c.unuse(&a.pd.handle)
	return nil
}

const defaultHopLimit = 64

// way is a path to a peer and what it was found from.
type way struct {
	av            rxe.AV
	attr          AHAttr
	local, remote QPN        // of a connection, else 0
	hop           netip.Addr // neighbour whose link address it has; not valid if it needs none
	lost          bool       // no route leads there any more: av is Nowhere
}

// nowhere makes a way on which frames are lost.
func (w *way) nowhere() { w.av.Loopback, w.av.Nowhere = true, true }

// findWay looks up the way to a peer, and waits for the neighbour's link address if the kernel has
// to ask for it. local and remote are the QPNs of a connection.
func (c *Context) findWay(a *AHAttr, local, remote QPN) (way, error) {
	w, err := c.routeWay(a, local, remote)
	if err == nil && w.hop.IsValid() {
		w.av.Path.DstMAC, err = c.net.Resolve(context.Background(), c.index(), w.hop)
	}
	return w, err
}

// routeWay looks up the way to a peer but for the link address of the neighbour on it. It does not
// wait.
func (c *Context) routeWay(a *AHAttr, local, remote QPN) (way, error) {
	c.mu.Lock()
	link := c.link
	var src wire.GID
	if a.SGIDIndex >= 0 && a.SGIDIndex < len(c.gids) {
		src = c.gids[a.SGIDIndex]
	}
	c.mu.Unlock()
	w := way{attr: *a, local: local, remote: remote}
	if src == (wire.GID{}) {
		return w, fmt.Errorf("GID index %d of %s: no such address: %w", a.SGIDIndex, c.name,
			ErrAttrValue)
	}
	if src.IsIPv4() != a.DGID.IsIPv4() {
		return w, fmt.Errorf("GID index %d is %v, the destination %v: one is IPv4, the other IPv6: %w",
			a.SGIDIndex, netdev.AddrOf(src), netdev.AddrOf(a.DGID), ErrAttrValue)
	}
	w.av = rxe.AV{Path: wire.Path{
		SrcMAC: link.MAC, VLAN: -1, Src: src, Dst: a.DGID, TClass: a.TrafficClass,
		FlowLabel: a.FlowLabel & 0xfffff, HopLimit: a.HopLimit,
	}}
	p := &w.av.Path
	if p.HopLimit == 0 {
		p.HopLimit = defaultHopLimit
	}
	if c.cfg.VLAN != 0 {
		p.VLAN = int16(c.cfg.VLAN)
	}
	flow := p.FlowLabel
	if flow == 0 && remote != 0 {
		flow = wire.FlowLabel(local, remote)
	}
	p.SrcPort = wire.SourcePort(flow)
	switch {
	case c.isLocal(a.DGID):
		w.av.Loopback, p.DstMAC = true, link.MAC
		return w, nil
	case a.DGID.IsMulticast():
		p.DstMAC = wire.MulticastMAC(a.DGID)
		return w, nil
	}
	route, err := c.net.Route(link.Index, netdev.AddrOf(src), netdev.AddrOf(a.DGID))
	if err != nil {
		return w, err
	}
	w.hop = route.NextHop
	return w, nil
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
	linkMTU := c.link.MTU
	ipv6 := mask&AttrAV != 0 && !a.AH.DGID.IsIPv4()
	best := c.maxPMTU(ipv6)
	c.mu.Unlock()
	if a.PathMTU <= best {
		return nil
	}
	if top := int(c.dev.Config().MaxPMTU); a.PathMTU > top && best == top {
		return fmt.Errorf("PATH_MTU %d is more than the %d that %s was opened for: take %d or less, "+
			"or open it again: %w", a.PathMTU, top, c.name, top, ErrAttrValue)
	}
	need := netdev.LinkMTU(a.PathMTU, ipv6)
	if c.cfg.VLAN != 0 {
		need += 4
	}
	return fmt.Errorf("PATH_MTU %d needs a link MTU of %d, %s has %d: take PATH_MTU %d or less, or "+
		"`ip link set %s mtu %d`: %w", a.PathMTU, need, c.name, linkMTU, best, c.name, need, ErrAttrValue)
}
