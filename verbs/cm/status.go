package cm

import (
	"context"
	"errors"
	"syscall"

	"github.com/roxie-rdma/roxie/internal/netdev"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
)

// rejection is the error for a REJ or a SIDR_REP that refuses.
func rejection(ev *rcm.Event) *RejectError {
	return &RejectError{Reason: ev.Reason, Status: ev.Status, Info: ev.Info, Private: ev.Private}
}

// statuses are the errnos that librdmacm's users know; the first that fits counts.
var statuses = []struct {
	err   error
	errno syscall.Errno
}{
	{ErrUnreachable, syscall.ETIMEDOUT},
	{context.DeadlineExceeded, syscall.ETIMEDOUT},
	{ErrNoAddress, syscall.EADDRNOTAVAIL},
	{ErrClosed, syscall.ENODEV},
	{netdev.ErrNoRoute, syscall.ENETUNREACH},
	{netdev.ErrNoNeighbour, syscall.EHOSTUNREACH},
}

// status is an event's Status.
func status(ev *Event) int {
	var rej *RejectError
	var errno syscall.Errno
	switch {
	case ev.Err == nil:
		return 0
	case errors.As(ev.Err, &rej) && rej.Status != 0:
		return int(rej.Status)
	case rej != nil:
		return int(rej.Reason)
	}
	for _, s := range statuses {
		if errors.Is(ev.Err, s.err) {
			return -int(s.errno)
		}
	}
	switch {
	case errors.As(ev.Err, &errno):
		return -int(errno)
	case errors.Is(ev.Err, ErrEnded):
		return 0
	}
	return -int(syscall.EINVAL)
}
