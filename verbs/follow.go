package verbs

import (
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
		if w := &q.way; w.hop == hop && w.av.Path.DstMAC != mac {
			w.av.Path.DstMAC = mac
			q.qp.SetPath(w.av)
		}
		q.poller.release()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := range c.ahs {
		if w := &a.way; w.hop == hop && w.av.Path.DstMAC != mac {
			w.av.Path.DstMAC = mac
			a.ah = c.dev.ReplaceAH(a.ah, w.av)
		}
	}
}

// findWays looks all ways up again. One that cannot be found stays as it is: the peer may be heard
// of again, and timeouts judge until then.
func (c *Context) findWays() {
	for _, q := range c.allQPs() {
		q.poller.hold()
		old := q.way
		q.poller.release()
		if !old.hop.IsValid() {
			continue
		}
		w, err := c.findWay(&old.attr, old.local, old.remote)
		if err != nil || w == old {
			continue
		}
		q.poller.hold()
		if q.way == old { // not connected anew meanwhile
			q.way = w
			q.qp.SetPath(w.av)
		}
		q.poller.release()
	}
	c.mu.Lock()
	handles := slices.Collect(maps.Keys(c.ahs))
	c.mu.Unlock()
	for _, a := range handles {
		w, err := c.findWay(&a.way.attr, 0, 0) // attr never changes
		c.mu.Lock()
		if err == nil && w != a.way {
			a.way, a.ah = w, c.dev.ReplaceAH(a.ah, w.av)
		}
		c.mu.Unlock()
	}
}

// confirmNeighbours makes the kernel confirm the neighbours in use. What it finds out comes as a
// change.
func (c *Context) confirmNeighbours() {
	hops := map[netip.Addr]struct{}{}
	for _, q := range c.allQPs() {
		if s := q.State(); s == StateRTR || s == StateRTS || s == StateSQD {
			q.poller.hold()
			hops[q.way.hop] = struct{}{}
			q.poller.release()
		}
	}
	c.mu.Lock()
	for a := range c.ahs {
		hops[a.way.hop] = struct{}{}
	}
	c.mu.Unlock()
	delete(hops, netip.Addr{})
	for h := range hops {
		_, _ = c.conn.Refresh(c.index(), h)
	}
}

// linkChanged follows the interface's state and MTU. It reports a new MAC address.
func (c *Context) linkChanged(l netdev.Link) (moved bool) {
	c.mu.Lock()
	was := c.link
	c.link.MTU, c.link.Up, c.link.Running, c.link.MAC = l.MTU, l.Up, l.Running, l.MAC
	c.mu.Unlock()
	if l.MTU != was.MTU {
		for _, p := range c.pollers {
			p.hold()
			if p.sock != nil && !p.shut {
				_ = p.sock.RefreshMTU()
			}
			p.release()
		}
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
	return l.MAC != was.MAC
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
}

func hasAddr(list addresses, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == a })
}
