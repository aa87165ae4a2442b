package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// Outcome is a cell and how it went.
type Outcome struct {
	Cell
	findings
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Reason  string  `json:"reason,omitempty"` // why not
	Note    string  `json:"note,omitempty"`   // of a scenario: what was seen
}

// Report is the whole run. Its JSON form is that of -json.
type Report struct {
	Cells     []Outcome         `json:"cells"`     // of the matrix
	Scenarios []Outcome         `json:"scenarios"` // in the same form
	Failed    int               `json:"failed"`
	Again     int               `json:"again"` // failed in an earlier run, and were run again
	Seconds   float64           `json:"seconds"`
	Boot      float64           `json:"boot_seconds"`
	Slowest   string            `json:"slowest"`
	Kernel    string            `json:"kernel"`   // of the guest
	Versions  map[string]string `json:"versions"` // of the guest's packages
}

// printer prints the table while it grows.
type printer struct {
	out io.Writer
	n   int
}

const rowFormat = "%4s  %-16s %-6s %-2s %5s %-4s %8s %3s %5s %-7s %-12s %-4s %6s %7s %5s %s\n"

func (p *printer) head() {
	fmt.Fprintf(p.out, rowFormat, "#", "tool", "roxie", "", "pmtu", "ip", "size", "qps", "link", "xdp",
		"option", "", "s", "packets", "again", "")
}

func (p *printer) row(o *Outcome) {
	p.n++
	verdict, note := "ok", o.Note
	if !o.OK {
		verdict, note = "FAIL", o.Reason
	}
	size := fmt.Sprint(o.Size)
	if o.Option == "all" {
		size = "all"
	}
	if o.Drops > 0 {
		note += fmt.Sprintf(" (the capture missed %d packets)", o.Drops)
	}
	fmt.Fprintf(p.out, rowFormat, fmt.Sprintf("%d", p.n), o.Tool, o.Role, o.Transport,
		fmt.Sprint(o.PMTU), o.Family[2:], size, fmt.Sprint(o.QPs), fmt.Sprint(o.LinkMTU), o.XDP, o.Option,
		verdict, fmt.Sprintf("%.1f", o.Seconds), fmt.Sprint(o.Packets), fmt.Sprint(o.Retransmits), note)
}

// all yields every outcome.
func (r *Report) all(yield func(*Outcome) bool) {
	for _, list := range [][]Outcome{r.Cells, r.Scenarios} {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

// finish fills in what is known at the end only, and prints it.
func (r *Report) finish(w io.Writer, seconds float64) {
	r.Seconds, r.Failed = seconds, 0
	var slowest *Outcome
	n, drops := 0, 0
	for o := range r.all {
		n++
		if !o.OK {
			r.Failed++
		}
		if o.Drops > 0 {
			drops++
		}
		if slowest == nil || o.Seconds > slowest.Seconds {
			slowest = o
		}
	}
	fmt.Fprintf(w, "\n%d of %d are ok, %d cells of the matrix and %d scenarios, in %.0f s\n", n-r.Failed, n,
		len(r.Cells), len(r.Scenarios), r.Seconds)
	if slowest != nil {
		r.Slowest = slowest.Cell.String()
		fmt.Fprintf(w, "the slowest took %.1f s: %s\n", slowest.Seconds, r.Slowest)
	}
	if drops > 0 {
		fmt.Fprintf(w, "%d captures in the guest missed packets and were checked for ICRCs only\n", drops)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	for o := range r.all {
		if !o.OK {
			fmt.Fprintf(tw, "FAIL\t%v\t%s\n", o.Cell, o.Reason)
		}
	}
	_ = tw.Flush()
}

// resume reads what an earlier run wrote, if any, and returns the cells that are not in it. again:
// those that failed count as not there. whole: cells are all there are, and what else is in it goes.
func (r *Report) resume(name string, cells []*scenario, again, whole bool) (left []*scenario, err error) {
	if name == "" {
		return nil, errors.New("-resume needs -json")
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return cells, nil
	}
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err != nil {
		return nil, err
	}
	if again {
		before := len(r.Cells) + len(r.Scenarios)
		failed := func(o Outcome) bool { return !o.OK }
		r.Cells = slices.DeleteFunc(r.Cells, failed)
		r.Scenarios = slices.DeleteFunc(r.Scenarios, failed)
		r.Again += before - len(r.Cells) - len(r.Scenarios)
	}
	known := make(map[Cell]bool)
	for _, s := range cells {
		known[s.Cell] = true
	}
	if whole {
		gone := func(o Outcome) bool { return !known[o.Cell] }
		r.Cells = slices.DeleteFunc(r.Cells, gone)
		r.Scenarios = slices.DeleteFunc(r.Scenarios, gone)
	}
	done := make(map[Cell]bool)
	for o := range r.all {
		done[o.Cell] = true
	}
	for _, s := range cells {
		if !done[s.Cell] {
			left = append(left, s)
		}
	}
	return left, nil
}

func (r *Report) writeJSON(name string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o666)
}

// oneLine folds an error into one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
