package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// ListenConfig says what to listen for. The zero value of each field takes the default named.
type ListenConfig struct {
	Local     netip.Addr    // own address; zero: all
	Backlog   int           // requests that may wait for Accept (0: 128)
	PortSpace rcm.PortSpace // 0: RDMA_PS_TCP; PortSpaceUDP for datagram services
}

// Listener takes the requests for one service.
type Listener struct {
	m        *Manager
	id       rcm.ListenID
	place    *place
	requests chan *Request
	closed   chan struct{}
	once     sync.Once
}

// Listen takes requests for a port. cfg may be nil. It fails with rcm.ErrInUse if somebody listens
// there.
func (m *Manager) Listen(port uint16, cfg *ListenConfig) (*Listener, error) {
	var c ListenConfig
	if cfg != nil {
		c = *cfg
	}
	if c.Backlog == 0 {
		c.Backlog = 128
	}
	if c.PortSpace == 0 {
		c.PortSpace = rcm.PortSpaceTCP
	}
	var local wire.GID
	if c.Local.IsValid() && !c.Local.IsUnspecified() {
		local = c.Local.As16()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over() {
		return nil, ErrClosed
	}
	id, err := m.machine.Listen(rcm.ListenParam{Service: rcm.Service(c.PortSpace, port), Local: local,
		Backlog: c.Backlog})
	if err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", port, err)
	}
	l := &Listener{m: m, id: id, requests: make(chan *Request, c.Backlog), closed: make(chan struct{}),
		place: &place{space: c.PortSpace, port: port, local: addrOf(local)}}
	if local == (wire.GID{}) {
		l.place.local = netip.Addr{}
	}
	m.ports.add(l.place)
	m.listeners[id] = l
	return l, nil
}

// Port is what the listener was asked for.
func (l *Listener) Port() uint16 { return l.place.port }

// Accept waits for the next request. Errors: ErrClosed, ctx's.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close stops listening. Requests that nobody has accepted are rejected. A second call does
// nothing.
func (l *Listener) Close() error {
	l.m.mu.Lock()
	_ = l.m.machine.Unlisten(l.id) // closed already
	delete(l.m.listeners, l.id)
	l.shut()
	l.m.mu.Unlock()
	for {
		select {
		case r := <-l.requests:
			_ = r.Reject(nil)
		default:
			return nil
		}
	}
}

// shut ends what waits in Accept. m.mu is held.
func (l *Listener) shut() {
	l.once.Do(func() {
		l.m.ports.remove(l.place)
		close(l.closed)
	})
}

// request takes a REQ or SIDR_REQ. m.mu is held.
func (l *Listener) request(ev *rcm.Event) {
	m := l.m
	r := &Request{m: m, id: ev.ID, info: *ev.Request, remote: ev.Remote, private: ev.Private}
	select {
	case l.requests <- r:
	default: // the machine's backlog is the same: not reached
		_ = m.machine.Reject(m.now(), ev.ID, rcm.ReasonNoResources, nil, nil)
	}
}

// Request is a peer's wish to connect, or to know of a datagram service. Answer it with Accept,
// AcceptUD or Reject within a minute.
type Request struct {
	m       *Manager
	id      rcm.ID
	info    rcm.Request
	remote  rcm.Param
	private []byte
}

// Type is the QP type that is asked for.
func (r *Request) Type() verbs.QPType {
	switch r.info.Transport {
	case rcm.TransportUC:
		return verbs.UC
	case rcm.TransportUD:
		return verbs.UD
	}
	return verbs.RC
}

// Private is what the peer sent along, zero-filled to the field's length.
func (r *Request) Private() []byte { return r.private }

// Remote is the peer's half of the connection as it said it.
func (r *Request) Remote() rcm.Param { return r.remote }

// PathMTU is the path MTU asked for, in bytes.
func (r *Request) PathMTU() int { return 128 << r.info.MTU }

