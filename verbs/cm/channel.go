package cm

import (
	"context"
	"fmt"
	"slices"
	"sync"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// EventType says what an Event is about, with librdmacm's numbers (enum rdma_cm_event_type).
type EventType uint8

// The events. EventConnectResponse comes to IDs without a QP only: the others connect theirs
// themselves. EventAddrChange is a hint and ends no connection: the own address has gone from the
// interface (Err is ErrNoAddress), or the peer is reached by another way. Upon EventDeviceRemoval,
// the last event of every ID of the device, all that is left is Destroy.
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
	// and what kept a QP from being connected. Of an EventDisconnected it is ErrEnded, and besides
	// ErrUnreachable if the peer has not answered, *RejectError if it has thrown the connection out.
	Err error
	// Status is the same as librdmacm says it: 0, a negative errno, or if the peer has refused the
	// reason of its REJ (rcm.Reason) or the status of its SIDR_REP (rcm.SIDRStatus).
	Status int
	// Private is what the peer has sent along, zero-filled to its field's length.
	Private []byte
	// Remote is the peer's half of a connection, of an EventConnectRequest. Its ResponderResources and
	// InitiatorDepth bound those of Accept.
	Remote rcm.Param
	// Service is where datagrams go to: EventEstablished of a datagram service, whose own it is to
	// destroy its AH; EventMulticastJoin, where LeaveMulticast does that.
	Service *Service

	home  *ID           // whose Destroy waits for Ack
	ch    *EventChannel // where it was taken
	acked bool
}

// Ack gives the event back (rdma_ack_cm_event). ID.Destroy waits for the events of its ID that have
// been taken from the channel. A second call does nothing.
func (e *Event) Ack() {
	ch := e.ch
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
	m      *Manager
	serial uint64 // two channels are locked in this order

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
	if m.over() {
		return nil, ErrClosed
	}
	m.channels++
	ch.serial = m.channels
	return ch, nil
}

// Get waits for the next event (rdma_get_cm_event). Errors: ErrClosed, ctx's.
func (ch *EventChannel) Get(ctx context.Context) (*Event, error) {
	for {
		ch.mu.Lock()
		if len(ch.queue) > 0 {
			ev := ch.takeOut(0)
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

// takeOut takes an event from the queue. ch.mu is held.
func (ch *EventChannel) takeOut(i int) *Event {
	ev := ch.queue[i]
	if i == 0 {
		ch.queue[0] = nil
		ch.queue = ch.queue[1:]
	} else {
		ch.queue = slices.Delete(ch.queue, i, i+1)
	}
	ev.home.unacked++
	ev.ch = ch
	ch.mark()
	return ev
}

// mark makes the token say whether events wait. ch.mu is held.
func (ch *EventChannel) mark() {
	if len(ch.queue) > 0 {
		signal(ch.ready)
		return
	}
	select {
	case <-ch.ready:
	default:
	}
}

// put queues an event, for as long as the ID lives.
func (id *ID) put(ev *Event) {
	ev.home, ev.Status = id, status(ev)
	ch := id.lockChannel()
	if ch == nil {
		return
	}
	defer ch.mu.Unlock()
	ch.queue = append(ch.queue, ev)
	signal(ch.ready)
	if ev.Type == EventConnectRequest {
		signal(id.asks)
	}
}

// lockChannel locks the channel that has the ID; nil if none has it any more.
func (id *ID) lockChannel() *EventChannel {
	for {
		ch := id.channel.Load()
		ch.mu.Lock()
		if _, here := ch.ids[id]; here {
			return ch
		}
		ch.mu.Unlock()
		if id.channel.Load() == ch {
			return nil
		}
	}
}

// forget takes the ID from its channel, with the events that nobody has taken, and waits until the
// others are acked. It returns the new IDs of requests among those events.
func (id *ID) forget() (orphans []*ID) {
	ch := id.lockChannel()
	if ch == nil {
		return nil
	}
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
	ch.mark()
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
