package xdp

import "golang.org/x/sys/unix"

// Counters counts what a Socket did since Open. All are monotonic 64-bit numbers.
type Counters struct {
	RXFrames  uint64 // frames given out by Receive
	RXBytes   uint64 // their bytes, from the Ethernet header on
	RXInvalid uint64 // RX entries outside our chunks, skipped; always 0 on a sound kernel
	RXWakeups uint64 // calls made to wake the driver's receive side or to busy-poll

	TXFrames  uint64 // frames queued by Submit
	TXBytes   uint64 // their bytes
	TXRefused uint64 // frames Submit refused for their length
	TXFull    uint64 // reservations refused for want of chunks or by the in-flight cap
	TXDropped uint64 // frames the driver dropped on the way out (EBUSY)
	TXAgain   uint64 // kicks that left descriptors for later (EAGAIN)
	TXDown    uint64 // kicks while the interface was down (ENETDOWN)
	TXErrors  uint64 // kicks that ended in any other error

	Kicks          uint64 // system calls to send
	Waits          uint64 // system calls to sleep
	BadCompletions uint64 // completions of chunks that were not sent, ignored
}

// KernelCounters are the kernel's own counts for the socket (XDP_STATISTICS).
type KernelCounters struct {
	RXDropped      uint64 // frames dropped for want of chunks or for their size
	RXRingFull     uint64 // frames dropped because the RX ring was full
	FillRingEmpty  uint64 // times no receive chunk was left
	RXInvalidDescs uint64 // bad entries in the fill ring
	TXInvalidDescs uint64 // bad entries in the TX ring
	TXRingEmpty    uint64 // times the TX ring ran empty
}

// Stats are the counters of both sides.
type Stats struct {
	Counters
	Kernel KernelCounters
}

// Stats returns the counters; it makes one system call. After Close it returns the last ones.
func (s *Socket) Stats() Stats {
	return Stats{Counters: s.count, Kernel: s.kernelStats()}
}

func (s *Socket) kernelStats() KernelCounters {
	if s.closed && s.fd < 0 || s.backend != nil {
		return s.last
	}
	var k unix.XDPStatistics
	if getsockopt(s.fd, unix.XDP_STATISTICS, &k) != nil {
		return s.last
	}
	return KernelCounters{
		RXDropped:      k.Rx_dropped,
		RXRingFull:     k.Rx_ring_full,
		FillRingEmpty:  k.Rx_fill_ring_empty_descs,
		RXInvalidDescs: k.Rx_invalid_descs,
		TXInvalidDescs: k.Tx_invalid_descs,
		TXRingEmpty:    k.Tx_ring_empty_descs,
	}
}
