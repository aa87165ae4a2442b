package doctor

import (
	"fmt"
	"io"
	"strings"
)

// A Grade says how a thing is.
type Grade uint8

// The grades, the better first.
const (
	OK Grade = iota
	Slow
	Broken
)

var gradeNames = [...]string{OK: "ok", Slow: "slow", Broken: "broken"}

// String returns ok, slow or broken.
func (g Grade) String() string {
	if int(g) < len(gradeNames) {
		return gradeNames[g]
	}
	return fmt.Sprintf("grade %d", uint8(g))
}

// MarshalText returns String's text, for JSON.
func (g Grade) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// A Finding is one line of a report.
type Finding struct {
	Name   string `json:"name"`   // what was looked at, in a word or two
	Grade  Grade  `json:"grade"`  // how it is
	Reason string `json:"reason"` // what was found, and what it means
	Fix    string `json:"fix,omitempty"`
}

// A Section is what was found out about the machine or about one interface.
type Section struct {
	Name     string    `json:"name"`
	Grade    Grade     `json:"grade"` // the worst of its findings
	Findings []Finding `json:"findings"`
}

// A Report is all that was found out.
type Report struct {
	// Grade is the worst grade of the sections; but where all interfaces were looked at, because
	// none was named, the best interface counts.
	Grade    Grade     `json:"grade"`
	Sections []Section `json:"sections"`
}

// add enters a finding. The fix is left out of one that is well, unless it is advice.
func (s *Section) add(name string, g Grade, fix, format string, args ...any) {
	s.Findings = append(s.Findings, Finding{name, g, fmt.Sprintf(format, args...), fix})
	s.Grade = max(s.Grade, g)
}

// Write writes a report as text: a line a finding, and below it the command that mends it.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.Sections {
		fmt.Fprintf(&b, "%s: %v\n", s.Name, s.Grade)
		for _, f := range s.Findings {
			fmt.Fprintf(&b, "  %-7v %-13s %s\n", f.Grade, f.Name, f.Reason)
			if f.Fix != "" {
				fmt.Fprintf(&b, "  %-7s %-13s → %s\n", "", "", f.Fix)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
