package mr

import (
	"strings"
	"testing"
)

func TestGraceShards(t *testing.T) {
	g := NewGrace(3)
	e := g.Start()
	if !g.Passed(e) {
		t.Error("offline shards hold an epoch up")
	}
	g.Enter(0)
	g.Enter(2)
	e = g.Start()
	g.Quiesce(0)
	if g.Passed(e) {
		t.Error("passed before shard 2")
	}
	g.Leave(2)
	if !g.Passed(e) {
		t.Error("not passed after the last shard left")
	}
	g.Enter(2)
	if !g.Passed(e) {
		t.Error("what has passed came back when a shard came online")
	}
	if e := g.Start(); g.Passed(e) {
		t.Error("passed with two shards online")
	}
}

func TestGraceSharedByManyUnpublishings(t *testing.T) {
	g := NewGrace(1)
	g.Enter(0)
	first, last := g.Start(), g.Start()
	for range 100 {
		last = g.Start()
	}
	g.Quiesce(0)
	if !g.Passed(first) || !g.Passed(last) {
		t.Error("one quiescent point is not enough for all epochs before it")
	}
}

func TestGraceWakesOnlyWhenPassed(t *testing.T) {
	g := NewGrace(3)
	for i := range 3 {
		g.Enter(i)
	}
	e := g.Start()
	if g.Want(0, e) {
		t.Fatal("passed at once")
	}
	if w := g.Leave(0); w != 0 {
		t.Errorf("woken %b by its own leaving", w)
	}
	if w := g.Quiesce(1); w != 0 {
		t.Errorf("woken %b while shard 2 holds on", w)
	}
	if w := g.Quiesce(2); w != 1 {
		t.Errorf("last shard wakes %b, want shard 0", w)
	}
	if w := g.Quiesce(1); w != 0 {
		t.Errorf("woken twice: %b", w)
	}
	if !g.Want(0, e) || g.want.Load() != 0 {
		t.Error("a passed epoch is waited for")
	}
}

// TestGraceWaiterBeyondShards: a goroutine of the control path waits under a number of its own.
func TestGraceWaiterBeyondShards(t *testing.T) {
	g := NewGrace(1)
	g.Enter(0)
	if g.Want(63, g.Start()) {
		t.Fatal("passed at once")
	}
	if w := g.Quiesce(0); w != 1<<63 {
		t.Errorf("woken %b", w)
	}
}

// TestGraceWakesForTheEarliest: whichever order a waiter names its epochs in.
func TestGraceWakesForTheEarliest(t *testing.T) {
	for _, laterFirst := range []bool{false, true} {
		g := NewGrace(3)
		g.Enter(1)
		g.Enter(2)
		early := g.Start()
		g.Quiesce(1)
		late := g.Start()
		first, second := early, late
		if laterFirst {
			first, second = late, early
		}
		if g.Want(0, first) || g.Want(0, second) {
			t.Fatal("passed at once")
		}
		if w := g.Leave(2); w != 1 || !g.Passed(early) || g.Passed(late) {
			t.Errorf("later first %v: woken %b when only the early epoch has passed", laterFirst, w)
		}
		if g.Want(0, late) {
			t.Error("the late one has passed")
		}
		if w := g.Leave(1); w != 1 {
			t.Errorf("later first %v: woken %b at the late epoch", laterFirst, w)
		}
	}
}

// plant is a mistake to be found.
type plant int

const (
	plantNone      plant = iota
	plantNoEnter         // readers use views while offline
	plantNoWait          // memory is used again right after the invalidation
	plantEarly           // a reader quiesces while it holds a view
	plantEpochLate       // the epoch is started before the view is gone
	plantWantLate        // the waiter asks before it registers, not after
	plantLazyNow         // the current epoch is to pass, not the next
)

// graceConfig chooses how much of everything one model has, so that the states stay countable.
type graceConfig struct {
	rounds int  // checks and copies of each reader, a quiescent point between them; 0: no table
	online bool // shards are online at the start; else they enter first
	polls  bool // the reclaimer asks, once, at any time; else it waits to be woken
	lazy   bool // as polls, but nobody begins the epoch until the reclaimer asks
	leaves bool // readers end with Leave; else reader 0 ends with a quiescent point
	plant  plant
}

