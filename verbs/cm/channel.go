package cm

import (
	"context"
	"fmt"
	"sync"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// EventType says what an Event is about, with librdmacm's numbers (enum rdma_cm_event_type).
type EventType uint8

// The events. Two never come: EventConnectResponse, since an ID connects its QP itself, and
// EventAddrChange: an address that goes away ends no connection.
const (
	EventAddrResolved EventType = iota
	EventAddrError
	EventRouteResolved
	EventRouteError
	EventConnectRequest
	EventConnectResponse
	EventConnectError
	EventUnreachable
	EventRejected
	EventEstablished
	EventDisconnected
	EventDeviceRemoval
	EventMulticastJoin
	EventMulticastError
	EventAddrChange
	EventTimewaitExit
)

var eventNames = [...]string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST",
	"CONNECT_RESPONSE",
	"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL",
	"MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
}

// String is the text of rdma_event_str without its prefix.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EventType(%d)", uint8(t))
}

// Event is something that has happened to an ID (struct rdma_cm_event). Whoever gets one from the
// channel calls Ack when done with it, once.
type Event struct {
	Type EventType
	ID   *ID // EventConnectRequest: a new one, for the connection that is asked for
	// Listen is the listening ID of an EventConnectRequest.
	Listen *ID
	// Err is why, for the events that tell of a failure: *RejectError, ErrUnreachable, ErrNoAddress,
	// and what kept a QP from being connected.
	Err error
	// Private is what the peer has sent along, zero-filled to its field's length.
	Private []byte
	// Remote is the peer's half of a connection, of an EventConnectRequest. Its ResponderResources and
	// InitiatorDepth bound those of Accept.
	Remote rcm.Param
	// Service is where datagrams go to: EventEstablished of a datagram service, whose own it is to
	// destroy its AH; EventMulticastJoin, where LeaveMulticast does that.
	Service *Service

	home  *ID // whose Destroy waits for Ack
	acked bool
}

// Ack gives the event back (rdma_ack_cm_event). ID.Destroy waits for the events of its ID that have
// been taken from the channel. A second call does nothing.
func (e *Event) Ack() {
	ch := e.home.channel
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if e.acked {
		return
	}
	e.acked = true
	e.home.unacked--
	ch.acked.Broadcast()
}

// EventChannel is where events of its IDs arrive (struct rdma_event_channel). Its methods may be
// called from several goroutines.
type EventChannel struct {
	m *Manager

	mu     sync.Mutex // after Manager.mu
	acked  *sync.Cond
	queue  []*Event
	ready  chan struct{} // holds a token while queue is not empty
	closed chan struct{}
	ids    map[*ID]struct{}
}

// CreateEventChannel opens a channel (rdma_create_event_channel).
func (m *Manager) CreateEventChannel() (*EventChannel, error) {
	ch := &EventChannel{m: m, ready: make(chan struct{}, 1), closed: make(chan struct{}),
		ids: map[*ID]struct{}{}}
	ch.acked = sync.NewCond(&ch.mu)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	return ch, nil
}

// Get waits for the next event (rdma_get_cm_event). Errors: ErrClosed, ctx's.
func (ch *EventChannel) Get(ctx context.Context) (*Event, error) {
	for {
		ch.mu.Lock()
		if len(ch.queue) > 0 {
			ev := ch.queue[0]
			ch.queue = ch.queue[1:]
			ev.home.unacked++
			if len(ch.queue) > 0 {
				signal(ch.ready)
			}
			ch.mu.Unlock()
			return ev, nil
		}
		ch.mu.Unlock()
		select {
		case <-ch.ready:
		case <-ch.closed:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Ready holds a token while events wait, for use in a select beside other channels; Get takes them.
func (ch *EventChannel) Ready() <-chan struct{} { return ch.ready }

// Close ends the channel (rdma_destroy_event_channel). It fails with verbs.ErrBusy while an ID uses
// it. A second call does nothing.
func (ch *EventChannel) Close() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if n := len(ch.ids); n > 0 {
		return fmt.Errorf("close event channel: %d ids use it: %w", n, verbs.ErrBusy)
	}
	select {
	case <-ch.closed:
	default:
		close(ch.closed)
	}
	return nil
}

// put queues an event for an ID that lives.
func (ch *EventChannel) put(home *ID, ev *Event) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if _, lives := ch.ids[home]; !lives {
		return
	}
	ev.home = home
	ch.queue = append(ch.queue, ev)
	signal(ch.ready)
}

// forget takes an ID out, with the events that nobody has taken, and waits until the others are
// acked. It returns the new IDs of requests among those events.
func (ch *EventChannel) forget(id *ID) (orphans []*ID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.ids, id)
	kept := ch.queue[:0]
	for _, ev := range ch.queue {
		switch {
		case ev.home != id:
			kept = append(kept, ev)
		case ev.Type == EventConnectRequest:
			orphans = append(orphans, ev.ID)
		case ev.Service != nil && ev.Type == EventEstablished:
			_ = ev.Service.AH.Destroy()
		}
	}
	clear(ch.queue[len(kept):])
	ch.queue = kept
	for id.unacked > 0 {
		ch.acked.Wait()
	}
	return orphans
}

// signal puts a token in a channel of one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
