package bpf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
)

var (
	ourIPv4      = netip.MustParseAddr("10.77.0.1")
	ourIPv6      = netip.MustParseAddr("fd77::1")
	ourGroupIPv4 = netip.MustParseAddr("239.1.2.3")
	ourGroupIPv6 = netip.MustParseAddr("ff0e::77")
	otherIPv4    = netip.MustParseAddr("10.77.0.9")
	otherIPv6    = netip.MustParseAddr("fd77::9")
	senderIPv4   = netip.MustParseAddr("10.77.0.2")
	senderIPv6   = netip.MustParseAddr("fd77::2")
)

const ourVLAN = 77

// ourTable is the address table of the tests. ourIPv4 and the groups are there without VLAN, all
// but the groups in ourVLAN, too.
var ourTable = []modelKey{
	{0, ourIPv4}, {0, ourIPv6}, {0, ourGroupIPv4}, {0, ourGroupIPv6},
	{ourVLAN, ourIPv4}, {ourVLAN, ourIPv6},
}

// frameSpec is a frame by its parts. The zero value of a length means: the right one.
type frameSpec struct {
	tags     []uint16 // TCI of 802.1Q tags, outermost first
	tagType  uint16   // EtherType of the outermost tag; 0 means 0x8100
	dst      netip.Addr
	options  int // bytes of IPv4 options
	port     uint16
	payload  int
	padding  int // bytes behind the IP packet
	totalLen uint16
	udpLen   uint16
}

// build lays the frame out.
func (s frameSpec) build() []byte {
	f := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for i, tci := range s.tags {
		tagType := uint16(0x8100)
		if i == 0 && s.tagType != 0 {
			tagType = s.tagType
		}
		f = be.AppendUint16(be.AppendUint16(f, tagType), tci)
	}
	udp := be.AppendUint16(nil, 0xc000)
	udp = be.AppendUint16(udp, s.port)
	udp = be.AppendUint16(udp, orLen(s.udpLen, 8+s.payload))
	udp = append(udp, make([]byte, 2+s.payload)...)
	if s.dst.Is4() {
		f = be.AppendUint16(f, 0x0800)
		f = append(f, 0x45+byte(s.options/4), 0)
		f = be.AppendUint16(f, orLen(s.totalLen, 20+s.options+len(udp)))
		f = append(f, 0, 0, 0x40, 0, 64, 17, 0, 0) // id, DF, TTL, UDP, no checksum
		f = append(f, senderIPv4.AsSlice()...)
		f = append(f, s.dst.AsSlice()...)
		f = append(f, bytes.Repeat([]byte{1}, s.options)...) // no-operation options
	} else {
		f = be.AppendUint16(f, 0x86dd)
		f = append(f, 0x60, 0, 0, 0)
		f = be.AppendUint16(f, orLen(s.totalLen, len(udp)))
		f = append(f, 17, 64)
		f = append(f, senderIPv6.AsSlice()...)
		f = append(f, s.dst.AsSlice()...)
	}
	return append(append(f, udp...), make([]byte, s.padding)...)
}

func orLen(given uint16, right int) uint16 {
	if given != 0 {
		return given
	}
	return uint16(right)
}

// with returns a copy of the frame with bytes changed from an offset on.
func with(frame []byte, offset int, b ...byte) []byte {
	frame = slices.Clone(frame)
	copy(frame[offset:], b)
	return frame
}

type steerCase struct {
	name  string
	frame []byte
	want  Verdict // with a socket in the slot
}

