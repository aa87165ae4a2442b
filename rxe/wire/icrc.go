package wire

// The ICRC is CRC-32 as in Ethernet over 8 bytes of ones, the IP header, the UDP header and all
// that follows up to the ICRC, with every field a router may change replaced by ones (IBTA Annex
// A17): IPv4 TOS, TTL and checksum; IPv6 traffic class, flow label and hop limit; UDP
// checksum; BTH byte 4. It is sent least significant byte first.
//
// A CRC is linear: the value a byte adds to the register depends only on the byte and on its
// distance from the end. Tables of these values serve three ends: headers whose bytes are mostly
// known in advance (Template), headers that are masked on the way (headerMemo), and runs too
// short for the fast path of hash/crc32, which takes 64 bytes or more, in multiples of 16. From 48
// bytes on they are folded with vectors, where the processor has them (fold_amd64.go).
//
// "Register" means the shift register itself; hash/crc32 takes and returns its complement.

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	icrcSeed = 0xdebb20e3 // the register after the 8 bytes of ones

	fastLen   = 64 // shortest run that takes the fast path of hash/crc32
	fastAlign = 16 // the rest of a run after a multiple of this takes the slow one
)

var (
	// dist[d][b] is what byte b adds to the register, d bytes before the end.
	dist = func() (t [16][256]uint32) {
		for d := range t {
			t[d] = distTable(d)
		}
		return t
	}()

	// ip4Len is the same for the two bytes of the IPv4 total length before the end of the BTH,
	// ip6Len for the bytes of the IPv6 payload length and the equal ones of the UDP length
	// together.
	ip4Len = [2][256]uint32{
		distTable(ipv4Len + udpLen + bthLen - 1 - 2),
		distTable(ipv4Len + udpLen + bthLen - 1 - 3),
	}
	ip6Len = [2][256]uint32{
		xorTable(distTable(ipv6Len+udpLen+bthLen-1-4), distTable(udpLen+bthLen-1-4)),
		xorTable(distTable(ipv6Len+udpLen+bthLen-1-5), distTable(udpLen+bthLen-1-5)),
	}
)

// distTable returns what each byte adds to the register at a distance from the end.
func distTable(distance int) (t [256]uint32) {
	for b := range t {
		r := crc32.IEEETable[b]
		for range distance {
			r = r>>8 ^ crc32.IEEETable[r&0xff]
		}
		t[b] = r
	}
	return t
}

func xorTable(a, b [256]uint32) [256]uint32 {
	for i := range a {
		a[i] ^= b[i]
	}
	return a
}

// step4, step8 and step16 run the register over that many bytes, loaded least significant first.

func step4(s, w uint32) uint32 {
	s ^= w
	return dist[3][byte(s)] ^ dist[2][byte(s>>8)] ^ dist[1][byte(s>>16)] ^ dist[0][byte(s>>24)]
}

func step8(s uint32, w uint64) uint32 {
	w ^= uint64(s)
	return dist[7][byte(w)] ^ dist[6][byte(w>>8)] ^ dist[5][byte(w>>16)] ^ dist[4][byte(w>>24)] ^
		dist[3][byte(w>>32)] ^ dist[2][byte(w>>40)] ^ dist[1][byte(w>>48)] ^ dist[0][byte(w>>56)]
}

func step16(s uint32, v, w uint64) uint32 {
	v ^= uint64(s)
	return dist[15][byte(v)] ^ dist[14][byte(v>>8)] ^
		dist[13][byte(v>>16)] ^ dist[12][byte(v>>24)] ^
		dist[11][byte(v>>32)] ^ dist[10][byte(v>>40)] ^
		dist[9][byte(v>>48)] ^ dist[8][byte(v>>56)] ^
		dist[7][byte(w)] ^ dist[6][byte(w>>8)] ^ dist[5][byte(w>>16)] ^ dist[4][byte(w>>24)] ^
		dist[3][byte(w>>32)] ^ dist[2][byte(w>>40)] ^ dist[1][byte(w>>48)] ^ dist[0][byte(w>>56)]
}

