package srp

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Report is what a load has counted.
type Report struct {
	Unit      string `json:"unit"` // what INQUIRY says
	Blocks    uint64 `json:"blocks"`
	BlockSize uint32 `json:"block_size"` // bytes
	Channels  int    `json:"channels"`
	Area      uint64 `json:"area"`      // bytes of the disk that were used
	MaxBytes  int    `json:"max_bytes"` // of one command

	Commands     int64             `json:"commands"` // random ones that are through
	Seconds      float64           `json:"seconds"`  // that they took
	IOPS         float64           `json:"iops"`
	LoginSeconds float64           `json:"login_seconds"`
	Kinds        map[string]uint64 `json:"kinds"` // all commands sent, by name

	BytesRead    uint64 `json:"bytes_read"`
	BytesWritten uint64 `json:"bytes_written"`
	Verified     uint64 `json:"bytes_verified"`
	Mismatches   uint64 `json:"mismatches"` // commands whose data differed

	Regs     uint64 `json:"regs"`     // REG_MR posted
	Invs     uint64 `json:"invs"`     // LOCAL_INV posted
	Maps     uint64 `json:"maps"`     // lists mapped
	Indirect uint64 `json:"indirect"` // commands with several regions

	Logins   uint64 `json:"logins"`   // of channels
	Beside   uint64 `json:"sessions"` // that came and went beside the load
	Replaced uint64 `json:"replaced"` // of these, ended by the target for a new login

	Aborts      uint64 `json:"aborts"`  // ABORT TASK sent
	Aborted     uint64 `json:"aborted"` // commands that this ended
	Repeated    uint64 `json:"repeated"`
	Timeouts    uint64 `json:"timeouts"`
	Refused     uint64 `json:"refused"` // commands that make no sense
	Errors      uint64 `json:"errors"`
	Retransmits uint64 `json:"retransmits"` // packets of the load's channels
	Error       string `json:"error,omitempty"`
}

// finish fills the report in.
func (l *load) finish(s *Session) *Report {
	r, n := l.report, l.cfg.Counters
	r.Commands = l.done.Load()
	if r.Seconds > 0 {
		r.IOPS = float64(r.Commands) / r.Seconds
	}
	n.mu.Lock()
	r.Kinds = maps.Clone(n.kinds)
	n.mu.Unlock()
	r.BytesRead, r.BytesWritten = l.read.Load(), l.written.Load()
	r.Verified, r.Mismatches = l.verified.Load(), l.bad.Load()
	r.Regs, r.Invs, r.Maps, r.Indirect = n.regs.Load(), n.invs.Load(), n.maps.Load(), n.indirect.Load()
	r.Logins, r.Beside, r.Replaced = n.logins.Load(), l.logouts.Load(), l.lost.Load()
	r.Aborts, r.Aborted, r.Repeated = n.aborts.Load(), n.aborted.Load(), l.repeated.Load()
	r.Timeouts, r.Refused = n.timeouts.Load(), l.refused.Load()
	if s != nil {
		r.Retransmits = s.Retransmits()
	}
	return r
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	mib := func(n uint64) float64 { return float64(n) / (1 << 20) }
	if r.Unit == "" {
		return
	}
	fmt.Fprintf(w, "%s: %d blocks of %d bytes; %d channels, logged in after %.2f s\n", r.Unit,
		r.Blocks,
		r.BlockSize, r.Channels, r.LoginSeconds)
	fmt.Fprintf(w, "%d commands of %d bytes to %d KiB in %.2f s: %.0f a second\n", r.Commands,
		r.BlockSize,
		r.MaxBytes>>10, r.Seconds, r.IOPS)
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(r.Kinds)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", r.Kinds[k], k))
	}
	fmt.Fprintf(w, "sent: %s\n", strings.Join(kinds, ", "))
	fmt.Fprintf(w, "%.1f MiB written, %.1f MiB read and compared: %d commands with wrong data\n",
		mib(r.BytesWritten), mib(r.Verified), r.Mismatches)
	fmt.Fprintf(w, "%d REG_MR, %d LOCAL_INV, %d commands with several regions\n", r.Regs, r.Invs,
		r.Indirect)
	fmt.Fprintf(w, "%d logins of channels; %d sessions came and went beside, ", r.Logins, r.Beside)
	fmt.Fprintf(w, "%d replaced by a new login\n", r.Replaced)
	fmt.Fprintf(w, "%d aborted of %d tried, %d repeated, %d timeouts; ", r.Aborted, r.Aborts,
		r.Repeated, r.Timeouts)
	fmt.Fprintf(w, "%d senseless commands refused; %d errors; %d packets sent again\n", r.Refused,
		r.Errors, r.Retransmits)
}
