package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/verbs/observe"
)

// topTable is what top shows: a state, with the rates since the one before.
type topTable struct {
	Program  string      `json:"program"`
	PID      int         `json:"pid"`
	Time     time.Time   `json:"time"`
	Interval float64     `json:"interval_s"`
	Devices  []topDevice `json:"devices"`
}

type topDevice struct {
	Name    string                     `json:"name"`
	Port    string                     `json:"port"`
	Sent    rate                       `json:"sent"` // frames
	Rcvd    rate                       `json:"rcvd"`
	Drops   float64                    `json:"drops_per_s"`
	Latency map[string]observe.Latency `json:"latency"` // since the device was opened
	QPs     []topQP                    `json:"qps"`
	Regions []observe.Region           `json:"regions"`
}

// rate is packets and bits a second.
type rate struct {
	Pkts float64 `json:"pkts_per_s"`
	Bits float64 `json:"bits_per_s"`
}

type topQP struct {
	observe.QP
	Sent    rate    `json:"sent"`
	Rcvd    rate    `json:"rcvd"`
	Resends float64 `json:"retransmits_per_s"`
}

// topSorts are the orders of QPs, each with what comes first usually.
var topSorts = map[string]func(a, b *topQP) int{
	"rate": func(a, b *topQP) int { return cmp.Compare(b.Sent.Bits+b.Rcvd.Bits, a.Sent.Bits+a.Rcvd.Bits) },
	"tx":   func(a, b *topQP) int { return cmp.Compare(b.Sent.Bits, a.Sent.Bits) },
	"rx":   func(a, b *topQP) int { return cmp.Compare(b.Rcvd.Bits, a.Rcvd.Bits) },
	"qpn":  func(a, b *topQP) int { return cmp.Compare(a.QPN, b.QPN) },
	"peer": func(a, b *topQP) int { return strings.Compare(a.Peer, b.Peer) },
	"state": func(a, b *topQP) int { // those that failed first
		return cmp.Or(strings.Compare(a.State, b.State), -strings.Compare(a.LastError, b.LastError))
	},
	"inflight": func(a, b *topQP) int { return cmp.Compare(b.InFlight, a.InFlight) },
	"retrans":  func(a, b *topQP) int { return cmp.Compare(b.Retransmits, a.Retransmits) },
	"rtt":      func(a, b *topQP) int { return cmp.Compare(b.RTT, a.RTT) },
}

func sortNames() string { return strings.Join(slices.Sorted(maps.Keys(topSorts)), ", ") }

// compare makes a table of two states, the later one's QPs and regions.
func compare(before, after *observe.Snapshot, order func(a, b *topQP) int, reverse bool) *topTable {
	seconds := max(after.Time.Sub(before.Time).Seconds(), 1e-3)
	t := &topTable{Program: after.Program, PID: after.PID, Time: after.Time, Interval: seconds, Devices: []topDevice{}}
	if before.PID != after.PID { // begun anew meanwhile
		before = &observe.Snapshot{}
	}
	for i := range after.Devices {
		d := &after.Devices[i]
		old := &observe.Device{}
		for j := range before.Devices {
			if before.Devices[j].Name == d.Name {
				old = &before.Devices[j]
			}
		}
		t.Devices = append(t.Devices, compareDevice(old, d, seconds, order, reverse))
	}
	return t
}

func compareDevice(old, d *observe.Device, seconds float64, order func(a, b *topQP) int, reverse bool) topDevice {
	per := func(was, is uint64) float64 {
		if is < was { // opened anew meanwhile
			was = 0
		}
		return float64(is-was) / seconds
	}
	c, o := d.Counters, old.Counters
	out := topDevice{Name: d.Name, Port: d.Port, Latency: d.Latency, Regions: d.Regions, QPs: []topQP{},
		Sent:  rate{per(o["sent_pkts"], c["sent_pkts"]), 8 * per(o["sent_bytes"], c["sent_bytes"])},
		Rcvd:  rate{per(o["rcvd_pkts"], c["rcvd_pkts"]), 8 * per(o["rcvd_bytes"], c["rcvd_bytes"])},
		Drops: per(total(old.Drops), total(d.Drops)),
	}
	was := map[uint32]*observe.QP{}
	for i := range old.QPs {
		was[old.QPs[i].QPN] = &old.QPs[i]
	}
	for _, q := range d.QPs {
		w := was[q.QPN]
		if w == nil {
			w = &observe.QP{}
		}
		out.QPs = append(out.QPs, topQP{QP: q, Resends: per(w.Retransmits, q.Retransmits),
			Sent: rate{per(w.SentPkts, q.SentPkts), 8 * per(w.SentBytes, q.SentBytes)},
			Rcvd: rate{per(w.RcvdPkts, q.RcvdPkts), 8 * per(w.RcvdBytes, q.RcvdBytes)}})
	}
	slices.SortStableFunc(out.QPs, func(a, b topQP) int {
		if reverse {
			return order(&b, &a)
		}
		return order(&a, &b)
	})
	slices.SortStableFunc(out.Regions, func(a, b observe.Region) int { return cmp.Compare(b.Length, a.Length) })
	return out
}

