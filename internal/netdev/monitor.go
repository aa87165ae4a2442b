package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An EventKind says what happened.
type EventKind uint8

// The kinds of events and the fields of Event that they fill besides Index.
const (
	// LinkChanged: Link. An interface appeared, or its name, MAC, MTU or state may have changed.
	LinkChanged EventKind = iota + 1
	// LinkGone: Link, as it was last. The interface was deleted or moved to another namespace.
	LinkGone
	// AddrAdded: Addr. An address appeared or changed its flags.
	AddrAdded
	// AddrGone: Addr. An address was removed, or failed duplicate address detection.
	AddrGone
	// NeighChanged: Neighbour. An entry of the neighbour table appeared or changed.
	NeighChanged
	// NeighGone: Neighbour. An entry was removed.
	NeighGone
	// RouteChanged: a route, a rule or a next hop was added or removed; Index is 0. Look routes up
	// again.
	RouteChanged
	// Overrun: events were lost, because they came faster than they were taken. Index is 0. Read
	// everything again.
	Overrun
)

var eventNames = [...]string{
	LinkChanged: "link changed", LinkGone: "link gone",
	AddrAdded: "address added", AddrGone: "address gone",
	NeighChanged: "neighbour changed", NeighGone: "neighbour gone",
	RouteChanged: "route changed", Overrun: "overrun",
}

