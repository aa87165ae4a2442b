package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/rxe"
)

// This file is the guard: a short measurement that fails when something became much slower. It is
// made for machines that do other things at the same time:
//
//   - Only ratios are compared, each over something that is not roxie and is measured beside it: the
//     yardstick and hash/crc32 for the engine, raw AF_XDP for the whole.
//   - The engine is measured in CPU time, in short stretches, of which the best counts.
//   - On the wire a round counts only if raw was not disturbed in it, and the best of each side
//     counts.
//   - What is below its bound is measured again before it fails. More rounds can only raise the best.
//   - The bounds are far away. The guard is for what became twice as slow, not for a few per cent.

//go:embed guard.json
var guardJSON []byte

// Guard is the outcome: the ratios, the more the better, by name.
type Guard struct {
	Ratios map[string]float64 `json:"ratios"`
	// Bounds are the shares of the reference below which a ratio fails.
	EngineBound float64 `json:"engine_bound"`
	WireBound   float64 `json:"wire_bound"`

	inconclusive map[string]bool
}

const (
	engineBound = 0.5
	wireBound   = 0.4

	guardRounds = 30 // stretches of each engine case, first time; then twice as many
	guardAgain  = 5  // how often what is below its bound is measured again
	guardPause  = 500 * time.Millisecond
	wireRounds  = 3
	conclusive  = 3 // rounds that a failure on the wire needs
	wirePrefix  = "wire_"
)

// guardReference is what is committed.
func guardReference() (*Guard, error) {
	var g Guard
	if err := json.Unmarshal(guardJSON, &g); err != nil {
		return nil, fmt.Errorf("read guard.json: %w", err)
	}
	return &g, nil
}

// guardPair is a ratio of the engine: how often the time of one case goes into that of another.
type guardPair struct {
	name    string
	of, per *engineCase // ratio = of ÷ per, both of one message
	times   float64     // of of
}

func (p *guardPair) ratio() float64 { return p.times * p.of.message / p.per.message }

// enginePairs are the engine's ratios.
func enginePairs() ([]*guardPair, error) {
	stick, crc := yardstick(), icrcCases()
	var pairs []*guardPair
	var failed error
	add := func(name string, of *engineCase, times float64, c *engineCase, err error) {
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", name, err)
		}
		pairs = append(pairs, &guardPair{name: name, of: of, per: c, times: times})
	}
	ops := func(name string, of *engineCase, times float64, op rxe.WROpcode, size, batch int) {
		c, err := opCase(name, op, size, batch)
		add(name, of, times, c, err)
	}
	ops("write_64", stick, 1, rxe.WRRDMAWrite, 64, 1)
	ops("write_64_batch", stick, 1, rxe.WRRDMAWrite, 64, 32)
	ops("send_64", stick, 1, rxe.WRSend, 64, 1)
	ops("read_64", stick, 1, rxe.WRRDMARead, 64, 1)
	ops("atomic", stick, 1, rxe.WRAtomicFetchAdd, 8, 1)
	// 64 KiB are 16 packets, each copied and summed at either end.
	ops("write_64k", crc[4], 32, rxe.WRRDMAWrite, 65536, 1)
	ops("read_64k", crc[4], 32, rxe.WRRDMARead, 65536, 1)
	responder, err := responderCase("responder_64", 64)
	add("responder_64", stick, 1, responder, err)
	many, err := qpCase(1000)
	add("write_64_1000_qps", stick, 1, many, err)
	add("icrc_build", crc[0], 1, crc[1], nil)
	add("icrc_parse", crc[0], 1, crc[2], nil)
	return pairs, failed
}

// measurePairs measures both sides of each pair, in turns.
func measurePairs(ctx context.Context, pairs []*guardPair, rounds int) error {
	var cases []*engineCase
	for _, p := range pairs {
		for _, c := range []*engineCase{p.of, p.per} {
			if !slices.Contains(cases, c) {
				cases = append(cases, c)
			}
		}
	}
	return measureAll(ctx, cases, rounds)
}

// guardEngine measures the engine's ratios; those below their bounds again, a few times.
func guardEngine(ctx context.Context, g *Guard, pairs []*guardPair, reference *Guard,
	rounds, again int) error {
	if err := measurePairs(ctx, pairs, rounds); err != nil {
		return err
	}
	for try := 0; ; try++ {
		var low []*guardPair
		for _, p := range pairs {
			g.Ratios[p.name] = p.ratio()
			if p.ratio() < engineBound*reference.Ratios[p.name] {
				low = append(low, p)
			}
		}
		if len(low) == 0 || try == again {
			return nil
		}
		time.Sleep(guardPause)
		if err := measurePairs(ctx, low, 2*rounds); err != nil {
			return err
		}
	}
}

