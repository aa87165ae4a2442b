package cm

import "fmt"

// A ConnectParam says whom to connect to, and how.
type ConnectParam struct {
	Param
	Addr      Addr // QPN 0 = 1
	Service   ServiceID
	Transport Transport // RC, UC, or UD to resolve a datagram service by SIDR
	MTU       uint8     // PMTU code, 1 … 5; not for UD
	FlowLabel uint32    // 20 bits
	TClass    uint8
	HopLimit  uint8  // 0 = 64
	SrcPort   uint16 // for the IP addressing header; 0 = one from 49152 up
	// AckTimeout is the code of both QPs' ACK timeout, 1 … 31: the path is taken to be that fast. The
	// codes of the packet lifetime and the peer's ACK delay count for nothing then. 0 = from those.
	AckTimeout uint8
	// Private is the user's private data: up to REQUserPrivate or SIDRREQUserPrivate bytes, or
	// REQPrivate or SIDRREQPrivate if Service is outside RDMA-CM's range and no header is sent.
	Private []byte
}

// Connect sends a REQ, or for TransportUD a SIDR_REQ. What follows is EventConnectResponse (UD:
// EventEstablished), EventRejected or EventUnreachable. Errors: ErrInvalidParam, ErrPrivateData,
// ErrLimit.
func (m *Machine) Connect(now Time, p ConnectParam) (ID, error) {
	m.now = now
	room := REQPrivate
	if p.Transport == TransportUD {
		room = SIDRREQPrivate
	}
	private := make([]byte, 0, room)
	if p.Service.IsIP() {
		h := IPHeader{SrcPort: p.SrcPort, Src: p.Addr.Local, Dst: p.Addr.Remote}
		if h.SrcPort == 0 {
			h.SrcPort = 0xc000 | uint16(m.cfg.Rand())
		}
		private = private[:IPHeaderSize]
		h.put(private)
	}
	switch {
	case len(private)+len(p.Private) > room:
		return 0, ErrPrivateData
	case p.Transport != TransportRC && p.Transport != TransportUC && p.Transport != TransportUD:
		return 0, fmt.Errorf("%w: transport %d", ErrInvalidParam, p.Transport)
	case p.Transport != TransportUD && (p.MTU < 1 || p.MTU > 5):
		return 0, fmt.Errorf("%w: MTU code %d", ErrInvalidParam, p.MTU)
	case p.AckTimeout > 31:
		return 0, fmt.Errorf("%w: ACK timeout code %d", ErrInvalidParam, p.AckTimeout)
	case p.Addr.Local.IsIPv4() != p.Addr.Remote.IsIPv4():
		return 0, fmt.Errorf("%w: GIDs of two IP versions", ErrInvalidParam)
	case len(m.conns) >= m.cfg.MaxConns:
		return 0, ErrLimit
	}
	private = append(private, p.Private...)
	orDefault(&p.HopLimit, 64)

	c := m.newConn(p.Addr)
	c.active = true
	c.service = p.Service
	c.local = p.Param
	c.life, c.delay = m.cfg.PacketLife, m.cfg.AckDelay
	if c.ackTimeout = p.AckTimeout; c.ackTimeout > 0 {
		c.life = min(c.ackTimeout-1, maxLifeCode)
	}
	c.keepEvery = m.cfg.Keepalive
	c.maxWait = max(Timeout(m.cfg.ResponseTimeout)+2*Timeout(c.life), m.cfg.RetryFirst)
	if p.Transport == TransportUD {
		q := SIDRREQ{RequestID: uint32(c.id), PKey: m.cfg.PKey, Service: p.Service}
		copy(q.Private[:], private)
		m.setState(c, StateSIDRREQSent)
		m.request(c, m.nextTID(), &q, m.cfg.MaxRetries)
		return c.id, nil
	}
	c.qp = QPParam{
		Transport: p.Transport, Addr: c.at, RQPSN: p.PSN, MTU: p.MTU, PKey: m.cfg.PKey,
		MaxDestRdAtomic: p.ResponderResources, MaxRdAtomic: p.InitiatorDepth,
		Timeout: c.qpTimeout(), RetryCount: p.RetryCount,
		FlowLabel: p.FlowLabel, TClass: p.TClass, HopLimit: p.HopLimit,
	}
	m.setState(c, StateREQSent)
	m.request(c, m.nextTID(), m.buildREQ(c, private), m.cfg.MaxRetries)
	return c.id, nil
}

// qpTimeout is the ACK timeout code of an active side's QP.
func (c *conn) qpTimeout() uint8 {
	if c.ackTimeout > 0 {
		return c.ackTimeout
	}
	return ackTimeout(c.delay, c.life)
}

const lidPermissive = 0xffff // what RoCE puts in a path of more than one hop

