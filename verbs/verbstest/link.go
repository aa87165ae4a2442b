package verbstest

import (
	"sync"
	"time"
)

const (
	ring     = 512  // frames a receive ring holds
	split    = 3840 // frames longer than this arrive in two pieces, as from AF_XDP
	maxFrame = 16 << 10
)

// link is one queue of a device: a verbs.Link.
type link struct {
	net           *Network
	device, queue int
	batch         [][]byte // of the last Receive
	submitted     [][]byte
	out           []byte // the reservation
	wake          chan struct{}
	timer         *time.Timer

	mu    sync.Mutex
	inbox [][]byte
}

func newLink(n *Network, device, queue int) *link {
	return &link{net: n, device: device, queue: queue, out: make([]byte, maxFrame),
		wake: make(chan struct{}, 1), timer: time.NewTimer(0)}
}

// put adds a frame that has arrived; false when the ring is full.
func (l *link) put(frame []byte) bool {
	l.mu.Lock()
	ok := len(l.inbox) < ring
	if ok {
		l.inbox = append(l.inbox, frame)
	}
	l.mu.Unlock()
	l.Wake()
	return ok
}

func (l *link) Receive(max int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.inbox), max)
	l.batch = append(l.batch[:0], l.inbox[:n]...)
	l.inbox = l.inbox[:copy(l.inbox, l.inbox[n:])]
	return n
}

func (l *link) Packet(i int) (head, tail []byte) {
	b := l.batch[i]
	if len(b) > split {
		return b[:split:split], b[split:]
	}
	return b, nil
}

func (l *link) Release() {
	clear(l.batch)
	l.batch = l.batch[:0]
}

func (l *link) Reserve() (head, tail []byte, ok bool) {
	return l.out[:split:split], l.out[split:], true
}

func (l *link) Submit(n int) { l.submitted = append(l.submitted, append([]byte(nil), l.out[:n]...)) }

func (l *link) Cancel() {}

func (l *link) Kick() {
	for _, b := range l.submitted {
		l.net.send(l, b)
	}
	clear(l.submitted)
	l.submitted = l.submitted[:0]
}

func (l *link) waiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.inbox) > 0
}

func (l *link) Wait(d time.Duration) {
	if l.waiting() {
		return
	}
	if d < 0 {
		<-l.wake
		return
	}
	l.timer.Reset(d)
	select {
	case <-l.wake:
		l.timer.Stop()
	case <-l.timer.C:
	}
}

func (l *link) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) Close() error { return nil }
