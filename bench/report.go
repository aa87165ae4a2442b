package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Write prints the tables and then a line for each measurement.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	copyMode := "copy"
	if r.ZeroCopy {
		copyMode = "zero-copy"
	}
	fmt.Fprintf(&b, "veth pair with link MTU %d", r.LinkMTU)
	if r.XDPMode != "" {
		fmt.Fprintf(&b, ", %s XDP, %s", r.XDPMode, copyMode)
	}
	fmt.Fprintf(&b, "; %d cores, %s, Linux %s; %.0f s\n", r.Cores, r.CPU, r.Kernel, r.Seconds)
	r.rates(&b)
	r.latencies(&b)
	r.verified(&b)
	r.writeFull(&b)
	b.WriteString("\n")
	for i := range r.Cells {
		fmt.Fprintln(&b, r.Cells[i].Line())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rates prints message size × PMTU.
func (r *Report) rates(b *strings.Builder) {
	type key struct {
		test string
		size int
	}
	cells := map[key]map[int]*Cell{}
	var order []key
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.lat || c.Test == "raw" {
			continue
		}
		k := key{c.Test, c.Size}
		if cells[k] == nil {
			cells[k] = map[int]*Cell{}
			order = append(order, k)
		}
		cells[k][c.PMTU] = c
	}
	if len(order) == 0 {
		return
	}
	b.WriteString("\nBandwidth: payload bits, raw frame bits of the same frame size, and their " +
		"ratio; " +
		"best of the rounds\n")
	fmt.Fprintf(b, "%-10s %10s │ %-32s │ %s\n", "", "", "PMTU 1024", "PMTU 4096")
	fmt.Fprintf(b, "%-10s %10s │ %10s %10s %10s │ %10s %10s %10s\n", "test", "bytes",
		"Gb/s", "raw", "ratio", "Gb/s", "raw", "ratio")
	for _, k := range order {
		fmt.Fprintf(b, "%-10s %10d", k.test, k.size)
		for _, pmtu := range []int{1024, 4096} {
			switch c := cells[k][pmtu]; {
			case c == nil:
				fmt.Fprintf(b, " │ %10s %10s %10s", "", "", "")
			case c.small:
				fmt.Fprintf(b, " │ %5.3f Mpps %5.3f Mpps %10.2f", c.Mpps, c.RawMpps, c.Ratio)
			default:
				fmt.Fprintf(b, " │ %10.2f %10.2f %10.2f", c.Gbps, c.RawGbps, c.Ratio)
			}
		}
		b.WriteString("\n")
	}
}

func (r *Report) latencies(b *strings.Builder) {
	first := true
	for i := range r.Cells {
		c := &r.Cells[i]
		if !c.lat || c.Test == "raw" {
			continue
		}
		if first {
			b.WriteString("\nLatency in µs: half round trip (READ: from post to completion), " +
				"beside half the raw " +
				"one; round with the least median\n")
			fmt.Fprintf(b, "%-10s %10s %6s │ %10s %10s %10s │ %10s %10s │ %s\n", "test", "bytes", "PMTU",
				"median", "raw", "ratio", "99 %", "raw 99 %", "progress")
			first = false
		}
		fmt.Fprintf(b, "%-10s %10d %6d │ %10.2f %10.2f %10.2f │ %10.2f %10.2f │ %s\n", c.Test, c.Size, c.PMTU,
			c.P50, c.RawP50, c.Ratio, c.P99, c.RawP99, c.Progress)
	}
}

func (r *Report) verified(b *strings.Builder) {
	var bytes, again uint64
	for i := range r.Cells {
		bytes += r.Cells[i].Verified
		again += r.Cells[i].Retransmit
	}
	if bytes > 0 {
		fmt.Fprintf(b, "\n%.2f GB verified while measured, no byte wrong; %d packets "+
			"retransmitted\n",
			float64(bytes)/1e9, again)
	}
}

// Line is the cell as one line of names and values.
func (c *Cell) Line() string {
	switch {
	case c.Test == "raw" && c.lat:
		return fmt.Sprintf("raw_lat frame=%d p50_us=%.2f p99_us=%.2f", c.Frame, c.RawP50, c.RawP99)
	case c.Test == "raw":
		return fmt.Sprintf("raw frame=%d gbps=%.2f mpps=%.3f", c.Frame, c.RawGbps, c.RawMpps)
	case c.lat:
		line := fmt.Sprintf("%s size=%d pmtu=%d p50_us=%.2f raw_p50_us=%.2f ratio=%.2f "+
			"p99_us=%.2f raw_p99_us=%.2f",
			c.Test, c.Size, c.PMTU, c.P50, c.RawP50, c.Ratio, c.P99, c.RawP99)
		if c.poller {
			line += " progress=poller"
		}
		return line
	case c.small:
		return fmt.Sprintf("%s size=%d pmtu=%d mpps=%.3f raw_mpps=%.3f ratio=%.2f", c.Test, c.Size,
			c.PMTU, c.Mpps, c.RawMpps, c.Ratio)
	}
	return fmt.Sprintf("%s size=%d pmtu=%d gbps=%.2f raw_gbps=%.2f ratio=%.2f", c.Test, c.Size, c.PMTU,
		c.Gbps, c.RawGbps, c.Ratio)
}

// summarise takes the best of the rounds for each side, and the medians.
func (c *Cell) summarise(all []round) {
	c.Rounds = len(all)
	better := func(a, b float64) bool { return a > b }
	if c.lat {
		better = func(a, b float64) bool { return a < b }
	}
	bestRaw, best := &all[0], &all[0]
	for i := range all {
		r := &all[i]
		if better(r.raw, bestRaw.raw) {
			bestRaw = r
		}
		if better(r.ours, best.ours) {
			best = r
		}
		c.Verified += r.result.Verified
		c.Retransmit += r.result.Retransmit
	}
	if bestRaw.raw > 0 {
		c.Ratio = best.ours / bestRaw.raw
	}
	ours := func(r *round) float64 { return r.ours }
	theirs := func(r *round) float64 { return r.raw }
	c.Spread, c.RawSpread = spread(all, ours), spread(all, theirs)
	c.RawMedian = median(all, theirs)
	c.Progress = best.result.Progress
	if c.lat {
		c.P50, c.RawP50, c.RawP99 = best.ours, bestRaw.raw, bestRaw.rawP99
		c.MedianP50, c.RawDist = median(all, ours), bestRaw.rawDist
		if l := best.result.Lat; l != nil {
			c.P99, c.Dist = l.P99, l.Dist
		}
		return
	}
	c.Gbps, c.Mpps = best.result.BWGbps, best.result.MsgRate
	c.RawGbps, c.RawMpps = bestRaw.rawGbps, bestRaw.rawMpps
	c.MedianGbps = median(all, func(r *round) float64 { return r.result.BWGbps })
	c.MedianMpps = median(all, func(r *round) float64 { return r.result.MsgRate })
}

func median(all []round, of func(*round) float64) float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = of(&all[i])
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// spread is (greatest - least) ÷ median.
func spread(all []round, of func(*round) float64) float64 {
	least, most := of(&all[0]), of(&all[0])
	for i := range all {
		least, most = min(least, of(&all[i])), max(most, of(&all[i]))
	}
	if m := median(all, of); m > 0 {
		return (most - least) / m
	}
	return 0
}
