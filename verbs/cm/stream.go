package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file opens streams: net.Conn over an RC connection. stream_io.go is what they do then.

// StreamConfig says how much a stream may have on its way. Each end needs Buffers × BufferSize bytes
// twice, for what it sends and for what it receives. The two ends may differ.
type StreamConfig struct {
	Buffers    int // 2 to 1024 (0: 32)
	BufferSize int // bytes, 64 to 1 MiB (0: 16 KiB)
}

func (c *StreamConfig) fill() (StreamConfig, error) {
	out := StreamConfig{}
	if c != nil {
		out = *c
	}
	if out.Buffers == 0 {
		out.Buffers = 32
	}
	if out.BufferSize == 0 {
		out.BufferSize = 16 << 10
	}
	if out.Buffers < 2 || out.Buffers > 1024 || out.BufferSize < 64 || out.BufferSize > 1<<20 {
		return out, fmt.Errorf("stream of %d buffers of %d bytes: %w", out.Buffers, out.BufferSize, verbs.ErrInvalid)
	}
	return out, nil
}

// ErrNotStream is returned when the other end is no stream.
var ErrNotStream = errors.New("the other end is no stream")

// What both ends say of themselves in private data: magic, version, three zero bytes, buffers (4
// bytes) and their size (4 bytes), big-endian.
const streamMagic = "RXST\x01\x00\x00\x00"

func (c *StreamConfig) marshal() []byte {
	b := []byte(streamMagic)
	for _, v := range []int{c.Buffers, c.BufferSize} {
		b = append(b, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return b
}

// parsePeer reads what the other end says.
func parsePeer(b []byte) (c StreamConfig, err error) {
	if len(b) < len(streamMagic)+8 || !bytes.HasPrefix(b, []byte(streamMagic)) {
		return c, ErrNotStream
	}
	b = b[len(streamMagic):]
	number := func(b []byte) int { return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]) }
	c = StreamConfig{Buffers: number(b), BufferSize: number(b[4:])}
	if c.Buffers == 0 || c.BufferSize == 0 {
		return c, ErrNotStream
	}
	_, err = c.fill()
	return c, err
}

// DialStream connects to the stream listener at addr. cfg may be nil. Errors are Dial's, and
// ErrNotStream.
func (m *Manager) DialStream(ctx context.Context, addr netip.AddrPort, cfg *StreamConfig) (*Stream, error) {
	s, err := m.newStream(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", addr, err)
	}
	s.conn, err = m.Dial(ctx, addr, s.qp, s.params())
	if err != nil {
		s.free()
		return nil, err
	}
	if s.peer, err = parsePeer(s.conn.Private()); err != nil {
		s.abort()
		return nil, fmt.Errorf("connect to %v: %w", addr, err)
	}
	s.remote = StreamAddr{addr}
	s.start()
	return s, nil
}

func (s *Stream) params() *Params {
	return &Params{Private: s.cfg.marshal(), Access: verbs.RemoteWrite} // that of keepalives
}

