package keyrules

import (
	"fmt"
	"io"
	"strings"
)

// Markdown is the table of docs/keys.md.
func Markdown(out []Outcome) string {
	var b strings.Builder
	b.WriteString("| | rule | Linux rdma_rxe 6.12 | | roxie | |\n|---|---|---|---|---|---|\n")
	for i := range out {
		o := &out[i]
		got, v := o.Linux()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", o.ID, o.Rule, got, v, o.Got, o.verdict())
	}
	return b.String()
}

func (o *Outcome) verdict() Verdict {
	if o.Pass {
		return Passes
	}
	return Fails
}

// Write prints the outcomes for people, and how many rules hold here and there.
func Write(w io.Writer, out []Outcome) error {
	var b strings.Builder
	var ours, theirs, status int
	for i := range out {
		o := &out[i]
		got, v := o.Linux()
		fmt.Fprintf(&b, "%s: %s\n", o.ID, o.Rule)
		fmt.Fprintf(&b, "    roxie  %-12s %s\n", plain(o.verdict()), o.Got)
		fmt.Fprintf(&b, "    Linux  %-12s %s\n", plain(v), got)
		if o.Pass {
			ours++
		}
		switch v {
		case Passes:
			theirs++
		case Status:
			status++
		}
	}
	fmt.Fprintf(&b, "\n%d of %d rules hold here; of Linux rdma_rxe 6.12: %d, and %d with the wrong "+
		"status\n", ours, len(out), theirs, status)
	_, err := io.WriteString(w, b.String())
	return err
}

func plain(v Verdict) string { return strings.ToUpper(strings.Trim(string(v), "*")) }
