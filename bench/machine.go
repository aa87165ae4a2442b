package bench

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// This file asks the machine: who it is, and who used it.

// describeMachine says where the figures come from.
func describeMachine(r *Report) {
	r.Cores = runtime.NumCPU()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if key, value, ok := strings.Cut(in.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			r.CPU = strings.TrimSpace(value)
			return
		}
	}
}

// ticksPerSecond is the unit of /proc's times on Linux (USER_HZ).
const ticksPerSecond = 100

// field returns the number at a place of a text of words, 0 if there is none.
func field(words []string, i int) uint64 {
	if i >= len(words) {
		return 0
	}
	n, _ := strconv.ParseUint(words[i], 10, 64)
	return n
}

// statTicks is the CPU time of this process in ticks, by /proc/self/stat.
func statTicks() uint64 {
	b, _ := os.ReadFile("/proc/self/stat")
	_, after, _ := strings.Cut(string(b), ") ") // the name may hold anything
	words := strings.Fields(after)
	return field(words, 11) + field(words, 12) // utime, stime: 14 and 15 with pid and name
}

// rssNow is this process's memory in use, in bytes.
func rssNow() int64 {
	b, _ := os.ReadFile("/proc/self/statm")
	return int64(field(strings.Fields(string(b)), 1)) * int64(os.Getpagesize())
}

// memoryAvailable is how many bytes programs can still have.
func memoryAvailable() uint64 {
	b, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			return field(strings.Fields(rest), 0) << 10
		}
	}
	return 0
}

// times are CPU times in seconds.
type times struct{ user, system, children float64 }

// processTime is what this process has used.
func processTime() (t times) {
	var u, c unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &c)
	seconds := func(v unix.Timeval) float64 { return float64(v.Nano()) / 1e9 }
	return times{seconds(u.Utime), seconds(u.Stime), seconds(c.Utime) + seconds(c.Stime)}
}

// since is how many cores were used from before on, in elapsed seconds.
func (t times) since(before times, elapsed float64) (user, system float64) {
	return (t.user - before.user) / elapsed, (t.system - before.system) / elapsed
}

// usage is what all programs have used, and of that this one and those it started.
type usage struct{ busy, stolen, own float64 }

func machineTimes() (u usage) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	words := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal …
	for _, i := range []int{1, 2, 3, 6, 7} {
		u.busy += float64(field(words, i)) / ticksPerSecond
	}
	u.stolen = float64(field(words, 8)) / ticksPerSecond
	t := processTime()
	u.own = t.user + t.system + t.children
	return u
}

// since is how many cores others and the hypervisor took from before on.
func (u usage) since(before usage, seconds float64) (others, stolen float64) {
	others = ((u.busy - before.busy) - (u.own - before.own)) / seconds
	return max(others, 0), (u.stolen - before.stolen) / seconds
}
