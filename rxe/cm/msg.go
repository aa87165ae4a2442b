package cm

import "github.com/roxie-rdma/roxie/rxe/wire"

// Bytes of private data each message carries. Lengths are not on the wire: the receiver gets the
// whole field, zero-filled. Of the REQ's and SIDR_REQ's field the IP addressing header takes the
// first 36 bytes.
const (
	REQPrivate     = 92
	MRAPrivate     = 222
	REJPrivate     = 148
	REPPrivate     = 196
	RTUPrivate     = 224
	DREQPrivate    = 220
	DREPPrivate    = 224
	SIDRREQPrivate = 216
	SIDRREPPrivate = 136
	LAPPrivate     = 168
	APRPrivate     = 148

	ARISize = 72 // additional reject, response or path information

	REQUserPrivate     = REQPrivate - IPHeaderSize
	SIDRREQUserPrivate = SIDRREQPrivate - IPHeaderSize
)

// A Transport is the service type of a QP in a REQ.
type Transport uint8

// Transports. UD is not a wire value: it stands for a service resolved by SIDR.
const (
	TransportRC       Transport = 0
	TransportUC       Transport = 1
	TransportRD       Transport = 2
	TransportExtended Transport = 3
	TransportUD       Transport = 4
)

// A Kind names the message that an MRA or a REJ is about.
type Kind uint8

// Values of the two-bit field.
const (
	KindREQ   Kind = 0
	KindREP   Kind = 1
	KindOther Kind = 2 // MRA: a LAP; REJ: no particular message
)

// A PathRecord describes one path in a REQ, from the sender's point of view. RoCE uses the GIDs,
// flow label, traffic class, hop limit and ACK timeout.
type PathRecord struct {
	LocalLID, RemoteLID uint16
	Local, Remote       wire.GID
	FlowLabel           uint32 // 20 bits
	Rate                uint8  // 6 bits
	TClass              uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits: 4.096 µs·2ⁿ
}

func (p *PathRecord) fields(l *layout, off int) {
	field(l, off, 0, 16, &p.LocalLID)
	field(l, off+2, 0, 16, &p.RemoteLID)
	raw(l, off+4, p.Local[:])
	raw(l, off+20, p.Remote[:])
	field(l, off+36, 0, 20, &p.FlowLabel)
	field(l, off+39, 2, 6, &p.Rate)
	field(l, off+40, 0, 8, &p.TClass)
	field(l, off+41, 0, 8, &p.HopLimit)
	field(l, off+42, 0, 4, &p.SL)
	bit(l, off+42, 4, &p.SubnetLocal)
	field(l, off+43, 0, 5, &p.AckTimeout)
}

// REQ asks for a connection (IBTA volume 1, Table 106).
type REQ struct {
	LocalID            uint32
	Service            ServiceID
	CAGUID             uint64
	QKey               uint32
	QPN                wire.QPN
	ResponderResources uint8
	InitiatorDepth     uint8
	RemoteTimeout      uint8 // 5 bits: the receiver answers within 4.096 µs·2ⁿ
	Transport          Transport
	FlowControl        bool
	PSN                wire.PSN // with which the receiver of the REQ starts to send
	LocalTimeout       uint8    // 5 bits: the sender answers within 4.096 µs·2ⁿ
	RetryCount         uint8    // 3 bits
	PKey               uint16
	MTU                uint8 // 4 bits: PMTU code, 1 = 256 … 5 = 4096
	RDCExists          bool
	RNRRetry           uint8 // 3 bits
	MaxRetries         uint8 // 4 bits
	SRQ                bool
	Extended           uint8 // 3 bits: extended transport type
	Primary, Alternate PathRecord
	Private            [REQPrivate]byte
}

// Attr returns AttrREQ.
func (*REQ) Attr() Attr { return AttrREQ }

func (q *REQ) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 8, 0, 64, &q.Service)
	field(l, 16, 0, 64, &q.CAGUID)
	field(l, 28, 0, 32, &q.QKey)
	field(l, 32, 0, 24, &q.QPN)
	field(l, 35, 0, 8, &q.ResponderResources)
	field(l, 39, 0, 8, &q.InitiatorDepth)
	field(l, 43, 0, 5, &q.RemoteTimeout)
	field(l, 43, 5, 2, &q.Transport)
	bit(l, 43, 7, &q.FlowControl)
	field(l, 44, 0, 24, &q.PSN)
	field(l, 47, 0, 5, &q.LocalTimeout)
	field(l, 47, 5, 3, &q.RetryCount)
	field(l, 48, 0, 16, &q.PKey)
	field(l, 50, 0, 4, &q.MTU)
	bit(l, 50, 4, &q.RDCExists)
	field(l, 50, 5, 3, &q.RNRRetry)
	field(l, 51, 0, 4, &q.MaxRetries)
	bit(l, 51, 4, &q.SRQ)
	field(l, 51, 5, 3, &q.Extended)
	q.Primary.fields(l, 52)
	q.Alternate.fields(l, 96)
	raw(l, 140, q.Private[:])
}

