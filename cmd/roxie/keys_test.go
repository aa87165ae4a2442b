package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeys: the rules hold, in memory and over a veth pair.
func TestKeys(t *testing.T) {
	for _, args := range [][]string{{"keys"}, {"keys", "--lab"}} {
		if len(args) > 1 {
			needRoot(t)
		}
		code, stdout, stderr := cli(args...)
		if code != exitOK || !strings.Contains(stdout, "rules hold here") || stderr != "" {
			t.Errorf("%v: code %d, %s", args, code, stderr)
		}
	}
	if own := ownLabs(t); len(own) > 0 {
		t.Errorf("labs left: %v", own)
	}
}

// TestStorageLoads runs the loads with both ends as processes, and looks at what they write.
func TestStorageLoads(t *testing.T) {
	needRoot(t)
	for _, args := range [][]string{
		{"srp", "--no-4k"}, {"rtrs", "-s", "4096", "--invalidate", "local", "--progress", "poller"},
		{"srp", "--persistent"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "r.json")
			code, stdout, stderr := cli(append([]string{"perf"}, append(args, "--lab", "-D", "0.2",
				"--channels", "2", "--depth", "8", "--json", file)...)...)
			if code != exitOK || !strings.Contains(stdout, "bytes verified") {
				t.Fatalf("code %d: %s%s", code, stdout, stderr)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"iops", "regs_per_s", "invs_per_s", "maps", "errors",
				"verified_bytes", "mismatches"} {
				v, ok := got[name].(float64)
				idle := strings.HasPrefix(name, "e") || strings.HasPrefix(name, "mism") ||
					args[len(args)-1] == "--persistent" && strings.HasSuffix(name, "_per_s")
				if !ok || (v == 0) != idle {
					t.Errorf("%s is %v", name, got[name])
				}
			}
			_, small := got["size_4k"]
			if want := args[len(args)-1] == "--persistent"; small != want {
				t.Errorf("a second load of 4 KiB: %v, want %v", small, want)
			}
		})
	}
	code, _, stderr := cli("perf", "srp", "--lab", "-D", "0.1", "-s", "4096", "--verify-inject", "1")
	if code != exitFailure || !strings.Contains(stderr, "bytes arrived wrong") {
		t.Errorf("with a byte changed: code %d, %s", code, stderr)
	}
	if own := ownLabs(t); len(own) > 0 {
		t.Errorf("labs left: %v", own)
	}
}

func TestStorageUsage(t *testing.T) {
	for _, tt := range []struct{ args, stderr string }{
		{"perf srp", "give it with -d"},
		{"perf srp --lab 10.0.0.1", "leave the server's address out"},
		{"perf rtrs --lab -d eth0", "leave -d out"},
		{"perf srp --lab -D 0", "out of range"},
		{"perf srp --lab -s 100", "-s 100 is out of range"},
		{"perf srp --lab --invalidate never", "mixed, local or remote"},
		{"perf srp -d eth0 --link-mtu 1500", "--lab as well"},
		{"bench --only keys,write", "stands alone"},
		{"keys now", "see roxie keys --help"},
	} {
		code, _, stderr := cli(strings.Fields(tt.args)...)
		if code != exitUsage || !strings.Contains(stderr, tt.stderr) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: code %d, %q, want %q in one line", tt.args, code, stderr, tt.stderr)
		}
	}
}
