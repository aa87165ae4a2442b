package serve

import (
	"log/slog"
	"net/netip"
	"testing"
)

// A connection that ends gives back what it took, once.
func TestAdmitGivesBack(t *testing.T) {
	h := &host{limits: newLimiter(Limits{QPs: 2, Memory: 100, PerPeer: 1}), log: slog.New(slog.DiscardHandler)}
	peer := netip.MustParseAddr("192.0.2.1")
	for range 3 {
		free, err := h.admit(peer, 2, 100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.admit(peer, 1, 1); err == nil {
			t.Fatal("the second connection is admitted beyond the limits")
		}
		free()
		if u := h.limits.usage(); u.QPs != 0 || u.Memory != 0 {
			t.Fatalf("still taken: %+v", u)
		}
	}
}
