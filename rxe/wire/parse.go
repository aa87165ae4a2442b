package wire

// Taking frames apart, from the first byte on: Ethernet, IP, UDP, BTH, extension headers, payload,
// ICRC. All lengths come from the IP header, so that Ethernet padding behind a short packet does no
// harm, and all of them are checked before anything behind them is read.

import "encoding/binary"

// maxParse is the number of bytes that hold all headers of any frame.
const maxParse = ethLen + vlanLen + ipv4MaxLen + udpLen + bthLen + maxExt

// Parse takes a frame apart into p and checks it, the ICRC last. Unless it returns [ReasonOK], the
// content of p is undefined. It checks lengths against the opcode as far as no PMTU is needed. It
// neither changes the frame nor allocates; frame and p are kept by the slices in p only.
func Parse(f Frame, p *Packet) Reason {
	if r := ParseNoICRC(f, p); r != ReasonOK {
		return r
	}
	if p.computeICRC(f) != p.icrc {
		return ReasonICRC
	}
	return ReasonOK
}

// CheckICRC reports whether the ICRC of a frame is right, what stands in the frame and what should.
// A frame that [ParseNoICRC] refuses has no ICRC: it returns false and zeros.
func CheckICRC(f Frame) (ok bool, got, want uint32) {
	p := new(Packet)
	if ParseNoICRC(f, p) != ReasonOK {
		return false, 0, 0
	}
	want = p.computeICRC(f)
	return p.icrc == want, p.icrc, want
}

// computeICRC returns the ICRC that the parsed frame should have.
func (p *Packet) computeICRC(f Frame) uint32 {
	end := p.bthOff + bthLen
	state := p.memo.after(p.h[p.ipOff:end], p.V6)
	if p.icrcOff <= len(f.Head) {
		return ^advance(state, f.Head[end:p.icrcOff])
	}
	a, b := f.cut(end, p.icrcOff)
	return ^advance(advance(state, a), b)
}

// ParseNoICRC is [Parse] without the check of the ICRC, for tools that show broken frames.
func ParseNoICRC(f Frame, p *Packet) Reason {
	h := f.Head // the frame, or as much of it as holds all headers
	if len(f.Tail) != 0 && len(h) < maxParse {
		n := copy(p.head[:], h)
		n += copy(p.head[n:], f.Tail)
		h = p.head[:n]
	}
	ip, etherType := p.parseEthernet(h)
	if ip == 0 {
		return ReasonShort
	}
	var udp, end int
	var r Reason
	switch etherType {
	case etherTypeIPv4:
		udp, end, r = p.parseIPv4(h, ip, f.Len())
	case etherTypeIPv6:
		udp, end, r = p.parseIPv6(h, ip, f.Len())
	default:
		return ReasonEthertype
	}
	if r != ReasonOK {
		return r
	}
	if r = p.parseUDP(h, udp, end); r != ReasonOK {
		return r
	}
	bth := udp + udpLen
	p.h, p.ipOff, p.bthOff, p.icrcOff = h, ip, bth, end-icrcLen
	if r = p.parseBTH(h, bth); r != ReasonOK {
		return r
	}
	data := bth + int(p.Info.HdrLen)
	p.Data0, p.Data1 = f.cut(data, data+p.PayloadLen)
	p.icrc = f.icrc(p.icrcOff)
	return ReasonOK
}

// parseEthernet returns the offset of the IP header and the EtherType; the offset is 0 when the
// frame is too short.
func (p *Packet) parseEthernet(h []byte) (ip int, etherType uint16) {
	if len(h) < ethLen {
		return 0, 0
	}
	p.DstMAC, p.SrcMAC = MAC(h[0:6]), MAC(h[6:12])
	p.VLAN, p.VLANPrio = -1, 0
	etherType = binary.BigEndian.Uint16(h[12:14])
	if etherType != etherTypeVLAN {
		return ethLen, etherType
	}
	if len(h) < ethLen+vlanLen {
		return 0, 0
	}
	tci := binary.BigEndian.Uint16(h[14:16])
	p.VLANPrio = uint8(tci >> 13)
	if vid := tci & 0xfff; vid != 0 {
		p.VLAN = int16(vid)
	}
	return ethLen + vlanLen, binary.BigEndian.Uint16(h[16:18])
}