// graceState is what the threads of a grace model share beside the words of Grace.
type graceState struct {
	*model
	graceConfig
	key       Key
	old, next *View
	views     map[*View]uint64
	epoch     Epoch
	reclaimed bool
	woken     bool
}

// graceModel is two readers on shards 0 and 1, a writer on shard 2 that executes LOCAL_INV and
// REG_MR of the next view, and a reclaimer that waits for grace and then uses the old memory again.
func graceModel(tb testing.TB, c graceConfig) *model {
	g := NewGrace(3)
	tab := New(4, 0, g)
	key, err := tab.AllocFast(7, 1)
	if err != nil {
		tb.Fatal(err)
	}
	m := &model{tab: tab, g: g}
	s := &graceState{model: m, graceConfig: c, key: key}
	s.old, s.next = stageFast(tb, tab, key), stageFast(tb, tab, key.Inc())
	s.views = map[*View]uint64{s.old: 1, s.old.buf.free: 2, s.next: 3}
	for i := range g.marks {
		m.words = append(m.words, &g.marks[i].Uint64)
	}
	m.flow = len(m.words)
	m.words = append(m.words, &g.epoch, &g.done, &g.want, &g.wants[3])
	m.table = func() uint64 {
		return s.views[tab.load(key.Index())] | uint64(s.old.bound.Load()+1)<<32
	}
	m.shared = func() uint64 {
		h := m.table() | uint64(s.epoch)<<8
		if s.reclaimed {
			h |= 1 << 40
		}
		if s.woken {
			h |= 1 << 41
		}
		return h
	}
	m.reset = s.start
	m.threads = []func(*thread){s.reader(0), s.reader(1), s.writer, s.reclaimer}
	m.end = func() {
		for i, th := range m.run {
			if !th.ended {
				m.fail("thread %d waits for ever: a wake-up is lost", i)
			}
		}
	}
	return m
}

func (s *graceState) start() {
	for _, w := range s.words {
		w.Store(0)
	}
	s.g.epoch.Store(1)
	if s.online {
		for i := range s.g.marks {
			s.g.marks[i].Store(1)
		}
	}
	s.tab.entry(s.key.Index()).Store(s.old)
	s.old.bound.Store(0)
	s.old.buf.state.Store(bufLive)
	s.next.buf.state.Store(bufStaged)
	s.reclaimed, s.woken, s.epoch = false, false, 0
}

func (s *graceState) wake(th *thread, set uint64) {
	if set&(1<<3) != 0 {
		th.pause(nil)
		s.woken = true
	}
}

func (s *graceState) reader(shard int) func(*thread) {
	return func(th *thread) {
		if !s.online && s.plant != plantNoEnter {
			s.g.Enter(shard)
		}
		for i := range s.rounds {
			th.mark(uint64(i), 1)
			th.pause(nil)
			v, _ := s.tab.Check(s.key, 7, 17, RemoteWrite, 0, 1)
			if s.plant == plantEarly {
				s.wake(th, s.g.Quiesce(shard))
			}
			th.mark(uint64(i), 2, s.views[v])
			th.pause(nil) // the copy
			if v != nil && s.reclaimed {
				s.fail("shard %d copied through the old view after its grace", shard)
			}
			th.mark(uint64(i), 3)
			if s.plant == plantNoEnter || i == s.rounds-1 {
				continue
			}
			s.wake(th, s.g.Quiesce(shard))
		}
		if s.leaves || shard == 1 {
			s.wake(th, s.g.Leave(shard))
		} else { // online for good, it passes again and again: one pass after Start is enough
			th.wait(func() bool { return s.g.epoch.Load() > 1 })
			s.wake(th, s.g.Quiesce(shard))
		}
	}
}

