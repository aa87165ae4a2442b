package verbs

import (
	"net/netip"
	"slices"

	"github.com/roxie-rdma/roxie/internal/netdev"
)

type addresses = []netip.Prefix

// This file follows the interface while the device is open: its state, MTU and addresses.

// follow takes the namespace's changes until the monitor is closed.
func (c *Context) follow() {
	defer c.workers.Done()
	for e := range c.monitor.Events() {
		switch e.Kind {
		case netdev.LinkChanged:
			if e.Index == c.link.Index {
				c.linkChanged(e.Link)
			}
		case netdev.LinkGone:
			if e.Index == c.link.Index {
				c.deviceGone()
			}
		case netdev.AddrAdded, netdev.AddrGone:
			if e.Index == c.link.Index {
				c.readAddrs()
			}
		case netdev.Overrun:
			if l, err := c.conn.LinkByIndex(c.link.Index); err == nil {
				c.linkChanged(l)
			}
			c.readAddrs()
		}
	}
}

// linkChanged follows the interface's state and MTU.
func (c *Context) linkChanged(l netdev.Link) {
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
}

// readAddrs follows the interface's addresses. An address keeps its index in the GID table.
func (c *Context) readAddrs() {
	addrs, err := c.conn.Addrs(c.link.Index)
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
