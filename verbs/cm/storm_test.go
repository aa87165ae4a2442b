package cm

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// storm is a program of many goroutines that begins connections and lets go of them anywhere.
type storm struct {
	t     *testing.T
	a, b  *host
	to    netip.AddrPort
	mu    sync.Mutex
	rng   *rand.Rand
	seen  [EventTimewaitExit + 1]int
	peers sync.WaitGroup
}

func (s *storm) chance(p float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Float64() < p
}

func (s *storm) note(ev *Event) {
	s.mu.Lock()
	s.seen[ev.Type]++
	s.mu.Unlock()
}

func (s *storm) attach(h *host, id *ID) bool {
	cq, err := h.ctx.CreateCQ(8)
	if err != nil {
		s.t.Error(err)
		return false
	}
	_, err = id.CreateQP(h.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2}})
	if err != nil && !errors.Is(err, verbs.ErrInvalid) { // ended meanwhile
		s.t.Error(err)
	}
	return err == nil
}

func (s *storm) destroy(id *ID) {
	if err := id.Destroy(); err != nil {
		s.t.Error(err)
	}
}

// client makes one connection, as far as it gets, on a channel of its own.
func (s *storm) client(chans [2]*EventChannel) {
	ch := chans[0]
	id, err := ch.CreateID(rcm.PortSpaceTCP, nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer s.destroy(id)
	step := func(f func() error, want ...EventType) bool {
		if err := f(); err != nil {
			s.t.Error(err)
			return false
		}
		if s.chance(0.1) {
			return false // Destroy, with an event to come
		}
		if s.chance(0.3) {
			if ch = chans[0]; id.Channel() == ch {
				ch = chans[1]
			}
			if err := id.Migrate(ch); err != nil {
				s.t.Error(err)
			}
		}
		ev, err := ch.Get(within(s.t))
		if err != nil {
			s.t.Error(err)
			return false
		}
		defer ev.Ack()
		s.note(ev)
		for _, w := range want {
			if ev.Type == w {
				return true
			}
		}
		return false
	}
	if !step(func() error { return id.ResolveAddr(s.to, resolveTime) }, EventAddrResolved) ||
		!step(func() error { return id.ResolveRoute(resolveTime) }, EventRouteResolved) ||
		!s.attach(s.a, id) ||
		!step(func() error { return id.Connect(nil) }, EventEstablished) {
		return
	}
	if s.chance(0.5) {
		step(id.Disconnect, EventDisconnected)
	}
}

// server answers requests, each in a goroutine, and forgets them when their peers have gone.
func (s *storm) server(ctx context.Context, l *ID) {
	ch := l.Channel()
	for {
		ev, err := ch.Get(ctx)
		if err != nil {
			return
		}
		s.note(ev)
		id, typ := ev.ID, ev.Type
		ev.Ack()
		switch typ {
		case EventConnectRequest:
			s.peers.Go(func() {
				switch {
				case s.chance(0.1):
					_ = id.Reject(nil) // may have been rejected by its peer
					s.destroy(id)
				case s.chance(0.1) || !s.attach(s.b, id) || id.Accept(nil) != nil:
					s.destroy(id)
				}
			})
		case EventRejected, EventUnreachable, EventConnectError, EventDisconnected:
			s.peers.Go(func() { s.destroy(id) })
		}
	}
}

// TestIDStorm: connections begin and end at any point, from many goroutines, with migrations
// between; nothing of them is left.
func TestIDStorm(t *testing.T) {
	cfg := quick
	cfg.PacketLife, cfg.RetryFirst = 5, 20*time.Millisecond
	a, b := hosts(t, &Config{Machine: cfg})
	s := &storm{t: t, a: a, b: b, rng: rand.New(rand.NewPCG(1, 2))}
	cb, err := b.m.CreateEventChannel()
	b.must(err)
	l, err := cb.CreateID(rcm.PortSpaceTCP, nil)
	b.must(err)
	b.must(l.Bind(netip.AddrPortFrom(b.ip4, 0)))
	b.must(l.Listen(0))
	s.to = l.LocalAddr()
	ctx, cancel := context.WithCancel(context.Background())
	var served, clients sync.WaitGroup
	served.Go(func() { s.server(ctx, l) })
	for range 6 {
		chans := [2]*EventChannel{a.channel(), a.channel()}
		clients.Go(func() {
			for range 25 {
				s.client(chans)
			}
		})
	}
	clients.Wait()
	// The server hears of the end of each, and lets go of it.
	until(t, func() bool { return b.m.count().ids == 1 })
	cancel()
	served.Wait()
	s.peers.Wait()
	b.must(l.Destroy())
	b.must(cb.Close())
	for _, h := range []*host{a, b} {
		until(t, func() bool { return h.m.count() == tally{} })
	}
	t.Log(s.seen)
	for _, typ := range []EventType{EventConnectRequest, EventEstablished, EventDisconnected,
		EventRejected} {
		if s.seen[typ] == 0 {
			t.Errorf("no %v", typ)
		}
	}
}

// tally is what a manager has.
type tally struct{ ids, conns, listeners, ports, holders, machine, half int }

func (m *Manager) count() tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := tally{ids: len(m.ids), conns: len(m.conns), listeners: len(m.listeners), ports: len(m.ports),
		machine: m.machine.Len(), half: m.machine.HalfOpen()}
	for _, p := range m.routes {
		x.holders += p.users
	}
	return x
}
