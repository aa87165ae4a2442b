package perf

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Result is what one message size gave. Its JSON form is that of --json.
type Result struct {
	Test       string   `json:"test"`
	Transport  string   `json:"transport"`
	Size       int      `json:"size"` // bytes
	PMTU       int      `json:"pmtu"`
	QPs        int      `json:"qps"`
	Iterations uint64   `json:"iterations"` // messages, of all QPs
	Seconds    float64  `json:"seconds"`
	BWGbps     float64  `json:"bw_gbps"`      // payload, 10^9 bits a second
	BWPeakGbps float64  `json:"bw_peak_gbps"` // the best stretch of at least 5 ms
	MsgRate    float64  `json:"msg_rate_mpps"`
	Lat        *Latency `json:"lat_us"` // null for bandwidth tests
	Packets    uint64   `json:"packets"`
	Retransmit uint64   `json:"retransmits"`
	Lost       uint64   `json:"lost_messages"` // UC and UD
	Verified   uint64   `json:"verified_bytes"`
	Mismatches uint64   `json:"mismatches"` // bytes
	XDPMode    string   `json:"xdp_mode"`
	ZeroCopy   bool     `json:"zerocopy"`
	Progress   string   `json:"progress"`

	First string `json:"first_mismatch,omitempty"`
}

// Err says why a result is no good: a byte that was not what was sent, or nothing to compare.
func (r *Result) Err() error {
	if r.Mismatches > 0 {
		return fmt.Errorf("%s: %d of %d bytes arrived wrong; the first: %s; report it, with a "+
			"capture "+
			"(--pcap FILE)", r.Test, r.Mismatches, r.Verified, r.First)
	}
	return nil
}

// WriteJSON writes results as JSON: one object, or a list if all sizes were asked for.
func WriteJSON(w io.Writer, results []Result, list bool) error {
	var v any = results
	if !list && len(results) == 1 {
		v = results[0]
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Setup is what the head of the table tells about a run.
type Setup struct {
	Test      Test
	Transport Transport
	Interface string
	XDPMode   string
	ZeroCopy  bool
	Progress  Progress
	QPs       int
	TXDepth   int
	RXDepth   int
	CQMod     int
	PMTU      int
	Inline    int
	GIDIndex  int
	VLAN      int
	Events    bool
	Verify    bool
	Server    bool
	Local     []Address
	Remote    []Address
}

// Address is one end of a connection in the head of the table.
type Address struct {
	QPN, PSN, RKey uint32
	VAddr          uint64
	GID            string
}

var rule = strings.Repeat("-", 87)

// maxAddresses is how many connections the head of a table lists.
const maxAddresses = 16

func title(t Test) string {
	kind := "BW"
	if t.Latency {
		kind = "Latency"
	}
	return fmt.Sprintf("%v %s Test", t.Op, kind)
}

// WriteSetup prints the head of the table, in the layout of perftest's.
func WriteSetup(w io.Writer, s *Setup) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%*s%s\n", rule, 20, "", title(s.Test))
	row := func(k1 string, v1 any, k2 string, v2 any) {
		fmt.Fprintf(&b, " %-15s : %-15v", k1, v1)
		if k2 != "" {
			fmt.Fprintf(&b, " %-15s : %v", k2, v2)
		}
		b.WriteString("\n")
	}
	copyMode := "copy"
	if s.ZeroCopy {
		copyMode = "zero-copy"
	}
	row("Interface", s.Interface, "XDP mode", s.XDPMode+", "+copyMode)
	row("Number of qps", s.QPs, "Transport type", s.Transport)
	row("Progress", s.Progress, "Using events", onOff(s.Events))
	depth, value := "TX depth", s.TXDepth
	if s.Server && s.Test.Op == Send {
		depth, value = "RX depth", s.RXDepth
	}
	if s.Test.Latency {
		row(depth, value, "Verify", onOff(s.Verify))
	} else {
		row(depth, value, "CQ Moderation", s.CQMod)
	}
	if !s.Test.Latency {
		row("Mtu", fmt.Sprintf("%d[B]", s.PMTU), "Verify", onOff(s.Verify))
	} else {
		row("Mtu", fmt.Sprintf("%d[B]", s.PMTU), "", nil)
	}
	row("Max inline data", fmt.Sprintf("%d[B]", s.Inline), "GID index", s.GIDIndex)
	if s.VLAN != 0 {
		row("VLAN", s.VLAN, "", nil)
	}
	b.WriteString(rule + "\n")
	for _, side := range []struct {
		name  string
		addrs []Address
	}{{"local", s.Local}, {"remote", s.Remote}} {
		for i, a := range side.addrs {
			if i == maxAddresses {
				fmt.Fprintf(&b, " ... and %d more\n", len(side.addrs)-i)
				break
			}
			fmt.Fprintf(&b, " %s address: QPN %#06x PSN %#06x", side.name, a.QPN, a.PSN)
			if s.Test.Op != Send {
				fmt.Fprintf(&b, " RKey %#08x VAddr %#012x", a.RKey, a.VAddr)
			}
			fmt.Fprintf(&b, "\n GID: %s\n", a.GID)
		}
	}
	b.WriteString(rule + "\n" + columns(s.Test) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func onOff(on bool) string {
	if on {
		return "ON"
	}
	return "OFF"
}

// columns is the line above the figures.
func columns(t Test) string {
	if t.Latency {
		return " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]" +
			"    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
	}
	return " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
}

// WriteRow prints the figures of one size.
func WriteRow(w io.Writer, t Test, r *Result) error {
	var err error
	if l := r.Lat; l != nil {
		_, err = fmt.Fprintf(w, " %-7d %-14d %-14.2f %-14.2f %-16.2f %-14.2f %-16.2f %-22.2f "+
			"%.2f\n",
			r.Size, r.Iterations, l.Min, l.Max, l.P50, l.Avg, l.Stddev, l.P99, l.P999)
	} else {
		_, err = fmt.Fprintf(w, " %-10d %-14d %-18.2f %-20.2f %.6f\n",
			r.Size, r.Iterations, r.BWPeakGbps, r.BWGbps, r.MsgRate)
	}
	return err
}

// WriteEnd prints what follows the figures: verification, losses, retransmissions.
func WriteEnd(w io.Writer, results []Result) error {
	var packets, again, lost, verified uint64
	for i := range results {
		r := &results[i]
		packets += r.Packets
		again += r.Retransmit
		lost += r.Lost
		verified += r.Verified
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n %d packets, %d retransmitted", rule, packets, again)
	if lost > 0 {
		fmt.Fprintf(&b, ", %d messages lost", lost)
	}
	if verified > 0 {
		fmt.Fprintf(&b, ", %d bytes verified", verified)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}
