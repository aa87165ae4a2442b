package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/bench/raw"
	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is the guard: a short measurement that fails when something became much slower. It is
// made for machines that do other things at the same time:
//
//   - Only ratios are compared, each over something that is not roxie and is measured beside it: the
//     yardstick and hash/crc32 for the engine, raw AF_XDP for the whole.
//   - The engine is measured in CPU time, in short stretches, of which the best counts.
//   - So is what a packet costs on the wire, system calls and all, over raw AF_XDP in one thread; of
//     latencies the fastest hundredth is compared. The best round of each side counts, and a failure
//     needs rounds in which raw itself was not disturbed.
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
	engineBound = 0.6
	wireBound   = 0.4

	guardRounds = 30 // stretches of each engine case, first time; then twice as many
	guardAgain  = 5  // how often what is below its bound is measured again
	guardPause  = 500 * time.Millisecond
	wireRounds  = 5
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

// wireCase is a measurement on the wire: what something costs roxie, and raw AF_XDP.
type wireCase struct {
	name      string
	raw, ours func(ctx context.Context) (float64, error)
}

// wireCost is one round of it.
type wireCost struct{ raw, ours float64 }

const (
	guardStretch = 200 * time.Millisecond
	pmtuLarge    = 4096
)

// wireCases are, all on the laboratory's veth pair:
//
//   - the CPU time of both ends, kernel and all, for a packet of WRITEs of 64 KiB and for a WRITE of 64
//     bytes, over that of raw frames as long, sent and received by one thread;
//   - half the round trip of a SEND of 64 bytes, of the fastest hundredth: the median tells on a busy
//     machine who had a core, not what a message costs.
func (m *meter) wireCases() []wireCase {
	rawCPU := func(frame int) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			c := m.rawConfig(frame)
			c.Threads, c.CPUs, c.Duration = 1, nil, guardStretch
			s, err := raw.Stream(ctx, c)
			return float64(s.CPU.Nanoseconds()) / float64(max(s.Frames, 1)), err
		}
	}
	onEnds := func(f func(ctx context.Context, e *ends) (float64, error)) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			e, err := openEnds(m.lab, verbs.Config{})
			if err != nil {
				return 0, err
			}
			cost, err := f(ctx, e)
			return cost, errors.Join(err, e.close())
		}
	}
	lat := &Cell{Test: "send_lat", Size: smallSize, PMTU: pmtuLarge, lat: true,
		Frame: frameOf(perf.Send, smallSize, pmtuLarge)}
	return []wireCase{
		{wirePrefix + "write_64k", rawCPU(frameOf(perf.Write, streamSize, pmtuLarge)),
			onEnds(func(ctx context.Context, e *ends) (float64, error) {
				var f Fairness
				err := f.run(ctx, e, 1, guardStretch)
				return f.cpu, err
			})},
		{wirePrefix + "write_64", rawCPU(frameOf(perf.Write, smallSize, pmtuLarge)),
			onEnds(func(ctx context.Context, e *ends) (float64, error) {
				c, err := newCrowd(e, 1)
				if err != nil {
					return 0, err
				}
				w, err := c.measure(ctx, 1, guardStretch)
				return w.CPU, errors.Join(err, c.prove(ctx))
			})},
		{wirePrefix + "send_lat_64",
			func(ctx context.Context) (float64, error) {
				var r round
				err := m.raw(ctx, lat, &r)
				if err != nil {
					return 0, err
				}
				return r.rawDist[0].Us, nil
			},
			func(ctx context.Context) (float64, error) {
				var r round
				err := m.roxie(ctx, lat, &r)
				if err != nil {
					return 0, err
				}
				return r.result.Lat.Dist[0].Us, nil
			}},
	}
}

// guardWire measures beside raw AF_XDP.
func (m *meter) guardWire(ctx context.Context, g *Guard, reference *Guard) error {
	for _, w := range m.wireCases() {
		var all []wireCost
		for n := 1; ; n++ {
			m.tell("%s, round %d", w.name, n)
			var c wireCost
			var err error
			if c.raw, err = w.raw(ctx); err != nil {
				return fmt.Errorf("%s, raw AF_XDP: %w", w.name, err)
			}
			if c.ours, err = w.ours(ctx); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			all = append(all, c)
			ratio, good := wireRatio(all)
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

// wireRatio is raw's cost over ours, the least of each, and in how many rounds raw was undisturbed.
func wireRatio(all []wireCost) (ratio float64, undisturbed int) {
	var ours, theirs float64
	for _, c := range all {
		lower(&theirs, c.raw)
		lower(&ours, c.ours)
	}
	for _, c := range all {
		if theirs >= rawLow*c.raw {
			undisturbed++
		}
	}
	return theirs / ours, undisturbed
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
			verdict = "  inconclusive: raw AF_XDP itself was disturbed in most rounds"
		default:
			verdict, failed = "  TOO SLOW", append(failed, name)
		}
		fmt.Fprintf(b, "%-20s %10.3f %10.3f %10.3f%s\n", name, g.Ratios[name], reference.Ratios[name], bound,
			verdict)
	}
	return failed
}

// WriteJSON writes the ratios as JSON: a new reference.
func (g *Guard) WriteJSON(w io.Writer) error {
	for k, v := range g.Ratios {
		g.Ratios[k] = float64(int(v*1000+0.5)) / 1000
	}
	text, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
