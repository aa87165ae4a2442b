package netdev

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// channels is struct ethtool_channels of linux/ethtool.h.
type channels struct {
	cmd                                         uint32
	MaxRX, MaxTX, MaxOther, MaxCombined         uint32
	RXCount, TXCount, OtherCount, CombinedCount uint32
}

// ifreqData is struct ifreq with its pointer member, padded to the size the kernel copies.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// ethtoolChannels asks the driver of an interface how many queues it uses, through any socket of
// the interface's namespace.
func ethtoolChannels(socket int, name string) (channels, error) {
	ch := channels{cmd: unix.ETHTOOL_GCHANNELS}
	err := ethtool(socket, name, unsafe.Pointer(&ch))
	return ch, err
}

// rxnfc is struct ethtool_rxnfc, as far as it is asked for and as long as the kernel copies.
type rxnfc struct {
	cmd, flow uint32
	Data      uint64
	_         [176]byte
}

// Bits of rxnfc.Data (RXH_L4_B_0_1, RXH_L4_B_2_3): both ports go into the hash.
const hashPorts = 1<<6 | 1<<7

// ethtoolUDPHash asks whether the receive hash of UDP over IPv4 or IPv6 covers the ports.
func ethtoolUDPHash(socket int, name string, ipv6 bool) (ports bool, err error) {
	req := rxnfc{cmd: unix.ETHTOOL_GRXFH, flow: unix.UDP_V4_FLOW}
	if ipv6 {
		req.flow = unix.UDP_V6_FLOW
	}
	err = ethtool(socket, name, unsafe.Pointer(&req))
	return req.Data&hashPorts == hashPorts, err
}

// ethtool makes one request, which begins with its command and takes the answer.
func ethtool(socket int, name string, request unsafe.Pointer) error {
	req := ifreqData{data: request}
	if len(name) >= len(req.name) {
		return unix.EINVAL
	}
	copy(req.name[:], name)
	var pin runtime.Pinner // the kernel follows a pointer that lies in memory we pass
	pin.Pin(request)
	defer pin.Unpin()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return errno
	}
	return nil
}
