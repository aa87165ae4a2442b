package wire

// The ICRC is CRC-32 as in Ethernet over 8 bytes of ones, the IP header, the UDP header and all that
// follows up to the ICRC, with every field a router may change replaced by ones (IBTA Annex A17,
// "ICRC"): IPv4 TOS, TTL and checksum; IPv6 traffic class, flow label and hop limit; UDP checksum;
// BTH byte 4. It is sent least significant byte first.
//
// hash/crc32 has a fast path for runs of 64 bytes and more, and of those the part that is a multiple
// of 16. Two properties of a CRC let short runs take it: leading zeros do not move a register that is
// zero, and a register value may be moved into the data by XOR with its first 4 bytes.
//
// "Register" below means the shift register itself; hash/crc32 takes and returns its complement.

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	icrcSeed = 0xdebb20e3 // the register after the 8 bytes of ones

	fastLen   = 64 // shortest run that takes the fast path
	fastAlign = 16
)

// icrcBuf is the scratch space in which short runs are put together. It can not live on the stack,
// because what hash/crc32 is given escapes.
type icrcBuf [128]byte

// up rounds n up to a length that the fast path takes whole.
func up(n int) int { return max(fastLen, (n+fastAlign-1)&^(fastAlign-1)) }

// maskPseudo replaces the variant fields of an IP header, UDP header and BTH by ones.
func maskPseudo(h []byte, v6 bool) {
	if v6 {
		h[0] |= 0x0f
		h[1], h[2], h[3] = 0xff, 0xff, 0xff
		h[7] = 0xff
	} else {
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff
	}
	bth := len(h) - bthLen
	h[bth-2], h[bth-1] = 0xff, 0xff
	h[bth+4] = 0xff
}

// xorState moves a register value into the first 4 bytes of a run.
func xorState(b []byte, state uint32) {
	binary.LittleEndian.PutUint32(b, binary.LittleEndian.Uint32(b)^state)
}

// headerState returns the register after the IP header, UDP header and BTH in h, 40 … 80 bytes, none
// of them masked yet.
func headerState(buf *icrcBuf, h []byte, v6 bool) uint32 {
	size := up(len(h))
	*(*[fastLen]byte)(buf[:]) = [fastLen]byte{}
	m := buf[size-len(h) : size]
	copy(m, h)
	maskPseudo(m, v6)
	xorState(m, icrcSeed)
	return ^crc32.Update(^uint32(0), crc32.IEEETable, buf[:size])
}

// advance runs the register over the bytes a and then b.
func advance(buf *icrcBuf, state uint32, a, b []byte) uint32 {
	if len(b) == 0 {
		if len(a) >= joinMin && len(a) < fastLen {
			return join(buf, state, a, nil)
		}
		return ^crc32.Update(^state, crc32.IEEETable, a)
	}
	if len(a) >= fastLen {
		n := len(a) &^ (fastAlign - 1)
		state = ^crc32.Update(^state, crc32.IEEETable, a[:n])
		a = a[n:]
	}
	// a now has less than 64 bytes. Take as much of b with it as makes one fast run, and all of b
	// when what remained would be too short for another.
	n := min(len(b), fastLen-len(a))
	if len(b)-n < fastLen {
		n = len(b)
	}
	if len(a)+n < joinMin {
		state = ^crc32.Update(^state, crc32.IEEETable, a)
		return ^crc32.Update(^state, crc32.IEEETable, b)
	}
	state = join(buf, state, a, b[:n])
	if n == len(b) {
		return state
	}
	return ^crc32.Update(^state, crc32.IEEETable, b[n:])
}

// joinMin is the length from which copying a short run together is cheaper than the slow path.
const joinMin = 32

// join runs the register over a and b, at least 4 and less than 128 bytes, in one fast run behind
// leading zeros.
func join(buf *icrcBuf, state uint32, a, b []byte) uint32 {
	n := len(a) + len(b)
	size := up(n)
	*(*[fastLen]byte)(buf[:]) = [fastLen]byte{}
	m := buf[size-n : size]
	copy(m, a)
	copy(m[len(a):], b)
	xorState(m, state)
	return ^crc32.Update(^uint32(0), crc32.IEEETable, buf[:size])
}

// icrc returns the ICRC of a frame whose IP header, UDP header and BTH are h and whose other covered
// bytes are a and b.
func icrc(buf *icrcBuf, h []byte, v6 bool, a, b []byte) uint32 {
	return ^advance(buf, headerState(buf, h, v6), a, b)
}

// The linear method. For a header of fixed layout the register after it is the register after the
// same header with some bytes zero, XORed with one value for each of these bytes, which depends only
// on the byte and on its distance from the header's end.

// lin holds these values for the bytes that vary between the packets of one QP.
var lin = buildLinear()

// linear is the set of tables, each indexed by a byte's value.
type linear struct {
	opcode, flags, ackReq [256]uint32    // BTH bytes 0, 1, 8
	psn                   [3][256]uint32 // BTH bytes 9 to 11
	udpLen                [2][256]uint32 // the UDP length, upper byte first
	ip4Len                [2][256]uint32 // the IPv4 total length
	ip6Len                [2][256]uint32 // the IPv6 payload length and the equal UDP length together
}

func buildLinear() *linear {
	l := new(linear)
	fill := func(t *[256]uint32, distance int) {
		for b := range t {
			r := crc32.IEEETable[b]
			for range distance {
				r = r>>8 ^ crc32.IEEETable[r&0xff]
			}
			t[b] ^= r
		}
	}
	fill(&l.opcode, bthLen-1-0)
	fill(&l.flags, bthLen-1-1)
	fill(&l.ackReq, bthLen-1-8)
	for i := range 2 {
		const udp = udpLen + bthLen - 1 - 4 // distance of the UDP length
		fill(&l.udpLen[i], udp-i)
		fill(&l.ip4Len[i], ipv4Len+udpLen+bthLen-1-2-i)
		fill(&l.ip6Len[i], ipv6Len+udpLen+bthLen-1-4-i)
		fill(&l.ip6Len[i], udp-i)
	}
	for i := range 3 {
		fill(&l.psn[i], 2-i)
	}
	return l
}
