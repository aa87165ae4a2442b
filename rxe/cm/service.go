package cm

import (
	"encoding/binary"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// A PortSpace is RDMA-CM's counterpart of an IP protocol.
type PortSpace uint16

// Port spaces, with rdma_cma.h's values.
const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106
	PortSpaceUDP   PortSpace = 0x0111
	PortSpaceIB    PortSpace = 0x013f
)

// String returns the name of rdma_cma.h without its prefix.
func (p PortSpace) String() string {
	switch p {
	case PortSpaceIPoIB:
		return "IPOIB"
	case PortSpaceTCP:
		return "TCP"
	case PortSpaceUDP:
		return "UDP"
	case PortSpaceIB:
		return "IB"
	}
	return fmt.Sprintf("%#04x", uint16(p))
}

// UDQKey is the Q_Key of QPs in PortSpaceUDP unless they agree on another one.
const UDQKey = 0x01234567

// GSIQKey is the Q_Key of QP1, which carries the MADs.
const GSIQKey = 0x80010000

// A ServiceID names what a REQ or SIDR_REQ wants to reach. RDMA-CM puts the port space in bits
// 31:16 and the port in bits 15:0.
type ServiceID uint64

// Service returns the service id of a port.
func Service(ps PortSpace, port uint16) ServiceID { return ServiceID(ps)<<16 | ServiceID(port) }

// PortSpace returns the port space, meaningless unless IsIP.
func (s ServiceID) PortSpace() PortSpace { return PortSpace(s >> 16) }

// Port returns the port, meaningless unless IsIP.
func (s ServiceID) Port() uint16 { return uint16(s) }

// IsIP reports whether s belongs to RDMA-CM's range: its requests carry an [IPHeader].
func (s ServiceID) IsIP() bool {
	if s>>32 != 0 {
		return false
	}
	switch s.PortSpace() {
	case PortSpaceIPoIB, PortSpaceTCP, PortSpaceUDP, PortSpaceIB:
		return true
	}
	return false
}

// String returns "TCP:7174", or the number in hexadecimal outside RDMA-CM's range.
func (s ServiceID) String() string {
	if !s.IsIP() {
		return fmt.Sprintf("%#016x", uint64(s))
	}
	return fmt.Sprintf("%v:%d", s.PortSpace(), s.Port())
}

// IPHeaderSize is what the IP addressing header takes of a request's private data.
const IPHeaderSize = 36

// An IPHeader is the IP addressing header (IBTA volume 1, annex A11) with which the private data of
// an RDMA-CM request begins.
//
//	0 version (zero) │ 1 IP version in the upper 4 bits │ 2 source port 2
//	4 source address 16 │ 20 destination address 16; IPv4 in the last 4 bytes, zeros before
type IPHeader struct {
	SrcPort  uint16
	Src, Dst wire.GID // both IPv4-mapped or both IPv6
}

// put writes h to the first IPHeaderSize bytes of b.
func (h *IPHeader) put(b []byte) {
	clear(b[:IPHeaderSize])
	binary.BigEndian.PutUint16(b[2:], h.SrcPort)
	if h.Src.IsIPv4() && h.Dst.IsIPv4() {
		b[1] = 4 << 4
		src, dst := h.Src.IPv4(), h.Dst.IPv4()
		copy(b[16:], src[:])
		copy(b[32:], dst[:])
		return
	}
	b[1] = 6 << 4
	copy(b[4:], h.Src[:])
	copy(b[20:], h.Dst[:])
}

// parseIPHeader reads the header at the start of b, which must hold IPHeaderSize bytes. It reports
// false for a version or IP version that is not known.
func parseIPHeader(b []byte) (h IPHeader, ok bool) {
	if b[0] != 0 {
		return h, false
	}
	h.SrcPort = binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		h.Src = wire.GIDFromIPv4([4]byte(b[16:]))
		h.Dst = wire.GIDFromIPv4([4]byte(b[32:]))
	case 6:
		h.Src, h.Dst = wire.GID(b[4:20]), wire.GID(b[20:36])
	default:
		return h, false
	}
	return h, true
}
