package main

import (
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/plot/plotter"

	"github.com/roxie-rdma/roxie/bench"
	"github.com/roxie-rdma/roxie/internal/perf"
)

// figure is one picture.
type figure struct {
	name, title, x, y string
	logX, logY        bool
	zeroY             bool // the scale begins at 0
	ticks             func(v float64) string
	lines             []line
}

// line is one series of points.
type line struct {
	name   string
	points plotter.XYs
	dashed bool // what roxie is compared with
}

func (f *figure) add(name string, dashed bool, points plotter.XYs) {
	if len(points) > 0 {
		f.lines = append(f.lines, line{name, points, dashed})
	}
}

// figures makes the pictures of a report. One without data has no lines.
func figures(r *bench.Report) []*figure {
	machine := fmt.Sprintf("%d cores, %s", r.Cores, r.CPU)
	if r.XDPMode != "" {
		machine = fmt.Sprintf("veth, %s XDP, link MTU %d, %s", r.XDPMode, r.LinkMTU, machine)
	}
	return []*figure{goodput(r, machine), messages(r, machine), latency(r, machine), qps(r), loss(r)}
}

// points takes one value of each cell that fits, by rising size.
func points(r *bench.Report, test string, pmtu int, y func(*bench.Cell) float64) (out plotter.XYs) {
	for i := range r.Cells {
		c := &r.Cells[i]
		same := c.PMTU == pmtu || c.Size < 1024 // small messages are the same packets at any PMTU
		if c.Test == test && same && y(c) > 0 {
			out = append(out, plotter.XY{X: float64(c.Size), Y: y(c)})
		}
	}
	slices.SortFunc(out, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return out
}

func goodput(r *bench.Report, machine string) *figure {
	f := &figure{name: "goodput", title: "Message size and goodput: best of the rounds\n" + machine,
		x: "message, bytes", y: "Gb/s of payload (raw: of frames)", logX: true, logY: true, ticks: bytesTick}
	for _, pmtu := range []int{4096, 1024} {
		f.add(fmt.Sprintf("WRITE, PMTU %d", pmtu), false,
			points(r, "write_bw", pmtu, func(c *bench.Cell) float64 { return c.Gbps }))
		f.add(fmt.Sprintf("raw AF_XDP, frames as for PMTU %d", pmtu), true,
			points(r, "write_bw", pmtu, func(c *bench.Cell) float64 { return c.RawGbps }))
	}
	for test, name := range map[string]string{"read_bw": "READ, PMTU 4096", "send_bw": "SEND, PMTU 4096"} {
		f.add(name, false, points(r, test, 4096, func(c *bench.Cell) float64 { return c.Gbps }))
	}
	slices.SortStableFunc(f.lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
	var tcp plotter.XYs
	for _, t := range r.TCP {
		if t.Gbps > 0 {
			tcp = append(tcp, plotter.XY{X: float64(t.Size), Y: t.Gbps})
		}
	}
	f.add("TCP, one stream, no XDP", true, tcp)
	return f
}

func messages(r *bench.Report, machine string) *figure {
	f := &figure{name: "messages", title: "Message size and message rate: best of the rounds\n" + machine,
		x: "message, bytes", y: "million messages a second", logX: true, logY: true, ticks: bytesTick}
	for _, pmtu := range []int{4096, 1024} {
		f.add(fmt.Sprintf("WRITE, PMTU %d", pmtu), false,
			points(r, "write_bw", pmtu, func(c *bench.Cell) float64 { return c.Mpps }))
	}
	f.add("raw AF_XDP frames, PMTU 4096", true,
		points(r, "write_bw", 4096, func(c *bench.Cell) float64 { return c.RawMpps }))
	var tcp plotter.XYs
	for _, t := range r.TCP {
		if t.Gbps > 0 {
			tcp = append(tcp, plotter.XY{X: float64(t.Size), Y: t.Gbps * 1e3 / 8 / float64(t.Size)})
		}
	}
	f.add("TCP, writes of that size", true, tcp)
	return f
}

// nines is where a quantile stands on an axis on which each nine takes as much room: 90 % is 10.
func nines(q float64) float64 { return 1 / (1 - q) }

func latency(r *bench.Report, machine string) *figure {
	f := &figure{name: "latency", title: "Latency of 64 bytes: half a round trip, READ a whole one\n" + machine,
		x: "of all messages", y: "µs", logX: true, logY: true, ticks: ninesTick}
	curve := func(d []perf.Quantile) (out plotter.XYs) {
		for _, q := range d {
			if q.Us > 0 {
				out = append(out, plotter.XY{X: nines(q.Q), Y: q.Us})
			}
		}
		return out
	}
	raw := false
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Size != 64 || len(c.Dist) == 0 {
			continue
		}
		op, _, _ := strings.Cut(c.Test, "_")
		f.add(fmt.Sprintf("%s, %s", strings.ToUpper(op), c.Progress), false, curve(c.Dist))
		if op == "send" && !raw {
			raw = true
			f.add("raw AF_XDP", true, curve(c.RawDist))
		}
	}
	return f
}

func qps(r *bench.Report) *figure {
	f := &figure{name: "qps", title: "Number of QPs and cost: WRITE of 64 bytes, QPs in turn, CPU time",
		x: "QPs", y: "ns", logX: true, zeroY: true, ticks: plainTick}
	if r.Engine != nil {
		var p plotter.XYs
		for _, q := range r.Engine.QPs {
			p = append(p, plotter.XY{X: float64(q.QPs), Y: q.Packet})
		}
		f.add("engine alone, a packet, both ends", false, p)
	}
	if r.Loads != nil {
		var p plotter.XYs
		for _, q := range r.Loads.QPs {
			p = append(p, plotter.XY{X: float64(q.QPs), Y: q.CPU})
		}
		f.add("veth pair, a message, both ends with kernel", false, p)
	}
	return f
}

func loss(r *bench.Report) *figure {
	f := &figure{name: "loss",
		title: "Random loss and goodput, simulated: virtual time, 10 Gb/s, round trip 100 µs,\nWRITE of 64 KiB, " +
			"PMTU 4096",
		x: "frames lost, %", y: "share of the loss-free goodput", logX: true, zeroY: true, ticks: plainTick}
	var ours, fixed plotter.XYs
	for _, l := range r.Loss {
		if l.Rate > 0 {
			ours = append(ours, plotter.XY{X: l.Rate * 100, Y: l.Share})
			fixed = append(fixed, plotter.XY{X: l.Rate * 100, Y: l.FixedShare})
		}
	}
	f.add("roxie", false, ours)
	f.add("go-back-N, window fixed at 128", true, fixed)
	return f
}
