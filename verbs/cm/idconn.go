package cm

import (
	"fmt"
	"net/netip"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is what IDs do with their peers.

// Connect asks the peer for a connection of the ID's QP (rdma_connect): EventEstablished comes when
// both ends may send, else EventRejected, EventUnreachable or EventConnectError. An ID without a QP
// says of one in p which it is; it gets EventConnectResponse, which it answers with Establish or
// Reject. In PortSpaceUDP Connect finds the peer's QP: EventEstablished with its Service, or
// EventUnreachable also if the peer has none. p may be nil; its Local and PortSpace are the ID's.
func (id *ID) Connect(p *Params) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.over():
		return ErrClosed
	case id.state != idRouteResolved:
		return id.errState("connect")
	case id.qp == nil && (p == nil || p.QPN == 0 && id.space == rcm.PortSpaceTCP):
		return fmt.Errorf("connect: no QP: %w", verbs.ErrInvalid)
	}
	par := p.fill()
	par.about(id.qp)
	id.options.fill(&par)
	local := wire.GID(id.local.As16())
	id.psn = verbs.RandomPSN()
	if id.port == 0 {
		id.port = firstFreePort | uint16(secret())
	}
	cp := rcm.ConnectParam{Service: rcm.Service(id.space, id.remote.Port()), SrcPort: id.port,
		Addr: rcm.Addr{Local: local, Remote: id.remote.Addr().As16()}, Private: par.Private,
		TClass: par.TrafficClass, Transport: rcm.TransportUD}
	if id.space == rcm.PortSpaceTCP {
		cp.Transport, cp.AckTimeout = rcm.TransportRC, par.AckTimeout
		cp.MTU = mtuCode(m.pmtu(par.PathMTU, local))
		cp.Param = par.half(id.psn)
		if par.Type == verbs.UC {
			cp.Transport = rcm.TransportUC
		}
	}
	n, err := m.machine.Connect(m.now(), cp)
	if err != nil {
		return fmt.Errorf("connect to %v: %w", id.remote, err)
	}
	id.begin(n, par)
	return nil
}

// begin files the ID with the machine's connection. m.mu is held.
func (id *ID) begin(n rcm.ID, par Params) {
	id.id, id.state = n, idConnecting
	id.conn = id.m.newConn(n, id.qp, par)
	id.conn.local, id.conn.remote = id.local, id.remote
	id.m.conns[n] = id
	id.m.pump()
	id.m.kick()
}

// request takes a REQ or SIDR_REQ for a listening ID. m.mu is held.
func (id *ID) request(ev *rcm.Event) {
	m := id.m
	n, err := id.channel.Load().newID(id.space, id.Context)
	if err != nil {
		_ = m.machine.Reject(m.now(), ev.ID, rcm.ReasonNoResources, nil, nil)
		return
	}
	n.state, n.id, n.asked, n.peer = idRequested, ev.ID, ev.Request, ev.Remote
	n.psn = verbs.RandomPSN()
	n.local, n.port = addrOf(ev.Request.Addr.Local), id.port
	var port uint16
	if ev.Request.IP != nil {
		port = ev.Request.IP.SrcPort
	}
	n.remote = netip.AddrPortFrom(addrOf(ev.Request.Addr.Remote), port)
	m.conns[ev.ID] = n
	id.put(&Event{Type: EventConnectRequest, ID: n, Listen: id, Private: ev.Private,
		Remote: ev.Remote})
}

// Accept answers a request (rdma_accept); the ID has a QP of the type asked for, or says in p which
// one its owner has brought to RTR. EventEstablished comes when the peer has confirmed, or
// EventUnreachable, EventRejected, EventConnectError. Of a datagram service, that is all: no event
// follows. p may be nil.
func (id *ID) Accept(p *Params) error {
	par := p.fill()
	id.m.mu.Lock()
	if id.state != idRequested {
		defer id.m.mu.Unlock()
		return id.errState("accept")
	}
	par.about(id.qp)
	id.options.fill(&par)
	var err error
	switch {
	case par.QPN == 0:
		err = fmt.Errorf("no QP: %w", verbs.ErrInvalid)
	case id.space == rcm.PortSpaceUDP:
		err = id.acceptUD(par)
	default:
		err = id.accept(par)
	}
	id.m.pump()
	id.m.mu.Unlock()
	id.m.kick()
	if err != nil {
		return fmt.Errorf("accept %v: %w", id.RemoteAddr(), err)
	}
	return nil
}

// acceptUD tells the peer of the QP. m.mu is held.
func (id *ID) acceptUD(par Params) error {
	m := id.m
	err := m.machine.Accept(m.now(), id.id, rcm.Param{QPN: par.QPN, QKey: rcm.UDQKey}, par.Private)
	if err != nil {
		return err
	}
	id.state = idConnected
	id.part()
	return nil
}

// part lets go of the machine's connection, which is over. m.mu is held.
func (id *ID) part() {
	delete(id.m.conns, id.id)
	id.id = 0
}