// StreamListener takes streams for a port. It is a net.Listener.
type StreamListener struct {
	l      *Listener
	cfg    StreamConfig
	ready  chan net.Conn
	closed chan struct{}
	once   sync.Once
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// establishTimeout is how long a request may take to become a connection.
const establishTimeout = 10 * time.Second

// ListenStream takes streams for a port, in the port space of Listen. cfg may be nil.
func (m *Manager) ListenStream(port uint16, cfg *StreamConfig) (*StreamListener, error) {
	c, err := cfg.fill()
	if err != nil {
		return nil, err
	}
	l, err := m.Listen(port, nil)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	sl := &StreamListener{l: l, cfg: c, ready: make(chan net.Conn), closed: make(chan struct{}), stop: stop}
	sl.done.Go(func() { sl.run(ctx) })
	return sl, nil
}

// run accepts requests side by side: one that hangs holds up no other.
func (l *StreamListener) run(ctx context.Context) {
	for {
		r, err := l.l.Accept(ctx)
		if err != nil {
			return
		}
		l.done.Go(func() {
			s, err := l.accept(ctx, r)
			if err != nil {
				return // the peer was told, or is gone
			}
			select {
			case l.ready <- s:
			case <-l.closed:
				s.abort()
			}
		})
	}
}

func (l *StreamListener) accept(ctx context.Context, r *Request) (*Stream, error) {
	peer, err := parsePeer(r.Private())
	if err != nil || r.Type() != verbs.RC {
		_ = r.Reject([]byte("not a stream"))
		return nil, ErrNotStream
	}
	s, err := l.l.m.newStream(&l.cfg)
	if err != nil {
		_ = r.Reject(nil)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	if s.conn, err = r.Accept(ctx, s.qp, s.params()); err != nil {
		s.free()
		return nil, err
	}
	s.peer, s.remote = peer, StreamAddr{r.RemoteAddr()}
	s.port = l.l.Port()
	s.start()
	return s, nil
}

// Accept waits for the next stream. After Close it returns net.ErrClosed.
func (l *StreamListener) Accept() (net.Conn, error) {
	select {
	case s := <-l.ready:
		return s, nil
	case <-l.closed:
	case <-l.l.closed: // with the manager
	}
	return nil, &net.OpError{Op: "accept", Net: "rdma", Addr: l.Addr(), Err: net.ErrClosed}
}

// Close stops listening. Streams that have been accepted go on. A second call does nothing.
func (l *StreamListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.stop()
		_ = l.l.Close()
		l.done.Wait()
	})
	return nil
}

// Addr is the port, without an address.
func (l *StreamListener) Addr() net.Addr {
	return StreamAddr{netip.AddrPortFrom(netip.IPv6Unspecified(), l.l.Port())}
}

// StreamAddr is one end of a stream: a net.Addr of network "rdma".
type StreamAddr struct{ netip.AddrPort }

// Network returns rdma.
func (StreamAddr) Network() string { return "rdma" }

// newStream makes the QP with its receives.
func (m *Manager) newStream(cfg *StreamConfig) (_ *Stream, err error) {
	c, err := cfg.fill()
	if err != nil {
		return nil, err
	}
	s := &Stream{cfg: c, dead: make(chan struct{}), readable: make(chan struct{}, 1),
		writable: make(chan struct{}, 1), closing: make(chan struct{}), readLate: newAlarm(), writeLate: newAlarm()}
	defer func() {
		if err != nil {
			s.free()
		}
	}()
	if s.pd, err = m.ctx.AllocPD(); err != nil {
		return nil, err
	}
	if s.mem, err = s.pd.AllocMR((s.recvBuffers()+c.Buffers)*c.BufferSize, verbs.LocalWrite); err != nil {
		return nil, err
	}
	recvs, sends := c.Buffers+spareRecvs, c.Buffers+spareSends
	if s.cq, err = m.ctx.CreateCQ(recvs + sends); err != nil {
		return nil, err
	}
	s.qp, err = m.ctx.CreateQP(s.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, Shard: -1,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: recvs}})
	if err != nil {
		return nil, err
	}
	if err := Prepare(s.qp, verbs.RemoteWrite); err != nil {
		return nil, err
	}
	for i := range c.Buffers {
		s.sendFree = append(s.sendFree, i)
	}
	for i := range s.recvBuffers() {
		if err := s.postRecv(i); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Stream) start() {
	s.credits = s.peer.Buffers
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.running.Go(func() { s.run(ctx) })
}

// abort ends a stream that nobody has.
func (s *Stream) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Disconnect(ctx) // a peer that is gone does not answer
	if s.stop != nil {
		s.stop()
		s.running.Wait()
	}
	s.free()
}

func (s *Stream) free() {
	if s.qp != nil {
		_ = s.qp.Destroy()
	}
	if s.cq != nil {
		_ = s.cq.Destroy()
	}
	if s.mem != nil {
		_ = s.mem.Close()
	}
	if s.pd != nil {
		_ = s.pd.Dealloc()
	}
}
