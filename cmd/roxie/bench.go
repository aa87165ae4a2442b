package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/bench"
	"github.com/roxie-rdma/roxie/internal/lab"
)

func newBenchCommand() *cobra.Command {
	var o bench.Options
	var out jsonOutput
	var seconds float64
	var guard bool
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare with raw AF_XDP on this machine, every byte verified",
		Long: "bench measures roxie between two network namespaces of its own, each time right " +
			"after raw\n" +
			"AF_XDP with frames of the same size on the same veth pair and the same cores, and " +
			"prints\n" +
			"both and their ratio. Figures without the raw one beside them say little.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if seconds < 0 || seconds > 60 || o.Rounds < 0 {
				return usagef("--duration %v, --rounds %d: out of range", seconds, o.Rounds)
			}
			o.Duration = time.Duration(seconds * float64(time.Second))
			if keys, err := wantsKeys(o.Only); keys || err != nil {
				if err != nil {
					return err
				}
				return benchKeys(c, o.Quick, &out)
			}
			if err := o.Check(); err != nil {
				return &usageError{err}
			}
			line := newStatusLine(c.ErrOrStderr())
			o.Step = func(text string) { line.set("bench: " + text) }
			l, err := openLab(lab.Config{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			o.Lab = l
			if guard {
				return benchGuard(c, o, line, &out)
			}
			report, err := bench.Run(c.Context(), o)
			line.clear()
			if err != nil {
				return fmt.Errorf("bench: %w", interrupted(err))
			}
			if err := report.Write(c.OutOrStdout()); err != nil {
				return err
			}
			return out.writeBy(report.WriteJSON)
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&o.Only, "only", nil,
		"only these `tests`: raw, write, read, send, bw, lat, write_bw, send_lat …; or keys")
	fs.BoolVar(&o.Full, "full", false,
		"also more sizes, TCP (iperf3), the engine alone, crowds of QPs, simulated loss")
	fs.BoolVar(&guard, "guard", false,
		"compare ratios with those that roxie was built with, and fail if one is far lower")
	fs.BoolVar(&o.Quick, "quick", false, "fewer sizes, shorter rounds")
	fs.IntVar(&o.Rounds, "rounds", 0, "rounds of each measurement (3)")
	fs.Float64Var(&seconds, "duration", 0, "`seconds` of a measurement (1, with --quick 0.5)")
	fs.StringVar((*string)(&o.Progress), "progress", "",
		"`who` moves roxie's packets: caller or poller (latency caller, bandwidth poller)")
	fs.BoolVar(&o.Pin, "pin", false, "a CPU for each end, raw and roxie alike, on an idle machine")
	out.declare(fs, "the report")
	return c
}

// benchGuard measures the guard's ratios and judges them.
func benchGuard(c *cobra.Command, o bench.Options, line *statusLine, out *jsonOutput) error {
	g, err := bench.GuardRun(c.Context(), o)
	line.clear()
	if err != nil {
		return fmt.Errorf("bench: %w", interrupted(err))
	}
	if out.name != "" {
		return out.writeBy(g.WriteJSON) // a new reference, which is not judged by the old one
	}
	return g.Write(c.OutOrStdout())
}