// steerCases has at least one frame for every verdict but VerdictNoSocket.
func steerCases() []steerCase {
	v4 := frameSpec{dst: ourIPv4, port: Port, payload: 16}
	v6 := frameSpec{dst: ourIPv6, port: Port, payload: 16}
	edit := func(s frameSpec, change func(*frameSpec)) []byte {
		change(&s)
		return s.build()
	}
	const l3 = 14 // no tag
	cases := []steerCase{
		{"ipv4", v4.build(), VerdictRedirected},
		{"ipv6", v6.build(), VerdictRedirected},
		{"ipv4 group", edit(v4, func(s *frameSpec) { s.dst = ourGroupIPv4 }), VerdictRedirected},
		{"ipv6 group", edit(v6, func(s *frameSpec) { s.dst = ourGroupIPv6 }), VerdictRedirected},
		{"ipv4 empty", edit(v4, func(s *frameSpec) { s.payload = 0 }), VerdictRedirected},
		{"ipv4 padded", edit(v4, func(s *frameSpec) { s.padding = 20 }), VerdictRedirected},
		{"ipv6 padded", edit(v6, func(s *frameSpec) { s.padding = 20 }), VerdictRedirected},
		{"ipv4 pmtu 4096", edit(v4, func(s *frameSpec) { s.payload = 4112 }), VerdictRedirected},
		{"ipv6 jumbo", edit(v6, func(s *frameSpec) { s.payload = 8900 }), VerdictRedirected},
		{"ipv4 any tos", with(v4.build(), l3+1, 0xff), VerdictRedirected},
		{"ipv4 bad checksum", with(v4.build(), l3+10, 0xbe, 0xef), VerdictRedirected},
		{"ipv6 any class and flow", with(v6.build(), l3, 0x6f, 0xff, 0xff, 0xff),
			VerdictRedirected},
		{"ipv4-mapped ipv6 is the same address", edit(v6, func(s *frameSpec) {
			s.dst = netip.AddrFrom16(ourIPv4.As16())
		}), VerdictRedirected},
		{"udp shorter than ip", edit(v4, func(s *frameSpec) { s.udpLen = 20 }),
			VerdictRedirected},

		{"arp", with(v4.build(), 12, 0x08, 0x06), VerdictNotIP},
		{"length instead of ethertype", with(v4.build(), 12, 0, 100), VerdictNotIP},
		{"tagged arp", with(edit(v4, func(s *frameSpec) { s.tags = []uint16{0} }), 16, 8, 6),
			VerdictNotIP},
		{"ipv4 tcp", with(v4.build(), l3+9, 6), VerdictNotUDP},
		{"ipv4 icmp", with(v4.build(), l3+9, 1), VerdictNotUDP},
		{"ipv4 tcp fragment", with(v4.build(), l3+6, 0x20, 0, 64, 6), VerdictNotUDP},
		{"ipv6 tcp", with(v6.build(), l3+6, 6), VerdictNotUDP},
		{"ipv6 hop by hop", with(v6.build(), l3+6, 0), VerdictNotUDP},
		{"ipv6 routing", with(v6.build(), l3+6, 43), VerdictNotUDP},
		{"ipv4 port 4790", edit(v4, func(s *frameSpec) { s.port = 4790 }), VerdictOtherPort},
		{"ipv6 port 53", edit(v6, func(s *frameSpec) { s.port = 53 }), VerdictOtherPort},
		{"ipv4 port swapped", edit(v4, func(s *frameSpec) { s.port = 0xb712 }),
			VerdictOtherPort},
		{"ipv4 source port 4791", with(edit(v4, func(s *frameSpec) { s.port = 9 }),
			l3+20, 0x12, 0xb7), VerdictOtherPort},
		{"ipv4 first fragment", with(v4.build(), l3+6, 0x20, 0), VerdictFragment},
		{"ipv4 middle fragment", with(v4.build(), l3+6, 0x20, 1), VerdictFragment},
		{"ipv4 last fragment", with(v4.build(), l3+6, 0x00, 1), VerdictFragment},
		{"ipv4 far fragment", with(v4.build(), l3+6, 0x1f, 0), VerdictFragment},
		{"ipv4 may fragment", with(v4.build(), l3+6, 0, 0), VerdictRedirected},
		{"ipv4 reserved flag", with(v4.build(), l3+6, 0x80, 0), VerdictRedirected},
		{"ipv6 fragment", with(v6.build(), l3+6, 44), VerdictFragment},

		{"ipv4 other address", edit(v4, func(s *frameSpec) { s.dst = otherIPv4 }),
			VerdictOtherAddress},
		{"ipv6 other address", edit(v6, func(s *frameSpec) { s.dst = otherIPv6 }),
			VerdictOtherAddress},
		{"ipv4 other group", edit(v4, func(s *frameSpec) {
			s.dst = netip.MustParseAddr("239.1.2.4")
		}), VerdictOtherAddress},
		{"ipv4 broadcast", edit(v4, func(s *frameSpec) {
			s.dst = netip.MustParseAddr("255.255.255.255")
		}), VerdictOtherAddress},

		{"ipv4 header of version 5", with(v4.build(), l3, 0x55), VerdictMalformed},
		{"ipv4 header of version 6", with(v4.build(), l3, 0x65), VerdictMalformed},
		{"ipv6 header of version 4", with(v6.build(), l3, 0x40), VerdictMalformed},
		{"ipv4 header length 16", with(v4.build(), l3, 0x44), VerdictMalformed},
		{"ipv4 header length 0", with(v4.build(), l3, 0x40), VerdictMalformed},
		{"ipv4 total length 0", with(v4.build(), l3+2, 0, 0), VerdictMalformed},
		{"ipv4 total length 19", with(v4.build(), l3+2, 0, 19), VerdictMalformed},
		{"ipv4 total length 27", with(v4.build(), l3+2, 0, 27), VerdictMalformed},
		{"ipv6 payload length 0", with(v6.build(), l3+4, 0, 0), VerdictMalformed},
		{"ipv6 payload length 7", with(v6.build(), l3+4, 0, 7), VerdictMalformed},
		{"ipv4 room for 7 of 8 bytes, other port", with(edit(v4, func(s *frameSpec) {
			s.port = 53
		}), l3+2, 0, 27), VerdictMalformed},
		{"ipv6 room for 7 of 8 bytes, other port", with(edit(v6, func(s *frameSpec) {
			s.port = 53
		}), l3+4, 0, 7), VerdictMalformed},
		{"udp length 0", with(v4.build(), l3+20+4, 0, 0), VerdictMalformed},
		{"udp length 7", with(v4.build(), l3+20+4, 0, 7), VerdictMalformed},
		{"udp longer than ip", with(v4.build(), l3+20+4, 0, 25), VerdictMalformed},
		{"udp6 longer than ip", with(v6.build(), l3+40+4, 0, 25), VerdictMalformed},
		{"udp longer than ip, shorter than frame", edit(v4, func(s *frameSpec) {
			s.udpLen, s.padding = 30, 20
		}), VerdictMalformed},
		{"ipv4 longer than frame", with(v4.build(), l3+2, 0, 45), VerdictTruncated},
		{"ipv6 longer than frame", with(v6.build(), l3+4, 0, 25), VerdictTruncated},
	}
	for options := 4; options <= 40; options += 4 {
		cases = append(cases, steerCase{fmt.Sprintf("ipv4 %d bytes of options", options),
			edit(v4, func(s *frameSpec) { s.options = options }), VerdictRedirected})
	}
	return append(cases, tagCases(v4, v6)...)
}

