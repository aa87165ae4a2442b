package rxe

import (
	"errors"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// QPType is the transport service of a QP (enum ibv_qp_type; GSI is QP1).
type QPType uint8

// QP types with libibverbs' numbers.
const (
	GSI QPType = 1
	RC  QPType = 2
	UC  QPType = 3
	UD  QPType = 4
)

// String is the type's usual abbreviation.
func (t QPType) String() string {
	switch t {
	case GSI:
		return "GSI"
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return "unknown"
}

func (t QPType) datagram() bool { return t == UD || t == GSI }

// QPState is a QP's state (enum ibv_qp_state).
type QPState uint8

// QP states with libibverbs' numbers.
const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
	numQPStates
)

var qpStateNames = [numQPStates]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String is the state's name in the specification.
func (s QPState) String() string {
	if s < numQPStates {
		return qpStateNames[s]
	}
	return "unknown"
}

// AttrMask names the fields of QPAttr that a Modify call sets (enum ibv_qp_attr_mask).
type AttrMask uint32

// Attribute bits with libibverbs' numbers.
const (
	AttrState AttrMask = 1 << iota
	AttrCurState
	AttrEnSQDAsyncNotify
	AttrAccessFlags
	AttrPKeyIndex
	AttrPort
	AttrQKey
	AttrAV
	AttrPathMTU
	AttrTimeout
	AttrRetryCnt
	AttrRNRRetry
	AttrRQPSN
	AttrMaxQPRdAtomic
	AttrAltPath
	AttrMinRNRTimer
	AttrSQPSN
	AttrMaxDestRdAtomic
	AttrPathMigState
	AttrCap
	AttrDestQPN
)

var attrNames = []string{"STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX",
	"PORT", "QKEY", "AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN",
	"MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC",
	"PATH_MIG_STATE", "CAP", "DEST_QPN"}

// String lists the names of the set bits.
func (m AttrMask) String() string {
	out := ""
	for i, n := range attrNames {
		if m&(1<<i) != 0 {
			if out != "" {
				out += "|"
			}
			out += n
		}
	}
	return out
}

// AV is an address vector: the path to the peer. Loopback marks a destination that is one of the
// device's own addresses; its frames are turned round inside. Nowhere, which is Loopback too, marks
// one to which no way leads at present: its frames are built and lost, and timeouts judge.
type AV struct {
	Path     wire.Path
	Loopback bool
	Nowhere  bool
}

// QPAttr are the attributes Modify sets and Query returns. Units and ranges are libibverbs'.
type QPAttr struct {
	State            QPState
	CurState         QPState
	EnSQDAsyncNotify bool
	AccessFlags      mr.Access // what a peer may do through this QP
	PKeyIndex        uint16    // 0 is the only one
	Port             uint8     // 1 is the only one
	QKey             uint32
	AV               AV
	PathMTU          uint32 // payload bytes: 256, 512, 1024, 2048, 4096
	Timeout          uint8  // 0..31: 4.096 µs × 2^n, 0 = never
	RetryCnt         uint8  // 0..7, finite
	RNRRetry         uint8  // 0..7, 7 = for ever
	RQPSN            wire.PSN
	SQPSN            wire.PSN
	MaxQPRdAtomic    uint8 // own READs and atomics in flight
	MaxDestRdAtomic  uint8 // the peer's
	MinRNRTimer      uint8 // 0..31, code of the RNR table
	DestQPN          wire.QPN
}

// AttrError tells which attributes a transition lacks or does not allow.
type AttrError struct {
	From, To QPState
	Type     QPType
	Missing  AttrMask
	Extra    AttrMask
}

// Error names the transition and the attributes.
func (e *AttrError) Error() string {
	switch {
	case e.Missing != 0:
		return fmt.Sprintf("%v QP %v to %v: attributes missing: %v", e.Type, e.From, e.To, e.Missing)
	case e.Extra != 0:
		return fmt.Sprintf("%v QP %v to %v: attributes not allowed: %v", e.Type, e.From, e.To, e.Extra)
	}
	return fmt.Sprintf("%v QP %v to %v: no such transition", e.Type, e.From, e.To)
}

// ErrAttrValue is wrapped by errors about an attribute's value.
var ErrAttrValue = errors.New("attribute value is out of range")

type transition struct{ required, optional [5]AttrMask } // by QPType

// masks gives UD and GSI the same bits.
func masks(rc, uc, ud AttrMask) (m [5]AttrMask) {
	m[RC], m[UC], m[UD], m[GSI] = rc, uc, ud, ud
	return m
}

const (
	initConn = AttrPKeyIndex | AttrPort | AttrAccessFlags
	initDg   = AttrPKeyIndex | AttrPort | AttrQKey
	rtrConn  = AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	rtrOpt   = AttrAltPath | AttrAccessFlags | AttrPKeyIndex
	dgOpt    = AttrPKeyIndex | AttrQKey
	rtsRC    = AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxQPRdAtomic
	liveOpt  = AttrCurState | AttrAltPath | AttrAccessFlags | AttrPathMigState
	sqdRC    = AttrPort | AttrAV | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxQPRdAtomic |
		AttrMaxDestRdAtomic | AttrAltPath | AttrAccessFlags | AttrPKeyIndex | AttrMinRNRTimer |
		AttrPathMigState
	sqdUC = AttrPort | AttrAV | AttrAltPath | AttrAccessFlags | AttrPKeyIndex | AttrPathMigState
)

// qpTransitions holds the transitions of IBTA 11.2.5.2 as Linux's core/verbs.c has them. RESET and ERR
// are reachable from every state and stand in modifyMask.
var qpTransitions = [numQPStates][numQPStates]*transition{
	StateReset: {
		StateInit: {required: masks(initConn, initConn, initDg)},
	},
	StateInit: {
		StateInit: {optional: masks(initConn, initConn, initDg)},
		StateRTR: {
			required: masks(rtrConn|AttrMaxDestRdAtomic|AttrMinRNRTimer, rtrConn, 0),
			optional: masks(rtrOpt, rtrOpt, dgOpt),
		},
	},
	StateRTR: {
		StateRTS: {
			required: masks(rtsRC, AttrSQPSN, AttrSQPSN),
			optional: masks(liveOpt|AttrMinRNRTimer, liveOpt, AttrCurState|AttrQKey),
		},
	},
	StateRTS: {
		StateRTS: {optional: masks(liveOpt|AttrMinRNRTimer, liveOpt, AttrCurState|AttrQKey)},
		StateSQD: {optional: masks(AttrEnSQDAsyncNotify, AttrEnSQDAsyncNotify, AttrEnSQDAsyncNotify)},
	},
	StateSQD: {
		StateSQD: {optional: masks(sqdRC, sqdUC, dgOpt)},
		StateRTS: {optional: masks(liveOpt|AttrMinRNRTimer, liveOpt, AttrCurState|AttrQKey)},
	},
	StateSQE: {
		StateRTS: {optional: masks(0, AttrCurState|AttrAccessFlags, AttrCurState|AttrQKey)},
	},
}

// checkTransition applies the table. An RC QP never enters SQE, so it cannot leave it.
func checkTransition(t QPType, from, to QPState, mask AttrMask) error {
	mask &^= AttrState
	e := &AttrError{From: from, To: to, Type: t}
	if to == StateReset || to == StateErr && from != StateReset {
		if e.Extra = mask &^ AttrCurState; e.Extra != 0 {
			return e
		}
		return nil
	}
	if from >= numQPStates || to >= numQPStates || qpTransitions[from][to] == nil {
		return e
	}
	tr := qpTransitions[from][to]
	e.Missing = tr.required[t] &^ mask
	e.Extra = mask &^ (tr.required[t] | tr.optional[t])
	if e.Missing|e.Extra != 0 {
		return e
	}
	return nil
}

// checkAttrValues applies ranges to the attributes that mask sets.
func checkAttrValues(d *Device, a *QPAttr, mask AttrMask) error {
	bad := func(name string) error { return fmt.Errorf("%s: %w", name, ErrAttrValue) }
	switch {
	case mask&AttrPort != 0 && a.Port != 1:
		return bad("PORT")
	case mask&AttrPKeyIndex != 0 && a.PKeyIndex != 0:
		return bad("PKEY_INDEX")
	case mask&AttrPathMTU != 0 && !validPMTU(a.PathMTU):
		return bad("PATH_MTU")
	case mask&AttrPathMTU != 0 && a.PathMTU > d.cfg.MaxPMTU:
		return fmt.Errorf("PATH_MTU %d is more than the port's %d: %w", a.PathMTU, d.cfg.MaxPMTU, ErrAttrValue)
	case mask&AttrTimeout != 0 && a.Timeout > 31:
		return bad("TIMEOUT")
	case mask&AttrRetryCnt != 0 && a.RetryCnt > 7:
		return bad("RETRY_CNT")
	case mask&AttrRNRRetry != 0 && a.RNRRetry > 7:
		return bad("RNR_RETRY")
	case mask&AttrMinRNRTimer != 0 && a.MinRNRTimer > 31:
		return bad("MIN_RNR_TIMER")
	case mask&AttrMaxQPRdAtomic != 0 && a.MaxQPRdAtomic > MaxRdAtomic:
		return bad("MAX_QP_RD_ATOMIC")
	case mask&AttrMaxDestRdAtomic != 0 && a.MaxDestRdAtomic > MaxRdAtomic:
		return bad("MAX_DEST_RD_ATOMIC")
	case mask&AttrDestQPN != 0 && a.DestQPN > 0xffffff:
		return bad("DEST_QPN")
	case mask&AttrRQPSN != 0 && a.RQPSN > 0xffffff:
		return bad("RQ_PSN")
	case mask&AttrSQPSN != 0 && a.SQPSN > 0xffffff:
		return bad("SQ_PSN")
	}
	return nil
}

func validPMTU(n uint32) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }
