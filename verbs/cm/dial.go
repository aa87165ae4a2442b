package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Dial connects qp, an RC or UC QP in RESET or INIT, to the service that listens at addr, and
// returns when both ends are ready to send. p may be nil. Errors: *RejectError, ErrUnreachable,
// ErrNoAddress, ErrClosed, ctx's, and what keeps the QP from being connected; the QP is of no
// further use then.
func (m *Manager) Dial(ctx context.Context, addr netip.AddrPort, qp *verbs.QP, p *Params) (*Conn,
	error) {
	c, err := m.dial(ctx, addr, qp, p.fill())
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", addr, err)
	}
	return c, nil
}

func (m *Manager) dial(ctx context.Context, addr netip.AddrPort, qp *verbs.QP, p Params) (*Conn,
	error) {
	local, err := m.localFor(addr.Addr(), p.Local)
	if err != nil {
		return nil, err
	}
	if err := Prepare(qp, p.Access); err != nil {
		return nil, err
	}
	psn := verbs.RandomPSN()
	c, err := m.sendREQ(addr, qp, p, local, psn)
	if err != nil {
		return nil, err
	}
	ev, err := c.await(ctx, rcm.EventConnectResponse)
	if err == nil {
		err = c.finish(ctx, psn, &ev)
	}
	if err != nil {
		if why := c.Err(); why != nil { // the peer's no has come while the QP was made ready
			err = why
		}
		c.abandon(err)
		return nil, m.whySilent(route{local, addr.Addr().As16()}, err)
	}
	return c, nil
}

// whySilent adds, to the error that a peer has not answered, that no way to it was found.
func (m *Manager) whySilent(r route, err error) error {
	if !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if why := m.noWay[r]; why != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}

// sendREQ asks for the connection.
func (m *Manager) sendREQ(addr netip.AddrPort, qp *verbs.QP, p Params, local wire.GID,
	psn verbs.PSN) (*Conn, error) {
	p.about(qp)
	cp := rcm.ConnectParam{
		Param: p.half(psn), AckTimeout: p.AckTimeout, Service: rcm.Service(p.PortSpace, addr.Port()),
		Addr: rcm.Addr{Local: local, Remote: addr.Addr().As16()}, MTU: mtuCode(m.pmtu(p.PathMTU, local)),
		TClass: p.TrafficClass, Private: p.Private, Transport: rcm.TransportRC,
	}
	if p.Type == verbs.UC {
		cp.Transport = rcm.TransportUC
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over() {
		return nil, ErrClosed
	}
	id, err := m.machine.Connect(m.now(), cp)
	if err != nil {
		return nil, err
	}
	c := m.newConn(id, qp, p)
	c.local, c.remote = addrOf(local), addr
	m.conns[id] = c
	m.pump()
	m.kick()
	return c, nil
}

// pmtu is the path MTU to ask for, in bytes.
func (m *Manager) pmtu(want int, local wire.GID) int {
	switch port := m.ctx.Port(); {
	case want != 0:
		return want
	case local.IsIPv4():
		return port.MaxPMTU
	default:
		return port.MaxPMTU6
	}
}

// finish connects the QP as the REP says and confirms it.
func (c *Conn) finish(ctx context.Context, psn verbs.PSN, ev *rcm.Event) error {
	c.private = ev.Private
	c.m.mu.Lock()
	qp, err := c.m.machine.QPParam(c.id)
	c.m.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.connect(qp, psn); err != nil {
		return err
	}
	c.m.mu.Lock()
	err = c.m.machine.Establish(c.m.now(), c.id, nil)
	c.m.pump()
	c.m.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = c.await(ctx, rcm.EventEstablished)
	return err
}

// Service is what Resolve learns of a datagram service: what a work request needs to reach it.
type Service struct {
	AH      *verbs.AH
	QPN     verbs.QPN
	QKey    uint32
	Private []byte
}

// Resolve asks for the datagram service at addr (RDMA_PS_UDP) by SIDR. The address handle is made
// in pd, and the caller's. p may be nil; its Private has up to 180 bytes.
func (m *Manager) Resolve(ctx context.Context, addr netip.AddrPort, pd *verbs.PD,
	p *Params) (*Service, error) {
	s, err := m.resolveService(ctx, addr, pd, p.fill())
	if err != nil {
		return nil, fmt.Errorf("resolve %v: %w", addr, err)
	}
	return s, nil
}

func (m *Manager) resolveService(ctx context.Context, addr netip.AddrPort, pd *verbs.PD,
	p Params) (*Service, error) {
	local, err := m.localFor(addr.Addr(), p.Local)
	if err != nil {
		return nil, err
	}
	i, err := m.gidIndex(local)
	if err != nil {
		return nil, err
	}
	ah, err := pd.CreateAH(&verbs.AHAttr{DGID: addr.Addr().As16(), SGIDIndex: i,
		TrafficClass: p.TrafficClass})
	if err != nil {
		return nil, err
	}
	ev, err := m.sidr(ctx, addr, p, local)
	if err != nil {
		_ = ah.Destroy()
		return nil, err
	}
	return &Service{AH: ah, QPN: ev.Remote.QPN, QKey: ev.Remote.QKey, Private: ev.Private}, nil
}

func (m *Manager) sidr(ctx context.Context, addr netip.AddrPort, p Params,
	local wire.GID) (rcm.Event, error) {
	m.mu.Lock()
	if m.over() {
		m.mu.Unlock()
		return rcm.Event{}, ErrClosed
	}
	id, err := m.machine.Connect(m.now(), rcm.ConnectParam{
		Service: rcm.Service(rcm.PortSpaceUDP, addr.Port()), Transport: rcm.TransportUD,
		Addr: rcm.Addr{Local: local, Remote: addr.Addr().As16()}, Private: p.Private,
	})
	if err != nil {
		m.mu.Unlock()
		return rcm.Event{}, err
	}
	c := m.newConn(id, nil, p)
	m.conns[id] = c
	m.pump()
	m.mu.Unlock()
	m.kick()
	ev, err := c.await(ctx, rcm.EventEstablished)
	m.mu.Lock()
	m.machine.Destroy(m.now(), id)
	delete(m.conns, id)
	m.mu.Unlock()
	return ev, err
}

// localFor is the own address to reach dst from: the one asked for, or the first of its family,
// link-local only for a link-local peer.
func (m *Manager) localFor(dst, want netip.Addr) (wire.GID, error) {
	for _, e := range m.ctx.GIDs() {
		a := addrOf(e.GID)
		switch {
		case want.IsValid():
			if a == want.Unmap() {
				return e.GID, nil
			}
		case a.Is4() == dst.Unmap().Is4() && a.IsLinkLocalUnicast() == dst.Unmap().IsLinkLocalUnicast():
			return e.GID, nil
		}
	}
	return wire.GID{}, ErrNoAddress
}
