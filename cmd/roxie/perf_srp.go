package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/srpload"
)

// srpFlags are what the command line says about a storage load.
type srpFlags struct {
	srpload.Config
	seconds float64
	no4K    bool
	lab     bool
	linkMTU int
	json    jsonOutput
}

func newSRPCommand() *cobra.Command {
	return newStorageCommand(srpload.SRP, "srp",
		"Storage load: a new list and key for every I/O, as ib_srp",
		"srp plays a storage initiator and its target. Every I/O has memory of its own, of 512\n"+
			"bytes to 1 MiB, in unaligned pieces, registered by REG_MR under a new key, which the\n"+
			"target reads or writes through; LOCAL_INV or the target's SEND_WITH_INV takes it away.\n"+
			"The descriptor is used again at once. Every byte is compared. The server is the target,\n"+
			"the client the initiator.")
}

func newRTRSCommand() *cobra.Command {
	return newStorageCommand(srpload.RTRS, "rtrs",
		"Storage load: lists mapped once, registered for every I/O",
		"rtrs is like srp, but each slot's list is mapped once, and registered and invalidated for ever.")
}

func newStorageCommand(w srpload.Workload, name, short, long string) *cobra.Command {
	f := srpFlags{Config: srpload.Config{Workload: w}}
	c := &cobra.Command{
		Use:   name + " [SERVER]",
		Short: short,
		Long:  long,
		Example: "  roxie perf " + name + " --lab -D 5 --channels 4 --json FILE\n" +
			"  roxie perf " + name + " --lab --persistent    # the same bytes, registered once",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.Server = args[0]
			}
			return f.run(c)
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.Interface, "ib-dev", "d", "", "network `interface` to use")
	fs.IntVarP(&f.GIDIndex, "gid-index", "x", -1, "GID `index`; -1: the first IPv4 address")
	fs.Float64VarP(&f.seconds, "duration", "D", 5, "`seconds` of each load")
	fs.IntVar(&f.Channels, "channels", srpload.DefaultChannels,
		"channels, each a QP with a pool of descriptors")
	fs.IntVar(&f.Depth, "depth", srpload.DefaultDepth, "I/Os outstanding of each channel")
	fs.IntVarP(&f.Size, "size", "s", 0, "`bytes` of every I/O; 0: log-uniform, 512 to 1048576")
	fs.BoolVar(&f.Persistent, "persistent", false,
		"fixed registrations: the same bytes by keys that stay")
	fs.StringVar((*string)(&f.Inv), "invalidate", string(srpload.InvMixed),
		"`who` takes keys away: local (LOCAL_INV), remote (SEND_WITH_INV), mixed")
	fs.BoolVar(&f.no4K, "no-4k", false, "leave out the second load, of 4 KiB for every I/O")
	fs.IntVarP(&f.PMTU, "mtu", "m", 0, "path MTU, 256 to 4096 (the largest that fits the link)")
	fs.StringVar((*string)(&f.Progress), "progress", string(srpload.Caller),
		"`who` moves packets: caller or poller")
	fs.IntVar(&f.Queues, "queues", 1, "queues of the interface to use; with --lab it gets as many")
	fs.IntVar(&f.CPU, "cpu", -1, "`CPU` that moves the packets, of the first queue; -1: any")
	fs.IntVarP(&f.Port, "port", "p", srpload.DefaultPort, "TCP `port` to meet at")
	fs.Uint64Var(&f.Seed, "seed", 1, "`number` that sizes, lists and data follow from")
	f.json.declare(fs, "the result")
	fs.IntVar(&f.Inject, "verify-inject", 0,
		"change `n` bytes before they are compared: the run must fail")
	fs.BoolVar(&f.lab, "lab", false, "run both ends here, in network namespaces made for it")
	fs.IntVar(&f.linkMTU, "link-mtu", 9000, "MTU of the lab's link in `bytes`")
	return c
}

func (f *srpFlags) check(c *cobra.Command) error {
	switch {
	case f.lab && f.Server != "":
		return usagef("--lab runs both ends: leave the server's address out")
	case f.lab && f.Interface != "":
		return usagef("--lab makes an interface of its own: leave -d out")
	case !f.lab && c.Flags().Changed("link-mtu"):
		return usagef("--link-mtu is the MTU of a lab: give --lab as well")
	case !f.lab && f.Interface == "":
		return usagef("which interface? give it with -d%s", interfaceHint())
	case f.seconds <= 0 || f.seconds > 1e6:
		return usagef("-D %v is out of range, above 0 to 10^6 seconds", f.seconds)
	}
	f.Duration = time.Duration(f.seconds * float64(time.Second))
	if err := f.Config.Check(); err != nil {
		return &usageError{err}
	}
	return nil
}

func (f *srpFlags) run(c *cobra.Command) error {
	if err := f.check(c); err != nil {
		return err
	}
	line := newStatusLine(c.ErrOrStderr())
	var r *srpload.Result
	var err error
	if f.lab {
		r, err = f.runLab(c.Context(), line)
	} else {
		r, err = f.runHere(c.Context(), line)
	}
	line.clear()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Workload, interrupted(err))
	}
	return f.finish(c.OutOrStdout(), r)
}

// finish prints and writes the result, which a target has not.
func (f *srpFlags) finish(out io.Writer, r *srpload.Result) error {
	if r == nil {
		return nil
	}
	if err := srpload.Write(out, r); err != nil {
		return err
	}
	if err := f.json.write(r); err != nil {
		return err
	}
	return r.Err()
}

// runHere runs this end. A target serves one initiator after the other, as many as a run has loads.
func (f *srpFlags) runHere(ctx context.Context, line *statusLine) (*srpload.Result, error) {
	return f.loads(line, func(cfg srpload.Config) (*srpload.Result, error) {
		return srpload.Run(ctx, cfg, srpload.Hooks{Ready: func(a net.Addr) {
			line.set(fmt.Sprintf("waiting for an initiator on %v", a))
		}})
	})
}

// runLab makes a lab, runs both ends in it, and takes it down whatever happens.
func (f *srpFlags) runLab(ctx context.Context, line *statusLine) (_ *srpload.Result, err error) {
	l, err := openLab(lab.Config{Queues: f.Queues, MTU: f.linkMTU})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	pair := srpload.Pair{Lab: l}
	return f.loads(line, func(cfg srpload.Config) (*srpload.Result, error) {
		return pair.Run(ctx, cfg)
	})
}

// loads runs the load and then the one of 4 KiB.
func (f *srpFlags) loads(line *statusLine,
	run func(srpload.Config) (*srpload.Result, error)) (*srpload.Result, error) {
	line.set(fmt.Sprintf("%s: %v", f.Workload, f.Duration))
	r, err := run(f.Config)
	if err != nil || f.Size != 0 || f.no4K || r != nil && r.Err() != nil {
		return r, err
	}
	line.set(fmt.Sprintf("%s, 4 KiB: %v", f.Workload, f.Duration))
	cfg := f.Config
	cfg.Size = 4096
	small, err := run(cfg)
	if r != nil {
		r.Size4K = small
	}
	return r, err
}

// newSRPEndCommand is one end of a lab's pair, see srpload.Child.
func newSRPEndCommand() *cobra.Command {
	return &cobra.Command{
		Use:    srpload.ChildCommand,
		Short:  "One end of perf srp --lab",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return srpload.Child(c.Context(), c.InOrStdin(), c.OutOrStdout())
		},
	}
}
