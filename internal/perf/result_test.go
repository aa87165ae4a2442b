package perf

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLatencySummary(t *testing.T) {
	l := newLatencies()
	if l.summary() != nil {
		t.Error("a summary of nothing")
	}
	for i := int64(1); i <= 1000; i++ {
		l.record(i * 1000)
	}
	s := l.summary()
	for _, v := range []struct {
		name      string
		got, want float64
	}{{"min", s.Min, 1}, {"p50", s.P50, 500}, {"p99", s.P99, 990}, {"p999", s.P999, 999},
		{"max", s.Max, 1000}, {"avg", s.Avg, 500.5}} {
		if math.Abs(v.got-v.want) > v.want/500 {
			t.Errorf("%s %v µs, want %v", v.name, v.got, v.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.record(12345) }); n != 0 {
		t.Errorf("%v allocations to record one", n)
	}
}

func TestPeak(t *testing.T) {
	var r rates
	ms := time.Millisecond
	r.sample(10*ms, 1000)
	r.sample(12*ms, 5000) // too short a stretch to judge by
	r.sample(30*ms, 5000) // 4000 in 20 ms
	r.sample(50*ms, 5000) // nothing moved: the stretch goes on
	r.sample(60*ms, 9000) // 4000 in 30 ms, not in 10
	if want := 200000.0; math.Abs(r.best-want) > 1 {
		t.Errorf("peak %v bytes/s, want %v", r.best, want)
	}
}

var sampleResult = Result{
	Test: "send_lat", Transport: "RC", Size: 64, PMTU: 4096, QPs: 1, Iterations: 1000, Seconds: 0.01,
	BWGbps: 0.05, BWPeakGbps: 0.06, MsgRate: 0.1,
	Lat:     &Latency{Min: 4.1, P50: 4.6, P99: 9, P999: 20, Max: 33, Avg: 5, Stddev: 1.5},
	Packets: 4000, Retransmit: 2, Verified: 128000, XDPMode: "native", Progress: "caller",
}

// The keys that issue and users rely on.
func TestJSONKeys(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, []Result{sampleResult}, false); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("test transport size pmtu qps iterations seconds bw_gbps " +
		"msg_rate_mpps lat_us packets retransmits verified_bytes mismatches xdp_mode zerocopy " +
		"progress") {
		if _, ok := got[key]; !ok {
			t.Errorf("no key %q in %s", key, &b)
		}
	}
	lat, _ := got["lat_us"].(map[string]any)
	for _, key := range []string{"min", "p50", "p99", "p999", "max"} {
		if _, ok := lat[key]; !ok {
			t.Errorf("no key %q in lat_us", key)
		}
	}
	var list []Result
	b.Reset()
	if err := WriteJSON(&b, []Result{sampleResult}, true); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &list); err != nil || len(list) != 1 {
		t.Errorf("list of sizes: %d, %v", len(list), err)
	}
}

// The layout is that of perftest's tables, so that its users and their scripts find what they know.
func TestTable(t *testing.T) {
	var b bytes.Buffer
	lat := testNamed(t, "send_lat")
	s := &Setup{Test: lat, Transport: RC, Interface: "veth0", XDPMode: "native", Progress: Caller,
		QPs:     1,
		TXDepth: 128, CQMod: 100, PMTU: 4096, Inline: 236, GIDIndex: 1,
		Local:  []Address{{QPN: 0x11, PSN: 0xabc, GID: "10.77.0.2"}},
		Remote: slices.Repeat([]Address{{QPN: 0x12, PSN: 0xdef, GID: "10.77.0.1"}}, maxAddresses+2)}
	err := WriteSetup(&b, s)
	if err == nil {
		err = WriteRow(&b, lat, &sampleResult)
	}
	if err == nil {
		err = WriteEnd(&b, []Result{sampleResult})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"                    Send Latency Test\n",
		" Number of qps   : 1               Transport type  : RC\n",
		" local address: QPN 0x000011 PSN 0x000abc\n GID: 10.77.0.2\n",
		" ... and 2 more\n",
		" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]",
		"\n 64      1000           4.10           33.00          4.60             5.00 ",
		" 4000 packets, 2 retransmitted, 128000 bytes verified\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestMismatchIsAnError(t *testing.T) {
	r := sampleResult
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	r.Mismatches, r.First = 1, "QP 0, message 7"
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "QP 0, message 7") {
		t.Errorf("got %v", err)
	}
}
