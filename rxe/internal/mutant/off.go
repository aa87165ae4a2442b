//go:build !mutants

package mutant

// Built reports whether the bugs are there to be switched on.
const Built = false

// The bugs. See on.go for what each does.
const (
	ReqTimeoutIdle   = false
	ReqPSNGap        = false
	ReqIgnoreFence   = false
	ReqReadDepth     = false
	ReqRNRImpatient  = false
	ReqNoAckReq      = false
	ReqLocalAgain    = false
	ReqInvEarly      = false
	ReqStaleCursor   = false
	ReqReadResume    = false
	CompAckTooFar    = false
	CompReadByAck    = false
	CompNAKAcks      = false
	CompRetriesKept  = false
	CompResponseAny  = false
	CompFlushLoses   = false
	CompUnsignaled   = false
	CompRetireEarly  = false
	CompAtomicHalves = false
	RespAckTooFar    = false
	RespAtomicAgain  = false
	RespWriteAgain   = false
	RespInvAgain     = false
	RespPSNLoose     = false
	RespRNRLoses     = false
	RespByteLen      = false
	RespImmLength    = false
	RespMSNReads     = false
	RespNAKFlood     = false
	RespUCGap        = false
	RespUDQKey       = false
	KeyVariant       = false
	KeyDomain        = false
	KeyRights        = false
	KeyRange         = false
	KeyWindowRange   = false
	KeyWindowQP      = false
	KeyInvVariant    = false
	KeyInvNothing    = false
	KeyRegValid      = false
	KeyMapLive       = false
	KeyBindRange     = false
	GraceNone        = false
	GraceDereg       = false
	GraceLocalInv    = false
	GraceSendInv     = false
	GraceLostWake    = false
	GraceEnter       = false
	CQLostEvent      = false
	CQSolicited      = false
	CQSwap           = false
	CQTwice          = false
	CQLeak           = false
)

// List returns nothing: there are none in this build.
func List() []Info { return nil }

// Set fails for all names but the empty one: there is nothing to switch on.
func Set(name string) bool { return name == "" }

// Tick is never true.
func Tick(uint32) bool { return false }
