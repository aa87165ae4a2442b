package rxe

import (
	"fmt"
	"testing"
)

// This file looks for lost wake-ups of a CQ: every order in which the steps of two shards that push
// and of an application that arms, polls and sleeps can follow each other.

// armCase is what the three threads do.
type armCase struct {
	name      string
	solicited bool      // how the application arms
	cqes      [2][]bool // completions by lane: whether solicited
	careless  bool      // the application does not poll again after arming
}

// armWorld is a CQ with two lanes and the threads' places.
type armWorld struct {
	c       armCase
	cq      *CQ
	events  int             // raised and not yet taken
	got     map[uint64]bool // polled
	due     map[uint64]bool // completions not to be slept through
	threads [3]armThread    // two shards, the application
	logging bool
	log     []string
}

// armThread is a thread cut at every access to what it shares: next is its next step, nil at its
// end. While it sleeps the step needs an event.
type armThread struct {
	next   func()
	sleeps bool
}

func newArmWorld(c armCase) *armWorld {
	w := &armWorld{c: c, got: map[uint64]bool{}, due: map[uint64]bool{}}
	w.cq = &CQ{lanes: make([]*cqLane, 2)}
	w.cq.depth.Store(8)
	for lane := range c.cqes {
		w.cq.attach(lane)
		w.push(lane, 0)
	}
	w.poll(w.idle)
	return w
}

// push sets the shard of a lane to its i-th completion.
func (w *armWorld) push(lane, i int) {
	th := &w.threads[lane]
	if th.next = nil; i == len(w.c.cqes[lane]) {
		return
	}
	e := &CQE{WRID: uint64(100*lane + i)}
	solicited := w.c.cqes[lane][i]
	fire := func() {
		w.note("%d fires", e.WRID)
		if w.cq.fire() {
			w.events++
		}
		w.push(lane, i+1)
	}
	look := func() {
		w.note("%d looks", e.WRID)
		if w.push(lane, i+1); w.cq.wants(e, solicited) {
			th.next = fire
		}
	}
	th.next = func() {
		w.note("%d is there", e.WRID)
		w.cq.used.Add(1) // nothing here looks at it
		w.cq.lanes[lane].put(e)
		w.due[e.WRID] = solicited || !w.c.solicited
		th.next = look
	}
}

// poll sets the application to polling one lane and then the other; then gets the number found.
func (w *armWorld) poll(then func(n int)) {
	th, total := &w.threads[2], 0
	lane := func(i int) {
		var b [8]CQE
		n := w.cq.lanes[i].poll(b[:], &w.cq.used)
		for _, e := range b[:n] {
			w.got[e.WRID] = true
		}
		w.note("polls %d", n)
		total += n
	}
	th.next = func() {
		lane(0)
		th.next = func() {
			lane(1)
			then(total)
		}
	}
}

// idle: everything there was is polled; the application asks for an event, polls again, sleeps.
func (w *armWorld) idle(int) {
	th := &w.threads[2]
	if len(w.got) == len(w.c.cqes[0])+len(w.c.cqes[1]) {
		th.next = nil
		return
	}
	th.next = func() {
		w.note("arms")
		w.cq.Arm(w.c.solicited)
		if w.c.careless {
			w.sleep(0)
			return
		}
		w.poll(w.sleep)
	}
}

func (w *armWorld) sleep(found int) {
	th := &w.threads[2]
	if found > 0 {
		w.idle(0)
		return
	}
	th.sleeps = true
	th.next = func() {
		w.note("wakes")
		th.sleeps, w.events = false, 0
		w.poll(w.idle)
	}
}

func (w *armWorld) note(format string, a ...any) {
	if w.logging {
		w.log = append(w.log, fmt.Sprintf(format, a...))
	}
}

// run follows a schedule, then takes the first thread that can move, until none can. It returns how
// many could at each point.
func (w *armWorld) run(schedule []int) (width []int) {
	for {
		var can []*armThread
		for i := range w.threads {
			if th := &w.threads[i]; th.next != nil && (!th.sleeps || w.events > 0) {
				can = append(can, th)
			}
		}
		if len(can) == 0 {
			return width
		}
		at := 0
		if len(width) < len(schedule) {
			at = schedule[len(width)]
		}
		width = append(width, len(can))
		can[at].next()
	}
}

// lost is a completion that the application sleeps through, if there is one.
func (w *armWorld) lost() bool {
	for id, due := range w.due {
		if due && !w.got[id] {
			return true
		}
	}
	return false
}

// explore runs all schedules and returns their number and the log of one that loses a wake-up.
func explore(c armCase) (runs int, bad []string) {
	var schedule []int
	for {
		w := newArmWorld(c)
		width := w.run(schedule)
		if runs++; w.lost() {
			w = newArmWorld(c)
			w.logging = true
			w.run(schedule)
			return runs, w.log
		}
		for len(schedule) < len(width) {
			schedule = append(schedule, 0)
		}
		at := len(width) - 1
		for ; at >= 0 && schedule[at] == width[at]-1; at-- {
		}
		if at < 0 {
			return runs, nil
		}
		schedule[at]++
		schedule = schedule[:at+1]
	}
}

// TestCase43NoLostWakeup: in no order of steps does an application sleep while a completion it asked
// to be told of is there. One that does not poll again after arming does, and is found.
func TestCase43NoLostWakeup(t *testing.T) {
	n, y := false, true
	for _, c := range []armCase{
		{name: "one shard, one completion", cqes: [2][]bool{{n}}},
		{name: "one shard, two completions", cqes: [2][]bool{{n, n}}},
		{name: "two shards", cqes: [2][]bool{{n}, {n}}},
		{name: "solicited", solicited: true, cqes: [2][]bool{{y}}},
		{name: "solicited after another", solicited: true, cqes: [2][]bool{{n, y}}},
		{name: "solicited on one of two shards", solicited: true, cqes: [2][]bool{{n}, {y}}},
		{name: "careless", careless: true, cqes: [2][]bool{{n}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs, bad := explore(c)
			t.Logf("%d orders", runs)
			if (bad != nil) != c.careless {
				t.Fatalf("lost wake-up found: %v\n%q", bad != nil, bad)
			}
		})
	}
}
