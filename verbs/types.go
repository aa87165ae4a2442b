package verbs

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// The engine's types under the names applications know them by.
type (
	QPN       = rxe.QPN       // 24-bit queue pair number
	PSN       = rxe.PSN       // 24-bit packet sequence number
	GID       = wire.GID      // 16-byte address of a port: IPv6, or IPv4 in mapped form
	QPType    = rxe.QPType    // enum ibv_qp_type
	QPState   = rxe.QPState   // enum ibv_qp_state
	AttrMask  = rxe.AttrMask  // enum ibv_qp_attr_mask
	WROpcode  = rxe.WROpcode  // enum ibv_wr_opcode
	SendFlags = rxe.SendFlags // enum ibv_send_flags
	WCStatus  = rxe.WCStatus  // enum ibv_wc_status
	WCOpcode  = rxe.WCOpcode  // enum ibv_wc_opcode
	WCFlags   = rxe.WCFlags   // enum ibv_wc_flags
	Reason    = rxe.Reason    // vendor_err: why, in more detail than the status
	EventType = rxe.EventType // enum ibv_event_type
	Access    = mr.Access     // enum ibv_access_flags
	Key       = mr.Key        // lkey or rkey
	SGE       = rxe.SGE       // struct ibv_sge
)

// QP types.
const (
	RC  = rxe.RC  // reliable connection
	UC  = rxe.UC  // unreliable connection
	UD  = rxe.UD  // unreliable datagram
	GSI = rxe.GSI // QP1, one a device
)

// QP states.
const (
	StateReset = rxe.StateReset
	StateInit  = rxe.StateInit
	StateRTR   = rxe.StateRTR
	StateRTS   = rxe.StateRTS
	StateSQD   = rxe.StateSQD
	StateSQE   = rxe.StateSQE
	StateErr   = rxe.StateErr
)

// Attributes of a QP that Modify can set.
const (
	AttrState            = rxe.AttrState
	AttrCurState         = rxe.AttrCurState
	AttrEnSQDAsyncNotify = rxe.AttrEnSQDAsyncNotify
	AttrAccessFlags      = rxe.AttrAccessFlags
	AttrPKeyIndex        = rxe.AttrPKeyIndex
	AttrPort             = rxe.AttrPort
	AttrQKey             = rxe.AttrQKey
	AttrAV               = rxe.AttrAV
	AttrPathMTU          = rxe.AttrPathMTU
	AttrTimeout          = rxe.AttrTimeout
	AttrRetryCnt         = rxe.AttrRetryCnt
	AttrRNRRetry         = rxe.AttrRNRRetry
	AttrRQPSN            = rxe.AttrRQPSN
	AttrMaxQPRdAtomic    = rxe.AttrMaxQPRdAtomic
	AttrMinRNRTimer      = rxe.AttrMinRNRTimer
	AttrSQPSN            = rxe.AttrSQPSN
	AttrMaxDestRdAtomic  = rxe.AttrMaxDestRdAtomic
	AttrDestQPN          = rxe.AttrDestQPN
)

// Access rights of regions, windows and QPs.
const (
	LocalWrite      = mr.LocalWrite
	RemoteWrite     = mr.RemoteWrite
	RemoteRead      = mr.RemoteRead
	RemoteAtomic    = mr.RemoteAtomic
	MWBind          = mr.MWBind
	ZeroBased       = mr.ZeroBased
	FlushGlobal     = mr.FlushGlobal
	FlushPersistent = mr.FlushPersistent
)

// Operations of send work requests.
const (
	WRRDMAWrite        = rxe.WRRDMAWrite
	WRRDMAWriteWithImm = rxe.WRRDMAWriteWithImm
	WRSend             = rxe.WRSend
	WRSendWithImm      = rxe.WRSendWithImm
	WRRDMARead         = rxe.WRRDMARead
	WRAtomicCmpSwap    = rxe.WRAtomicCmpSwap
	WRAtomicFetchAdd   = rxe.WRAtomicFetchAdd
	WRLocalInv         = rxe.WRLocalInv
	WRBindMW           = rxe.WRBindMW
	WRSendWithInv      = rxe.WRSendWithInv
	WRFlush            = rxe.WRFlush
	WRAtomicWrite      = rxe.WRAtomicWrite
	WRRegMR            = rxe.WRRegMR
)

// Flags of send work requests.
const (
	SendFence     = rxe.SendFence     // wait for all earlier READs and atomics of this QP
	SendSignaled  = rxe.SendSignaled  // make a completion
	SendSolicited = rxe.SendSolicited // wake a receiver that asked for solicited completions only
	SendInline    = rxe.SendInline    // the data is in SendWR.Inline, copied at post
)

