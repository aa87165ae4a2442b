package srpload

import (
	"fmt"
	"io"
	"strings"
)

// Result is what a run gave. Its JSON form is that of --json.
type Result struct {
	Workload   Workload `json:"workload"`
	Persistent bool     `json:"persistent"`
	Invalidate Inv      `json:"invalidate,omitempty"`
	Size       int      `json:"size,omitempty"` // of every I/O; 0: log-uniform, 512 B to 1 MiB
	Channels   int      `json:"channels"`
	Depth      int      `json:"depth"`
	PMTU       int      `json:"pmtu"`
	XDPMode    string   `json:"xdp_mode"`
	Progress   Progress `json:"progress"`
	Seconds    float64  `json:"seconds"`

	IOs      uint64  `json:"ios"` // ever, with warm-up and end
	IOPS     float64 `json:"iops"`
	Gbps     float64 `json:"gbps"` // payload, 10^9 bits a second, both directions together
	RegsPerS float64 `json:"regs_per_s"`
	InvsPerS float64 `json:"invs_per_s"`
	Maps     uint64  `json:"maps"` // lists mapped, ever

	Errors     uint64 `json:"errors"`
	Verified   uint64 `json:"verified_bytes"` // on both ends, ever
	Mismatches uint64 `json:"mismatches"`     // bytes

	Packets     uint64 `json:"packets"`
	Retransmits uint64 `json:"retransmits"`
	First       string `json:"first_error,omitempty"`

	// Size4K is the same load with 4 KiB for every I/O.
	Size4K *Result `json:"size_4k,omitempty"`
}

func (in *initiator) result(first, last counts, theirs *report) *Result {
	ours := in.finish()
	r := &Result{
		Workload: in.cfg.Workload, Persistent: in.cfg.Persistent, Size: in.cfg.Size,
		Channels: in.cfg.Channels, Depth: in.cfg.Depth, PMTU: ours.PMTU, XDPMode: ours.XDPMode,
		Progress: in.cfg.Progress, IOs: in.done, Maps: in.maps,
		Errors: ours.Errors + theirs.Errors, Verified: ours.Verified + theirs.Verified,
		Mismatches: ours.Mismatches + theirs.Mismatches, Packets: ours.Packets + theirs.Packets,
		Retransmits: ours.Retransmits + theirs.Retransmits, First: ours.First,
	}
	if !r.Persistent {
		r.Invalidate = in.cfg.Inv
	}
	if r.First == "" {
		r.First = theirs.First
	}
	if s := last.at.Sub(first.at).Seconds(); s > 0 && !first.at.IsZero() {
		r.Seconds = s
		r.IOPS = float64(last.done-first.done) / s
		r.RegsPerS = float64(last.regs-first.regs) / s
		r.InvsPerS = float64(last.invs-first.invs) / s
		r.Gbps = float64(last.bytes-first.bytes) * 8 / s / 1e9
	}
	return r
}

// Err says why a result is no good.
func (r *Result) Err() error {
	switch {
	case r.Errors > 0:
		return fmt.Errorf("%s: %s", r.name(), r.First)
	case r.Mismatches > 0:
		return fmt.Errorf("%s: %d of %d bytes arrived wrong", r.name(), r.Mismatches, r.Verified)
	case r.IOs == 0:
		return fmt.Errorf("%s: no I/O went through", r.name())
	}
	if r.Size4K != nil {
		return r.Size4K.Err()
	}
	return nil
}

func (r *Result) name() string {
	name := string(r.Workload)
	if r.Persistent {
		name += " with fixed registrations"
	}
	return name
}

// Write prints a table of results.
func Write(w io.Writer, results ...*Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-28s %-12s %10s %8s %12s %12s %12s %16s %6s\n", "load", "I/O bytes",
		"I/Os per s", "Gb/s", "REG_MR/s", "invalid./s", "maps", "bytes verified", "wrong")
	row := func(r *Result) {
		size := "512-1048576"
		if r.Size != 0 {
			size = fmt.Sprint(r.Size)
		}
		fmt.Fprintf(&b, "%-28s %-12s %10.0f %8.2f %12.0f %12.0f %12d %16d %6d\n", r.name(), size, r.IOPS,
			r.Gbps, r.RegsPerS, r.InvsPerS, r.Maps, r.Verified, r.Mismatches)
	}
	for _, r := range results {
		if row(r); r.Size4K != nil {
			row(r.Size4K)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