// tagCases is about VLAN tags.
func tagCases(specs ...frameSpec) []steerCase {
	var cases []steerCase
	for _, s := range specs {
		for _, c := range []struct {
			name    string
			tagType uint16
			tags    []uint16
			want    Verdict
		}{
			{"our vlan", 0x8100, []uint16{ourVLAN}, VerdictRedirected},
			{"our vlan, priority and DEI", 0x8100, []uint16{0xf000 | ourVLAN}, VerdictRedirected},
			{"priority tag", 0x8100, []uint16{0x6000}, VerdictRedirected},
			{"other vlan", 0x8100, []uint16{ourVLAN + 1}, VerdictOtherAddress},
			{"vlan 4094", 0x8100, []uint16{4094}, VerdictOtherAddress},
			{"two tags", 0x8100, []uint16{0, ourVLAN}, VerdictQinQ},
			{"three tags", 0x8100, []uint16{0, 0, ourVLAN}, VerdictQinQ},
			{"service tag", 0x88a8, []uint16{ourVLAN}, VerdictQinQ},
			{"service and customer tag", 0x88a8, []uint16{5, ourVLAN}, VerdictQinQ},
			{"old service tag", 0x9100, []uint16{5, ourVLAN}, VerdictNotIP},
		} {
			s.tags, s.tagType = c.tags, c.tagType
			cases = append(cases, steerCase{fmt.Sprintf("%v %s", s.dst, c.name),
				s.build(), c.want})
		}
		s.tags, s.tagType = []uint16{ourVLAN, ourVLAN}, 0x8100
		cases = append(cases, steerCase{fmt.Sprintf("%v customer before service tag", s.dst),
			with(s.build(), 16, 0x88, 0xa8), VerdictQinQ})
	}
	// In ourVLAN the groups are not ours.
	for _, dst := range []netip.Addr{ourGroupIPv4, ourGroupIPv6} {
		s := frameSpec{dst: dst, port: Port, tags: []uint16{ourVLAN}}
		cases = append(cases, steerCase{"group in vlan", s.build(), VerdictOtherAddress})
	}
	return cases
}

// randomFrame makes a frame that is nearly right: up to three fields, bits or lengths are wrong.
func randomFrame(rng *rand.Rand) []byte {
	addrs := []netip.Addr{ourIPv4, ourIPv6, ourGroupIPv4, ourGroupIPv6, otherIPv4, otherIPv6}
	s := frameSpec{
		dst:     addrs[rng.IntN(len(addrs))],
		port:    Port,
		payload: rng.IntN(64),
		padding: rng.IntN(8),
	}
	if s.dst.Is4() {
		s.options = 4 * rng.IntN(11)
	}
	tags := [][]uint16{nil, nil, {0}, {ourVLAN}, {uint16(rng.Uint32())}, {ourVLAN, ourVLAN}}
	s.tags = tags[rng.IntN(len(tags))]
	if rng.IntN(100) == 0 {
		s.payload = rng.IntN(9000) // in several buffers
	}
	frame := s.build()
	for range rng.IntN(4) {
		switch at := 12 + rng.IntN(min(len(frame), 90)-12); rng.IntN(4) {
		case 0:
			frame[at] ^= 1 << rng.IntN(8)
		case 1:
			frame[at] = byte(rng.Uint32())
		case 2:
			interesting := []byte{0, 1, 6, 8, 17, 20, 44, 0x12, 0xb7, 0x45, 0x60, 0x81, 0x86, 0xff}
			frame[at] = interesting[rng.IntN(len(interesting))]
		case 3:
			frame = frame[:14+rng.IntN(len(frame)-13)]
		}
		if len(frame) == 14 {
			break
		}
	}
	return frame
}
