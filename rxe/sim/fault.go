package sim

import "github.com/roxie-rdma/roxie/rxe"

// Faults is the fault model of the fabric: each frame meets each fault with its probability.
type Faults struct {
	Drop      float64
	Duplicate float64
	Reorder   float64  // held back by up to ReorderBy
	ReorderBy rxe.Time // default 20 µs
	Corrupt   float64  // one bit flipped anywhere behind the Ethernet header
	Truncate  float64  // cut at a random length
	Delay     float64  // late by up to DelayBy
	DelayBy   rxe.Time // default 1 ms

	// Script, if set, judges each frame first: by its number on the fabric from 0 and its bytes.
	Script func(n uint64, from, to *Node, frame []byte) Verdict
}

// Verdict is what a script decides about one frame.
type Verdict uint8

// Verdicts.
const (
	Chance Verdict = iota // leave it to the probabilities
	Pass                  // deliver, no faults
	Drop
	Duplicate
	Corrupt
	Late // after DelayBy
)

// Stats count what the fabric did to frames.
type Stats struct {
	Packets    uint64 // transmitted by engines
	Delivered  uint64
	Dropped    uint64
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
	Truncated  uint64
	Delayed    uint64
	Unrouted   uint64 // no node has the destination MAC
	Overflows  uint64 // receive ring of the destination shard was full
}
