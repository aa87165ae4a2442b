package mr

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// windowsOverFast is a fast region with the key k, registered, and n type 2 windows with a binding
// staged each.
type windowsOverFast struct {
	*model
	key    Key
	view   *View
	binds  []Bind
	nums   []uint32
	starts []*View // free views of the windows
	faults []Fault // results, one a thread
}

func newWindowsOverFast(tb testing.TB, n int) *windowsOverFast {
	tab := New(16, 0, nil)
	s := &windowsOverFast{model: &model{tab: tab, g: tab.grace}, key: allocFast(tb, tab, 1)}
	s.view = register(tb, tab, Region{Key: s.key, Access: remote}, make([]byte, 64))
	ids := map[*View]uint64{s.view: 1, s.view.buf.free: 2}
	for range n {
		w := allocWindow(tb, tab, KindWindow2)
		num, err := tab.StageBind(w.Index())
		if err != nil {
			tb.Fatal(err)
		}
		s.binds = append(s.binds, Bind{Window: w, Key: w.Inc(), Parent: s.key,
			Access: RemoteRead, Length: 8})
		s.nums = append(s.nums, num)
		s.starts = append(s.starts, tab.load(w.Index()))
		ids[tab.load(w.Index())] = uint64(len(ids) + 1)
	}
	s.words = []*atomic.Uint64{&tab.grace.epoch}
	s.table = func() uint64 {
		h := ids[tab.load(s.key.Index())] | uint64(s.view.bound.Load()+1)<<8
		for i, b := range s.binds {
			h |= ids[tab.load(b.Window.Index())] << (16 + 8*i)
		}
		return h
	}
	s.shared = func() uint64 {
		h := s.table()
		for i, f := range s.faults {
			h |= uint64(f) << (40 + 5*i)
		}
		return h
	}
	s.reset = func() {
		tab.entry(s.key.Index()).Store(s.view)
		s.view.bound.Store(0)
		s.view.buf.state.Store(bufLive)
		for i, b := range s.binds {
			tab.entry(b.Window.Index()).Store(s.starts[i])
			s.starts[i].buf.state.Store(bufLive)
			for _, buf := range *tab.pool(b.Window.Index()).ring.Load() {
				if buf.num.Load() == s.nums[i] {
					buf.state.Store(bufStaged)
				}
			}
		}
		s.faults = make([]Fault, len(s.threads))
	}
	return s
}

// TestF15: BIND_MW of two windows on two shards against LOCAL_INV of their region on a third, over
// all interleavings: either the windows win, or the invalidation, and never both.
func TestF15AllInterleavings(t *testing.T) {
	s := newWindowsOverFast(t, 2)
	outcomes := make(map[string]int)
	s.threads = []func(*thread){
		func(*thread) { s.faults[0] = s.tab.Bind2(s.nums[0], &s.binds[0], 7, qpn) },
		func(*thread) { s.faults[1] = s.tab.Bind2(s.nums[1], &s.binds[1], 7, qpn) },
		func(*thread) { _, s.faults[2] = s.tab.Invalidate(s.key, 7, qpn) },
	}
	s.end = func() {
		f, bound := s.faults, 0
		outcomes[fmt.Sprint(f)]++
		for i := range s.binds {
			switch {
			case f[i] == FaultNone:
				bound++
			case f[i] != FaultState:
				s.fail("bind %d: %v", i, f[i])
			}
			key := s.binds[i].Key
			if _, got := s.tab.Check(key, 7, qpn, RemoteRead, 0,
				8); (got == FaultNone) != (f[i] == FaultNone) {
				s.fail("bind %d says %v, a packet gets %v", i, f[i], got)
			}
		}
		_, got := s.tab.Check(s.key, 7, qpn, RemoteRead, 0, 8)
		switch {
		case bound > 0 && (f[2] != FaultBound || got != FaultNone ||
			int(s.view.bound.Load()) != bound):
			s.fail("%d windows bound, invalidate %v, a packet gets %v", bound, f[2], got)
		case bound == 0 && (f[2] != FaultNone || got != FaultState):
			s.fail("no window bound, invalidate %v, a packet gets %v", f[2], got)
		}
	}
	if failure := s.explore(t); failure != "" {
		t.Error(failure)
	}
	if len(outcomes) != 2 {
		t.Errorf("the threads do not meet: %v", outcomes)
	}
}

// TestF16: LOCAL_INV of view 1 against LOCAL_INV of the same and REG_MR of view 2, over all
// interleavings: view 2 is never lost, and never invalidated by view 1's key.
func TestF16AllInterleavings(t *testing.T) {
	s := newWindowsOverFast(t, 0)
	next := stage(t, s.tab, Region{Key: s.key.Inc(), Access: remote}, make([]byte, 64))
	table := s.table
	s.table = func() uint64 {
		if s.tab.load(s.key.Index()) == next {
			return 3 << 8
		}
		return table()
	}
	reset := s.reset
	s.reset = func() { reset(); next.buf.state.Store(bufStaged) }
	outcomes := make(map[string]int)
	replaced := 0
	s.threads = []func(*thread){
		func(*thread) { _, s.faults[0] = s.tab.Invalidate(s.key, 7, qpn) },
		func(*thread) { _, s.faults[1] = s.tab.Invalidate(s.key, 7, qpn+1) },
		func(*thread) { s.faults[2] = s.tab.Register(next, 7) },
	}
	s.end = func() {
		f := s.faults
		outcomes[fmt.Sprint(f)]++
		_, got := s.tab.Check(next.Key(), 7, qpn, RemoteRead, 0, 8)
		_, old := s.tab.Check(s.key, 7, qpn, RemoteRead, 0, 8)
		for i := range 2 {
			if f[i] != FaultNone && !(f[i] == FaultVariant && f[2] == FaultNone) {
				s.fail("invalidate %d: %v", i, f[i])
			}
		}
		if old == FaultNone || f[0] != FaultNone && f[1] != FaultNone {
			s.fail("view 1 was not invalidated: %v, a packet gets %v", f, old)
		}
		if f[2] != FaultNone && f[2] != FaultState || (got == FaultNone) != (f[2] == FaultNone) {
			s.fail("register %v, a packet gets %v", f[2], got)
		}
		if f[2] == FaultNone {
			replaced++
		}
	}
	if failure := s.explore(t); failure != "" {
		t.Error(failure)
	}
	if len(outcomes) < 3 || replaced == 0 {
		t.Errorf("the threads do not meet: %v", outcomes)
	}
}
