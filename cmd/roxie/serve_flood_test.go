package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// keepUp sends requests at a rate, as far as the machine lets it, until ctx ends.
func (a *attacker) keepUp(ctx context.Context, rate int, request func(i int) (netip.Addr, uint16)) error {
	first := a.sent
	for began := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		due := int(time.Since(began).Seconds() * float64(rate))
		for range min(due-(a.sent-first), 100) { // what a busy machine has missed does not come at once
			if err := a.request(request(a.sent)); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestServeFlood: requests that bear many addresses keep no peer out. Those of the own network that
// nobody has must not take the places of others while the kernel finds out, for three seconds each.
// Those behind a gateway can be answered, more of them than there are address handles for: the peer
// comes when they have taken all there is several times, and still come as fast as a busy machine
// carries them out.
func TestServeFlood(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for _, f := range []struct {
		name        string
		rate, later int // per second
		from        func(i int) (netip.Addr, uint16)
	}{
		{"nobodies", 1000, 1000, func(i int) (netip.Addr, uint16) {
			return netip.AddrFrom4([4]byte{10, 77, 0, byte(3 + i%250)}), 7175
		}},
		{"gateway", 3000, 100, func(i int) (netip.Addr, uint16) {
			return netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 7175
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			l := nettest.New(t, nettest.Config{})
			ip(t, l.A, "route", "add", "10.99.0.0/16", "via", l.B.IPv4.String())
			endpoint(t, l.A, "interfaces: [{name: veth0}]\nservices: {echo: {size: 4KiB}}\n"+
				"limits: {qps: 64}\n")
			c, a := newClient(t, l.B), newAttacker(t, l)
			full, stop := context.WithTimeout(t.Context(), 2*time.Second)
			defer stop()
			if err := a.keepUp(full, f.rate, f.from); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- a.keepUp(ctx, f.later, f.from) }()
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
		})
	}
}
