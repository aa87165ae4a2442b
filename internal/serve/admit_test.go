package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"
)

// A connection that ends gives back what it took, once.
func TestAdmitGivesBack(t *testing.T) {
	h := &host{limits: newLimiter(Limits{QPs: 2, Memory: 100, PerPeer: 1}), log: slog.New(slog.DiscardHandler)}
	peer := netip.MustParseAddr("192.0.2.1")
	for range 3 {
		free, err := h.admit(t.Context(), peer, 2, 100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.admit(t.Context(), peer, 1, 1); err == nil {
			t.Fatal("the second connection is admitted beyond the limits")
		}
		free()
		if u := h.limits.usage(); u.QPs != 0 || u.Memory != 0 {
			t.Fatalf("still taken: %+v", u)
		}
	}
}

// halfOpen is a connection that ends as soon as it is pushed out.
type halfOpen struct {
	ctx context.Context
	*permit
}

func halfOpenOf(t *testing.T, l *limiter, peer netip.Addr) (*halfOpen, error) {
	ctx, push := context.WithCancelCause(t.Context())
	p, err := l.admit(t.Context(), peer, 1, 10, push)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, p.free)
	return &halfOpen{ctx, p}, nil
}

func (h *halfOpen) pushed() bool { return errors.Is(context.Cause(h.ctx), errPushed) }

// TestHalfOpenMakesRoom: where a limit is reached the oldest connection that is not confirmed makes
// room, after its grace; those that are confirmed never do.
func TestHalfOpenMakesRoom(t *testing.T) {
	const n = 4
	for what, limits := range map[string]Limits{
		"qps":    {QPs: n, Memory: 1000, PerPeer: 2},
		"memory": {QPs: 1000, Memory: 10*n + 9, PerPeer: 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := newLimiter(limits)
			peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
			open := func(i int) *halfOpen {
				t.Helper()
				h, err := halfOpenOf(t, l, peer(i))
				if err != nil {
					t.Fatal(err)
				}
				return h
			}
			old, kept := open(1), open(2)
			rest := []*halfOpen{open(3), open(4)}
			kept.confirmed()
			next := open(5)
			if age := time.Since(old.since); !old.pushed() || age < halfOpenGrace {
				t.Errorf("the oldest was pushed out: %v, after %v", old.pushed(), age)
			}
			if kept.pushed() || rest[0].pushed() || rest[1].pushed() {
				t.Error("another one was pushed out")
			}
			for _, h := range append(rest, next) {
				h.confirmed()
			}
			if _, err := halfOpenOf(t, l, peer(6)); err == nil {
				t.Error("one more than the limit, all of them confirmed")
			}
			rest[0].free()
			if _, err := l.admit(t.Context(), peer(7), n, 10*n, nil); err == nil {
				t.Error("more than can become free")
			}
			if u := l.usage(); u.QPs != n-1 || u.Pushed != 1 {
				t.Errorf("%+v", u)
			}
		})
	}
}

// TestHalfOpenOfOnePeer: requests that bear a peer's address keep it out for the grace only, and
// nobody waits for that.
func TestHalfOpenOfOnePeer(t *testing.T) {
	l := newLimiter(Limits{QPs: 100, Memory: 1000, PerPeer: 2})
	peer := netip.MustParseAddr("192.0.2.1")
	var all []*halfOpen
	for range 2 {
		h, err := halfOpenOf(t, l, peer)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	if _, err := halfOpenOf(t, l, peer); err == nil && time.Since(all[0].since) < halfOpenGrace {
		t.Error("one more within the grace")
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := halfOpenOf(t, l, peer); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the peer does not get in")
		}
	}
	if !all[0].pushed() || all[1].pushed() {
		t.Errorf("pushed out: %v %v, want the oldest", all[0].pushed(), all[1].pushed())
	}
}
