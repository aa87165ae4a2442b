package wire

// Building frames. A Template holds all that is the same in every packet of a QP; for each packet
// the caller asks for headers (Begin), writes its fields and the payload, and seals the frame
// (Finish).

import "encoding/binary"

const (
	maxTemplate = ethLen + vlanLen + ipv6Len + udpLen + bthLen // 82

	// maxExt is the longest set of extension headers, that of an atomic request.
	maxExt = atomicETHLen

	// MaxHeader is the number of bytes the head of a frame must have room for, whatever its opcode:
	// the longest headers, rounded up.
	MaxHeader = 128

	// MaxOverhead is how much longer than its payload an untagged IP packet can be: IPv6, UDP, BTH,
	// RETH, ImmDt, ICRC. Link MTU - MaxOverhead ≥ PMTU must hold on IPv6; IPv4 needs 20 less.
	MaxOverhead = ipv6Len + udpLen + bthLen + rethLen + immDtLen + icrcLen
)

// A Template is the prebuilt headers, Ethernet to BTH, of one [Path] and one destination QP, and
// the CRC register behind them. After Init it is only read, so that goroutines may share it.
// It may be copied and holds no pointers.
type Template struct {
	hdr   [maxTemplate]byte
	bth   uint8 // offset of the BTH
	v6    bool
	ipSum uint32 // sum of the IPv4 header's 16-bit words, length and checksum zero
	state uint32 // register after the masked header, its variable bytes zero
}

// Init sets the template for a path, a destination QP and a partition key. The path's addresses
// must be of one family; a VLAN other than -1 … 4095 is cut to 12 bits. It may be called again.
func (t *Template) Init(p *Path, dest QPN, pkey uint16) {
	*t = Template{v6: !p.Dst.IsIPv4()}
	h := append(t.hdr[:0], p.DstMAC[:]...)
	h = append(h, p.SrcMAC[:]...)
	if p.VLAN >= 0 {
		h = binary.BigEndian.AppendUint16(h, etherTypeVLAN)
		h = binary.BigEndian.AppendUint16(h, uint16(p.VLANPrio)<<13|uint16(p.VLAN)&0xfff)
	}
	if t.v6 {
		h = binary.BigEndian.AppendUint16(h, etherTypeIPv6)
	} else {
		h = binary.BigEndian.AppendUint16(h, etherTypeIPv4)
	}
	ip := len(h)
	if t.v6 {
		h = binary.BigEndian.AppendUint32(h, 6<<28|uint32(p.TClass)<<20|p.FlowLabel&0xfffff)
		h = append(h, 0, 0, protoUDP, p.HopLimit)
		h = append(h, p.Src[:]...)
		h = append(h, p.Dst[:]...)
	} else {
		const dontFragment = 0x40
		h = append(h, 0x45, p.TClass, 0, 0, 0, 0, dontFragment, 0, p.HopLimit, protoUDP, 0, 0)
		h = append(h, p.Src[12:]...)
		h = append(h, p.Dst[12:]...)
		t.ipSum = sum16(h[ip:])
	}
	h = binary.BigEndian.AppendUint16(h, p.SrcPort)
	h = binary.BigEndian.AppendUint16(h, Port)
	h = append(h, 0, 0, 0, 0) // length and checksum
	t.bth = uint8(len(h))
	b := (*BTH)(t.hdr[t.bth:])
	b.SetPKey(pkey)
	b.SetDestQP(dest)
	t.state = new(headerMemo).after(t.hdr[ip:int(t.bth)+bthLen], t.v6)
}

// sum16 adds up the big-endian 16-bit words of b, whose length is even.
func sum16(b []byte) (sum uint32) {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	return sum
}

// BTHOffset returns the number of bytes before the BTH.
func (t *Template) BTHOffset() int { return int(t.bth) }

// HeaderLen returns the number of bytes before the payload of a packet with this opcode.
func (t *Template) HeaderLen(op Opcode) int { return int(t.bth) + int(op.Info().HdrLen) }

// Begin writes the headers up to and including the BTH to head, which must be at least [MaxHeader]
// bytes long, and returns the part that starts at the BTH and ends where the payload starts. The
// opcode, P_Key and destination QP are set, the flags and the PSN zero. The caller sets the rest of
// the BTH and writes the extension headers, whose bytes hold anything before that, but must not
// change P_Key, destination QP or the headers before the BTH.
func (t *Template) Begin(head []byte, op Opcode) []byte {
	*(*[maxTemplate]byte)(head) = t.hdr
	b := head[t.bth : int(t.bth)+int(infos[op].HdrLen)]
	b[0] = byte(op)
	if op == CNP {
		*(*[cnpReserved]byte)(b[bthLen:]) = [cnpReserved]byte{}
	}
	return b
}

// Finish completes a frame started by [Template.Begin], whose payload of payloadLen bytes already
// stands behind the headers, at HeaderLen(op), going on in f.Tail when f.Head is full. It adds
// the padding, sets the lengths and the IPv4 checksum and stores the ICRC. It returns the frame's
// length without FCS: the bytes of f.Head and then of f.Tail up to there are the frame. f must
// have room for it; f.Head must hold at least the headers. The frame may be cut anywhere behind
// them.
func (t *Template) Finish(f Frame, op Opcode, payloadLen int) int {
	bth := int(t.bth)
	pad := -payloadLen & 3
	end := bth + int(infos[op].HdrLen) + payloadLen + pad
	b := (*BTH)(f.Head[bth:])
	b[1] = b[1]&^0x30 | byte(pad)<<4
	state := t.setLengths(f.Head, end-bth+udpLen+icrcLen) ^
		dist[bthLen-1][op] ^ dist[bthLen-2][b[1]] ^ dist[bthLen-9][b[8]] ^
		dist[2][b[9]] ^ dist[1][b[10]] ^ dist[0][b[11]]

	if end+icrcLen <= len(f.Head) {
		clear(f.Head[end-pad : end])
		state = advance(state, f.Head[bth+bthLen:end])
		binary.LittleEndian.PutUint32(f.Head[end:], ^state)
		return end + icrcLen
	}
	first, second := f.cut(end-pad, end)
	clear(first)
	clear(second)
	first, second = f.cut(bth+bthLen, end)
	f.setICRCBehind(end, ^advance(advance(state, first), second))
	return end + icrcLen
}

// setLengths stores the UDP and IP lengths and the IPv4 checksum and returns the register after the
// headers, as long as the other bytes that vary are zero. udpBytes includes the ICRC.
func (t *Template) setLengths(head []byte, udpBytes int) uint32 {
	bth := int(t.bth)
	hi, lo := byte(udpBytes>>8), byte(udpBytes)
	head[bth-4], head[bth-3] = hi, lo
	if t.v6 {
		ip := (*[ipv6Len]byte)(head[bth-udpLen-ipv6Len:])
		ip[4], ip[5] = hi, lo
		return t.state ^ ip6Len[0][hi] ^ ip6Len[1][lo]
	}
	ip := (*[ipv4Len]byte)(head[bth-udpLen-ipv4Len:])
	total := uint32(udpBytes + ipv4Len)
	ip[2], ip[3] = byte(total>>8), byte(total)
	sum := t.ipSum + total
	sum = sum&0xffff + sum>>16
	sum = ^(sum + sum>>16)
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	return t.state ^ dist[udpLen+bthLen-1-4][hi] ^ dist[udpLen+bthLen-1-5][lo] ^
		ip4Len[0][ip[2]] ^ ip4Len[1][ip[3]]
}
