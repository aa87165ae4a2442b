package xdp

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// holders finds the processes that have an AF_XDP socket bound to the queue, as far as /proc shows
// and the rights go (CAP_SYS_PTRACE for other users' processes). It runs only on the way to an
// error.
//
// Socket diagnostics for AF_XDP are rarely built into kernels, and neither /proc nor getsockname
// tells what such a socket is bound to. But bind does: to share the memory of a socket on the same
// queue is EINVAL for one that has fill and completion rings of its own, to share that of any
// other is EBUSY while the queue is taken. So each candidate is borrowed for one bind that always
// fails.
func holders(ifindex, queue int) []Holder {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	rings := map[string]bool{}    // AF_XDP sockets, as "socket:[inode]"
	mapsOf := map[string]string{} // by process
	for _, p := range procs {
		maps, _ := os.ReadFile(p + "/maps")
		mapsOf[p] = string(maps)
		for line := range strings.Lines(string(maps)) {
			if name, ok := fillRing(line); ok {
				rings[name] = true
			}
		}
	}
	bound := map[string]bool{} // those on the queue
	probed := map[string]bool{}
	fdsOf := map[string][]string{} // AF_XDP sockets open, by process
	for _, p := range procs {
		fds, _ := os.ReadDir(p + "/fd")
		for _, f := range fds {
			name, err := os.Readlink(p + "/fd/" + f.Name())
			if err != nil || !rings[name] {
				continue
			}
			fdsOf[p] = append(fdsOf[p], name)
			if !probed[name] {
				probed[name] = true
				bound[name] = boundTo(p, f.Name(), ifindex, queue)
			}
		}
	}
	if found := who(procs, func(p string) bool {
		return containsAny(fdsOf[p], bound) || mapsAny(mapsOf[p], bound)
	}); len(found) != 0 {
		return found
	}
	// A ring mapped by a process that has closed its socket keeps the queue bound too, but nothing
	// can be asked about it.
	return who(procs, func(p string) bool {
		for line := range strings.Lines(mapsOf[p]) {
			if name, ok := fillRing(line); ok && !probed[name] {
				return true
			}
		}
		return false
	})
}

// who lists the processes that match.
func who(procs []string, match func(proc string) bool) []Holder {
	var found []Holder
	for _, p := range procs {
		if match(p) {
			pid, _ := strconv.Atoi(filepath.Base(p))
			comm, _ := os.ReadFile(p + "/comm")
			found = append(found, Holder{PID: pid, Command: strings.TrimSpace(string(comm))})
		}
	}
	return found
}

// fillRing reads a line of /proc/PID/maps and says whether it is the fill ring of an AF_XDP
// socket, which its offset tells, and of which.
func fillRing(line string) (socket string, ok bool) {
	f := strings.Fields(line)
	if len(f) < 6 || !strings.HasPrefix(f[5], "socket:[") {
		return "", false
	}
	off, err := strconv.ParseUint(f[2], 16, 64)
	return f[5], err == nil && off == unix.XDP_UMEM_PGOFF_FILL_RING
}

func containsAny(names []string, set map[string]bool) bool {
	for _, n := range names {
		if set[n] {
			return true
		}
	}
	return false
}

func mapsAny(maps string, set map[string]bool) bool {
	for line := range strings.Lines(maps) {
		if i := strings.Index(line, "socket:["); i >= 0 && set[strings.TrimSpace(line[i:])] {
			return true
		}
	}
	return false
}

// boundTo says whether descriptor fd of a process is a socket bound to the queue.
func boundTo(proc, fd string, ifindex, queue int) bool {
	pid, _ := strconv.Atoi(filepath.Base(proc))
	n, _ := strconv.Atoi(fd)
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	theirs, err := unix.PidfdGetfd(pidfd, n, 0)
	if err != nil {
		return false
	}
	defer unix.Close(theirs)
	probe, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(probe)
	for _, opt := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING,
		unix.XDP_RX_RING} {
		if unix.SetsockoptInt(probe, unix.SOL_XDP, opt, 8) != nil {
			return false
		}
	}
	err = unix.Bind(probe, &unix.SockaddrXDP{
		Flags:        unix.XDP_SHARED_UMEM,
		Ifindex:      uint32(ifindex),
		QueueID:      uint32(queue),
		SharedUmemFD: uint32(theirs),
	})
	return errors.Is(err, unix.EINVAL)
}
