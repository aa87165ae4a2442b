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
	ReqSQDStarts     = false
	ReqCreditIgnore  = false
	ReqWindowOver    = false
	ReqReadsLeak     = false
	ReqNeverEnds     = false
	ReqSolicited     = false
	ReqSlotEarly     = false
	CompReadAgain    = false
	CompRNRCounted   = false
	RespRNRTimer     = false
	RespEnabled      = false
	RespFlushKey     = false
	RespViewKept     = false
	GraceBind        = false
	GraceFlush       = false
	GraceLeave       = false
	GraceNext        = false
	GraceList        = false
	KeyBoundGoes     = false
	KeyUnbindLeak    = false
	CQUnsolicited    = false
	CQErrorQuiet     = false
	CQStaysArmed     = false
	UDEatsWQE        = false
	UDOwnGroup       = false
	UDStaleAH        = false
	SRQDomain        = false
	SRQLimitLost     = false
	SRQLimitTwice    = false
	SRQLastWQE       = false
	ShardHandover    = false
	ShardBell        = false
)

// List returns nothing: there are none in this build.
func List() []Info { return nil }

// Set fails for all names but the empty one: there is nothing to switch on.
func Set(name string) bool { return name == "" }

// Tick is never true.
func Tick(uint32) bool { return false }
