package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/verbs/observe"
)

// topFlags are the command line of `roxie top`.
type topFlags struct {
	socket   string
	interval time.Duration
	count    int
	sort     string
	reverse  bool
	rows     int
	json     bool
}

func newTopCommand() *cobra.Command {
	f := topFlags{}
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch the QPs and regions of a running endpoint",
		Long: "top shows, every second, what each QP of a running endpoint sends and receives, how much is in\n" +
			"flight, what was sent again, and why it failed; and the regions that peers can reach.\n" +
			"--json measures once and prints it for programs.",
		Example: "  roxie top\n  roxie top --sort retrans -n 1\n  roxie top --json | jq '.devices[].qps[] | select(.state==\"ERR\")'",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.SortFlags = false
	controlFlag(c, &f.socket)
	fs.DurationVarP(&f.interval, "interval", "i", time.Second, "`time` that a rate is measured over, 10ms or more")
	fs.IntVarP(&f.count, "count", "n", 0, "show so many `tables`, then end; 0: until Ctrl-C")
	fs.StringVarP(&f.sort, "sort", "s", "rate", "`column` to sort by: "+sortNames())
	fs.BoolVarP(&f.reverse, "reverse", "r", false, "the other way round")
	fs.IntVar(&f.rows, "rows", 0, "show at most so many `QPs` and regions (0: what the terminal holds)")
	fs.BoolVar(&f.json, "json", false, "measure once, print JSON")
	return c
}

// controlFlag declares where the control socket is.
func controlFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "control", observe.DefaultPath, "`path` of the endpoint's control socket")
}

func (f *topFlags) check() error {
	switch {
	case f.interval < 10*time.Millisecond:
		return usagef("--interval %v: give 10ms or more", f.interval)
	case f.count < 0 || f.rows < 0:
		return usagef("-n and --rows count: give 0 or more")
	case topSorts[f.sort] == nil:
		return usagef("--sort %s: want one of %s", f.sort, sortNames())
	}
	return nil
}

func (f *topFlags) run(c *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx, client := c.Context(), observe.NewClient(f.socket)
	before, err := client.State(ctx)
	if err != nil {
		return err
	}
	out, screen := c.OutOrStdout(), terminal(c.OutOrStdout())
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
		after, err := client.State(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		t := compare(&before, &after, topSorts[f.sort], f.reverse)
		if f.json {
			e := json.NewEncoder(out)
			e.SetIndent("", "  ")
			return e.Encode(t)
		}
		if err := f.show(out, t, screen); err != nil {
			return err
		}
		if n == f.count {
			return nil
		}
		before = after
	}
}

// show prints a table, on a terminal in the place of the one before.
func (f *topFlags) show(out io.Writer, t *topTable, screen *os.File) error {
	rows := f.rows
	if screen != nil && f.count != 1 {
		if _, err := io.WriteString(out, "\x1b[H\x1b[2J"); err != nil {
			return err
		}
		if size, err := unix.IoctlGetWinsize(int(screen.Fd()), unix.TIOCGWINSZ); err == nil && rows == 0 {
			rows = max(4, (int(size.Row)-6)/2)
		}
	}
	return t.write(out, rows)
}

// terminal is the file behind a writer if it is a terminal, else nil.
func terminal(w io.Writer) *os.File {
	file, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return file
}

// newDumpCommand is `roxie dump`.
func newDumpCommand() *cobra.Command {
	var socket, device string
	var asJSON bool
	c := &cobra.Command{
		Use:   "dump QPN",
		Short: "Print all that a running endpoint knows of a QP",
		Long: "dump prints the state of one QP as a maintainer needs it: attributes, PSNs, windows, timers, queue\n" +
			"positions, retries left, counters and the last error. It does not disturb the QP.",
		Example: "  roxie dump 0x11",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			qpn, err := strconv.ParseUint(args[0], 0, 24)
			if err != nil {
				return usagef("%s is no QPN: give a number of 24 bits, as 0x11 or 17", args[0])
			}
			text, err := observe.NewClient(socket).Dump(c.Context(), uint32(qpn), device, asJSON)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	controlFlag(c, &socket)
	c.Flags().StringVarP(&device, "ib-dev", "d", "", "network `interface`, if the endpoint has several")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// newStatCommand is `roxie stat`.
func newStatCommand() *cobra.Command {
	var socket string
	var asJSON, metrics bool
	c := &cobra.Command{
		Use:   "stat",
		Short: "Print the counters of a running endpoint",
		Long: "stat prints what a running endpoint has counted since its interfaces were opened: packets, drops by\n" +
			"reason, refused keys, the XDP program's verdicts, the sockets' statistics, and how long work\n" +
			"requests took. Counters that are 0 are left out.",
		Example: "  roxie stat\n  roxie stat --metrics > /var/lib/node_exporter/roxie.prom",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON && metrics {
				return usagef("--json or --metrics: give one of them")
			}
			client := observe.NewClient(socket)
			if metrics {
				text, err := client.Metrics(c.Context())
				if err == nil {
					_, err = c.OutOrStdout().Write(text)
				}
				return err
			}
			s, err := client.State(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			return writeStat(c.OutOrStdout(), &s)
		},
	}
	controlFlag(c, &socket)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&metrics, "metrics", false, "print the metrics as Prometheus reads them")
	return c
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }
