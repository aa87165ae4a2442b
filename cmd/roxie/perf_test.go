package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/perf"
	"github.com/roxie-rdma/roxie/internal/srpload"
)

// runMain in the environment makes the test binary this program.
const runMain = "ROXIE_TEST_RUN_MAIN"

// TestMain lets the test binary be one end of a lab's pair, which runs this program.
func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" || len(os.Args) > 1 && (os.Args[1] == perf.ChildCommand || os.Args[1] == srpload.ChildCommand) {
		main()
		return
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Skip(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// ownLabs are the labs of this process, of which there should be none between tests.
func ownLabs(t *testing.T) (own []string) {
	t.Helper()
	all, err := lab.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasPrefix(name, lab.Prefix+"."+strconv.Itoa(os.Getpid())+".") {
			own = append(own, name)
		}
	}
	return own
}

func TestPerfUsage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		stderr string
	}{
		{"no test", []string{"perf"}, "write_bw"},
		{"unknown test", []string{"perf", "write_bandwidth"}, "has no command"},
		{"no interface", []string{"perf", "write_bw"}, "give it with -d"},
		{"lab and server", []string{"perf", "write_bw", "--lab", "10.0.0.1"}, "leave the " +
			"server's address out"},
		{"lab and interface", []string{"perf", "write_bw", "--lab", "-d", "eth0"}, "leave -d out"},
		{"link MTU", []string{"perf", "write_bw", "-d", "eth0", "--link-mtu", "1500"}, "--lab as well"},
		{"PMTU", []string{"perf", "write_bw", "--lab", "-m", "1000"}, "no path MTU"},
		{"transport", []string{"perf", "read_bw", "--lab", "-c", "UC"}, "needs RC"},
		{"duration", []string{"perf", "read_bw", "--lab", "-D", "-1"}, "out of range"},
		{"no duration", []string{"perf", "read_bw", "--lab", "-D", "0"}, "out of range"},
		{"odd duration", []string{"perf", "read_bw", "--lab", "-D", "nan"}, "out of range"},
		{"no bytes", []string{"perf", "read_bw", "--lab", "-s", "0"}, "-s 0: "},
		{"no messages", []string{"perf", "read_bw", "--lab", "-n", "0"}, "-n 0: "},
		{"no QPs", []string{"perf", "read_bw", "--lab", "-q", "0"}, "-q 0: "},
		{"no queues", []string{"perf", "read_bw", "--lab", "--queues", "0"}, "--queues 0: "},
		{"too many bytes", []string{"perf", "read_bw", "--lab", "-s", "2147483649"}, "out of range"},
		{"GID index", []string{"perf", "read_bw", "--lab", "-x", "-2"}, "-x -2 is out of range"},
		{"CPU", []string{"perf", "read_bw", "--lab", "--cpu", "-2"}, "--cpu -2 is out of range"},
		{"link MTU of nothing", []string{"perf", "read_bw", "--lab", "--link-mtu", "1"}, "link MTU 1"},
		{"flags of no test", []string{"perf", "write_bandwidth", "--lab", "-s", "1"}, "has no command"},
		{"two servers", []string{"perf", "read_bw", "a", "b"}, "see roxie perf read_bw --help"},
		{"bench", []string{"bench", "--only", "tcp"}, "--only tcp"},
		{"bench progress", []string{"bench", "--progress", "x"}, "caller or poller"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, _, stderr := cli(tt.args...)
			if code != exitUsage || !strings.Contains(stderr, tt.stderr) ||
				!strings.HasPrefix(stderr, "roxie: ") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("code %d, %q, want %q in one line", code, stderr, tt.stderr)
			}
		})
	}
}

