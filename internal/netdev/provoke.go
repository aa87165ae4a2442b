package netdev

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// discardPort receives the datagrams that provoke resolution: the discard service (RFC 863), whose
// answer is none, and where nothing listens an ICMP error that nobody waits for.
const discardPort = 9

// provoke makes the kernel resolve or confirm a neighbour by sending an empty datagram to it, which
// needs no privilege. Where that is refused (no source address on the interface, a firewall), it
// asks for the same by netlink, which needs CAP_NET_ADMIN.
func (c *Conn) provoke(index int, dst netip.Addr) error {
	err := c.sendTo(index, dst)
	if err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	if c.useNeighbour(index, dst) == nil {
		return nil
	}
	return err
}

// sendTo sends an empty datagram to a neighbour on the link: past the routing table's gateways, by
// the given interface, from the address that the kernel picks.
func (c *Conn) sendTo(index int, dst netip.Addr) error {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL | unix.MSG_DONTROUTE
	if dst.Is4() {
		by := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(index)})
		to := &unix.SockaddrInet4{Port: discardPort, Addr: dst.As4()}
		return unix.Sendmsg(c.udp4, nil, by, to, flags)
	}
	if c.udp6 < 0 {
		return unix.EAFNOSUPPORT
	}
	by := unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(index)})
	to := &unix.SockaddrInet6{Port: discardPort, Addr: dst.As16(), ZoneId: uint32(index)}
	return unix.Sendmsg(c.udp6, nil, by, to, flags)
}

// useNeighbour marks an entry as used, which starts resolution as a packet would.
func (c *Conn) useNeighbour(index int, dst netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH,
		unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.neighs}
	req.AddData(&netlink.Ndmsg{Family: family(dst), Index: uint32(index), Flags: unix.NTF_USE})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, dst.AsSlice()))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
