package cm

import "github.com/roxie-rdma/roxie/rxe/wire"

// A ListenID names a listener.
type ListenID uint32

// A ListenParam says what to listen for.
type ListenParam struct {
	Service ServiceID
	Local   wire.GID // address to listen on; zero = all
	// Family restricts a listener on all addresses to those of one IP version.
	Family Family
	// Backlog is how many requests may wait for Accept or Reject; more are dropped, and come again
	// by retransmission. 0 = no limit but the half-open ones.
	Backlog int
}

// A Family is an IP version.
type Family uint8

// Families.
const (
	AnyFamily Family = 0
	IPv4      Family = 4
	IPv6      Family = 6
)

func familyOf(g wire.GID) Family {
	if g.IsIPv4() {
		return IPv4
	}
	return IPv6
}

type listener struct {
	id      ListenID
	key     serviceKey
	backlog int
	waiting int
}

type serviceKey struct {
	service ServiceID
	local   wire.GID
	family  Family // of all addresses, if local is zero
}

// Listen makes requests for a service raise EventConnectRequest: REQs and SIDR_REQs alike. The
// error is ErrInUse if there is a listener for that service and address.
func (m *Machine) Listen(p ListenParam) (ListenID, error) {
	key := serviceKey{service: p.Service, local: p.Local}
	if p.Local == (wire.GID{}) {
		key.family = p.Family
	}
	if m.services[key] != nil {
		return 0, ErrInUse
	}
	m.lastID++
	l := &listener{id: m.lastID, key: key, backlog: p.Backlog}
	m.listeners[l.id] = l
	m.services[key] = l
	return l.id, nil
}

// Unlisten ends a listener. Requests that it has raised can still be accepted.
func (m *Machine) Unlisten(id ListenID) error {
	l := m.listeners[id]
	if l == nil {
		return ErrUnknownID
	}
	delete(m.listeners, id)
	delete(m.services, l.key)
	return nil
}

// findListener prefers the listener on the very address, then the one on all of its family.
func (m *Machine) findListener(s ServiceID, local wire.GID) *listener {
	for _, key := range [...]serviceKey{
		{service: s, local: local}, {service: s, family: familyOf(local)}, {service: s},
	} {
		if l := m.services[key]; l != nil {
			return l
		}
	}
	return nil
}

// admit returns a new half-open connection, or nil if a limit forbids it. Above a limit the request
// is dropped, not rejected: it will be retransmitted, and a flood gets no answers.
func (m *Machine) admit(at Addr, l *listener) *conn {
	switch {
	case len(m.conns) >= m.cfg.MaxConns:
		m.drop(DropConns)
	case m.half >= m.cfg.MaxHalfOpen:
		m.drop(DropHalfOpen)
	case m.halfPeer[at.Remote] >= m.cfg.MaxHalfOpenPeer:
		m.drop(DropHalfOpenPeer)
	case l.backlog > 0 && l.waiting >= l.backlog:
		m.drop(DropBacklog)
	case len(m.events) >= m.cfg.MaxEvents:
		m.drop(DropEvents)
	default:
		c := m.newConn(at)
		c.listener = l
		l.waiting++
		c.giveUp = m.now.add(m.cfg.AcceptTimeout)
		return c
	}
	return nil
}

// receiveREQ takes a request: a duplicate, one of a connection that the peer has lost, or a new
// one.
func (m *Machine) receiveREQ(at Addr, mad *MAD) {
	var q REQ
	decode(mad, &q)
	key := remoteKey{gid: at.Remote, guid: q.CAGUID, id: q.LocalID}
	if c := m.byRemote[key]; c != nil {
		if at.Local != c.at.Local {
			m.drop(DropPeer)
			return
		}
		m.run(c, mad)
		return
	}
	if m.farewells.repeat(m, key, mad) {
		return
	}
	qk := qpKey{gid: at.Remote, guid: q.CAGUID, qpn: q.QPN}
	if old := m.byQP[qk]; old != nil {
		m.rejectREQ(at, mad, &q, ReasonStaleConn, nil)
		m.stale(old)
		return
	}
	l := m.findListener(q.Service, at.Local)
	if l == nil {
		m.rejectREQ(at, mad, &q, ReasonInvalidServiceID, nil)
		return
	}
	req, private, reason, info := m.checkREQ(at, &q)
	if reason != ReasonNone {
		m.rejectREQ(at, mad, &q, reason, info)
		return
	}
	c := m.admit(at, l)
	if c == nil {
		return
	}
	m.fileRemote(c, key)
	m.fileQP(c, qk)
	m.takeREQ(c, mad, &q)
	m.emit(c, Event{
		Kind: EventConnectRequest, Listener: l.id, Request: req, Remote: c.remote, Private: private,
	})
}