// Every test over a veth pair, both ends in processes of their own.
func TestPerfLab(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"write_bw", []string{"-s", "65536", "-m", "4096", "-D", "0.2"}},
		{"read_bw", []string{"-s", "65536", "-m", "1024", "-n", "100"}},
		{"send_bw", []string{"-s", "4096", "-q", "3", "-n", "300", "--queues", "2"}},
		{"atomic_bw", []string{"-n", "300"}},
		{"write_lat", []string{"-s", "64", "-n", "300"}},
		{"read_lat", []string{"-n", "300", "-x", "2"}},
		{"send_lat", []string{"-n", "300", "--vlan", "7", "--progress", "poller"}},
		{"atomic_lat", []string{"-n", "300", "--xdp", "generic"}},
		{"write_bw UC", []string{"-c", "UC", "-s", "1000", "-n", "300", "--link-mtu", "1500"}},
		{"send_bw UD", []string{"-c", "UD", "-n", "300", "-e"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			test, _, _ := strings.Cut(tt.name, " ")
			file := filepath.Join(t.TempDir(), "r.json")
			args := append([]string{"perf", test, "--lab", "--verify", "--json", file, "-u", "18"},
				tt.args...)
			code, stdout, stderr := cli(args...)
			if code != exitOK {
				t.Fatalf("code %d: %s", code, stderr)
			}
			if !strings.Contains(stdout, "bytes verified") {
				t.Errorf("no bytes verified:\n%s", stdout)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r perf.Result
			if err := json.Unmarshal(b, &r); err != nil {
				t.Fatal(err)
			}
			mode := "native"
			if slices.Contains(tt.args, "generic") {
				mode = "generic"
			}
			if r.Test != test || r.Mismatches != 0 || r.Verified == 0 || r.Packets == 0 ||
				r.XDPMode != mode {
				t.Errorf("%+v", r)
			}
		})
	}
	if own := ownLabs(t); own != nil {
		t.Errorf("left behind: %v", own)
	}
}

func TestPerfInjectFails(t *testing.T) {
	needRoot(t)
	code, _, stderr := cli("perf", "write_bw", "--lab", "-n", "50", "--verify-inject", "1")
	if code != exitFailure || !strings.Contains(stderr, "1 of 3276800 bytes arrived wrong") {
		t.Errorf("code %d, %q", code, stderr)
	}
}

func TestPerfBadInput(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"PMTU above link MTU", []string{"--link-mtu", "1500", "-m", "4096"}, "or give -m 1024"},
		{"link MTU", []string{"--link-mtu", "300"}, "link MTU 300"},
		{"GID", []string{"-x", "9"}, "GID index 9"},
		{"CPU", []string{"--cpu", "1000"}, "--cpu 1000: this process may run on"},
		{"JSON file", []string{"-D", "1000", "--json", "/nonexistent/x"}, "/nonexistent/x"},
		{"capture file", []string{"-n", "5", "--pcap", "/nonexistent/x"}, "/nonexistent/x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, _, stderr := cli(append([]string{"perf", "send_bw", "--lab"}, tt.args...)...)
			if code == exitOK || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("code %d, %q, want %q in one line", code, stderr, tt.want)
			}
		})
	}
	if own := ownLabs(t); own != nil {
		t.Errorf("left behind: %v", own)
	}
}

// A run that is stopped, or one of whose ends is killed, ends soon and leaves nothing behind.
func TestPerfEndsEarly(t *testing.T) {
	needRoot(t)
	children := func() []string {
		out, _ := exec.Command("pgrep", "-f", "-P", strconv.Itoa(os.Getpid()), perf.ChildCommand).Output()
		return strings.Fields(string(out))
	}
	for _, tt := range []struct {
		name string
		end  func(cancel func())
		want string
	}{
		{"cancelled", func(cancel func()) { cancel() }, "interrupted"},
		{"server killed", func(func()) { kill(children()[0]) }, "server ended without a result: " +
			"signal: killed"},
		{"client killed", func(func()) { kill(children()[1]) }, "client ended without a result: " +
			"signal: killed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &started{is: make(chan struct{})}
			var stderr bytes.Buffer
			done := make(chan int, 1)
			go func() {
				done <- run(ctx, []string{"perf", "write_bw", "--lab", "-D", "60"}, out, &stderr)
			}()
			select {
			case <-out.is:
			case code := <-done:
				t.Fatalf("code %d: %s", code, stderr.String())
			}
			if n := len(children()); n != 2 {
				t.Fatalf("%d children, want 2", n)
			}
			tt.end(cancel)
			select {
			case code := <-done:
				if code != exitFailure || !strings.Contains(stderr.String(), tt.want) {
					t.Errorf("code %d, %q, want %q", code, stderr.String(), tt.want)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("still running after 20 s")
			}
			if n := len(children()); n != 0 {
				t.Errorf("%d children left", n)
			}
			if own := ownLabs(t); own != nil {
				t.Errorf("left behind: %v", own)
			}
		})
	}
}

