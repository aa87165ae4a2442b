// Package bench compares roxie with raw AF_XDP, and with TCP: links of the same kind, the same cores,
// the same frame size, in turns. A figure is always given beside the raw one of its round.
//
//	round 1:  raw, roxie of the first cell │ raw, roxie of the second │ … │ TCP of each size
//	round 2:  the same again
//
// Of the rounds of a cell, the best rate and the least latency count, and the median stands beside
// them, with the spread: (greatest - least) ÷ median. On a machine that does other things as well,
// what is best repeats, what is typical does not. A round whose raw figure is below 60 % of the
// run's best for such frames is inconclusive: the machine was busy; it is done again.
package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/roxie-rdma/roxie/bench/raw"
	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/perf"
)

// Options say what to measure.
type Options struct {
	// Only names tests, as write_bw, or operations and kinds of them: write, read, send, bw, lat,
	// raw (the raw figures alone). Empty: everything.
	Only []string
	// Quick is the short form: fewer sizes, fewer and shorter rounds.
	Quick bool
	// Full adds more sizes, TCP, the engine alone, many QPs, loads and losses.
	Full bool
	// Limit is when no more rounds are repeated; 0: 100 s, with Full 6 minutes.
	Limit time.Duration
	// Rounds and Duration override what Quick and its absence mean.
	Rounds   int
	Duration time.Duration
	// Progress of roxie's ends; empty: each test's own.
	Progress perf.Progress
	// Pin gives each end a CPU of its own, raw and roxie alike. That is steadier on a machine
	// that does nothing else, and worse on one that does.
	Pin bool
	// Lab to measure in; Run makes one and takes it down if nil.
	Lab *lab.Lab
	// Exe is the roxie program, empty for the one that is running.
	Exe string
	// Step is told before each measurement what comes; nil: nobody.
	Step func(text string)
}

// Cell is one line of the tables: one test with its parameters, and what it gave.
type Cell struct {
	Test  string `json:"test"`
	Size  int    `json:"size"`
	PMTU  int    `json:"pmtu"`
	Frame int    `json:"frame"` // bytes of the raw frames it is compared with

	// Bandwidth: the best round. Rates of messages smaller than a packet are compared by Mpps.
	Gbps       float64 `json:"gbps,omitempty"`
	RawGbps    float64 `json:"raw_gbps,omitempty"`
	Mpps       float64 `json:"mpps,omitempty"` // messages
	RawMpps    float64 `json:"raw_mpps,omitempty"`
	MedianGbps float64 `json:"median_gbps,omitempty"`
	MedianMpps float64 `json:"median_mpps,omitempty"`
	RawMedian  float64 `json:"raw_median,omitempty"` // of what is compared: Gb/s, Mpps, µs
	// TCPGbps is the best of one TCP stream with messages of this size, at PMTU 4096.
	TCPGbps  float64 `json:"tcp_gbps,omitempty"`
	TCPRatio float64 `json:"tcp_ratio,omitempty"` // roxie ÷ TCP

	// Latency in µs: the round with the least median. READ: whole, else half round trips.
	P50    float64 `json:"p50_us,omitempty"`
	RawP50 float64 `json:"raw_p50_us,omitempty"`
	P99    float64 `json:"p99_us,omitempty"`
	RawP99 float64 `json:"raw_p99_us,omitempty"`
	// MedianP50 is the median of the rounds' medians.
	MedianP50 float64         `json:"median_p50_us,omitempty"`
	Dist      []perf.Quantile `json:"dist,omitempty"` // of the round with the least median
	RawDist   []perf.Quantile `json:"raw_dist,omitempty"`

	Ratio float64 `json:"ratio"` // roxie ÷ raw
	// Spread is (greatest - least) ÷ median over the rounds; RawSpread that of raw.
	Spread     float64 `json:"spread"`
	RawSpread  float64 `json:"raw_spread"`
	Progress   string  `json:"progress"`
	Verified   uint64  `json:"verified_bytes"`
	Retransmit uint64  `json:"retransmits"`
	Rounds     int     `json:"rounds"`
	// Repeated rounds were inconclusive; Inconclusive ones are still among Rounds, for want of time.
	Repeated     int `json:"repeated,omitempty"`
	Inconclusive int `json:"inconclusive,omitempty"`

	rounds []round
	lat    bool
	small  bool
	poller bool // a latency test with pollers
}

