package sim

import "github.com/roxie-rdma/roxie/rxe"

// Events happen in the order of their times; those of one moment in the order in which they were
// scheduled. There are two heaps with four children a node: one of trains and calls, and one of
// ports, whose steps are often moved.

// event is a train's arrival or a call.
type event struct {
	at  rxe.Time
	key uint64 // sequence number << itemBits | item
}

const (
	itemBits = 20
	itemMask = 1<<itemBits - 1
)

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.key < o.key }

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

// portHeap orders the ports that have a step to do by port.next.
type portHeap struct{ p []*port }

func (p *port) before(o *port) bool {
	return p.next < o.next || p.next == o.next && p.order < o.order
}

// move puts p where its time now belongs, and adds it if it is not there.
func (h *portHeap) move(p *port) {
	if p.place < 0 {
		p.place = len(h.p)
		h.p = append(h.p, p)
	}
	i := p.place
	for i > 0 {
		up := (i - 1) / 4
		if !p.before(h.p[up]) {
			break
		}
		h.set(i, h.p[up])
		i = up
	}
	h.set(i, p)
	h.sink(i)
}

func (h *portHeap) set(i int, p *port) { h.p[i], p.place = p, i }

func (h *portHeap) sink(i int) {
	p := h.p[i]
	for {
		c := 4*i + 1
		if c >= len(h.p) {
			break
		}
		best := c
		for end := min(c+4, len(h.p)); c+1 < end; {
			if c++; h.p[c].before(h.p[best]) {
				best = c
			}
		}
		if !h.p[best].before(p) {
			break
		}
		h.set(i, h.p[best])
		i = best
	}
	h.set(i, p)
}

// remove takes p out, if it is there.
func (h *portHeap) remove(p *port) {
	i := p.place
	if i < 0 {
		return
	}
	p.place = -1
	last := len(h.p) - 1
	moved := h.p[last]
	h.p = h.p[:last]
	if i < last {
		h.p[i], moved.place = moved, i
		h.move(moved)
	}
}
