package cm

import (
	"encoding/binary"
	"time"
)

// An ID names a connection; it is also its local communication id on the wire. IDs are random, so
// that a void one stays void.
type ID uint32

// conn is one connection or service resolution, from its first message to the end of its time wait.
type conn struct {
	id         ID
	seq        uint64 // order of creation
	state      State
	active     bool // we sent the REQ
	orphan     bool // Destroy was called: no more events
	probing    bool // an EventKeepalive waits to be polled
	inRemote   bool // filed in byRemote under key
	inQP       bool // filed in byQP under qpKey
	mraSeen    bool // an MRA has come since the last retransmission
	tries      uint8
	failover   uint8 // what a REP says about the alternate path
	at         Addr
	key        remoteKey
	qpKey      qpKey
	listener   *listener // while the application has not answered
	service    ServiceID
	tid        uint64 // of the transaction that our next answer belongs to
	reqTID     uint64 // passive: of the REQ
	remoteID   uint32 // the peer's communication id, if known
	known      bool   // remoteID is
	local      Param
	remote     Param
	qp         QPParam
	life       uint8 // packet lifetime code
	delay      uint8 // ACK delay code
	ackTimeout uint8 // active: asked for by the application; 0 = from life and delay
	maxRetry   uint8
	msg        MAD // said last: retransmitted by timer or repeated for duplicates
	wait       time.Duration
	maxWait    time.Duration
	keepEvery  time.Duration
	giveUp     Time // passive: when the application, and then the peer, has been silent for too long
	deadline   Time
	slot       int // in Machine.timers; -1 = not there
}

// setState moves c and keeps the half-open accounts.
func (m *Machine) setState(c *conn, s State) {
	was, is := c.state.halfOpen(), s.halfOpen()
	c.state = s
	switch {
	case is && !was:
		m.half++
		m.halfPeer[c.at.Remote]++
	case was && !is:
		m.half--
		if m.halfPeer[c.at.Remote]--; m.halfPeer[c.at.Remote] == 0 {
			delete(m.halfPeer, c.at.Remote)
		}
	}
	waiting := s == StateREQRcvd || s == StateMRAREQSent || s == StateSIDRREQRcvd
	if c.listener != nil && !waiting {
		c.listener.waiting--
		c.listener = nil
	}
}

// fileRemote makes duplicates of the peer's request find c.
func (m *Machine) fileRemote(c *conn, key remoteKey) {
	c.key, c.inRemote = key, true
	m.byRemote[key] = c
}

// fileQP makes a second request from the peer's QP find c.
func (m *Machine) fileQP(c *conn, key qpKey) {
	c.qpKey, c.inQP = key, true
	m.byQP[key] = c
}

func (m *Machine) unfileQP(c *conn) {
	if c.inQP {
		delete(m.byQP, c.qpKey)
		c.inQP = false
	}
}

// remove forgets c.
func (m *Machine) remove(c *conn) {
	m.arm(c, Never)
	m.setState(c, StateIdle)
	m.unfileQP(c)
	if c.inRemote {
		delete(m.byRemote, c.key)
		c.inRemote = false
	}
	delete(m.conns, c.id)
}

// request sends msg and retransmits it until an answer cancels it or tries have been used up.
func (m *Machine) request(c *conn, tid uint64, msg Message, tries uint8) {
	c.tid = tid
	c.msg = Encode(tid, msg)
	c.tries = tries
	c.wait = min(m.cfg.RetryFirst, c.maxWait)
	c.mraSeen = false
	m.send(c.at, &c.msg)
	m.armRetry(c)
}

// armRetry sets the retransmission timer, up to an eighth late so that connections that started
// together do not stay together.
func (m *Machine) armRetry(c *conn) {
	m.armAfter(c, c.wait+time.Duration(m.cfg.Rand()%uint64(c.wait/8+1)))
}

// resend retransmits what request sent; false if that has been done often enough.
func (m *Machine) resend(c *conn) bool {
	if c.tries == 0 {
		return false
	}
	c.tries--
	c.wait = min(2*c.wait, c.maxWait)
	c.mraSeen = false
	m.stats.Retries[c.msg.Attr().Index()]++
	m.send(c.at, &c.msg)
	m.armRetry(c)
	return true
}

// answer sends msg in the transaction of the message it answers and keeps it for duplicates.
func (m *Machine) answer(c *conn, msg Message) {
	c.msg = Encode(c.tid, msg)
	m.send(c.at, &c.msg)
}

// postpone moves the retransmission of our REQ or REP behind the time an MRA asks for. One MRA
// counts for each transmission, so that a peer can't keep us waiting for ever.
func (m *Machine) postpone(c *conn, mad *MAD, kind Kind, next State) {
	var q MRA
	decode(mad, &q)
	if q.Message != kind {
		m.drop(DropState)
		return
	}
	if c.mraSeen {
		m.duplicate(mad)
		return
	}
	c.mraSeen = true
	m.setState(c, next)
	c.wait = c.maxWait
	m.armAfter(c, Timeout(min(q.ServiceTimeout, maxServiceCode))+2*Timeout(c.life))
}

func (m *Machine) duplicate(mad *MAD) { m.stats.Duplicates[mad.Attr().Index()]++ }

// ignore is for a duplicate that needs no answer.
func (m *Machine) ignore(_ *conn, mad *MAD) { m.duplicate(mad) }

