package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var (
	// ErrClosed is returned by methods of a closed [Program].
	ErrClosed = errors.New("steering program is closed")
	// ErrAttached is returned by [Program.Attach] if the program is attached already.
	ErrAttached = errors.New("steering program is attached already")
	// ErrNotSupported matches a [ModeError] of a driver, or the error of a kernel, that cannot do
	// what was asked for.
	ErrNotSupported = errors.New("not supported")
	// ErrNoInterface is returned where an ifindex names no interface of the calling thread's
	// network namespace.
	ErrNoInterface = errors.New("no such interface in this network namespace")
	// ErrTableFull is returned by [Program.Add] if Config.Addresses are in the table.
	ErrTableFull = errors.New("address table is full")
)

// ForeignError reports an XDP program that is on the interface already. It is never replaced.
type ForeignError struct {
	Ifindex   int
	Interface string
	ID        uint32 // the program's id, as in bpftool prog show
	Name      string // the program's name; empty if it may not be read (CAP_SYS_ADMIN)
	Mode      Mode   // where it is attached: Native (or in hardware), Generic
	PID       int    // a process that holds it; 0 if none was found
	Command   string // that process's name
}

// Roxie reports whether the program is another roxie's, by its name.
func (e *ForeignError) Roxie() bool { return e.Name == steerProgRoxieSteer }

// Error names the program, its holder and the way out.
func (e *ForeignError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s has an XDP program already: id %d", e.Interface, e.ID)
	if e.Name != "" {
		fmt.Fprintf(&b, " (%s)", e.Name)
	}
	fmt.Fprintf(&b, ", %s mode", e.Mode)
	switch {
	case e.PID != 0:
		fmt.Fprintf(&b, ", held by process %d (%s): stop it or use another interface",
			e.PID, e.Command)
	case e.Roxie():
		b.WriteString(", another roxie: stop it or use another interface")
	default:
		fmt.Fprintf(&b, ": detach it (%s) or use another interface", e.detachCommand())
	}
	return b.String()
}

// detachCommand takes a program off that no process holds. The mode has to be told: `xdp off` means
// the driver's wherever there is one.
func (e *ForeignError) detachCommand() string {
	mode := "xdpdrv"
	if e.Mode == Generic {
		mode = "xdpgeneric"
	}
	return fmt.Sprintf("ip link set %s %s off", e.Interface, mode)
}

// ModeError reports that an interface refused the program in a mode.
type ModeError struct {
	Interface string
	MTU       int
	Mode      Mode
	Err       error // of the kernel: a wrapped unix.Errno
}

// Error names the likely cause and its cure.
func (e *ModeError) Error() string {
	return fmt.Sprintf("attach in %s mode to %s: %s (%v)",
		e.Mode, e.Interface, e.hint(), cause(e.Err))
}

// Unwrap returns the kernel's error.
func (e *ModeError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrNotSupported) hold for a mode the driver does not have.
func (e *ModeError) Is(target error) bool {
	return target == ErrNotSupported && errors.Is(e.Err, unix.EOPNOTSUPP)
}

func (e *ModeError) hint() string {
	switch cause(e.Err) {
	case unix.EOPNOTSUPP:
		return "the driver has no XDP in this mode, or not with its present offloads"
	case unix.ERANGE, unix.EMSGSIZE, unix.E2BIG:
		return fmt.Sprintf("the MTU is too large for XDP in this driver: "+
			"lower that of the interface (now %d) or of its veth peer", e.MTU)
	case unix.ENOSPC:
		return "too few receive queues: a veth needs as many as its peer has transmit queues " +
			"(ethtool -L)"
	case unix.ENOTCONN:
		return "the veth has no peer"
	case unix.ENOMEM:
		return "no memory, or too few free TX rings: lower the channels (ethtool -L)"
	case unix.EINVAL:
		return fmt.Sprintf("the driver refused, often for the MTU (now %d), LRO or the number of "+
			"channels: the kernel log may say more", e.MTU)
	}
	return "the kernel refused"
}

// CapabilityError reports a system call that failed for lack of privilege.
type CapabilityError struct {
	Op      string   // what was tried: "load the steering program"
	Missing []string // names of needed capabilities that are not effective
	Err     error    // of the kernel: a wrapped unix.EPERM or unix.EACCES
}

// Error names the missing capabilities and the way to get them.
func (e *CapabilityError) Error() string {
	if len(e.Missing) == 0 {
		return e.Op + ": permission denied although the capabilities are there: bpf(2) needs them " +
			"in the initial user namespace, and no seccomp filter against it"
	}
	names := strings.Join(e.Missing, " and ")
	return fmt.Sprintf("%s: missing %s: run as root, or setcap %s+ep on the binary",
		e.Op, names, strings.ToLower(strings.Join(e.Missing, ",")))
}

// Unwrap returns the kernel's error.
func (e *CapabilityError) Unwrap() error { return e.Err }

// cause returns the errno in err, or err itself.
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// permission turns EPERM and EACCES into a CapabilityError, unless the verifier gave them.
func permission(op string, err error) error {
	var rejected *ebpf.VerifierError
	if !errors.Is(err, os.ErrPermission) || errors.As(err, &rejected) {
		return fmt.Errorf("%s: %w", op, err)
	}
	return &CapabilityError{Op: op, Missing: missingCapabilities(), Err: err}
}

// missingCapabilities returns which of the needed capabilities the calling thread lacks.
// CAP_SYS_ADMIN stands in for both.
func missingCapabilities() []string {
	f, err := os.Open("/proc/thread-self/status")
	if err != nil {
		return nil
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		hex, ok := strings.CutPrefix(sc.Text(), "CapEff:")
		if !ok {
			continue
		}
		have, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil || have>>unix.CAP_SYS_ADMIN&1 != 0 {
			return nil
		}
		var missing []string
		if have>>unix.CAP_BPF&1 == 0 {
			missing = append(missing, "CAP_BPF")
		}
		if have>>unix.CAP_NET_ADMIN&1 == 0 {
			missing = append(missing, "CAP_NET_ADMIN")
		}
		return missing
	}
	return nil
}
