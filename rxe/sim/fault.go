package sim

import (
	"math"

	"github.com/roxie-rdma/roxie/rxe"
)

// Faults is the fault model of the fabric: each frame meets each fault with its probability.
type Faults struct {
	Drop      float64
	Duplicate float64  // the copy comes with the frame, or up to ReorderBy or DelayBy later
	Reorder   float64  // held back by up to ReorderBy
	ReorderBy rxe.Time // default 20 µs
	Corrupt   float64  // one bit flipped anywhere behind the Ethernet header
	Truncate  float64  // cut at a random length
	Delay     float64  // late by up to DelayBy, and all behind it with it
	DelayBy   rxe.Time // default 1 ms

	// Script, if set, judges each frame first: by its number on the fabric from 0 and its bytes.
	Script func(n uint64, from, to *Node, frame []byte) Verdict
}

// Loss is the probability that a frame does not arrive usable.
func (x *Faults) Loss() float64 {
	return 1 - (1-x.Drop)*(1-x.Corrupt)*(1-x.Truncate)
}

func (x *Faults) defaults() {
	if x.ReorderBy == 0 {
		x.ReorderBy = 20_000
	}
	if x.DelayBy == 0 {
		x.DelayBy = 1_000_000
	}
}

// Verdict is what a script decides about one frame.
type Verdict uint8

// Verdicts.
const (
	Chance    Verdict = iota // leave it to the probabilities
	Pass                     // deliver, no faults
	Drop                     // lose it
	Duplicate                // deliver it twice
	Corrupt                  // flip a bit
	Late                     // deliver it DelayBy later, overtaken by what follows
	Truncate                 // cut it at a random length
	Echo                     // deliver it, and a copy up to DelayBy later
)

// Stats count what the fabric did to frames. Every frame ends as one of Delivered, Dropped,
// Unrouted and Overflows: see Fabric.Audit.
type Stats struct {
	Packets    uint64 // transmitted by engines
	Delivered  uint64 // put into a receive ring
	Dropped    uint64
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
	Truncated  uint64
	Delayed    uint64
	Flooded    uint64 // copies of multicast frames beyond the first
	Unrouted   uint64 // no node has the destination MAC
	Overflows  uint64 // receive ring of the destination shard was full
}

// Add sums o into s.
func (s *Stats) Add(o *Stats) {
	s.Packets += o.Packets
	s.Delivered += o.Delivered
	s.Dropped += o.Dropped
	s.Duplicated += o.Duplicated
	s.Reordered += o.Reordered
	s.Corrupted += o.Corrupted
	s.Truncated += o.Truncated
	s.Delayed += o.Delayed
	s.Flooded += o.Flooded
	s.Unrouted += o.Unrouted
	s.Overflows += o.Overflows
}

// The faults of a frame, as bits of a fate.
const (
	fateDrop = iota
	fateDuplicate
	fateCorrupt
	fateTruncate
	fateReorder
	fateDelay
	fateLate // by verdict only
	numDice  = fateLate
)

// fate is the set of what happens to one frame.
type fate uint8

func (x fate) has(bit int) bool { return x>>bit&1 != 0 }

// dice holds the probabilities as thresholds of a random word. any is at least the probability that
// a frame meets a fault at all, so that most frames cost one word.
type dice struct {
	any uint64
	p   [numDice]uint64
}

func threshold(p float64) uint64 {
	switch {
	case p <= 0:
		return 0
	case p >= 1:
		return math.MaxUint64
	}
	return uint64(p * (1 << 63) * 2)
}

func newDice(x *Faults) (d dice) {
	sum := 0.0
	for i, p := range [numDice]float64{x.Drop, x.Duplicate, x.Corrupt, x.Truncate, x.Reorder, x.Delay} {
		d.p[i] = threshold(p)
		sum += max(p, 0)
	}
	d.any = threshold(sum)
	return d
}

// roll decides a frame's fate. The first word says which fault it meets, if any; each one behind
// that has a chance of its own.
func (d *dice) roll(r *Rand) (x fate) {
	u := r.Uint64()
	if u >= d.any {
		return 0
	}
	for i, p := range d.p {
		if x != 0 {
			u = r.Uint64()
		}
		if u < p {
			x |= 1 << i
		} else {
			u -= p
		}
	}
	return x
}

// fateOf is the fate that a script's verdict names.
func (v Verdict) fate() fate {
	switch v {
	case Drop:
		return 1 << fateDrop
	case Duplicate:
		return 1 << fateDuplicate
	case Corrupt:
		return 1 << fateCorrupt
	case Truncate:
		return 1 << fateTruncate
	case Echo:
		return 1 << fateDuplicate
	case Late:
		return 1 << fateLate
	}
	return 0
}