func (s *graceState) writer(th *thread) {
	if !s.online {
		s.g.Enter(2)
	}
	th.mark(1)
	var e Epoch
	if s.plant == plantEpochLate {
		e = s.g.Start()
	}
	if s.rounds > 0 {
		if _, f := s.tab.Invalidate(s.key, 7, 17); f != FaultNone {
			s.fail("invalidate: %v", f)
		}
	}
	th.mark(2, uint64(e))
	switch {
	case s.plant == plantLazyNow:
		e = s.g.Next() - 1
	case s.lazy:
		e = s.g.Next()
	case s.plant != plantEpochLate:
		e = s.g.Start()
	}
	th.mark(3, uint64(e))
	th.pause(nil)
	s.epoch = e
	if s.rounds > 0 {
		if f := s.tab.Register(s.next, 7); f != FaultNone {
			s.fail("register: %v", f)
		}
	}
	th.mark(4)
	s.wake(th, s.g.Leave(2))
}

func (s *graceState) reclaimer(th *thread) {
	th.wait(func() bool { return s.epoch != 0 })
	for done := s.plant == plantNoWait; !done; {
		s.woken = false
		th.mark(1)
		switch {
		case s.polls, s.lazy:
			if done = s.g.Passed(s.epoch); !done {
				return // asking later is another schedule
			}
		case s.plant == plantWantLate:
			if done = s.g.Passed(s.epoch); done {
				break
			}
			s.g.wants[3].Store(uint64(s.epoch))
			th.pause(nil)
			s.g.want.Or(1 << 3)
			th.wait(func() bool { return s.woken })
		default:
			if done = s.g.Want(3, s.epoch); !done {
				th.wait(func() bool { return s.woken })
			}
		}
	}
	th.mark(3)
	th.pause(nil)
	s.reclaimed = true
}

// stageFast maps a page of its own and stages it under key, for every use.
func stageFast(tb testing.TB, tab *Table, key Key) *View {
	tb.Helper()
	if _, err := tab.Map(key.Index(), [][]byte{make([]byte, 64)}); err != nil {
		tb.Fatal(err)
	}
	num, err := tab.Stage(Region{Key: key,
		Access: LocalWrite | RemoteWrite | RemoteRead | MWBind, Length: 64})
	if err != nil {
		tb.Fatal(err)
	}
	return tab.Staged(key.Index(), num)
}

// TestGraceAllInterleavings: no interleaving lets a shard copy through a view after its grace, or
// leaves the waiter asleep.
func TestGraceAllInterleavings(t *testing.T) {
	for name, c := range map[string]graceConfig{
		"enter and leave": {rounds: 1, polls: true, leaves: true},
		"quiesce":         {rounds: 2, polls: true, leaves: true, online: true},
		"recycling":       {rounds: 2, lazy: true, leaves: true, online: true},
		"wake":            {rounds: 0, online: true},
	} {
		t.Run(name, func(t *testing.T) {
			if failure := graceModel(t, c).explore(t); failure != "" {
				t.Error(failure)
			}
		})
	}
}

// TestGraceCheckerFindsMistakes: the checker reports each planted one.
func TestGraceCheckerFindsMistakes(t *testing.T) {
	const unsafe, asleep = "copied through the old view", "waits for ever"
	for name, c := range map[string]struct {
		graceConfig
		want string
	}{
		"no enter": {graceConfig{rounds: 1, polls: true, leaves: true,
			plant: plantNoEnter}, unsafe},
		"no wait": {graceConfig{rounds: 1, online: true, polls: true,
			leaves: true, plant: plantNoWait}, unsafe},
		"early quiescent point": {graceConfig{rounds: 1, online: true, polls: true,
			leaves: true, plant: plantEarly}, unsafe},
		"epoch before unpublishing": {graceConfig{rounds: 2, online: true, polls: true,
			leaves: true, plant: plantEpochLate}, unsafe},
		"current epoch, not the next": {graceConfig{rounds: 2, online: true, lazy: true,
			leaves: true, plant: plantLazyNow}, unsafe},
		"asks before it registers": {graceConfig{online: true, leaves: true,
			plant: plantWantLate}, asleep},
	} {
		t.Run(name, func(t *testing.T) {
			if got := graceModel(t, c.graceConfig).explore(t); !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
