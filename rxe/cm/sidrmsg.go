package cm

import "github.com/roxie-rdma/roxie/rxe/wire"

// SIDRREQ asks for the QP behind a datagram service (IBTA volume 1, Table 119).
type SIDRREQ struct {
	RequestID uint32
	PKey      uint16
	Service   ServiceID
	Private   [SIDRREQPrivate]byte
}

// Attr returns AttrSIDRREQ.
func (*SIDRREQ) Attr() Attr { return AttrSIDRREQ }

func (q *SIDRREQ) fields(l *layout) {
	field(l, 0, 0, 32, &q.RequestID)
	field(l, 4, 0, 16, &q.PKey)
	field(l, 8, 0, 64, &q.Service)
	raw(l, 16, q.Private[:])
}

// SIDRREP answers a SIDRREQ (IBTA volume 1, Table 120).
type SIDRREP struct {
	RequestID  uint32
	Status     SIDRStatus
	InfoLength uint8 // bytes of Info in use
	QPN        wire.QPN
	Service    ServiceID
	QKey       uint32
	Info       [ARISize]byte
	Private    [SIDRREPPrivate]byte
}

// Attr returns AttrSIDRREP.
func (*SIDRREP) Attr() Attr { return AttrSIDRREP }

func (q *SIDRREP) fields(l *layout) {
	field(l, 0, 0, 32, &q.RequestID)
	field(l, 4, 0, 8, &q.Status)
	field(l, 5, 0, 8, &q.InfoLength)
	field(l, 8, 0, 24, &q.QPN)
	field(l, 12, 0, 64, &q.Service)
	field(l, 20, 0, 32, &q.QKey)
	raw(l, 24, q.Info[:])
	raw(l, 96, q.Private[:])
}

// LAP asks for an alternate path (IBTA volume 1, Table 115); always answered with APRUnsupported.
type LAP struct {
	LocalID, RemoteID uint32
	QPN               wire.QPN // the receiver's QP
	RemoteTimeout     uint8    // 5 bits
	Local, Remote     wire.GID
	Private           [LAPPrivate]byte
}

// Attr returns AttrLAP.
func (*LAP) Attr() Attr { return AttrLAP }

func (q *LAP) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	field(l, 12, 0, 24, &q.QPN)
	field(l, 15, 0, 5, &q.RemoteTimeout)
	raw(l, 24, q.Local[:])
	raw(l, 40, q.Remote[:])
	raw(l, 64, q.Private[:])
}

// APR answers a LAP (IBTA volume 1, Table 116).
type APR struct {
	LocalID, RemoteID uint32
	InfoLength        uint8
	Status            APRStatus
	Info              [ARISize]byte
	Private           [APRPrivate]byte
}

// Attr returns AttrAPR.
func (*APR) Attr() Attr { return AttrAPR }

func (q *APR) fields(l *layout) {
	field(l, 0, 0, 32, &q.LocalID)
	field(l, 4, 0, 32, &q.RemoteID)
	field(l, 8, 0, 8, &q.InfoLength)
	field(l, 9, 0, 8, &q.Status)
	raw(l, 12, q.Info[:])
	raw(l, 84, q.Private[:])
}
