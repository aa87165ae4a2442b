package verbs

import (
	"time"

	"golang.org/x/sys/unix"
)

// pinThread keeps the calling thread, which the goroutine is locked to, on one CPU.
func pinThread(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
}

// preciseThread lets the calling thread sleep to the microsecond instead of 50, until restore.
func preciseThread() (restore func()) {
	const precise = 1000 // ns; 0 restores the default
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, precise, 0, 0, 0)
	return restoreSlack
}

func restoreSlack() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }

// sleepThread sleeps for d with its thread: the runtime's own timers count in milliseconds.
func sleepThread(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}

// yieldCPU offers the CPU to other threads, of other processes too. To the runtime it is as if the
// kernel had taken the CPU away: its monitor need not look after that.
func yieldCPU() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
