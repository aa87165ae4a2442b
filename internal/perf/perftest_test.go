package perf

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPerftestKeys holds a key message as ib_write_bw of perftest 6.06 sent it, and one of ours that
// it took.
func TestPerftestKeys(t *testing.T) {
	const sent = "0000:0001:000041:0e2832:0000053a:00007f2c4b684000:" +
		"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:02:00000000:\x00"
	k, err := parseKeys([]byte(sent))
	if err != nil {
		t.Fatal(err)
	}
	want := keys{QPN: 0x41, PSN: 0xe2832, RKey: 0x53a, Addr: 0x7f2c4b684000, RdAtomic: 1,
		GID: netip.MustParseAddr("::ffff:10.77.0.2").As16()}
	if k != want {
		t.Errorf("got %+v, want %+v", k, want)
	}
	if back := string(k.appendTo(nil)); back != sent {
		t.Errorf("it goes out as\n%q, came as\n%q", back, sent)
	}
	for _, bad := range []string{
		sent[1:], strings.Replace(sent, "0a:4d", "0a4d0", 1), strings.Replace(sent, "0001", "x001", 1),
		strings.Replace(sent, "00:00:ff", "00:0 :ff", 1), strings.Repeat("\x00", keysLen),
	} {
		if k, err := parseKeys([]byte(bad)); err == nil {
			t.Errorf("%q is taken for %+v", bad, k)
		}
	}
}

// TestPerftestExchange plays the messages of perftest 6.06's ib_write_bw as a client, byte by byte.
func TestPerftestExchange(t *testing.T) {
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	e := &endpoint{}
	foreign := make(chan bool, 1)
	go func() {
		f, err := e.greet(t.Context(), here, false)
		foreign <- f && err == nil
	}()
	talk(t, there, "6.06"+strings.Repeat("\x00", 12), "6.06\x00roxie"+strings.Repeat("\x00", 6))
	if !<-foreign {
		t.Fatal("perftest 6.06 is not taken for perftest")
	}
	p, ctx := newPerftest(t.Context(), here, false)
	type numbers struct {
		cycle, pmtu int
		err         error
	}
	got := make(chan numbers, 1)
	go func() {
		var n numbers
		n.cycle, n.pmtu, n.err = p.numbers(ctx, 4096)
		got <- n
	}()
	talk(t, there, "\x00\x01\x00\x00", "\x00\x00\x10\x00")
	talk(t, there, "\x00\x00\x00\x40", "\x00\x00\x00\x40")
	talk(t, there, "3\x00", "5\x00")
	if n := <-got; n.cycle != 65536 || n.pmtu != 1024 || n.err != nil {
		t.Errorf("cycle buffer %d, path MTU %d, %v", n.cycle, n.pmtu, n.err)
	}
	reports := make(chan bwReport, 1)
	go func() {
		r, err := p.swapReport(ctx, bwReport{65536, 5000, 0.5, 0.25, 2})
		if err != nil {
			t.Error(err)
		}
		reports <- r
	}()
	talk(t, there, "\x00\x00\x00\x00\x00\x01\x00\x00", "\x00\x00\x00\x00\x00\x01\x00\x00")
	talk(t, there, "\x00\x00\x00\x00\x00\x00\x00\xc8", "\x00\x00\x00\x00\x00\x00\x13\x88")
	talk(t, there, "\x40\x43\x00\x00\x00\x00\x00\x00", "\x3f\xe0\x00\x00\x00\x00\x00\x00")
	talk(t, there, "\x40\x3d\x00\x00\x00\x00\x00\x00", "\x3f\xd0\x00\x00\x00\x00\x00\x00")
	talk(t, there, "\x3f\x40\x00\x00\x00\x00\x00\x00", "\x40\x00\x00\x00\x00\x00\x00\x00")
	want := bwReport{65536, 200, 38, 29, math.Float64frombits(0x3f40000000000000)}
	if r := <-reports; r != want {
		t.Errorf("report %+v, want %+v", r, want)
	}
}

// talk sends a client's message and expects the server's.
func talk(t *testing.T, conn net.Conn, send, want string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte(send)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(want)+1)
	n, err := conn.Read(b) // perftest reads once, too
	if err != nil || string(b[:n]) != want {
		t.Fatalf("after %q came %q, %v; want %q", send, b[:n], err, want)
	}
}

