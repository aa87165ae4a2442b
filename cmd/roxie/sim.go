package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/sim/soak"
)

// simOptions are the flags of roxie sim.
type simOptions struct {
	soak.Options
	runs    int
	jobs    int
	seconds float64
	json    jsonOutput
	script  string
	pcap    string
	mutant  string
	list    bool
}

func newSimCommand() *cobra.Command {
	var o simOptions
	c := &cobra.Command{
		Use:   "sim",
		Short: "Simulate the engine under every fault and check all that comes out",
		Long: "sim lets engines talk on a simulated wire with a clock of its own: random work over " +
			"all operations,\nfaults of frames, cut paths, sleeping shards, full rings, attacks with " +
			"stale keys. Memory is checked\nbyte by byte, completions, order and frames one by one. " +
			"The seed decides everything; run i has\nseed N+i. The exit code is 1 if anything was " +
			"wrong, and the command that repeats it is printed.\n\n" +
			"A script says which frames meet a fault and when something goes wrong for a while, " +
			"instead of random\ntroubles (see package rxe/sim, ParseFaults); a conversation, with " +
			"lines of four dashes, is run and\ncompared with what it says.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.list {
				return listMutants(c.OutOrStdout())
			}
			return runSim(c.Context(), c.OutOrStdout(), newStatusLine(c.ErrOrStderr()), &o)
		},
	}
	d, f := soak.DefaultFaults, c.Flags()
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the first run")
	f.IntVar(&o.runs, "runs", soak.DefaultRuns, "number of runs")
	f.Uint64Var(&o.Packets, "packets", soak.DefaultPackets, "packets of each run")
	f.Float64Var(&o.Faults.Drop, "drop", d.Drop, "probability that a frame is lost")
	f.Float64Var(&o.Faults.Duplicate, "dup", d.Duplicate, "probability that it comes twice")
	f.Float64Var(&o.Faults.Reorder, "reorder", d.Reorder, "probability that others overtake it")
	f.Float64Var(&o.Faults.Corrupt, "corrupt", d.Corrupt, "probability that a bit flips")
	f.Float64Var(&o.Faults.Truncate, "truncate", 0, "probability that it is cut")
	f.Float64Var(&o.Faults.Delay, "delay", d.Delay, "probability that it and those behind are late")
	f.BoolVar(&o.Calm, "calm", false, "no troubles beyond the faults of frames")
	f.Float64Var(&o.seconds, "duration", 0, "run for so many seconds instead of a number of runs")
	f.IntVar(&o.jobs, "jobs", 1, "runs at a time; 0: one a core")
	o.json.declare(f, "the sums over all runs")
	f.StringVar(&o.script, "script", "", "faults at given frames and times, or a conversation")
	f.StringVar(&o.pcap, "pcap", "", "write all frames to this file (pcapng)")
	f.StringVar(&o.mutant, "mutant", "", "switch a planted bug on: exit code 1 if it is caught, 0 if not")
	f.BoolVar(&o.list, "list-mutants", false, "list the planted bugs")
	return c
}

const noMutants = "this binary has no planted bugs: go build -tags mutants ./cmd/roxie"

