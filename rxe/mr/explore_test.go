package mr

import (
	"fmt"
	"hash/maphash"
	"iter"
	"sync/atomic"
	"testing"
)

// This file is an exhaustive checker: it runs the package's own code, pausing before each shared
// access, through every interleaving of a few threads. Interleavings that lead to a state seen
// before are cut. A state is all shared words, and for each thread what it has read since its last
// mark, which is all that its local variables can depend on.

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
	seen    map[state]struct{}
	seed    maphash.Seed
	current *thread
	run     []*thread
	runs    int
}

type state struct {
	shared uint64
	local  [4]uint64
}

// thread is one thread of a run.
type thread struct {
	m       *model
	next    func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
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
	at := th.m.index(p)
	th.mix(uint64(at))
	if !th.yield(struct{}{}) {
		panic(stopped{})
	}
	switch {
	case p == nil:
		th.mix(th.m.table())
	case at >= th.m.flow:
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
	if raceEnabled {
		tb.Skip("one thread runs at a time: nothing for the race detector, which is slow")
	}
	m.seed, m.seen = maphash.MakeSeed(), make(map[state]struct{})
	m.g.step = func(p *atomic.Uint64) { m.current.pause(p) }
	m.tab.step = func() { m.current.pause(nil) }
	defer func() { m.g.step, m.tab.step = nil, nil }()
	work := [][]byte{nil}
	for len(work) > 0 && m.failure == "" {
		schedule := work[len(work)-1]
		work = m.follow(schedule, work[:len(work)-1])
	}
	tb.Logf("%d states, %d runs", len(m.seen), m.runs)
	return m.failure
}

// follow runs one schedule, goes on to the first state seen before, and adds the choices it left.
func (m *model) follow(schedule []byte, work [][]byte) [][]byte {
	m.runs++
	m.start()
	for _, c := range schedule {
		m.step(m.run[c])
	}
	schedule = append([]byte(nil), schedule...)
	for m.failure == "" {
		s := m.state()
		if _, ok := m.seen[s]; ok {
			break
		}
		m.seen[s] = struct{}{}
		first := -1
		for i, th := range m.run {
			if th.ended || th.blocked != nil && th.blocked() {
				continue
			}
			if first < 0 {
				first = i
				continue
			}
			work = append(work, append(append([]byte(nil), schedule...), byte(i)))
		}
		if first < 0 {
			m.end()
			break
		}
		schedule = append(schedule, byte(first))
		m.step(m.run[first])
	}
	if m.failure != "" {
		m.failure += fmt.Sprintf(" (schedule %v)", schedule)
	}
	for _, th := range m.run {
		th.stop()
	}
	return work
}
