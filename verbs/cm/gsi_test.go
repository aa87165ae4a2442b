package cm

import (
	"errors"
	"net/netip"
	"testing"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// TestRoomForRoutes: with more peers than there are address handles for, one makes room that no MAD
// on its way out needs: such a MAD would fail.
func TestRoomForRoutes(t *testing.T) {
	a, b := hosts(t, nil)
	ca, _ := connected(t, a, b, b.ip4, verbs.RC)
	m := b.m
	until(t, func() bool { return !m.sending() })
	m.mu.Lock()
	r := route{b.ip4.As16(), a.ip4.As16()}
	p := m.routes[r]
	held := 0
	for i := 0; len(m.routes) < maxRoutes; i++ {
		strange := route{b.ip4.As16(), wire.GIDFromIPv4([4]byte{10, 9, byte(i >> 8), byte(i)})}
		m.routes[strange] = &peer{users: 1}
		held++
	}
	mad := rcm.Encode(7, &rcm.RTU{LocalID: 1, RemoteID: 2})
	m.send(p, &mad)
	for range held {
		m.evict()
	}
	if m.routes[r] != p {
		t.Error("a way is forgotten with a MAD on it")
	}
	m.mu.Unlock()
	until(t, func() bool { return !m.sending() })
	m.mu.Lock()
	if m.evict(); m.routes[r] != nil {
		t.Error("no room: the MAD has gone long ago")
	}
	clear(m.routes)
	m.mu.Unlock()
	a.must(ca.Disconnect(within(t)))
}

// TestFailedMAD: a MAD that fails is lost, and no other.
func TestFailedMAD(t *testing.T) {
	a, b := hosts(t, nil)
	ca, _ := connected(t, a, b, b.ip4, verbs.RC)
	m := b.m
	m.mu.Lock()
	p := m.routes[route{b.ip4.As16(), a.ip4.As16()}]
	slot := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	m.sentTo[slot] = p
	p.sending++
	b.must(m.qp.PostSend(&verbs.SendWR{WRID: slot + madSlots, Opcode: verbs.WRSend, AH: p.ah,
		SGList: []verbs.SGE{{Length: rcm.MADSize, LKey: 0xbad}}, RemoteQPN: 1, RemoteQKey: rcm.GSIQKey}))
	m.mu.Unlock()
	until(t, func() bool { return !m.sending() })
	a.must(ca.Disconnect(within(t)))
	for _, q := range []*verbs.QP{m.qp, a.m.qp} {
		if s := q.State(); s != verbs.StateRTS {
			t.Errorf("QP1 is in %v", s)
		}
	}
	l, err := b.m.Listen(8, nil)
	b.must(err)
	go func() {
		if r, err := l.Accept(within(t)); err == nil {
			_ = r.Reject(nil)
		}
	}()
	qp, _ := a.qp(verbs.RC)
	var rej *RejectError
	if _, err := a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 8), qp, nil); !errors.As(err, &rej) {
		t.Error(err)
	}
}

// TestMayAsk: the kernel asks for so many strangers in a burst, and for one more now and then.
func TestMayAsk(t *testing.T) {
	_, b := hosts(t, nil)
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := func() (n int) {
		for m.mayAsk() {
			n++
		}
		return n
	}
	began := m.now()
	n := asked()
	more := 1 + int((m.now()-began)/rcm.Time(askEvery)) // of the time that has gone by here
	if n < maxAsked || n > maxAsked+more {
		t.Errorf("a burst of %d, want %d", n, maxAsked)
	}
	m.askFrom -= rcm.Time(10 * askEvery)
	if n := asked(); n < 10 || n > 10+more {
		t.Errorf("%d in the time for 10", n)
	}
	m.askFrom -= rcm.Time(1000 * askEvery)
	if n := asked(); n < maxAsked || n > maxAsked+more {
		t.Errorf("%d after a long rest", n)
	}
}
