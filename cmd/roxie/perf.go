package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/perf"
)

// perfFlags are the flags of roxie perf that are not perf.Config's.
type perfFlags struct {
	perf.Config
	seconds    float64
	json       jsonOutput
	lab        bool
	labConfig  lab.Config
	cpuProfile string
}

func newPerfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "perf",
		Short: "Measure bandwidth and latency, with perftest's tests and flags",
		Long: "perf measures like perftest's ib_write_bw and its family: start the same command " +
			"on two\n" +
			"machines, first without an address (the server), then with the server's (the " +
			"client),\n" +
			"which prints the result. With --lab it does both by itself, in two network " +
			"namespaces\n" +
			"joined by a veth pair. --verify compares every byte that arrives.",
		Example: "  roxie perf write_bw --lab -s 65536 -m 4096 --verify\n" +
			"  roxie perf send_lat -d eth0              # server\n" +
			"  roxie perf send_lat -d eth0 192.0.2.1    # client",
	}
	for _, t := range perf.Tests() {
		c.AddCommand(newPerfTest(t))
	}
	c.AddCommand(newSRPCommand(), newRTRSCommand())
	return c
}

func newPerfTest(t perf.Test) *cobra.Command {
	f := perfFlags{Config: perf.Config{Test: t}}
	kind := "bandwidth"
	if t.Latency {
		kind = "latency"
	}
	c := &cobra.Command{
		Use:     t.Name + " [SERVER]",
		Aliases: []string{"ib_" + t.Name},
		Short:   fmt.Sprintf("Test %s %s", strings.ReplaceAll(t.Op.String(), "_", " "), kind),
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.Server = args[0]
			}
			return f.run(c)
		},
	}
	f.declare(c)
	return c
}

// declare declares the flags. Those of perftest have its letters and names.
func (f *perfFlags) declare(c *cobra.Command) {
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.Interface, "ib-dev", "d", "", "network `interface` to use")
	fs.IntVarP(&f.GIDIndex, "gid-index", "x", -1, "GID `index`; -1: the first IPv4 address")
	fs.IntVarP(&f.Size, "size", "s", 0, "message size in `bytes` (bandwidth 65536, latency 2)")
	fs.BoolVarP(&f.All, "all", "a", false, "all message sizes from 2 to 2^23")
	fs.IntVarP(&f.Iters, "iters", "n", 0, "messages of each QP and size (write_bw 5000, others "+
		"1000)")
	fs.Float64VarP(&f.seconds, "duration", "D", 0, "run for so many `seconds` instead")
	fs.IntVarP(&f.PMTU, "mtu", "m", 0, "path MTU, 256 to 4096 (the largest that fits the link)")
	fs.StringVarP((*string)(&f.Transport), "connection", "c", "RC", "transport `type`: RC, UC, UD")
	fs.IntVarP(&f.QPs, "qp", "q", 1, "number of QPs (bandwidth)")
	fs.IntVarP(&f.TXDepth, "tx-depth", "t", perf.DefaultTXDepth, "size of the send queue")
	fs.IntVarP(&f.RXDepth, "rx-depth", "r", perf.DefaultRXDepth, "receives kept posted (SEND)")
	fs.IntVarP(&f.CQMod, "cq-mod", "Q", perf.DefaultCQMod, "one completion for so many messages "+
		"(bandwidth)")
	fs.IntVarP(&f.Inline, "inline_size", "I", 0,
		"send messages up to so many `bytes` inline; -1: none (latency 220 WRITE, 236 SEND, 188 "+
			"UD)")
	fs.IntVar(&f.Inline, "inline", 0, "the same as --inline_size")
	fs.IntVarP(&f.Timeout, "qp-timeout", "u", 0, "ACK timeout, 4.096 µs × 2^`n` (14: 67 ms)")
	fs.BoolVarP(&f.Bidirectional, "bidirectional", "b", false, "both ends send at a time (bandwidth)")
	fs.BoolVarP(&f.CM, "rdma_cm", "R", false, "connect the QPs by RDMA-CM")
	fs.BoolVarP(&f.Events, "events", "e", false, "sleep until completions come")
	fs.IntVarP(&f.Port, "port", "p", perf.DefaultPort, "TCP `port` to meet at")
	fs.BoolP("CPU-freq", "F", false, "accepted for perftest's sake: CPU frequencies are not "+
		"looked at")
	fs.StringVar((*string)(&f.Progress), "progress", "",
		"`who` moves packets: caller, or poller, a thread of its own (latency caller, bandwidth "+
			"poller)")
	fs.IntVar(&f.VLAN, "vlan", 0, "802.1Q tag of all traffic, 1 to 4094; 0: none")
	fs.IntVar(&f.Queues, "queues", 1, "queues of the interface to use; with --lab it gets as many")
	fs.StringVar(&f.Mode, "xdp", "auto", "XDP `mode`: auto, native, generic")
	fs.IntVar(&f.CPU, "cpu", -1, "`CPU` that moves the packets of the first queue, in a lab the "+
		"server's; -1: any")
	f.json.declare(fs, "the result")
	fs.BoolVar(&f.Verify, "verify", false, "compare every byte on the side that receives it")
	fs.IntVar(&f.Inject, "verify-inject", 0, "flip `n` bytes after arrival: the run must fail")
	fs.StringVar(&f.Capture, "pcap", "", "write all packets, both directions, to this pcapng "+
		"`file`")
	fs.StringVar(&f.Control, "control", "", "make a control socket at this `path`, for roxie top, stat and dump")
	fs.BoolVar(&f.lab, "lab", false, "run both ends here, in network namespaces made for it")
	fs.IntVar(&f.labConfig.MTU, "link-mtu", 9000, "MTU of the lab's link in `bytes`")
	fs.StringVar(&f.cpuProfile, "cpuprofile", "", "write this end's CPU profile to a `file`")
	_ = fs.MarkHidden("cpuprofile")
}

