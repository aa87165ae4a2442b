//go:build mutants

package mutant

// Built reports whether the bugs are there to be switched on.
const Built = true

// The bugs, all off at first.
var (
	ReqTimeoutIdle   bool
	ReqPSNGap        bool
	ReqIgnoreFence   bool
	ReqReadDepth     bool
	ReqRNRImpatient  bool
	ReqNoAckReq      bool
	ReqLocalAgain    bool
	ReqInvEarly      bool
	ReqStaleCursor   bool
	ReqReadResume    bool
	CompAckTooFar    bool
	CompReadByAck    bool
	CompNAKAcks      bool
	CompRetriesKept  bool
	CompResponseAny  bool
	CompFlushLoses   bool
	CompUnsignaled   bool
	CompRetireEarly  bool
	CompAtomicHalves bool
	RespAckTooFar    bool
	RespAtomicAgain  bool
	RespWriteAgain   bool
	RespInvAgain     bool
	RespPSNLoose     bool
	RespRNRLoses     bool
	RespByteLen      bool
	RespImmLength    bool
	RespMSNReads     bool
	RespNAKFlood     bool
	RespUCGap        bool
	RespUDQKey       bool
	KeyVariant       bool
	KeyDomain        bool
	KeyRights        bool
	KeyRange         bool
	KeyWindowRange   bool
	KeyWindowQP      bool
	KeyInvVariant    bool
	KeyInvNothing    bool
	KeyRegValid      bool
	KeyMapLive       bool
	KeyBindRange     bool
	GraceNone        bool
	GraceDereg       bool
	GraceLocalInv    bool
	GraceSendInv     bool
	GraceLostWake    bool
	GraceEnter       bool
	CQLostEvent      bool
	CQSolicited      bool
	CQSwap           bool
	CQTwice          bool
	CQLeak           bool
	ReqSQDStarts     bool
	ReqCreditIgnore  bool
	ReqWindowOver    bool
	ReqReadsLeak     bool
	ReqNeverEnds     bool
	ReqSolicited     bool
	ReqSlotEarly     bool
	CompReadAgain    bool
	CompRNRCounted   bool
	RespRNRTimer     bool
	RespEnabled      bool
	RespFlushKey     bool
	RespViewKept     bool
	GraceBind        bool
	GraceFlush       bool
	GraceLeave       bool
	GraceNext        bool
	GraceList        bool
	KeyBoundGoes     bool
	KeyUnbindLeak    bool
	CQUnsolicited    bool
	CQErrorQuiet     bool
	CQStaysArmed     bool
	UDEatsWQE        bool
	UDOwnGroup       bool
	UDStaleAH        bool
	SRQDomain        bool
	SRQLimitLost     bool
	SRQLimitTwice    bool
	SRQLastWQE       bool
	ShardHandover    bool
	ShardBell        bool
)

