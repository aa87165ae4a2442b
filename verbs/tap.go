package verbs

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
)

// Trace is what the engine knows of a frame: its QP and work request, and why it was dropped.
type Trace = rxe.Trace

// Captured is one frame that a device received or sent, as a tap is told of it.
type Captured struct {
	Trace
	Dir   Direction
	Shard int       // the queue it came or went by
	Time  time.Time // of the batch it was part of; with a monotonic reading
	Head  []byte    // the Ethernet frame, in one or two pieces
	Tail  []byte
}

// tap is one function that is told of frames.
type tap struct{ f func(*Captured) }

// Tap has f called with every frame that the device receives or sends from now on, until remove is
// called. Whoever holds the shard calls it, each shard by itself and several at the same time: f must
// not wait for anything, nor call the device, nor keep what it is given. No call of f runs any more
// when remove returns; it may be called twice, but not by f.
//
// A device that nobody taps pays one branch a frame. Frames between two QPs of the device are on no
// wire and not seen. Package verbs/capture writes what a tap sees to files.
func (c *Context) Tap(f func(*Captured)) (remove func()) {
	t := &tap{f}
	for _, p := range c.pollers {
		p.hold()
		p.taps = append(slices.Clone(p.taps), t)
		p.release()
	}
	return sync.OnceFunc(func() {
		for _, p := range c.pollers {
			p.hold()
			p.taps = slices.DeleteFunc(slices.Clone(p.taps), func(x *tap) bool { return x == t })
			p.release()
		}
	})
}

// captured is the tap of Config.Capture.
func (c *Config) captured(x *Captured) { c.Capture(x.Dir, x.Shard, x.Time, x.Head, x.Tail) }

// receiveTapped gives a frame to the engine, and tells the taps what became of it.
func (p *poller) receiveTapped(now rxe.Time, f rxe.Frame) {
	p.shard.ReceiveTraced(now, f, &p.told.Trace)
	p.tell(Inbound, now, f.Head, f.Tail)
}

// transmitTapped fills a frame and tells the taps of it, if there is one.
func (p *poller) transmitTapped(now rxe.Time, f rxe.Frame) int {
	n := p.shard.TransmitTraced(now, f, &p.told.Trace)
	if n > 0 {
		h := min(n, len(f.Head))
		p.tell(Outbound, now, f.Head[:h], f.Tail[:n-h])
	}
	return n
}

func (p *poller) tell(dir Direction, now rxe.Time, head, tail []byte) {
	t := &p.told
	t.Dir, t.Shard, t.Head, t.Tail = dir, p.index, head, tail
	t.Time = clockBase.Add(time.Duration(now))
	for _, x := range p.taps {
		x.f(t)
	}
	t.Head, t.Tail = nil, nil
}

// failHooks are the functions of OnQPFailure; replaced as a whole.
type failHooks struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*func(*QP, Reason)]
}

func (h *failHooks) change(edit func([]*func(*QP, Reason)) []*func(*QP, Reason)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var old []*func(*QP, Reason)
	if l := h.list.Load(); l != nil {
		old = slices.Clone(*l)
	}
	old = edit(old)
	h.list.Store(&old)
}

// OnQPFailure has f called when a QP goes to ERR (a UD or UC QP: to SQE) by itself, with the reason,
// until remove is called; not for one that the program moves to ERR. Retries that ran out make no
// asynchronous event: here they are told of. f may not wait for anything, nor call the device or
// the QP but for its number.
func (c *Context) OnQPFailure(f func(*QP, Reason)) (remove func()) {
	p := &f
	type hooks = []*func(*QP, Reason)
	c.failHook.change(func(l hooks) hooks { return append(l, p) })
	return func() {
		c.failHook.change(func(l hooks) hooks {
			return slices.DeleteFunc(l, func(x *func(*QP, Reason)) bool { return x == p })
		})
	}
}

// deliverFailures tells of failed QPs. The shard is held.
func (c *Context) deliverFailures(failed []rxe.Failure) {
	l := c.failHook.list.Load()
	if l == nil {
		return
	}
	for _, x := range failed {
		q, ok := x.QP.Context().(*QP)
		if !ok {
			continue
		}
		for _, f := range *l {
			(*f)(q, x.Reason)
		}
	}
}
