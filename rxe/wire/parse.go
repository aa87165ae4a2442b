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
	a, b := f.cut(p.bthEnd, p.icrcOff)
	return icrc(&p.joinR, p.all, p.V6, a, b)
}

// ParseNoICRC is [Parse] without the check of the ICRC, for tools that show broken frames.
func ParseNoICRC(f Frame, p *Packet) Reason {
	h := f.Head
	if len(f.Tail) != 0 && len(h) < maxParse {
		n := copy(p.head[:], h)
		n += copy(p.head[n:], f.Tail)
		h = p.head[:n]
	}
	if len(h) < ethLen {
		return ReasonShort
	}
	p.DstMAC, p.SrcMAC = MAC(h[0:6]), MAC(h[6:12])
	p.VLAN, p.VLANPrio = -1, 0
	etherType := binary.BigEndian.Uint16(h[12:14])
	off := ethLen
	if etherType == etherTypeVLAN {
		if len(h) < ethLen+vlanLen {
			return ReasonShort
		}
		tci := binary.BigEndian.Uint16(h[14:16])
		p.VLANPrio = uint8(tci >> 13)
		if vid := tci & 0xfff; vid != 0 {
			p.VLAN = int16(vid)
		}
		etherType = binary.BigEndian.Uint16(h[16:18])
		off = ethLen + vlanLen
	}
	switch etherType {
	case etherTypeIPv4:
		return p.parseIPv4(f, h, off)
	case etherTypeIPv6:
		return p.parseIPv6(f, h, off)
	}
	return ReasonEthertype
}

// parseIPv4 parses from the IP header at off. h is the frame, or a part that holds all headers.
func (p *Packet) parseIPv4(f Frame, h []byte, off int) Reason {
	if len(h) < off+ipv4Len {
		return ReasonShort
	}
	ip := (*[ipv4Len]byte)(h[off:])
	if ip[0]>>4 != 4 {
		return ReasonIPVersion
	}
	ihl := int(ip[0]&15) * 4
	if ihl < ipv4Len {
		return ReasonIPHeader
	}
	total := int(binary.BigEndian.Uint16(ip[2:4]))
	if total > f.Len()-off || total < ihl {
		return ReasonIPLength
	}
	p.ip = h[off : off+ihl]
	sum := sum16(p.ip)
	sum = sum&0xffff + sum>>16
	if sum+sum>>16 != 0xffff {
		return ReasonIPChecksum
	}
	const moreFragments, offsetMask = 0x2000, 0x1fff
	if binary.BigEndian.Uint16(ip[6:8])&(moreFragments|offsetMask) != 0 {
		return ReasonFragment
	}
	if ip[9] != protoUDP {
		return ReasonNotUDP
	}
	p.V6 = false
	p.TClass, p.FlowLabel, p.HopLimit = ip[1], 0, ip[8]
	p.Src, p.Dst = GIDFromIPv4([4]byte(ip[12:16])), GIDFromIPv4([4]byte(ip[16:20]))
	return p.parseUDP(f, h, off, off+ihl, off+total)
}

// parseIPv6 is parseIPv4 for IPv6.
func (p *Packet) parseIPv6(f Frame, h []byte, off int) Reason {
	if len(h) < off+ipv6Len {
		return ReasonShort
	}
	ip := (*[ipv6Len]byte)(h[off:])
	word := binary.BigEndian.Uint32(ip[0:4])
	if word>>28 != 6 {
		return ReasonIPVersion
	}
	total := ipv6Len + int(binary.BigEndian.Uint16(ip[4:6]))
	if total > f.Len()-off {
		return ReasonIPLength
	}
	switch ip[6] {
	case protoUDP:
	case protoIPv6Fragment:
		return ReasonFragment
	default:
		return ReasonNotUDP
	}
	p.ip = h[off : off+ipv6Len]
	p.V6 = true
	p.TClass, p.FlowLabel, p.HopLimit = uint8(word>>20), word&0xfffff, ip[7]
	p.Src, p.Dst = GID(ip[8:24]), GID(ip[24:40])
	return p.parseUDP(f, h, off, off+ipv6Len, off+total)
}

// parseUDP parses from the UDP header at off up to end, where the IP packet that starts at ip ends.
func (p *Packet) parseUDP(f Frame, h []byte, ip, off, end int) Reason {
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
	p.SrcPort = binary.BigEndian.Uint16(udp[0:2])
	off += udpLen
	if end < off+bthLen+icrcLen {
		return ReasonShortBTH
	}
	p.all = h[ip : off+bthLen]
	return p.parseBTH(f, h, off, end)
}

// parseBTH parses from the BTH at off up to end, where the ICRC ends.
func (p *Packet) parseBTH(f Frame, h []byte, off, end int) Reason {
	b := (*BTH)(h[off:])
	op := b.Opcode()
	info := op.Info()
	if info.Flags == 0 {
		return ReasonOpcode
	}
	if b.TVer() != 0 {
		return ReasonTVer
	}
	data, icrcOff := off+int(info.HdrLen), end-icrcLen
	padded := icrcOff - data // payload and padding
	if padded < 0 || padded > 0 && info.Flags&FlagPayload == 0 {
		return ReasonLength
	}
	pad := int(b.Pad())
	if pad > padded || padded&3 != 0 {
		return ReasonPad
	}
	p.Op, p.Info = op, info
	p.PSN, p.DestQP, p.PKey = b.PSN(), b.DestQP(), b.PKey()
	p.Solicited, p.AckReq, p.MigReq = b.Solicited(), b.AckReq(), b.MigReq()
	p.FECN, p.BECN = b.FECN(), b.BECN()
	p.Pad = uint8(pad)
	p.PayloadLen = padded - pad
	p.hdr = h[off:data]
	p.Data0, p.Data1 = f.cut(data, icrcOff-pad)
	p.bthEnd, p.icrcOff = off+bthLen, icrcOff
	p.icrc = f.icrcAt(icrcOff)
	return ReasonOK
}
