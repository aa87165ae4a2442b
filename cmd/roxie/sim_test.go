package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/sim/soak"
)

// sim runs the command with a JSON file and returns its report.
func simulate(t *testing.T, args ...string) (r map[string]any, out string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sim.json")
	var stdout, stderr bytes.Buffer
	code = run(context.Background(), append([]string{"sim", "--json", file}, args...), &stdout, &stderr)
	if b, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
	}
	return r, stdout.String() + stderr.String(), code
}

// TestSimReport: the keys of the JSON file, all operations and faults among them; one seed gives one
// trace, whatever runs at a time, and another seed another.
func TestSimReport(t *testing.T) {
	args := []string{"--runs", "4", "--packets", "12000", "--drop", "0.02", "--seed", "3"}
	a, out, code := simulate(t, args...)
	if code != exitOK || a == nil {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for _, key := range []string{"packets", "delivered", "dropped", "duplicated", "reordered", "corrupted",
		"retransmits", "packets_per_second"} {
		if v, ok := a[key].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", key, a[key])
		}
	}
	ops, _ := a["ops_by_kind"].(map[string]any)
	for k := soak.Kind(0); k < soak.NumKinds; k++ {
		if v, ok := ops[k.String()].(float64); !ok || v <= 0 {
			t.Errorf("ops_by_kind: %v is %v", k, ops[k.String()])
		}
	}
	if v, ok := a["violations"].(float64); !ok || v != 0 {
		t.Errorf("violations is %v", a["violations"])
	}
	b, _, _ := simulate(t, append(args, "--jobs", "3")...)
	c, _, _ := simulate(t, append(args, "--seed", "4")...)
	if a["trace_sha256"] != b["trace_sha256"] || a["trace_sha256"] == c["trace_sha256"] {
		t.Errorf("traces %v, %v of one seed, %v of another", a["trace_sha256"], b["trace_sha256"], c["trace_sha256"])
	}
}

// TestSimCodes: what makes no sense ends with 2, a conversation that goes another way with 1.
func TestSimCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	talk, err := os.ReadFile("../../rxe/testdata/send.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"probability", []string{"--drop", "2"}, exitUsage, "no probability"},
		{"runs", []string{"--runs", "0"}, exitUsage, "out of range"},
		{"mutant", []string{"--mutant", "no-such-bug"}, exitUsage, "planted bug"},
		{"no script", []string{"--script", filepath.Join(dir, "none")}, exitFailure, "no such file"},
		{"broken script", []string{"--script", file("a", "explode n1")}, exitFailure, "line 1"},
		{"faults", []string{"--runs", "1", "--packets", "3000", "--script", file("b", "drop count=7"), "--drop", "0",
			"--dup", "0", "--reorder", "0", "--corrupt", "0", "--delay", "0"}, exitOK, "7 dropped"},
		{"conversation", []string{"--script", file("c", string(talk))}, exitOK, "RECV"},
		{"another way", []string{"--script", file("d", strings.Replace(string(talk), "success", "luck", 1))},
			exitFailure, "another way"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, out, code := simulate(t, c.args...); code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("exit code %d, want %d with %q: %s", code, c.code, c.says, out)
			}
		})
	}
}

// TestSimPcap: the frames of a run, as roxie decode reads them: those that are sent, before their faults.
func TestSimPcap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sim.pcapng")
	r, out, code := simulate(t, "--runs", "2", "--packets", "2000", "--pcap", file)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, out)
	}
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"decode", file}, &stdout, &stderr); code != exitOK {
		t.Fatalf("decode: exit code %d: %s", code, &stderr)
	}
	if n := strings.Count(stdout.String(), "\n"); float64(n) != r["packets"] {
		t.Errorf("%d packets captured, %v sent", n, r["packets"])
	}
}

// TestSimAgain: a failure prints its seed and a command that repeats it.
func TestSimAgain(t *testing.T) {
	o := &simOptions{Options: soak.Options{Seed: 9, Packets: 100, Faults: soak.DefaultFaults}, runs: 3}
	s := &simulation{o: o}
	s.add(&soak.Result{Violations: []soak.Violation{{Seed: 11, At: 5, Text: "two and two are five"}}})
	var out bytes.Buffer
	if err := s.report(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seed=11", "two and two are five", "roxie sim --seed 11 --runs 1 --packets 100"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %s", want, &out)
		}
	}
}
