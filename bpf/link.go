package bpf

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// linkState is what rtnetlink tells of one interface, in the namespace of the calling thread.
type linkState struct {
	name  string
	flags uint32
	mtu   uint32

	// Program ids, 0 for none.
	native, generic, offload uint32
}

func (l *linkState) up() bool      { return l.flags&unix.IFF_UP != 0 }
func (l *linkState) carrier() bool { return l.flags&unix.IFF_LOWER_UP != 0 }

// program returns the id and the mode of the XDP program on the interface, 0 for none. If there
// are several (one in hardware, one in software), the one that sees frames last.
func (l *linkState) program() (uint32, Mode) {
	switch {
	case l.generic != 0:
		return l.generic, Generic
	case l.native != 0:
		return l.native, Native
	}
	return l.offload, Native
}

const (
	nlaTypeMask    = 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
	extFilterStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

// queryLink asks rtnetlink for one interface. No such interface: ENODEV.
func queryLink(ifindex int) (*linkState, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(int64(2 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, fmt.Errorf("set rtnetlink timeout: %w", err)
	}
	if err := unix.Sendto(fd, linkRequest(ifindex), 0, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("ask rtnetlink: %w", err)
	}
	buf := make([]byte, 1<<16) // one message; the kernel's is about 2 KiB
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return nil, fmt.Errorf("read rtnetlink: %w", err)
	}
	msgs, err := syscall.ParseNetlinkMessage(buf[:n])
	if err != nil {
		return nil, fmt.Errorf("parse rtnetlink: %w", err)
	}
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.NLMSG_ERROR:
			if len(m.Data) >= 4 {
				if e := int32(binary.NativeEndian.Uint32(m.Data)); e != 0 {
					return nil, unix.Errno(-e)
				}
			}
		case unix.RTM_NEWLINK:
			return parseLink(&m)
		}
	}
	return nil, fmt.Errorf("rtnetlink did not answer for interface %d", ifindex)
}

// linkRequest builds RTM_GETLINK for one interface, without statistics.
func linkRequest(ifindex int) []byte {
	const total = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg + 8
	ne := binary.NativeEndian
	b := make([]byte, total)
	ne.PutUint32(b[0:], total)
	ne.PutUint16(b[4:], unix.RTM_GETLINK)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	ne.PutUint32(b[8:], 1) // sequence number
	ne.PutUint32(b[unix.SizeofNlMsghdr+4:], uint32(ifindex))
	a := b[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:]
	ne.PutUint16(a[0:], 8)
	ne.PutUint16(a[2:], unix.IFLA_EXT_MASK)
	ne.PutUint32(a[4:], extFilterStats)
	return b
}

func parseLink(m *syscall.NetlinkMessage) (*linkState, error) {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("rtnetlink message of %d bytes", len(m.Data))
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return nil, fmt.Errorf("parse rtnetlink attributes: %w", err)
	}
	l := &linkState{flags: binary.NativeEndian.Uint32(m.Data[8:])}
	for _, a := range attrs {
		switch a.Attr.Type & nlaTypeMask {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_MTU:
			l.mtu = attrUint32(a.Value)
		case unix.IFLA_XDP:
			l.parseXDP(a.Value)
		}
	}
	return l, nil
}

// parseXDP reads the nested attributes of IFLA_XDP. Kernels put the id of a single program into
// IFLA_XDP_PROG_ID and, by mode, into one of the other three; we read only the latter.
func (l *linkState) parseXDP(b []byte) {
	ne := binary.NativeEndian
	for len(b) >= unix.SizeofRtAttr {
		n := int(ne.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		value := attrUint32(b[unix.SizeofRtAttr:n])
		switch ne.Uint16(b[2:]) & nlaTypeMask {
		case unix.IFLA_XDP_DRV_PROG_ID:
			l.native = value
		case unix.IFLA_XDP_SKB_PROG_ID:
			l.generic = value
		case unix.IFLA_XDP_HW_PROG_ID:
			l.offload = value
		}
		n = (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1)
		if n > len(b) {
			return
		}
		b = b[n:]
	}
}

func attrUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// waitCarrier waits until the interface has a carrier, is set down, is gone, or d is over.
// Attaching in native mode resets the link of many NICs; frames sent meanwhile are lost.
func waitCarrier(ifindex int, d time.Duration) (up, carrier bool) {
	end := time.Now().Add(d)
	for {
		l, err := queryLink(ifindex)
		if err != nil {
			return false, false
		}
		if !l.up() || l.carrier() || !time.Now().Before(end) {
			return l.up(), l.carrier()
		}
		time.Sleep(5 * time.Millisecond)
	}
}
