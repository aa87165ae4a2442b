package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// ErrNoNeighbour is wrapped by errors about a neighbour whose MAC address could not be learned.
var ErrNoNeighbour = errors.New("no neighbour")

// ResolveTimeout bounds Resolve when its context does not. By default Linux gives up after three
// requests, one a second.
const ResolveTimeout = 5 * time.Second

// A NeighState is the state of an entry of the kernel's neighbour table (NUD_… of
// linux/neighbour.h).
type NeighState uint16

// The states of a neighbour.
const (
	NeighIncomplete NeighState = unix.NUD_INCOMPLETE // asked, not answered yet
	NeighReachable  NeighState = unix.NUD_REACHABLE  // confirmed lately
	NeighStale      NeighState = unix.NUD_STALE      // known, to be confirmed at its next use
	NeighDelay      NeighState = unix.NUD_DELAY      // used; will be probed unless confirmed soon
	NeighProbe      NeighState = unix.NUD_PROBE      // being probed
	NeighFailed     NeighState = unix.NUD_FAILED     // did not answer
	NeighNoARP      NeighState = unix.NUD_NOARP      // needs no resolution
	NeighPermanent  NeighState = unix.NUD_PERMANENT  // entered by the administrator
)

const (
	hasMAC  = NeighReachable | NeighStale | NeighDelay | NeighProbe | NeighNoARP | NeighPermanent
	isFresh = NeighReachable | NeighNoARP | NeighPermanent
	isAsked = NeighIncomplete | NeighDelay | NeighProbe
)

// Known reports whether an entry in this state has a MAC address that may be used.
func (s NeighState) Known() bool { return s&hasMAC != 0 }

// Fresh reports whether the kernel holds the MAC address as confirmed.
func (s NeighState) Fresh() bool { return s&isFresh != 0 }

// String returns the state's name as ip(8) prints it, in lower case.
func (s NeighState) String() string {
	switch s {
	case 0:
		return "none"
	case NeighIncomplete:
		return "incomplete"
	case NeighReachable:
		return "reachable"
	case NeighStale:
		return "stale"
	case NeighDelay:
		return "delay"
	case NeighProbe:
		return "probe"
	case NeighFailed:
		return "failed"
	case NeighNoARP:
		return "noarp"
	case NeighPermanent:
		return "permanent"
	}
	return fmt.Sprintf("state %#x", uint16(s))
}

// A Neighbour is an entry of the kernel's neighbour table.
type Neighbour struct {
	Index int
	Addr  netip.Addr
	MAC   wire.MAC // meaningful if State.Known()
	State NeighState
}

// Neighbours returns the neighbour table of an interface, IPv4 and IPv6.
func (c *Conn) Neighbours(index int) ([]Neighbour, error) {
	done, err := c.use()
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := settled(func() ([]netlink.Neigh, error) {
		return c.routes.NeighList(index, unix.AF_UNSPEC)
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbours of interface %d: %w", index, err)
	}
	var neighs []Neighbour
	for i := range found {
		if n, ok := neighbourOf(&found[i]); ok {
			neighs = append(neighs, n)
		}
	}
	return neighs, nil
}

// Neighbour reads one entry of the neighbour table. An entry that is not there has state 0.
func (c *Conn) Neighbour(index int, dst netip.Addr) (Neighbour, error) {
	done, err := c.use()
	if err != nil {
		return Neighbour{}, err
	}
	defer done()
	if dst, err = plain(dst); err != nil {
		return Neighbour{}, err
	}
	return c.neighbour(index, dst)
}

// Resolve returns the MAC address of a neighbour on an interface: of a destination on the link, or
// of the gateway to it (Route.NextHop). The answer is immediate for a multicast group, for an
// address of the interface itself and for an entry of the kernel's table, which is confirmed in the
// background if it is stale. Else Resolve makes the kernel ask and waits until the answer is there,
// the kernel gave up, ctx ends or ResolveTimeout is over; then the error wraps ErrNoNeighbour (and
// ctx's cause).
func (c *Conn) Resolve(ctx context.Context, index int, dst netip.Addr) (wire.MAC, error) {
	done, err := c.use()
	if err != nil {
		return wire.MAC{}, err
	}
	defer done()
	if dst, err = plain(dst); err != nil {
		return wire.MAC{}, fmt.Errorf("%w: %w", ErrNoNeighbour, err)
	}
	mac, known, err := c.lookup(index, dst)
	if err != nil || known {
		return mac, err
	}
	return c.await(ctx, index, dst)
}

// Lookup is Resolve for who cannot wait: where the kernel would have to ask, known is false, and it
// does not ask.
func (c *Conn) Lookup(index int, dst netip.Addr) (mac wire.MAC, known bool, err error) {
	done, err := c.use()
	if err != nil {
		return mac, false, err
	}
	defer done()
	if dst, err = plain(dst); err != nil {
		return mac, false, fmt.Errorf("%w: %w", ErrNoNeighbour, err)
	}
	return c.lookup(index, dst)
}

func (c *Conn) lookup(index int, dst netip.Addr) (mac wire.MAC, known bool, err error) {
	if dst.IsMulticast() {
		return wire.MulticastMAC(GIDOf(dst)), true, nil
	}
	n, err := c.neighbour(index, dst)
	if err != nil {
		return mac, false, err
	}
	if n.State.Known() {
		if !n.State.Fresh() && n.State&isAsked == 0 {
			// The entry is good for now. If it cannot be confirmed, Refresh and Monitor will tell.
			_ = c.provoke(index, dst)
		}
		return n.MAC, true, nil
	}
	if addrs, err := c.Addrs(index); err == nil && owns(addrs, dst) {
		link, err := c.LinkByIndex(index)
		return link.MAC, err == nil, err
	}
	return mac, false, nil
}

// await makes the kernel resolve dst and waits for the outcome by looking at its table, first
// often, then 5 times a second: many may wait for neighbours that are not there.
func (c *Conn) await(ctx context.Context, index int, dst netip.Addr) (wire.MAC, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ResolveTimeout, errNoAnswer)
	defer cancel()
	if err := c.provoke(index, dst); err != nil {
		return wire.MAC{}, c.unresolved(index, dst, err)
	}
	pause := time.Millisecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		n, err := c.neighbour(index, dst)
		switch {
		case err != nil:
			return wire.MAC{}, err
		case n.State.Known():
			return n.MAC, nil
		case n.State == NeighFailed:
			return wire.MAC{}, c.unresolved(index, dst, errNoAnswer)
		}
		select {
		case <-ctx.Done():
			return wire.MAC{}, c.unresolved(index, dst, context.Cause(ctx))
		case <-timer.C:
		}
		pause = min(2*pause, 200*time.Millisecond)
		timer.Reset(pause)
	}
}