// check looks at what concerns the flags only; the rest is up to perf.
func (f *perfFlags) check(c *cobra.Command) error {
	switch {
	case f.lab && f.Server != "":
		return usagef("--lab runs both ends: leave the server's address out")
	case f.lab && f.Interface != "":
		return usagef("--lab makes an interface of its own: leave -d out")
	case !f.lab && c.Flags().Changed("link-mtu"):
		return usagef("--link-mtu is the MTU of a lab: give --lab as well")
	case !f.lab && f.Interface == "":
		return usagef("which interface? give it with -d%s", interfaceHint())
	}
	if err := refuseZeros(c); err != nil {
		return err
	}
	if err := f.labConfig.Check(); err != nil {
		return &usageError{err}
	}
	if c.Flags().Changed("duration") && !(f.seconds >= 1e-6 && f.seconds <= 1e6) {
		return usagef("-D %v is out of range, 10^-6 to 10^6 seconds", f.seconds)
	}
	f.Duration = time.Duration(f.seconds * float64(time.Second))
	if err := f.Config.Check(); err != nil {
		return &usageError{err}
	}
	return nil
}

// refuseZeros refuses a 0 that was typed where it means the default to perf.Config.
func refuseZeros(c *cobra.Command) error {
	for _, name := range []string{"size", "iters", "mtu", "qp", "tx-depth", "rx-depth", "cq-mod",
		"qp-timeout", "port", "queues", "link-mtu"} {
		if f := c.Flags().Lookup(name); f.Changed && f.Value.String() == "0" {
			dashed := "--" + name
			if f.Shorthand != "" {
				dashed = "-" + f.Shorthand
			}
			return usagef("%s 0: give what you mean, or leave it out", dashed)
		}
	}
	return nil
}

func (f *perfFlags) run(c *cobra.Command) error {
	if err := f.check(c); err != nil {
		return err
	}
	ctx, out := c.Context(), c.OutOrStdout()
	p := &perfPrinter{out: out, test: f.Test, line: newStatusLine(c.ErrOrStderr())}
	var results []perf.Result
	var err error
	if f.lab {
		results, err = f.runLab(ctx, p)
	} else {
		results, err = f.runHere(ctx, p)
	}
	p.line.clear()
	if err == nil && p.err != nil {
		err = p.err
	}
	return f.finish(out, results, err)
}

// finish prints what stands below the table and decides whether the run was a success.
func (f *perfFlags) finish(out io.Writer, results []perf.Result, err error) error {
	if err != nil {
		var unreached interface{ Addr() netip.AddrPort }
		if errors.As(err, &unreached) {
			err = explainConnect(err, unreached.Addr(), "the same command without an address")
		}
		return fmt.Errorf("%s: %w", f.Test.Name, interrupted(err))
	}
	if err := perf.WriteEnd(out, results); err != nil {
		return err
	}
	toJSON := func(w io.Writer) error { return perf.WriteJSON(w, results, f.All) }
	if err := f.json.writeBy(toJSON); err != nil {
		return err
	}
	for i := range results {
		if err := results[i].Err(); err != nil {
			return err
		}
	}
	return nil
}

// interrupted names a run that ended because the user wanted it to.
func interrupted(err error) error {
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

// waitingBanner is what perftest's servers print, for who watches out for it.
const waitingBanner = "\n************************************\n* Waiting for client to connect... *\n" +
	"************************************\n"

func (f *perfFlags) runHere(ctx context.Context, p *perfPrinter) ([]perf.Result, error) {
	if f.cpuProfile != "" {
		stop, err := profile(f.cpuProfile)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	hooks := p.hooks()
	hooks.Ready = func(net.Addr) {
		_, err := io.WriteString(p.out, waitingBanner)
		p.note(err)
	}
	if f.Server == "" {
		hooks.Progress = nil
	}
	return perf.Run(ctx, f.Config, hooks)
}

// runLab makes a lab, runs both ends in it, and takes it down whatever happens.
func (f *perfFlags) runLab(ctx context.Context, p *perfPrinter) (_ []perf.Result, err error) {
	f.labConfig.Queues = f.Queues
	l, err := openLab(f.labConfig)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	pair := perf.Pair{Lab: l, Profile: f.cpuProfile}
	if f.CPU >= 0 {
		pair.CPUs = &[2]int{f.CPU, (f.CPU + f.Queues) % runtime.NumCPU()}
	}
	return pair.Run(ctx, f.Config, p.hooks())
}

// openLab makes a lab of this process, after taking away those of processes that were killed.
func openLab(cfg lab.Config) (*lab.Lab, error) {
	stale, err := lab.Stale()
	if err != nil {
		return nil, err
	}
	for _, name := range stale {
		if err := lab.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("take down %s, whose process is dead: %w", name, err)
		}
	}
	return lab.New(cfg)
}

// profile starts a CPU profile.
func profile(name string) (stop func(), err error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}

// newPerfEndCommand is one end of a lab's pair, see perf.Child.
func newPerfEndCommand() *cobra.Command {
	var cpuProfile string
	c := &cobra.Command{
		Use:    perf.ChildCommand,
		Short:  "One end of perf --lab",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if cpuProfile != "" {
				stop, err := profile(cpuProfile)
				if err != nil {
					return err
				}
				defer stop()
			}
			return perf.Child(c.Context(), c.InOrStdin(), c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&cpuProfile, "cpuprofile", "", "write a CPU profile to a `file`")
	return c
}