func TestGreetStrangers(t *testing.T) {
	for name, first := range map[string]string{
		"5.60":            "5.60" + strings.Repeat("\x00", 12),
		"neither":         "GET / HTTP/1.1\r\n",
		"-b":              "6.06\x00roxie -b\x00\x00\x00",
		"other end is go": "6.06",
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			go func() {
				_, _ = there.Write([]byte(first))
				if len(first) < versionLen {
					_ = there.Close()
					return
				}
				_, _ = there.Read(make([]byte, versionLen))
			}()
			_, err := (&endpoint{}).greet(t.Context(), here, false)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPerftestWay runs every test in perftest's order of steps, between two ends that take each other
// for perftest.
func TestPerftestWay(t *testing.T) {
	type variant struct {
		name string
		cfg  Config
	}
	var variants []variant
	for _, test := range Tests() {
		for _, transport := range []Transport{RC, UC, UD} {
			add := func(name string, cfg Config) {
				cfg.Test, cfg.Transport, cfg.GIDIndex, cfg.PMTU = test, transport, -1, 1024
				if cfg.Check() == nil {
					variants = append(variants,
						variant{fmt.Sprintf("%s/%s/%s", test.Name, transport, name), cfg})
				}
			}
			add("iters", Config{Iters: 100})
			add("events", Config{Iters: 50, Events: true})
			add("both", Config{Iters: 100, Bidirectional: true})
			add("duration", Config{Duration: 50 * time.Millisecond})
			add("both for a time", Config{Duration: 50 * time.Millisecond, Bidirectional: true})
			add("sizes", Config{All: true, Largest: 2048, Iters: 20})
			add("sizes both", Config{All: true, Largest: 2048, Iters: 20, Bidirectional: true})
			add("QPs", Config{QPs: 3, Iters: 50})
			add("CM", Config{QPs: 1, Iters: 50, CM: true})
			add("CM both", Config{QPs: 2, Iters: 50, CM: true, Bidirectional: true})
		}
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { perftestWay(t, v.cfg) })
	}
}

func perftestWay(t *testing.T, cfg Config) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	served, results, client, server := runBoth(t, ctx, cfg, true)
	if client != nil || server != nil {
		t.Fatalf("client: %v; server: %v", client, server)
	}
	sizes := 1
	if cfg.All {
		sizes = 11
		if cfg.Transport == UD {
			sizes = 10
		}
	}
	if len(results) != sizes {
		t.Fatalf("%d results, want %d", len(results), sizes)
	}
	last := results[sizes-1]
	n := uint64(cfg.Iters * max(cfg.QPs, 1))
	if cfg.Test.Latency && cfg.Test.Op == Write {
		n-- // its last message has no answer
	}
	if cfg.Duration == 0 && last.Iterations != n || last.Iterations == 0 || last.MsgRate <= 0 {
		t.Errorf("the client's result: %+v, want %d messages", last, n)
	}
	memory := cfg.Test.Op == Read || cfg.Test.Op == Atomic || cfg.Test.Op == Write
	switch {
	case cfg.Test.Latency && len(served) == 0 && (cfg.Test.Op == Read || cfg.Test.Op == Atomic):
	case len(served) == 0:
		t.Error("the server has no result")
	case memory && !cfg.Bidirectional && !cfg.Test.Latency:
		if s := served[0]; s.Iterations != last.Iterations || s.Size != last.Size ||
			math.Abs(s.BWGbps-last.BWGbps) > 1e-9 {
			t.Errorf("the server says %+v, the client %+v", s, last)
		}
	case cfg.Transport == RC && cfg.Duration == 0 && !cfg.Test.Latency:
		if s := served[len(served)-1]; s.Iterations != last.Iterations {
			t.Errorf("the server counts %d messages, the client %d", s.Iterations, last.Iterations)
		}
	}
	if slices.ContainsFunc(results, func(r Result) bool { return r.Retransmit > 0 }) {
		t.Logf("retransmissions: %+v", results)
	}
}

// TestBinaryKeys holds the key message that goes over RDMA with -R, as the C structure lays it out.
func TestBinaryKeys(t *testing.T) {
	k := keys{QPN: 0x41, PSN: 0xe2832, RKey: 0x53a, Addr: 0x7f2c4b684000, RdAtomic: 1,
		GID: netip.MustParseAddr("::ffff:10.77.0.2").As16()}
	const want = "00000000" + "00000001" + "00000041" + "000e2832" + "0000053a" + "00000000" +
		"00007f2c4b684000" + "00000000000000000000ffff0a4d0002" + "00000000" + "00000000"
	b := k.appendBinary(nil)
	if got := fmt.Sprintf("%x", b); got != want || len(b) != binaryKeysLen {
		t.Errorf("it goes out as\n%s, want\n%s", got, want)
	}
	if back := parseBinaryKeys(b); back != k {
		t.Errorf("it comes back as %+v, was %+v", back, k)
	}
}
