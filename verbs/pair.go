package verbs

import (
	"sync/atomic"
	"time"
)

// A wire in memory: what a veth pair is to two interfaces, for tests and examples without rights.

const (
	pairRing  = 256              // frames on their way, as in a veth's ring
	pairSplit = 3840             // frames longer than this arrive in two pieces, as from AF_XDP
	pairFrame = pairSplit + 4096 // longest frame in bytes
)

// NewLinkPair returns the links of two devices that are joined in memory, for OpenLinks: queue i of
// one end sends to queue i of the other. Like a wire, a queue drops what arrives while 256 frames
// wait.
func NewLinkPair(queues int) (a, b []Link) {
	for range queues {
		x, y := newMemLink(), newMemLink()
		x.peer, y.peer = y, x
		a, b = append(a, x), append(b, y)
	}
	return a, b
}

// memLink is one end of one queue. Its ring holds what the peer has sent: one writer, one reader.
type memLink struct {
	peer    *memLink
	slots   [pairRing]memSlot
	sent    atomic.Uint32 // by the peer, and kicked
	taken   atomic.Uint32
	closed  atomic.Bool
	wake    chan struct{}
	batch   uint32 // frames of the last Receive
	pending uint32 // frames we have put into the peer's ring and not kicked
	out     []byte // the reservation
	timer   *time.Timer

	Dropped atomic.Uint64 // frames that found the ring full
}

type memSlot struct {
	buf []byte
	n   int
}

func newMemLink() *memLink {
	return &memLink{
		wake: make(chan struct{}, 1), out: make([]byte, pairFrame), timer: time.NewTimer(0),
	}
}

func (l *memLink) Receive(max int) int {
	l.batch = min(l.sent.Load()-l.taken.Load(), uint32(max))
	return int(l.batch)
}

func (l *memLink) Packet(i int) (head, tail []byte) {
	s := &l.slots[(l.taken.Load()+uint32(i))%pairRing]
	if s.n > pairSplit {
		return s.buf[:pairSplit], s.buf[pairSplit:s.n]
	}
	return s.buf[:s.n], nil
}

func (l *memLink) Release() {
	l.taken.Add(l.batch)
	l.batch = 0
}

func (l *memLink) Reserve() (head, tail []byte, ok bool) {
	return l.out[:pairSplit:pairSplit], l.out[pairSplit:], true
}

func (l *memLink) Submit(n int) {
	p := l.peer
	at := p.sent.Load() + l.pending
	if p.closed.Load() || at-p.taken.Load() >= pairRing {
		p.Dropped.Add(1)
		return
	}
	s := &p.slots[at%pairRing]
	if s.buf == nil {
		s.buf = make([]byte, pairFrame)
	}
	s.n = copy(s.buf, l.out[:n])
	l.pending++
}

func (l *memLink) Cancel() {}

func (l *memLink) Kick() {
	if l.pending > 0 {
		l.peer.sent.Add(l.pending)
		l.pending = 0
		l.peer.Wake()
	}
}

func (l *memLink) Wait(d time.Duration) {
	if l.sent.Load() != l.taken.Load() {
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

func (l *memLink) Wake() { signal(l.wake) }

func (l *memLink) Close() error {
	l.closed.Store(true)
	return nil
}
