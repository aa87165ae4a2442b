package rxe

import "github.com/roxie-rdma/roxie/rxe/mr"

// Counters are a shard's totals, with Linux rxe's names where it has one. They are plain integers
// of the shard's holder; take a copy while holding the shard.
type Counters struct {
	SentPkts, RcvdPkts   uint64
	SentBytes, RcvdBytes uint64 // whole frames
	DuplicateRequest     uint64
	OutOfSeqRequest      uint64 // a NAK PSN sequence error was due
	RcvdRNRErr           uint64
	SendRNRErr           uint64
	RcvdSeqErr           uint64
	AckDeferred          uint64 // coalesced into a later acknowledgement
	RetryExceededErr     uint64
	RetryRNRExceededErr  uint64
	CompleterRetryErr    uint64 // rewinds of a send queue
	SendErr              uint64
	RDMASends            uint64
	RDMARecvs            uint64

	Retransmits  uint64 // request packets sent again
	Timeouts     uint64
	Handovers    uint64 // frames given to another shard
	Loopbacks    uint64 // frames turned round inside the device
	NAKsSent     uint64
	NAKsRcvd     uint64
	CQOverflows  uint64
	EventsLost   uint64
	GraceStalls  uint64 // completions that had to wait for a quiescent point
	LocalOps     uint64
	Drops        [NumReasons]uint64   // packets dropped or refused, by reason
	KeyFaults    [mr.NumFaults]uint64 // refused keys, own and peers', by cause
	WindowHalved uint64
}

// Add sums o into c.
func (c *Counters) Add(o *Counters) {
	c.SentPkts += o.SentPkts
	c.RcvdPkts += o.RcvdPkts
	c.SentBytes += o.SentBytes
	c.RcvdBytes += o.RcvdBytes
	c.DuplicateRequest += o.DuplicateRequest
	c.OutOfSeqRequest += o.OutOfSeqRequest
	c.RcvdRNRErr += o.RcvdRNRErr
	c.SendRNRErr += o.SendRNRErr
	c.RcvdSeqErr += o.RcvdSeqErr
	c.AckDeferred += o.AckDeferred
	c.RetryExceededErr += o.RetryExceededErr
	c.RetryRNRExceededErr += o.RetryRNRExceededErr
	c.CompleterRetryErr += o.CompleterRetryErr
	c.SendErr += o.SendErr
	c.RDMASends += o.RDMASends
	c.RDMARecvs += o.RDMARecvs
	c.Retransmits += o.Retransmits
	c.Timeouts += o.Timeouts
	c.Handovers += o.Handovers
	c.Loopbacks += o.Loopbacks
	c.NAKsSent += o.NAKsSent
	c.NAKsRcvd += o.NAKsRcvd
	c.CQOverflows += o.CQOverflows
	c.EventsLost += o.EventsLost
	c.GraceStalls += o.GraceStalls
	c.LocalOps += o.LocalOps
	c.WindowHalved += o.WindowHalved
	for i := range c.KeyFaults {
		c.KeyFaults[i] += o.KeyFaults[i]
	}
	for i := range c.Drops {
		c.Drops[i] += o.Drops[i]
	}
}

// QPCounters are one QP's totals; take a copy while holding its shard.
type QPCounters struct {
	SentPkts, RcvdPkts   uint64
	SentBytes, RcvdBytes uint64 // payload
	Retransmits          uint64
	Timeouts             uint64
	Duplicates           uint64
	OutOfSeq             uint64
	NAKsSent, NAKsRcvd   uint64
	RNRSent, RNRRcvd     uint64
	Completions          uint64
	Drops                uint64
	LastDrop             Reason
}
