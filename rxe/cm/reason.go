package cm

import "fmt"

// A Reason says why a REJ was sent. The numbers are the wire's.
type Reason uint16

// Reject reasons, with ib_cm.h's names.
const (
	ReasonNone                   Reason = 0 // not rejected; never on the wire
	ReasonNoQP                   Reason = 1
	ReasonNoEEC                  Reason = 2
	ReasonNoResources            Reason = 3
	ReasonTimeout                Reason = 4
	ReasonUnsupported            Reason = 5
	ReasonInvalidCommID          Reason = 6
	ReasonInvalidCommInstance    Reason = 7
	ReasonInvalidServiceID       Reason = 8
	ReasonInvalidTransportType   Reason = 9
	ReasonStaleConn              Reason = 10
	ReasonRDCNotExist            Reason = 11
	ReasonInvalidGID             Reason = 12
	ReasonInvalidLID             Reason = 13
	ReasonInvalidSL              Reason = 14
	ReasonInvalidTrafficClass    Reason = 15
	ReasonInvalidHopLimit        Reason = 16
	ReasonInvalidPacketRate      Reason = 17
	ReasonInvalidAltGID          Reason = 18
	ReasonInvalidAltLID          Reason = 19
	ReasonInvalidAltSL           Reason = 20
	ReasonInvalidAltTrafficClass Reason = 21
	ReasonInvalidAltHopLimit     Reason = 22
	ReasonInvalidAltPacketRate   Reason = 23
	ReasonPortCMRedirect         Reason = 24
	ReasonPortRedirect           Reason = 25
	ReasonInvalidMTU             Reason = 26
	ReasonInsufficientResources  Reason = 27 // responder resources
	ReasonConsumer               Reason = 28 // the application said no
	ReasonInvalidRNRRetry        Reason = 29
	ReasonDuplicateCommID        Reason = 30
	ReasonInvalidClassVersion    Reason = 31
	ReasonInvalidFlowLabel       Reason = 32
	ReasonInvalidAltFlowLabel    Reason = 33
	ReasonVendorOption           Reason = 35
)

var reasonTexts = map[Reason]string{
	ReasonNone:                   "not rejected",
	ReasonNoQP:                   "no QP available",
	ReasonNoEEC:                  "no EE context available",
	ReasonNoResources:            "no resources available",
	ReasonTimeout:                "timed out",
	ReasonUnsupported:            "unsupported request",
	ReasonInvalidCommID:          "invalid communication id",
	ReasonInvalidCommInstance:    "invalid communication instance",
	ReasonInvalidServiceID:       "invalid service id: nobody listens there",
	ReasonInvalidTransportType:   "invalid transport service type",
	ReasonStaleConn:              "stale connection",
	ReasonRDCNotExist:            "RDC does not exist",
	ReasonInvalidGID:             "invalid port GID",
	ReasonInvalidLID:             "invalid port LID",
	ReasonInvalidSL:              "invalid service level",
	ReasonInvalidTrafficClass:    "invalid traffic class",
	ReasonInvalidHopLimit:        "invalid hop limit",
	ReasonInvalidPacketRate:      "invalid packet rate",
	ReasonInvalidAltGID:          "invalid alternate port GID",
	ReasonInvalidAltLID:          "invalid alternate port LID",
	ReasonInvalidAltSL:           "invalid alternate service level",
	ReasonInvalidAltTrafficClass: "invalid alternate traffic class",
	ReasonInvalidAltHopLimit:     "invalid alternate hop limit",
	ReasonInvalidAltPacketRate:   "invalid alternate packet rate",
	ReasonPortCMRedirect:         "redirected to another port and CM",
	ReasonPortRedirect:           "redirected to another port",
	ReasonInvalidMTU:             "invalid path MTU",
	ReasonInsufficientResources:  "insufficient responder resources",
	ReasonConsumer:               "rejected by the application",
	ReasonInvalidRNRRetry:        "invalid RNR retry count",
	ReasonDuplicateCommID:        "duplicate local communication id",
	ReasonInvalidClassVersion:    "invalid class version",
	ReasonInvalidFlowLabel:       "invalid flow label",
	ReasonInvalidAltFlowLabel:    "invalid alternate flow label",
	ReasonVendorOption:           "vendor option not supported",
}

// String says what the reason means.
func (r Reason) String() string {
	if s, ok := reasonTexts[r]; ok {
		return s
	}
	return fmt.Sprintf("reject reason %d", uint16(r))
}

// A SIDRStatus is a SIDR_REP's verdict.
type SIDRStatus uint8

// SIDR verdicts, with ib_cm.h's values.
const (
	SIDRSuccess            SIDRStatus = 0
	SIDRUnsupported        SIDRStatus = 1 // nobody listens there
	SIDRReject             SIDRStatus = 2
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

var sidrTexts = [...]string{
	"valid QP", "service id not supported", "rejected by the service", "no QP available",
	"redirected", "version not supported",
}

// String says what the status means.
func (s SIDRStatus) String() string {
	if int(s) < len(sidrTexts) {
		return sidrTexts[s]
	}
	return fmt.Sprintf("SIDR status %d", uint8(s))
}

// An APRStatus is an APR's verdict on an alternate path.
type APRStatus uint8

// The APR verdicts this package gives.
const (
	APRInvalidCommID APRStatus = 1
	APRUnsupported   APRStatus = 2
)

// A Drop says why a MAD, received or to be sent, went nowhere; [Stats] counts them.
type Drop uint8

// Reasons for a drop.
const (
	DropNone         Drop = iota
	DropLength            // not 256 bytes
	DropClass             // base version or management class
	DropMethod            // not Send
	DropAttr              // attribute is no CM message
	DropClassVersion      // a REQ is answered with a REJ
	DropUnknownID         // no such connection; a DREQ and a REP are answered all the same
	DropPeer              // not from the connection's peer
	DropRemoteID          // not the peer's communication id
	DropQPN               // a DREQ for another QP
	DropState             // not expected in this state
	DropConns             // Config.MaxConns
	DropHalfOpen          // Config.MaxHalfOpen
	DropHalfOpenPeer      // Config.MaxHalfOpenPeer
	DropBacklog           // ListenParam.Backlog
	DropEvents            // Config.MaxEvents: the application does not poll
	DropQueue             // Config.MaxQueue: the driver does not pull
	NumDrops
)

var dropTexts = [NumDrops]string{
	"none", "length", "class", "method", "attribute", "class version", "unknown id", "wrong peer",
	"wrong remote id", "wrong qpn", "unexpected in state", "connection limit", "half-open limit",
	"half-open limit of peer", "listener backlog", "event limit", "send queue full",
}

// String names the drop for counters.
func (d Drop) String() string {
	if d >= NumDrops {
		return "unknown"
	}
	return dropTexts[d]
}