func kill(pid string) {
	if n, err := strconv.Atoi(pid); err == nil {
		_ = unix.Kill(n, unix.SIGKILL)
	}
}

// started is an output that tells when the first table head was written to it.
type started struct {
	is   chan struct{}
	done bool
}

func (s *started) Write(b []byte) (int, error) {
	if !s.done {
		s.done = true
		close(s.is)
	}
	return len(b), nil
}

// The capture holds both directions, and what is in it is RoCEv2.
func TestPerfCapture(t *testing.T) {
	needRoot(t)
	name := filepath.Join(t.TempDir(), "x.pcapng")
	code, _, stderr := cli("perf", "write_bw", "--lab", "-n", "10", "-s", "10000", "--pcap", name)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, stderr)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	from := map[string]int{}
	for data, _, err := r.ReadPacketData(); err == nil; data, _, err = r.ReadPacketData() {
		p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
		ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		udp, _ := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if ip == nil || udp == nil || udp.DstPort != 4791 {
			t.Fatalf("no RoCEv2 packet: %v", p)
		}
		from[ip.SrcIP.String()]++
	}
	if from["10.77.0.2"] < 30 || from["10.77.0.1"] == 0 {
		t.Errorf("packets by sender: %v, want 30 or more from the client and some answers", from)
	}
}

func TestBenchQuick(t *testing.T) {
	needRoot(t)
	file := filepath.Join(t.TempDir(), "b.json")
	code, stdout, stderr := cli("bench", "--only", "write_bw,send_lat", "--quick", "--rounds", "1",
		"--duration", "0.05", "--json", file)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, want := range []string{"write_bw size=65536 pmtu=4096 gbps=", "write_bw size=8 " +
		"pmtu=4096 mpps=",
		"send_lat size=64 pmtu=4096 p50_us=", " ratio="} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if own := ownLabs(t); own != nil {
		t.Errorf("left behind: %v", own)
	}
}

func TestDevinfo(t *testing.T) {
	needRoot(t)
	l, err := lab.New(lab.Config{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.A.Do(func() {
		code, stdout, stderr := cli("devinfo", "-v")
		if code != exitOK {
			t.Fatalf("code %d: %s", code, stderr)
		}
		for _, want := range []string{"hca_id:\tveth0\n", "PORT_ACTIVE (4)\n", "4096 (5)\n",
			"::ffff:10.77.0.1, RoCE v2\n", "fd77::1, RoCE v2\n", "max_qp_wr:"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("no %q in\n%s", want, stdout)
			}
		}
		if code, stdout, _ := cli("devinfo", "-l"); code != exitOK || stdout != "1 device(s) "+
			"found:\n\tveth0\n" {
			t.Errorf("-l: code %d, %q", code, stdout)
		}
		for args, want := range map[string]string{"lo": "no Ethernet interface",
			"nix": `no such interface "nix"`} {
			code, _, stderr := cli("devinfo", "-d", args)
			if code != exitFailure || !strings.Contains(stderr, want) {
				t.Errorf("-d %s: code %d, %q", args, code, stderr)
			}
		}
	})
}
