package cm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// TestMigrate: pending events go along in their order, later ones come to the new channel, others
// stay; while an event is out, Migrate waits.
func TestMigrate(t *testing.T) {
	a, b := hosts(t, &Config{Machine: quick})
	old, fresh, cb := a.channel(), a.channel(), b.channel()
	l := b.listening(cb, rcm.PortSpaceTCP, b.ip4)
	id, other := a.id(old, rcm.PortSpaceTCP), a.id(old, rcm.PortSpaceTCP)
	a.must(other.ResolveAddr(l.LocalAddr(), resolveTime))
	until(t, func() bool { return a.m.idState(other) == idAddrResolved })
	a.must(id.ResolveAddr(l.LocalAddr(), resolveTime))
	until(t, func() bool { return a.m.idState(id) == idAddrResolved })
	a.must(id.ResolveRoute(resolveTime))
	a.must(id.Migrate(fresh))
	if id.Channel() != fresh || other.Channel() != old {
		t.Fatal("channels")
	}
	for _, want := range []EventType{EventAddrResolved, EventRouteResolved} {
		if ev := get(t, fresh, want); ev.ID != id {
			t.Fatal("an event of another ID")
		}
	}
	if ev := get(t, old, EventAddrResolved); ev.ID != other {
		t.Fatal("the other ID's event went along")
	}
	a.attach(id, verbs.RC)
	a.must(id.Connect(nil))
	req := get(t, cb, EventConnectRequest)
	b.attach(req.ID, verbs.RC)
	b.must(req.ID.Accept(nil))
	ev, err := fresh.Get(within(t))
	a.must(err)
	if ev.Type != EventEstablished {
		t.Fatal(ev.Type)
	}
	moved := make(chan error, 1)
	go func() { moved <- id.Migrate(old) }()
	select {
	case err := <-moved:
		t.Fatalf("migrated with an event out: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	b.must(req.ID.Destroy()) // EventDisconnected, while Migrate waits
	until(t, func() bool { return a.m.idState(id) == idEnded })
	ev.Ack()
	a.must(<-moved)
	get(t, old, EventDisconnected)
	get(t, old, EventTimewaitExit)
	a.must(id.Migrate(old)) // where it is
	for _, tc := range []struct {
		to   *EventChannel
		want error
	}{{nil, verbs.ErrForeign}, {cb, verbs.ErrForeign}} {
		if err := id.Migrate(tc.to); !errors.Is(err, tc.want) {
			t.Error(err)
		}
	}
	a.must(id.Destroy())
	if err := id.Migrate(fresh); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}

func until(t testing.TB, f func() bool) {
	t.Helper()
	for ctx := within(t); !f(); time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("does not come")
		}
	}
}

// TestMigrateListener: requests that nobody has taken go along, and what happens to them.
func TestMigrateListener(t *testing.T) {
	a, b := hosts(t, &Config{Machine: quick})
	ca, old, fresh := a.channel(), b.channel(), b.channel()
	l := b.listening(old, rcm.PortSpaceTCP, b.ip4)
	ids := make([]*ID, 3)
	for i := range ids {
		ids[i] = a.resolved(ca, l.LocalAddr(), verbs.RC)
		a.must(ids[i].Connect(nil))
		until(t, func() bool { return old.waiting() == i+1 })
	}
	taken, err := l.GetRequest(within(t))
	b.must(err)
	if err := taken.ID.Migrate(fresh); err != nil { // the event is the listener's, and out
		t.Fatal(err)
	}
	taken.Ack()
	b.must(l.Migrate(fresh))
	if n := old.waiting(); n != 0 {
		t.Fatalf("%d events stay", n)
	}
	b.attach(taken.ID, verbs.RC)
	b.must(taken.ID.Accept(nil))
	for range 2 {
		req := get(t, fresh, EventConnectRequest)
		if req.Listen != l || req.ID.Channel() != fresh {
			t.Fatalf("request %+v", req)
		}
		b.must(req.ID.Destroy())
	}
	get(t, fresh, EventEstablished)
	b.must(taken.ID.Destroy())
	b.must(l.Destroy())
	b.must(old.Close())
	b.must(fresh.Close())
}

