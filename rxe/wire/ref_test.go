package wire

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// refICRC computes the ICRC of a packet that starts at the IP header and ends with its ICRC bit
// by bit, straight from the rule. It shares nothing with the code under test.
func refICRC(packet []byte, v6 bool) uint32 {
	m := append([]byte(nil), packet[:len(packet)-4]...)
	udp := 40
	if v6 {
		for i, ones := range map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff} {
			m[i] |= ones
		}
	} else {
		udp = int(m[0]&15) * 4
		for _, i := range []int{1, 8, 10, 11} {
			m[i] = 0xff
		}
	}
	m[udp+6], m[udp+7], m[udp+8+4] = 0xff, 0xff, 0xff
	return refCRC(append([]byte{255, 255, 255, 255, 255, 255, 255, 255}, m...))
}

func refCRC(b []byte) uint32 {
	r := ^uint32(0)
	for _, c := range b {
		r ^= uint32(c)
		for range 8 {
			r = r>>1 ^ r&1*0xedb88320
		}
	}
	return ^r
}

// diffBytes says where two byte strings differ.
func diffBytes(got, want []byte) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d is %02x, want %02x\ngot  % x\nwant % x",
				i, got[i], want[i], got, want)
		}
	}
	return fmt.Sprintf("%d bytes, want %d\ngot  % x\nwant % x", len(got), len(want), got, want)
}

// pattern fills b with bytes of a fixed pseudo-random sequence.
func pattern(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// exact returns a copy of a frame cut at a byte, in pieces without spare capacity, so that every
// access past the frame's end or past the cut panics.
func exact(frame []byte, cut int) Frame {
	f := Frame{Head: make([]byte, cut), Tail: make([]byte, len(frame)-cut)}
	copy(f.Head, frame)
	copy(f.Tail, frame[cut:])
	return f
}

// rawPacket makes an Ethernet frame around the bytes from BTH to the end of the padding and, when
// they hold a whole BTH, adds a right ICRC, without the code under test.
func rawPacket(v6 bool, transport []byte) []byte {
	be := binary.BigEndian
	b := []byte{2, 0, 0, 0, 7, 2, 2, 0, 0, 0, 7, 1}
	n := uint16(8 + len(transport) + 4)
	ip := 14
	if v6 {
		b = append(b, 0x86, 0xdd, 0x62, 0xe1, 0x23, 0x45)
		b = be.AppendUint16(b, n)
		b = append(b, 17, 64)
		b = append(b, 0xfd, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
		b = append(b, 0xfd, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2)
	} else {
		b = append(b, 8, 0, 0x45, 0)
		b = be.AppendUint16(b, n+20)
		b = append(b, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 192, 168, 7, 1, 192, 168, 7, 2)
		fixIPv4Sum(b[ip : ip+20])
	}
	b = be.AppendUint16(b, 0xc121)
	b = be.AppendUint16(b, 4791)
	b = be.AppendUint16(b, n)
	b = append(b, 0, 0)
	b = append(b, transport...)
	b = append(b, 0, 0, 0, 0)
	if len(transport) >= 12 {
		binary.LittleEndian.PutUint32(b[len(b)-4:], refICRC(b[ip:], v6))
	}
	return b
}

// fixIPv4Sum stores the checksum of an IPv4 header.
func fixIPv4Sum(h []byte) {
	h[10], h[11] = 0, 0
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(h[i])<<8 | uint32(h[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}