// parseIPv4 parses the IP header at off of a frame of frameLen bytes. It returns the offset of the
// UDP header and that of the packet's end.
func (p *Packet) parseIPv4(h []byte, off, frameLen int) (udp, end int, r Reason) {
	if len(h) < off+ipv4Len {
		return 0, 0, ReasonShort
	}
	ip := (*[ipv4Len]byte)(h[off:])
	if ip[0]>>4 != 4 {
		return 0, 0, ReasonIPVersion
	}
	ihl := int(ip[0]&15) * 4
	if ihl < ipv4Len {
		return 0, 0, ReasonIPHeader
	}
	total := int(binary.BigEndian.Uint16(ip[2:4]))
	if total > frameLen-off || total < ihl {
		return 0, 0, ReasonIPLength
	}
	if !ipv4SumOK(ip, h[off+ipv4Len:off+ihl]) {
		return 0, 0, ReasonIPChecksum
	}
	const moreFragments, offsetMask = 0x2000, 0x1fff
	if binary.BigEndian.Uint16(ip[6:8])&(moreFragments|offsetMask) != 0 {
		return 0, 0, ReasonFragment
	}
	if ip[9] != protoUDP {
		return 0, 0, ReasonNotUDP
	}
	p.V6 = false
	p.TClass, p.FlowLabel, p.HopLimit = ip[1], 0, ip[8]
	p.Src.setIPv4((*[4]byte)(ip[12:16]))
	p.Dst.setIPv4((*[4]byte)(ip[16:20]))
	return off + ihl, off + total, ReasonOK
}

// ipv4SumOK checks the checksum of an IPv4 header. The ICRC does not cover TOS, TTL and checksum,
// and RFC 1122 3.2.1.2 demands the check.
func ipv4SumOK(b *[ipv4Len]byte, options []byte) bool {
	v, w := binary.BigEndian.Uint64(b[0:8]), binary.BigEndian.Uint64(b[8:16])
	sum := v>>32 + v&0xffffffff + w>>32 + w&0xffffffff + uint64(binary.BigEndian.Uint32(b[16:20]))
	if len(options) > 0 {
		sum += uint64(sum16(options))
	}
	sum = sum>>32 + sum>>16&0xffff + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return sum>>16+sum&0xffff == 0xffff
}

// parseIPv6 is parseIPv4 for IPv6.
func (p *Packet) parseIPv6(h []byte, off, frameLen int) (udp, end int, r Reason) {
	if len(h) < off+ipv6Len {
		return 0, 0, ReasonShort
	}
	ip := (*[ipv6Len]byte)(h[off:])
	word := binary.BigEndian.Uint32(ip[0:4])
	if word>>28 != 6 {
		return 0, 0, ReasonIPVersion
	}
	total := ipv6Len + int(binary.BigEndian.Uint16(ip[4:6]))
	if total > frameLen-off {
		return 0, 0, ReasonIPLength
	}
	switch ip[6] {
	case protoUDP:
	case protoIPv6Fragment:
		return 0, 0, ReasonFragment
	default:
		return 0, 0, ReasonNotUDP
	}
	p.V6 = true
	p.TClass, p.FlowLabel, p.HopLimit = uint8(word>>20), word&0xfffff, ip[7]
	p.Src, p.Dst = GID(ip[8:24]), GID(ip[24:40])
	return off + ipv6Len, off + total, ReasonOK
}

// parseUDP parses the UDP header at off of an IP packet that ends at end.
func (p *Packet) parseUDP(h []byte, off, end int) Reason {
	if end < off+udpLen {
		return ReasonShort
	}
	udp := (*[udpLen]byte)(h[off:])
	if binary.BigEndian.Uint16(udp[2:4]) != Port {
		return ReasonPort
	}
	if int(binary.BigEndian.Uint16(udp[4:6])) != end-off {
		return ReasonUDPLength
	}
	if end < off+udpLen+bthLen+icrcLen {
		return ReasonShortBTH
	}
	p.SrcPort = binary.BigEndian.Uint16(udp[0:2])
	return ReasonOK
}

// parseBTH parses the BTH at off and checks the length of the packet, which ends at p.icrcOff.
func (p *Packet) parseBTH(h []byte, off int) Reason {
	b := (*BTH)(h[off:])
	p.Op = b.Opcode()
	p.Info = p.Op.Info()
	if p.Info.Flags == 0 {
		return ReasonOpcode
	}
	if b.TVer() != 0 {
		return ReasonTVer
	}
	padded := p.icrcOff - off - int(p.Info.HdrLen) // bytes of payload and padding
	if padded < 0 || padded > 0 && p.Info.Flags&FlagPayload == 0 {
		return ReasonLength
	}
	p.Pad = b.Pad()
	p.PayloadLen = padded - int(p.Pad)
	if p.PayloadLen < 0 || padded&3 != 0 {
		return ReasonPad
	}
	p.PSN, p.DestQP, p.PKey = b.PSN(), b.DestQP(), b.PKey()
	p.Solicited, p.MigReq = b.Solicited(), b.MigReq()
	p.FECN, p.BECN = b.FECN(), b.BECN()
	p.AckReq = b.AckReq()
	return ReasonOK
}
