package bpf

import (
	"encoding/binary"
	"net/netip"
)

// model says in Go what roxie.bpf.c does: the verdict on a frame, given the address table and
// whether the queue has a socket.
type model struct {
	addresses map[modelKey]bool
	socket    bool
}

type modelKey struct {
	vlan uint16
	addr netip.Addr // never IPv4-mapped
}

var be = binary.BigEndian

func (m *model) judge(frame []byte) Verdict {
	if len(frame) < 14 {
		return VerdictTruncated
	}
	etherType, packet := be.Uint16(frame[12:]), frame[14:]
	var vlan uint16
	if etherType == 0x8100 {
		if len(packet) < 4 {
			return VerdictTruncated
		}
		vlan = be.Uint16(packet) & 0xfff
		etherType, packet = be.Uint16(packet[2:]), packet[4:]
		if etherType == 0x8100 {
			return VerdictQinQ
		}
	}
	switch etherType {
	case 0x0800:
		return m.judgeIPv4(vlan, packet)
	case 0x86dd:
		return m.judgeIPv6(vlan, packet)
	case 0x88a8:
		return VerdictQinQ
	}
	return VerdictNotIP
}

func (m *model) judgeIPv4(vlan uint16, packet []byte) Verdict {
	if len(packet) < 20 {
		return VerdictTruncated
	}
	version, headerLen := packet[0]>>4, int(packet[0]&0xf)*4
	totalLen := int(be.Uint16(packet[2:]))
	switch {
	case version != 4 || headerLen < 20:
		return VerdictMalformed
	case packet[9] != 17:
		return VerdictNotUDP
	case be.Uint16(packet[6:])&0x3fff != 0:
		return VerdictFragment
	case totalLen < headerLen+8:
		return VerdictMalformed
	case totalLen > len(packet):
		return VerdictTruncated
	}
	return m.judgeUDP(modelKey{vlan, netip.AddrFrom4([4]byte(packet[16:20]))},
		packet[headerLen:totalLen])
}

func (m *model) judgeIPv6(vlan uint16, packet []byte) Verdict {
	if len(packet) < 40 {
		return VerdictTruncated
	}
	payloadLen := int(be.Uint16(packet[4:]))
	switch {
	case packet[0]>>4 != 6:
		return VerdictMalformed
	case packet[6] == 44:
		return VerdictFragment
	case packet[6] != 17:
		return VerdictNotUDP
	case payloadLen < 8:
		return VerdictMalformed
	case 40+payloadLen > len(packet):
		return VerdictTruncated
	}
	return m.judgeUDP(modelKey{vlan, netip.AddrFrom16([16]byte(packet[24:40])).Unmap()},
		packet[40:40+payloadLen])
}

// judgeUDP takes at least the UDP header.
func (m *model) judgeUDP(key modelKey, datagram []byte) Verdict {
	udpLen := int(be.Uint16(datagram[4:]))
	switch {
	case be.Uint16(datagram[2:]) != Port:
		return VerdictOtherPort
	case udpLen < 8 || udpLen > len(datagram):
		return VerdictMalformed
	case !m.addresses[key]:
		return VerdictOtherAddress
	case !m.socket:
		return VerdictNoSocket
	}
	return VerdictRedirected
}
