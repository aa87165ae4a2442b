package netdev

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// wantError checks an error that must wrap target and say text.
func wantError(t *testing.T, err, target error, text string) {
	t.Helper()
	if !errors.Is(err, target) || !strings.Contains(err.Error(), text) {
		t.Errorf("error is %q, want one that wraps %q and says %q", err, target, text)
	}
}

var none netip.Addr

func addr(s string) netip.Addr {
	if s == "" {
		return none
	}
	return netip.MustParseAddr(s)
}

func TestRoute(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	addAddr(t, l.A, "10.77.0.5/24")
	for _, r := range []struct{ dst, via string }{
		{"192.0.2.0/24", "10.77.0.2"},
		{"2001:db8:9::/48", "fd77::2"},
	} {
		_, dst, err := net.ParseCIDR(r.dst)
		if err != nil {
			t.Fatal(err)
		}
		change(t, l.A, func(veth netlink.Link) error {
			return netlink.RouteAdd(&netlink.Route{
				LinkIndex: veth.Attrs().Index, Dst: dst, Gw: net.ParseIP(r.via), MTU: 1400,
			})
		})
	}
	a := openIn(t, l.A)
	veth := l.A.Ifindex
	linkLocal := peerLinkLocal(t, l.B)
	ownLinkLocal := peerLinkLocal(t, l.A)
	for _, tt := range []struct {
		name  string
		index int
		src   string
		dst   string
		want  Route
	}{
		{"on the link", 0, "", "10.77.0.2",
			Route{veth, addr("10.77.0.1"), addr("10.77.0.2"), false, 0}},
		{"through the interface", veth, "", "10.77.0.2",
			Route{veth, addr("10.77.0.1"), addr("10.77.0.2"), false, 0}},
		{"from a given source", veth, "10.77.0.5", "10.77.0.2",
			Route{veth, addr("10.77.0.5"), addr("10.77.0.2"), false, 0}},
		{"mapped", veth, "::ffff:10.77.0.5", "::ffff:10.77.0.2",
			Route{veth, addr("10.77.0.5"), addr("10.77.0.2"), false, 0}},
		{"gateway", veth, "", "192.0.2.7",
			Route{veth, addr("10.77.0.1"), addr("10.77.0.2"), false, 1400}},
		{"IPv6", veth, "", "fd77::2", Route{veth, addr("fd77::1"), addr("fd77::2"), false, 0}},
		{"IPv6 gateway", 0, "", "2001:db8:9::1",
			Route{veth, addr("fd77::1"), addr("fd77::2"), false, 1400}},
		{"link-local", veth, "", linkLocal.String(),
			Route{veth, ownLinkLocal, linkLocal, false, 0}},
		{"own address", veth, "", "10.77.0.1",
			Route{veth, addr("10.77.0.1"), addr("10.77.0.1"), true, 0}},
		{"own IPv6 address", veth, "", "fd77::1",
			Route{veth, addr("fd77::1"), addr("fd77::1"), true, 0}},
		{"group", veth, "", "224.0.0.77",
			Route{veth, addr("10.77.0.1"), addr("224.0.0.77"), false, 0}},
		{"IPv6 group", veth, "", "ff02::77", Route{veth, ownLinkLocal, addr("ff02::77"), false, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := a.Route(tt.index, addr(tt.src), addr(tt.dst))
			if tt.want.Local {
				got.MTU = 0 // the loopback device's, of no interest
			}
			if err != nil || got != tt.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

// peerLinkLocal returns the link-local address of a namespace's interface.
func peerLinkLocal(t *testing.T, n *nettest.Namespace) netip.Addr {
	t.Helper()
	addrs, err := openIn(t, n).Addrs(n.Ifindex)
	if err != nil || len(addrs) == 0 || !addrs[0].Addr().IsLinkLocalUnicast() {
		t.Fatalf("link-local address of %s: %v, %v", n.Name, addrs, err)
	}
	return addrs[0].Addr()
}

func TestNoRoute(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	change(t, l.A, func(netlink.Link) error {
		_, dst, err := net.ParseCIDR("198.51.100.0/24")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: dst, Type: 7 /* RTN_UNREACHABLE */})
	})
	a := openIn(t, l.A)
	veth := l.A.Ifindex
	for _, tt := range []struct {
		name  string
		index int
		src   string
		dst   string
		text  string
	}{
		{"nothing leads there", 0, "", "192.0.2.1", "no route to 192.0.2.1: give the interface"},
		{"not through the interface", veth, "", "192.0.2.1", "no route to 192.0.2.1 through veth0"},
		{"IPv6", veth, "", "2001:db8::1", "no route to 2001:db8::1 through veth0"},
		{"unreachable", 0, "", "198.51.100.1", "no route to 198.51.100.1"},
		{"foreign source", veth, "192.0.2.9", "10.77.0.2", "no route to 10.77.0.2 from 192.0.2.9"},
		{"mixed families", veth, "10.77.0.1", "fd77::2", "one is IPv4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := a.Route(tt.index, addr(tt.src), addr(tt.dst))
			wantError(t, err, ErrNoRoute, tt.text)
		})
	}
	if _, err := a.Route(veth, none, none); err == nil {
		t.Error("a route to nowhere")
	}
}
