package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/srpload"
)

// This file measures hardware keys: what a check costs, how many registrations and invalidations a
// core executes, and what they leave of a storage load. Of all times the best of many short
// stretches counts: what is best repeats, what is typical depends on what else the machine does.

// Keys is what KeysRun measured.
type Keys struct {
	// CheckNs is the time of one check in ns: always of one key ("1"), of 1024 keys allocated one after
	// the other in a table of 2^20-1 ("1k_hot"), of 1024 far from each other, each on pages of its
	// own ("1k_far"), of any of all ("1m_random"). The keys of the first three are known ahead, as
	// those of packets are, so that the processor overlaps checks. The last is chained: each key is
	// found in the view that the check before returned.
	CheckNs map[string]float64 `json:"check_ns"`
	// ChaseNs is the bare loop that 1m_random is compared with, chained like it: from a key to its
	// entry to its view to the next key, two dependent loads and nothing else.
	ChaseNs float64 `json:"chase_ns"`
	// RegInv are pairs of REG_MR and LOCAL_INV, from post to completion, on one core without a wire.
	RegInv float64 `json:"reg_inv_pairs_per_s"`
	// SRPOverPersistent is the rate of I/Os with a new list and key for each, over the one with keys
	// that stay, on the laboratory's veth pair.
	SRPOverPersistent float64 `json:"srp_over_persistent"`
	// RegMR are calls of RegMR and Dereg, one after the other.
	RegMR         float64 `json:"regmr_per_s"`
	AllocsPerPair float64 `json:"allocs_per_pair"`

	RandomOverChase float64     `json:"random_over_chase"`
	Independent     Independent `json:"independent"`
	Storm           Storm       `json:"storm"`
	RegInvMapped    float64     `json:"reg_inv_mapped_pairs_per_s"` // with MapSG of 16 pieces before each
	SRP             StorageLoad `json:"srp"`
	SRP4K           StorageLoad `json:"srp_4k"` // every I/O of 4 KiB

	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Kernel  string    `json:"kernel"`
	CPU     string    `json:"cpu"`
	Cores   int       `json:"cores"`
}

// Independent is the random check with keys known ahead, and the bare loads for the same keys. The
// processor overlaps iterations, as many as fit into its window: the loop that does less for a key
// gets more of them in.
type Independent struct {
	Random float64 `json:"1m_random_ns"`
	Loads  float64 `json:"loads_ns"`
}

// Storm is the check of 1024 keys while another shard, on another core, registers and
// invalidates another key without pause. For comparison: Spin, while the other core counts in 4 KiB
// of its own, and Busy, while it registers and invalidates in a table of its own: then only the
// machine is shared. A batch between two quiescent points has 2048 checks, which take a quarter of
// the time of 64 packets, and the quiescent point counts.
type Storm struct {
	Calm    float64 `json:"calm_ns"`
	Spin    float64 `json:"spin_ns"`
	Busy    float64 `json:"busy_ns"`
	Storm   float64 `json:"storm_ns"`
	Machine float64 `json:"spin_over_calm"`
	Ratio   float64 `json:"storm_over_calm"`
	Alone   float64 `json:"storm_over_busy"`
	Pairs   float64 `json:"pairs_per_s"` // of the storm
}

// StorageLoad is a storage load with registrations and without.
type StorageLoad struct {
	IOPS       float64 `json:"iops"`
	Persistent float64 `json:"persistent_iops"`
	Ratio      float64 `json:"ratio"`
	RegsPerS   float64 `json:"regs_per_s"`
	Verified   uint64  `json:"verified_bytes"`
}

// KeysOptions say how to measure.
type KeysOptions struct {
	Quick bool     // fewer and shorter rounds, for tests
	Lab   *lab.Lab // to measure in; nil: no storage load
	Exe   string   // the roxie program, empty for the one that is running
	Step  func(text string)
}

// KeysRun measures.
func KeysRun(ctx context.Context, o KeysOptions) (*Keys, error) {
	k := &Keys{CheckNs: map[string]float64{}, Started: time.Now()}
	var r Report
	describeMachine(&r)
	k.Kernel, k.CPU, k.Cores = r.Kernel, r.CPU, r.Cores
	tell := func(text string) {
		if o.Step != nil {
			o.Step(text)
		}
	}
	rounds := 5
	if o.Quick {
		rounds = 1
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"key checks", func() error { return k.checks(rounds, tableKeys(o.Quick)) }},
		{"registrations by work requests", func() error { return k.pairs(rounds) }},
		{"registrations by calls", func() error { return k.calls(rounds) }},
		{"storage load", func() error { return k.storage(ctx, &o) }},
	} {
		tell(step.name)
		if err := step.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	k.Seconds = time.Since(k.Started).Seconds()
	return k, nil
}

