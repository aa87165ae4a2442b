package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// The VLAN of one cell: an 802.1Q interface in the guest, roxie's own tag here, where the kernel may
// have none.
const vlanID = 5

var (
	vlanHost  = netip.MustParsePrefix("10.77.5.1/24")
	vlanGuest = netip.MustParsePrefix("10.77.5.2/24")
)

func vlanScenario() *scenario {
	s := &scenario{Cell: base("ibv_rc_pingpong", "client", "RC", "vlan")}
	s.prepare, s.undo = vlanUp, vlanDown
	s.play = func(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
		theirs, ours := s.commands(r.roxie)
		here, err := r.gidHere(ctx, vlanHost.Addr())
		if err != nil {
			return "", err
		}
		there, err := r.gidThere(ctx, vlanGuest.Addr())
		if err != nil {
			return "", err
		}
		// Later flags win. They meet over TCP on the untagged network.
		theirs = append(theirs, "-g", there)
		ours = append(ours, "-g", here, "--vlan", fmt.Sprint(vlanID))
		return fmt.Sprintf("tagged %d", vlanID), r.pair(ctx, &s.Cell, theirs, ours, at)
	}
	return s
}

// vlanUp gives both ends addresses in the VLAN. Neither kernel can ask the other one for its MAC
// address there, so that both are told.
func vlanUp(ctx context.Context, r *rig) error {
	var here net.HardwareAddr
	err := r.g.Side.DoErr(func() error {
		link, err := netlink.LinkByName(qemu.TapName)
		if err != nil {
			return err
		}
		here = link.Attrs().HardwareAddr
		if err := netlink.AddrReplace(link, vlanAddr()); err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: vlanGuest.Addr().AsSlice(), HardwareAddr: qemu.GuestMAC})
	})
	if err != nil {
		return fmt.Errorf("VLAN %d here: %w", vlanID, err)
	}
	_, err = r.run(ctx, fmt.Sprintf(`
modprobe 8021q
ip link add link %[1]s name %[1]s.%[2]d type vlan id %[2]d
ip addr add %[3]v dev %[1]s.%[2]d
ip link set %[1]s.%[2]d up
ip neigh replace %[4]v lladdr %[5]v dev %[1]s.%[2]d
`, qemu.GuestLink, vlanID, vlanGuest, vlanHost.Addr(), here))
	return err
}

func vlanAddr() *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: vlanHost.Addr().AsSlice(),
		Mask: net.CIDRMask(vlanHost.Bits(), vlanHost.Addr().BitLen())}}
}

func vlanDown(ctx context.Context, r *rig) error {
	err := r.g.Side.DoErr(func() error {
		link, err := netlink.LinkByName(qemu.TapName)
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index,
				IP: vlanGuest.Addr().AsSlice()}),
			netlink.AddrDel(link, vlanAddr()))
	})
	_, guestErr := r.run(ctx, fmt.Sprintf("ip link del %s.%d", qemu.GuestLink, vlanID))
	return errors.Join(err, guestErr)
}

// gidThere is the index of an address in the guest's GID table.
func (r *rig) gidThere(ctx context.Context, addr netip.Addr) (string, error) {
	out, err := r.run(ctx, "cd /sys/class/infiniband/rxe0/ports/1/gids; grep -H . *")
	if err != nil {
		return "", err
	}
	as16 := addr.As16()
	hex := fmt.Sprintf("%x", as16[:])
	for _, line := range strings.Fields(out) {
		index, gid, _ := strings.Cut(line, ":")
		if strings.ReplaceAll(gid, ":", "") == hex {
			return index, nil
		}
	}
	return "", fmt.Errorf("the guest has no GID %v", addr)
}

var gidLine = regexp.MustCompile(`GID\[ *(\d+)\]:\s+(\S+),`)

// gidHere is the same of roxie's.
func (r *rig) gidHere(ctx context.Context, addr netip.Addr) (string, error) {
	p, err := r.here(ctx, r.roxie, "devinfo", "-v", "-d", qemu.TapName)
	if err != nil {
		return "", err
	}
	if err := p.wait(ctx); err != nil {
		return "", err
	}
	for _, m := range gidLine.FindAllStringSubmatch(p.out.String(), -1) {
		if a, err := netip.ParseAddr(m[2]); err == nil && a.Unmap() == addr {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("%s has no GID %v", qemu.TapName, addr)
}
