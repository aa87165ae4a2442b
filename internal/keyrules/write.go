package keyrules

import (
	"fmt"
	"io"
	"strings"
)

// Markdown is the table of docs/keys.md.
func Markdown(out []Outcome) string {
	linux := Linux()
	var b strings.Builder
	fmt.Fprintf(&b, "| | rule | Linux rdma_rxe %s | | roxie | |\n|---|---|---|---|---|---|\n",
		linux.Kernel)
	for i := range out {
		o := &out[i]
		m := linux.find(o.ID, o.Rule)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", o.ID, o.Rule, m.Got, m.Verdict, o.Got,
			o.Verdict())
	}
	return b.String()
}

// Write prints the outcomes for people, beside Linux's, and how many rules hold here and there.
func Write(w io.Writer, out []Outcome, linux *Record) error {
	var b strings.Builder
	var ours, theirs, status int
	for i := range out {
		o := &out[i]
		m := linux.find(o.ID, o.Rule)
		fmt.Fprintf(&b, "%s: %s\n", o.ID, o.Rule)
		fmt.Fprintf(&b, "    roxie  %-12s %s\n", plain(o.Verdict()), o.Got)
		fmt.Fprintf(&b, "    Linux  %-12s %s\n", plain(m.Verdict), m.Got)
		if o.Pass {
			ours++
		}
		switch m.Verdict {
		case Passes:
			theirs++
		case Status:
			status++
		}
	}
	fmt.Fprintf(&b, "\n%d of %d rules hold here; of Linux rdma_rxe %s: %d, and %d with the wrong "+
		"status\n", ours, len(out), linux.Kernel, theirs, status)
	_, err := io.WriteString(w, b.String())
	return err
}

func plain(v Verdict) string { return strings.ToUpper(strings.Trim(string(v), "*")) }