// guardCells are the measurements on the wire.
var guardCells = []struct {
	name string
	test string
	size int
}{
	{wirePrefix + "write_bw_64k", "write_bw", 65536},
	{wirePrefix + "write_bw_8", "write_bw", 8},
	{wirePrefix + "send_lat_64", "send_lat", 64},
}

// guardWire measures beside raw AF_XDP.
func (m *meter) guardWire(ctx context.Context, g *Guard, reference *Guard) error {
	for _, w := range guardCells {
		t, err := perf.Lookup(w.test)
		if err != nil {
			return err
		}
		const pmtu = 4096
		c := &Cell{Test: w.test, Size: w.size, PMTU: pmtu, lat: t.Latency,
			small: !t.Latency && w.size < 1024, Frame: frameOf(t.Op, w.size, pmtu)}
		var all []round
		for n := 1; ; n++ {
			r, err := m.round(ctx, c, n, wireRounds)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			all = append(all, r)
			good := undisturbed(c, all)
			ratio := wireRatio(c, all)
			g.Ratios[w.name] = ratio
			low := ratio < wireBound*reference.Ratios[w.name]
			g.inconclusive[w.name] = low && good < conclusive
			if n >= wireRounds && !low || n >= wireRounds+guardAgain {
				break
			}
		}
	}
	return nil
}

// wireRatio is roxie ÷ raw of rates, the best of each, and of latencies raw ÷ roxie, of the fastest
// hundredth of all messages: on a busy machine the median tells who had a core, not what a message costs.
func wireRatio(c *Cell, all []round) float64 {
	if !c.lat {
		c.summarise(all)
		return c.Ratio
	}
	var ours, theirs float64
	for i := range all {
		lower(&theirs, all[i].rawDist[0].Us)
		lower(&ours, all[i].result.Lat.Dist[0].Us)
	}
	return theirs / ours
}

// undisturbed counts the rounds in which raw was near its best.
func undisturbed(c *Cell, all []round) (n int) {
	best := 0.0
	for i := range all {
		best = max(best, c.quality(&all[i]))
	}
	for i := range all {
		if c.quality(&all[i]) >= rawLow*best {
			n++
		}
	}
	return n
}

// GuardRun measures; Judge compares.
func GuardRun(ctx context.Context, o Options) (*Guard, error) {
	reference, err := guardReference()
	if err != nil {
		return nil, err
	}
	g := &Guard{Ratios: map[string]float64{}, EngineBound: engineBound, WireBound: wireBound,
		inconclusive: map[string]bool{}}
	m := &meter{Options: o, lab: o.Lab, duration: 400 * time.Millisecond,
		pair: perf.Pair{Lab: o.Lab, Exe: o.Exe}}
	m.tell("engine")
	pairs, err := enginePairs()
	if err != nil {
		return nil, err
	}
	if err := guardEngine(ctx, g, pairs, reference, guardRounds, guardAgain); err != nil {
		return nil, err
	}
	return g, m.guardWire(ctx, g, reference)
}

// Write prints the ratios beside those of the reference, and returns an error that names those that
// are far below.
func (g *Guard) Write(w io.Writer) error {
	reference, err := guardReference()
	if err != nil {
		return err
	}
	var b strings.Builder
	failed := g.judge(&b, reference)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("much slower than bench/guard.json says: %s; if that is meant, write new "+
			"ratios with roxie bench --guard --json bench/guard.json", strings.Join(failed, ", "))
	}
	return nil
}

// judge says what failed.
func (g *Guard) judge(b *strings.Builder, reference *Guard) (failed []string) {
	var names []string
	for name := range reference.Ratios {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(b, "%-20s %10s %10s %10s\n", "ratio", "now", "reference", "bound")
	for _, name := range names {
		bound := engineBound
		if strings.HasPrefix(name, wirePrefix) {
			bound = wireBound
		}
		bound *= reference.Ratios[name]
		verdict := ""
		switch now, ok := g.Ratios[name]; {
		case !ok:
			verdict, failed = "  not measured", append(failed, name)
		case now >= bound:
		case g.inconclusive[name]:
			verdict = "  inconclusive: raw AF_XDP itself was disturbed in too many rounds"
		default:
			verdict, failed = "  TOO SLOW", append(failed, name)
		}
		fmt.Fprintf(b, "%-20s %10.3f %10.3f %10.3f%s\n", name, g.Ratios[name], reference.Ratios[name], bound,
			verdict)
	}
	return failed
}

// WriteJSON writes the ratios to a file: a new reference.
func (g *Guard) WriteJSON(name string) error {
	for k, v := range g.Ratios {
		g.Ratios[k] = float64(int(v*1000+0.5)) / 1000
	}
	text, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o666)
}
