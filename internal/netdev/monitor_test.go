package netdev

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

func monitorIn(t *testing.T, n *nettest.Namespace) *Monitor {
	t.Helper()
	var m *Monitor
	if err := n.DoErr(func() (err error) { m, err = NewMonitor(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// waitFor takes events until one is wanted, and returns it.
func waitFor(t *testing.T, m *Monitor, wanted func(Event) bool) Event {
	t.Helper()
	var seen []Event
	timeout := time.After(10 * time.Second)
	for {
		select {
		case e, ok := <-m.Events():
			if !ok {
				t.Fatal("the monitor ended")
			}
			if wanted(e) {
				return e
			}
			seen = append(seen[max(0, len(seen)-20):], e)
		case <-timeout:
			t.Fatalf("no such event within 10 s; the last were %+v", seen)
		}
	}
}

func TestMonitor(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	m := monitorIn(t, l.A)
	veth := l.A.Ifindex
	added, added6 := netip.MustParsePrefix("10.5.0.1/24"), netip.MustParsePrefix("fd05::1/64")
	mac := wire.MAC{2, 0, 0, 0, 0, 7}
	// neigh enters a neighbour that is known without asking.
	neigh := func(l netlink.Link) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: net.IPv4(10, 77, 0, 7), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr(mac[:]),
		}
	}
	for _, step := range []struct {
		name string
		do   func()
		want func(Event) bool
	}{
		{"MTU", func() {
			change(t, l.A, func(v netlink.Link) error { return netlink.LinkSetMTU(v, 4200) })
		}, func(e Event) bool {
			return e.Kind == LinkChanged && e.Link.MTU == 4200 && e.Link.Running && e.Link.Name == "veth0"
		}},
		{"address", func() { addAddr(t, l.A, added.String()) },
			func(e Event) bool { return e.Kind == AddrAdded && e.Addr == added }},
		{"IPv6 address", func() { addAddr(t, l.A, added6.String()) },
			func(e Event) bool { return e.Kind == AddrAdded && e.Addr == added6 }},
		{"address gone", func() { delAddr(t, l.A, added.String()) },
			func(e Event) bool { return e.Kind == AddrGone && e.Addr == added }},
		{"IPv6 address gone", func() { delAddr(t, l.A, added6.String()) },
			func(e Event) bool { return e.Kind == AddrGone && e.Addr == added6 }},
		{"neighbour", func() {
			change(t, l.A, func(v netlink.Link) error { return netlink.NeighSet(neigh(v)) })
		}, func(e Event) bool {
			want := Neighbour{Index: veth, Addr: addr("10.77.0.7"), MAC: mac, State: NeighPermanent}
			return e.Kind == NeighChanged && e.Neighbour == want
		}},
		{"neighbour gone", func() {
			change(t, l.A, func(v netlink.Link) error { return netlink.NeighDel(neigh(v)) })
		}, func(e Event) bool {
			// The kernel announces the entry as failed, then that it is gone.
			return (e.Kind == NeighGone || e.Neighbour.State == NeighFailed) &&
				e.Neighbour.Addr == addr("10.77.0.7")
		}},
		{"route", func() {
			change(t, l.A, func(v netlink.Link) error {
				_, dst, err := net.ParseCIDR("192.0.2.0/24")
				if err != nil {
					return err
				}
				return netlink.RouteAdd(&netlink.Route{LinkIndex: v.Attrs().Index, Dst: dst})
			})
			// What follows has an interface; the route is the first event without one.
		}, func(e Event) bool { return e.Kind == RouteChanged && e.Index == 0 }},
		{"carrier lost", func() { change(t, l.B, netlink.LinkSetDown) },
			func(e Event) bool { return e.Kind == LinkChanged && e.Link.Up && !e.Link.Running }},
		{"carrier back", func() { change(t, l.B, netlink.LinkSetUp) },
			func(e Event) bool { return e.Kind == LinkChanged && e.Link.Running }},
		{"down", func() { change(t, l.A, netlink.LinkSetDown) },
			func(e Event) bool { return e.Kind == LinkChanged && !e.Link.Up }},
		{"deleted", func() { change(t, l.B, netlink.LinkDel) },
			func(e Event) bool { return e.Kind == LinkGone && e.Link.Name == "veth0" }},
	} {
		step.do()
		e := waitFor(t, m, step.want)
		if e.Kind != RouteChanged && e.Index != veth {
			t.Errorf("%s: event of interface %d, want %d", step.name, e.Index, veth)
		}
	}
}

func TestMonitorOverrun(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	m := monitorIn(t, l.A)
	change(t, l.A, func(v netlink.Link) error { // one event each, more than the socket holds
		for i := range 4000 {
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: v.Attrs().Index, IP: net.IPv4(10, 77, 1, 1), State: netlink.NUD_PERMANENT,
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)},
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	waitFor(t, m, func(e Event) bool { return e.Kind == Overrun })
	change(t, l.A, func(v netlink.Link) error { return netlink.LinkSetMTU(v, 1400) })
	waitFor(t, m, func(e Event) bool { return e.Kind == LinkChanged && e.Link.MTU == 1400 })
}

func TestMonitorClose(t *testing.T) {
	m, err := NewMonitor()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	go func() {
		for range m.Events() {
		}
		ended <- true
	}()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
