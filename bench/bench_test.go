package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/internal/perf"
)

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name  string
		o     Options
		tests string // in order, each once
		cells int
	}{
		{"all", Options{}, "write_bw read_bw send_bw write_lat send_lat read_lat", 17},
		{"quick", Options{Quick: true}, "write_bw read_bw send_bw write_lat send_lat read_lat", 10},
		{"raw", Options{Only: []string{"raw"}}, "raw", 8},
		{"raw and others", Options{Only: []string{"raw", "send_lat"}}, "send_lat", 2},
		{"operation", Options{Only: []string{"write"}, Quick: true}, "write_bw write_lat", 4},
		{"full", Options{Full: true}, "write_bw read_bw send_bw write_lat send_lat read_lat", 22},
		{"kind", Options{Only: []string{"lat"}}, "write_lat send_lat read_lat", 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cells, err := tt.o.plan()
			if err != nil {
				t.Fatal(err)
			}
			var tests []string
			for _, c := range cells {
				if len(tests) == 0 || tests[len(tests)-1] != c.Test {
					tests = append(tests, c.Test)
				}
			}
			if got := strings.Join(tests, " "); got != tt.tests || len(cells) != tt.cells {
				t.Errorf("%d cells of %q, want %d of %q", len(cells), got, tt.cells, tt.tests)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for only, ok := range map[string]bool{"raw": true, "write": true, "bw": true, "read_lat": true,
		"tcp": false, "write_": false, "": false, "atomic_bw": false} {
		o := Options{Only: []string{only}}
		if err := o.Check(); (err == nil) != ok {
			t.Errorf("--only %q: %v", only, err)
		}
	}
	if err := (&Options{Progress: "both"}).Check(); err == nil {
		t.Error("--progress both is accepted")
	}
}

// The raw frames are of the length that the issue names for the usual sizes.
func TestFrameOf(t *testing.T) {
	for _, tt := range []struct {
		op         perf.Op
		size, pmtu int
		want       int
	}{
		{perf.Write, 65536, 4096, 4154}, {perf.Write, 65536, 1024, 1082}, {perf.Send, 64, 4096, 122},
		{perf.Write, 8, 4096, 82}, {perf.Send, 5, 1024, 66}, {perf.Read, 64, 4096, 126},
	} {
		if got := frameOf(tt.op, tt.size, tt.pmtu); got != tt.want {
			t.Errorf("%v of %d bytes at PMTU %d: %d bytes, want %d", tt.op, tt.size, tt.pmtu, got, tt.want)
		}
	}
}

// rates are three rounds of a bandwidth cell.
func rates(raw, ours []float64) []round {
	var all []round
	for i := range raw {
		r := round{raw: raw[i], rawGbps: raw[i], rawMpps: raw[i] / 10, ours: ours[i]}
		r.result = perf.Result{BWGbps: ours[i], MsgRate: ours[i] / 100, Verified: 1000, Retransmit: 1,
			Progress: "poller"}
		all = append(all, r)
	}
	return all
}

func TestBestOfRounds(t *testing.T) {
	c := Cell{Test: "write_bw", Size: 65536, PMTU: 4096, Frame: 4154}
	c.summarise(rates([]float64{20, 25, 22}, []float64{18, 12, 20}))
	if c.Gbps != 20 || c.RawGbps != 25 || c.Ratio != 0.8 || c.MedianGbps != 18 || c.Verified != 3000 ||
		c.Retransmit != 3 || c.Rounds != 3 {
		t.Errorf("%+v", c)
	}
	want := "write_bw size=65536 pmtu=4096 gbps=20.00 raw_gbps=25.00 ratio=0.80"
	if got := c.Line(); got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	small := Cell{Test: "write_bw", Size: 8, PMTU: 4096, Frame: 82, small: true}
	small.summarise([]round{{raw: 1.4, rawMpps: 1.4, ours: 0.7, result: perf.Result{MsgRate: 0.7}}})
	want = "write_bw size=8 pmtu=4096 mpps=0.700 raw_mpps=1.400 ratio=0.50"
	if got := small.Line(); got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	lat := Cell{Test: "send_lat", Size: 64, PMTU: 4096, Frame: 122, lat: true}
	lat.summarise([]round{
		{raw: 3, rawP99: 9, ours: 6, result: perf.Result{Lat: &perf.Latency{P50: 6, P99: 10}}},
		{raw: 2.5, rawP99: 8, ours: 5, result: perf.Result{Lat: &perf.Latency{P50: 5, P99: 20}}},
	})
	want = "send_lat size=64 pmtu=4096 p50_us=5.00 raw_p50_us=2.50 ratio=2.00 p99_us=20.00 " +
		"raw_p99_us=8.00"
	if got := lat.Line(); got != want {
		t.Errorf("line %q, want %q", got, want)
	}
}

func TestReport(t *testing.T) {
	r := &Report{LinkMTU: 9000, XDPMode: "native", Cores: 2, CPU: "some CPU", Kernel: "6.18",
		Seconds: 100}
	describeMachine(&Report{})
	for _, pmtu := range []int{1024, 4096} {
		c := Cell{Test: "write_bw", Size: 65536, PMTU: pmtu}
		c.summarise(rates([]float64{20}, []float64{15}))
		r.Cells = append(r.Cells, c)
	}
	r.Cells = append(r.Cells, Cell{Test: "send_lat", Size: 64, PMTU: 4096, lat: true, P50: 5,
		RawP50: 2.5,
		Ratio:  2, P99: 9, RawP99: 6, Progress: "caller"})
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"veth pair with link MTU 9000, native XDP, copy; 2 cores, some CPU, Linux 6.18; 100 s\n",
		"write_bw        65536 │      15.00      20.00       0.75 │      15.00      20.00       " +
			"0.75\n",
		"send_lat           64   4096 │       5.00       2.50       2.00 │       9.00       6.00 │ caller\n",
		"\nwrite_bw size=65536 pmtu=1024 gbps=15.00 raw_gbps=20.00 ratio=0.75\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	var text bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || len(back.Cells) != 3 ||
		back.Cells[0].Ratio != 0.75 {
		t.Errorf("JSON reads back as %+v, %v", back, err)
	}
}
