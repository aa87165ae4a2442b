package lab

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on an operating system thread of its own, which ends afterwards, so that
// whatever f changed about it (its namespaces) can meet no other goroutine. It returns when f has.
// A panic in f goes on in the caller; if f ends by runtime.Goexit (t.FailNow), so does the caller.
func onOwnThread(f func()) {
	var (
		finished bool
		panicked any
		stack    []byte
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)
		defer func() {
			if !finished {
				panicked, stack = recover(), debug.Stack()
			}
		}()
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end, and /proc/self tells its namespaces. Keep it from the
			// next goroutine, which thereby gets another.
			defer runtime.UnlockOSThread()
			onOwnThread(f)
			finished = true
			return
		}
		f()
		finished = true
	}()
	<-done
	switch {
	case finished:
	case panicked != nil:
		panic(fmt.Sprintf("%v\n\non the thread of a namespace:\n%s", panicked, stack))
	default:
		runtime.Goexit()
	}
}
