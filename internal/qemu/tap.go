package qemu

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tapQueue is the length of the tap's queue towards the guest, and of the guest's queue, in frames.
// An emulated machine is slow, and a tap's sender learns of no loss: room avoids it.
const tapQueue = 8192

// openTap makes a tap in the calling thread's network namespace. It goes away with its last file.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		// With a virtio-net header, as QEMU wants it: it is how the guest's offloads work.
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make tap %s: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// setUpTap brings the tap up with its addresses, in its namespace.
func setUpTap(name string, mtu int, addrs []netip.Prefix) (net.HardwareAddr, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetTxQLen(link, tapQueue); err != nil {
		return nil, fmt.Errorf("set the queue length of %s: %w", name, err)
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return nil, fmt.Errorf("set the MTU of %s: %w", name, err)
	}
	for _, a := range addrs {
		ipnet := &net.IPNet{IP: a.Addr().AsSlice(),
			Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipnet}); err != nil {
			return nil, fmt.Errorf("add %v to %s: %w", a, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	return link.Attrs().HardwareAddr, nil
}