// rejectREQ answers a REQ that makes no connection.
func (m *Machine) rejectREQ(at Addr, mad *MAD, q *REQ, reason Reason, info []byte) {
	rej := REJ{
		RemoteID: q.LocalID, Message: KindREQ, Reason: reason, InfoLength: uint8(len(info)),
	}
	copy(rej.Info[:], info)
	m.say(at, mad.TID(), &rej)
}

// checkREQ returns what the application is told about a REQ and its private data, or why the REQ
// can't be taken.
func (m *Machine) checkREQ(at Addr, q *REQ) (*Request, []byte, Reason, []byte) {
	switch {
	case q.Transport != TransportRC && q.Transport != TransportUC:
		return nil, nil, ReasonInvalidTransportType, nil
	case q.Primary.Local != at.Remote || q.Primary.Remote != at.Local:
		return nil, nil, ReasonInvalidGID, at.Local[:]
	case !samePartition(q.PKey, m.cfg.PKey):
		return nil, nil, ReasonUnsupported, nil
	case q.MTU < 1 || q.MTU > m.cfg.MaxMTU:
		return nil, nil, ReasonInvalidMTU, nil
	}
	req := &Request{
		Transport: q.Transport, Service: q.Service, Addr: at, PKey: q.PKey, MTU: q.MTU,
		FlowLabel: q.Primary.FlowLabel, TClass: q.Primary.TClass, HopLimit: q.Primary.HopLimit,
		AckTimeout: q.Primary.AckTimeout, RemoteGUID: q.CAGUID,
	}
	private, ok := req.takeHeader(q.Private[:])
	if !ok {
		return nil, nil, ReasonUnsupported, nil
	}
	return req, private, ReasonNone, nil
}

// takeHeader reads the IP addressing header, if the service has one, and returns a copy of the
// rest.
func (r *Request) takeHeader(b []byte) ([]byte, bool) {
	if r.Service.IsIP() {
		h, ok := parseIPHeader(b)
		if !ok {
			return nil, false
		}
		r.IP = &h
		b = b[IPHeaderSize:]
	}
	return append([]byte{}, b...), true
}

// samePartition ignores the membership bit, but two limited members do not match.
func samePartition(a, b uint16) bool { return (a^b)&0x7fff == 0 && (a|b)&0x8000 != 0 }

// takeREQ copies what a connection needs from its REQ.
func (m *Machine) takeREQ(c *conn, mad *MAD, q *REQ) {
	c.service = q.Service
	c.remoteID, c.known = q.LocalID, true
	c.tid, c.reqTID = mad.TID(), mad.TID()
	c.remote = Param{
		QPN: q.QPN, PSN: q.PSN,
		ResponderResources: q.ResponderResources, InitiatorDepth: q.InitiatorDepth,
		RetryCount: q.RetryCount, RNRRetry: q.RNRRetry,
		FlowControl: q.FlowControl, SRQ: q.SRQ, QKey: q.QKey,
	}
	c.life = min(max(q.Primary.AckTimeout, 1)-1, maxLifeCode)
	c.delay = m.cfg.AckDelay
	c.maxRetry = q.MaxRetries
	wait := Timeout(min(q.LocalTimeout, maxTimeoutCode)) + 2*Timeout(c.life)
	c.maxWait = max(wait, m.cfg.RetryFirst)
	c.keepEvery = m.cfg.Keepalive
	if q.Alternate.Local != (wire.GID{}) {
		c.failover = 1 // not supported
	}
	c.qp = QPParam{
		Transport: q.Transport, Addr: c.at, DestQPN: q.QPN, SQPSN: q.PSN, MTU: q.MTU,
		MaxDestRdAtomic: q.InitiatorDepth, MaxRdAtomic: q.ResponderResources,
		Timeout: m.timeoutOf(q.Primary.AckTimeout), RetryCount: q.RetryCount, RNRRetry: q.RNRRetry,
		PKey: q.PKey, FlowLabel: q.Primary.FlowLabel, TClass: q.Primary.TClass,
		HopLimit: q.Primary.HopLimit,
	}
	m.setState(c, StateREQRcvd)
	m.armAfter(c, min(Timeout(q.RemoteTimeout)/2, m.cfg.AcceptTimeout/2))
}

