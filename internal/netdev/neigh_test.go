package netdev

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// hurry lets the kernel ask for neighbours every 20 ms instead of every second, and confirm a used
// entry at once instead of after five.
func hurry(t *testing.T, n *nettest.Namespace) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		sysctl(t, n, family+"/neigh/veth0/retrans_time_ms", "20")
		sysctl(t, n, family+"/neigh/veth0/delay_first_probe_time", "0")
	}
}

func TestResolve(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := openIn(t, l.A)
	for _, tt := range []struct {
		name string
		dst  netip.Addr
		want wire.MAC
	}{
		{"IPv4", l.B.IPv4, macOf(l.B)},
		{"IPv4 again", l.B.IPv4, macOf(l.B)},
		{"mapped", netip.AddrFrom16(l.B.IPv4.As16()), macOf(l.B)},
		{"IPv6", l.B.IPv6, macOf(l.B)},
		{"link-local", peerLinkLocal(t, l.B), macOf(l.B)},
		{"link-local with zone", peerLinkLocal(t, l.B).WithZone("veth0"), macOf(l.B)},
		{"own", l.A.IPv4, macOf(l.A)},
		{"own IPv6", l.A.IPv6, macOf(l.A)},
		{"group", addr("239.129.2.3"), wire.MAC{0x01, 0x00, 0x5e, 1, 2, 3}},
		{"IPv6 group", addr("ff02::1:ff00:2"), wire.MAC{0x33, 0x33, 0xff, 0, 0, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mac, err := a.Resolve(t.Context(), l.A.Ifindex, tt.dst)
			if err != nil || mac != tt.want {
				t.Errorf("got %v, %v, want %v", mac, err, tt.want)
			}
		})
	}
	neighs, err := a.Neighbours(l.A.Ifindex)
	if err != nil {
		t.Fatal(err)
	}
	known := map[netip.Addr]bool{}
	for _, n := range neighs {
		known[n.Addr] = n.State.Known() && n.MAC == macOf(l.B)
	}
	if !known[l.B.IPv4] || !known[l.B.IPv6] {
		t.Errorf("neighbour table %v", neighs)
	}
}

// Without CAP_NET_ADMIN a datagram is the only way to make the kernel ask.
func TestResolveUnprivileged(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	var mac4, mac6 wire.MAC
	err := l.A.DoErr(func() error {
		dropCaps(t) // of this thread, which ends with the function
		c, err := Open()
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.useNeighbour(l.A.Ifindex, l.B.IPv4); err == nil {
			return errors.New("the thread still has CAP_NET_ADMIN")
		}
		if mac4, err = c.Resolve(t.Context(), l.A.Ifindex, l.B.IPv4); err != nil {
			return err
		}
		mac6, err = c.Resolve(t.Context(), l.A.Ifindex, l.B.IPv6)
		return err
	})
	if err != nil || mac4 != macOf(l.B) || mac6 != macOf(l.B) {
		t.Errorf("%v, %v, %v; want %v", mac4, mac6, err, macOf(l.B))
	}
}

// Where a firewall keeps datagrams back, netlink makes the kernel ask.
func TestUseNeighbour(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := openIn(t, l.A)
	m := monitorIn(t, l.A)
	for _, dst := range []netip.Addr{l.B.IPv4, l.B.IPv6} {
		if err := a.useNeighbour(l.A.Ifindex, dst); err != nil {
			t.Fatal(err)
		}
		waitFor(t, m, func(e Event) bool {
			return e.Kind == NeighChanged && e.Neighbour.Addr == dst &&
				e.Neighbour.State == NeighReachable && e.Neighbour.MAC == macOf(l.B)
		})
	}
}

