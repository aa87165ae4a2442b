package verbs

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/xdp"
)

// Link is what a shard sends and receives frames through: an AF_XDP socket, or for OpenLinks any
// other two-way wire. All methods but Wait and Wake are called by whoever holds the shard, one at a
// time. Frames are Ethernet frames without FCS, in one or two pieces.
type Link interface {
	// Receive looks for up to max frames that have arrived and returns how many. It never waits.
	Receive(max int) int
	// Packet returns frame i of them, valid until Release. tail is nil for a frame in one piece.
	Packet(i int) (head, tail []byte)
	// Release gives all frames of the last Receive back.
	Release()
	// Reserve gives the memory for one frame to send: head of at least rxe.MinFrame bytes, and with
	// tail enough for the longest frame. It is only a plan: a second Reserve may return the same.
	// ok is false when there is no room now.
	Reserve() (head, tail []byte, ok bool)
	// Submit queues the first n bytes of the reserved memory as a frame.
	Submit(n int)
	// Cancel gives the reservation up.
	Cancel()
	// Kick sends all submitted frames.
	Kick()
	// Wait sleeps until a frame can be received, Wake was called since the last Wait returned, or d
	// is over (negative: no limit). One caller, at the same time as any other method but Close.
	Wait(d time.Duration)
	// Wake ends a Wait, the present or the next one. Any goroutine, also after Close.
	Wake()
	// Close frees the link. Wait is not running then, and nothing but Wake is called afterwards.
	Close() error
}

// xdpLink makes a Link of an AF_XDP socket and an eventfd.
type xdpLink struct {
	*xdp.Socket
	wake *os.File // blocking eventfd; os.File keeps writers off a closed one
	poll [2]unix.PollFd
	buf  [8]byte
}

func openXDPLink(c xdp.Config) (*xdpLink, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open eventfd: %w", err)
	}
	l := &xdpLink{wake: os.NewFile(uintptr(fd), "eventfd")}
	if l.Socket, err = xdp.Open(c); err != nil {
		_ = l.wake.Close()
		return nil, err
	}
	l.poll[0] = unix.PollFd{Fd: int32(l.FD()), Events: unix.POLLIN}
	l.poll[1] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	return l, nil
}

func (l *xdpLink) Packet(i int) (head, tail []byte) {
	head, tail, _ = l.Socket.Packet(i)
	return head, tail
}

func (l *xdpLink) Submit(n int) { l.Socket.Submit(n) }

func (l *xdpLink) Kick() { l.Socket.Kick() }

// Wait does not use the socket's own Wait: in caller mode another goroutine may hold the socket
// meanwhile.
func (l *xdpLink) Wait(d time.Duration) {
	var ts *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	n, err := unix.Ppoll(l.poll[:], ts, nil)
	if err == nil && n > 0 && l.poll[1].Revents&unix.POLLIN != 0 {
		_, _ = l.wake.Read(l.buf[:])
	}
}

var one = binary.NativeEndian.AppendUint64(nil, 1)

func (l *xdpLink) Wake() { _, _ = l.wake.Write(one) }

func (l *xdpLink) Close() error {
	err := l.Socket.Close()
	if e := l.wake.Close(); err == nil {
		err = e
	}
	return err
}