// advance runs the register over b.
func advance(s uint32, b []byte) uint32 {
	s, b = fold(s, b)
	if len(b) >= fastLen {
		n := len(b) &^ (fastAlign - 1)
		s = ^crc32.Update(^s, crc32.IEEETable, b[:n])
		b = b[n:]
	}
	for ; len(b) >= 16; b = b[16:] {
		s = step16(s, binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]))
	}
	for ; len(b) >= 4; b = b[4:] {
		s = step4(s, binary.LittleEndian.Uint32(b))
	}
	for _, c := range b {
		s = s>>8 ^ dist[0][byte(s)^c]
	}
	return s
}

// A headerMemo computes the register after IP header, UDP header and BTH, and remembers the one
// after all but the BTH's last 8 or 12 bytes: the packets of a peer mostly differ in those only.
type headerMemo struct {
	words [6]uint64 // the masked bytes before, IPv4 leaves two words zero
	state uint32    // the register after them
}

// after returns the register after the ones, the IP header, the UDP header and the BTH. h holds the
// three headers as they stand in the frame, 40 to 80 bytes.
func (m *headerMemo) after(h []byte, v6 bool) uint32 {
	// Masks for 8 bytes loaded least significant byte first.
	const (
		byte0, byte1, byte4, byte7 = 0xff, 0xff << 8, 0xff << 32, 0xff << 56
		bytes2to3, bytes6to7       = 0xffff << 16, 0xffff << 48
		classAndLabel              = 0xffffff0f
	)
	le := binary.LittleEndian
	switch {
	case v6:
		b := (*[ipv6Len + udpLen + bthLen]byte)(h)
		w := [6]uint64{
			le.Uint64(b[0:]) | classAndLabel | byte7, le.Uint64(b[8:]), le.Uint64(b[16:]),
			le.Uint64(b[24:]), le.Uint64(b[32:]), le.Uint64(b[40:]) | bytes6to7,
		}
		if w != m.words {
			m.words = w
			m.state = step16(step16(step16(icrcSeed, w[0], w[1]), w[2], w[3]), w[4], w[5])
		}
		return step4(step8(m.state, le.Uint64(b[48:])|byte4), le.Uint32(b[56:]))
	case len(h) == ipv4Len+udpLen+bthLen:
		b := (*[ipv4Len + udpLen + bthLen]byte)(h)
		w0, w1 := le.Uint64(b[0:])|byte1, le.Uint64(b[8:])|byte0|bytes2to3
		w2, w3 := le.Uint64(b[16:]), le.Uint64(b[24:])|bytes2to3
		w := &m.words // compared like this, since != of arrays is a call
		if (w[0]^w0)|(w[1]^w1)|(w[2]^w2)|(w[3]^w3)|w[4]|w[5] != 0 {
			*w = [6]uint64{w0, w1, w2, w3}
			m.state = step16(step16(icrcSeed, w0, w1), w2, w3)
		}
		return step8(m.state, le.Uint64(b[32:])|byte0)
	}
	return optionsState(h)
}

// optionsState does the same for IPv4 with options, which nobody is in a hurry for.
func optionsState(h []byte) uint32 {
	var m [ipv4MaxLen + udpLen + bthLen]byte
	n := copy(m[:], h)
	m[1], m[8], m[10], m[11] = 0xff, 0xff, 0xff, 0xff
	m[n-bthLen-2], m[n-bthLen-1], m[n-bthLen+4] = 0xff, 0xff, 0xff
	s := uint32(icrcSeed)
	for b := m[:n]; len(b) >= 4; b = b[4:] { // not advance: m must not escape
		s = step4(s, binary.LittleEndian.Uint32(b))
	}
	return s
}
