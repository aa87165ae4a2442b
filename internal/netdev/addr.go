package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// GIDOf returns an address as a GID: IPv4 in mapped form, IPv6 as it is.
func GIDOf(a netip.Addr) wire.GID { return a.As16() }

// AddrOf returns the address of a GID: IPv4 if it is a mapped one, else IPv6.
func AddrOf(g wire.GID) netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Addrs returns the addresses of an interface, each once and with the prefix length of its network,
// in the order in which a new GID table takes them:
//
//  1. IPv6 link-local addresses: Linux too has the interface's own one at GID index 0;
//  2. IPv4 addresses, as the kernel lists them: primary before secondary ones;
//  3. all other IPv6 addresses, the oldest first.
//
// An address under duplicate address detection counts, so that the order does not depend on when it
// is asked for; one that failed it does not. Addresses of VLAN devices on top of the interface are
// not included: a tagged endpoint uses the interface's own addresses and is given its VLAN ID.
func (c *Conn) Addrs(index int) ([]netip.Prefix, error) {
	done, err := c.use()
	if err != nil {
		return nil, err
	}
	defer done()
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	var all []netip.Prefix
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		found, err := settled(func() ([]netlink.Addr, error) { return c.routes.AddrList(link, family) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of interface %d: %w", index, err)
		}
		if family == unix.AF_INET6 {
			slices.Reverse(found) // the kernel puts a new address before its like
		}
		for _, a := range found {
			if p, ok := usablePrefix(a); ok {
				all = append(all, p)
			}
		}
	}
	return orderAddrs(all), nil
}

// usablePrefix converts an address as netlink gives it; ok is false if nobody may use it.
func usablePrefix(a netlink.Addr) (p netip.Prefix, ok bool) {
	if a.IPNet == nil || a.Flags&unix.IFA_F_DADFAILED != 0 {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(a.IPNet.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, _ := a.IPNet.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits), true
}

// orderAddrs brings addresses into the order of Conn.Addrs, in place, and drops repetitions: an
// IPv4 address may be on an interface with several prefix lengths. The first one stays.
func orderAddrs(addrs []netip.Prefix) []netip.Prefix {
	slices.SortStableFunc(addrs, func(a, b netip.Prefix) int {
		return addrClass(a.Addr()) - addrClass(b.Addr())
	})
	kept := addrs[:0]
	for _, p := range addrs {
		if !slices.ContainsFunc(kept, func(q netip.Prefix) bool { return q.Addr() == p.Addr() }) {
			kept = append(kept, p)
		}
	}
	return kept
}

func addrClass(a netip.Addr) int {
	switch {
	case a.Is4():
		return 1
	case a.IsLinkLocalUnicast():
		return 0
	}
	return 2
}

// GIDs returns addresses as a new GID table.
func GIDs(addrs []netip.Prefix) []wire.GID {
	return UpdateGIDs(nil, addrs)
}

// UpdateGIDs returns the GID table after the interface's addresses became addrs. A GID that stays
// keeps its index, for connections and applications hold on to indexes. The entry of one that went
// is zero until a new GID takes it, which they do in the order of addrs, the lowest entry first.
func UpdateGIDs(table []wire.GID, addrs []netip.Prefix) []wire.GID {
	var zero wire.GID
	updated := slices.Clone(table)
	var added []wire.GID
	for _, p := range addrs {
		if g := GIDOf(p.Addr()); !slices.Contains(table, g) {
			added = append(added, g)
		}
	}
	for i, g := range updated {
		gone := !slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return GIDOf(p.Addr()) == g })
		if gone {
			updated[i] = zero
		}
		if updated[i] == zero && len(added) > 0 {
			updated[i], added = added[0], added[1:]
		}
	}
	return append(updated, added...)
}

// owns reports whether one of the addresses of an interface is a.
func owns(addrs []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

var errBadAddr = errors.New("not an IP address")

// plain returns an address in the form that this package works with: valid, no zone, IPv4 not in
// mapped form.
func plain(a netip.Addr) (netip.Addr, error) {
	if !a.IsValid() {
		return a, errBadAddr
	}
	return a.Unmap().WithZone(""), nil
}
