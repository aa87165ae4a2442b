package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoRoute is wrapped by errors about a destination to which no route leads.
var ErrNoRoute = errors.New("no route")

// A Route tells how packets to a destination leave.
type Route struct {
	Index   int        // interface they leave by
	Src     netip.Addr // source address: the one asked for, or the kernel's choice
	NextHop netip.Addr // the destination itself, or the gateway to it
	// Local says that the destination is an address of this namespace: packets to it do not leave
	// at all, NextHop is the destination.
	Local bool
	// MTU is the largest IP packet that the route or what the kernel learned of the path allows,
	// 0 if that is the link MTU.
	MTU int
}

// Route looks a destination up in the kernel's routing table. A non-zero index asks for a route
// through that interface, which a link-local destination needs; a valid src asks with that source
// address, which must be one of the namespace's. Without a route the error wraps ErrNoRoute.
func (c *Conn) Route(index int, src, dst netip.Addr) (Route, error) {
	done, err := c.use()
	if err != nil {
		return Route{}, err
	}
	defer done()
	if dst, err = plain(dst); err != nil {
		return Route{}, fmt.Errorf("look up route: destination is %w", err)
	}
	options := &netlink.RouteGetOptions{OifIndex: index}
	if src.IsValid() {
		src, _ = plain(src)
		if src.Is4() != dst.Is4() {
			return Route{}, fmt.Errorf("%w from %v to %v: one is IPv4, the other IPv6",
				ErrNoRoute, src, dst)
		}
		options.SrcAddr = src.AsSlice()
	}
	found, err := c.routes.RouteGetWithOptions(dst.AsSlice(), options)
	if err == nil && len(found) == 0 {
		err = unix.ENETUNREACH
	}
	if err == nil && !dst.IsMulticast() {
		err = c.matchRoute(dst, options, found[0])
	}
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH),
		errors.Is(err, unix.EACCES): // a route of type prohibit
		return Route{}, fmt.Errorf("%w to %s: give the interface an address in its network or add a route",
			ErrNoRoute, c.journey(index, src, dst))
	case errors.Is(err, unix.EINVAL) && src.IsValid():
		return Route{}, fmt.Errorf("%w to %s: the source is no address of this namespace",
			ErrNoRoute, c.journey(index, src, dst))
	case err != nil:
		return Route{}, fmt.Errorf("look up route to %s: %w", c.journey(index, src, dst), err)
	}
	return routeOf(found[0], index, src, dst), nil
}

// matchRoute makes sure that there is an entry behind an answer: asked for a route through a given
// interface, the kernel takes an IPv4 destination without one as on the link.
func (c *Conn) matchRoute(dst netip.Addr, options *netlink.RouteGetOptions, r netlink.Route) error {
	switch r.Type {
	case unix.RTN_LOCAL:
		return nil
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return unix.EHOSTUNREACH
	}
	if !dst.Is4() || options.OifIndex == 0 {
		return nil
	}
	match := *options
	match.FIBMatch = true
	_, err := c.routes.RouteGetWithOptions(dst.AsSlice(), &match)
	return err
}

func routeOf(r netlink.Route, index int, src, dst netip.Addr) Route {
	route := Route{
		Index:   r.LinkIndex,
		Src:     src,
		NextHop: dst,
		Local:   r.Type == unix.RTN_LOCAL,
		MTU:     r.MTU,
	}
	if a, ok := addrOfIP(r.Src); ok && !src.IsValid() {
		route.Src = a
	}
	if a, ok := addrOfIP(r.Gw); ok && !route.Local {
		route.NextHop = a
	}
	if via, ok := r.Via.(*netlink.Via); ok && !route.Local { // IPv4 by way of an IPv6 gateway
		if a, ok := addrOfIP(via.Addr); ok {
			route.NextHop = a
		}
	}
	if route.Local && index != 0 { // the kernel names the loopback device
		route.Index = index
	}
	return route
}

func addrOfIP(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok && !a.IsUnspecified()
}

// journey describes what was asked for, for an error message.
func (c *Conn) journey(index int, src, dst netip.Addr) string {
	text := dst.String()
	if src.IsValid() {
		text += " from " + src.String()
	}
	if index != 0 {
		text += " through " + c.nameOf(index)
	}
	return text
}

// nameOf returns the name of an interface for a message, or its index where it has gone.
func (c *Conn) nameOf(index int) string {
	link, err := c.routes.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("interface %d", index)
	}
	return link.Attrs().Name
}
