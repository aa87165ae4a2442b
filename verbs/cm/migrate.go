package cm

import (
	"context"
	"fmt"

	"github.com/roxie-rdma/roxie/verbs"
)

// Migrate moves the ID to another channel of the same Manager, and the events of it that nobody has
// taken, in their order; of a listener also the requests that nobody has taken, with their IDs
// (rdma_migrate_id). It waits until the events that have been taken are acked: whoever holds one
// must not call it. Events that come meanwhile are not lost. There is no synchronous mode for an ID
// without a channel: that is what Manager.Dial and Manager.Listen are for. Errors:
// verbs.ErrForeign, verbs.ErrInvalid for an ID that is destroyed, ErrClosed.
func (id *ID) Migrate(to *EventChannel) error {
	if to == nil || to.m != id.m {
		return fmt.Errorf("migrate id: no channel of its device: %w", verbs.ErrForeign)
	}
	for {
		from := id.lockChannel()
		if from == nil {
			return fmt.Errorf("migrate id: it is destroyed: %w", verbs.ErrInvalid)
		}
		for id.unacked > 0 {
			from.acked.Wait()
		}
		from.mu.Unlock()
		if from == to {
			return nil
		}
		done, err := id.move(from, to)
		if done || err != nil {
			return err
		}
	}
}

// move is done unless somebody has taken an event, or moved the ID, before both channels were
// locked.
func (id *ID) move(from, to *EventChannel) (done bool, err error) {
	first, second := from, to
	if first.serial > second.serial {
		first, second = second, first
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	second.mu.Lock()
	defer second.mu.Unlock()
	select {
	case <-to.closed:
		return false, ErrClosed
	default:
	}
	if _, here := from.ids[id]; !here || id.unacked > 0 {
		return false, nil
	}
	moving := map[*ID]bool{id: true}
	for _, ev := range from.queue {
		if ev.home == id && ev.Type == EventConnectRequest {
			moving[ev.ID] = true
		}
	}
	for x := range moving {
		if _, here := from.ids[x]; here { // a request's ID may have gone elsewhere
			delete(from.ids, x)
			to.ids[x] = struct{}{}
			x.channel.Store(to)
		}
	}
	kept := from.queue[:0]
	for _, ev := range from.queue {
		if moving[ev.home] {
			to.queue = append(to.queue, ev)
		} else {
			kept = append(kept, ev)
		}
	}
	clear(from.queue[len(kept):])
	from.queue = kept
	from.mark()
	to.mark()
	from.acked.Broadcast() // Destroy waits there
	return true, nil
}

// GetRequest waits for the next request to a listening ID (rdma_get_request): an
// EventConnectRequest with a new ID, to be acked like any other. It leaves other events in the channel, and takes turns
// with EventChannel.Get where both are used. Errors: verbs.ErrInvalid, ErrClosed when the ID is
// destroyed or its device gone, ctx's.
func (id *ID) GetRequest(ctx context.Context) (*Event, error) {
	id.m.mu.Lock()
	if id.state != idListening {
		defer id.m.mu.Unlock()
		return nil, id.errState("get request")
	}
	id.m.mu.Unlock()
	for {
		if ev := id.nextRequest(); ev != nil {
			return ev, nil
		}
		select {
		case <-id.asks:
		case <-id.gone:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// nextRequest takes a request from the channel, nil if there is none.
func (id *ID) nextRequest() (out *Event) {
	ch := id.lockChannel()
	if ch == nil {
		return nil
	}
	defer ch.mu.Unlock()
	for i := 0; i < len(ch.queue); i++ {
		ev := ch.queue[i]
		if ev.home != id || ev.Type != EventConnectRequest {
			continue
		}
		if out != nil {
			signal(id.asks) // there are more
			break
		}
		out = ch.takeOut(i)
		i--
	}
	return out
}
