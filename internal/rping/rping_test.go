package rping

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// open opens the device in a namespace, with a manager.
func open(t *testing.T, n *nettest.Namespace) (*verbs.Context, *cm.Manager) {
	t.Helper()
	var dev *verbs.Context
	var err error
	n.Do(func() { dev, err = verbs.Open(n.Interface, nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	m, err := cm.New(dev, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return dev, m
}

// TestPing: client and server over a real veth, both families, data compared, the server's end seen.
func TestPing(t *testing.T) {
	lab := nettest.New(t, nettest.Config{})
	da, ma := open(t, lab.A)
	db, mb := open(t, lab.B)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, addr := range []netip.Addr{lab.B.IPv4, lab.B.IPv6} {
		var out bytes.Buffer
		served := make(chan error, 1)
		ready := make(chan struct{})
		go func() {
			served <- Server(ctx, db, mb, Config{Addr: netip.AddrPortFrom(addr, 0), Listening: func() { close(ready) }})
		}()
		<-ready
		cfg := Config{Addr: netip.AddrPortFrom(addr, 0), Size: 5000, Count: 50, Validate: true, Verbose: true, Out: &out}
		r, err := Client(ctx, da, ma, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Rounds != 50 || r.Bytes != 50*5000 || strings.Count(out.String(), "ping data: rdma-ping-") != 50 {
			t.Fatalf("%+v, %d lines", r, strings.Count(out.String(), "\n"))
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
	}
}

// TestPersistent: several clients of one server at once.
func TestPersistent(t *testing.T) {
	lab := nettest.New(t, nettest.Config{})
	da, ma := open(t, lab.A)
	db, mb := open(t, lab.B)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		served <- Server(serving, db, mb, Config{Persistent: true, Listening: func() { close(ready) }})
	}()
	<-ready
	done := make(chan error, 5)
	for range 5 {
		go func() {
			_, err := Client(ctx, da, ma, Config{Addr: netip.AddrPortFrom(lab.B.IPv4, 0), Count: 20, Validate: true})
			done <- err
		}()
	}
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestNobody: no server is a clear error.
func TestNobody(t *testing.T) {
	lab := nettest.New(t, nettest.Config{})
	da, ma := open(t, lab.A)
	open(t, lab.B)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := Client(ctx, da, ma, Config{Addr: netip.AddrPortFrom(lab.B.IPv4, 0), Count: 1})
	if err == nil || !strings.Contains(err.Error(), "rejected") {
		t.Fatalf("got %v", err)
	}
}