func listMutants(out io.Writer) error {
	list := soak.Mutants()
	if len(list) == 0 {
		return usagef(noMutants)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range list {
		fmt.Fprintf(w, "%s\t%s\n", m.Name, m.About)
	}
	return w.Flush()
}

// check refuses flags that make no sense, and reads the script.
func (o *simOptions) check() error {
	x := &o.Faults
	for _, p := range []float64{x.Drop, x.Duplicate, x.Reorder, x.Corrupt, x.Truncate, x.Delay} {
		if !(p >= 0 && p <= 1) {
			return usagef("%v is no probability: 0 to 1", p)
		}
	}
	switch {
	case o.runs < 1 || o.Packets < 1 || o.jobs < 0 || o.seconds < 0:
		return usagef("--runs %d, --packets %d, --jobs %d, --duration %v: out of range", o.runs, o.Packets,
			o.jobs, o.seconds)
	case o.mutant != "" && len(soak.Mutants()) == 0:
		return usagef(noMutants)
	case !soak.Plant(o.mutant):
		return usagef("no planted bug is called %q: see --list-mutants", o.mutant)
	}
	if o.jobs == 0 {
		o.jobs = runtime.GOMAXPROCS(0)
	}
	if o.mutant != "" || o.pcap != "" || o.script != "" {
		o.jobs = 1 // they have one state for all
	}
	return nil
}

func runSim(ctx context.Context, out io.Writer, line *statusLine, o *simOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.script != "" {
		text, err := os.ReadFile(o.script)
		if err != nil {
			return err
		}
		if isConversation(string(text)) {
			return runConversation(out, o, string(text))
		}
		if o.Script, err = sim.ParseFaults(string(text)); err != nil {
			return fmt.Errorf("%s: %w", o.script, err)
		}
	}
	tape, err := newTape(o.pcap)
	if err != nil {
		return err
	}
	s := simulation{o: o, line: line, start: time.Now(), tape: tape}
	s.run(ctx)
	line.clear()
	err = errors.Join(tape.close(), s.report(out))
	if err == nil && ctx.Err() != nil {
		err = interrupted(ctx.Err())
	}
	if err == nil && len(s.total.Violations) > 0 {
		err = exitStatus(exitFailure)
	}
	return err
}

// simulation is a number of runs, added up in the order of their seeds.
type simulation struct {
	o     *simOptions
	line  *statusLine
	start time.Time
	took  time.Duration
	tape  *tape
	runs  int
	total soak.Result
	trace [sha256.Size]byte // over those of all runs so far
}

// run does --jobs runs at a time until there are enough, or one finds something.
func (s *simulation) run(ctx context.Context) {
	results := make([]soak.Result, s.o.jobs)
	scratch := make([]soak.Scratch, s.o.jobs)
	for ctx.Err() == nil && len(s.total.Violations) == 0 {
		n := len(results)
		if s.o.seconds == 0 {
			n = min(n, s.o.runs-s.runs)
		} else if time.Since(s.start).Seconds() >= s.o.seconds {
			n = 0
		}
		if n == 0 {
			break
		}
		var wait sync.WaitGroup
		for i := range n {
			o := s.o.Options
			o.Seed += uint64(s.runs + i)
			o.Scratch = &scratch[i]
			if s.tape != nil {
				o.Tap = s.tape.frame
			}
			wait.Go(func() { results[i] = soak.Run(o) })
		}
		wait.Wait()
		for i := range n {
			s.add(&results[i])
		}
	}
	s.took = time.Since(s.start)
}

func (s *simulation) add(r *soak.Result) {
	s.runs++
	s.total.Add(r)
	s.trace = sha256.Sum256(append(s.trace[:], r.Trace[:]...))
	if s.tape != nil {
		s.tape.base += r.Until
	}
	if s.runs%4 == 0 || s.o.Packets > 100_000 {
		s.line.set(fmt.Sprintf("sim: seed %d, %.1f million packets", s.o.Seed+uint64(s.runs)-1,
			float64(s.total.Packets)/1e6))
	}
}

// simReport is the JSON output: sums over all runs.
type simReport struct {
	Seed             uint64            `json:"seed"`
	Runs             int               `json:"runs"`
	Seconds          float64           `json:"seconds"`
	Packets          uint64            `json:"packets"`
	Delivered        uint64            `json:"delivered"`
	Dropped          uint64            `json:"dropped"`
	Duplicated       uint64            `json:"duplicated"`
	Reordered        uint64            `json:"reordered"`
	Corrupted        uint64            `json:"corrupted"`
	Truncated        uint64            `json:"truncated"`
	Delayed          uint64            `json:"delayed"`
	Flooded          uint64            `json:"flooded"`
	Overflows        uint64            `json:"overflows"`
	Loopbacks        uint64            `json:"loopbacks"`
	Retransmits      uint64            `json:"retransmits"`
	Timeouts         uint64            `json:"timeouts"`
	RNRNAKs          uint64            `json:"rnr_naks"`
	GraceStalls      uint64            `json:"grace_stalls"`
	OpsByKind        map[string]uint64 `json:"ops_by_kind"`
	Attacks          uint64            `json:"attacks"`
	Renewals         uint64            `json:"renewals"`
	Grants           uint64            `json:"grants"`
	Violations       int               `json:"violations"`
	Failures         []string          `json:"failures"`
	TraceSHA256      string            `json:"trace_sha256"`
	PacketsPerSecond float64           `json:"packets_per_second"`
}

func (s *simulation) figures() *simReport {
	t, c := &s.total, &s.total.Counters
	r := &simReport{
		Seed: s.o.Seed, Runs: s.runs, Seconds: s.took.Seconds(), Packets: t.Packets,
		Delivered: t.Delivered, Dropped: t.Dropped, Duplicated: t.Duplicated, Reordered: t.Reordered,
		Corrupted: t.Corrupted, Truncated: t.Truncated, Delayed: t.Delayed, Flooded: t.Flooded,
		Overflows: t.Overflows, Loopbacks: c.Loopbacks, Retransmits: c.Retransmits,
		Timeouts: c.Timeouts, RNRNAKs: c.SendRNRErr, GraceStalls: c.GraceStalls,
		OpsByKind: map[string]uint64{}, Attacks: t.Attacks, Renewals: t.Renewals, Grants: t.Grants,
		Violations: len(t.Violations), Failures: []string{}, TraceSHA256: hex.EncodeToString(s.trace[:]),
		PacketsPerSecond: float64(t.Packets) / s.took.Seconds(),
	}
	for k, n := range t.Ops {
		r.OpsByKind[soak.Kind(k).String()] = n
	}
	for _, v := range t.Violations {
		r.Failures = append(r.Failures, v.String())
	}
	return r
}

// report prints the sums, and what was wrong with the command that repeats it.
func (s *simulation) report(out io.Writer) error {
	r := s.figures()
	fmt.Fprintf(out, "%d runs from seed %d, %d packets, %.0f a second\n", r.Runs, r.Seed, r.Packets,
		r.PacketsPerSecond)
	fmt.Fprintf(out, "faults: %d dropped, %d duplicated, %d reordered, %d corrupted, %d truncated, "+
		"%d delayed\n", r.Dropped, r.Duplicated, r.Reordered, r.Corrupted, r.Truncated, r.Delayed)
	fmt.Fprintf(out, "answers: %d retransmits, %d timeouts, %d RNR NAKs, %d completions held for grace\n",
		r.Retransmits, r.Timeouts, r.RNRNAKs, r.GraceStalls)
	fmt.Fprintf(out, "keys: %d grants, %d attacks repelled, %d connections made anew\n", r.Grants,
		r.Attacks, r.Renewals)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for k, n := range s.total.Ops {
		fmt.Fprintf(w, "  %v\t%d", soak.Kind(k), n)
		if k%4 == 3 || k == len(s.total.Ops)-1 {
			fmt.Fprintln(w)
		} else {
			fmt.Fprint(w, "\t")
		}
	}
	err := w.Flush()
	fmt.Fprintf(out, "trace %s\n", r.TraceSHA256)
	for _, v := range s.total.Violations {
		fmt.Fprintf(out, "violation: %v\n", v)
	}
	if n := len(s.total.Violations); n > 0 {
		fmt.Fprintf(out, "again: %s\n", s.o.again(s.total.Violations[0].Seed))
	}
	return errors.Join(err, s.o.json.write(r))
}

// again is the command that repeats the run of one seed.
func (o *simOptions) again(seed uint64) string {
	x := &o.Faults
	s := fmt.Sprintf("roxie sim --seed %d --runs 1 --packets %d --drop %v --dup %v --reorder %v "+
		"--corrupt %v --delay %v", seed, o.Packets, x.Drop, x.Duplicate, x.Reorder, x.Corrupt, x.Delay)
	if x.Truncate != 0 {
		s += fmt.Sprintf(" --truncate %v", x.Truncate)
	}
	if o.Calm {
		s += " --calm"
	}
	if o.script != "" {
		s += " --script " + o.script
	}
	if o.mutant != "" {
		s += " --mutant " + o.mutant
	}
	return s
}

// tape writes frames to a pcapng file. Its clock is the simulation's; runs stand one behind the other.
type tape struct {
	file *os.File
	out  *pcapgo.NgWriter
	base rxe.Time
	err  error // the first
}

// newTape returns nil for no file.
func newTape(name string) (*tape, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	w, err := pcapgo.NewNgWriterInterface(f, pcapgo.NgInterface{Name: "sim", LinkType: layers.LinkTypeEthernet},
		pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "roxie"}})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &tape{file: f, out: w}, nil
}

