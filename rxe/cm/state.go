package cm

// A State is a connection's place in the protocol (IBTA volume 1, chapter 12), with ib_cm.h's
// names.
type State uint8

// States.
const (
	StateIdle        State = iota // no such connection
	StateREQSent                  // active: REQ is out
	StateMRAREQRcvd               // active: the peer needs a while
	StateREQRcvd                  // passive: the application has the request
	StateMRAREQSent               // passive: and needs a while
	StateREPSent                  // passive: REP is out
	StateMRAREPRcvd               // passive: the peer needs a while
	StateREPRcvd                  // active: the application has the REP
	StateMRAREPSent               // active: and needs a while
	StateEstablished              // both ends may send
	StateDREQSent                 // we are leaving
	StateDREQRcvd                 // the peer is leaving, the application has been told
	StateTimewait                 // old packets die out
	StateSIDRREQSent              // active: SIDR_REQ is out
	StateSIDRREQRcvd              // passive: the application has the SIDR_REQ
	NumStates
)

var stateNames = [NumStates]string{
	"Idle", "REQSent", "MRAREQRcvd", "REQRcvd", "MRAREQSent", "REPSent", "MRAREPRcvd", "REPRcvd",
	"MRAREPSent", "Established", "DREQSent", "DREQRcvd", "Timewait", "SIDRREQSent", "SIDRREQRcvd",
}

// String returns the state's name.
func (s State) String() string {
	if s >= NumStates {
		return "unknown"
	}
	return stateNames[s]
}

// halfOpen reports whether the state counts against Config.MaxHalfOpen.
func (s State) halfOpen() bool {
	switch s {
	case StateREQRcvd, StateMRAREQSent, StateREPSent, StateMRAREPRcvd, StateSIDRREQRcvd:
		return true
	}
	return false
}

// Attr.Index of each message, as constants.
const (
	ixREQ = iota
	ixMRA
	ixREJ
	ixREP
	ixRTU
	ixDREQ
	ixDREP
	ixSIDRREQ
	ixSIDRREP
)

type (
	messageFunc func(*Machine, *conn, *MAD)
	timerFunc   func(*Machine, *conn)
)

// onMessage is what each state does with each message that has found its connection; REQ and
// SIDR_REQ find theirs only if they are duplicates. What is not here is dropped and counted.
var onMessage = [NumStates][NumAttrs]messageFunc{
	StateREQSent: {
		ixMRA: (*Machine).mraForREQ,
		ixREJ: (*Machine).rejected,
		ixREP: (*Machine).replied,
	},
	StateMRAREQRcvd: {
		ixMRA: (*Machine).mraForREQ,
		ixREJ: (*Machine).rejected,
		ixREP: (*Machine).replied,
	},
	StateREQRcvd: {
		ixREQ: (*Machine).needTime,
		ixREJ: (*Machine).rejected,
	},
	StateMRAREQSent: {
		ixREQ: (*Machine).repeat,
		ixREJ: (*Machine).rejected,
	},
	StateREPSent: {
		ixREQ:  (*Machine).repeat,
		ixMRA:  (*Machine).mraForREP,
		ixREJ:  (*Machine).rejected,
		ixRTU:  (*Machine).ready,
		ixDREQ: (*Machine).peerLeaves,
	},
	StateMRAREPRcvd: {
		ixREQ:  (*Machine).repeat,
		ixMRA:  (*Machine).mraForREP,
		ixREJ:  (*Machine).rejected,
		ixRTU:  (*Machine).ready,
		ixDREQ: (*Machine).peerLeaves,
	},
	StateREPRcvd: {
		ixREP: (*Machine).needTime,
		ixREJ: (*Machine).rejected,
	},
	StateMRAREPSent: {
		ixREP: (*Machine).repeat,
		ixREJ: (*Machine).rejected,
	},
	StateEstablished: {
		ixREQ:  (*Machine).ignore,
		ixRTU:  (*Machine).ignore,
		ixREP:  (*Machine).repeatRTU,
		ixREJ:  (*Machine).thrownOut,
		ixDREQ: (*Machine).peerLeaves,
	},
	StateDREQSent: {
		ixREQ:  (*Machine).ignore,
		ixRTU:  (*Machine).ignore,
		ixREP:  (*Machine).ignore,
		ixREJ:  (*Machine).thrownOut,
		ixDREQ: (*Machine).bothLeave,
		ixDREP: (*Machine).left,
	},
	StateDREQRcvd: {
		ixREQ:  (*Machine).ignore,
		ixRTU:  (*Machine).ignore,
		ixDREQ: (*Machine).ignore,
	},
	StateTimewait: {
		ixREQ:  (*Machine).rejectStale,
		ixRTU:  (*Machine).ignore,
		ixREP:  (*Machine).ignore,
		ixDREQ: (*Machine).repeatDREP,
		ixDREP: (*Machine).ignore,
		ixREJ:  (*Machine).ignore,
	},
	StateSIDRREQSent: {ixSIDRREP: (*Machine).resolved},
	StateSIDRREQRcvd: {ixSIDRREQ: (*Machine).ignore},
}

// onTimer is what each state does when its timer fires.
var onTimer = [NumStates]timerFunc{
	StateREQSent:     (*Machine).retryConnect,
	StateMRAREQRcvd:  (*Machine).retryConnect,
	StateREQRcvd:     (*Machine).tellNeedTime,
	StateMRAREQSent:  (*Machine).giveUpAccept,
	StateREPSent:     (*Machine).retryREP,
	StateMRAREPRcvd:  (*Machine).retryREP,
	StateREPRcvd:     (*Machine).tellNeedTime,
	StateEstablished: (*Machine).keepalive,
	StateDREQSent:    (*Machine).retryDREQ,
	StateDREQRcvd:    (*Machine).answerDREQ,
	StateTimewait:    (*Machine).timewaitOver,
	StateSIDRREQSent: (*Machine).retryConnect,
	StateSIDRREQRcvd: (*Machine).giveUpAccept,
}
