package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/roxie-rdma/roxie/bench"
)

// The lines between which a document holds the results.
const (
	beginMark = "<!-- results: make bench bench-doc writes what follows -->\n"
	endMark   = "<!-- end of results -->\n"
)

// document replaces the results in a Markdown file by those of the last run.
func document(doc, text, in, pictures string) error {
	old, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	printed, err := os.ReadFile(text)
	if err != nil {
		return err
	}
	report, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	var r bench.Report
	if err := json.Unmarshal(report, &r); err != nil {
		return fmt.Errorf("read %s: %w", in, err)
	}
	before, rest, found := strings.Cut(string(old), beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !found || !ended {
		return fmt.Errorf("%s has no lines %q and %q to put results between", doc, beginMark, endMark)
	}
	folder, err := filepath.Rel(filepath.Dir(doc), pictures)
	if err != nil {
		return err
	}
	return os.WriteFile(doc, []byte(before+beginMark+results(&r, string(printed), folder)+endMark+after), 0o666)
}

// results is a run as Markdown.
func results(r *bench.Report, printed, folder string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMeasured %s; while it ran, other programs used %.2f of %d cores, and the hypervisor %.2f.\n",
		r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Others, r.Cores, r.Stolen)
	if r.Others > 0.1*float64(r.Cores) {
		b.WriteString("**That is a busy machine: ratios swing, and absolute figures are far below those of a " +
			"quiet one.**\n")
	}
	fmt.Fprintf(&b, "\n```\n%s\n```\n\n", strings.TrimRight(printed, "\n"))
	for _, f := range figures(r) {
		if len(f.lines) > 0 {
			title, _, _ := strings.Cut(f.title, "\n")
			fmt.Fprintf(&b, "![%s](%s)\n", title, filepath.ToSlash(filepath.Join(folder, f.name+".svg")))
		}
	}
	b.WriteString("\n")
	return b.String()
}