// repeat answers a duplicate with what its first copy was answered with.
func (m *Machine) repeat(c *conn, mad *MAD) {
	m.duplicate(mad)
	m.send(c.at, &c.msg)
}

// needTime answers the duplicate of a request that the application still thinks about.
func (m *Machine) needTime(c *conn, mad *MAD) {
	m.duplicate(mad)
	m.tellNeedTime(c)
}

// tellNeedTime sends an MRA before half of the promised response time is over.
func (m *Machine) tellNeedTime(c *conn) { m.sayMRA(c, m.cfg.ServiceTimeout) }

func (m *Machine) sayMRA(c *conn, code uint8) {
	kind, next, until := KindREQ, StateMRAREQSent, c.giveUp
	if c.active {
		kind, next, until = KindREP, StateMRAREPSent, Never
	}
	m.answer(c, &MRA{
		LocalID: uint32(c.id), RemoteID: c.remoteID, Message: kind, ServiceTimeout: code,
	})
	m.setState(c, next)
	m.arm(c, until)
}

// receiveREJ finds the connection a REJ is about. Whoever gives up before it knows our id says
// "timed out" and puts its CA's GUID in the additional information.
func (m *Machine) receiveREJ(at Addr, mad *MAD) {
	var q REJ
	decode(mad, &q)
	id := ID(q.RemoteID)
	if id == 0 && q.Reason == ReasonTimeout {
		key := remoteKey{gid: at.Remote, guid: binary.BigEndian.Uint64(q.Info[:]), id: q.LocalID}
		if c := m.byRemote[key]; c != nil {
			id = c.id
		}
	}
	m.dispatch(at, mad, id, q.LocalID)
}

// rejected ends a connection that had not been established.
func (m *Machine) rejected(c *conn, mad *MAD) {
	var q REJ
	decode(mad, &q)
	ev := Event{
		Kind:    EventRejected,
		Reason:  q.Reason,
		Info:    append([]byte{}, q.Info[:min(int(q.InfoLength), ARISize)]...),
		Private: append([]byte{}, q.Private[:]...),
	}
	ev.TimeWait = q.Reason == ReasonStaleConn ||
		c.state == StateREPRcvd || c.state == StateMRAREPSent
	m.emit(c, ev)
	if ev.TimeWait {
		m.timewait(c)
	} else {
		m.forget(c)
	}
}

// reject sends a REJ for c with its ids.
func (m *Machine) reject(c *conn, kind Kind, reason Reason, info, private []byte) {
	q := REJ{
		LocalID: uint32(c.id), RemoteID: c.remoteID,
		Message: kind, Reason: reason, InfoLength: uint8(len(info)),
	}
	copy(q.Info[:], info)
	copy(q.Private[:], private)
	m.answer(c, &q)
}

// rejectTimeout tells the peer that we have given up, by our GUID if it has no id of ours yet.
func (m *Machine) rejectTimeout(c *conn, kind Kind) {
	m.reject(c, kind, ReasonTimeout, binary.BigEndian.AppendUint64(nil, m.cfg.GUID), nil)
}

// timewait keeps c until packets of its QPs have died out: twice the packet lifetime and the ACK
// delay (IBTA volume 1, chapter 12). A new request from the same remote QP is no longer stale.
func (m *Machine) timewait(c *conn) {
	m.unfileQP(c)
	m.setState(c, StateTimewait)
	m.armAfter(c, 2*Timeout(c.life)+Timeout(c.delay))
}

func (m *Machine) timewaitOver(c *conn) {
	m.emit(c, Event{Kind: EventTimewaitExit})
	m.forget(c)
}

// forget removes c. A late duplicate of a passive side's REQ must not look like a new request.
func (m *Machine) forget(c *conn) {
	if c.active {
		m.remove(c)
		return
	}
	c.msg = Encode(c.reqTID, &REJ{
		RemoteID: c.remoteID, Message: KindREQ, Reason: ReasonStaleConn,
	})
	m.part(c)
}

// rejectStale answers an old REQ of a connection that is over.
func (m *Machine) rejectStale(c *conn, mad *MAD) {
	m.duplicate(mad)
	m.say(c.at, mad.TID(), &REJ{
		LocalID: uint32(c.id), RemoteID: c.remoteID, Message: KindREQ, Reason: ReasonStaleConn,
	})
}

// stale is called when the peer uses c's remote QP for another connection.
func (m *Machine) stale(c *conn) {
	switch {
	case c.state != StateEstablished:
	case m.cfg.ProbeStale && c.qp.Transport == TransportRC:
		m.probe(c)
	default:
		m.sendDREQ(c, nil)
	}
}

// probe asks the owner for a keepalive, once until it has polled the event.
func (m *Machine) probe(c *conn) {
	if !c.probing && !c.orphan {
		c.probing = true
		m.emit(c, Event{Kind: EventKeepalive})
	}
}

func (m *Machine) keepalive(c *conn) {
	m.probe(c)
	m.armAfter(c, c.keepEvery)
}

// established starts the keepalive interval.
func (m *Machine) established(c *conn, private []byte) {
	m.setState(c, StateEstablished)
	m.arm(c, Never)
	if c.keepEvery > 0 {
		m.armAfter(c, c.keepEvery)
	}
	m.emit(c, Event{Kind: EventEstablished, Private: private})
}
