package serve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// limiter keeps account of what all interfaces and services use together.
//
// Requests cost their sender nothing and may bear any address, so that a connection counts little as
// long as its peer has not confirmed it: when a limit is reached, the oldest that is half open makes
// room for the next request. It has had halfOpenGrace by then, where a peer that is there needs one
// round trip.
type limiter struct {
	mu     sync.Mutex
	limits Limits
	qps    int
	memory int64
	peers  map[netip.Addr]int
	half   []*permit // half open, oldest first

	pushed int // half-open connections that made room
	said   time.Time
}

// halfOpenGrace is how long nobody pushes a half-open connection out: what a peer and this end, both
// busy, need for a connection in a local network. As many requests as there are places are carried
// out in that time, and the rest of a flood is dropped, honest ones among them. Each leaves the
// connection manager with a record for up to 5 s.
const halfOpenGrace = 40 * time.Millisecond

// errPushed ends a half-open connection that makes room.
var errPushed = errors.New("not confirmed yet, and made room for another request")

// permit is a connection's part of the account.
type permit struct {
	l      *limiter
	peer   netip.Addr
	qps    int
	memory int64
	since  time.Time
	push   context.CancelCauseFunc // ends it while it is half open; nil: nobody may
	pushed bool
	freed  chan struct{} // closed when it has ended
}

// limitError says which limit stands in the way.
type limitError struct{ text string }

func (e *limitError) Error() string { return e.text }

func newLimiter(l Limits) *limiter { return &limiter{limits: l, peers: map[netip.Addr]int{}} }

// set changes the limits. What is in use above them stays.
func (l *limiter) set(limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = limits
}

// admit takes a connection of a peer with so many QPs and so much memory into account, until its
// permit is freed. It is called before anything is made for the connection. If push is not nil the
// connection counts as half open until it is confirmed, and push may be called to end it. admit waits
// for the end of those that make room, halfOpenGrace and what the end takes, or until ctx ends.
func (l *limiter) admit(ctx context.Context, peer netip.Addr, qps int, memory int64,
	push context.CancelCauseFunc) (*permit, error) {
	p := &permit{l: l, peer: peer.Unmap(), qps: qps, memory: memory, push: push, freed: make(chan struct{})}
	for {
		victim, wait, err := l.try(p)
		if victim == nil {
			return p, err
		}
		if wait == 0 {
			wait = establish // it has been told to end
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-victim.freed:
		case <-time.After(wait):
		}
	}
}

// try takes p into account, or says why not (no victim), or whose end is to be waited for: not
// longer than wait if that has not been told yet.
func (l *limiter) try(p *permit) (victim *permit, wait time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if n := l.peers[p.peer]; n >= l.limits.PerPeer {
		i := slices.IndexFunc(l.half, func(h *permit) bool { return h.peer == p.peer })
		if i < 0 || now.Sub(l.half[i].since) < halfOpenGrace { // others must not wait for this one
			return nil, 0, &limitError{fmt.Sprintf("%v has %d connections, the limit of one peer", p.peer, n)}
		}
		return l.pushOut(l.half[i]), 0, nil
	}
	short := l.lacks(p, 0, 0)
	if short == nil {
		p.since = now
		l.peers[p.peer]++
		l.qps += p.qps
		l.memory += p.memory
		if p.push != nil {
			l.half = append(l.half, p)
		}
		return nil, 0, nil
	}
	qps, memory := 0, int64(0)
	for _, h := range l.half {
		qps, memory = qps+h.qps, memory+h.memory
	}
	if l.lacks(p, qps, memory) != nil { // all of them would not be enough
		return nil, 0, short
	}
	if wait = halfOpenGrace - now.Sub(l.half[0].since); wait > 0 {
		return l.half[0], wait, nil
	}
	return l.pushOut(l.half[0]), 0, nil
}

// lacks says what there is too little of for p, if so much were given back.
func (l *limiter) lacks(p *permit, qps int, memory int64) error {
	switch {
	case l.qps-qps+p.qps > l.limits.QPs:
		return &limitError{fmt.Sprintf("%d QPs are in use of %d", l.qps, l.limits.QPs)}
	case l.memory-memory+p.memory > l.limits.Memory:
		return &limitError{fmt.Sprintf("%s are in use of %s", FormatSize(l.memory), FormatSize(l.limits.Memory))}
	}
	return nil
}

// pushOut tells a half-open connection to end.
func (l *limiter) pushOut(p *permit) *permit {
	if !p.pushed {
		p.pushed = true
		l.pushed++
		p.push(errPushed)
	}
	return p
}

func (l *limiter) forget(p *permit) {
	if i := slices.Index(l.half, p); i >= 0 {
		l.half = slices.Delete(l.half, i, i+1)
	}
}

// crowded returns how many connections have made room so far, and whether it is time to say so.
func (l *limiter) crowded() (n int, say bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if say = time.Since(l.said) > time.Second; say {
		l.said = time.Now()
	}
	return l.pushed, say
}

// confirmed says that the peer has confirmed the connection: nobody pushes it out any more.
func (p *permit) confirmed() {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.l.forget(p)
}

// free gives back what admit took. A second call does nothing.
func (p *permit) free() {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-p.freed:
		return
	default:
	}
	l.forget(p)
	if l.peers[p.peer]--; l.peers[p.peer] == 0 {
		delete(l.peers, p.peer)
	}
	l.qps -= p.qps
	l.memory -= p.memory
	close(p.freed)
}

// reserve takes memory that is no connection's, until free is called.
func (l *limiter) reserve(memory int64) (free func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.memory+memory > l.limits.Memory {
		return nil, &limitError{fmt.Sprintf("%s are in use of %s", FormatSize(l.memory), FormatSize(l.limits.Memory))}
	}
	l.memory += memory
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.memory -= memory
	}), nil
}

// Usage is what is in use at a moment.
type Usage struct {
	QPs    int
	Memory int64
	Peers  int
	Pushed int // half-open connections that have made room for others, since the start
}

func (l *limiter) usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{QPs: l.qps, Memory: l.memory, Peers: len(l.peers), Pushed: l.pushed}
}
