package cm

import (
	"fmt"
	"strings"
)

// String names the transport.
func (t Transport) String() string {
	switch t {
	case TransportRC:
		return "RC"
	case TransportUC:
		return "UC"
	case TransportRD:
		return "RD"
	case TransportExtended:
		return "extended"
	case TransportUD:
		return "UD"
	}
	return "unknown"
}

// String names the message that an MRA or REJ is about.
func (k Kind) String() string {
	return [...]string{"REQ", "REP", "other", "reserved"}[k&3]
}

// String says which verdict the APR gives.
func (s APRStatus) String() string {
	switch s {
	case 0:
		return "alternate path loaded"
	case APRInvalidCommID:
		return "invalid communication id"
	case APRUnsupported:
		return "alternate paths not supported"
	}
	return fmt.Sprintf("APR status %d", uint8(s))
}

// ids is how every message but SIDR's begins.
func ids(a Attr, local, remote uint32) string {
	return fmt.Sprintf("%v %08x>%08x", a, local, remote)
}

// String describes the message in one line.
func (q *REQ) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "REQ %08x %v %v qpn 0x%06x psn 0x%06x mtu %d",
		q.LocalID, q.Service, q.Transport, uint32(q.QPN), uint32(q.PSN), pmtu(q.MTU))
	fmt.Fprintf(&b, " rd %d/%d retry %d rnr %d guid %016x",
		q.ResponderResources, q.InitiatorDepth, q.RetryCount, q.RNRRetry, q.CAGUID)
	fmt.Fprintf(&b, " %v>%v", q.Primary.Local, q.Primary.Remote)
	if q.Service.IsIP() {
		if h, ok := parseIPHeader(q.Private[:]); ok {
			fmt.Fprintf(&b, " port %d", h.SrcPort)
		}
	}
	return b.String()
}

// pmtu returns the bytes behind a PMTU code, 0 if it is none.
func pmtu(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// String describes the message in one line.
func (q *MRA) String() string {
	return fmt.Sprintf("%s of %v, service timeout %v",
		ids(AttrMRA, q.LocalID, q.RemoteID), q.Message, Timeout(q.ServiceTimeout))
}

// String describes the message in one line.
func (q *REJ) String() string {
	return fmt.Sprintf("%s of %v, reason %d: %v",
		ids(AttrREJ, q.LocalID, q.RemoteID), q.Message, uint16(q.Reason), q.Reason)
}

// String describes the message in one line.
func (q *REP) String() string {
	return fmt.Sprintf("%s qpn 0x%06x psn 0x%06x rd %d/%d rnr %d guid %016x",
		ids(AttrREP, q.LocalID, q.RemoteID), uint32(q.QPN), uint32(q.PSN),
		q.ResponderResources, q.InitiatorDepth, q.RNRRetry, q.CAGUID)
}

// String describes the message in one line.
func (q *RTU) String() string { return ids(AttrRTU, q.LocalID, q.RemoteID) }

// String describes the message in one line.
func (q *DREQ) String() string {
	return fmt.Sprintf("%s qpn 0x%06x", ids(AttrDREQ, q.LocalID, q.RemoteID), uint32(q.QPN))
}

// String describes the message in one line.
func (q *DREP) String() string { return ids(AttrDREP, q.LocalID, q.RemoteID) }

// String describes the message in one line.
func (q *SIDRREQ) String() string {
	return fmt.Sprintf("SIDR_REQ %08x %v pkey %04x", q.RequestID, q.Service, q.PKey)
}

// String describes the message in one line.
func (q *SIDRREP) String() string {
	return fmt.Sprintf("SIDR_REP %08x %v qpn 0x%06x qkey 0x%08x, status %d: %v",
		q.RequestID, q.Service, uint32(q.QPN), q.QKey, uint8(q.Status), q.Status)
}

// String describes the message in one line.
func (q *LAP) String() string {
	return fmt.Sprintf("%s %v>%v", ids(AttrLAP, q.LocalID, q.RemoteID), q.Local, q.Remote)
}

// String describes the message in one line.
func (q *APR) String() string {
	return fmt.Sprintf("%s status %d: %v",
		ids(AttrAPR, q.LocalID, q.RemoteID), uint8(q.Status), q.Status)
}
