package perf

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in nanoseconds, up to ten seconds, with an error below 0.1 %.
const (
	histMax    = int64(10 * time.Second)
	histDigits = 3
)

// Latency is a distribution in microseconds. For WRITE and SEND it is of half round trips, for READ
// and atomics of the time from post to completion, as in perftest.
type Latency struct {
	Min    float64 `json:"min"`
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`
	P999   float64 `json:"p999"`
	Max    float64 `json:"max"`
	Avg    float64 `json:"avg"`
	Stddev float64 `json:"stddev"`
	// Dist is the whole distribution, at rising quantiles.
	Dist []Quantile `json:"dist,omitempty"`
}

// Quantile says that the share Q of all, 0 to 1, took so many µs at most.
type Quantile struct {
	Q  float64 `json:"q"`
	Us float64 `json:"us"`
}

// quantiles are those that Dist has, in percent.
var quantiles = []float64{1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.8, 99.9, 99.95, 99.98, 99.99,
	99.995, 99.999}

// Dist is the distribution of a histogram of times in ns, each divided by div.
func Dist(h *hdrhistogram.Histogram, div float64) []Quantile {
	out := make([]Quantile, len(quantiles))
	for i, q := range quantiles {
		out[i] = Quantile{Q: q / 100, Us: math.Round(float64(h.ValueAtQuantile(q))/div) / 1e3}
	}
	return out
}

// latencies collects durations. Recording allocates nothing.
type latencies struct {
	hist *hdrhistogram.Histogram
	min  int64
	max  int64
}

func newLatencies() *latencies {
	return &latencies{hist: hdrhistogram.New(1, histMax, histDigits), min: math.MaxInt64}
}

func (l *latencies) record(ns int64) {
	l.min = min(l.min, ns)
	l.max = max(l.max, ns)
	_ = l.hist.RecordValue(min(max(ns, 1), histMax)) // in range: no error
}

func (l *latencies) summary() *Latency {
	if l.hist.TotalCount() == 0 {
		return nil
	}
	us := func(ns float64) float64 { return math.Round(ns) / 1e3 }
	at := func(q float64) float64 {
		return us(float64(min(max(l.hist.ValueAtQuantile(q), l.min), l.max)))
	}
	return &Latency{
		Min: us(float64(l.min)), P50: at(50), P99: at(99), P999: at(99.9), Max: us(float64(l.max)),
		Avg: us(l.hist.Mean()), Stddev: us(l.hist.StdDev()),
		Dist: Dist(l.hist, 1),
	}
}

// rates finds the best throughput over a stretch of time, perftest's "BW peak".
type rates struct {
	last      time.Duration
	lastBytes uint64
	best      float64 // bytes a second
}

// peakEvery is the shortest stretch that a peak is taken over.
const peakEvery = 5 * time.Millisecond

// sample notes how many bytes were complete at a time. The times go up.
func (r *rates) sample(at time.Duration, bytes uint64) {
	if d := at - r.last; d >= peakEvery && bytes > r.lastBytes {
		r.best = max(r.best, float64(bytes-r.lastBytes)/d.Seconds())
		r.last, r.lastBytes = at, bytes
	}
}
