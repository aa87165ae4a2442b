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
// both ends may send, else EventRejected, EventUnreachable or EventConnectError. In PortSpaceUDP it
// finds the peer's QP: EventEstablished with its Service. p may be nil; its Local and PortSpace are
// the ID's.
func (id *ID) Connect(p *Params) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case id.state != idRouteResolved:
		return id.errState("connect")
	case id.qp == nil:
		return fmt.Errorf("connect: no QP: %w", verbs.ErrInvalid)
	}
	par := p.fill()
	local := wire.GID(id.local.As16())
	cp := rcm.ConnectParam{Service: rcm.Service(id.space, id.remote.Port()), SrcPort: id.port,
		Addr: rcm.Addr{Local: local, Remote: id.remote.Addr().As16()}, Private: par.Private,
		TClass: par.TrafficClass, Transport: rcm.TransportUD}
	id.psn = verbs.RandomPSN()
	if id.space == rcm.PortSpaceTCP {
		cp.Transport = rcm.TransportRC
		cp.MTU = mtuCode(m.pmtu(par.PathMTU, local))
		_, init := id.qp.Query()
		cp.Param = par.half(id.qp, id.psn, init.SRQ != nil)
		if id.qp.Type() == verbs.UC {
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
	n, err := id.channel.newID(id.space, id.Context)
	if err != nil {
		_ = m.machine.Reject(m.now(), ev.ID, rcm.ReasonNoResources, nil, nil)
		return
	}
	n.state, n.id, n.asked, n.peer = idRequested, ev.ID, ev.Request, ev.Remote
	n.local, n.port = addrOf(ev.Request.Addr.Local), id.port
	var port uint16
	if ev.Request.IP != nil {
		port = ev.Request.IP.SrcPort
	}
	n.remote = netip.AddrPortFrom(addrOf(ev.Request.Addr.Remote), port)
	m.conns[ev.ID] = n
	id.channel.put(id, &Event{Type: EventConnectRequest, ID: n, Listen: id, Private: ev.Private,
		Remote: ev.Remote})
}

// Accept answers a request (rdma_accept); the ID has a QP of the type asked for. EventEstablished
// comes when the peer has confirmed, or EventUnreachable, EventRejected, EventConnectError. Of a
// datagram service, that is all: no event follows. p may be nil.
func (id *ID) Accept(p *Params) error {
	m := id.m
	m.mu.Lock()
	if id.state != idRequested || id.qp == nil {
		defer m.mu.Unlock()
		if id.qp == nil {
			return fmt.Errorf("accept: no QP: %w", verbs.ErrInvalid)
		}
		return id.errState("accept")
	}
	par, qp := p.fill(), id.qp
	if id.space == rcm.PortSpaceUDP {
		defer m.mu.Unlock()
		id.state = idConnected
		err := m.machine.Accept(m.now(), id.id, rcm.Param{QPN: qp.Num(), QKey: rcm.UDQKey}, par.Private)
		delete(m.conns, id.id)
		m.pump()
		m.kick()
		return err
	}
	r := &Request{m: m, id: id.id, info: *id.asked, remote: id.peer}
	if qp.Type() != r.Type() {
		defer m.mu.Unlock()
		return fmt.Errorf("accept: %v QP for a request for %v: %w", qp.Type(), r.Type(), verbs.ErrInvalid)
	}
	c := m.newConn(id.id, qp, par)
	c.local, c.remote = id.local, id.remote
	id.state, id.conn = idConnecting, c
	m.mu.Unlock()
	// The way to the peer may have to be found: without the lock.
	psn := verbs.RandomPSN()
	err := r.prepare(c, psn)
	_, init := qp.Query()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && id.state != idConnecting {
		err = id.errState("accept")
	}
	if err == nil {
		err = m.machine.Accept(m.now(), id.id, par.half(qp, psn, init.SRQ != nil), par.Private)
	}
	if err != nil && id.state == idConnecting {
		id.state = idRequested
	}
	m.pump()
	m.kick()
	if err != nil {
		return fmt.Errorf("accept %v: %w", id.remote, err)
	}
	return nil
}

// Reject refuses a request (rdma_reject). private has up to 148 bytes.
func (id *ID) Reject(private []byte) error {
	return id.say("reject", func(m *Manager) error {
		if id.state != idRequested {
			return id.errState("reject")
		}
		err := m.machine.Reject(m.now(), id.id, rcm.ReasonConsumer, nil, private)
		if err == nil {
			id.state = idEnded
			delete(m.conns, id.id)
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
		id.conn.probe()
		return
	case rcm.EventConnectResponse:
		go id.respond(*ev)
		return
	case rcm.EventEstablished:
		id.established(ev, out)
		return
	case rcm.EventDisconnected:
		out.Type, out.Err = EventDisconnected, ErrEnded
	case rcm.EventUnreachable:
		out.Type, out.Err = EventUnreachable, ErrUnreachable
	case rcm.EventConnectError:
		out.Type, out.Err = EventConnectError, ErrUnreachable
	case rcm.EventRejected:
		out.Type = EventRejected
		out.Err = &RejectError{Reason: ev.Reason, Status: ev.Status, Private: ev.Private}
	case rcm.EventTimewaitExit:
		out.Type = EventTimewaitExit
	}
	if out.Err != nil {
		id.state = idEnded
		if id.conn != nil {
			id.conn.end(out.Err)
		}
	}
	id.channel.put(id, out)
}

// established: the peer has confirmed; or a datagram service is found. m.mu is held.
func (id *ID) established(ev *rcm.Event, out *Event) {
	id.state, out.Type = idConnected, EventEstablished
	if id.space == rcm.PortSpaceUDP {
		go id.found(*ev, out)
		return
	}
	if out.Private == nil {
		out.Private = id.conn.private
	}
	if id.qp.State() == verbs.StateRTR { // accepted
		if err := id.conn.send(); err != nil {
			out.Type, out.Err = EventConnectError, err
			id.m.machine.Destroy(id.m.now(), id.id)
		}
	}
	id.channel.put(id, out)
}

// found makes the way to a datagram service.
func (id *ID) found(ev rcm.Event, out *Event) {
	ah, err := id.m.ahFor(id.qp, wire.GID(id.local.As16()), id.remote.Addr())
	if err != nil {
		out.Type, out.Err = EventConnectError, err
	} else {
		out.Service = &Service{AH: ah, QPN: ev.Remote.QPN, QKey: ev.Remote.QKey, Private: ev.Private}
	}
	id.channel.put(id, out)
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
		id.state = idEnded
		m.machine.Destroy(m.now(), id.id)
		delete(m.conns, id.id)
		id.conn.end(err)
		id.channel.put(id, &Event{Type: EventConnectError, ID: id, Err: err})
	}
	m.pump()
	m.kick()
}