// String returns the kind in words.
func (k EventKind) String() string {
	if int(k) < len(eventNames) && eventNames[k] != "" {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// An Event is a change in the network namespace.
type Event struct {
	Kind      EventKind
	Index     int // interface it happened on
	Link      Link
	Addr      netip.Prefix
	Neighbour Neighbour
}

// A Monitor delivers the changes of a network namespace in the order in which they happened.
type Monitor struct {
	socket *os.File
	events chan Event
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once
}

// Groups of changes that a Monitor is told of.
var monitorGroups = []int{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP,
}

const (
	monitorBacklog = 64      // events waiting in the channel, more wait in the socket
	monitorBuffer  = 1 << 20 // bytes of the socket's buffer that are asked for
	maxMessages    = 64 << 10
)

// NewMonitor starts to deliver the changes in the network namespace of the calling thread, of all
// its interfaces. To miss nothing, start it first and read the state then: a change between the two
// is seen twice. It needs no privilege.
func NewMonitor() (*Monitor, error) {
	socket, err := monitorSocket()
	if err != nil {
		return nil, fmt.Errorf("monitor network changes: %w", err)
	}
	m := &Monitor{
		socket: socket,
		events: make(chan Event, monitorBacklog),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	go m.run()
	return m, nil
}

func monitorSocket() (*os.File, error) {
	const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	// The larger buffer is a convenience: what does not fit is reported as Overrun.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, monitorBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, monitorBuffer)
	}
	// Without a port ID, which bind gives, the socket would count as the kernel's and hear nothing.
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range monitorGroups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink monitor"), nil
}

// Events returns the channel of changes. It is closed by Close, or when the kernel ends the
// subscription. A reader that is slow loses events, not the order, and is told by Overrun.
func (m *Monitor) Events() <-chan Event { return m.events }

// Close ends the subscription. Closing twice is fine. Events that were not taken are lost.
func (m *Monitor) Close() error {
	var err error
	m.once.Do(func() {
		close(m.stop)
		err = m.socket.Close()
	})
	<-m.done
	return err
}

// run reads messages until the socket is closed.
func (m *Monitor) run() {
	defer close(m.done)
	defer close(m.events)
	raw, err := m.socket.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, maxMessages)
	for {
		n, overrun, err := receive(raw, buf)
		if err != nil {
			return
		}
		if overrun {
			if !m.deliver(Event{Kind: Overrun}) {
				return
			}
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			continue
		}
		for i := range messages {
			if e, ok := eventOf(&messages[i]); ok && !m.deliver(e) {
				return
			}
		}
	}
}

// deliver waits for the reader; ok is false once the Monitor is closed.
func (m *Monitor) deliver(e Event) (ok bool) {
	select {
	case m.events <- e:
		return true
	case <-m.stop:
		return false
	}
}

// receive reads what the kernel sent with one call; overrun says that messages were lost. After an
// overrun the kernel drops all further messages, without a word, until the socket is empty. So the
// rest is thrown away before the overrun is reported: whoever reads everything then has missed
// nothing.
func receive(raw syscall.RawConn, buf []byte) (n int, overrun bool, err error) {
	waitErr := raw.Read(func(fd uintptr) bool {
		n, overrun, err = receiveNow(int(fd), buf)
		if overrun {
			for err == nil {
				_, _, err = receiveNow(int(fd), buf)
			}
			if errors.Is(err, unix.EAGAIN) {
				n, err = 0, nil
			}
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if waitErr != nil {
		err = waitErr
	}
	return n, overrun, err
}

// receiveNow reads without waiting. A message that is not the kernel's counts as empty.
func receiveNow(fd int, buf []byte) (n int, overrun bool, err error) {
	n, _, flags, from, err := unix.Recvmsg(fd, buf, nil, 0)
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return 0, true, nil
	case errors.Is(err, unix.EINTR):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	if nla, ok := from.(*unix.SockaddrNetlink); !ok || nla.Pid != 0 {
		return 0, false, nil
	}
	return n, flags&unix.MSG_TRUNC != 0, nil
}

// eventOf translates one message; ok is false for those that mean nothing here.
func eventOf(m *syscall.NetlinkMessage) (e Event, ok bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return linkEvent(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return addrEvent(m)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return neighEvent(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE,
		unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return Event{Kind: RouteChanged}, true
	}
	return Event{}, false
}

func linkEvent(m *syscall.NetlinkMessage) (Event, bool) {
	// Bridges and wireless devices report their own business in link messages of other families.
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return Event{}, false
	}
	l, err := netlink.LinkDeserialize(nil, m.Data)
	if err != nil {
		return Event{}, false
	}
	e := Event{Kind: LinkChanged, Index: l.Attrs().Index, Link: linkOf(l)}
	if m.Header.Type == unix.RTM_DELLINK {
		e.Kind = LinkGone
	}
	return e, true
}

func addrEvent(m *syscall.NetlinkMessage) (Event, bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return Event{}, false
	}
	head := nl.DeserializeIfAddrmsg(m.Data)
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return Event{}, false
	}
	// The address is IFA_LOCAL; where there is none, as mostly on IPv6, it is IFA_ADDRESS, which
	// otherwise is the other end of a point-to-point link.
	var addr, local netip.Addr
	flags := uint32(head.Flags)
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS:
			addr, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_FLAGS:
			if len(a.Value) >= 4 {
				flags = nl.NativeEndian().Uint32(a.Value)
			}
		}
	}
	bits := int(head.Prefixlen)
	if local.IsValid() && local != addr {
		addr, bits = local, local.BitLen()
	}
	if !addr.IsValid() {
		return Event{}, false
	}
	e := Event{Kind: AddrAdded, Index: int(head.Index), Addr: netip.PrefixFrom(addr, bits)}
	if m.Header.Type == unix.RTM_DELADDR || flags&unix.IFA_F_DADFAILED != 0 {
		e.Kind = AddrGone
	}
	return e, true
}

func neighEvent(m *syscall.NetlinkMessage) (Event, bool) {
	if len(m.Data) < unix.SizeofNdMsg {
		return Event{}, false
	}
	if family := m.Data[0]; family != unix.AF_INET && family != unix.AF_INET6 {
		return Event{}, false // a bridge's forwarding table
	}
	entry, err := netlink.NeighDeserialize(m.Data)
	if err != nil {
		return Event{}, false
	}
	n, ok := neighbourOf(entry)
	e := Event{Kind: NeighChanged, Index: n.Index, Neighbour: n}
	if m.Header.Type == unix.RTM_DELNEIGH {
		e.Kind = NeighGone
	}
	return e, ok
}
