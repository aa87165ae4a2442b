package sim

import "github.com/roxie-rdma/roxie/rxe"

// event is a moment: a shard's step, a train's arrival or a call. Events of one moment happen in the
// order in which they were scheduled.
type event struct {
	at  rxe.Time
	key uint64 // sequence number << itemBits | item
}

const (
	itemBits = 20
	itemMask = 1<<itemBits - 1
)

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.key < o.key }

// eventHeap is a heap with four children a node.
type eventHeap struct{ e []event }

func (h *eventHeap) push(x event) {
	h.e = append(h.e, x)
	e := h.e
	i := len(e) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !x.before(&e[up]) {
			break
		}
		e[i] = e[up]
		i = up
	}
	e[i] = x
}

func (h *eventHeap) pop() event {
	e := h.e
	top := e[0]
	last := len(e) - 1
	x := e[last]
	e = e[:last]
	h.e = e
	i := 0
	for {
		c := 4*i + 1
		if c >= last {
			break
		}
		best := c
		for end := min(c+4, last); c+1 < end; {
			if c++; e[c].before(&e[best]) {
				best = c
			}
		}
		if !e[best].before(&x) {
			break
		}
		e[i] = e[best]
		i = best
	}
	if last > 0 {
		e[i] = x
	}
	return top
}