func (m *Machine) buildREQ(c *conn, private []byte) *REQ {
	q := &REQ{
		LocalID: uint32(c.id), Service: c.service, CAGUID: m.cfg.GUID, QPN: c.local.QPN,
		ResponderResources: c.local.ResponderResources, InitiatorDepth: c.local.InitiatorDepth,
		RemoteTimeout: m.cfg.ResponseTimeout, LocalTimeout: m.cfg.ResponseTimeout,
		Transport: c.qp.Transport, FlowControl: c.local.FlowControl, PSN: c.local.PSN,
		RetryCount: c.local.RetryCount, RNRRetry: c.local.RNRRetry, SRQ: c.local.SRQ,
		PKey: c.qp.PKey, MTU: c.qp.MTU, MaxRetries: m.cfg.MaxRetries,
		Primary: PathRecord{
			Local: c.at.Local, Remote: c.at.Remote,
			FlowLabel: c.qp.FlowLabel, TClass: c.qp.TClass, HopLimit: c.qp.HopLimit,
			SubnetLocal: c.qp.HopLimit <= 1, AckTimeout: c.qp.Timeout,
		},
	}
	if c.qp.HopLimit > 1 {
		q.Primary.LocalLID, q.Primary.RemoteLID = lidPermissive, lidPermissive
	}
	copy(q.Private[:], private)
	return q
}

// mraForREQ: the passive side needs a while.
func (m *Machine) mraForREQ(c *conn, mad *MAD) { m.postpone(c, mad, KindREQ, StateMRAREQRcvd) }

// replied takes the REP to our REQ.
func (m *Machine) replied(c *conn, mad *MAD) {
	var q REP
	decode(mad, &q)
	key := remoteKey{gid: c.at.Remote, guid: q.CAGUID, id: q.LocalID}
	qk := qpKey{gid: c.at.Remote, guid: q.CAGUID, qpn: q.QPN}
	reason := ReasonNone
	old := m.byQP[qk]
	switch {
	case m.byRemote[key] != nil:
		reason = ReasonDuplicateCommID
	case old != nil:
		reason = ReasonStaleConn
		m.stale(old)
	}
	if reason != ReasonNone {
		m.say(c.at, mad.TID(), &REJ{
			LocalID: uint32(c.id), RemoteID: q.LocalID, Message: KindREP, Reason: reason,
		})
		m.emit(c, Event{Kind: EventRejected, Reason: reason, Local: true})
		m.remove(c)
		return
	}
	m.fileRemote(c, key)
	m.fileQP(c, qk)
	c.remoteID, c.known = q.LocalID, true
	c.tid = mad.TID()
	c.remote = Param{
		QPN: q.QPN, PSN: q.PSN,
		ResponderResources: q.ResponderResources, InitiatorDepth: q.InitiatorDepth,
		RNRRetry: q.RNRRetry, FlowControl: q.FlowControl, SRQ: q.SRQ, QKey: q.QKey,
	}
	c.delay = min(q.AckDelay, maxTimeoutCode)
	c.qp.DestQPN, c.qp.SQPSN = q.QPN, q.PSN
	c.qp.MaxDestRdAtomic = q.InitiatorDepth
	c.qp.MaxRdAtomic = min(c.qp.MaxRdAtomic, q.ResponderResources)
	c.qp.RNRRetry = q.RNRRetry
	c.qp.Timeout = c.qpTimeout()
	m.setState(c, StateREPRcvd)
	m.armAfter(c, Timeout(m.cfg.ResponseTimeout)/2)
	m.emit(c, Event{
		Kind: EventConnectResponse, Remote: c.remote, Private: append([]byte{}, q.Private[:]...),
	})
}

// Establish sends the RTU for a connection whose EventConnectResponse has come and whose QP is
// ready to send; EventEstablished follows. Private has up to RTUPrivate bytes. Errors:
// ErrUnknownID, ErrInvalidState, ErrPrivateData.
func (m *Machine) Establish(now Time, id ID, private []byte) error {
	m.now = now
	c := m.conns[id]
	switch {
	case c == nil:
		return ErrUnknownID
	case c.state != StateREPRcvd && c.state != StateMRAREPSent:
		return &StateError{"establish", c.state}
	case len(private) > RTUPrivate:
		return ErrPrivateData
	}
	q := RTU{LocalID: uint32(c.id), RemoteID: c.remoteID}
	copy(q.Private[:], private)
	m.answer(c, &q)
	m.established(c, nil)
	return nil
}

// repeatRTU answers a REP that comes again because the RTU was lost.
func (m *Machine) repeatRTU(c *conn, mad *MAD) {
	if c.active {
		m.repeat(c, mad)
	} else {
		m.drop(DropState)
	}
}

// retryConnect retransmits a REQ or SIDR_REQ or gives up.
func (m *Machine) retryConnect(c *conn) {
	if m.resend(c) {
		return
	}
	if c.state != StateSIDRREQSent {
		m.rejectTimeout(c, KindOther)
	}
	m.emit(c, Event{Kind: EventUnreachable})
	m.remove(c)
}

// resolved takes the answer to our SIDR_REQ.
func (m *Machine) resolved(c *conn, mad *MAD) {
	var q SIDRREP
	decode(mad, &q)
	if q.Service != c.service && q.Status == SIDRSuccess {
		m.drop(DropRemoteID)
		return
	}
	ev := Event{Kind: EventRejected, Status: q.Status}
	if q.Status == SIDRSuccess {
		ev.Kind = EventEstablished
		ev.Remote = Param{QPN: q.QPN, QKey: q.QKey}
	}
	ev.Info = append([]byte{}, q.Info[:min(int(q.InfoLength), ARISize)]...)
	ev.Private = append([]byte{}, q.Private[:]...)
	m.emit(c, ev)
	m.remove(c)
}
