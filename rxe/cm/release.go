package cm

import "time"

// Reject answers EventConnectRequest or EventConnectResponse with a REJ, and the ID is void; of a
// datagram service's request, with a SIDR_REP. After Accept it takes the acceptance back. Info has
// up to ARISize bytes, private up to REJPrivate (SIDR: SIDRREPPrivate). Errors: ErrUnknownID,
// ErrInvalidState, ErrPrivateData.
func (m *Machine) Reject(now Time, id ID, reason Reason, info, private []byte) error {
	m.now = now
	c := m.conns[id]
	switch {
	case c == nil:
		return ErrUnknownID
	case len(info) > ARISize || len(private) > REJPrivate:
		return ErrPrivateData
	}
	switch c.state {
	case StateSIDRREQRcvd:
		status := SIDRReject
		if reason == ReasonNoQP || reason == ReasonNoResources {
			status = SIDRNoQP
		}
		if err := m.answerSIDR(c, status, Param{}, info, private); err != nil {
			return err
		}
	case StateREQRcvd, StateMRAREQSent:
		m.reject(c, KindREQ, reason, info, private)
		m.part(c)
	case StateREPRcvd, StateMRAREPSent:
		m.reject(c, KindREP, reason, info, private)
		m.remove(c)
	case StateREPSent, StateMRAREPRcvd:
		m.reject(c, KindOther, reason, info, private)
		m.timewait(c)
	default:
		return &StateError{"reject", c.state}
	}
	c.orphan = true // no event that waits to be polled comes any more
	return nil
}

// MRA tells the peer that the answer to its REQ or REP takes up to 4.096 µs·2ⁿ. That is done
// automatically with Config.ServiceTimeout after half of the promised time. Errors: ErrUnknownID,
// ErrInvalidState, ErrInvalidParam.
func (m *Machine) MRA(now Time, id ID, code uint8) error {
	m.now = now
	c := m.conns[id]
	switch {
	case c == nil:
		return ErrUnknownID
	case code > 31:
		return ErrInvalidParam
	}
	switch c.state {
	case StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent:
		m.sayMRA(c, code)
		return nil
	}
	return &StateError{"mra", c.state}
}

// Disconnect ends an established connection with a DREQ: EventDisconnected follows when the peer
// has answered or does not. After the peer's EventDisconnected it sends the DREP; private then has
// up to DREPPrivate bytes, otherwise DREQPrivate. EventTimewaitExit is the last event. A connection
// that is ending already is left alone. Errors: ErrUnknownID, ErrInvalidState, ErrPrivateData.
func (m *Machine) Disconnect(now Time, id ID, private []byte) error {
	m.now = now
	c := m.conns[id]
	if c == nil {
		return ErrUnknownID
	}
	switch c.state {
	case StateEstablished:
		if len(private) > DREQPrivate {
			return ErrPrivateData
		}
		m.sendDREQ(c, private)
	case StateDREQRcvd:
		if len(private) > DREPPrivate {
			return ErrPrivateData
		}
		m.sendDREP(c, private)
	case StateDREQSent, StateTimewait:
	default:
		return &StateError{"disconnect", c.state}
	}
	return nil
}

// Destroy lets go of a connection in any state: it says goodbye as the state demands and raises no
// more events. The ID must not be used any more. The peer of an established connection gets a DREQ,
// retransmitted as usual. An unknown ID is no error: of a connection that is over, the last event,
// if it has not been polled yet, is taken back.
func (m *Machine) Destroy(now Time, id ID) {
	m.now = now
	c := m.conns[id]
	if c == nil {
		for i := range m.events {
			if ev := &m.events[i]; ev.ID == id {
				ev.conn.orphan = true
			}
		}
		return
	}
	c.orphan = true
	switch c.state {
	case StateREQSent, StateMRAREQRcvd:
		m.rejectTimeout(c, KindOther)
		m.remove(c)
	case StateSIDRREQSent:
		m.remove(c)
	case StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent, StateSIDRREQRcvd,
		StateREPSent, StateMRAREPRcvd:
		// None of these states refuses, and nothing is too long.
		_ = m.Reject(now, id, ReasonConsumer, nil, nil)
	case StateEstablished:
		m.sendDREQ(c, nil)
	case StateDREQRcvd:
		m.sendDREP(c, nil)
	}
}