// Report is all that was measured.
type Report struct {
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	XDPMode  string    `json:"xdp_mode"`
	ZeroCopy bool      `json:"zerocopy"`
	Kernel   string    `json:"kernel"`
	CPU      string    `json:"cpu"`
	Cores    int       `json:"cores"`
	LinkMTU  int       `json:"link_mtu"`
	Cells    []Cell    `json:"cells"`

	// Full only.
	TCP    []TCP    `json:"tcp,omitempty"`
	Engine *Engine  `json:"engine,omitempty"`
	Loads  *Loads   `json:"loads,omitempty"`
	Loss   []Loss   `json:"loss,omitempty"`
	Limits []string `json:"limits,omitempty"` // what held the figures down
	// Others is how many cores programs that are not part of the run used meanwhile; Stolen how many
	// the hypervisor gave to others.
	Others float64 `json:"other_cores"`
	Stolen float64 `json:"stolen_cores"`
}

const (
	linkMTU = 9000
	rawLow  = 0.6 // of the best raw figure: below it a round does not count
	repeats = 2   // of a round that does not count

	defaultLimit = 100 * time.Second
	fullLimit    = 6 * time.Minute

	// patientTimeout is the ends' ACK timeout, 268 ms: on a busy machine the other end may not
	// run for a while, and nothing is lost on a veth pair that a timeout would have to repair.
	patientTimeout = 16
)

// Run measures, and cleans up whatever happens.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	cells, err := o.plan()
	if err != nil {
		return nil, err
	}
	rounds, duration := 3, time.Second
	if o.Quick {
		duration = 500 * time.Millisecond
	}
	if o.Rounds > 0 {
		rounds = o.Rounds
	}
	if o.Duration > 0 {
		duration = o.Duration
	}
	l := o.Lab
	if l == nil {
		if l, err = lab.New(lab.Config{MTU: linkMTU}); err != nil {
			return nil, err
		}
		defer func() {
			if closeErr := l.Close(); err == nil {
				err = closeErr
			}
		}()
	}
	m := &meter{Options: o, lab: l, duration: duration, pair: perf.Pair{Lab: l, Exe: o.Exe},
		best: map[frameKind]float64{}}
	if o.Pin && runtime.NumCPU() > 1 {
		m.pair.CPUs = &[2]int{0, 1}
	}
	r = &Report{Started: time.Now(), LinkMTU: l.A.MTU}
	m.until = r.Started.Add(o.limit())
	describeMachine(r)
	before := machineTimes()
	if err := m.all(ctx, r, cells, rounds); err != nil {
		return nil, err
	}
	r.Cells, r.XDPMode, r.ZeroCopy = cells, m.mode, m.zerocopy
	if o.Full {
		if err := m.full(ctx, r); err != nil {
			return nil, err
		}
	}
	r.Seconds = time.Since(r.Started).Seconds()
	r.Others, r.Stolen = machineTimes().since(before, r.Seconds)
	r.limits()
	return r, nil
}

func (o *Options) limit() time.Duration {
	switch {
	case o.Limit > 0:
		return o.Limit
	case o.Full:
		return fullLimit
	}
	return defaultLimit
}

// all takes the rounds of all cells, and of TCP.
func (m *meter) all(ctx context.Context, r *Report, cells []Cell, rounds int) error {
	var tcp *tcpMeter
	if m.Full {
		var err error
		if tcp, err = newTCPMeter(r.LinkMTU); err != nil {
			return err
		}
		defer tcp.close()
	}
	for n := 1; n <= rounds; n++ {
		for i := range cells {
			if err := m.cell(ctx, &cells[i], n, rounds); err != nil {
				return fmt.Errorf("%s, %d bytes, PMTU %d: %w", cells[i].Test, cells[i].Size,
					cells[i].PMTU, err)
			}
		}
		if tcp == nil {
			continue
		}
		if err := tcp.round(ctx, m, n, rounds); err != nil {
			return fmt.Errorf("TCP: %w", err)
		}
	}
	if err := m.again(ctx, cells); err != nil {
		return err
	}
	for i := range cells {
		c := &cells[i]
		for j := range c.rounds {
			if m.inconclusive(c, &c.rounds[j]) {
				c.Inconclusive++
			}
		}
		c.summarise(c.rounds)
	}
	if tcp != nil {
		r.TCP = tcp.results()
		compareTCP(cells, r.TCP)
	}
	return nil
}

// meter takes the measurements.
type meter struct {
	Options
	lab      *lab.Lab
	pair     perf.Pair
	duration time.Duration
	until    time.Time // then nothing is repeated any more
	best     map[frameKind]float64
	mode     string
	zerocopy bool
}

// frameKind is what raw figures are comparable by.
type frameKind struct {
	size int
	lat  bool
}

// quality is how good a raw figure is, the more the better.
func (c *Cell) quality(r *round) float64 {
	if c.lat {
		return 1 / r.raw
	}
	return r.rawMpps
}