func (t *tape) frame(now rxe.Time, _, _ *sim.Node, b []byte) {
	info := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(t.base+now)), CaptureLength: len(b),
		Length: len(b)}
	if err := t.out.WritePacket(info, b); err != nil && t.err == nil {
		t.err = err
	}
}

func (t *tape) close() error {
	if t == nil {
		return nil
	}
	return errors.Join(t.err, t.out.Flush(), t.file.Close())
}

// isConversation tells a conversation by its lines of dashes.
func isConversation(text string) bool { return strings.Contains("\n"+text, "\n----\n") }

// runConversation runs a conversation, prints what came of it, and compares it with what it says.
func runConversation(out io.Writer, o *simOptions, text string) error {
	tape, err := newTape(o.pcap)
	if err != nil {
		return err
	}
	var c sim.ScriptConfig
	if tape != nil {
		c.Tap = func(now rxe.Time, b []byte) { tape.frame(now, nil, nil, b) }
	}
	got, err := sim.RunScript(text, c)
	if err = errors.Join(err, tape.close()); err != nil {
		return fmt.Errorf("%s: %w", o.script, err)
	}
	fmt.Fprint(out, got)
	if got != text {
		return fmt.Errorf("%s: the conversation went another way than it says", o.script)
	}
	return nil
}