// timeoutOf is our QP's ACK timeout code for the one in a REQ. A peer may not keep us from noticing
// that it has gone: 0 would be no timeout at all.
func (m *Machine) timeoutOf(code uint8) uint8 {
	if code == 0 {
		return ackTimeout(m.cfg.AckDelay, m.cfg.PacketLife)
	}
	return min(code, maxTimeoutCode)
}

// Accept answers an EventConnectRequest with a REP; EventEstablished, EventRejected or
// EventUnreachable follows. The QP should be ready to receive. ResponderResources and
// InitiatorDepth are lowered to what the peer can use and serve. Private has up to REPPrivate
// bytes.
//
// A datagram service's request is answered with a SIDR_REP of p.QPN and p.QKey (private up to
// SIDRREPPrivate), and the ID is void.
//
// Errors: ErrUnknownID, ErrInvalidState, ErrPrivateData.
func (m *Machine) Accept(now Time, id ID, p Param, private []byte) error {
	m.now = now
	c := m.conns[id]
	switch {
	case c == nil:
		return ErrUnknownID
	case c.state == StateSIDRREQRcvd:
		return m.answerSIDR(c, SIDRSuccess, p, nil, private)
	case c.state != StateREQRcvd && c.state != StateMRAREQSent:
		return &StateError{"accept", c.state}
	case len(private) > REPPrivate:
		return ErrPrivateData
	}
	p.ResponderResources = min(p.ResponderResources, c.remote.InitiatorDepth)
	p.InitiatorDepth = min(p.InitiatorDepth, c.remote.ResponderResources)
	c.local = p
	c.qp.RQPSN = p.PSN
	c.qp.MaxDestRdAtomic, c.qp.MaxRdAtomic = p.ResponderResources, p.InitiatorDepth
	q := REP{
		LocalID: uint32(c.id), RemoteID: c.remoteID, QPN: p.QPN, PSN: p.PSN, CAGUID: m.cfg.GUID,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		AckDelay: m.cfg.AckDelay, Failover: c.failover, FlowControl: p.FlowControl,
		RNRRetry: p.RNRRetry, SRQ: p.SRQ,
	}
	copy(q.Private[:], private)
	c.giveUp = Never
	if d := m.cfg.ConfirmTimeout; d > 0 {
		c.giveUp = m.now.add(d)
	}
	m.setState(c, StateREPSent)
	m.request(c, c.tid, &q, c.maxRetry)
	m.arm(c, min(c.deadline, c.giveUp))
	return nil
}

// mraForREP: the active side needs a while.
func (m *Machine) mraForREP(c *conn, mad *MAD) {
	m.postpone(c, mad, KindREP, StateMRAREPRcvd)
	m.arm(c, min(c.deadline, c.giveUp))
}

// ready takes the RTU.
func (m *Machine) ready(c *conn, mad *MAD) {
	var q RTU
	decode(mad, &q)
	m.established(c, append([]byte{}, q.Private[:]...))
}

// CommEst tells that the connection's QP has received a packet, which counts as the RTU (event
// COMM_EST of the QP); EventEstablished follows unless the connection is established already.
// Errors: ErrUnknownID, ErrInvalidState.
func (m *Machine) CommEst(now Time, id ID) error {
	m.now = now
	c := m.conns[id]
	switch {
	case c == nil:
		return ErrUnknownID
	case c.state == StateEstablished:
	case c.state == StateREPSent || c.state == StateMRAREPRcvd:
		m.established(c, nil)
	default:
		return &StateError{"comm_est", c.state}
	}
	return nil
}

// retryREP retransmits a REP or gives up. The peer may think that it is connected: its packets must
// die out.
func (m *Machine) retryREP(c *conn) {
	if m.now < c.giveUp && m.resend(c) {
		m.arm(c, min(c.deadline, c.giveUp))
		return
	}
	m.rejectTimeout(c, KindOther)
	m.emit(c, Event{Kind: EventUnreachable, TimeWait: true})
	m.timewait(c)
}

// giveUpAccept ends a request that the application has not answered.
func (m *Machine) giveUpAccept(c *conn) {
	m.emit(c, Event{Kind: EventConnectError})
	if c.state == StateSIDRREQRcvd {
		// Without private data this can't fail.
		_ = m.answerSIDR(c, SIDRReject, Param{}, nil, nil)
		return
	}
	m.rejectTimeout(c, KindREQ)
	m.part(c)
}
