package bench

import (
	"context"
	"fmt"
	"strings"
)

// This file is what `make bench` has beyond the tables of `make run`.

// gcRounds are rounds of the three kinds of garbage collection.
const gcRounds = 3

// full measures the rest.
func (m *meter) full(ctx context.Context, r *Report) (err error) {
	m.tell("engine alone")
	if r.Engine, err = EngineRun(ctx, m.Quick); err != nil {
		return fmt.Errorf("engine alone: %w", err)
	}
	m.tell("losses, simulated")
	if r.Loss, err = LossRun(ctx, m.Quick); err != nil {
		return fmt.Errorf("losses: %w", err)
	}
	if r.Loads, err = LoadsRun(ctx, m.lab, m.Quick, m.tell); err != nil {
		return err
	}
	r.Loads.GC, err = m.gc(ctx, gcRounds)
	return err
}

// limits says what held the figures down.
func (r *Report) limits() {
	say := func(format string, args ...any) { r.Limits = append(r.Limits, fmt.Sprintf(format, args...)) }
	if r.XDPMode != "" && !r.ZeroCopy {
		say("AF_XDP in copy mode (%s XDP): each frame is copied twice by the kernel, and a sender makes "+
			"a system call for a batch; the receive work of a veth pair runs inside it", r.XDPMode)
	}
	if r.Cores < 4 {
		say("%d cores for two ends, each with a thread that moves packets and one that posts and polls",
			r.Cores)
	}
	if r.Others > 0.05*float64(r.Cores) || r.Stolen > 0.05*float64(r.Cores) {
		say("other programs used %.2f cores meanwhile, and the hypervisor took %.2f: figures are too low, "+
			"and ratios swing", r.Others, r.Stolen)
	}
	const largestPMTU, perPacket = 4096, 84 // bytes of the link MTU beside the path MTU
	if r.LinkMTU < largestPMTU+perPacket {
		say("link MTU %d leaves no room for a path MTU of 4096", r.LinkMTU)
	} else {
		say("path MTU 4096 is the largest there is, whatever the link MTU (%d): a packet costs as much "+
			"system time as one of TCP's segments of 64 KiB", r.LinkMTU)
	}
	inconclusive := 0
	for i := range r.Cells {
		inconclusive += r.Cells[i].Inconclusive
	}
	if inconclusive > 0 {
		say("%d rounds stayed inconclusive, for want of time to repeat them", inconclusive)
	}
	if r.Loads != nil {
		f := &r.Loads.Fairness
		say("while 16 QPs wrote: %.2f cores in user space, %.2f in the kernel; %s", f.User, f.System,
			f.Drops.String())
	}
}

// lost is how many frames found no room.
func (d *Drops) lost() uint64 { return d.RXDropped + d.RXRingFull + d.TXDropped }

// String is what was lost.
func (d *Drops) String() string {
	var parts []string
	for _, x := range []struct {
		name string
		n    uint64
	}{
		{"dropped for want of a chunk", d.RXDropped}, {"dropped at a full RX ring", d.RXRingFull},
		{"dropped by the driver", d.TXDropped}, {"packets sent again", d.Retransmits},
		{"windows halved", d.Halved},
	} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.name))
		}
	}
	text := "no drop, nothing sent again"
	if len(parts) > 0 {
		text = strings.Join(parts, ", ")
	}
	return fmt.Sprintf("%s, of %d packets; the TX ring was full %d times", text, d.Packets, d.TXFull)
}

// writeFull prints what Full has more.
func (r *Report) writeFull(b *strings.Builder) {
	if len(r.TCP) > 0 {
		b.WriteString("\nTCP, one stream of iperf3 over a veth pair without XDP, same link MTU: best of the " +
			"rounds\n")
		fmt.Fprintf(b, "%10s │ %10s %10s %10s │ %s\n", "bytes", "Gb/s", "median", "spread",
			"roxie WRITE ÷ TCP, PMTU 4096")
		for _, t := range r.TCP {
			fmt.Fprintf(b, "%10d │ %10.2f %10.2f %10.2f │ %s\n", t.Size, t.Gbps, t.Median, t.Spread,
				r.overTCP(t.Size))
		}
	}
	if e := r.Engine; e != nil {
		e.write(b)
	}
	if l := r.Loads; l != nil {
		l.write(b)
	}
	if len(r.Loss) > 0 {
		fmt.Fprintf(b, "\nRandom loss, simulated (virtual time): %d Gb/s, round trip %d µs, WRITE %d bytes, "+
			"ACK timeout 1 ms\n", 10, 2*lossOneWay/1000, lossSize)
		fmt.Fprintf(b, "%8s │ %10s %10s %10s │ %10s %10s %10s\n", "loss", "Gb/s", "share", "again",
			"fixed Gb/s", "share", "again")
		for _, l := range r.Loss {
			fmt.Fprintf(b, "%6.2f %% │ %10.2f %10.3f %10.3f │ %10.2f %10.3f %10.3f\n", l.Rate*100, l.Gbps,
				l.Share, l.Retransmits, l.Fixed, l.FixedShare, l.FixedAgain)
		}
	}
	if len(r.Limits) > 0 && r.Loads != nil {
		b.WriteString("\nWhat limited the run\n")
		for _, text := range r.Limits {
			fmt.Fprintf(b, "  - %s\n", text)
		}
	}
}

