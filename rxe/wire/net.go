package wire

import (
	"encoding/binary"
	"net/netip"
)

// A GID is a RoCEv2 address: an IPv6 address, or an IPv4 address in mapped form (::ffff:a.b.c.d).
type GID [16]byte

var v4Mapped = [12]byte{10: 0xff, 11: 0xff}

// GIDFromIPv4 returns the mapped form of an IPv4 address.
func GIDFromIPv4(a [4]byte) (g GID) {
	g.setIPv4(&a)
	return g
}

// setIPv4 stores the mapped form of an IPv4 address in two words; for an array literal the compiler
// would go through memory twice.
func (g *GID) setIPv4(a *[4]byte) {
	le := binary.LittleEndian
	le.PutUint64(g[0:8], 0)
	le.PutUint64(g[8:16], uint64(le.Uint32(a[:]))<<32|0xffff0000)
}

// GIDFromAddr returns the GID of a valid IP address. A zone is ignored.
func GIDFromAddr(a netip.Addr) GID { return a.As16() }

// IsIPv4 reports whether the GID is a mapped IPv4 address.
func (g GID) IsIPv4() bool { return [12]byte(g[:12]) == v4Mapped }

// IPv4 returns the IPv4 address of a mapped GID.
func (g GID) IPv4() [4]byte { return [4]byte(g[12:]) }

// IsMulticast reports whether the GID is a multicast group of IPv4 or IPv6.
func (g *GID) IsMulticast() bool {
	lo, hi := binary.LittleEndian.Uint64(g[:8]), binary.LittleEndian.Uint64(g[8:])
	if lo == 0 && uint32(hi) == 0xffff0000 {
		return byte(hi>>32)>>4 == 14
	}
	return byte(lo) == 0xff
}

// String returns the GID in the form of an IPv6 address.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// Addr returns the GID as an IP address, which is an IPv4 address for a mapped one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// A MAC is an Ethernet address.
type MAC [6]byte

// String returns the address as six hexadecimal bytes with colons.
func (m MAC) String() string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, 17)
	for i, v := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, hex[v>>4], hex[v&15])
	}
	return string(b)
}

// MulticastMAC returns the Ethernet address of a multicast group: 01:00:5e and 23 bits of an IPv4
// group (RFC 1112 6.4), 33:33 and 32 bits of an IPv6 group (RFC 2464 7).
func MulticastMAC(g GID) MAC {
	if g.IsIPv4() {
		return MAC{0x01, 0x00, 0x5e, g[13] & 0x7f, g[14], g[15]}
	}
	return MAC{0x33, 0x33, g[12], g[13], g[14], g[15]}
}

// A Path is everything below the BTH for one direction of traffic.
type Path struct {
	SrcMAC, DstMAC MAC
	VLAN           int16  // VID 0 … 4095 of an 802.1Q tag, 0 is a priority tag; -1: no tag
	VLANPrio       uint8  // priority code point of the tag, 0 … 7
	Src, Dst       GID    // both mapped IPv4, or both IPv6
	TClass         uint8  // IPv4 TOS or IPv6 traffic class, with the ECN bits
	FlowLabel      uint32 // 20 bits, IPv6 only
	HopLimit       uint8  // IPv4 TTL or IPv6 hop limit
	SrcPort        uint16 // UDP source port, see SourcePort
}

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// FlowLabel returns the flow label of a connection that was given none, computed from the local and
// the remote QPN: the same for both directions, 20 bits.
func FlowLabel(l, r QPN) uint32 {
	v := uint64(l) * uint64(r)
	v ^= v >> 20
	v ^= v >> 40
	return uint32(v) & 0xfffff
}

// SourcePort folds a 20-bit flow label into a UDP source port, 0xc000 … 0xffff, so that ECMP
// spreads connections by it.
func SourcePort(flowLabel uint32) uint16 {
	return uint16(flowLabel&0x3fff^flowLabel>>14&0x3f) | 0xc000
}

// Sizes and values of the headers below the BTH.
const (
	ethLen  = 14
	vlanLen = 4
	ipv4Len = 20 // without options
	ipv6Len = 40
	udpLen  = 8

	ipv4MaxLen = 60 // with options

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100

	protoUDP          = 17
	protoIPv6Fragment = 44
)