func total(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// write prints the table, of each device at most so many QPs and regions; 0: all.
func (t *topTable) write(out io.Writer, rows int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (process %d) at %s\n", t.Program, t.PID, t.Time.Local().Format(time.TimeOnly))
	for i := range t.Devices {
		d := &t.Devices[i]
		fmt.Fprintf(&b, "\n%s %s  sends %s, %s  receives %s, %s  drops %.0f/s\n", d.Name, d.Port,
			packets(d.Sent.Pkts), bitrate(d.Sent.Bits), packets(d.Rcvd.Pkts), bitrate(d.Rcvd.Bits), d.Drops)
		writeQPs(&b, d.QPs, rows)
		writeRegions(&b, d.Regions, rows)
	}
	if len(t.Devices) == 0 {
		b.WriteString("\nno device is open\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func writeQPs(b *strings.Builder, qps []topQP, rows int) {
	w := newTable(b)
	fmt.Fprintln(w, "QPN\tTYPE\tSTATE\tPEER\tTX\tRX\tPKT/S\tINFLIGHT\tSQ\tRQ\tRTT\tRETRANS\tTIMEOUTS\tLAST ERROR")
	for i := range qps {
		if rows > 0 && i == rows {
			fmt.Fprintf(w, "…\t%d more\n", len(qps)-rows)
			break
		}
		q := &qps[i]
		peer, rtt, why := "-", "-", "-"
		if q.Peer != "" {
			peer = fmt.Sprintf("%s/%#x", q.Peer, q.PeerQPN)
		}
		if q.RTT > 0 {
			rtt = fmt.Sprintf("%.0fµs", q.RTT)
		}
		if q.LastError != "" {
			why = q.LastError
		}
		fmt.Fprintf(w, "%#x\t%s\t%s\t%s\t%s\t%s\t%s\t%d/%d\t%d\t%d\t%s\t%d\t%d\t%s\n", q.QPN, q.Type, q.State, peer,
			bitrate(q.Sent.Bits), bitrate(q.Rcvd.Bits), scale(q.Sent.Pkts+q.Rcvd.Pkts), q.InFlight, q.Window, q.SendQueue,
			q.RecvQueue, rtt, q.Retransmits, q.Timeouts, why)
	}
	_ = w.Flush()
}

func writeRegions(b *strings.Builder, regions []observe.Region, rows int) {
	if len(regions) == 0 {
		return
	}
	w := newTable(b)
	fmt.Fprintln(w, "KEY\tKIND\tSTATE\tSIZE\tADDRESS\tPD\tWINDOWS\tACCESS")
	for i := range regions {
		if rows > 0 && i == rows {
			fmt.Fprintf(w, "…\t%d more\n", len(regions)-rows)
			break
		}
		r := &regions[i]
		fmt.Fprintf(w, "%#x\t%s\t%s\t%s\t%#x\t%#x\t%d\t%s\n", r.Key, r.Kind, r.State, size(r.Length),
			r.Addr, r.PD, r.Windows, r.Access)
	}
	_ = w.Flush()
}

// writeStat prints counters.
func writeStat(out io.Writer, s *observe.Snapshot) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (process %d)\n", s.Program, s.PID)
	for i := range s.Devices {
		d := &s.Devices[i]
		mode := d.XDPMode
		if mode == "" {
			mode = "none"
		}
		fmt.Fprintf(&b, "\n%s %s, link MTU %d, XDP %s, zero-copy %v, %d queues, %d QPs, %d regions, link went down %d times\n",
			d.Name, d.Port, d.LinkMTU, mode, d.ZeroCopy, len(d.Shards), len(d.QPs), len(d.Regions), d.LinkDowns)
		w := newTable(&b)
		for _, part := range []struct {
			name   string
			values map[string]uint64
		}{{"engine", d.Counters}, {"dropped or refused", d.Drops}, {"refused keys", d.KeyFaults},
			{"XDP program", d.Steering}} {
			writeCounts(w, part.name, part.values)
		}
		for i := range d.Shards {
			writeCounts(w, fmt.Sprintf("socket of queue %d", i), d.Shards[i].XDP)
		}
		if len(d.Latency) > 0 {
			fmt.Fprintln(w, "completion latency, sampled\tmean\tp50 <\tp99 <\tp99.9 <\tsamples")
		}
		for _, op := range slices.Sorted(maps.Keys(d.Latency)) {
			l := d.Latency[op]
			fmt.Fprintf(w, "  %s\t%.1fµs\t%.0fµs\t%.0fµs\t%.0fµs\t%d\n", op, l.Mean, l.P50, l.P99, l.P999, l.Count)
		}
		_ = w.Flush()
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeCounts prints those that are not 0.
func writeCounts(w io.Writer, name string, values map[string]uint64) {
	if total(values) == 0 {
		return
	}
	fmt.Fprintln(w, name)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if values[k] > 0 {
			fmt.Fprintf(w, "  %s\t%d\n", k, values[k])
		}
	}
}

// scale prints a number with three digits or so.
func scale(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.2fG", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

// size prints bytes.
func size(n uint64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if u := uint64(1) << (30 - 10*i); n >= u {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u)), ".0") + unit
		}
	}
	return fmt.Sprintf("%dB", n)
}

func packets(v float64) string { return scale(v) + " pkt/s" }

func bitrate(v float64) string { return scale(v) + "b/s" }
