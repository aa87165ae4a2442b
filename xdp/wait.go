package xdp

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Woken says what ended a Wait; it may be several things at once.
type Woken uint8

// What may end a Wait. None of them: the time is over.
const (
	WokenRX   Woken = 1 << iota // frames have arrived
	WokenFD                     // Config.WakeFD is readable
	WokenGone                   // the interface is gone, or the socket closed
)

// Wait releases the batch and sends what is submitted, then sleeps until a frame arrives,
// Config.WakeFD becomes readable or timeout is over (negative: no limit, 0: only look).
// Descriptors the kernel could not take before are offered again by the same call. The deletion of
// an interface does not end the sleep; Wait notices it when the time is over, so give one.
func (s *Socket) Wait(timeout time.Duration) Woken {
	s.Release()
	if s.tx.next != s.tx.published {
		s.Kick()
	}
	if s.gone {
		return WokenGone
	}
	s.count.Waits++
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	s.poll[0].Revents, s.poll[1].Revents = 0, 0
	n, err := unix.Ppoll(s.poll[:s.nPoll], ts, nil)
	if err != nil || n == 0 {
		// A signal ends the sleep early, as if the time were over.
		if err == nil && timeout > 0 && s.Err() == ErrGone {
			return WokenGone
		}
		return 0
	}
	w := Woken(0)
	if s.poll[0].Revents&unix.POLLIN != 0 {
		w |= WokenRX
	}
	if s.poll[1].Revents != 0 {
		w |= WokenFD
	}
	if s.poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 && s.Err() == ErrGone {
		w |= WokenGone
	}
	return w
}

// Err asks the kernel whether the socket still has its interface: nil, or ErrGone. It makes a
// system call. A receiver that never sends nor waits should ask now and then, as nothing else
// tells it.
func (s *Socket) Err() error {
	if s.gone {
		return ErrGone
	}
	if s.backend != nil {
		return nil
	}
	e, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil || e == int(unix.ENETDOWN) || e == int(unix.ENXIO) {
		s.gone = true
		return ErrGone
	}
	return nil
}

// interfaceName returns the name of an interface in the namespace of the control socket fd.
func interfaceName(fd, ifindex int) (string, error) {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	ifr.SetUint32(uint32(ifindex))
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, ifr); err != nil {
		return "", fmt.Errorf("no interface with index %d: %w", ifindex, err)
	}
	return ifr.Name(), nil
}
