package cm

import "time"

// farewellTime is how long an answer that ended a request is repeated for duplicates: an MRA's
// service timeout and all the retransmissions after it. Every duplicate starts it anew.
const farewellTime = 150 * time.Second

// A farewell is the last answer to a request that has no connection any more: a REJ or a SIDR_REP.
type farewell struct {
	key   remoteKey
	at    Addr
	mad   MAD
	until Time
}

// farewells remembers the newest limit of them.
type farewells struct {
	limit int
	byKey map[remoteKey]*farewell
	order []*farewell
}

func (f *farewells) add(now Time, key remoteKey, at Addr, mad *MAD) {
	for len(f.order) > 0 && (len(f.order) >= f.limit || f.order[0].until < now) {
		if old := f.order[0]; f.byKey[old.key] == old {
			delete(f.byKey, old.key)
		}
		f.order[0] = nil
		f.order = f.order[1:]
	}
	w := &farewell{key: key, at: at, mad: *mad, until: now.add(farewellTime)}
	f.byKey[key] = w
	f.order = append(f.order, w)
}

// repeat answers mad if it is a duplicate of a request that has been answered.
func (f *farewells) repeat(m *Machine, key remoteKey, mad *MAD) bool {
	w := f.byKey[key]
	if w == nil || w.until < m.now || w.mad.TID() != mad.TID() {
		return false
	}
	w.until = m.now.add(farewellTime)
	m.duplicate(mad)
	m.send(w.at, &w.mad)
	return true
}

// part removes c and remembers what was said last.
func (m *Machine) part(c *conn) {
	m.farewells.add(m.now, c.key, c.at, &c.msg)
	m.remove(c)
}

// receiveSIDRREQ takes a request for a datagram service.
func (m *Machine) receiveSIDRREQ(at Addr, mad *MAD) {
	var q SIDRREQ
	decode(mad, &q)
	key := remoteKey{gid: at.Remote, id: q.RequestID, sidr: true}
	if c := m.byRemote[key]; c != nil {
		m.run(c, mad)
		return
	}
	if m.farewells.repeat(m, key, mad) {
		return
	}
	l := m.findListener(q.Service, at.Local)
	if l == nil {
		m.refuseSIDR(at, mad, &q, SIDRUnsupported)
		return
	}
	req := &Request{Transport: TransportUD, Service: q.Service, Addr: at, PKey: q.PKey}
	private, ok := req.takeHeader(q.Private[:])
	if !ok {
		m.refuseSIDR(at, mad, &q, SIDRUnsupportedVersion)
		return
	}
	if !samePartition(q.PKey, m.cfg.PKey) {
		m.refuseSIDR(at, mad, &q, SIDRReject)
		return
	}
	c := m.admit(at, l)
	if c == nil {
		return
	}
	m.fileRemote(c, key)
	c.service = q.Service
	c.remoteID, c.known = q.RequestID, true
	c.tid = mad.TID()
	m.setState(c, StateSIDRREQRcvd)
	m.arm(c, c.giveUp)
	m.emit(c, Event{
		Kind: EventConnectRequest, Listener: l.id, Request: req, Private: private,
	})
}

// refuseSIDR answers a request that the application does not see.
func (m *Machine) refuseSIDR(at Addr, mad *MAD, q *SIDRREQ, status SIDRStatus) {
	m.say(at, mad.TID(), &SIDRREP{RequestID: q.RequestID, Status: status, Service: q.Service})
}

// answerSIDR sends the SIDR_REP, and that is all.
func (m *Machine) answerSIDR(c *conn, s SIDRStatus, p Param, info, private []byte) error {
	if len(private) > SIDRREPPrivate {
		return ErrPrivateData
	}
	q := SIDRREP{
		RequestID: c.remoteID, Status: s, Service: c.service, InfoLength: uint8(len(info)),
	}
	if s == SIDRSuccess {
		q.QPN, q.QKey = p.QPN, p.QKey
	}
	copy(q.Info[:], info)
	copy(q.Private[:], private)
	m.answer(c, &q)
	m.part(c)
	return nil
}