var errNoAnswer = errors.New("it does not answer")

// unresolved says why a neighbour stayed unknown, as far as can be seen from here.
func (c *Conn) unresolved(index int, dst netip.Addr, cause error) error {
	link, err := c.LinkByIndex(index)
	switch {
	case err != nil:
		return fmt.Errorf("%w %v: %w", ErrNoNeighbour, dst, err)
	case !link.Running:
		return fmt.Errorf("%w %v on %s: the interface is %s",
			ErrNoNeighbour, dst, link.Name, link.State())
	}
	return fmt.Errorf("%w %v on %s: %w", ErrNoNeighbour, dst, link.Name, cause)
}

// Refresh makes the kernel confirm a neighbour that it does not hold as fresh, and returns its
// entry as it was. It does not wait: changes come through a Monitor, or with the next call. Frames sent
// past the kernel confirm nothing to it, so that whoever sends such frames calls Refresh every few
// seconds to notice a neighbour that moved or went.
func (c *Conn) Refresh(index int, dst netip.Addr) (Neighbour, error) {
	done, err := c.use()
	if err != nil {
		return Neighbour{}, err
	}
	defer done()
	if dst, err = plain(dst); err != nil {
		return Neighbour{}, fmt.Errorf("%w: %w", ErrNoNeighbour, err)
	}
	n, err := c.neighbour(index, dst)
	if err != nil || n.State.Fresh() || n.State&isAsked != 0 {
		return n, err
	}
	if err := c.provoke(index, dst); err != nil {
		return n, c.unresolved(index, dst, err)
	}
	return n, nil
}

// neighbour asks for one entry: a dump may have thousands.
func (c *Conn) neighbour(index int, dst netip.Addr) (Neighbour, error) {
	none := Neighbour{Index: index, Addr: dst}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.neighs}
	req.AddData(&netlink.Ndmsg{Family: family(dst), Index: uint32(index)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, dst.AsSlice()))
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.ENOENT):
		return none, nil
	case errors.Is(err, unix.ENODEV):
		return none, fmt.Errorf("%w with index %d in this network namespace", ErrNoLink, index)
	case err != nil:
		return none, fmt.Errorf("read neighbour %v: %w", dst, err)
	case len(answers) == 0:
		return none, nil
	}
	entry, err := netlink.NeighDeserialize(answers[0])
	if err != nil {
		return none, fmt.Errorf("read neighbour %v: %w", dst, err)
	}
	if n, ok := neighbourOf(entry); ok {
		return n, nil
	}
	return none, nil
}

func neighbourOf(n *netlink.Neigh) (Neighbour, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return Neighbour{}, false
	}
	neigh := Neighbour{Index: n.LinkIndex, Addr: a.Unmap(), State: NeighState(n.State)}
	if len(n.HardwareAddr) == len(neigh.MAC) {
		copy(neigh.MAC[:], n.HardwareAddr)
	}
	return neigh, true
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