// RemoteAddr is where the request came from, with the port it names.
func (r *Request) RemoteAddr() netip.AddrPort {
	var port uint16
	if r.info.IP != nil {
		port = r.info.IP.SrcPort
	}
	return netip.AddrPortFrom(addrOf(r.info.Addr.Remote), port)
}

// LocalAddr is the own address the request came to.
func (r *Request) LocalAddr() netip.Addr { return addrOf(r.info.Addr.Local) }

// Accept connects qp, of the type asked for and in RESET or INIT, to the peer, and returns when the
// peer has confirmed. p may be nil. It fails with ErrWithdrawn when nobody waits for it any more, and
// with ErrUnreachable when the peer does not confirm (rcm.Config.ConfirmTimeout). After an error the
// QP is of no further use.
func (r *Request) Accept(ctx context.Context, qp *verbs.QP, p *Params) (*Conn, error) {
	c, err := r.accept(ctx, qp, p.fill())
	if errors.Is(err, rcm.ErrUnknownID) {
		err = ErrWithdrawn
	}
	if err != nil {
		return nil, fmt.Errorf("accept %v: %w", r.RemoteAddr(), err)
	}
	return c, nil
}

func (r *Request) accept(ctx context.Context, qp *verbs.QP, p Params) (*Conn, error) {
	m := r.m
	if qp.Type() != r.Type() {
		_ = r.RejectFor(rcm.ReasonInvalidTransportType, nil)
		return nil, fmt.Errorf("%v QP for a request for %v", qp.Type(), r.Type())
	}
	c := m.newConn(r.id, qp, p)
	c.local, c.remote, c.private = r.LocalAddr(), r.RemoteAddr(), r.private
	psn := verbs.RandomPSN()
	if err := r.prepare(c, psn); err != nil {
		_ = r.RejectFor(rcm.ReasonNoResources, nil)
		return nil, err
	}
	p.about(qp)
	m.mu.Lock()
	err := m.machine.Accept(m.now(), r.id, p.half(psn), p.Private)
	if err == nil {
		m.conns[r.id] = c
	}
	m.pump()
	m.mu.Unlock()
	m.kick()
	if err != nil {
		return nil, err
	}
	if _, err := c.await(ctx, rcm.EventEstablished); err != nil {
		c.abandon(err)
		return nil, err
	}
	return c, nil
}

// prepare takes the QP to RTR before the peer is told that it may send. It goes to RTS with the RTU
// or the first packet, whichever comes first.
func (r *Request) prepare(c *Conn, psn verbs.PSN) error {
	if err := Prepare(c.qp, c.params.Access); err != nil {
		return err
	}
	r.m.mu.Lock()
	q, err := r.m.machine.QPParam(r.id)
	r.m.mu.Unlock()
	if err != nil {
		return err
	}
	c.params.bound(&q, &r.remote)
	m := r.m
	c.qp.OnEstablished(func() { m.firstPacket(r.id) })
	return c.receive(q, psn)
}

// AcceptUD answers a request for a datagram service with a UD QP's number and Q_Key (0: RDMA-CM's
// default).
func (r *Request) AcceptUD(qp *verbs.QP, qkey uint32, private []byte) error {
	if qkey == 0 {
		qkey = rcm.UDQKey
	}
	return r.answer(func(now rcm.Time) error {
		return r.m.machine.Accept(now, r.id, rcm.Param{QPN: qp.Num(), QKey: qkey}, private)
	})
}

// Reject refuses the request, as the application's decision (rdma_reject). private has up to 148
// bytes.
func (r *Request) Reject(private []byte) error { return r.RejectFor(rcm.ReasonConsumer, private) }

// RejectFor refuses the request for a reason.
func (r *Request) RejectFor(why rcm.Reason, private []byte) error {
	return r.answer(func(now rcm.Time) error {
		return r.m.machine.Reject(now, r.id, why, nil, private)
	})
}

func (r *Request) answer(f func(rcm.Time) error) error {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	err := f(r.m.now())
	r.m.pump()
	r.m.kick()
	return err
}