func TestResolveFails(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := openIn(t, l.A)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := a.Resolve(ctx, l.A.Ifindex, addr("10.77.0.98"))
	wantError(t, err, ErrNoNeighbour, "no neighbour 10.77.0.98 on veth0: context deadline exceeded")
	wantError(t, err, context.DeadlineExceeded, "")
	if took := time.Since(start); took > time.Second {
		t.Errorf("a context of 50 ms ended the call after %v", took)
	}

	hurry(t, l.A)
	for _, dst := range []string{"10.77.0.99", "fd77::99", "10.77.0.99"} {
		_, err = a.Resolve(t.Context(), l.A.Ifindex, addr(dst))
		wantError(t, err, ErrNoNeighbour, "no neighbour "+dst+" on veth0: it does not answer")
	}
	_, err = a.Resolve(t.Context(), l.A.Ifindex, none)
	wantError(t, err, ErrNoNeighbour, "not an IP address")
	_, err = a.Resolve(t.Context(), 4711, l.B.IPv4)
	wantError(t, err, ErrNoLink, "")

	change(t, l.B, netlink.LinkSetDown)
	_, err = a.Resolve(t.Context(), l.A.Ifindex, addr("10.77.0.97"))
	wantError(t, err, ErrNoNeighbour, "no neighbour 10.77.0.97 on veth0: the interface is without carrier")
}

// A neighbour that got another MAC address is found by refreshing.
func TestRefreshFollowsNeighbour(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	hurry(t, l.A)
	a := openIn(t, l.A)
	m := monitorIn(t, l.A)
	if _, err := a.Resolve(t.Context(), l.A.Ifindex, l.B.IPv4); err != nil {
		t.Fatal(err)
	}
	n, err := a.Refresh(l.A.Ifindex, l.B.IPv4)
	if err != nil || !n.State.Fresh() || n.MAC != macOf(l.B) {
		t.Fatalf("refresh of a fresh entry: %+v, %v", n, err)
	}

	moved := wire.MAC{0x02, 0xb0, 0xb0, 0xb0, 0xb0, 0x0b}
	change(t, l.B, func(veth netlink.Link) error {
		return netlink.LinkSetHardwareAddr(veth, net.HardwareAddr(moved[:]))
	})
	makeStale(t, l.A, l.B.IPv4)
	if n, err = a.Refresh(l.A.Ifindex, l.B.IPv4); err != nil || n.State != NeighStale {
		t.Fatalf("refresh of a stale entry: %+v, %v", n, err)
	}
	// The kernel asks the old address, gives up, and asks all with the next call.
	waitFor(t, m, func(e Event) bool {
		if e.Kind != NeighChanged || e.Neighbour.Addr != l.B.IPv4 {
			return false
		}
		if e.Neighbour.State == NeighFailed {
			if _, err := a.Refresh(l.A.Ifindex, l.B.IPv4); err != nil {
				t.Error(err)
			}
		}
		return e.Neighbour.State.Known() && e.Neighbour.MAC == moved
	})
}

// makeStale marks an entry as not confirmed for long.
func makeStale(t *testing.T, n *nettest.Namespace, dst netip.Addr) {
	t.Helper()
	change(t, n, func(veth netlink.Link) error {
		neigh := netlink.Neigh{
			LinkIndex: veth.Attrs().Index, IP: dst.AsSlice(), State: netlink.NUD_STALE,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0xee},
		}
		return netlink.NeighSet(&neigh)
	})
}

// A stale entry answers at once, and is confirmed in the background.
func TestResolveStale(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	hurry(t, l.A)
	a := openIn(t, l.A)
	m := monitorIn(t, l.A)
	makeStale(t, l.A, l.B.IPv4)
	mac, err := a.Resolve(t.Context(), l.A.Ifindex, l.B.IPv4)
	if want := (wire.MAC{2, 0, 0, 0, 0, 0xee}); err != nil || mac != want {
		t.Fatalf("got %v, %v, want the stale %v", mac, err, want)
	}
	waitFor(t, m, func(e Event) bool {
		return e.Kind == NeighChanged && e.Neighbour.Addr == l.B.IPv4 &&
			e.Neighbour.State&(NeighProbe|NeighFailed) != 0
	})
}

func TestNeighStateString(t *testing.T) {
	for s, want := range map[NeighState]string{
		0: "none", NeighReachable: "reachable", NeighFailed: "failed",
		unix.NUD_STALE | unix.NUD_PROBE: "state 0x14",
	} {
		if got := s.String(); got != want {
			t.Errorf("state %#x is %q, want %q", uint16(s), got, want)
		}
	}
}
