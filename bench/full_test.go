package bench

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
)

// TestLoads runs all loads, on a wire in memory. What the figures are is the machine's business; that
// they are there, and that bytes were compared, is not.
func TestLoads(t *testing.T) {
	l, err := LoadsRun(context.Background(), nil, true, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	f, b, s := &l.Fairness, &l.Beside, &l.Setup
	if f.QPs != 16 || f.Most == 0 || f.Ratio <= 0 || f.Ratio > 1 || f.Gbps <= 0 || f.Drops.Packets == 0 {
		t.Errorf("fairness %+v", f)
	}
	if b.WriteBytes != 32<<20 || b.WriteGbps <= 0 || b.IdleP50 <= 0 || b.IdleP99 < b.IdleP50 || b.P99 < b.P50 ||
		b.Messages == 0 {
		t.Errorf("beside a large WRITE %+v", b)
	}
	if s.Connections != 200 || s.Seconds <= 0 || s.HeapPerQP < 1<<10 {
		t.Errorf("setup %+v", s)
	}
	if len(l.QPs) != 3 || l.QPs[2].QPs != 100 || l.QPs[2].Mpps <= 0 || l.QPs[2].CPU <= 0 {
		t.Errorf("QPs in turn %+v", l.QPs)
	}
	if l.Idle.Connections != 64 || l.Idle.WakeP50 <= 0 {
		t.Errorf("idle %+v", l.Idle)
	}
}

// TestLoss: the simulation gives the same figures each time, and losses cost.
func TestLoss(t *testing.T) {
	const span = rxe.Time(10_000_000)
	gbps, again, err := lossy(0.01, 5, false, span)
	if err != nil {
		t.Fatal(err)
	}
	if g2, a2, err := lossy(0.01, 5, false, span); err != nil || g2 != gbps || a2 != again {
		t.Errorf("%v Gb/s and %v again, then %v and %v, %v", gbps, again, g2, a2, err)
	}
	free, none, err := lossy(0, 5, false, span)
	if err != nil || none != 0 || free < 5 || free > 10 || gbps >= free || again <= 0 {
		t.Errorf("without loss %v Gb/s, %v again, %v; with 1 %%: %v Gb/s, %v again", free, none, err, gbps, again)
	}
}

// TestEngineRun measures briefly.
func TestEngineRun(t *testing.T) {
	e, err := EngineRun(context.Background(), true)
	if err != nil {
		t.Fatal(err)
	}
	if e.Yardstick <= 0 || e.ICRC.CRC32 <= 0 || e.ICRC.CopyBuild <= 0 || len(e.QPs) != 2 {
		t.Errorf("%+v", e)
	}
	for _, c := range e.Costs {
		if c.Message <= 0 || c.Packet <= 0 || c.Packet > c.Message {
			t.Errorf("%+v", c)
		}
	}
}

func TestIperfReport(t *testing.T) {
	// iperf3 3.12 -J, shortened.
	const good = `{"start":{"version":"iperf 3.12"},"end":{
		"sum_sent":{"bytes":4563402752,"bits_per_second":36506822690.6,"retransmits":3,"sender":true},
		"sum_received":{"bytes":4559208448,"bits_per_second":36427000000.0,"sender":true}}}`
	var r iperfReport
	if err := r.parse([]byte(good)); err != nil || r.End.Received.BitsPerSecond != 36.427e9 ||
		r.End.Sent.Retransmits != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	for text, want := range map[string]string{
		`{"error":"unable to connect to server: Connection refused"}`: "Connection refused",
		`no JSON`: "read iperf3's report",
	} {
		var r iperfReport
		if err := r.parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Rounds in which raw itself was slow are taken again when that turns out.
func TestInconclusiveRounds(t *testing.T) {
	c := &Cell{Test: "write_bw", Size: 65536, PMTU: 4096, Frame: 4154}
	m := &meter{best: map[frameKind]float64{{4154, false}: 2.5}, until: time.Now().Add(-time.Second)}
	c.rounds = rates([]float64{20, 14.9, 25}, []float64{18, 3, 19})
	for i, want := range []bool{false, true, false} {
		if got := m.inconclusive(c, &c.rounds[i]); got != want {
			t.Errorf("round %d: inconclusive is %v, want %v", i, got, want)
		}
	}
	// Other frames have another best.
	if m.inconclusive(&Cell{Frame: 82}, &c.rounds[1]) {
		t.Error("a round was judged by frames of another size")
	}
	// The time is up: nothing is repeated, nothing lost.
	if err := m.again(context.Background(), []Cell{*c}); err != nil || len(c.rounds) != 3 {
		t.Errorf("%d rounds, %v", len(c.rounds), err)
	}
	if got := spread(c.rounds, func(r *round) float64 { return r.raw }); got < 0.504 || got > 0.506 {
		t.Errorf("spread %v, want (25 - 14.9) ÷ 20", got)
	}
}

func TestFullReport(t *testing.T) {
	r := &Report{LinkMTU: 9000, XDPMode: "native", Cores: 2, Others: 0.5,
		TCP:    []TCP{{Size: 65536, Gbps: 16, Median: 15, Spread: 0.1, Rounds: 3}},
		Engine: &Engine{Yardstick: 200, Costs: []EngineCost{{Op: "write", Size: 64, Batch: 1, Message: 390, Packet: 195}}, QPs: []QPCost{{1, 200}, {10000, 300}}},
		Loads: &Loads{Fairness: Fairness{QPs: 16, Drops: Drops{RXDropped: 7, Packets: 1000}},
			QPs: []WireQPs{{QPs: 1, CPU: 1000}}, GC: []GCEffect{{GC: "off", P999: 10}, {GC: "forced", P999: 15}}},
		Loss: []Loss{{Gbps: 9.8, Share: 1, Fixed: 9.8, FixedShare: 1}, {Rate: 0.01, Gbps: 4.9, Share: 0.5}},
	}
	c := Cell{Test: "write_bw", Size: 65536, PMTU: 4096}
	c.summarise(rates([]float64{25}, []float64{24}))
	r.Cells = []Cell{c}
	compareTCP(r.Cells, r.TCP)
	r.limits()
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"65536 │      16.00      15.00       0.10 │ 1.50\n",
		"write            64      1 │          390          195            0\n",
		" 10000: 300 (1.50)\n",
		"7 dropped for want of a chunk, of 1000 packets",
		"send_lat 64 B, GC forced           99.9 % 15.0 µs (1.50)",
		"  1.00 % │       4.90      0.500",
		"copy mode (native XDP)", "2 cores for two ends", "other programs used 0.50 cores",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"tcp_ratio":1.5`, `"least_bytes"`, `"heap_bytes_per_qp"`, `"percent_of_core"`,
		`"fixed_share"`, `"limits":[`} {
		if !strings.Contains(string(text), key) {
			t.Errorf("no %s in %s", key, text)
		}
	}
}

// The times of /proc are those of the process.
func TestMachineTimes(t *testing.T) {
	before, ticks, all := processTime(), statTicks(), machineTimes()
	start := time.Now()
	for time.Since(start) < 200*time.Millisecond || processTime().user-before.user < 0.1 {
		spin(1000)
	}
	elapsed := time.Since(start).Seconds()
	user, _ := processTime().since(before, elapsed)
	used := float64(statTicks()-ticks) / ticksPerSecond / elapsed
	if user <= 0 || used <= 0 || used < user/2-0.1 {
		t.Errorf("%.2f cores by getrusage, %.2f by /proc/self/stat", user, used)
	}
	if others, stolen := machineTimes().since(all, elapsed); others < 0 || stolen < 0 ||
		others > 1e3 {
		t.Errorf("others %v, stolen %v", others, stolen)
	}
	if rssNow() < 1<<20 || memoryAvailable() < 1<<20 {
		t.Errorf("%d bytes in use, %d available", rssNow(), memoryAvailable())
	}
}
