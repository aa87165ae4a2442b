package verbs

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

type addresses = []netip.Prefix

// This file follows the interface while the device is open: its state, MTU and addresses.

// How often the ways to peers are looked after.
const (
	confirmEvery = 5 * time.Second // ask the kernel to confirm the neighbours in use
	settle       = 200 * time.Millisecond
)

// follow takes the namespace's changes until the monitor is closed. Our frames do not pass the
// kernel and confirm no neighbour to it, so it is asked to do that now and then.
func (c *Context) follow() {
	defer c.workers.Done()
	confirm := time.NewTicker(confirmEvery)
	defer confirm.Stop()
	again := time.NewTimer(settle)
	again.Stop()
	for {
		select {
		case e, ok := <-c.monitor.Events():
			if !ok {
				return
			}
			if c.changed(&e) {
				again.Reset(settle) // changes come in bursts
			}
		case <-again.C:
			c.findWays()
		case <-confirm.C:
			c.confirmNeighbours()
		}
	}
}

// changed follows one change. It reports true when the ways to peers may have to be found again.
func (c *Context) changed(e *netdev.Event) (ways bool) {
	switch e.Kind {
	case netdev.RouteChanged:
		return true
	case netdev.Overrun:
		if l, err := c.conn.LinkByIndex(c.index()); err == nil {
			c.linkChanged(l)
		}
		c.readAddrs()
		return true
	}
	if e.Index != c.index() {
		return false
	}
	switch e.Kind {
	case netdev.LinkChanged:
		return c.linkChanged(e.Link)
	case netdev.LinkGone:
		c.deviceGone()
	case netdev.AddrAdded, netdev.AddrGone:
		c.readAddrs()
	case netdev.NeighChanged:
		if e.Neighbour.State.Known() {
			c.neighbourMoved(e.Neighbour.Addr, e.Neighbour.MAC)
		}
	}
	return false
}

