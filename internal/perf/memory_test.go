package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Both ends in this process, on a wire in memory: no rights needed, and the race detector sees all.

var memoryPorts = [2]verbs.PortInfo{
	{Name: "mem0", MAC: wire.MAC{2, 0, 0, 0, 0, 1}, Addrs: []netip.Prefix{
		netip.MustParsePrefix("fd77::1/64"), netip.MustParsePrefix("10.77.0.1/24")}},
	{Name: "mem1", MAC: wire.MAC{2, 0, 0, 0, 0, 2}, Addrs: []netip.Prefix{
		netip.MustParsePrefix("fd77::2/64"), netip.MustParsePrefix("10.77.0.2/24")}},
}

// runInMemory runs both ends of a test and returns what the client and the server say.
func runInMemory(t testing.TB, ctx context.Context, cfg Config) (results []Result,
	client, server error) {
	t.Helper()
	_, results, client, server = runBoth(t, ctx, cfg, false)
	return results, client, server
}

// runBoth is runInMemory with the server's results; plain ends take each other for perftest.
func runBoth(t testing.TB, ctx context.Context, cfg Config, plain bool) (served, results []Result,
	client, server error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	ends := openBoth(t, cfg)
	ends[0].plain, ends[1].plain = plain, plain
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		served, err = ends[0].run(ctx, &Hooks{Ready: func(net.Addr) { close(ready) }})
		done <- err
	}()
	<-ready
	results, client = ends[1].run(ctx, &Hooks{})
	server = <-done
	return served, results, client, server
}

// openBoth opens the server's and the client's end.
func openBoth(t testing.TB, cfg Config) (ends [2]*endpoint) {
	t.Helper()
	cfg.CPU = -1
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	la, lb := verbs.NewLinkPair(cfg.Queues)
	for i, links := range [][]verbs.Link{la, lb} {
		port, other := memoryPorts[i], memoryPorts[1-i]
		port.Neighbours = map[netip.Addr]wire.MAC{}
		for _, p := range other.Addrs {
			port.Neighbours[p.Addr()] = other.MAC
		}
		vc := &verbs.Config{}
		if cfg.Progress == Caller {
			vc.Progress = verbs.ProgressCaller
		}
		dev, err := verbs.OpenLinks(links, port, vc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		ends[i] = &endpoint{cfg: cfg, dev: dev}
		ends[i].cfg.Interface = port.Name
		if err := ends[i].choose(); err != nil {
			t.Fatal(err)
		}
	}
	ends[1].cfg.Server = "127.0.0.1"
	ends[1].cmAddr = memoryPorts[0].Addrs[1].Addr()
	return ends
}

// messages is what fits the time that tests may take.
func messages(t Test) int {
	if t.Latency {
		return 100
	}
	return 300
}

func TestEveryTest(t *testing.T) {
	for _, test := range Tests() {
		for _, transport := range []Transport{RC, UC, UD} {
			for _, progress := range []Progress{Poller, Caller} {
				cfg := Config{Test: test, Transport: transport, Progress: progress, Iters: messages(test),
					Verify: true, GIDIndex: -1}
				if cfg.Check() != nil {
					continue // READ over UC and the like
				}
				t.Run(fmt.Sprintf("%s/%s/%s", test.Name, transport, progress), func(t *testing.T) {
					checkRun(t, cfg)
				})
			}
		}
	}
}

// checkRun runs a verified test and looks at what it reports.
func checkRun(t *testing.T, cfg Config) []Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	served, results, client, server := runBoth(t, ctx, cfg, false)
	if client != nil || server != nil {
		t.Fatalf("client: %v; server: %v", client, server)
	}
	if diff := cmp.Diff(results, served); diff != "" {
		t.Errorf("the server does not say what the client says (-client +server):\n%s", diff)
	}
	for i := range results {
		r := &results[i]
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		n := uint64(cfg.Iters * max(cfg.QPs, 1))
		if cfg.Duration == 0 && r.Iterations != n {
			t.Errorf("%d messages, want %d", r.Iterations, n)
		}
		want := (r.Iterations - r.Lost) * uint64(r.Size)
		if r.Lat != nil {
			want = (n + warmUp) * uint64(r.Size)
			if op := cfg.Test.Op; op == Write || op == Send {
				want *= 2 // both ends compare
			}
			if r.Lat.Min <= 0 || r.Lat.P50 < r.Lat.Min || r.Lat.Max < r.Lat.P999 {
				t.Errorf("latency %+v", r.Lat)
			}
		}
		// The last echo may come when the server has been told already that the test is over.
		if r.Verified != want {
			t.Errorf("%d bytes verified, want %d", r.Verified, want)
		}
		if cfg.Transport == RC && r.Lost != 0 || r.Seconds <= 0 || r.Packets == 0 ||
			r.MsgRate <= 0 && r.Lost < r.Iterations {
			t.Errorf("odd result %+v", r)
		}
	}
	return results
}

