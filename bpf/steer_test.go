package bpf

import (
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// What the program returns.
const (
	xdpPass     = 2
	xdpRedirect = 4
)

// steering is a loaded program with ourTable, and one socket that can be put into slot 0.
type steering struct {
	*Program
	model model
	last  Stats
}

func newSteering(t testing.TB) *steering {
	t.Helper()
	p, err := Load(Config{})
	var denied *CapabilityError
	if errors.As(err, &denied) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { p.Close() })
	s := &steering{Program: p, model: model{addresses: map[modelKey]bool{}}}
	for _, k := range ourTable {
		if err := p.Add(k.vlan, k.addr); err != nil {
			t.Fatal(err)
		}
		s.model.addresses[k] = true
	}
	return s
}

// fill puts an AF_XDP socket into a slot: whether it is bound does not matter to the program.
func (s *steering) fill(t testing.TB, queue uint32) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := s.XSKMap().Put(queue, uint32(fd)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// run runs the program over a frame and returns the verdict, told by the counter that moved. It
// checks that the action fits.
func (s *steering) run(t testing.TB, frame []byte, context any) Verdict {
	t.Helper()
	action, err := s.objs.RoxieSteer.Run(&ebpf.RunOptions{Data: frame, Context: context})
	if err != nil {
		t.Fatalf("test-run of %d bytes: %v", len(frame), err)
	}
	now, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	verdict := Verdict(NumVerdicts)
	for v := range now {
		if now[v] == s.last[v]+1 && verdict == NumVerdicts {
			verdict = Verdict(v)
		} else if now[v] != s.last[v] {
			t.Fatalf("counter %v went from %d to %d", Verdict(v), s.last[v], now[v])
		}
	}
	s.last = now
	want := uint32(xdpPass)
	if verdict == VerdictRedirected {
		want = xdpRedirect
	}
	if action != want {
		t.Fatalf("verdict %v with action %d, want action %d\n% x", verdict, action, want, frame)
	}
	return verdict
}

func TestSteer(t *testing.T) {
	s := newSteering(t)
	seen := map[Verdict]bool{}
	for _, socket := range []bool{false, true} {
		if s.model.socket = socket; socket {
			s.fill(t, 0)
		}
		for _, c := range steerCases() {
			want := c.want
			if want == VerdictRedirected && !socket {
				want = VerdictNoSocket
			}
			seen[want] = true
			if got := s.run(t, c.frame, nil); got != want {
				t.Errorf("%s, socket %v: got %v, want %v\n% x", c.name, socket, got, want,
					c.frame[:min(len(c.frame), 96)])
			}
			if got := s.model.judge(c.frame); got != want {
				t.Errorf("%s, socket %v: the model says %v, want %v", c.name, socket, got, want)
			}
		}
	}
	for v := range Verdict(NumVerdicts) {
		if !seen[v] {
			t.Errorf("no case for verdict %v", v)
		}
	}
}

// TestSteerTruncated cuts frames at every byte; the headers still announce the full length, so that
// only the whole frame, or one that has merely lost its padding, may be redirected.
func TestSteerTruncated(t *testing.T) {
	s := newSteering(t)
	s.fill(t, 0)
	for _, spec := range []frameSpec{
		{dst: ourIPv4, port: Port, payload: 16},
		{dst: ourIPv4, port: Port, payload: 16, options: 40},
		{dst: ourIPv4, port: Port, payload: 16, tags: []uint16{ourVLAN}, padding: 6},
		{dst: ourIPv6, port: Port, payload: 16},
		{dst: ourIPv6, port: Port, payload: 16, tags: []uint16{0xe000}, padding: 6},
	} {
		frame := spec.build()
		for n := 14; n <= len(frame); n++ { // test-run takes no less than an Ethernet header
			want := VerdictTruncated
			if n >= len(frame)-spec.padding {
				want = VerdictRedirected
			}
			if got := s.run(t, frame[:n], nil); got != want {
				t.Errorf("%v, %d of %d bytes: got %v, want %v", spec, n, len(frame), got, want)
			}
		}
	}
}

// xdpContext is struct xdp_md as test-run takes it.
type xdpContext struct {
	Data, DataEnd, DataMeta, Ifindex, Queue, Egress uint32
}

// TestSteerQueue shows that the slot is that of the queue a frame arrived on, that a closed socket
// leaves its slot, and that a queue beyond the map is passed.
func TestSteerQueue(t *testing.T) {
	const queues = 4
	l := nettest.New(t, nettest.Config{Queues: queues})
	l.A.Do(func() {
		s := newSteering(t)
		frame := frameSpec{dst: ourIPv4, port: Port, payload: 16}.build()
		expect := func(what string, want [queues]Verdict) {
			t.Helper()
			for q := range want {
				ctx := &xdpContext{DataEnd: uint32(len(frame)), Ifindex: uint32(l.A.Ifindex),
					Queue: uint32(q)}
				if got := s.run(t, frame, ctx); got != want[q] {
					t.Errorf("%s, queue %d: got %v, want %v", what, q, got, want[q])
				}
			}
		}
		const no, yes = VerdictNoSocket, VerdictRedirected
		expect("empty map", [queues]Verdict{no, no, no, no})
		fd := s.fill(t, 2)
		expect("slot 2", [queues]Verdict{no, no, yes, no})
		s.fill(t, 0)
		expect("slots 0 and 2", [queues]Verdict{yes, no, yes, no})
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		expect("socket of slot 2 closed", [queues]Verdict{yes, no, no, no})

		small, err := Load(Config{Queues: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer small.Close()
		if err := small.Add(0, ourIPv4); err != nil {
			t.Fatal(err)
		}
		s = &steering{Program: small}
		s.fill(t, 1)
		expect("map of 2", [queues]Verdict{no, yes, no, no})
	})
}

// TestSteerRandom runs some thousand odd frames through the program and the model.
func TestSteerRandom(t *testing.T) {
	s := newSteering(t)
	s.fill(t, 0)
	s.model.socket = true
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	seen := map[Verdict]int{}
	for i := range 6000 {
		frame := randomFrame(rng)
		got, want := s.run(t, frame, nil), s.model.judge(frame)
		if got != want {
			t.Fatalf("seed %d, frame %d: got %v, the model says %v\n% x", seed, i, got, want, frame)
		}
		seen[got]++
	}
	for v := range Verdict(NumVerdicts) {
		if seen[v] == 0 && v != VerdictNoSocket {
			t.Errorf("seed %d: no random frame for verdict %v: %v", seed, v, seen)
		}
	}
}

// FuzzSteer compares the program with the model.
func FuzzSteer(f *testing.F) {
	s := newSteering(f)
	s.fill(f, 0)
	s.model.socket = true
	for _, c := range steerCases() {
		f.Add(c.frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 1<<16 {
			t.Skip("test-run takes no such frame")
		}
		if got, want := s.run(t, frame, nil), s.model.judge(frame); got != want {
			t.Errorf("got %v, the model says %v\n% x", got, want, frame)
		}
	})
}

// TestVerdictOrder compares the verdicts with the enum of the C source.
func TestVerdictOrder(t *testing.T) {
	source, err := os.ReadFile("roxie.bpf.c")
	if err != nil {
		t.Fatal(err)
	}
	body := regexp.MustCompile(`(?s)enum verdict \{(.*?)\};`).FindSubmatch(source)
	var names []string
	for _, m := range regexp.MustCompile(`VERDICT_(\w+),`).FindAllSubmatch(body[1], -1) {
		names = append(names, strings.ToLower(string(m[1])))
	}
	want := append(slices.Clone(verdictNames[:]), "count")
	if !slices.Equal(names, want) {
		t.Errorf("the C source has\n%v, Go has\n%v", names, want)
	}
	if got := Verdict(NumVerdicts).String(); got != "verdict(10)" {
		t.Errorf("unknown verdict: %s", got)
	}
}

// BenchmarkSteer times the program in the kernel's test-run loop.
func BenchmarkSteer(b *testing.B) {
	s := newSteering(b)
	s.fill(b, 0)
	arp := frameSpec{dst: ourIPv4, port: Port, payload: 1064}
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"ours-ipv4", frameSpec{dst: ourIPv4, port: Port, payload: 1064}.build()},
		{"ours-ipv6", frameSpec{dst: ourIPv6, port: Port, payload: 1064}.build()},
		{"ours-ipv4-4154", frameSpec{dst: ourIPv4, port: Port, payload: 4112}.build()},
		{"tcp", with(frameSpec{dst: ourIPv4, payload: 1064}.build(), 14+9, 6)},
		{"arp", with(arp.build(), 12, 8, 6)},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, d, err := s.objs.RoxieSteer.Benchmark(c.frame, 200000, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(d.Nanoseconds()), "ns/frame")
			b.ReportMetric(0, "ns/op")
		})
	}
}
