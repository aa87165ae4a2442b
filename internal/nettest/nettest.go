// Package nettest gives tests a network of their own: two fresh network namespaces joined by a veth
// pair, taken down with the test. It wraps [lab] for testing.
package nettest

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// Config says what to build.
type Config = lab.Config

// Lab is two namespaces, A and B.
type Lab = lab.Lab

// Namespace is one of them.
type Namespace = lab.Namespace

// sweep takes down what earlier runs left that were killed.
var sweep = sync.OnceValue(func() error {
	stale, err := lab.Stale()
	for _, name := range stale {
		// Another test binary may sweep at the same time.
		if rmErr := lab.Remove(name); !errors.Is(rmErr, os.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
})

// New builds a lab that goes with the test. Without the right to do so it skips the test.
func New(t testing.TB, cfg Config) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if err := sweep(); err != nil {
		t.Logf("sweep stale labs: %v", err)
	}
	l, err := lab.New(cfg)
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("no right to make network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("take lab %s down: %v", l.Name, err)
		}
	})
	return l
}

// OnLink does something to a namespace's end of the veth pair, within it.
func OnLink(t testing.TB, n *Namespace, f func(netlink.Link) error) {
	t.Helper()
	if err := n.DoErr(func() error {
		l, err := netlink.LinkByIndex(n.Ifindex)
		if err != nil {
			return err
		}
		return f(l)
	}); err != nil {
		t.Fatal(err)
	}
}
