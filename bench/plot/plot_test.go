package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/bench"
	"github.com/roxie-rdma/roxie/internal/perf"
)

func sample() *bench.Report {
	dist := []perf.Quantile{{Q: 0.01, Us: 3}, {Q: 0.5, Us: 4}, {Q: 0.99, Us: 9}, {Q: 0.999, Us: 30}}
	return &bench.Report{LinkMTU: 9000, XDPMode: "native", Cores: 2, CPU: "some CPU",
		Cells: []bench.Cell{
			{Test: "write_bw", Size: 8, PMTU: 4096, Gbps: 0.05, Mpps: 0.8, RawGbps: 0.9, RawMpps: 1.4},
			{Test: "write_bw", Size: 65536, PMTU: 4096, Gbps: 18, Mpps: 0.03, RawGbps: 23, RawMpps: 0.7},
			{Test: "write_bw", Size: 65536, PMTU: 1024, Gbps: 8, Mpps: 0.015, RawGbps: 11, RawMpps: 1.2},
			{Test: "send_lat", Size: 64, PMTU: 4096, Dist: dist, RawDist: dist, Progress: "caller"},
		},
		TCP:    []bench.TCP{{Size: 65536, Gbps: 20}},
		Engine: &bench.Engine{QPs: []bench.QPCost{{QPs: 1, Packet: 200}, {QPs: 10000, Packet: 300}}},
		Loads:  &bench.Loads{QPs: []bench.WireQPs{{QPs: 1, CPU: 900}, {QPs: 10000, CPU: 1400}}},
		Loss:   []bench.Loss{{}, {Rate: 0.001, Share: 0.9, FixedShare: 0.8}, {Rate: 0.01, Share: 0.6, FixedShare: 0.5}},
	}
}

// texts returns what stands in an SVG file, which must be well-formed.
func texts(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b strings.Builder
	for d := xml.NewDecoder(f); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c, ok := tok.(xml.CharData); ok {
			b.WriteString(strings.TrimSpace(string(c)) + "\n")
		}
	}
}

func TestPlots(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "r.json")
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in, text, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := run(in, filepath.Join(dir, "out"), io.Discard); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"goodput":  {"WRITE, PMTU 4096", "raw AF_XDP, frames as for PMTU 1024", "TCP, one stream, no XDP", "64 Ki", "Gb/s"},
		"messages": {"WRITE, PMTU 1024", "million messages a second", "raw AF_XDP frames, PMTU 4096"},
		"latency":  {"SEND, caller", "raw AF_XDP", "99.9 %", "µs"},
		"qps":      {"engine alone, a packet, both ends", "veth pair, a message, both ends with kernel", "10000"},
		"loss":     {"simulated: virtual time", "go-back-N, window fixed at 128", "0.1"},
	} {
		got := texts(t, filepath.Join(dir, "out", name+".svg"))
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s.svg: no %q in\n%s", name, want, got)
			}
		}
	}
}

// A report with less in it makes fewer pictures, and a single point is one, too.
func TestPartialReport(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "r.json")
	if err := os.WriteFile(in, []byte(`{"loss":[{"rate":0},{"rate":0.01,"share":0.5,"fixed_share":0.4}]}`),
		0o666); err != nil {
		t.Fatal(err)
	}
	if err := run(in, dir, io.Discard); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != "loss.svg" {
		t.Errorf("%v, %v", files, err)
	}
	if err := run(filepath.Join(dir, "none.json"), dir, io.Discard); err == nil {
		t.Error("a report that is not there was drawn")
	}
}

func TestDocument(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"r.json": string(text), "r.txt": "the tables\n",
		"doc.md": "Before\n" + beginMark + "old\n" + endMark + "After\n", "bare.md": "nothing\n"} {
		if err := os.WriteFile(at(name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // doing it again changes nothing
		if err := document(at("doc.md"), at("r.txt"), at("r.json"), at("pictures")); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(at("doc.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Before\n" + beginMark, "```\nthe tables\n```\n", "](pictures/loss.svg)",
			endMark + "After\n"} {
			if strings.Count(string(got), want) != 1 {
				t.Errorf("%q is not there once in\n%s", want, got)
			}
		}
		if strings.Contains(string(got), "old") {
			t.Errorf("old results are left in\n%s", got)
		}
	}
	if err := document(at("bare.md"), at("r.txt"), at("r.json"), dir); err == nil {
		t.Error("a document without marks was taken")
	}
}
