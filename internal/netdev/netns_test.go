package netdev

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// openIn opens a Conn in a namespace. The test uses it from outside.
func openIn(t *testing.T, n *nettest.Namespace) *Conn {
	t.Helper()
	var c *Conn
	if err := n.DoErr(func() (err error) { c, err = Open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// change does something to the interface of a namespace by netlink.
func change(t *testing.T, n *nettest.Namespace, f func(veth netlink.Link) error) {
	t.Helper()
	err := n.DoErr(func() error {
		veth, err := netlink.LinkByName(n.Interface)
		if err != nil {
			return err
		}
		return f(veth)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func addAddr(t *testing.T, n *nettest.Namespace, p string) {
	t.Helper()
	a, err := netlink.ParseAddr(p)
	if err != nil {
		t.Fatal(err)
	}
	change(t, n, func(veth netlink.Link) error { return netlink.AddrAdd(veth, a) })
}

func delAddr(t *testing.T, n *nettest.Namespace, p string) {
	t.Helper()
	a, err := netlink.ParseAddr(p)
	if err != nil {
		t.Fatal(err)
	}
	change(t, n, func(veth netlink.Link) error { return netlink.AddrDel(veth, a) })
}

// sysctl writes a file below /proc/sys/net of a namespace.
func sysctl(t *testing.T, n *nettest.Namespace, name, value string) {
	t.Helper()
	err := n.DoErr(func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func macOf(n *nettest.Namespace) wire.MAC { return wire.MAC(n.MAC) }

func TestConnStaysInItsNamespace(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 4, MTU: 4200})
	a := openIn(t, l.A)
	link, err := a.LinkByName("veth0")
	if err != nil {
		t.Fatal(err)
	}
	want := Link{
		Index: l.A.Ifindex, Name: "veth0", Kind: "veth", MAC: macOf(l.A), MTU: 4200,
		Up: true, Running: true, RXQueues: 4, TXQueues: 4, Driver: "veth",
	}
	if link != want {
		t.Errorf("got  %+v\nwant %+v", link, want)
	}
	byIndex, err := a.LinkByIndex(l.A.Ifindex)
	if err != nil || byIndex != want {
		t.Errorf("by index: %+v, %v", byIndex, err)
	}
	links, err := a.Links()
	if err != nil || len(links) != 2 || links[0].Name != "lo" || links[1] != want {
		t.Errorf("Links() = %+v, %v; want lo and veth0", links, err)
	}

	_, err = a.LinkByName("rdma7")
	wantText := `no such interface "rdma7" in this network namespace: it has lo, veth0`
	wantError(t, err, ErrNoLink, wantText)
	_, err = a.LinkByIndex(4711)
	wantError(t, err, ErrNoLink, "index 4711")
}

func TestLinkState(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := openIn(t, l.A)
	state := func() string {
		link, err := a.LinkByName("veth0")
		if err != nil {
			t.Fatal(err)
		}
		return link.State()
	}
	if got := state(); got != "up" {
		t.Errorf("state is %q, want up", got)
	}
	change(t, l.B, netlink.LinkSetDown)
	if got := state(); got != "without carrier" {
		t.Errorf("with the other end down, state is %q, want without carrier", got)
	}
	change(t, l.A, netlink.LinkSetDown)
	if got := state(); got != "down" {
		t.Errorf("set down, state is %q", got)
	}
}

func TestAddrsInGIDOrder(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a := openIn(t, l.A)
	for _, p := range []string{"fd77::aa/64", "10.9.0.1/16", "10.77.0.9/24", "2001:db8::1/64",
		"10.77.0.9/32"} {
		addAddr(t, l.A, p)
	}
	got, err := a.Addrs(l.A.Ifindex)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 || !got[0].Addr().IsLinkLocalUnicast() {
		t.Fatalf("no link-local address first: %v", got)
	}
	// The kernel lists the /32, a primary address, before the secondary /24.
	want := prefixes("10.77.0.1/24", "10.9.0.1/16", "10.77.0.9/32", "fd77::1/64", "fd77::aa/64",
		"2001:db8::1/64")
	if !slices.Equal(got[1:], want) {
		t.Errorf("got  %v\nwant %v", got[1:], want)
	}
	if gids := GIDs(got); len(gids) != len(got) || gids[1] != gid("10.77.0.1") {
		t.Errorf("GID table is %v", gids)
	}
}

func TestSnapshot(t *testing.T) {
	l := nettest.New(t, nettest.Config{Neighbours: true, MTU: 1500})
	a := openIn(t, l.A)
	s, err := a.Snapshot("veth0")
	if err != nil {
		t.Fatal(err)
	}
	if s.Index != l.A.Ifindex || s.MAC != macOf(l.A) || len(s.Addrs) != 3 || s.PMTU(true) != 1024 {
		t.Errorf("snapshot %+v", s)
	}
	for _, addr := range []netip.Addr{l.B.IPv4, l.B.IPv6} {
		if s.Neighbours[addr] != macOf(l.B) {
			t.Errorf("neighbour %v is %v, want %v", addr, s.Neighbours[addr], macOf(l.B))
		}
	}
	if _, err := a.Snapshot("nosuch"); err == nil {
		t.Error("a snapshot of nothing")
	}
}

func TestCloseTwice(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Links(); err == nil {
		t.Error("a closed connection answers")
	}
	before := openFiles(t)
	for range 20 {
		c, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		m, err := NewMonitor()
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestRaceOfCloseAndUse(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		for {
			if _, err := c.Links(); err != nil {
				done <- err
				return
			}
		}
	}()
	if _, err := c.LinkByName("lo"); err != nil {
		t.Error(err)
	}
	c.Close()
	if err := <-done; err != errClosed {
		t.Errorf("a call after Close ends with %v", err)
	}
}
