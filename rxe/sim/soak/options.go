package soak

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// Options decide a run completely.
type Options struct {
	Seed    uint64
	Packets uint64 // frames to send before the run is brought to its end, default 50000
	Faults  sim.Faults
	Script  *sim.FaultScript // faults at given frames and times, instead of random stalls
	Calm    bool             // no random stalls, partitions and sleeping shards

	// Scratch, if not nil, is memory that one run after the other uses. It changes nothing else.
	Scratch *Scratch

	// Tap, if set, sees every frame sent.
	Tap func(now rxe.Time, from, to *sim.Node, frame []byte)
}

// Scratch is memory for runs that follow each other. The zero value is ready.
type Scratch struct{ arenas [][]byte }

// arena returns two empty slices of host i with room for all of its memory.
func (s *Scratch) arena(i int) (mem, shadow []byte) {
	if s == nil {
		return make([]byte, 0, arenaMax), make([]byte, 0, arenaMax)
	}
	for len(s.arenas) < 2*(i+1) {
		s.arenas = append(s.arenas, make([]byte, 0, arenaMax))
	}
	return s.arenas[2*i], s.arenas[2*i+1]
}

// What a call of roxie sim without flags does.
const (
	DefaultRuns    = 40
	DefaultPackets = 50_000 // a run
)

// DefaultFaults are those of a run that asks for none.
var DefaultFaults = sim.Faults{Drop: 0.01, Duplicate: 0.005, Reorder: 0.01, Corrupt: 0.002, Delay: 0.001}

// Kind is an operation by transport, as counted.
type Kind uint8

// The operations.
const (
	RCSend Kind = iota
	RCSendImm
	RCSendInv
	RCWrite
	RCWriteImm
	RCRead
	RCCmpSwp
	RCFetchAdd
	RCAtomicWrite
	RCFlush
	UCSend
	UCSendImm
	UCWrite
	UCWriteImm
	UDSend
	UDSendImm
	RegMR
	LocalInv
	BindMW
	NumKinds
)

var kindNames = [NumKinds]string{"rc_send", "rc_send_imm", "rc_send_inv", "rc_write", "rc_write_imm",
	"rc_read", "rc_cmp_swp", "rc_fetch_add", "rc_atomic_write", "rc_flush", "uc_send", "uc_send_imm",
	"uc_write", "uc_write_imm", "ud_send", "ud_send_imm", "reg_mr", "local_inv", "bind_mw"}

// String is the name under which the operation is counted.
func (k Kind) String() string {
	if k < NumKinds {
		return kindNames[k]
	}
	return "unknown"
}

// Violation is something that must not happen.
type Violation struct {
	Seed uint64
	At   rxe.Time // virtual
	Text string
}

// String tells all of it.
func (v Violation) String() string {
	return fmt.Sprintf("seed=%d at %d ns: %s", v.Seed, v.At, v.Text)
}

// Result is what a run has done.
type Result struct {
	sim.Stats
	Counters   rxe.Counters // summed over all shards
	Ops        [NumKinds]uint64
	Attacks    uint64 // work requests that had to fail, and did
	Renewals   uint64 // connections that ended in an error and were made anew
	Grants     uint64 // regions and windows announced to a peer
	Violations []Violation
	Trace      [32]byte // digest of all frames and completions
	Until      rxe.Time // virtual time at the end
}

// Add sums o into r. The digests are not summed.
func (r *Result) Add(o *Result) {
	r.Stats.Add(&o.Stats)
	r.Counters.Add(&o.Counters)
	for i := range r.Ops {
		r.Ops[i] += o.Ops[i]
	}
	r.Attacks += o.Attacks
	r.Renewals += o.Renewals
	r.Grants += o.Grants
	r.Violations = append(r.Violations, o.Violations...)
}