// accept makes the QP ready to receive, and tells the peer. m.mu is held, but not all the time.
func (id *ID) accept(par Params) error {
	m, qp := id.m, id.qp
	r := &Request{m: m, id: id.id, info: *id.asked, remote: id.peer}
	if qp != nil && qp.Type() != r.Type() {
		return fmt.Errorf("%v QP for a request for %v: %w", qp.Type(), r.Type(), verbs.ErrInvalid)
	}
	c := m.newConn(id.id, qp, par)
	c.local, c.remote = id.local, id.remote
	id.state, id.conn = idConnecting, c
	var err error
	if qp != nil {
		m.mu.Unlock()
		err = r.prepare(c, id.psn) // may have to find the way to the peer
		m.mu.Lock()
	}
	switch {
	case id.state != idConnecting: // ended meanwhile
		return id.errState("answer the request")
	case err == nil:
		err = m.machine.Accept(m.now(), id.id, par.half(id.psn), par.Private)
	}
	if err != nil {
		id.state, id.conn = idRequested, nil
	}
	return err
}

// Reject refuses a request, or the answer to one's own without a QP (rdma_reject). private has up
// to 148 bytes.
func (id *ID) Reject(private []byte) error {
	return id.say("reject", func(m *Manager) error {
		if id.state != idRequested && id.state != idAnswered {
			return id.errState("reject")
		}
		err := m.machine.Reject(m.now(), id.id, rcm.ReasonConsumer, nil, private)
		if err == nil {
			id.state = idEnded
			id.part()
		}
		return err
	})
}

// Disconnect ends the connection (rdma_disconnect): the QP goes to ERR, and EventDisconnected comes
// when the peer has answered. After the peer's EventDisconnected it is the answer.
func (id *ID) Disconnect() error {
	return id.say("disconnect", func(m *Manager) error {
		if id.state != idConnected && id.state != idEnded {
			return id.errState("disconnect")
		}
		err := m.machine.Disconnect(m.now(), id.id, nil)
		if id.conn != nil {
			id.conn.end(ErrEnded)
		}
		return err
	})
}

// say does something with the machine, and sends what comes of it.
func (id *ID) say(call string, f func(*Manager) error) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	err := f(m)
	m.pump()
	m.kick()
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}

// take turns an event of the machine into one of the ID. m.mu is held.
func (id *ID) take(ev *rcm.Event) {
	out := &Event{ID: id, Private: ev.Private, Remote: ev.Remote}
	switch ev.Kind {
	case rcm.EventKeepalive:
		if id.qp != nil {
			id.conn.probe()
		}
		return
	case rcm.EventConnectResponse:
		if id.qp != nil {
			go id.respond(*ev)
			return
		}
		id.state, out.Type = idAnswered, EventConnectResponse
	case rcm.EventEstablished:
		id.established(ev, out)
		return
	case rcm.EventDisconnected:
		out.Type, out.Err = EventDisconnected, ErrEnded
		switch {
		case ev.Silent:
			out.Err = fmt.Errorf("%w: %w", ErrEnded, ErrUnreachable)
		case ev.Reason != rcm.ReasonNone:
			out.Err = fmt.Errorf("%w: %w", ErrEnded, rejection(ev))
		}
	case rcm.EventUnreachable:
		out.Type, out.Err = EventUnreachable, ErrUnreachable
	case rcm.EventConnectError:
		out.Type, out.Err = EventConnectError, ErrUnreachable
	case rcm.EventRejected:
		out.Type, out.Err = EventRejected, rejection(ev)
		if id.space == rcm.PortSpaceUDP {
			out.Type = EventUnreachable // as librdmacm has it
		}
	case rcm.EventTimewaitExit:
		out.Type = EventTimewaitExit
	}
	if out.Err != nil {
		id.state = idEnded
		if id.conn != nil {
			id.conn.end(out.Err)
		}
	}
	if last(ev) {
		id.part()
	}
	id.put(out)
}

// established: the peer has confirmed; or a datagram service is found. m.mu is held.
func (id *ID) established(ev *rcm.Event, out *Event) {
	answered := id.state == idAnswered
	id.state, out.Type = idConnected, EventEstablished
	if id.space == rcm.PortSpaceUDP {
		id.part()
		go id.found(*ev, out)
		return
	}
	if answered {
		return // Establish has said so
	}
	if out.Private == nil {
		out.Private = id.conn.private
	}
	if id.qp != nil && id.qp.State() == verbs.StateRTR { // accepted
		if err := id.conn.send(); err != nil {
			id.fail(err)
			return
		}
	}
	id.put(out)
}

// fail ends a connection that its own QP does not come to. m.mu is held.
func (id *ID) fail(err error) {
	id.state = idEnded
	id.m.machine.Destroy(id.m.now(), id.id)
	id.part()
	id.conn.end(err)
	id.put(&Event{Type: EventConnectError, ID: id, Err: err})
}

// found makes the way to a datagram service.
func (id *ID) found(ev rcm.Event, out *Event) {
	ah, err := id.m.ahFor(id.qp, wire.GID(id.local.As16()), id.remote.Addr(),
		id.conn.params.TrafficClass)
	if err != nil {
		out.Type, out.Err = EventConnectError, err
	} else {
		out.Service = &Service{AH: ah, QPN: ev.Remote.QPN, QKey: ev.Remote.QKey, Private: ev.Private}
	}
	id.put(out)
}

// respond connects the QP as the REP says, and confirms it. Finding the way may take a while.
func (id *ID) respond(ev rcm.Event) {
	m := id.m
	m.mu.Lock()
	qp, err := m.machine.QPParam(id.id)
	m.mu.Unlock()
	if err == nil {
		err = id.conn.connect(qp, id.psn)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id.conn.private = ev.Private // EventEstablished brings it
	if err == nil && id.state == idConnecting {
		err = m.machine.Establish(m.now(), id.id, nil)
	}
	if err != nil && id.state == idConnecting {
		id.fail(err)
	}
	m.pump()
	m.kick()
}
