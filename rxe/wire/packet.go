package wire

import "encoding/binary"

// A Packet is what [Parse] found in a frame. Its slices and headers point into the frame, or,
// when the frame is cut inside its headers, into the Packet itself: they live as long as the
// frame may be read and the Packet is not used again. A Packet may be used for one frame after
// the other and is best kept on the heap for that, by one goroutine; it must not be copied.
type Packet struct {
	Op     Opcode
	Info   *Info // of Op
	PSN    PSN
	DestQP QPN
	PKey   uint16

	Solicited, AckReq, MigReq, FECN, BECN bool

	Pad          uint8  // 0 … 3
	Data0, Data1 []byte // the payload in two pieces, without padding and ICRC
	PayloadLen   int    // bytes in both pieces

	V6             bool
	Src, Dst       GID
	SrcMAC, DstMAC MAC
	VLAN           int16  // VID 1 … 4095, or -1: no tag, or a priority tag
	VLANPrio       uint8  // of the tag, 0 without
	TClass         uint8  // IPv4 TOS or IPv6 traffic class
	FlowLabel      uint32 // IPv6 only
	HopLimit       uint8  // IPv4 TTL or IPv6 hop limit
	SrcPort        uint16 // UDP

	h    []byte // the frame, or as much of it as holds all headers
	icrc uint32 // as it stands in the frame

	ipOff, bthOff, icrcOff int // offsets in the frame

	memo headerMemo
	head [maxParse]byte // the headers of a frame that is cut inside them
}

// BTH returns the base transport header.
func (p *Packet) BTH() *BTH { return (*BTH)(p.h[p.bthOff:]) }

// RETH returns the RETH. Valid only with FlagRETH, as its siblings are with theirs.
func (p *Packet) RETH() *RETH { return (*RETH)(p.h[p.bthOff+int(p.Info.RETHOff):]) }

// AETH returns the AETH.
func (p *Packet) AETH() *AETH { return (*AETH)(p.h[p.bthOff+int(p.Info.AETHOff):]) }

// AtomicETH returns the AtomicETH.
func (p *Packet) AtomicETH() *AtomicETH {
	return (*AtomicETH)(p.h[p.bthOff+int(p.Info.AtomicETHOff):])
}

// AtomicAckETH returns the AtomicAckETH.
func (p *Packet) AtomicAckETH() *AtomicAckETH {
	return (*AtomicAckETH)(p.h[p.bthOff+int(p.Info.AtomicAckOff):])
}

// DETH returns the DETH.
func (p *Packet) DETH() *DETH { return (*DETH)(p.h[p.bthOff+int(p.Info.DETHOff):]) }

// FETH returns the FETH.
func (p *Packet) FETH() *FETH { return (*FETH)(p.h[p.bthOff+int(p.Info.FETHOff):]) }

// Imm returns the immediate data, read as big-endian. Valid only with FlagImm.
func (p *Packet) Imm() uint32 { return binary.BigEndian.Uint32(p.h[p.bthOff+int(p.Info.ImmOff):]) }

// Inv returns the R_Key to invalidate. Valid only with FlagInv.
func (p *Packet) Inv() uint32 { return binary.BigEndian.Uint32(p.h[p.bthOff+int(p.Info.InvOff):]) }

// IPHeader returns the IP header as received, with IPv4 options.
func (p *Packet) IPHeader() []byte { return p.h[p.ipOff : p.bthOff-udpLen] }

// Headers returns the BTH and the extension headers as received.
func (p *Packet) Headers() []byte { return p.h[p.bthOff : p.bthOff+int(p.Info.HdrLen)] }

// ICRC returns the ICRC as it stands in the frame.
func (p *Packet) ICRC() uint32 { return p.icrc }

// GRH writes the 40 bytes that stand before the data in a UD receive buffer: the IPv6 header, or 20
// zero bytes and the first 20 bytes of the IPv4 header.
func GRH(p *Packet, dst *[40]byte) {
	if p.V6 {
		*dst = [40]byte(p.IPHeader())
		return
	}
	*(*[20]byte)(dst[:]) = [20]byte{}
	*(*[20]byte)(dst[20:]) = [20]byte(p.IPHeader())
}