// overTCP is WRITE ÷ TCP for a message size.
func (r *Report) overTCP(size int) string {
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Test == "write_bw" && c.Size == size && c.TCPRatio > 0 {
			return fmt.Sprintf("%.2f", c.TCPRatio)
		}
	}
	return ""
}

func (e *Engine) write(b *strings.Builder) {
	fmt.Fprintf(b, "\nEngine alone, in memory, both ends: CPU time, best of many stretches; yardstick %.0f ns\n",
		e.Yardstick)
	fmt.Fprintf(b, "%-10s %8s %6s │ %12s %12s %12s\n", "operation", "bytes", "batch", "ns/message",
		"ns/packet", "allocations")
	for _, c := range e.Costs {
		fmt.Fprintf(b, "%-10s %8d %6d │ %12.0f %12.0f %12d\n", c.Op, c.Size, c.Batch, c.Message, c.Packet,
			c.Mallocs)
	}
	i := &e.ICRC
	fmt.Fprintf(b, "4 KiB: crc32 %.0f ns, packet built %.0f (%.2f of crc32's rate), parsed %.0f (%.2f); copy "+
		"%.0f, copy and crc32 %.0f, copy and build %.0f\n", i.CRC32, i.Build, i.CRC32/i.Build, i.Parse,
		i.CRC32/i.Parse, i.Copy, i.CopyCRC32, i.CopyBuild)
	fmt.Fprintf(b, "QPs in turn, WRITE 64 bytes, ns/packet:")
	for _, q := range e.QPs {
		fmt.Fprintf(b, " %d: %.0f (%.2f)", q.QPs, q.Packet, q.Packet/e.QPs[0].Packet)
	}
	b.WriteString("\n")
}

func (l *Loads) write(b *strings.Builder) {
	row := func(what, format string, args ...any) {
		fmt.Fprintf(b, "  %-34s %s\n", what, fmt.Sprintf(format, args...))
	}
	b.WriteString("\nCrowds, on the veth pair, both ends in one process\n")
	row(fmt.Sprintf("%d QPs for %.0f s", l.Fairness.QPs, l.Fairness.Seconds), "least ÷ most bytes %.3f, %.2f Gb/s",
		l.Fairness.Ratio, l.Fairness.Gbps)
	row(fmt.Sprintf("SEND 64 B beside a WRITE of %d MiB", l.Beside.WriteBytes>>20),
		"99 %% %.1f µs, alone %.1f; median %.1f, alone %.1f; the WRITE %.2f Gb/s", l.Beside.P99,
		l.Beside.IdleP99, l.Beside.P50, l.Beside.IdleP50, l.Beside.WriteGbps)
	row(fmt.Sprintf("%d connections", l.Setup.Connections), "made in %.2f s; an idle QP takes %d bytes of heap, "+
		"%d of memory", l.Setup.Seconds, l.Setup.HeapPerQP, l.Setup.RSSPerQP)
	for _, q := range l.QPs {
		row(fmt.Sprintf("%d QPs in turn, WRITE 64 B", q.QPs), "%.3f Mpps, %.0f ns of CPU, %.2f packets; "+
			"%.0f ns a packet (%.2f); %d sent again, %d dropped", q.Mpps, q.CPU, q.Packets, q.perPacket(),
			q.perPacket()/l.QPs[0].perPacket(), q.Retransmits, q.Dropped)
	}
	row(fmt.Sprintf("%d idle connections", l.Idle.Connections), "%.2f %% of a core over %.0f s; first message after a "+
		"rest %.0f µs", l.Idle.Percent, l.Idle.Seconds, l.Idle.WakeP50)
	for _, g := range l.GC {
		row("send_lat 64 B, GC "+string(g.GC), "99.9 %% %.1f µs (%.2f), 99 %% %.1f, median %.1f", g.P999,
			g.P999/l.GC[0].P999, g.P99, g.P50)
	}
}
