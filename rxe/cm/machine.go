package cm

import (
	"errors"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// An Addr has the two ends of a MAD: where it came to and from, or goes from and to.
type Addr struct {
	Local  wire.GID
	Remote wire.GID
	QPN    wire.QPN // the remote one: 1, the GSI
}

// An Out is a MAD to send.
type Out struct {
	Addr Addr
	MAD  MAD
}

// Errors of Machine's calls; [StateError] is ErrInvalidState.
var (
	ErrUnknownID    = errors.New("cm: no such connection or listener")
	ErrInvalidState = errors.New("cm: invalid state")
	ErrInvalidParam = errors.New("cm: invalid parameter")
	ErrPrivateData  = errors.New("cm: too much private data")
	ErrLimit        = errors.New("cm: too many connections")
	ErrInUse        = errors.New("cm: service id in use")
)

// A StateError is returned by a call that does not fit the connection's state.
type StateError struct {
	Call  string
	State State
}

// Error says which call and which state.
func (e *StateError) Error() string {
	return fmt.Sprintf("cm: %s in state %v", e.Call, e.State)
}

// Is reports whether target is ErrInvalidState.
func (e *StateError) Is(target error) bool { return target == ErrInvalidState }

// Stats counts; messages by Attr.Index, drops by Drop.
type Stats struct {
	Received   [NumAttrs]uint64 // well-formed
	Sent       [NumAttrs]uint64 // retransmissions and repeats included
	Retries    [NumAttrs]uint64 // retransmissions by timer
	Duplicates [NumAttrs]uint64 // received again
	Drops      [NumDrops]uint64
}

// remoteKey finds a passive or connected end by what a duplicate REQ or SIDR_REQ repeats. The
// peer's address is part of it: what other addresses send can't collide with it.
type remoteKey struct {
	gid  wire.GID
	guid uint64
	id   uint32
	sidr bool
}

// qpKey finds the connection of a remote QP.
type qpKey struct {
	gid  wire.GID
	guid uint64
	qpn  wire.QPN
}

// A Machine is one host's communication manager. One goroutine at a time may use it.
type Machine struct {
	cfg  Config
	now  Time
	tid  uint64
	seq  uint64
	half int // half-open connections

	conns     map[ID]*conn
	byRemote  map[remoteKey]*conn
	byQP      map[qpKey]*conn
	halfPeer  map[wire.GID]int
	listeners map[ListenID]*listener
	services  map[serviceKey]*listener
	lastID    ListenID
	farewells farewells

	timers timerHeap
	out    []Out
	events []Event
	stats  Stats
}

// New returns a Machine. Its errors say which field of cfg is wrong.
func New(cfg Config) (*Machine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Machine{
		cfg:       cfg,
		tid:       cfg.Rand() &^ 0xffffffff,
		conns:     map[ID]*conn{},
		byRemote:  map[remoteKey]*conn{},
		byQP:      map[qpKey]*conn{},
		halfPeer:  map[wire.GID]int{},
		listeners: map[ListenID]*listener{},
		services:  map[serviceKey]*listener{},
		farewells: farewells{limit: cfg.MaxFarewells, byKey: map[remoteKey]*farewell{}},
	}, nil
}

// SetMaxMTU changes Config.MaxMTU, a code from 1 to 5, when the link MTU has changed. Existing
// connections keep theirs.
func (m *Machine) SetMaxMTU(code uint8) { m.cfg.MaxMTU = min(max(code, 1), 5) }

// Stats returns a copy of the counters.
func (m *Machine) Stats() Stats { return m.stats }

// Len returns the number of connections in any state, time wait included.
func (m *Machine) Len() int { return len(m.conns) }

// HalfOpen returns how many requests have been received and are not yet established.
func (m *Machine) HalfOpen() int { return m.half }

// State returns a connection's state, StateIdle for an unknown one.
func (m *Machine) State(id ID) State {
	if c := m.conns[id]; c != nil {
		return c.state
	}
	return StateIdle
}

// Next fills out with the oldest MAD to send. It reports false, and leaves out alone, if there is
// none.
func (m *Machine) Next(out *Out) bool {
	if len(m.out) == 0 {
		m.out = nil
		return false
	}
	*out = m.out[0]
	m.out = m.out[1:]
	return true
}

// send queues a copy of mad.
func (m *Machine) send(at Addr, mad *MAD) {
	if len(m.out) >= m.cfg.MaxQueue {
		m.drop(DropQueue)
		return
	}
	m.stats.Sent[mad.Attr().Index()]++
	m.out = append(m.out, Out{at, *mad})
}

// say encodes and queues msg as an answer in transaction tid, outside any connection.
func (m *Machine) say(at Addr, tid uint64, msg Message) {
	mad := Encode(tid, msg)
	m.send(at, &mad)
}

func (m *Machine) drop(d Drop) { m.stats.Drops[d]++ }

// nextTID returns a transaction id that no other request of ours has.
func (m *Machine) nextTID() uint64 {
	m.tid = m.tid&^0xffffffff | uint64(uint32(m.tid)+1)
	return m.tid
}

// Receive takes one MAD that came to QP1, borrowed for the call. What can't be used is counted in
// Stats and otherwise ignored.
func (m *Machine) Receive(now Time, at Addr, mad []byte) {
	m.now = now
	if d := check(mad); d != DropNone {
		m.drop(d)
		if d == DropClassVersion {
			m.rejectVersion(at, (*MAD)(mad))
		}
		return
	}
	p := (*MAD)(mad)
	m.stats.Received[p.Attr().Index()]++
	switch p.Attr() {
	case AttrREQ:
		m.receiveREQ(at, p)
	case AttrSIDRREQ:
		m.receiveSIDRREQ(at, p)
	case AttrREJ:
		m.receiveREJ(at, p)
	case AttrLAP:
		m.receiveLAP(at, p)
	case AttrSIDRREP:
		var q SIDRREP
		decode(p, &q)
		m.dispatch(at, p, ID(q.RequestID), 0)
	default:
		// MRA, REP, RTU, DREQ, DREP and APR begin with the same two fields as a DREP.
		var q DREP
		decode(p, &q)
		m.dispatch(at, p, ID(q.RemoteID), q.LocalID)
	}
}

// rejectVersion answers a REQ of another class version; its first field is assumed to be the same.
func (m *Machine) rejectVersion(at Addr, mad *MAD) {
	if mad.Attr() != AttrREQ {
		return
	}
	var q REQ
	decode(mad, &q)
	m.say(at, mad.TID(), &REJ{
		RemoteID: q.LocalID, Message: KindREQ, Reason: ReasonInvalidClassVersion,
	})
}

// dispatch hands a MAD to connection id's row of the state table. remoteID is the sender's id as it
// stands in the MAD.
func (m *Machine) dispatch(at Addr, mad *MAD, id ID, remoteID uint32) {
	c := m.conns[id]
	if c == nil {
		m.drop(DropUnknownID)
		m.unknown(at, mad)
		return
	}
	if at.Remote != c.at.Remote || at.Local != c.at.Local {
		m.drop(DropPeer)
		return
	}
	if c.known && remoteID != c.remoteID {
		m.drop(DropRemoteID)
		return
	}
	m.run(c, mad)
}

// run looks up what c's state does with a message.
func (m *Machine) run(c *conn, mad *MAD) {
	f := onMessage[c.state][mad.Attr().Index()]
	if f == nil {
		m.drop(DropState)
		return
	}
	f(m, c, mad)
}

// unknown answers what must be answered even without a connection: a DREQ, so that its sender can
// leave, and a REP, so that its sender does not repeat it for a minute.
func (m *Machine) unknown(at Addr, mad *MAD) {
	switch mad.Attr() {
	case AttrDREQ:
		var q DREQ
		decode(mad, &q)
		m.say(at, mad.TID(), &DREP{LocalID: q.RemoteID, RemoteID: q.LocalID})
	case AttrREP:
		var q REP
		decode(mad, &q)
		m.say(at, mad.TID(), &REJ{
			LocalID: q.RemoteID, RemoteID: q.LocalID,
			Message: KindREP, Reason: ReasonInvalidCommID,
		})
	}
}

// receiveLAP answers that there are no alternate paths.
func (m *Machine) receiveLAP(at Addr, mad *MAD) {
	var q LAP
	decode(mad, &q)
	status := APRInvalidCommID
	if c := m.conns[ID(q.RemoteID)]; c != nil && c.at.Remote == at.Remote &&
		c.remoteID == q.LocalID && c.state == StateEstablished {
		status = APRUnsupported
	}
	m.say(at, mad.TID(), &APR{LocalID: q.RemoteID, RemoteID: q.LocalID, Status: status})
}

// newConn returns a connection with an id of its own, filed under it.
func (m *Machine) newConn(at Addr) *conn {
	id := ID(m.cfg.Rand())
	for id == 0 || m.conns[id] != nil {
		id++ // also ends if the generator repeats itself
	}
	m.seq++
	c := &conn{id: id, at: at, seq: m.seq, slot: -1, deadline: Never}
	if c.at.QPN == 0 {
		c.at.QPN = wire.QPNGSI
	}
	m.conns[id] = c
	return c
}