// MRA says that a message has come and that the answer takes longer (IBTA volume 1, Table 107).
type MRA struct {
	LocalID, RemoteID uint32
	Message           Kind
	ServiceTimeout    uint8 // 5 bits: the answer comes within 4.096 µs·2ⁿ
	Private           [MRAPrivate]byte
}

// Attr returns AttrMRA.
func (*MRA) Attr() Attr { return AttrMRA }

func (q *MRA) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	field(l, 8, 0, 2, &q.Message)
	field(l, 9, 0, 5, &q.ServiceTimeout)
	raw(l, 10, q.Private[:])
}

// REJ refuses a REQ or REP, or ends a connection half-way (IBTA volume 1, Table 108).
type REJ struct {
	LocalID, RemoteID uint32
	Message           Kind
	InfoLength        uint8 // 7 bits: bytes of Info in use
	Reason            Reason
	Info              [ARISize]byte
	Private           [REJPrivate]byte
}

// Attr returns AttrREJ.
func (*REJ) Attr() Attr { return AttrREJ }

func (q *REJ) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	field(l, 8, 0, 2, &q.Message)
	field(l, 9, 0, 7, &q.InfoLength)
	field(l, 10, 0, 16, &q.Reason)
	raw(l, 12, q.Info[:])
	raw(l, 84, q.Private[:])
}

// REP accepts a REQ (IBTA volume 1, Table 110).
type REP struct {
	LocalID, RemoteID  uint32
	QKey               uint32
	QPN                wire.QPN
	PSN                wire.PSN // with which the receiver of the REP starts to send
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5 bits: target ACK delay 4.096 µs·2ⁿ
	Failover           uint8 // 2 bits: alternate path 0 accepted, 1 not supported, 2 rejected
	FlowControl        bool
	RNRRetry           uint8 // 3 bits
	SRQ                bool
	CAGUID             uint64
	Private            [REPPrivate]byte
}

// Attr returns AttrREP.
func (*REP) Attr() Attr { return AttrREP }

func (q *REP) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	field(l, 8, 0, 32, &q.QKey)
	field(l, 12, 0, 24, &q.QPN)
	field(l, 20, 0, 24, &q.PSN)
	field(l, 24, 0, 8, &q.ResponderResources)
	field(l, 25, 0, 8, &q.InitiatorDepth)
	field(l, 26, 0, 5, &q.AckDelay)
	field(l, 26, 5, 2, &q.Failover)
	bit(l, 26, 7, &q.FlowControl)
	field(l, 27, 0, 3, &q.RNRRetry)
	bit(l, 27, 3, &q.SRQ)
	field(l, 28, 0, 64, &q.CAGUID)
	raw(l, 36, q.Private[:])
}

// RTU completes the handshake (IBTA volume 1, Table 111).
type RTU struct {
	LocalID, RemoteID uint32
	Private           [RTUPrivate]byte
}

// Attr returns AttrRTU.
func (*RTU) Attr() Attr { return AttrRTU }

func (q *RTU) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	raw(l, 8, q.Private[:])
}

// DREQ ends a connection (IBTA volume 1, Table 112).
type DREQ struct {
	LocalID, RemoteID uint32
	QPN               wire.QPN // the receiver's QP
	Private           [DREQPrivate]byte
}

// Attr returns AttrDREQ.
func (*DREQ) Attr() Attr { return AttrDREQ }

func (q *DREQ) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	field(l, 8, 0, 24, &q.QPN)
	raw(l, 12, q.Private[:])
}

// DREP answers a DREQ (IBTA volume 1, Table 113).
type DREP struct {
	LocalID, RemoteID uint32
	Private           [DREPPrivate]byte
}

// Attr returns AttrDREP.
func (*DREP) Attr() Attr { return AttrDREP }

func (q *DREP) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	raw(l, 8, q.Private[:])
}