var table = []struct {
	Info
	on *bool
}{
	{Info{"req-timeout-idle", "a timeout sends nothing again"}, &ReqTimeoutIdle},
	{Info{"req-psn-gap", "every 64th message leaves out a PSN"}, &ReqPSNGap},
	{Info{"req-ignore-fence", "the fence flag is ignored"}, &ReqIgnoreFence},
	{Info{"req-read-depth", "one READ or atomic more than agreed is in flight"}, &ReqReadDepth},
	{Info{"req-rnr-impatient", "an RNR NAK is answered by sending again at once"}, &ReqRNRImpatient},
	{Info{"req-no-ackreq", "the last packet of a message does not ask for an ACK"}, &ReqNoAckReq},
	{Info{"req-local-again", "a retransmission runs REG_MR, LOCAL_INV and BIND_MW again"}, &ReqLocalAgain},
	{Info{"req-inv-early", "LOCAL_INV does not wait for the work before it"}, &ReqInvEarly},
	{Info{"req-stale-cursor", "a retransmission gathers on from where the last packet ended"}, &ReqStaleCursor},
	{Info{"req-read-resume", "the rest of a READ is asked for at the address of its beginning"}, &ReqReadResume},
	{Info{"comp-ack-too-far", "an ACK completes one PSN more than it says"}, &CompAckTooFar},
	{Info{"comp-read-by-ack", "an ACK behind a READ completes it without its data"}, &CompReadByAck},
	{Info{"comp-nak-acks", "a NAK PSN sequence error acknowledges the PSN that it asks for"}, &CompNAKAcks},
	{Info{"comp-retries-kept", "progress does not give the retries back"}, &CompRetriesKept},
	{Info{"comp-response-any", "a READ response is taken whatever its PSN"}, &CompResponseAny},
	{Info{"comp-flush-loses", "the last work request flushed makes no completion"}, &CompFlushLoses},
	{Info{"comp-unsignaled", "every 32nd unsignaled work request makes a completion"}, &CompUnsignaled},
	{Info{"comp-retire-early", "a WRITE completes when it is sent"}, &CompRetireEarly},
	{Info{"comp-atomic-halves", "the halves of an atomic's result change places"}, &CompAtomicHalves},
	{Info{"resp-ack-too-far", "an ACK names the PSN that is expected next"}, &RespAckTooFar},
	{Info{"resp-atomic-again", "a duplicate of an atomic is executed again"}, &RespAtomicAgain},
	{Info{"resp-write-again", "a duplicate of a WRITE is executed again"}, &RespWriteAgain},
	{Info{"resp-inv-again", "a duplicate of a SEND_WITH_INV invalidates again"}, &RespInvAgain},
	{Info{"resp-psn-loose", "a packet one PSN ahead is taken for the expected one"}, &RespPSNLoose},
	{Info{"resp-rnr-loses", "a packet refused with an RNR NAK counts as executed"}, &RespRNRLoses},
	{Info{"resp-bytelen", "a receive completion reports the length of the buffer"}, &RespByteLen},
	{Info{"resp-imm-length", "a WRITE with immediate reports the length of its last packet"}, &RespImmLength},
	{Info{"resp-msn-reads", "READs do not count in the MSN"}, &RespMSNReads},
	{Info{"resp-nak-flood", "every packet behind a gap is answered with a NAK"}, &RespNAKFlood},
	{Info{"resp-uc-gap", "UC goes on with a message that has lost a packet"}, &RespUCGap},
	{Info{"resp-ud-qkey", "the Q_Key of a datagram is not compared"}, &RespUDQKey},
	{Info{"key-variant", "the variant of a key is not compared"}, &KeyVariant},
	{Info{"key-domain", "the protection domain of a key is not compared"}, &KeyDomain},
	{Info{"key-rights", "the rights of a region are not looked at"}, &KeyRights},
	{Info{"key-range", "an access may end one byte behind its region"}, &KeyRange},
	{Info{"key-window-range", "a window reaches as far as its region"}, &KeyWindowRange},
	{Info{"key-window-qp", "a type 2 window works through every QP"}, &KeyWindowQP},
	{Info{"key-inv-variant", "an invalidation does not compare the variant"}, &KeyInvVariant},
	{Info{"key-inv-nothing", "an invalidation leaves the key in force"}, &KeyInvNothing},
	{Info{"key-reg-valid", "REG_MR takes a region that is registered"}, &KeyRegValid},
	{Info{"key-map-live", "mapping the next list changes the one in force"}, &KeyMapLive},
	{Info{"key-bind-range", "BIND_MW does not compare its range with the region's"}, &KeyBindRange},
	{Info{"grace-none", "grace has always passed"}, &GraceNone},
	{Info{"grace-dereg", "DeregMR gives an index back before its grace"}, &GraceDereg},
	{Info{"grace-local-inv", "LOCAL_INV completes before its grace"}, &GraceLocalInv},
	{Info{"grace-send-inv", "the receive of a SEND_WITH_INV completes before its grace"}, &GraceSendInv},
	{Info{"grace-lost-wake", "one shard in four that waits for grace is not woken"}, &GraceLostWake},
	{Info{"grace-enter", "a shard that comes online is taken for one that sleeps"}, &GraceEnter},
	{Info{"cq-lost-event", "one armed event in sixteen is lost"}, &CQLostEvent},
	{Info{"cq-solicited", "a solicited completion fires no queue armed for it"}, &CQSolicited},
	{Info{"cq-swap", "two completions polled together change places"}, &CQSwap},
	{Info{"cq-twice", "a poll that fills its buffer gives the last completion again"}, &CQTwice},
	{Info{"cq-leak", "a poll of several completions frees one place too few"}, &CQLeak},
	{Info{"req-sqd-starts", "SQD goes on starting messages"}, &ReqSQDStarts},
	{Info{"req-credit-ignore", "the peer's credits are not looked at"}, &ReqCreditIgnore},
	{Info{"req-window-over", "twice the window is in flight"}, &ReqWindowOver},
	{Info{"req-reads-leak", "a READ or atomic that is sent again counts once more"}, &ReqReadsLeak},
	{Info{"req-never-ends", "timeouts do not use up the retries"}, &ReqNeverEnds},
	{Info{"req-solicited", "a message of several packets asks for no solicited event"}, &ReqSolicited},
	{Info{"req-slot-early", "a slot of the send queue is given back when its message is sent"}, &ReqSlotEarly},
	{Info{"comp-read-again", "a late copy of a READ response is written to memory"}, &CompReadAgain},
	{Info{"comp-rnr-counted", "an RNR retry count of 7, endless, is counted down"}, &CompRNRCounted},
	{Info{"resp-rnr-timer", "an RNR NAK asks for a longer wait than the QP's"}, &RespRNRTimer},
	{Info{"resp-enabled", "what the QP allows its peer is not looked at"}, &RespEnabled},
	{Info{"resp-flush-key", "a FLUSH's key is not checked"}, &RespFlushKey},
	{Info{"resp-view-kept", "a WRITE looks its key up for the first packet only"}, &RespViewKept},
	{Info{"grace-bind", "BIND_MW of a bound window completes before its grace"}, &GraceBind},
	{Info{"grace-flush", "the flush of an invalidation that has run does not wait for its grace"}, &GraceFlush},
	{Info{"grace-leave", "a shard that goes to sleep is waited for"}, &GraceLeave},
	{Info{"grace-next", "grace is that of the epoch before"}, &GraceNext},
	{Info{"grace-list", "lists are used again before their grace"}, &GraceList},
	{Info{"key-bound-goes", "a region with windows can be deregistered"}, &KeyBoundGoes},
	{Info{"key-unbind-leak", "a window that goes still counts at its region"}, &KeyUnbindLeak},
	{Info{"cq-unsolicited", "every completion fires a queue armed for solicited ones"}, &CQUnsolicited},
	{Info{"cq-error-quiet", "a failed completion fires no queue armed for solicited ones"}, &CQErrorQuiet},
	{Info{"cq-stays-armed", "an event leaves the queue armed"}, &CQStaysArmed},
	{Info{"ud-eats-wqe", "a datagram that does not fit uses up a receive"}, &UDEatsWQE},
	{Info{"ud-own-group", "a sender receives its own datagrams to a group"}, &UDOwnGroup},
	{Info{"ud-stale-ah", "another address handle for the same QP number is not noticed"}, &UDStaleAH},
	{Info{"srq-domain", "buffers of an SRQ are checked in the QP's domain"}, &SRQDomain},
	{Info{"srq-limit-lost", "every other limit event of an SRQ is lost"}, &SRQLimitLost},
	{Info{"srq-limit-twice", "an SRQ reports its limit again and again"}, &SRQLimitTwice},
	{Info{"srq-last-wqe", "a QP in ERR does not report its last WQE of an SRQ"}, &SRQLastWQE},
	{Info{"shard-handover", "one frame in eight is handed over without waking the shard"}, &ShardHandover},
	{Info{"shard-bell", "one doorbell in 64 is not heard"}, &ShardBell},
}

// List returns the bugs in the order of the engine's roads.
func List() []Info {
	var l []Info
	for _, m := range table {
		l = append(l, m.Info)
	}
	return l
}

// Tick counts calls for the bugs that strike now and then: it is true every n-th time.
func Tick(n uint32) bool {
	ticks++
	return ticks%n == 0
}

var ticks uint32

// Set switches one bug on and all others off; the empty name switches all off. It is false for a
// name that is not in the list.
func Set(name string) (known bool) {
	ticks = 0
	known = name == ""
	for _, m := range table {
		*m.on = m.Name == name
		known = known || *m.on
	}
	return known
}