func TestVariants(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
	}{
		{"tiny", Config{Test: testNamed(t, "write_bw"), Size: 1}},
		{"odd", Config{Test: testNamed(t, "send_bw"), Size: 4097, PMTU: 1024}},
		{"big", Config{Test: testNamed(t, "write_bw"), Size: 3 << 20, Iters: 7}},
		{"big READ", Config{Test: testNamed(t, "read_bw"), Size: 3 << 20, Iters: 7}},
		{"QPs", Config{Test: testNamed(t, "write_bw"), QPs: 5, Size: 4096}},
		{"SEND QPs", Config{Test: testNamed(t, "send_bw"), QPs: 5, Size: 4096}},
		{"atomic QPs", Config{Test: testNamed(t, "atomic_bw"), QPs: 3}},
		{"depth 1", Config{Test: testNamed(t, "write_bw"), TXDepth: 1, Iters: 100}},
		{"depth 1 SEND", Config{Test: testNamed(t, "send_bw"), TXDepth: 1, RXDepth: 1, Iters: 50}},
		{"cq-mod 1", Config{Test: testNamed(t, "read_bw"), CQMod: 1, Size: 100}},
		{"inline", Config{Test: testNamed(t, "send_bw"), Size: 512, Inline: 512}},
		{"not inline", Config{Test: testNamed(t, "send_lat"), Size: 64, Inline: -1}},
		{"lat of 100 KiB", Config{Test: testNamed(t, "write_lat"), Size: 100 << 10, Iters: 20}},
		{"events", Config{Test: testNamed(t, "send_lat"), Events: true, Iters: 100}},
		{"events, poller", Config{Test: testNamed(t, "send_bw"), Events: true}},
		{"IPv6", Config{Test: testNamed(t, "send_bw"), GIDIndex: 0}},
		{"queues", Config{Test: testNamed(t, "write_bw"), Queues: 2, QPs: 4, Size: 4096}},
		{"duration", Config{Test: testNamed(t, "write_bw"), Duration: 50 * time.Millisecond}},
		{"duration, latency", Config{Test: testNamed(t, "send_lat"), Duration: 50 * time.Millisecond}},
		{"UD QPs", Config{Test: testNamed(t, "send_bw"), Transport: UD, QPs: 3, Size: 1000}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := tt.cfg
			cfg.Verify = true
			if cfg.GIDIndex == 0 && tt.name != "IPv6" {
				cfg.GIDIndex = -1
			}
			if cfg.Iters == 0 {
				cfg.Iters = messages(cfg.Test)
			}
			if cfg.Duration > 0 && cfg.Test.Latency {
				t.Log("the number of bytes is not known beforehand")
				runDuration(t, cfg)
				return
			}
			checkRun(t, cfg)
		})
	}
}

func runDuration(t *testing.T, cfg Config) {
	results, client, server := runInMemory(t, t.Context(), cfg)
	if client != nil || server != nil {
		t.Fatalf("client: %v; server: %v", client, server)
	}
	if r := results[0]; r.Seconds < cfg.Duration.Seconds() || r.Iterations == 0 || r.Verified == 0 {
		t.Errorf("%+v", r)
	}
}

