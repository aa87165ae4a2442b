package verbs

import (
	"context"
	"fmt"
	"sync"

	"github.com/roxie-rdma/roxie/rxe"
)

// AsyncEvent is an asynchronous event (struct ibv_async_event) with the object it is about, if any.
type AsyncEvent struct {
	Type   EventType
	QP     *QP
	CQ     *CQ
	SRQ    *SRQ
	Reason Reason // why, for errors of QPs and CQs
}

// String names the event and its object.
func (e AsyncEvent) String() string {
	s := e.Type.String()
	if e.QP != nil {
		s += fmt.Sprintf(" (QP %#x)", e.QP.Num())
	}
	if e.Reason != rxe.ReasonNone && e.Reason != 0 {
		s += ": " + e.Reason.String()
	}
	return s
}

// maxEvents is how many events wait for AsyncEvent; more are dropped.
const maxEvents = 1 << 16

// eventQueue holds asynchronous events until somebody asks.
type eventQueue struct {
	mu    sync.Mutex
	list  []AsyncEvent
	lost  uint64
	downs uint64        // port errors
	ready chan struct{} // holds a token while list is not empty
}

func (q *eventQueue) init() { q.ready = make(chan struct{}, 1) }

func (q *eventQueue) put(e AsyncEvent) {
	q.mu.Lock()
	if e.Type == EventPortErr {
		q.downs++
	}
	if len(q.list) < maxEvents {
		q.list = append(q.list, e)
	} else {
		q.lost++
	}
	q.mu.Unlock()
	signal(q.ready)
}

func (q *eventQueue) get() (e AsyncEvent, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return e, false
	}
	e = q.list[0]
	q.list = q.list[1:]
	if len(q.list) > 0 {
		signal(q.ready)
	} else {
		q.list = nil
	}
	return e, true
}

// signal puts a token in a channel of one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// AsyncEvent waits for the next asynchronous event of the device, its port and its objects
// (ibv_get_async_event). Errors: ctx's, ErrClosed.
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	for {
		if e, ok := c.events.get(); ok {
			return e, nil
		}
		select {
		case <-c.events.ready:
		case <-ctx.Done():
			return AsyncEvent{}, fmt.Errorf("wait for event: %w", context.Cause(ctx))
		case <-c.closed:
			return AsyncEvent{}, ErrClosed
		}
	}
}

// deliver hands a shard's events on. The shard is held: nothing here waits for one.
func (c *Context) deliver(events []rxe.Event) {
	for _, e := range events {
		if e.Type == rxe.EventCompletion {
			if q, ok := c.cqs.Load(e.CQ); ok {
				signal(q.(*CQ).notify)
			}
			continue
		}
		out := AsyncEvent{Type: e.Type, Reason: e.Reason}
		if e.QP != nil {
			out.QP, _ = e.QP.Context().(*QP)
			if out.QP != nil && e.Type == rxe.EventCommEst {
				out.QP.established()
			}
		}
		if e.CQ != nil {
			if q, ok := c.cqs.Load(e.CQ); ok {
				out.CQ = q.(*CQ)
				signal(out.CQ.notify) // a waiter learns of the overflow
			}
		}
		if e.SRQ != nil {
			if s, ok := c.srqs.Load(e.SRQ); ok {
				out.SRQ = s.(*SRQ)
			}
		}
		c.events.put(out)
	}
}

// OnEstablished has f called when the first packet has come to the QP in state RTR, besides the event
// EventCommEst: a connection manager takes it for the peer's last message, which may be lost. f may
// not wait for anything, nor call the device. nil: nothing is called.
func (q *QP) OnEstablished(f func()) { q.onEstablished.Store(&f) }

func (q *QP) established() {
	if f := q.onEstablished.Load(); f != nil && *f != nil {
		(*f)()
	}
}
