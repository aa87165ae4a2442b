package srpload

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// TestMain lets this program be an end of a Pair.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ChildCommand {
		if err := Child(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// openMemory joins two devices in memory.
func openMemory(t *testing.T, cfg Config) (target, initiator *endpoint) {
	t.Helper()
	links := [2][]verbs.Link{}
	links[0], links[1] = verbs.NewLinkPair(cfg.Queues)
	macs := [2]wire.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	addrs := [2]netip.Prefix{netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("10.77.0.2/24")}
	var ends [2]*endpoint
	for i := range ends {
		port := verbs.PortInfo{Name: fmt.Sprint("mem", i), MAC: macs[i], Addrs: addrs[i : i+1],
			Neighbours: map[netip.Addr]wire.MAC{addrs[1-i].Addr(): macs[1-i]}}
		vc := verbs.Config{}
		if cfg.Progress == Caller {
			vc.Progress = verbs.ProgressCaller
		}
		dev, err := verbs.OpenLinks(links[i], port, &vc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		if ends[i], err = newEndpoint(cfg, dev); err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

// runMemory runs both ends in this process.
func runMemory(t *testing.T, cfg Config) *Result {
	t.Helper()
	cfg.CPU, cfg.GIDIndex = -1, -1
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	a, b := openMemory(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ca, cb := tcpPair(t)
	served := make(chan error, 1)
	go func() {
		s, stop := newSession(ctx, ca)
		defer stop()
		served <- a.serveSession(ctx, s)
	}()
	s, stop := newSession(ctx, cb)
	defer stop()
	r, err := b.initiate(ctx, s)
	if err != nil {
		t.Fatalf("initiator: %v", err)
	}
	if err := <-served; err != nil {
		t.Fatalf("target: %v", err)
	}
	return r
}

func tcpPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if b, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if a, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestLoads runs every load in memory: all bytes right, and as many registrations, invalidations and
// lists as the load is to have.
func TestLoads(t *testing.T) {
	for _, c := range []Config{
		{Workload: SRP}, {Workload: SRP, Inv: InvLocal, Progress: Poller}, {Workload: SRP, Inv: InvRemote},
		{Workload: SRP, Size: 4096, Channels: 2, Queues: 2, Progress: Poller}, {Workload: SRP, Size: MinSize},
		{Workload: RTRS}, {Workload: RTRS, Inv: InvRemote, Size: 4096},
		{Workload: SRP, Persistent: true, Progress: Poller}, {Workload: RTRS, Persistent: true, Size: 50000},
	} {
		name := fmt.Sprintf("%s_%v_%s_%d_%s", c.Workload, c.Persistent, c.Inv, c.Size, c.Progress)
		t.Run(name, func(t *testing.T) {
			c.Seed, c.Duration = 5, 100*time.Millisecond
			if c.Channels == 0 {
				c.Channels = 2
			}
			if c.Depth == 0 {
				c.Depth = 4
			}
			r := runMemory(t, c)
			if err := r.Err(); err != nil {
				t.Fatal(err)
			}
			checkCounts(t, &c, r)
		})
	}
}

func checkCounts(t *testing.T, c *Config, r *Result) {
	t.Helper()
	if r.IOs == 0 || r.Verified < r.IOs*MinSize || c.Size != 0 && r.Verified != r.IOs*uint64(c.Size) {
		t.Errorf("%d I/Os, %v a second, %d bytes verified", r.IOs, r.IOPS, r.Verified)
	}
	slots := uint64(c.Channels * c.Depth)
	maps, rate := r.IOs, r.IOPS
	switch {
	case c.Persistent:
		maps, rate = slots+uint64(c.Channels), 0
	case c.Workload == RTRS:
		maps = 2 * slots
	}
	if r.Maps != maps {
		t.Errorf("%d lists for %d I/Os, want %d", r.Maps, r.IOs, maps)
	}
	for _, got := range []float64{r.RegsPerS, r.InvsPerS} {
		if off := (got - rate) * r.Seconds; off > float64(slots) || off < -float64(slots) {
			t.Errorf("%v registrations or invalidations a second, %v I/Os", got, rate)
		}
	}
}

// TestInjected: a byte that is wrong does not go unnoticed, on either end.
func TestInjected(t *testing.T) {
	for _, persistent := range []bool{false, true} {
		r := runMemory(t, Config{Persistent: persistent, Channels: 1, Depth: 4, Inject: 3, Size: 5000,
			Duration: 50 * time.Millisecond})
		if r.Mismatches != 6 || r.Err() == nil {
			t.Errorf("%d bytes wrong, %v; want 6", r.Mismatches, r.Err())
		}
	}
}

// TestPair runs both ends as processes in a laboratory.
func TestPair(t *testing.T) {
	n := nettest.New(t, nettest.Config{})
	p := Pair{Lab: n, Exe: os.Args[0]}
	r, err := p.Run(t.Context(), Config{Channels: 2, Depth: 8, Duration: 200 * time.Millisecond, GIDIndex: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil || r.XDPMode == "" {
		t.Errorf("%v, %+v", err, r)
	}
	var text strings.Builder
	if err := Write(&text, r); err != nil || !strings.Contains(text.String(), "512-1048576") {
		t.Errorf("%v:\n%s", err, &text)
	}
	if _, err = p.Run(t.Context(), Config{GIDIndex: 77}); err == nil || !strings.Contains(err.Error(), "-x 77") {
		t.Errorf("with a GID that is not there: %v", err)
	}
}
