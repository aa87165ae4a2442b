package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// readyTimeout bounds the wait for the carrier and the link-local addresses of a new veth pair.
const readyTimeout = 5 * time.Second

// build joins the namespaces, brings all up and waits until frames can flow.
func (l *Lab) build(cfg *Config) error {
	if err := l.A.DoErr(func() error { return addVeth(cfg, l.B.fd) }); err != nil {
		return err
	}
	addrs := map[*Namespace][]netip.Prefix{l.A: cfg.A, l.B: cfg.B}
	for _, n := range []*Namespace{l.A, l.B} {
		n.Interface = cfg.Interface
		if err := n.DoErr(func() error { return n.configure(cfg, addrs[n]) }); err != nil {
			return fmt.Errorf("namespace %s: %w", n.Name, err)
		}
	}
	for _, n := range []*Namespace{l.A, l.B} {
		if err := n.DoErr(n.awaitReady); err != nil {
			return fmt.Errorf("namespace %s: %w", n.Name, err)
		}
		if err := n.DoErr(n.discover); err != nil {
			return fmt.Errorf("namespace %s: %w", n.Name, err)
		}
	}
	if !cfg.Neighbours {
		return nil
	}
	if err := l.A.DoErr(func() error { return l.A.addNeighbours(l.B) }); err != nil {
		return err
	}
	return l.B.DoErr(func() error { return l.B.addNeighbours(l.A) })
}

// addVeth makes the pair, one end in the calling thread's namespace, the other in peer.
func addVeth(cfg *Config, peer netns.NsHandle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = cfg.Interface
	attrs.MTU = cfg.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = cfg.Queues, cfg.Queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName = cfg.Interface
	veth.PeerNamespace = netlink.NsFd(peer)
	veth.PeerMTU = uint32(cfg.MTU)
	veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(cfg.Queues), uint32(cfg.Queues)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth pair: %w", err)
	}
	return nil
}

// configure gives the interface its addresses and brings it and the loopback up.
func (n *Namespace) configure(cfg *Config, addrs []netip.Prefix) error {
	for _, name := range []string{"lo", n.Interface} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	link, err := netlink.LinkByName(n.Interface)
	if err != nil {
		return fmt.Errorf("find %s: %w", n.Interface, err)
	}
	for _, p := range addrs {
		if p.Addr().Is6() && (cfg.NoIPv6 || cfg.MTU < minIPv6MTU || !haveIPv6()) {
			continue
		}
		addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %v: %w", p, err)
		}
	}
	return nil
}

// haveIPv6 tells whether the kernel has IPv6 at all.
func haveIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}
}

// awaitReady waits for the carrier, for the queueing discipline that comes with it, and for the
// link-local address.
func (n *Namespace) awaitReady() error {
	end := time.Now().Add(readyTimeout)
	for {
		link, err := netlink.LinkByName(n.Interface)
		if err != nil {
			return fmt.Errorf("find %s: %w", n.Interface, err)
		}
		attrs := link.Attrs()
		ready := attrs.RawFlags&unix.IFF_LOWER_UP != 0 && attrs.OperState == netlink.OperUp
		if ready && attrs.MTU >= minIPv6MTU && haveIPv6() {
			addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
			if err != nil {
				return fmt.Errorf("list addresses of %s: %w", n.Interface, err)
			}
			ready = haveLinkLocal(addrs)
		}
		if ready {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not ready after %v", n.Interface, readyTimeout)
		}
		time.Sleep(time.Millisecond)
	}
}

func haveLinkLocal(addrs []netlink.Addr) bool {
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
			return true
		}
	}
	return false
}

// discover reads the interface's facts from the kernel. It runs in the namespace.
func (n *Namespace) discover() error {
	link, err := findVeth(n.Interface)
	if err != nil {
		return err
	}
	attrs := link.Attrs()
	n.Interface, n.Ifindex, n.MAC = attrs.Name, attrs.Index, attrs.HardwareAddr
	n.MTU, n.Queues = attrs.MTU, attrs.NumRxQueues
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", n.Interface, err)
	}
	n.Addrs = nil
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || ip.Unmap().IsLinkLocalUnicast() {
			continue
		}
		ip = ip.Unmap()
		ones, _ := a.Mask.Size()
		n.Addrs = append(n.Addrs, netip.PrefixFrom(ip, ones))
		if ip.Is4() && !n.IPv4.IsValid() {
			n.IPv4 = ip
		}
		if ip.Is6() && !n.IPv6.IsValid() {
			n.IPv6 = ip
		}
	}
	return nil
}

// findVeth returns the veth of that name in the calling thread's namespace, or the first one if
// the name is empty.
func findVeth(name string) (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		if link.Type() == "veth" && (name == "" || link.Attrs().Name == name) {
			return link, nil
		}
	}
	return nil, errors.New("no veth in the namespace")
}

// addNeighbours enters the peer's addresses in the neighbour table for good.
func (n *Namespace) addNeighbours(peer *Namespace) error {
	for _, p := range peer.Addrs {
		neigh := &netlink.Neigh{
			LinkIndex:    n.Ifindex,
			State:        netlink.NUD_PERMANENT,
			IP:           p.Addr().AsSlice(),
			HardwareAddr: peer.MAC,
		}
		if err := netlink.NeighSet(neigh); err != nil {
			return fmt.Errorf("add neighbour %v: %w", p.Addr(), err)
		}
	}
	return nil
}

// removeVeth deletes every veth in the namespace, and with each its other end, before the name
// goes: the kernel would do it later, at a time of its own.
func (n *Namespace) removeVeth() error {
	return n.DoErr(func() error {
		for {
			link, err := findVeth("")
			if err != nil {
				return nil
			}
			if err := netlink.LinkDel(link); err != nil {
				return fmt.Errorf("delete %s in %s: %w", link.Attrs().Name, n.Name, err)
			}
		}
	})
}
