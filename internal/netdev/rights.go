package netdev

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// A Cap is a Linux capability (linux/capability.h).
type Cap uint8

// The capabilities that roxie has a use for.
const (
	CapNetAdmin    Cap = unix.CAP_NET_ADMIN    // attach an XDP program, set busy polling
	CapNetRaw      Cap = unix.CAP_NET_RAW      // open an AF_XDP socket
	CapIPCLock     Cap = unix.CAP_IPC_LOCK     // lock memory beyond RLIMIT_MEMLOCK
	CapSysAdmin    Cap = unix.CAP_SYS_ADMIN    // enter another network namespace
	CapSysResource Cap = unix.CAP_SYS_RESOURCE // raise RLIMIT_MEMLOCK
	CapBPF         Cap = unix.CAP_BPF          // load the XDP program and its maps
)

var capNames = map[Cap]string{
	CapNetAdmin:    "CAP_NET_ADMIN",
	CapNetRaw:      "CAP_NET_RAW",
	CapIPCLock:     "CAP_IPC_LOCK",
	CapSysAdmin:    "CAP_SYS_ADMIN",
	CapSysResource: "CAP_SYS_RESOURCE",
	CapBPF:         "CAP_BPF",
}

// String returns the name as capabilities(7) spells it.
func (c Cap) String() string {
	if name, ok := capNames[c]; ok {
		return name
	}
	return fmt.Sprintf("capability %d", uint8(c))
}

// HaveCap reports whether a capability is in force for the calling thread. CAP_SYS_ADMIN counts as
// CAP_BPF, as it does for the kernel. A capability in force in a user namespace of its own may not
// be worth anything on an interface that belongs to the machine.
func HaveCap(c Cap) bool {
	have, err := effectiveCaps()
	if err != nil {
		return false
	}
	return have&(1<<c) != 0 || c == CapBPF && have&(1<<CapSysAdmin) != 0
}

// effectiveCaps reads the calling thread's effective set, bit n for capability n.
func effectiveCaps() (uint64, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// A CapError tells which capabilities the process lacks.
type CapError struct{ Missing []Cap }

// Error names the capabilities and the ways to get them.
func (e *CapError) Error() string {
	names := make([]string, len(e.Missing))
	for i, c := range e.Missing {
		names[i] = c.String()
	}
	list := strings.Join(names, ",")
	return fmt.Sprintf("missing %s: run as root, or allow it with `setcap %s+ep FILE`",
		strings.Join(names, ", "), strings.ToLower(list))
}

// RequireCaps returns a *CapError with those of the capabilities that HaveCap denies, or nil.
func RequireCaps(caps ...Cap) error {
	var missing []Cap
	for _, c := range caps {
		if !HaveCap(c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &CapError{Missing: missing}
}

// A MemlockError tells that the process may not lock as much memory as it needs.
type MemlockError struct {
	Need, Limit uint64 // bytes
}

// Error names the limit and the ways to raise it.
func (e *MemlockError) Error() string {
	kib := (e.Need + 1023) / 1024
	return fmt.Sprintf("%d KiB of memory must be locked, the limit is %d KiB: raise it with "+
		"`ulimit -l %d` as root or LimitMEMLOCK=%dK in the systemd unit, or give CAP_IPC_LOCK",
		kib, e.Limit/1024, kib, kib)
}

// RaiseMemlock sees to it that the process may lock need bytes of memory, by raising its limit
// RLIMIT_MEMLOCK as far as it must. It changes nothing where CAP_IPC_LOCK lifts the limit. The
// kernel counts memory that AF_XDP sockets lock for each user over all processes, so that a
// sufficient limit may still turn out too low. The error is a *MemlockError.
func RaiseMemlock(need uint64) error {
	if HaveCap(CapIPCLock) {
		return nil
	}
	return raiseMemlock(need)
}

func raiseMemlock(need uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read RLIMIT_MEMLOCK: %w", err)
	}
	if limit.Cur >= need {
		return nil
	}
	raised := unix.Rlimit{Cur: need, Max: max(need, limit.Max)}
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &raised)
	if errors.Is(err, unix.EPERM) {
		return &MemlockError{Need: need, Limit: limit.Max}
	} else if err != nil {
		return fmt.Errorf("raise RLIMIT_MEMLOCK to %d bytes: %w", need, err)
	}
	return nil
}