// QPParam returns what the connection's QP needs. It is complete from Accept or
// EventConnectResponse on; a passive side's is complete but for RQPSN from EventConnectRequest on.
func (m *Machine) QPParam(id ID) (QPParam, error) {
	if c := m.conns[id]; c != nil {
		return c.qp, nil
	}
	return QPParam{}, ErrUnknownID
}

// SetKeepalive makes an established connection, or one that will be, raise EventKeepalive at this
// interval instead of Config.Keepalive; 0 = never.
func (m *Machine) SetKeepalive(now Time, id ID, every time.Duration) error {
	m.now = now
	c := m.conns[id]
	switch {
	case c == nil:
		return ErrUnknownID
	case every < 0:
		return ErrInvalidParam
	}
	c.keepEvery = every
	if c.state == StateEstablished {
		m.arm(c, Never)
		if every > 0 {
			m.armAfter(c, every)
		}
	}
	return nil
}

func (m *Machine) sendDREQ(c *conn, private []byte) {
	q := DREQ{LocalID: uint32(c.id), RemoteID: c.remoteID, QPN: c.remote.QPN}
	copy(q.Private[:], private)
	m.setState(c, StateDREQSent)
	m.request(c, m.nextTID(), &q, m.cfg.MaxRetries)
}

func (m *Machine) retryDREQ(c *conn) {
	if m.resend(c) {
		return
	}
	m.emit(c, Event{Kind: EventDisconnected, Silent: true})
	m.timewait(c)
}

// peerLeaves takes a DREQ: the application is told, and the DREP follows its Disconnect.
func (m *Machine) peerLeaves(c *conn, mad *MAD) {
	var q DREQ
	decode(mad, &q)
	if q.QPN != c.local.QPN {
		m.drop(DropQPN)
		return
	}
	c.tid = mad.TID()
	m.setState(c, StateDREQRcvd)
	m.emit(c, Event{Kind: EventDisconnected, Private: append([]byte{}, q.Private[:]...)})
	m.armAfter(c, Timeout(m.cfg.ResponseTimeout)/2)
}

// answerDREQ sends the DREP for an application that does not.
func (m *Machine) answerDREQ(c *conn) { m.sendDREP(c, nil) }

func (m *Machine) sendDREP(c *conn, private []byte) {
	q := DREP{LocalID: uint32(c.id), RemoteID: c.remoteID}
	copy(q.Private[:], private)
	m.answer(c, &q)
	m.timewait(c)
}

// bothLeave takes the DREQ that crossed ours.
func (m *Machine) bothLeave(c *conn, mad *MAD) {
	var q DREQ
	decode(mad, &q)
	if q.QPN != c.local.QPN {
		m.drop(DropQPN)
		return
	}
	c.tid = mad.TID()
	m.emit(c, Event{Kind: EventDisconnected, Private: append([]byte{}, q.Private[:]...)})
	m.sendDREP(c, nil)
}

// left takes the DREP to our DREQ.
func (m *Machine) left(c *conn, mad *MAD) {
	var q DREP
	decode(mad, &q)
	m.emit(c, Event{Kind: EventDisconnected, Private: append([]byte{}, q.Private[:]...)})
	m.timewait(c)
}

// repeatDREP answers a DREQ during time wait.
func (m *Machine) repeatDREP(c *conn, mad *MAD) {
	if c.msg.Attr() == AttrDREP && c.msg.TID() == mad.TID() {
		m.repeat(c, mad)
		return
	}
	m.duplicate(mad)
	m.say(c.at, mad.TID(), &DREP{LocalID: uint32(c.id), RemoteID: c.remoteID})
}

// thrownOut takes a REJ for a connection that we believe in.
func (m *Machine) thrownOut(c *conn, mad *MAD) {
	var q REJ
	decode(mad, &q)
	m.emit(c, Event{
		Kind: EventDisconnected, Reason: q.Reason, Private: append([]byte{}, q.Private[:]...),
	})
	m.timewait(c)
}
