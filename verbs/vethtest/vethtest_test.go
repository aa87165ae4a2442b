package vethtest_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
	"github.com/roxie-rdma/roxie/verbs/vethtest"
)

// manage opens a manager that is closed with the test, before its device.
func manage(t *testing.T, d *verbs.Context) *cm.Manager {
	t.Helper()
	m, err := cm.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// TestStream: a stream carries what is written to it over a real pair of interfaces.
func TestStream(t *testing.T) {
	n := vethtest.New(t, vethtest.Config{MTU: 1500})
	server, client := manage(t, n.Open(0, nil)), manage(t, n.Open(1, nil))

	listener, err := server.ListenStream(7000, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // the server sends back what it gets
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var b [4]byte
		if _, err := c.Read(b[:]); err == nil {
			_, _ = c.Write(b[:])
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.DialStream(ctx, netip.AddrPortFrom(n.Addr(0), 7000), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := binary.Write(c, binary.BigEndian, uint32(4711)); err != nil {
		t.Fatal(err)
	}
	var got uint32
	if err := binary.Read(c, binary.BigEndian, &got); err != nil || got != 4711 {
		t.Errorf("got %d, %v", got, err)
	}
}

// TestHosts: what the network says of its hosts is so, and they are not the test's own.
func TestHosts(t *testing.T) {
	n := vethtest.New(t, vethtest.Config{MTU: 2000, Queues: 2})
	for i := range 2 {
		n.Do(i, func() {
			itf, err := net.InterfaceByName(n.Interface(i))
			if err != nil || itf.MTU != 2000 {
				t.Fatalf("host %d: %v, %v", i, itf, err)
			}
			addrs, _ := itf.Addrs()
			has := map[string]bool{}
			for _, a := range addrs {
				has[netip.MustParsePrefix(a.String()).Addr().String()] = true
			}
			if !has[n.Addr(i).String()] || !has[n.Addr6(i).String()] {
				t.Errorf("host %d has %v, not %v and %v", i, addrs, n.Addr(i), n.Addr6(i))
			}
		})
		d := n.Open(i, &verbs.Config{Queues: 2})
		if d.Device().Shards != 2 {
			t.Errorf("%d queues", d.Device().Shards)
		}
	}
}