// Statuses of work completions that occur.
const (
	WCSuccess        = rxe.WCSuccess
	WCLocLenErr      = rxe.WCLocLenErr
	WCLocQPOpErr     = rxe.WCLocQPOpErr
	WCLocProtErr     = rxe.WCLocProtErr
	WCWRFlushErr     = rxe.WCWRFlushErr
	WCMWBindErr      = rxe.WCMWBindErr
	WCBadRespErr     = rxe.WCBadRespErr
	WCLocAccessErr   = rxe.WCLocAccessErr
	WCRemInvReqErr   = rxe.WCRemInvReqErr
	WCRemAccessErr   = rxe.WCRemAccessErr
	WCRemOpErr       = rxe.WCRemOpErr
	WCRetryExcErr    = rxe.WCRetryExcErr
	WCRNRRetryExcErr = rxe.WCRNRRetryExcErr
	WCRemInvRDReqErr = rxe.WCRemInvRDReqErr
	WCFatalErr       = rxe.WCFatalErr
	WCGeneralErr     = rxe.WCGeneralErr
)

// Operations that work completions are of.
const (
	WCSend            = rxe.WCSend
	WCRDMAWrite       = rxe.WCRDMAWrite
	WCRDMARead        = rxe.WCRDMARead
	WCCompSwap        = rxe.WCCompSwap
	WCFetchAdd        = rxe.WCFetchAdd
	WCBindMW          = rxe.WCBindMW
	WCLocalInv        = rxe.WCLocalInv
	WCFlush           = rxe.WCFlush
	WCAtomicWrite     = rxe.WCAtomicWrite
	WCRegMR           = rxe.WCRegMR
	WCRecv            = rxe.WCRecv
	WCRecvRDMAWithImm = rxe.WCRecvRDMAWithImm
)

// Flags of work completions.
const (
	WCGRH     = rxe.WCGRH     // UD: the first 40 bytes of the buffer are the GRH area
	WCWithImm = rxe.WCWithImm // WC.Imm is valid
	WCWithInv = rxe.WCWithInv // WC.InvKey was invalidated by the sender
)

// Asynchronous events.
const (
	EventCQErr       = rxe.EventCQErr
	EventQPFatal     = rxe.EventQPFatal
	EventQPReqErr    = rxe.EventQPReqErr
	EventQPAccessErr = rxe.EventQPAccessErr
	EventCommEst     = rxe.EventCommEst
	EventSQDrained   = rxe.EventSQDrained
	EventDeviceFatal = rxe.EventDeviceFatal
	EventPortActive  = rxe.EventPortActive
	EventPortErr     = rxe.EventPortErr
	EventSRQErr      = rxe.EventSRQErr
	EventSRQLimit    = rxe.EventSRQLimit
	EventQPLastWQE   = rxe.EventQPLastWQE
	EventGIDChange   = rxe.EventGIDChange
)

// What posting may refuse, to be tested for with errors.Is or ==.
var (
	ErrQueueFull  = rxe.ErrQueueFull  // ENOMEM: the work queue is full, poll its CQ
	ErrTooManySGE = rxe.ErrTooManySGE // more SGEs than QPCap allows
	ErrInlineSize = rxe.ErrInlineSize // more inline data than QPCap.MaxInline
	ErrInlineOp   = rxe.ErrInlineOp   // SendInline with an operation that takes none
	ErrMsgSize    = rxe.ErrMsgSize    // longer than 2^31 bytes
	ErrBadOpcode  = rxe.ErrBadOpcode  // the QP type does not have the operation
	ErrBadState   = rxe.ErrBadState   // the QP's state does not allow posting
	ErrAlignment  = rxe.ErrAlignment  // an atomic needs 8 bytes at an address divisible by 8
	ErrReadLen    = rxe.ErrReadLen    // a READ of more than 2^23-1 packets
	ErrAttrValue  = rxe.ErrAttrValue  // an attribute's value is out of range
)

// AttrError tells which attributes a transition of a QP lacks or does not allow.
type AttrError = rxe.AttrError

// GRHBytes stand before the payload in every receive buffer of a UD QP.
const GRHBytes = rxe.GRHBytes

// LoadFlag reads one byte with acquire semantics. If it sees the last byte of an inbound RDMA
// WRITE, all bytes of that WRITE are visible to the caller: the one way to learn of data without a
// completion. All other reads of memory that a peer writes to belong behind a completion.
func LoadFlag(p *byte) byte { return mr.LoadFlag(p) }
