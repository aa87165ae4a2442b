package netdev

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// ErrNoLink is wrapped by errors about an interface that the namespace does not have.
var ErrNoLink = errors.New("no such interface")

// A Link is a network interface as it was when it was read.
type Link struct {
	Index int
	Name  string
	Kind  string   // as in `ip -d link`: veth, tun, vlan …; "device" is hardware or its like
	MAC   wire.MAC // zero on an interface without Ethernet addresses
	MTU   int      // link MTU: bytes above the Ethernet header, 0 … 65535
	Up    bool     // set up by the administrator
	// Running says that frames pass: up, and with a carrier.
	Running bool

	// RXQueues and TXQueues are the queues in use now, at least 1 each. A Link that a Monitor
	// delivers has the number that the interface was made with instead.
	RXQueues, TXQueues int
	// Driver is the kernel driver's name, "" where it gives none and in a Link from a Monitor.
	Driver string
}

// State describes whether frames pass, in one or a few words.
func (l Link) State() string {
	switch {
	case !l.Up:
		return "down"
	case !l.Running:
		return "without carrier"
	}
	return "up"
}

// Links returns all interfaces of the namespace in the order of their indexes.
func (c *Conn) Links() ([]Link, error) {
	done, err := c.use()
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := settled(c.routes.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	links := make([]Link, len(found))
	for i, l := range found {
		links[i] = linkOf(l)
		c.askDriver(&links[i])
	}
	return links, nil
}

// LinkByName returns the interface of that name or alternative name. An error that wraps ErrNoLink
// names the interfaces that there are.
func (c *Conn) LinkByName(name string) (Link, error) {
	link, err := c.link(func() (netlink.Link, error) { return c.routes.LinkByName(name) })
	if errors.Is(err, ErrNoLink) {
		return Link{}, fmt.Errorf("%w %q in this network namespace%s", ErrNoLink, name, c.linkNames())
	}
	return link, err
}

// LinkByIndex returns the interface of that index, or an error that wraps ErrNoLink.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	link, err := c.link(func() (netlink.Link, error) { return c.routes.LinkByIndex(index) })
	if errors.Is(err, ErrNoLink) {
		return Link{}, fmt.Errorf("%w with index %d in this network namespace", ErrNoLink, index)
	}
	return link, err
}

func (c *Conn) link(get func() (netlink.Link, error)) (Link, error) {
	done, err := c.use()
	if err != nil {
		return Link{}, err
	}
	defer done()
	found, err := get()
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return Link{}, ErrNoLink
	} else if err != nil {
		return Link{}, fmt.Errorf("read interface: %w", err)
	}
	link := linkOf(found)
	c.askDriver(&link)
	return link, nil
}

// linkNames lists the interfaces for an error message, or is empty if they cannot be read.
func (c *Conn) linkNames() string {
	links, err := c.Links()
	if err != nil || len(links) == 0 {
		return ""
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = l.Name
	}
	return ": it has " + strings.Join(names, ", ")
}

func linkOf(l netlink.Link) Link {
	a := l.Attrs()
	link := Link{
		Index:    a.Index,
		Name:     a.Name,
		Kind:     l.Type(),
		MTU:      a.MTU,
		Up:       a.RawFlags&unix.IFF_UP != 0,
		Running:  a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0,
		RXQueues: max(a.NumRxQueues, 1),
		TXQueues: max(a.NumTxQueues, 1),
	}
	if len(a.HardwareAddr) == len(link.MAC) {
		copy(link.MAC[:], a.HardwareAddr)
	}
	return link
}

// askDriver adds what only the driver knows. Many drivers answer less than all of it: a question
// without an answer leaves what the link itself says.
func (c *Conn) askDriver(l *Link) {
	if info, err := unix.IoctlGetEthtoolDrvinfo(c.udp4, l.Name); err == nil {
		l.Driver = unix.ByteSliceToString(info.Driver[:])
	}
	if ch, err := ethtoolChannels(c.udp4, l.Name); err == nil {
		if rx := int(ch.RXCount + ch.CombinedCount); rx > 0 {
			l.RXQueues = rx
		}
		if tx := int(ch.TXCount + ch.CombinedCount); tx > 0 {
			l.TXQueues = tx
		}
	}
}