// All sizes one after the other on the same QPs: no receive may be left over for the next size.
func TestAllSizes(t *testing.T) {
	for _, tt := range []struct {
		test      string
		transport Transport
	}{{"write_bw", RC}, {"send_bw", RC}, {"send_lat", RC}, {"send_bw", UD}, {"send_bw", UC}} {
		t.Run(fmt.Sprintf("%s/%s", tt.test, tt.transport), func(t *testing.T) {
			cfg := Config{Test: testNamed(t, tt.test), Transport: tt.transport, All: true, Largest: 1 << 16,
				Iters: 3, Verify: true, GIDIndex: -1, PMTU: 1024}
			if got := checkRun(t, cfg); len(got) < 10 {
				t.Errorf("%d sizes", len(got))
			}
		})
	}
}

func TestInjectFails(t *testing.T) {
	for _, test := range Tests() {
		t.Run(test.Name, func(t *testing.T) {
			cfg := Config{Test: test, Iters: 50, Inject: 1, GIDIndex: -1}
			if test.Latency && test.Op != Atomic {
				cfg.Size = 16
			}
			results, client, server := runInMemory(t, t.Context(), cfg)
			if client != nil || server != nil {
				t.Fatalf("client: %v; server: %v", client, server)
			}
			r := &results[0]
			want := uint64(1)
			if test.Latency && (test.Op == Write || test.Op == Send) {
				want = 2 // at both ends
			}
			if r.Err() == nil || r.Mismatches != want {
				t.Errorf("%d mismatches, want %d; error %v", r.Mismatches, want, r.Err())
			}
		})
	}
}

func TestCancel(t *testing.T) {
	for _, name := range []string{"write_bw", "send_lat", "write_lat"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			cfg := Config{Test: testNamed(t, name), Duration: time.Minute, GIDIndex: -1}
			start := time.Now()
			_, client, server := runInMemory(t, ctx, cfg)
			if !errors.Is(client, context.DeadlineExceeded) && !errors.Is(client, errGone) ||
				server == nil || time.Since(start) > 10*time.Second {
				t.Errorf("client: %v; server: %v; after %v", client, server, time.Since(start))
			}
		})
	}
}

func TestDifferentFlags(t *testing.T) {
	cfg := Config{Test: testNamed(t, "send_bw"), GIDIndex: 9}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	a, b := verbs.NewLinkPair(1)
	dev, err := verbs.OpenLinks(a, memoryPorts[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	defer b[0].Close()
	e := &endpoint{cfg: cfg, dev: dev}
	if err := e.choose(); err == nil || !strings.Contains(err.Error(), "-x 9") {
		t.Errorf("GID index 9: %v", err)
	}
}

// Ten times as many messages must not allocate so many times more: nothing is allocated for a
// message, at either end. (What depends on time, as a thread that goes to sleep, may.)
func TestNoAllocationPerMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs thousands of messages")
	}
	for _, tt := range []struct {
		test     string
		progress Progress
		iters    int
	}{
		{"write_bw", Caller, 2000}, {"send_bw", Caller, 2000}, {"read_bw", Poller, 2000},
		{"send_lat", Caller, 200}, {"write_lat", Caller, 200},
	} {
		t.Run(tt.test, func(t *testing.T) {
			mallocs := func(n int) uint64 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				cfg := Config{Test: testNamed(t, tt.test), Progress: tt.progress, Iters: n, Size: 64,
					Verify: true, GIDIndex: -1}
				if _, client, server := runInMemory(t, t.Context(), cfg); client != nil || server != nil {
					t.Fatalf("client: %v; server: %v", client, server)
				}
				runtime.ReadMemStats(&after)
				return after.Mallocs - before.Mallocs
			}
			mallocs(tt.iters) // what happens once only
			few, many := mallocs(tt.iters), mallocs(10*tt.iters)
			if extra := int64(many) - int64(few); extra > 9*int64(tt.iters)/10 {
				t.Errorf("%d allocations for %d messages, %d for ten times as many", few, tt.iters, many)
			}
		})
	}
}
