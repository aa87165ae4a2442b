package rxe

import "github.com/roxie-rdma/roxie/rxe/wire"

// Reason says why a packet was dropped, a request refused or a work request failed: the detail
// behind counters, NAKs and WC.vendor_err. Values below wire.NumReasons are wire's.
type Reason uint8

// The engine's reasons, after those of parsing.
const (
	ReasonNone Reason = Reason(wire.NumReasons) + iota

	// Drops before a QP's state machine.
	ReasonNoQP
	ReasonQPType
	ReasonQPState
	ReasonAddress
	ReasonPKey
	ReasonQKey
	ReasonNoGroup
	ReasonNotLocal
	ReasonHandoverFull

	// Responder.
	ReasonPSNAhead
	ReasonDuplicate
	ReasonOpSequence
	ReasonOpDisabled
	ReasonOpUnsupported
	ReasonNoResources
	ReasonNoRecvWQE
	ReasonPayloadLength
	ReasonMessageLength
	ReasonRecvTooSmall
	ReasonAtomicAlign
	ReasonKeyIndex
	ReasonKeyVariant
	ReasonKeyState
	ReasonKeyPD
	ReasonKeyAccess
	ReasonKeyRange
	ReasonKeyQP
	ReasonKeyKind
	ReasonKeyBound
	ReasonMemory
	ReasonInvalidate
	ReasonUCGap
	ReasonUCDropped
	ReasonReplayGone
	ReasonFlushType

	// Requester and completer.
	ReasonStaleAck
	ReasonAckReserved
	ReasonBadResponse
	ReasonBadResponseLen
	ReasonRNRWait
	ReasonTimeout
	ReasonSeqNAK
	ReasonRNRNAK
	ReasonRemote
	ReasonBadWQE
	ReasonMsgTooLong
	ReasonLocalKey
	ReasonNoAH
	ReasonUDLength
	ReasonDestroyed
	ReasonFlushed
	ReasonCQOverflow
	ReasonLocalOp

	NumReasons
)

var reasonNames = [NumReasons]string{
	ReasonNone: "none", ReasonNoQP: "no such QP", ReasonQPType: "opcode of another QP type",
	ReasonQPState: "QP state does not accept it", ReasonAddress: "addresses are not the QP's",
	ReasonPKey: "P_Key mismatch", ReasonQKey: "Q_Key mismatch",
	ReasonNoGroup:      "no QP in this multicast group",
	ReasonNotLocal:     "destination address is not ours",
	ReasonHandoverFull: "hand-over ring to the QP's shard is full",
	ReasonPSNAhead:     "PSN is ahead of the expected one", ReasonDuplicate: "duplicate request",
	ReasonOpSequence:    "opcode does not follow the last one",
	ReasonOpDisabled:    "operation is not enabled on the QP",
	ReasonOpUnsupported: "operation is not supported by the QP",
	ReasonNoResources:   "no responder resources for READ or atomic",
	ReasonNoRecvWQE:     "no receive WQE posted", ReasonPayloadLength: "payload length breaks the path MTU rules",
	ReasonMessageLength: "message length differs from the RETH",
	ReasonRecvTooSmall:  "message is longer than the receive buffers",
	ReasonAtomicAlign:   "atomic operand is not aligned to 8 bytes",
	ReasonKeyIndex:      "key names no region", ReasonKeyVariant: "key variant is not the installed one",
	ReasonKeyState: "region is not valid", ReasonKeyPD: "key belongs to another protection domain",
	ReasonKeyAccess: "access right missing", ReasonKeyRange: "address range outside the region",
	ReasonKeyQP: "window is bound to another QP", ReasonKeyKind: "operation is not for this kind of key",
	ReasonKeyBound: "region has windows bound to it", ReasonMemory: "file behind the memory failed",
	ReasonInvalidate: "remote invalidation failed",
	ReasonUCGap:      "gap in a UC message", ReasonUCDropped: "rest of a dropped UC message",
	ReasonReplayGone: "duplicate is no longer in the resource ring",
	ReasonFlushType:  "FLUSH type or level is not valid",
	ReasonStaleAck:   "acknowledges nothing outstanding", ReasonAckReserved: "reserved AETH syndrome",
	ReasonBadResponse:    "response does not fit the request",
	ReasonBadResponseLen: "response has the wrong length",
	ReasonRNRWait:        "ignored during an RNR wait", ReasonTimeout: "no answer within the ACK timeout",
	ReasonSeqNAK: "peer reported a PSN sequence error", ReasonRNRNAK: "peer's receive queue is empty",
	ReasonRemote: "peer refused the request", ReasonBadWQE: "work request breaks the queue's limits",
	ReasonMsgTooLong: "message is too long", ReasonLocalKey: "local key check failed",
	ReasonNoAH: "no such address handle", ReasonUDLength: "datagram is longer than the path MTU",
	ReasonDestroyed: "QP destroyed", ReasonFlushed: "flushed after an earlier error",
	ReasonCQOverflow: "completion queue overflowed", ReasonLocalOp: "local operation refused",
}

// String describes the reason in a few words.
func (r Reason) String() string {
	if r < Reason(wire.NumReasons) {
		return wire.Reason(r).String()
	}
	if r < NumReasons {
		return reasonNames[r]
	}
	return "unknown"
}
