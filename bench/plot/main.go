// Command plot draws the report of roxie bench --full as SVG files:
//
//	goodput.svg   message size × goodput, with raw AF_XDP and TCP
//	messages.svg  message size × messages a second
//	latency.svg   latency distributions
//	qps.svg       number of QPs × cost per packet
//	loss.svg      loss × goodput, simulated
//
// It is a program of its own so that roxie does not carry a plotting library and its fonts.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/roxie-rdma/roxie/bench"
)

func main() {
	in := flag.String("json", "build/bench/bench.json", "report of roxie bench --full")
	out := flag.String("o", "build/bench", "folder to write to")
	flag.Parse()
	if err := run(*in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
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
		fmt.Println(name)
	}
	return nil
}
