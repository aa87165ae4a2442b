package xdp

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors a caller may test for with errors.Is.
var (
	// ErrClosed is returned by control calls on a Socket or UMEM that was closed.
	ErrClosed = errors.New("closed")
	// ErrGone says that the interface under the socket was deleted. The socket moves no frame any
	// more and can only be closed.
	ErrGone = errors.New("interface is gone")
	// ErrDown says that the interface is administratively down. The socket works again once it is
	// up.
	ErrDown = errors.New("interface is down")
	// ErrZeroCopy says that Config.ZeroCopy was Require and the driver or its settings refuse it.
	ErrZeroCopy = errors.New("zero-copy not available")
	// ErrNotSupported says that the kernel lacks something the Config asked for.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrInUse is returned by UMEM.Close while sockets still use the memory.
	ErrInUse = errors.New("in use")
)

// BusyError says that another socket is bound to the queue. Open returns it after having retried
// for about a second, because the kernel frees a closed socket's queue with some delay.
type BusyError struct {
	Interface string   // name of the interface
	Queue     int      // queue index
	Holders   []Holder // who has AF_XDP sockets on the queue; empty if that could not be found out
}

// Holder is a process that has an AF_XDP socket on a queue.
type Holder struct {
	PID     int    // process id as seen in /proc
	Command string // the process's command name
}

// Error names the holders and the way out.
func (e *BusyError) Error() string {
	where := fmt.Sprintf("queue %d of %s is in use", e.Queue, e.Interface)
	if len(e.Holders) == 0 {
		return where + " by another AF_XDP socket whose process is not to be seen from here;" +
			" stop it or take another queue"
	}
	who := make([]string, len(e.Holders))
	for i, h := range e.Holders {
		who[i] = fmt.Sprintf("%s (pid %d)", h.Command, h.PID)
	}
	return where + " by " + strings.Join(who, ", ") + "; stop it or take another queue"
}

// Unwrap makes errors.Is(err, unix.EBUSY) true.
func (e *BusyError) Unwrap() error { return unix.EBUSY }

// adviseSocket turns the errno of socket(AF_XDP) into something a user can act on.
func adviseSocket(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("open AF_XDP socket: %w (needs CAP_NET_RAW: run as root, or pass an"+
			" opened socket in Config.Socket)", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("open AF_XDP socket: %w: %w (kernel built without CONFIG_XDP_SOCKETS)",
			ErrNotSupported, err)
	}
	return fmt.Errorf("open AF_XDP socket: %w", err)
}

// adviseUMEM does the same for the registration of size bytes of packet memory.
func adviseUMEM(err error, size int) error {
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		var lim unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
			return fmt.Errorf("register %d KiB of packet memory: %w (locked memory is limited to"+
				" %d KiB for this user: raise `ulimit -l`, grant CAP_IPC_LOCK, or lower"+
				" Config.FillDepth and Config.TXFrames)", size>>10, err, lim.Cur>>10)
		}
	}
	return fmt.Errorf("register %d KiB of packet memory: %w", size>>10, err)
}

// adviseBind does the same for bind.
func adviseBind(err error, c *Config, ifname string) error {
	what := fmt.Sprintf("bind to queue %d of %s", c.Queue, ifname)
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s: %w (no such queue, or the kernel is older than 6.6 and knows no"+
			" multi-buffer frames, or the socket was restricted to another interface)", what, err)
	case errors.Is(err, unix.EOPNOTSUPP) && c.ZeroCopy == Require:
		return fmt.Errorf("%s: %w: %w (driver, MTU, chunk size or multi-buffer forbid it; use"+
			" ZeroCopy: Auto)", what, ErrZeroCopy, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%s: %w: %w", what, ErrGone, err)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%s: %w: %w (ip link set %s up)", what, ErrDown, err, ifname)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w (needs CAP_NET_RAW)", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
