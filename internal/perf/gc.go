package perf

import (
	"runtime"
	"runtime/debug"
	"time"
)

// GC is what the garbage collector does in the process of an end while it is measured.
type GC string

// The ways to disturb. Without one, the collector is left alone, and has nothing to do.
const (
	GCOff    GC = "off"    // it never runs
	GCForced GC = "forced" // it runs every 100 ms
	GCChurn  GC = "churn"  // it runs as often as a goroutine that allocates without pause makes it
)

const (
	gcEvery   = 100 * time.Millisecond
	churnSize = 4 << 10 // of each object
	churnKept = 1 << 10 // objects alive
	churnRest = 10 * time.Microsecond
)

// start does what g says until the result is called.
func (g GC) start() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	run := func(f func()) {
		go func() {
			defer close(done)
			for {
				select {
				case <-quit:
					return
				default:
					f()
				}
			}
		}()
	}
	switch g {
	case GCForced:
		debug.SetGCPercent(-1) // none besides
		run(func() {
			time.Sleep(gcEvery)
			runtime.GC()
		})
	case GCChurn:
		kept := make([][]byte, churnKept)
		n := 0
		run(func() {
			for range 16 {
				kept[n%churnKept] = make([]byte, churnSize)
				n++
			}
			time.Sleep(churnRest)
		})
	case GCOff:
		debug.SetGCPercent(-1)
		close(done)
	default:
		close(done)
	}
	return func() {
		close(quit)
		<-done
	}
}