// neighbourMoved gives connections and handles by way of a neighbour its new link address.
func (c *Context) neighbourMoved(hop netip.Addr, mac wire.MAC) {
	for _, q := range c.allQPs() {
		q.poller.hold()
		if w, ok := q.way.by(hop, mac); ok {
			q.setWay(w)
		}
		q.poller.release()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := range c.ahs {
		if w, ok := a.way.by(hop, mac); ok {
			a.setWay(w)
		}
	}
}

// by is the way with a neighbour's link address. It is false if that changes nothing.
func (w way) by(hop netip.Addr, mac wire.MAC) (way, bool) {
	if w.hop != hop || w.lost || w.av.Path.DstMAC == mac && !w.av.Nowhere {
		return w, false
	}
	w.av.Path.DstMAC, w.av.Loopback, w.av.Nowhere = mac, false, false
	return w, true
}

// setWay makes a connection go another way. The shard is held.
func (q *QP) setWay(w way) {
	q.way = w
	q.qp.SetPath(w.av)
	q.ctx.watchers.tell(w.change())
}

// setWay is the same for a handle. Context.mu is held.
func (a *AH) setWay(w way) {
	a.way, a.ah = w, a.ctx.dev.ReplaceAH(a.ah, w.av)
	a.ctx.watchers.tell(w.change())
}

// findWays looks all ways up again, without waiting: a neighbour that is not known is asked for, and
// its answer comes as a change.
func (c *Context) findWays() {
	found := finding{c: c, hops: map[netip.Addr]netdev.Neighbour{}}
	c.mu.Lock()
	found.running = c.link.Running
	handles := slices.Collect(maps.Keys(c.ahs))
	c.mu.Unlock()
	for _, q := range c.allQPs() {
		q.poller.hold()
		old := q.way
		q.poller.release()
		w := found.again(old)
		if w == old {
			continue
		}
		q.poller.hold()
		if q.way == old { // not connected anew meanwhile
			q.setWay(w)
		}
		q.poller.release()
	}
	for _, a := range handles {
		c.mu.Lock()
		old := a.way
		c.mu.Unlock()
		w := found.again(old)
		c.mu.Lock()
		if a.way == old && w != old {
			a.setWay(w)
		}
		c.mu.Unlock()
	}
	for hop, n := range found.hops {
		if !n.State.Fresh() {
			_, _ = c.conn.Refresh(c.index(), hop)
		}
	}
}

// finding is one search for all ways.
type finding struct {
	c       *Context
	running bool
	hops    map[netip.Addr]netdev.Neighbour // on the ways
}

// again looks one way up again. Without a route frames are lost, so that timeouts judge as on any
// path that is broken; but on a link that is down, whose routes go and come with it, and for one
// whose own address has gone, the way stays.
func (f *finding) again(old way) way {
	if dst := old.av.Path.Dst; dst == (wire.GID{}) || dst.IsMulticast() {
		return old // not connected; or nothing to look up
	}
	w, err := f.c.routeWay(&old.attr, old.local, old.remote)
	switch {
	case errors.Is(err, netdev.ErrNoRoute) && f.running && f.c.isLocal(old.av.Path.Src):
		old.lost = true
		old.nowhere()
		return old
	case err != nil || w.av.Path.Src != old.av.Path.Src: // its index may be another's by now
		return old
	case !w.hop.IsValid(): // the peer's address is our own by now
		return w
	}
	n, ok := f.hops[w.hop]
	if !ok {
		n, _ = f.c.conn.Neighbour(f.c.index(), w.hop)
		f.hops[w.hop] = n
	}
	switch {
	case n.State.Known():
		w.av.Path.DstMAC = n.MAC
	case w.hop == old.hop && !old.av.Nowhere:
		w.av.Path.DstMAC = old.av.Path.DstMAC // good until another is heard of
	default:
		w.nowhere()
	}
	return w
}

// confirmNeighbours makes the kernel confirm the neighbours in use. What it finds out comes as a
// change.
func (c *Context) confirmNeighbours() {
	hops := map[netip.Addr]struct{}{}
	for _, q := range c.allQPs() {
		if s := q.State(); s == StateRTR || s == StateRTS || s == StateSQD {
			q.poller.hold()
			if !q.way.lost {
				hops[q.way.hop] = struct{}{}
			}
			q.poller.release()
		}
	}
	c.mu.Lock()
	for a := range c.ahs {
		if !a.way.lost {
			hops[a.way.hop] = struct{}{}
		}
	}
	c.mu.Unlock()
	delete(hops, netip.Addr{})
	for h := range hops {
		_, _ = c.conn.Refresh(c.index(), h)
	}
}

// linkChanged follows the interface's state and MTU. It reports true when its MAC address is new, or
// when it carries frames again: routes may have gone meanwhile.
func (c *Context) linkChanged(l netdev.Link) (ways bool) {
	c.mu.Lock()
	was := c.link
	c.link.MTU, c.link.Up, c.link.Running, c.link.MAC = l.MTU, l.Up, l.Running, l.MAC
	c.mu.Unlock()
	if l.MTU != was.MTU {
		c.followMTU()
	}
	switch {
	case l.Running && !was.Running:
		c.events.put(AsyncEvent{Type: EventPortActive})
		for _, p := range c.pollers {
			p.wake() // what could not be sent
		}
	case !l.Running && was.Running:
		c.events.put(AsyncEvent{Type: EventPortErr})
	}
	return l.MAC != was.MAC || l.Running && !was.Running
}

// followMTU follows the link MTU. A connection keeps its path MTU: while its packets are longer than
// the link carries, its work fails by timeouts. Datagram QPs take the new one.
func (c *Context) followMTU() {
	c.mu.Lock()
	pmtu := max(netdev.PMTU(c.usableMTU(), false), netdev.MinPMTU)
	c.mu.Unlock()
	c.dev.SetPortMTU(uint32(pmtu))
	for _, p := range c.pollers {
		p.hold()
		if p.sock != nil && !p.shut {
			_ = p.sock.RefreshMTU()
		}
		p.release()
	}
	for _, q := range c.allQPs() {
		if q.datagram {
			q.poller.hold()
			q.qp.FollowPortMTU()
			q.poller.release()
		}
	}
}

// readAddrs follows the interface's addresses. An address keeps its index in the GID table.
func (c *Context) readAddrs() {
	addrs, err := c.conn.Addrs(c.index())
	if err != nil {
		return // the interface has gone: LinkGone follows
	}
	c.mu.Lock()
	was := c.addrs
	c.addrs = addrs
	gids := netdev.UpdateGIDs(c.gids, addrs)
	changed := !slices.Equal(gids, c.gids)
	c.gids = gids
	live := c.liveGIDs()
	c.mu.Unlock()
	if !changed {
		return
	}
	c.dev.SetGIDs(live)
	for _, a := range addrs {
		if !hasAddr(was, a.Addr()) {
			_ = c.prog.Add(uint16(c.cfg.VLAN), a.Addr())
		}
	}
	for _, a := range was {
		if !hasAddr(addrs, a.Addr()) {
			_ = c.prog.Remove(uint16(c.cfg.VLAN), a.Addr())
		}
	}
	c.events.put(AsyncEvent{Type: EventGIDChange})
	c.watchers.tell(Change{Kind: ChangeGIDs})
}

func hasAddr(list addresses, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == a })
}