// inconclusive says whether the machine was too busy in a round to tell anything.
func (m *meter) inconclusive(c *Cell, r *round) bool {
	return c.quality(r) < rawLow*m.best[frameKind{c.Frame, c.lat}]
}

// round is one raw measurement and one of roxie. Rates are Gb/s or, of small messages, Mpps;
// latencies are medians in µs.
type round struct {
	raw, ours float64
	rawP99    float64
	rawMpps   float64
	rawGbps   float64
	rawDist   []perf.Quantile
	result    perf.Result
}

// cell takes one round of a cell.
func (m *meter) cell(ctx context.Context, c *Cell, n, rounds int) error {
	for try := 0; ; try++ {
		r, err := m.round(ctx, c, n, rounds)
		if err != nil {
			return err
		}
		kind := frameKind{c.Frame, c.lat}
		m.best[kind] = max(m.best[kind], c.quality(&r))
		if !m.inconclusive(c, &r) || try == repeats || time.Now().After(m.until) {
			c.rounds = append(c.rounds, r)
			return nil
		}
		c.Repeated++
	}
}

// again repeats the rounds that turned out to be inconclusive only later, while there is time.
func (m *meter) again(ctx context.Context, cells []Cell) error {
	for range repeats {
		for i := range cells {
			c := &cells[i]
			all := c.rounds
			c.rounds = nil
			for j := range all {
				if !m.inconclusive(c, &all[j]) || time.Now().After(m.until) {
					c.rounds = append(c.rounds, all[j])
					continue
				}
				c.Repeated++
				if err := m.cell(ctx, c, j+1, len(all)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (m *meter) round(ctx context.Context, c *Cell, n, of int) (round, error) {
	var r round
	m.tell("%d/%d raw, frames of %d bytes", n, of, c.Frame)
	if err := m.raw(ctx, c, &r); err != nil {
		return r, fmt.Errorf("raw AF_XDP: %w", err)
	}
	if c.Test == "raw" {
		return r, nil
	}
	m.tell("%d/%d %s, %d bytes, PMTU %d", n, of, c.Test, c.Size, c.PMTU)
	return r, m.roxie(ctx, c, &r)
}

func (m *meter) tell(format string, args ...any) {
	if m.Step != nil {
		m.Step(fmt.Sprintf(format, args...))
	}
}

// rawConfig is raw between the two sides of the lab, from the client's to the server's.
func (m *meter) rawConfig(frame int) raw.Config {
	end := func(n *lab.Namespace) raw.End {
		return raw.End{Netns: "/run/netns/" + n.Name, Interface: n.Interface}
	}
	return raw.Config{A: end(m.lab.B), B: end(m.lab.A), FrameSize: frame, Duration: m.duration / 2,
		Threads: 2}
}

// raw measures the ceiling with the two threads that roxie's two ends have as well.
func (m *meter) raw(ctx context.Context, c *Cell, r *round) error {
	cfg := m.rawConfig(c.Frame)
	if cpus := m.pair.CPUs; cpus != nil {
		cfg.CPUs = []int{cpus[1], cpus[0]} // the client's end sends
	} else if runtime.NumCPU() == 1 {
		cfg.Threads = 1
	}
	if c.lat {
		l, err := raw.PingPong(ctx, cfg)
		if err != nil {
			return err
		}
		r.raw, r.rawP99, r.rawDist = micros(l.P50), micros(l.P99), l.Dist
		return nil
	}
	s, err := raw.Stream(ctx, cfg)
	if err != nil {
		return err
	}
	r.rawGbps, r.rawMpps, r.raw = s.Gbps, s.Mpps, s.Gbps
	if c.small {
		r.raw = s.Mpps
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// progress is who moves the packets of a cell: as the options say, else as the cell does.
func (c *Cell) progress(option perf.Progress) perf.Progress {
	if option == "" && c.poller {
		return perf.Poller
	}
	return option
}

// roxie runs the test, with every byte verified.
func (m *meter) roxie(ctx context.Context, c *Cell, r *round) error {
	t, err := perf.Lookup(c.Test)
	if err != nil {
		return err
	}
	cfg := perf.Config{Test: t, Size: c.Size, PMTU: c.PMTU, Duration: m.duration, Verify: true,
		Progress: c.progress(m.Progress), GIDIndex: -1, Timeout: patientTimeout}
	results, err := m.pair.Run(ctx, cfg, perf.Hooks{})
	if err != nil {
		return err
	}
	r.result = results[0]
	if err := r.result.Err(); err != nil {
		return err
	}
	m.mode, m.zerocopy = r.result.XDPMode, r.result.ZeroCopy
	switch {
	case c.lat:
		r.ours = r.result.Lat.P50
	case c.small:
		r.ours = r.result.MsgRate
	default:
		r.ours = r.result.BWGbps
	}
	return nil
}
