package serve

import (
	"fmt"
	"net/netip"
	"sync"
)

// limiter keeps account of what all interfaces and services use together.
type limiter struct {
	mu     sync.Mutex
	limits Limits
	qps    int
	memory int64
	peers  map[netip.Addr]int
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

// admit takes a connection of a peer with so many QPs and so much memory into account, until free is
// called. It is called before anything is made for the connection.
func (l *limiter) admit(peer netip.Addr, qps int, memory int64) (free func(), err error) {
	peer = peer.Unmap()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.peers[peer] >= l.limits.PerPeer:
		return nil, &limitError{fmt.Sprintf("%v has %d connections, the limit of one peer", peer, l.peers[peer])}
	case l.qps+qps > l.limits.QPs:
		return nil, &limitError{fmt.Sprintf("%d QPs are in use of %d", l.qps, l.limits.QPs)}
	case l.memory+memory > l.limits.Memory:
		return nil, &limitError{fmt.Sprintf("%s are in use of %s", FormatSize(l.memory), FormatSize(l.limits.Memory))}
	}
	l.peers[peer]++
	l.qps += qps
	l.memory += memory
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.peers[peer]--; l.peers[peer] == 0 {
			delete(l.peers, peer)
		}
		l.qps -= qps
		l.memory -= memory
	}), nil
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
}

func (l *limiter) usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{QPs: l.qps, Memory: l.memory, Peers: len(l.peers)}
}
