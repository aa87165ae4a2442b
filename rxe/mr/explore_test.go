package mr

import (
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
)

// This file is an exhaustive checker: it runs the package's own code, pausing before each shared
// access, through every interleaving of a few threads. Interleavings that lead to a state seen
// before are cut. A state is all shared words, and for each thread what it has read since its last
// mark, which is all that its local variables can depend on. Of two accesses to different words,
// one order is enough (sleep sets): that leaves out ways to a state, never a state.

// model is a set of threads over one table and grace.
type model struct {
	tab     *Table
	g       *Grace
	words   []*atomic.Uint64 // all shared words of g
	flow    int              // words below are only compared: what follows tells how it went
	table   func() uint64    // what the package reads of the table
	shared  func() uint64    // the state of everything that threads share beside words
	threads []func(*thread)
	reset   func() // back to the start
	end     func() // called when all threads have ended or block; calls fail if that is wrong

	failure string
	seen    map[state]sleep
	seed    maphash.Seed
	current *thread
	run     []*thread
	runs    int
}

type state struct {
	shared uint64
	local  [4]uint64
}

// sleep is a set of threads whose next step was explored from elsewhere, by bit.
type sleep uint8

// choice is a schedule, by the thread's number, and what sleeps at its end.
type choice struct {
	schedule []byte
	sleep    sleep
}

// thread is one thread of a run.
type thread struct {
	m       *model
	next    func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
	at      int         // index of the word that is accessed next
	local   uint64      // hash of what was read since mark
	blocked func() bool // nil: can run
	ended   bool
}

type stopped struct{}

// fail notes a violation; the first counts.
func (m *model) fail(format string, args ...any) {
	if m.failure == "" {
		m.failure = fmt.Sprintf(format, args...)
	}
}

// pause lets other threads run before an access to *p, or, for nil, to what m.table hashes.
func (th *thread) pause(p *atomic.Uint64) {
	th.at = th.m.index(p)
	th.mix(uint64(th.at))
	if !th.yield(struct{}{}) {
		panic(stopped{})
	}
	switch {
	case p == nil:
		th.mix(th.m.table())
	case th.at >= th.m.flow:
		th.mix(p.Load())
	}
}

// wait blocks the thread until ready says so.
func (th *thread) wait(ready func() bool) {
	th.blocked = func() bool { return !ready() }
	th.pause(nil)
	th.blocked = nil
}

// mark says that the thread depends on nothing but these values from here on.
func (th *thread) mark(values ...uint64) {
	th.local = 0
	th.mix(values...)
}

func (th *thread) mix(values ...uint64) {
	for _, v := range values {
		th.local = maphash.Comparable(th.m.seed, [2]uint64{th.local, v})
	}
}

func (m *model) index(p *atomic.Uint64) int {
	if p == nil {
		return len(m.words)
	}
	for i, w := range m.words {
		if w == p {
			return i
		}
	}
	panic("a word the model does not know")
}

func (m *model) start() {
	m.reset()
	m.run = m.run[:0]
	for _, body := range m.threads {
		th := &thread{m: m}
		th.next, th.stop = iter.Pull(func(yield func(struct{}) bool) {
			defer func() {
				if r := recover(); r != nil && r != any(stopped{}) {
					panic(r)
				}
			}()
			th.yield = yield
			body(th)
		})
		m.run = append(m.run, th)
		m.step(th) // to the first pause
	}
}

func (m *model) step(th *thread) {
	m.current = th
	_, more := th.next()
	th.ended = !more
}

func (m *model) state() (s state) {
	h := m.shared()
	for _, w := range m.words {
		h = maphash.Comparable(m.seed, [2]uint64{h, w.Load()})
	}
	s.shared = h
	for i, th := range m.run {
		s.local[i] = th.local
		if th.ended {
			s.local[i] = ^uint64(0)
		}
	}
	return s
}

// explore runs every interleaving, and returns the first violation with the schedule that leads to
// it, "" if there is none.
func (m *model) explore(tb testing.TB) string {
	m.seed, m.seen = maphash.MakeSeed(), make(map[state]sleep)
	m.g.step = func(p *atomic.Uint64) { m.current.pause(p) }
	m.tab.step = func() { m.current.pause(nil) }
	defer func() { m.g.step, m.tab.step = nil, nil }()
	work := []choice{{}}
	for len(work) > 0 && m.failure == "" {
		c := work[len(work)-1]
		work = m.follow(c, work[:len(work)-1])
	}
	tb.Logf("%d states, %d runs", len(m.seen), m.runs)
	return m.failure
}

// follow runs one schedule, goes on to the first state with nothing new, and adds the choices it
// left.
func (m *model) follow(c choice, work []choice) []choice {
	m.runs++
	m.start()
	for _, i := range c.schedule {
		m.step(m.run[i])
	}
	c.schedule = slices.Clone(c.schedule)
	for m.failure == "" {
		enabled := m.enabled()
		if enabled == 0 {
			m.end()
			break
		}
		s, explore := m.state(), enabled&^c.sleep
		if was, ok := m.seen[s]; ok {
			explore &= was
			m.seen[s] = was & c.sleep
		} else {
			m.seen[s] = c.sleep
		}
		if explore == 0 {
			break
		}
		var next choice
		asleep := c.sleep
		for i, th := range m.run {
			if explore&(1<<i) == 0 {
				continue
			}
			then := choice{append(slices.Clone(c.schedule), byte(i)), m.independent(asleep, th)}
			asleep |= 1 << i
			if next.schedule == nil {
				next = then
			} else {
				work = append(work, then)
			}
		}
		c = next
		m.step(m.run[c.schedule[len(c.schedule)-1]])
	}
	if m.failure != "" {
		m.failure += fmt.Sprintf(" (schedule %v)", c.schedule)
	}
	for _, th := range m.run {
		th.stop()
	}
	return work
}

// enabled returns the threads that can run.
func (m *model) enabled() (set sleep) {
	for i, th := range m.run {
		if !th.ended && (th.blocked == nil || !th.blocked()) {
			set |= 1 << i
		}
	}
	return set
}

// independent returns those of set whose next access is to another word than th's. A thread that
// waits looks at everything.
func (m *model) independent(set sleep, th *thread) (out sleep) {
	for i, other := range m.run {
		if set&(1<<i) != 0 && other.at != th.at && other.blocked == nil && th.blocked == nil {
			out |= 1 << i
		}
	}
	return out
}
