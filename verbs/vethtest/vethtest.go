// Package vethtest is a network of the kernel for tests of programs that use package verbs: two fresh
// network namespaces joined by a veth pair, with a device on each end, all taken down with the test. It
// takes root, or the test skips. Package verbstest has a network in memory, which takes none and can
// lose and damage frames: most tests belong there, and a few here.
//
//	┌──── host 0 ────┐        ┌──── host 1 ────┐
//	│ 10.77.0.1/24   │  veth  │ 10.77.0.2/24   │
//	│ fd77::1/64     │════════│ fd77::2/64     │
//	└────────────────┘        └────────────────┘
package vethtest

import (
	"net/netip"
	"testing"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/verbs"
)

// Config says what to build. The zero value of each field takes the default named.
type Config struct {
	MTU    int // link MTU, 68 to 65535 (0: 9000); below 1280 there is no IPv6
	Queues int // receive and transmit queues of each end, 1 to 4096 (0: 1)
}

// Network is the two hosts. Its methods take 0 or 1 for the host, and may be called from several
// goroutines.
type Network struct {
	t    testing.TB
	host [2]*lab.Namespace
}

// New builds a network that goes with the test. Without root it skips the test.
func New(t testing.TB, c Config) *Network {
	t.Helper()
	l := nettest.New(t, nettest.Config{MTU: c.MTU, Queues: c.Queues})
	return &Network{t: t, host: [2]*lab.Namespace{l.A, l.B}}
}

// Interface is the name of a host's interface.
func (n *Network) Interface(i int) string { return n.host[i].Interface }

// Addr is a host's IPv4 address.
func (n *Network) Addr(i int) netip.Addr { return n.host[i].IPv4 }

// Addr6 is a host's IPv6 address, which is not valid where the MTU is too small for it.
func (n *Network) Addr6(i int) netip.Addr { return n.host[i].IPv6 }

// Open opens the device on a host's interface, and closes it with the test, which fails if that does
// not work. cfg may be nil.
func (n *Network) Open(i int, cfg *verbs.Config) *verbs.Context {
	n.t.Helper()
	var device *verbs.Context
	err := n.host[i].DoErr(func() (err error) {
		device, err = verbs.Open(n.host[i].Interface, cfg)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = device.Close() })
	return device
}

// Do runs f on a host, on a thread of its own: sockets and devices opened in f stay there. Goroutines
// that f starts are not on the host.
func (n *Network) Do(i int, f func()) { n.host[i].Do(f) }
