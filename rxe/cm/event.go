package cm

import "github.com/roxie-rdma/roxie/rxe/wire"

// An EventKind says what happened; the names are librdmacm's.
type EventKind uint8

// Events. A connection's last event is EventConnectError, EventUnreachable, EventRejected,
// EventTimewaitExit, or for a datagram service EventEstablished: its ID is void afterwards.
// EventRejected and EventUnreachable are followed by EventTimewaitExit if TimeWait says so.
const (
	// EventConnectRequest: a REQ or SIDR_REQ has come to a listener. Answer with Accept or Reject.
	EventConnectRequest EventKind = iota + 1
	// EventConnectResponse: the REP has come. Connect the QP, then call Establish or Reject.
	EventConnectResponse
	// EventConnectError: the application let a request lie for Config.AcceptTimeout.
	EventConnectError
	// EventUnreachable: no answer to a REQ, SIDR_REQ or REP.
	EventUnreachable
	// EventRejected: a REJ with Reason, or a SIDR_REP with Status, has come; with Local set we sent
	// the REJ because the REP could not be right.
	EventRejected
	// EventEstablished: both ends may send. For a datagram service: Remote has QPN and QKey.
	EventEstablished
	// EventDisconnected: move the QP to the error state. After the peer's DREQ call Disconnect to
	// answer it; it is answered after two seconds otherwise.
	EventDisconnected
	// EventTimewaitExit: old packets have died out, the QP number may be used again.
	EventTimewaitExit
	// EventKeepalive: send something that the peer's QP acknowledges (a zero-length WRITE) if the
	// connection has been idle.
	EventKeepalive
)

var eventNames = [...]string{
	"NONE", "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE", "REJECTED",
	"ESTABLISHED", "DISCONNECTED", "TIMEWAIT_EXIT", "KEEPALIVE",
}

// String returns librdmacm's name without its prefix.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "unknown"
}

// An Event is one thing that happened to a connection. Its slices belong to the receiver.
type Event struct {
	Kind     EventKind
	ID       ID
	Listener ListenID // EventConnectRequest
	Request  *Request // EventConnectRequest
	// Remote is the peer's half as it said it: EventConnectRequest, EventConnectResponse and a
	// datagram service's EventEstablished.
	Remote Param
	// Private is the user's part of the message behind the event, zero-filled to its field's
	// length; nil if no message is behind it.
	Private  []byte
	Reason   Reason     // EventRejected; EventDisconnected by a REJ
	Status   SIDRStatus // EventRejected of a datagram service
	Info     []byte     // EventRejected: additional reject information
	Local    bool       // EventRejected: the REJ was ours
	Silent   bool       // EventDisconnected: the peer has not answered our DREQ
	TimeWait bool       // EventRejected, EventUnreachable: EventTimewaitExit follows

	conn *conn
}

// A Request is what EventConnectRequest tells about a REQ or SIDR_REQ, from our point of view.
type Request struct {
	Transport  Transport // RC, UC or, for a SIDR_REQ, UD
	Service    ServiceID
	Addr       Addr
	PKey       uint16
	MTU        uint8  // PMTU code; this and the rest is zero for a SIDR_REQ
	FlowLabel  uint32 // 20 bits
	TClass     uint8
	HopLimit   uint8
	AckTimeout uint8 // code for our QP, as the peer says it; see QPParam
	RemoteGUID uint64
	// IP is the IP addressing header, nil if the service id is outside RDMA-CM's range. IP.Src is
	// what the peer claims; Addr.Remote is where the MAD came from.
	IP *IPHeader
}

// A Param is one end's half of a connection.
type Param struct {
	QPN wire.QPN
	PSN wire.PSN // the first PSN this end expects: the other end starts to send with it
	// ResponderResources is how many READs and atomics this end serves at once.
	ResponderResources uint8
	// InitiatorDepth is how many READs and atomics this end has outstanding at most.
	InitiatorDepth uint8
	RetryCount     uint8 // 3 bits: for the other end's QP and, if we connect, ours
	RNRRetry       uint8 // 3 bits: for the other end's QP; 7 = for ever
	FlowControl    bool
	SRQ            bool
	QKey           uint32 // datagram services only
}

// QPParam is what a QP needs to be connected (modify to RTR and RTS).
type QPParam struct {
	Transport       Transport
	Addr            Addr
	DestQPN         wire.QPN
	RQPSN           wire.PSN
	SQPSN           wire.PSN
	MTU             uint8 // PMTU code
	MaxDestRdAtomic uint8 // what the peer may have outstanding
	MaxRdAtomic     uint8
	Timeout         uint8 // local ACK timeout code
	RetryCount      uint8
	RNRRetry        uint8
	PKey            uint16
	FlowLabel       uint32
	TClass          uint8
	HopLimit        uint8
}

// emit queues ev for c unless its owner has let go of it.
func (m *Machine) emit(c *conn, ev Event) {
	if c.orphan {
		return
	}
	ev.ID, ev.conn = c.id, c
	m.events = append(m.events, ev)
}

// Poll returns the oldest event, false if there is none.
func (m *Machine) Poll() (Event, bool) {
	for len(m.events) > 0 {
		ev := m.events[0]
		m.events[0] = Event{}
		m.events = m.events[1:]
		c := ev.conn
		ev.conn = nil
		if ev.Kind == EventKeepalive {
			c.probing = false
			if c.state != StateEstablished {
				continue
			}
		}
		if !c.orphan {
			return ev, true
		}
	}
	m.events = nil
	return Event{}, false
}
