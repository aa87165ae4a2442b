package netdev

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// XDPFeatures is what a driver says it does for XDP (enum netdev_xdp_act of linux/netdev.h).
type XDPFeatures uint64

// The features that matter here.
const (
	XDPNative   XDPFeatures = 1 << 0 // runs programs itself, before there is a socket buffer
	XDPRedirect XDPFeatures = 1 << 1 // takes frames to AF_XDP sockets
	XDPZeroCopy XDPFeatures = 1 << 3 // works on the sockets' memory
	XDPBuffers  XDPFeatures = 1 << 5 // receives frames of several buffers
)

// Details is what a driver tells about its interface beyond a [Link]. A question that the kernel
// or the driver does not answer leaves its field empty.
type Details struct {
	// XDP is valid if XDPKnown: a kernel before 6.3 does not tell.
	XDP      XDPFeatures
	XDPKnown bool
	// Offloads are the active ones, by their names in `ethtool -k`, sorted; nil if not known.
	Offloads []string
	// Indirection tells to which receive queue the NIC sends which share of the hash values.
	Indirection []uint32
	// Hash4 and Hash6 say whether UDP ports are part of that hash; valid if HashKnown.
	Hash4, Hash6, HashKnown bool
}

// Offload reports whether an offload is active.
func (d *Details) Offload(name string) bool {
	_, found := slices.BinarySearch(d.Offloads, name)
	return found
}

// Inspect asks the driver of an interface of the calling thread's network namespace for details.
// It needs no privilege.
func Inspect(link Link) Details {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var d Details
	if msgs, err := generic("netdev", netdevDevGet,
		nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(link.Index)))); err == nil {
		for _, a := range attributes(msgs) {
			if a.Attr.Type == netdevXDPFeatures && len(a.Value) >= 8 {
				d.XDP, d.XDPKnown = XDPFeatures(binary.NativeEndian.Uint64(a.Value)), true
			}
		}
	}
	d.Offloads = activeOffloads(link.Index)
	if msgs, err := generic("ethtool", unix.ETHTOOL_MSG_RSS_GET, header(link.Index)); err == nil {
		for _, a := range attributes(msgs) {
			for b := a.Value; a.Attr.Type == rssIndirection && len(b) >= 4; b = b[4:] {
				d.Indirection = append(d.Indirection, binary.NativeEndian.Uint32(b))
			}
		}
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return d
	}
	defer unix.Close(socket)
	var err4, err6 error
	d.Hash4, err4 = ethtoolUDPHash(socket, link.Name, false)
	d.Hash6, err6 = ethtoolUDPHash(socket, link.Name, true)
	d.HashKnown = err4 == nil && err6 == nil
	return d
}

// Numbers of linux/netdev.h and linux/ethtool_netlink.h that x/sys/unix does not have.
const (
	netdevDevGet      = 1
	netdevIfindex     = 1
	netdevXDPFeatures = 3
	requestHeader     = 1
	rssIndirection    = 4
)

// header is the attribute with which a request to ethtool names its interface.
func header(index int) *nl.RtAttr {
	h := nl.NewRtAttr(requestHeader|unix.NLA_F_NESTED, nil)
	h.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	return h
}

func activeOffloads(index int) (names []string) {
	msgs, err := generic("ethtool", unix.ETHTOOL_MSG_FEATURES_GET, header(index))
	if err != nil {
		return nil
	}
	for _, a := range attributes(msgs) {
		if kind(a.Attr.Type) != unix.ETHTOOL_A_FEATURES_ACTIVE {
			continue
		}
		names = []string{}
		for _, bits := range nested(a.Value, unix.ETHTOOL_A_BITSET_BITS) {
			for _, bit := range nested(bits, 1) { // each is ETHTOOL_A_BITSET_BITS_BIT
				for _, name := range nested(bit, unix.ETHTOOL_A_BITSET_BIT_NAME) {
					names = append(names, unix.ByteSliceToString(name))
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// A Chain is a base chain of the kernel's packet filter.
type Chain struct {
	Family string // ip, ip6, inet, arp, bridge, netdev
	Table  string
	Name   string
	Hook   string // where packets meet it: input, output, …
	Drops  bool   // its policy: what no rule accepts is dropped
	Rules  int    // how many rules it has
}

// Chains returns the base chains of nftables (and of iptables, where that is a face of nftables)
// in the calling thread's network namespace. It needs CAP_NET_ADMIN. A kernel without nftables has
// none.
func Chains() ([]Chain, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if slices.Contains([]error{unix.EINVAL, unix.EPROTONOSUPPORT, unix.EOPNOTSUPP}, err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list packet filter chains: %w", err)
	}
	var chains []Chain
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		c := Chain{Family: families[m[0]]}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("list packet filter chains: %w", err)
		}
		hook := -1
		for _, a := range attrs {
			switch kind(a.Attr.Type) {
			case unix.NFTA_CHAIN_TABLE:
				c.Table = unix.ByteSliceToString(a.Value)
			case unix.NFTA_CHAIN_NAME:
				c.Name = unix.ByteSliceToString(a.Value)
			case unix.NFTA_CHAIN_POLICY:
				c.Drops = bigEndian(a.Value) == 0
			case unix.NFTA_CHAIN_USE:
				c.Rules = bigEndian(a.Value)
			case unix.NFTA_CHAIN_HOOK:
				for _, n := range nested(a.Value, unix.NFTA_HOOK_HOOKNUM) {
					hook = bigEndian(n)
				}
			}
		}
		if hook >= 0 {
			c.Hook = hookName(c.Family, hook)
			chains = append(chains, c)
		}
	}
	return chains, nil
}

var families = map[byte]string{
	unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// hookName is the hook's name in nft's language.
func hookName(family string, n int) string {
	names := []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	switch family {
	case "arp":
		names = []string{"input", "output", "forward"}
	case "netdev":
		names = []string{"ingress", "egress"}
	}
	if n < len(names) {
		return names[n]
	}
	return fmt.Sprintf("hook %d", n)
}

// generic asks a generic netlink family and returns the answers without their headers.
func generic(family string, command uint8, attrs ...*nl.RtAttr) ([][]byte, error) {
	f, err := netlink.GenlFamilyGet(family)
	if err != nil {
		return nil, err
	}
	req := nl.NewNetlinkRequest(int(f.ID), 0)
	req.AddRawData([]byte{command, 1, 0, 0}) // struct genlmsghdr, all of it: families look at the rest
	for _, a := range attrs {
		req.AddRawData(a.Serialize())
	}
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	for i, m := range msgs {
		msgs[i] = m[min(nl.SizeofGenlmsg, len(m)):]
	}
	return msgs, err
}

// attributes are those of all messages; what cannot be parsed is left out.
func attributes(msgs [][]byte) (all []syscall.NetlinkRouteAttr) {
	for _, m := range msgs {
		if attrs, err := nl.ParseRouteAttr(m); err == nil {
			all = append(all, attrs...)
		}
	}
	return all
}

// nested returns the values of the attributes of one kind inside another's.
func nested(value []byte, want uint16) (values [][]byte) {
	attrs, err := nl.ParseRouteAttr(value)
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if kind(a.Attr.Type) == want {
			values = append(values, a.Value)
		}
	}
	return values
}

// kind is an attribute's type without the flags that say how it is encoded.
func kind(attr uint16) uint16 { return attr &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) }

func bigEndian(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	return int(binary.BigEndian.Uint32(b))
}
