package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/serve"
	"github.com/roxie-rdma/roxie/verbs/capture"
	"github.com/roxie-rdma/roxie/verbs/observe"
)

// captureFlags are the command line of `roxie capture`.
type captureFlags struct {
	capture.Config
	output   string
	iface    string
	ringSize string
	socket   string
	trigger  bool
}

func newCaptureCommand() *cobra.Command {
	f := captureFlags{}
	c := &cobra.Command{
		Use:   "capture -o FILE [FILTER]",
		Short: "Record the packets of a running endpoint, each with what became of it",
		Long: "capture records what a running `roxie serve` receives and sends, without stopping it, as a\n" +
			"pcapng file for Wireshark, tshark and `roxie decode`. The comment of each packet tells its QP and\n" +
			"WQE, whether the ICRC is right, and why it was dropped. Ctrl-C ends it. -o - writes to standard\n" +
			"output. An endpoint that is busier than the file can be written goes on undisturbed: packets that\n" +
			"are missing for that are counted at the end.\n\n" +
			"With --ring the endpoint keeps the last seconds in memory, and writes them when a QP fails, or\n" +
			"when SIGUSR1 or `roxie capture --trigger` tells it to; then the capture ends.\n\n" +
			"A filter is made of:\n\n" + capture.FilterHelp,
		Example: "  roxie capture -o all.pcapng\n" +
			"  roxie capture -o - qp 0x11 and not opcode write | tshark -r -\n" +
			"  roxie capture -o drops.pcapng --duration 10s dropped or again\n" +
			"  roxie capture -o failure.pcapng --ring 10s",
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, strings.Join(args, " ")) },
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.output, "output", "o", "", "`file` to write, - for standard output")
	fs.StringVarP(&f.iface, "ib-dev", "d", "", "network `interface` (default: all of the endpoint)")
	fs.IntVarP(&f.SnapLen, "snaplen", "s", 0, "`bytes` recorded of each packet, 64 or more (default: all)")
	fs.IntVarP(&f.Count, "count", "c", 0, "end after a `number` of packets")
	fs.DurationVar(&f.Duration, "duration", 0, "end after a `time`, as 10s")
	fs.DurationVar(&f.Ring, "ring", 0, "keep the last `time`, as 10s, and write it when a QP fails")
	fs.StringVar(&f.ringSize, "ring-size", "", "memory for that, a `size` (default 64MiB)")
	fs.BoolVar(&f.trigger, "trigger", false, "have the rings of all captures written now, and end")
	fs.StringVar(&f.socket, "control", observe.DefaultPath, "control socket of the endpoint, a `path`")
	return c
}

// client reaches the endpoint.
func (f *captureFlags) client() *capture.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", f.socket)
	}
	return &capture.Client{URL: "http://roxie/capture",
		HTTP: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (f *captureFlags) run(c *cobra.Command, filter string) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	defer cancel()
	if f.trigger {
		for _, other := range []string{"output", "ib-dev", "snaplen", "count", "duration", "ring", "ring-size"} {
			if c.Flags().Changed(other) {
				return usagef("--trigger tells captures that run already: it goes without --%s", other)
			}
		}
		n, err := f.client().Trigger(ctx)
		if err != nil {
			return f.explain(err)
		}
		if n == 0 {
			return errors.New("no capture with --ring runs at this endpoint: start one with " +
				"`roxie capture -o FILE --ring 10s`")
		}
		fmt.Fprintf(c.OutOrStdout(), "%d rings triggered\n", n)
		return nil
	}
	if f.output == "" {
		return usagef("capture needs -o FILE, or -o - for standard output; see %s --help", c.CommandPath())
	}
	f.Filter = filter
	if f.ringSize != "" && f.Ring == 0 {
		return usagef("--ring-size is the memory of --ring: give that too, as --ring 10s")
	}
	if f.ringSize != "" {
		n, err := serve.ParseSize(f.ringSize)
		if err != nil {
			return usagef("--ring-size: %w", err)
		}
		f.RingSize = int(n)
	}
	if err := f.Check(); err != nil {
		return &usageError{err}
	}
	if f.output != "-" {
		release, err := reserve(f.output) // a ring may find only hours later that it cannot be written
		if err != nil {
			return err
		}
		defer release(nil)
	}
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	defer signal.Stop(usr1)
	s, err := f.client().Start(ctx, f.Config, f.iface)
	if err != nil {
		return f.explain(err)
	}
	defer s.Close()
	f.say(c, "capturing: Ctrl-C ends it")
	ended := make(chan struct{})
	defer close(ended)
	go f.steer(c, s, usr1, ended)
	if err := f.write(c.OutOrStdout(), s); err != nil {
		return err
	}
	stats, err := s.Stats()
	f.sum(c, stats)
	return err
}

// steer passes on what signals ask for.
func (f *captureFlags) steer(c *cobra.Command, s *capture.Stream, usr1 <-chan os.Signal, ended <-chan struct{}) {
	ctx := context.WithoutCancel(c.Context())
	end := c.Context().Done()
	for {
		var err error
		select {
		case <-ended:
			return
		case <-usr1:
			err = s.Trigger(ctx)
		case <-end:
			end = nil
			err = s.Stop(ctx)
		}
		if err != nil {
			f.say(c, "%v", err)
		}
	}
}

// write copies the file. It is made when there is something to write: a ring may never be written.
func (f *captureFlags) write(stdout io.Writer, s io.Reader) error {
	in := bufio.NewReaderSize(s, 1<<16)
	if _, err := in.Peek(1); err != nil {
		if err == io.EOF {
			return nil
		}
		return fmt.Errorf("read from the endpoint: %w", err)
	}
	if f.output == "-" {
		_, err := io.Copy(stdout, in)
		return err
	}
	out, err := os.Create(f.output)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// sum tells what the capture did.
func (f *captureFlags) sum(c *cobra.Command, s capture.Stats) {
	switch {
	case s.Trigger != "":
		f.say(c, "triggered: %s", s.Trigger)
		f.say(c, "%d packets of the last %v written to %s", s.Written, s.Span.Round(time.Millisecond), f.output)
	case f.Ring > 0:
		f.say(c, "no QP failed, nothing was written; %d packets came by", s.Seen)
	default:
		f.say(c, "%d packets written to %s, %d came by", s.Written, f.output, s.Seen)
	}
	if s.Lost > 0 {
		f.say(c, "%d packets are missing: writing did not keep up; a filter or --snaplen 128 helps", s.Lost)
	}
	if s.Pushed > 0 {
		f.say(c, "the ring held less than %v: --ring-size makes it larger", f.Ring)
	}
}

// say tells something beside the file.
func (f *captureFlags) say(c *cobra.Command, format string, args ...any) {
	fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...)
}

// explain says what to do when the endpoint cannot be reached.
func (f *captureFlags) explain(err error) error {
	var status *capture.StatusError
	if errors.As(err, &status) {
		return observe.Refusal(f.socket, status.Response, status.Body)
	}
	return observe.Explain(f.socket, err)
}
