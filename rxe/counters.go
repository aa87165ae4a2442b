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

// Counter is one of the Counters under its name.
type Counter struct {
	Name  string // Linux rxe's where it has one: sent_pkts, out_of_seq_request, …
	Label string // of drops and key_faults: the reason in words
	Value uint64
}

// List returns all counters with their names, the labelled ones once for each label.
func (c *Counters) List() []Counter {
	list := []Counter{
		{"sent_pkts", "", c.SentPkts}, {"rcvd_pkts", "", c.RcvdPkts},
		{"sent_bytes", "", c.SentBytes}, {"rcvd_bytes", "", c.RcvdBytes},
		{"duplicate_request", "", c.DuplicateRequest},
		{"out_of_seq_request", "", c.OutOfSeqRequest},
		{"rcvd_rnr_err", "", c.RcvdRNRErr}, {"send_rnr_err", "", c.SendRNRErr},
		{"rcvd_seq_err", "", c.RcvdSeqErr}, {"ack_deferred", "", c.AckDeferred},
		{"retry_exceeded_err", "", c.RetryExceededErr},
		{"retry_rnr_exceeded_err", "", c.RetryRNRExceededErr},
		{"completer_retry_err", "", c.CompleterRetryErr}, {"send_err", "", c.SendErr},
		{"rdma_sends", "", c.RDMASends}, {"rdma_recvs", "", c.RDMARecvs},
		{"retransmits", "", c.Retransmits}, {"timeouts", "", c.Timeouts},
		{"handovers", "", c.Handovers}, {"loopbacks", "", c.Loopbacks},
		{"naks_sent", "", c.NAKsSent}, {"naks_rcvd", "", c.NAKsRcvd},
		{"cq_overflows", "", c.CQOverflows}, {"events_lost", "", c.EventsLost},
		{"grace_stalls", "", c.GraceStalls}, {"local_ops", "", c.LocalOps},
		{"window_halved", "", c.WindowHalved},
	}
	for r, n := range c.Drops {
		list = append(list, Counter{"drops", Reason(r).String(), n})
	}
	for f, n := range c.KeyFaults {
		list = append(list, Counter{"key_faults", mr.Fault(f).String(), n})
	}
	return list
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
