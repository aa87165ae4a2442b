package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestResume: what has run is not run again, unless it failed and that is asked for.
func TestResume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "report.json")
	cells := []*scenario{
		{Cell: base("rping", "client", "RC", ""), matrix: true},
		{Cell: base("rping", "server", "RC", ""), matrix: true},
		{Cell: base("mckey", "server", "UD", "cm")},
		{Cell: base("mckey", "client", "UD", "cm")},
	}
	var r Report
	if left, err := r.resume(file, cells, false, true); err != nil || len(left) != len(cells) {
		t.Fatalf("before anything ran: %d are left, %v", len(left), err)
	}
	r.Cells = []Outcome{{Cell: cells[0].Cell, OK: true, Seconds: 2}}
	r.Scenarios = []Outcome{{Cell: cells[2].Cell, Reason: "no luck", Seconds: 3}}
	var out bytes.Buffer
	r.finish(&out, 7)
	if !strings.Contains(out.String(), "1 of 2 are ok") || r.Slowest != cells[2].String() || r.Failed != 1 {
		t.Errorf("%d failed, the slowest is %q, and it says:\n%s", r.Failed, r.Slowest, out.String())
	}
	if err := r.writeJSON(file); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		again bool
		want  []*scenario
		kept  int
	}{
		{false, []*scenario{cells[1], cells[3]}, 2},
		{true, cells[1:], 1},
	} {
		var r Report
		left, err := r.resume(file, cells, c.again, true)
		if err != nil {
			t.Fatal(err)
		}
		same := len(left) == len(c.want)
		for i := range left {
			same = same && left[i] == c.want[i]
		}
		if kept := len(r.Cells) + len(r.Scenarios); !same || kept != c.kept || r.Again != 2-c.kept || r.Seconds != 7 {
			t.Errorf("again=%v: %v are left, %d kept, after %v s", c.again, left, kept, r.Seconds)
		}
	}
	for whole, want := range map[bool]int{false: 2, true: 1} { // cells[0] is no cell any more
		var r Report
		if _, err := r.resume(file, cells[1:], false, whole); err != nil || len(r.Cells)+len(r.Scenarios) != want {
			t.Errorf("whole=%v: %d are kept, %v", whole, len(r.Cells)+len(r.Scenarios), err)
		}
	}
	text := string(r.document())
	for _, want := range []string{"cells have run**, and 1 others: 1 are ok, 0 failed", "| rping | client | RC |  | - | - | - | - | 1/1 |", "no luck"} {
		if !strings.Contains(text, want) {
			t.Errorf("the document does not say %q", want)
		}
	}
}

// TestFigure reads what perftest prints and what roxie does.
func TestFigure(t *testing.T) {
	const mb = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      400              50.00              40.00		   0.000640
`
	const gb = ` #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      400              0.50               0.40                0.000640
`
	const lat = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 64      1000          10.00          90.00        20.00     	       25.00
`
	for _, c := range []struct {
		b    Bench
		text string
		want float64
	}{
		{Bench{Test: "write_bw", Size: 65536}, mb, 40 * 1.048576},
		{Bench{Test: "write_bw", Size: 65536}, gb, 50},
		{Bench{Test: "send_lat", Size: 64}, lat, 20},
	} {
		if v, err := c.b.figure(c.text); err != nil || v != c.want {
			t.Errorf("%s: got %v, %v; want %v", c.b.Test, v, err, c.want)
		}
	}
	b := Bench{Test: "send_lat", Size: 128}
	if v, err := b.figure(lat); err == nil {
		t.Errorf("another size: got %v", v)
	}
}