func (ch *EventChannel) waiting() int {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return len(ch.queue)
}

// TestMigrateLosesNothing: IDs wander to and fro between channels while events come to them; each
// gets all of its own, in order, and both channels are empty at the end.
func TestMigrateLosesNothing(t *testing.T) {
	a, _ := hosts(t, nil)
	chans := []*EventChannel{a.channel(), a.channel()}
	const perID, n = 300, 4
	var ids [n]*ID
	for i := range ids {
		ids[i] = a.id(chans[i%2], rcm.PortSpaceTCP)
		ids[i].Context = new(int)
	}
	ctx, cancel := context.WithCancel(within(t))
	var takers, movers sync.WaitGroup
	var got sync.WaitGroup
	got.Add(perID * n)
	var mu sync.Mutex
	for _, ch := range chans {
		takers.Go(func() {
			for {
				ev, err := ch.Get(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				seen := ev.ID.Context.(*int)
				if *seen++; *seen != int(ev.Remote.QPN) {
					t.Errorf("event %d comes as number %d", ev.Remote.QPN, *seen)
				}
				mu.Unlock()
				ev.Ack()
				got.Done()
			}
		})
	}
	for i, id := range ids {
		movers.Go(func() {
			for j := range perID {
				id.put(&Event{Type: EventAddrChange, ID: id, Remote: rcm.Param{QPN: verbs.QPN(j + 1)}})
			}
		})
		movers.Go(func() {
			for j := range 50 {
				if err := id.Migrate(chans[(i+j)%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	movers.Wait()
	got.Wait()
	cancel()
	takers.Wait()
	for _, ch := range chans {
		if ch.waiting() != 0 {
			t.Error("events are left")
		}
	}
}

// TestGetRequest: requests come in order, whatever else is in the channel, as many as the backlog
// holds; the others when there is room.
func TestGetRequest(t *testing.T) {
	a, b := hosts(t, &Config{Machine: rcm.Config{RetryFirst: 20 * time.Millisecond}})
	ca, cb := a.channel(), b.channel()
	l := b.id(cb, rcm.PortSpaceTCP)
	if _, err := l.GetRequest(within(t)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("of an ID that does not listen: %v", err)
	}
	b.must(l.Bind(netip.AddrPortFrom(b.ip4, 0)))
	b.must(l.Listen(2))
	x := b.id(cb, rcm.PortSpaceTCP)
	b.must(x.ResolveAddr(netip.AddrPortFrom(a.ip4, 1), resolveTime))
	until(t, func() bool { return cb.waiting() == 1 })
	for range 5 {
		id := a.resolved(ca, l.LocalAddr(), verbs.RC)
		a.must(id.Connect(nil))
	}
	until(t, func() bool { return b.m.Stats().Drops[rcm.DropBacklog] > 0 })
	if n := cb.waiting(); n != 3 {
		t.Fatalf("%d events wait", n)
	}
	for range 5 {
		req, err := l.GetRequest(within(t))
		b.must(err)
		if req.Type != EventConnectRequest || req.Listen != l {
			t.Fatalf("%+v", req)
		}
		req.Ack()
		b.must(req.ID.Reject(nil))
		b.must(req.ID.Destroy())
		get(t, ca, EventRejected)
	}
	get(t, cb, EventAddrResolved)
	select {
	case <-cb.Ready():
		t.Error("the token stays when no event waits")
	default:
	}
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := l.GetRequest(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.GetRequest(context.Background())
		ended <- err
	}()
	b.must(l.Destroy())
	if err := <-ended; !errors.Is(err, ErrClosed) && !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}
