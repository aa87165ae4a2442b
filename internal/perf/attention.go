package perf

import (
	"context"
	"sync/atomic"
)

// attention tells the loops of a run, which look at it all the time, that the other end has said
// something over TCP: to a passive end, that the test is over. It costs them one load.
type attention struct {
	// pending counts what nobody has taken yet. The end of the connection or of the run counts, too,
	// and is never taken.
	pending atomic.Int32
	over    atomic.Bool
	notify  atomic.Value // context.CancelFunc, see onLine
}

func (a *attention) wake() {
	a.pending.Add(1)
	if f, ok := a.notify.Load().(context.CancelFunc); ok {
		f()
	}
}

// end is wake for the last time: connection or run have ended.
func (a *attention) end() {
	a.over.Store(true)
	a.wake()
}

// taken notes that what wake told of has been dealt with.
func (a *attention) taken() { a.pending.Add(-1) }

// waiting says whether there is something that nobody has taken, or connection or run have ended.
func (a *attention) waiting() bool { return a.pending.Load() > 0 }

// ended says whether the connection or the run has ended.
func (a *attention) ended() bool { return a.over.Load() }

// onLine sets what is called when something has come or the run is cancelled, at once if that is so.
func (a *attention) onLine(f context.CancelFunc) {
	a.notify.Store(f)
	if a.waiting() {
		f()
	}
}
