package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// nobodies is a flood's source: 250 addresses of the link's own network that no host has.
func nobodies(i int) (netip.Addr, uint16) {
	return netip.AddrFrom4([4]byte{10, 77, 0, byte(3 + i%250)}), 7175
}

// TestServeFlood: 1000 requests a second from addresses of the own network that nobody has keep no
// peer out. The kernel needs three seconds to find out about each address; in that time the requests
// must not take the places of others.
func TestServeFlood(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	endpoint(t, l.A, "interfaces: [{name: veth0}]\nservices: {echo: }\n"+
		"limits: {qps: 64}\n")
	c := newClient(t, l.B)
	a := newAttacker(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for began := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
			for time.Duration(a.sent)*time.Second/1000 < time.Since(began) {
				if err := a.request(nobodies(a.sent)); err != nil {
					done <- err
					return
				}
			}
		}
		done <- nil
	}()
	time.Sleep(time.Second) // the places have been taken several times
	for range 3 {
		began := time.Now()
		if _, err := c.dial("10.77.0.1:7175", nil); err != nil {
			t.Errorf("a peer during the flood: %v", err)
			break
		}
		t.Logf("connected after %v", time.Since(began))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Logf("%d requests", a.sent)
}
