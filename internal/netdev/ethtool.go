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
	req := ifreqData{data: unsafe.Pointer(&ch)}
	if len(name) >= len(req.name) {
		return channels{}, unix.EINVAL
	}
	copy(req.name[:], name)
	var pin runtime.Pinner // the kernel follows a pointer that lies in memory we pass
	pin.Pin(&ch)
	defer pin.Unpin()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return channels{}, errno
	}
	return ch, nil
}
