package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// control is the connection that perftest's exchange takes with -R: a QP of its own, on which each
// message is a SEND. To the rest it looks like TCP's. One goroutine may read while one writes.
type control struct {
	conn   *cm.Conn
	pd     *verbs.PD
	mem    *verbs.MR
	sendCQ *verbs.CQ
	recvCQ *verbs.CQ
	qp     *verbs.QP
	rest   []byte // of the last message, not read yet

	mu      sync.Mutex
	expired context.Context // Read's; ends with the deadline
	expire  context.CancelFunc
}

const (
	controlRecvs   = 16
	controlMessage = 64 // the longest is a key, of 56 bytes
)

// newControl makes the QP with its receives. It is not connected yet.
func newControl(dev *verbs.Context) (_ *control, err error) {
	c := &control{}
	c.expired, c.expire = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			c.destroy()
		}
	}()
	if c.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if c.mem, err = c.pd.AllocMR((controlRecvs+1)*controlMessage, verbs.LocalWrite); err != nil {
		return nil, err
	}
	if c.sendCQ, err = dev.CreateCQ(2); err != nil {
		return nil, err
	}
	if c.recvCQ, err = dev.CreateCQ(controlRecvs); err != nil {
		return nil, err
	}
	c.qp, err = dev.CreateQP(c.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: c.sendCQ, RecvCQ: c.recvCQ,
		Shard: -1, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: controlRecvs}})
	if err != nil {
		return nil, err
	}
	if err := cm.Prepare(c.qp, verbs.RemoteWrite); err != nil {
		return nil, err
	}
	for i := range controlRecvs {
		if err := c.postRecv(uint64(i)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *control) postRecv(slot uint64) error {
	return c.qp.PostRecv(&verbs.RecvWR{WRID: slot,
		SGList: []verbs.SGE{c.mem.SGE(int(slot)*controlMessage, controlMessage)}})
}

// Read returns what is left of the last message, or waits for the next one.
func (c *control) Read(b []byte) (int, error) {
	var wc [1]verbs.WC
	for len(c.rest) == 0 {
		n, err := c.recvCQ.Poll(wc[:])
		switch {
		case err != nil:
			return 0, err
		case n > 0 && wc[0].Status != verbs.WCSuccess:
			return 0, io.EOF // flushed: the connection has ended
		case n > 0:
			at := int(wc[0].WRID) * controlMessage
			c.rest = append(c.rest, c.mem.Bytes()[at:at+int(wc[0].ByteLen)]...)
			if err := c.postRecv(wc[0].WRID); err != nil {
				return 0, err
			}
			continue
		}
		if err := c.await(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// await waits for something to come, the end of the connection or the deadline.
func (c *control) await() error {
	c.mu.Lock()
	ctx, cancel := context.WithCancel(c.expired)
	c.mu.Unlock()
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.conn.Done():
			cancel()
		case <-stop:
		}
	}()
	err := c.recvCQ.Wait(ctx)
	select {
	case <-c.conn.Done():
		if c.recvCQ.Len() == 0 {
			return io.EOF
		}
		return nil
	default:
	}
	if err != nil && ctx.Err() != nil {
		return os.ErrDeadlineExceeded
	}
	return err
}

// Write sends one message.
func (c *control) Write(b []byte) (int, error) {
	at := controlRecvs * controlMessage
	copy(c.mem.Bytes()[at:at+controlMessage], b)
	err := c.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{c.mem.SGE(at, len(b))}})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errGone, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	var wc [1]verbs.WC
	for {
		n, err := c.sendCQ.Poll(wc[:])
		switch {
		case err != nil:
			return 0, err
		case n > 0 && wc[0].Status != verbs.WCSuccess:
			return 0, fmt.Errorf("%w: a SEND to it completed with %v", errGone, wc[0].Status)
		case n > 0:
			return len(b), nil
		}
		if err := c.sendCQ.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Close disconnects.
func (c *control) Close() error {
	if c.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.conn.Disconnect(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// destroy gives back what newControl made, as far as it got.
func (c *control) destroy() {
	if c.qp != nil {
		_ = c.qp.Destroy()
	}
	for _, cq := range []*verbs.CQ{c.sendCQ, c.recvCQ} {
		if cq != nil {
			_ = cq.Destroy()
		}
	}
	if c.mem != nil {
		_ = c.mem.Close()
	}
	if c.pd != nil {
		_ = c.pd.Dealloc()
	}
	c.expire()
}

// SetDeadline ends a Read that waits at a time; the zero time takes that back.
func (c *control) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.IsZero() && !t.After(time.Now()) {
		c.expire()
		return nil
	}
	c.expired, c.expire = context.WithCancel(context.Background())
	if !t.IsZero() {
		c.expired, c.expire = context.WithDeadline(context.Background(), t)
	}
	return nil
}

// SetReadDeadline is SetDeadline, SetWriteDeadline does nothing: a Write ends by itself.
func (c *control) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }
func (c *control) SetWriteDeadline(time.Time) error  { return nil }

func (c *control) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(
		netip.AddrPortFrom(c.conn.LocalAddr(), 0))
}
func (c *control) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.conn.RemoteAddr()) }

// answerTime is how long a server may take to answer a request for a connection by RDMA-CM.
const answerTime = 20 * time.Second

// unreached is the error that a server could not be reached by RDMA-CM.
type unreached struct {
	addr netip.AddrPort
	err  error
}

func (u *unreached) Error() string {
	return fmt.Sprintf("reach the server: %v; start the same command without an address there first", u.err)
}

func (u *unreached) Unwrap() error { return u.err }

// Addr is where the server was looked for.
func (u *unreached) Addr() netip.AddrPort { return u.addr }

// dialControl connects to a server.
func (e *endpoint) dialControl(ctx context.Context) (net.Conn, error) {
	addr, err := e.serverAddr(ctx)
	if err != nil {
		return nil, err
	}
	c, err := newControl(e.dev)
	if err != nil {
		return nil, err
	}
	dialing, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if c.conn, err = e.manager.Dial(dialing, addr, c.qp, nil); err != nil {
		return nil, &unreached{addr, err}
	}
	return c, nil
}

// serverAddr is where the server listens for RDMA-CM: the address it was given by, in the family of
// this end's GID.
func (e *endpoint) serverAddr(ctx context.Context) (netip.AddrPort, error) {
	if e.cmAddr.IsValid() {
		return netip.AddrPortFrom(e.cmAddr, uint16(e.cfg.Port)), nil
	}
	network := "ip6"
	if e.gid.IsIPv4() {
		network = "ip4"
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, network, e.cfg.Server)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("find the server's address: %w", err)
	}
	return netip.AddrPortFrom(all[0].Unmap(), uint16(e.cfg.Port)), nil
}

// listenControl waits for a client. Its other connections come to the same listener.
func (e *endpoint) listenControl(ctx context.Context, ready func(net.Addr)) (net.Conn, error) {
	var err error
	if e.listener == nil {
		if e.listener, err = e.manager.Listen(uint16(e.cfg.Port), nil); err != nil {
			return nil, fmt.Errorf("wait for a client: %w; give another port with -p", err)
		}
	}
	if ready != nil {
		ready(&net.TCPAddr{Port: e.cfg.Port})
	}
	req, err := e.listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	if e.admit != nil {
		if err := e.admit(req); err != nil {
			return nil, err
		}
	}
	c, err := newControl(e.dev)
	if err != nil {
		return nil, err
	}
	e.control = c
	c.conn, err = req.Accept(ctx, c.qp, nil)
	return c, err
}
