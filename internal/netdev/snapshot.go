package netdev

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// A Snapshot is the state of one interface as a value. Conn.Snapshot takes one of a real interface;
// one made by hand describes an interface that exists on a simulated wire only. A Snapshot that is
// not changed may be used from any goroutine.
//
// Its Route, Resolve, Lookup and Refresh answer as those of a Conn do, from what is written in the fields.
// They know no gateways: a destination that is not in the network of an address has no route.
type Snapshot struct {
	Link
	Addrs      []netip.Prefix // in the order of Conn.Addrs, which is that of the GID table
	Neighbours map[netip.Addr]wire.MAC
}

// Snapshot reads the interface of that name, its addresses, and the neighbours whose MAC address
// the kernel knows. The error wraps ErrNoLink where there is no such interface.
func (c *Conn) Snapshot(name string) (*Snapshot, error) {
	link, err := c.LinkByName(name)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Link: link, Neighbours: make(map[netip.Addr]wire.MAC)}
	if s.Addrs, err = c.Addrs(link.Index); err != nil {
		return nil, err
	}
	neighs, err := c.Neighbours(link.Index)
	if err != nil {
		return nil, err
	}
	for _, n := range neighs {
		if n.State.Known() {
			s.Neighbours[n.Addr] = n.MAC
		}
	}
	return s, nil
}

// GIDs returns the addresses as a new GID table.
func (s *Snapshot) GIDs() []wire.GID { return GIDs(s.Addrs) }

// PMTU returns the largest path MTU that fits the interface, see the function PMTU.
func (s *Snapshot) PMTU(ipv6 bool) int { return PMTU(s.MTU, ipv6) }

// Route returns the route to a destination on the link. Without a valid src, the source is the
// address whose network has the destination, the first of them. A multicast group is on the link of
// the first address of its family. The error wraps ErrNoRoute.
func (s *Snapshot) Route(index int, src, dst netip.Addr) (Route, error) {
	dst, err := plain(dst)
	if err != nil {
		return Route{}, fmt.Errorf("look up route: destination is %w", err)
	}
	if index != 0 && index != s.Index {
		return Route{}, fmt.Errorf("%w to %v: %w with index %d", ErrNoRoute, dst, ErrNoLink, index)
	}
	if src.IsValid() {
		src, _ = plain(src)
		if src.Is4() != dst.Is4() || !owns(s.Addrs, src) {
			return Route{}, fmt.Errorf("%w to %v from %v", ErrNoRoute, dst, src)
		}
	}
	local := owns(s.Addrs, dst)
	for _, p := range s.Addrs {
		onLink := p.Masked().Contains(dst) || dst.IsMulticast() && p.Addr().Is4() == dst.Is4()
		if !onLink {
			continue
		}
		route := Route{Index: s.Index, Src: src, NextHop: dst, Local: local}
		if !src.IsValid() {
			route.Src = p.Addr()
			if local {
				route.Src = dst
			}
		}
		return route, nil
	}
	return Route{}, fmt.Errorf("%w to %v through %s", ErrNoRoute, dst, s.Name)
}

// Resolve returns the MAC address of a multicast group, of the interface's own addresses, and of
// Neighbours. It waits for nothing; the error wraps ErrNoNeighbour.
func (s *Snapshot) Resolve(_ context.Context, index int, dst netip.Addr) (wire.MAC, error) {
	dst, err := plain(dst)
	if err != nil {
		return wire.MAC{}, fmt.Errorf("%w: %w", ErrNoNeighbour, err)
	}
	if index != s.Index {
		return wire.MAC{}, fmt.Errorf("%w %v: %w with index %d", ErrNoNeighbour, dst, ErrNoLink, index)
	}
	if dst.IsMulticast() {
		return wire.MulticastMAC(GIDOf(dst)), nil
	}
	if mac, ok := s.Neighbours[dst]; ok {
		return mac, nil
	}
	if owns(s.Addrs, dst) {
		return s.MAC, nil
	}
	return wire.MAC{}, fmt.Errorf("%w %v on %s: %w", ErrNoNeighbour, dst, s.Name, errNoAnswer)
}

// Lookup is Resolve: what is not known here never will be.
func (s *Snapshot) Lookup(index int, dst netip.Addr) (mac wire.MAC, known bool, err error) {
	mac, err = s.Resolve(context.Background(), index, dst)
	return mac, err == nil, err
}

// Refresh returns the entry of a neighbour, as a permanent one; one that is not there has state 0.
func (s *Snapshot) Refresh(index int, dst netip.Addr) (Neighbour, error) {
	dst, err := plain(dst)
	if err != nil {
		return Neighbour{}, fmt.Errorf("%w: %w", ErrNoNeighbour, err)
	}
	n := Neighbour{Index: index, Addr: dst}
	if index != s.Index {
		return n, fmt.Errorf("%w with index %d", ErrNoLink, index)
	}
	if mac, ok := s.Neighbours[dst]; ok {
		n.MAC, n.State = mac, NeighPermanent
	}
	return n, nil
}