// keysTime is how long KeysRun may take, on a machine that is busy with other things, too: it does
// fewer rounds of the storage load then.
const keysTime = 80 * time.Second

// storage runs the loads in turns.
func (k *Keys) storage(ctx context.Context, o *KeysOptions) error {
	if o.Lab == nil {
		return nil
	}
	rounds, duration := 5, 800*time.Millisecond
	if o.Quick {
		rounds, duration = 1, 200*time.Millisecond
	}
	p := srpload.Pair{Lab: o.Lab, Exe: o.Exe}
	for range rounds {
		start := time.Now()
		for n := range 4 {
			cfg := srpload.Config{Persistent: n%2 == 1, Duration: duration, GIDIndex: -1}
			load := &k.SRP
			if n >= 2 {
				cfg.Size, load = 4096, &k.SRP4K
			}
			if err := load.run(ctx, &p, cfg); err != nil {
				return err
			}
		}
		if time.Since(k.Started)+time.Since(start) > keysTime {
			break
		}
	}
	k.SRPOverPersistent = k.SRP.Ratio
	return nil
}

// run runs one load and keeps what is better.
func (s *StorageLoad) run(ctx context.Context, p *srpload.Pair, cfg srpload.Config) error {
	r, err := p.Run(ctx, cfg)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return err
	}
	s.Verified += r.Verified
	if cfg.Persistent {
		s.Persistent = max(s.Persistent, r.IOPS)
	} else if r.IOPS > s.IOPS {
		s.IOPS, s.RegsPerS = r.IOPS, r.RegsPerS
	}
	if s.Persistent > 0 {
		s.Ratio = s.IOPS / s.Persistent
	}
	return nil
}

// stretches runs f over n items in stretches, and returns the ns of an item in the best one. Each
// stretch begins where the one before ended.
func stretches(n, stretch int, f func(from, to int)) float64 {
	best := math.Inf(1)
	for at := 0; at+stretch <= n; at += stretch {
		start := time.Now()
		f(at, at+stretch)
		best = min(best, float64(time.Since(start).Nanoseconds())/float64(stretch))
	}
	return best
}

// lower keeps the least.
func lower(to *float64, v float64) {
	if *to == 0 || v < *to {
		*to = v
	}
}

// WriteJSON writes the figures as JSON.
func (k *Keys) WriteJSON(w io.Writer) error {
	b, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Write prints the figures.
func (k *Keys) Write(w io.Writer) error {
	var b strings.Builder
	row := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-44s %s\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "Key check, best of many stretches\n")
	row("one key", "%8.2f ns", k.CheckNs["1"])
	row("1024 keys in a table of 2^20-1", "%8.2f ns; far from each other %.2f ns", k.CheckNs["1k_hot"],
		k.CheckNs["1k_far"])
	row("any of 2^20-1, each found by the one before", "%8.1f ns; two dependent loads %.1f ns: %.2f",
		k.CheckNs["1m_random"], k.ChaseNs, k.RandomOverChase)
	row("any of 2^20-1, known ahead and overlapped", "%8.1f ns; two loads %.1f ns",
		k.Independent.Random, k.Independent.Loads)
	row("1024 keys in a storm of invalidations",
		"%8.2f ns; calm %.2f, other core counting %.2f, storming elsewhere %.2f; %.2f M pairs/s",
		k.Storm.Storm, k.Storm.Calm, k.Storm.Spin, k.Storm.Busy, k.Storm.Pairs/1e6)
	fmt.Fprintf(&b, "Registrations\n")
	row("REG_MR and LOCAL_INV, engine alone, one core",
		"%8.2f M pairs/s, mapped anew %.2f M, %.2f allocations", k.RegInv/1e6, k.RegInvMapped/1e6,
		k.AllocsPerPair)
	row("RegMR and Dereg", "%8.2f M pairs/s", k.RegMR/1e6)
	for _, s := range []struct {
		name string
		load *StorageLoad
	}{{"SRP, 512 B to 1 MiB", &k.SRP}, {"SRP, 4 KiB", &k.SRP4K}} {
		if s.load.Persistent > 0 {
			row(s.name, "%8.0f I/Os/s, fixed registrations %.0f: %.2f", s.load.IOPS, s.load.Persistent,
				s.load.Ratio)
		}
	}
	fmt.Fprintf(&b, "%d cores, %s, Linux %s, %s; %.0f s\n", k.Cores, k.CPU, k.Kernel,
		runtime.Version(), k.Seconds)
	_, err := io.WriteString(w, b.String())
	return err
}
