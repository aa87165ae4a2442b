package netdev

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// requestTimeout bounds one question to the kernel, which answers at once unless it is stuck.
const requestTimeout = 5 * time.Second

// A Conn asks one network namespace about its interfaces. Its methods may be called from any
// goroutine; after Close they fail.
type Conn struct {
	routes *netlink.Handle // links, addresses, routes
	neighs *nl.SocketHandle
	udp4   int // provokes neighbour resolution and carries the ethtool ioctls
	udp6   int // -1 on a kernel without IPv6

	mu     sync.Mutex
	users  int // calls under way; the last one closes the sockets of a closed Conn
	closed bool
}

var errClosed = errors.New("netdev: connection is closed")

// Open opens the sockets in the network namespace of the calling thread. It needs no privilege.
func Open() (*Conn, error) {
	c := &Conn{udp4: -1, udp6: -1}
	if err := c.open(); err != nil {
		c.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return c, nil
}

func (c *Conn) open() (err error) {
	if c.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	if err = c.routes.SetSocketTimeout(requestTimeout); err != nil {
		return err
	}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	c.neighs = &nl.SocketHandle{Socket: socket}
	timeout := unix.NsecToTimeval(requestTimeout.Nanoseconds())
	if err = socket.SetReceiveTimeout(&timeout); err != nil {
		return err
	}
	const kind = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if c.udp4, err = unix.Socket(unix.AF_INET, kind, 0); err != nil {
		return err
	}
	c.udp6, err = unix.Socket(unix.AF_INET6, kind, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil
	}
	return err
}

// Close closes the sockets, as soon as calls under way have ended. Closing twice is fine. A Monitor
// lives on.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.release()
	}
	return nil
}

// use keeps the sockets open until the returned function is called.
func (c *Conn) use() (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	c.users++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.users--
		if c.closed {
			c.release()
		}
	}, nil
}

// release closes the sockets unless a call still uses them. The caller holds c.mu.
func (c *Conn) release() {
	if c.users > 0 {
		return
	}
	if c.routes != nil {
		c.routes.Close()
	}
	if c.neighs != nil {
		c.neighs.Close()
	}
	for _, fd := range []int{c.udp4, c.udp6} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// settled repeats a dump that the kernel marked as inconsistent: something changed meanwhile.
func settled[T any](dump func() (T, error)) (T, error) {
	const tries = 10
	for i := 1; ; i++ {
		result, err := dump()
		if i == tries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return result, err
		}
	}
}
