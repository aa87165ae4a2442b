// Command plot draws the report of roxie bench --full as SVG files:
//
//	goodput.svg   message size × goodput, with raw AF_XDP and TCP
//	messages.svg  message size × messages a second
//	latency.svg   latency distributions
//	qps.svg       number of QPs × cost per packet
//	loss.svg      loss × goodput, simulated
//
// With -doc, it puts the run's text and the pictures into a Markdown file, between the marks there.
//
// It is a program of its own so that roxie does not carry a plotting library and its fonts.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/roxie-rdma/roxie/bench"
)

func main() {
	in := flag.String("json", "build/bench/bench.json", "report of roxie bench --full")
	out := flag.String("o", "build/bench", "folder to write to")
	doc := flag.String("doc", "", "Markdown file to bring up to date, with -text")
	text := flag.String("text", "build/bench/bench.txt", "what roxie bench --full printed")
	flag.Parse()
	err := run(*in, *out, os.Stdout)
	if err == nil && *doc != "" {
		err = document(*doc, *text, *in, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// run draws the report in and names what it has written below out.
func run(in, out string, names io.Writer) error {
	text, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("read %s: %w", in, err)
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	for _, f := range figures(&r) {
		if len(f.lines) == 0 {
			continue
		}
		name := filepath.Join(out, f.name+".svg")
		if err := f.write(name); err != nil {
			return fmt.Errorf("draw %s: %w", name, err)
		}
		if _, err := fmt.Fprintln(names, name); err != nil {
			return err
		}
	}
	return nil
}
