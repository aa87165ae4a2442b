package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// The soak: `roxie serve` under load while everything around it changes. At the end every work
// request has its one completion, and the endpoint has what it had at the beginning.

// soakVariable is how many minutes it lasts; without it some seconds, with all but the comparison of
// memory.
const soakVariable = "ROXIE_SOAK"

// soakStateVariable makes the endpoint write its state to a file at SIGUSR2.
const soakStateVariable = "ROXIE_SOAK_STATE"

// soakSettle is how long the endpoint may take to be rid of what has gone.
const soakSettle = 60 * time.Second

func init() {
	file := os.Getenv(soakStateVariable)
	if file == "" || os.Getenv(runMain) == "" {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			debug.FreeOSMemory()
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			b, err := json.Marshal(soakState{Goroutines: runtime.NumGoroutine(), Stacks: stacks.String()})
			if err == nil && os.WriteFile(file+".new", b, 0o600) == nil {
				_ = os.Rename(file+".new", file)
			}
		}
	}()
}

// soakState is what must not grow.
type soakState struct {
	Goroutines int
	Stacks     string         // of them, for the report
	Files      map[string]int // descriptors by what they are, BPF programs, maps and links among them
	RSS        int            // KiB
}

// equal compares all but the memory.
func (s *soakState) equal(o *soakState) bool {
	return s.Goroutines == o.Goroutines && maps.Equal(s.Files, o.Files)
}

func (s *soakState) String() string {
	return fmt.Sprintf("%d goroutines, %d KiB, files %v", s.Goroutines, s.RSS, s.Files)
}

// filesOf counts a process's descriptors.
func filesOf(pid int) map[string]int {
	out := map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, f := range fds {
		if name, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil {
			kind, _, _ := strings.Cut(name, "[")
			out[strings.TrimSuffix(kind, ":")]++
		}
	}
	return out
}

// soakRun is one run.
type soakRun struct {
	t     *testing.T
	lab   *nettest.Lab
	dir   string
	p     *process
	load  *load
	kills int

	captures int
}

func (s *soakRun) file(name string) string { return filepath.Join(s.dir, name) }

// state asks the endpoint.
func (s *soakRun) state() *soakState {
	s.t.Helper()
	file := s.file("state")
	_ = os.Remove(file)
	s.p.signal(syscall.SIGUSR2)
	var st soakState
	eventually(s.t, "state of the endpoint", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &st) == nil
	})
	pid := s.p.cmd.Process.Pid
	st.Files = filesOf(pid)
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if _, rest, ok := strings.Cut(string(b), "VmRSS:"); ok {
		_, _ = fmt.Sscan(rest, &st.RSS)
	}
	return &st
}

// settled waits until the endpoint has what it had before the load.
func (s *soakRun) settled(first *soakState) *soakState {
	s.t.Helper()
	for end := time.Now().Add(soakSettle); ; time.Sleep(200 * time.Millisecond) {
		now := s.state()
		if now.equal(first) {
			return now
		}
		if time.Now().After(end) {
			s.t.Fatalf("%v after the load there is\n%v, at the beginning there was\n%v\n%s", soakSettle, now, first, now.Stacks)
		}
	}
}

const soakConfig = `
interfaces: [{name: veth0, keepalive: 2s}, {name: veth1, keepalive: 2s}]
limits: {connections-per-peer: 200, memory: 256MiB}
services:
  rping:
  echo: {size: %s}
exports:
  - {name: scratch, size: 1MiB, access: read-write, allow: [10.77.0.0/24, 10.78.0.0/24, "fd77::/64"]}
  - {name: disk, file: %s, size: 16MiB, access: read-write, allow: [10.78.0.0/24]}
%s`

// configure writes one of two configurations.
func (s *soakRun) configure(second bool) {
	size, more := "4KiB", ""
	if second {
		size, more = "8KiB", "  - {name: more, size: 2MiB, allow: [10.77.0.0/24]}\n"
	}
	writeFile(s.t, s.file("new"), fmt.Appendf(nil, soakConfig, size, s.file("disk"), more))
	if err := os.Rename(s.file("new"), s.file("roxie.yaml")); err != nil {
		s.t.Fatal(err)
	}
}

// every does something again and again until ctx ends.
func every(ctx context.Context, all *sync.WaitGroup, d time.Duration, f func(i int)) {
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(d/2 + rand.N(d)):
				f(i)
			}
		}
	})
}

// trouble runs load and trouble for a while, then has both end and the interfaces as they were.
func (s *soakRun) trouble(d time.Duration) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	pace := min(d/4, 8*time.Second)
	var all sync.WaitGroup
	all.Go(func() { s.load.run(ctx, 24) })
	every(ctx, &all, pace, func(i int) { // links flap, at either end
		n := s.lab.A
		if i%2 == 1 {
			n = s.lab.B
		}
		ip(s.t, n, "link", "set", "veth0", "down")
		time.Sleep(rand.N(500 * time.Millisecond))
		s.up(n)
	})
	every(ctx, &all, pace/2, func(i int) { // addresses come and go
		ip(s.t, s.lab.A, "addr", []string{"replace", "del"}[i%2], "10.77.0.9/24", "dev", "veth0")
	})
	every(ctx, &all, pace, func(i int) {
		s.configure(i%2 == 0)
		s.p.signal(syscall.SIGHUP)
	})
	every(ctx, &all, pace/2, func(int) { s.capture() })
	every(ctx, &all, pace/8, s.kill)
	all.Wait()
	ip(s.t, s.lab.A, "addr", "replace", "10.77.0.9/24", "dev", "veth0")
	ip(s.t, s.lab.A, "addr", "del", "10.77.0.9/24", "dev", "veth0")
	s.configure(false)
	before := strings.Count(s.p.logged(), "configuration taken")
	s.p.signal(syscall.SIGHUP)
	eventually(s.t, "configuration", func() bool { return strings.Count(s.p.logged(), "configuration taken") > before })
}

// up brings an end up again, with the IPv6 address that went with it.
func (s *soakRun) up(n *nettest.Namespace) {
	ip(s.t, n, "link", "set", "veth0", "up")
	addr := "fd77::1/64"
	if n == s.lab.B {
		addr = "fd77::2/64"
	}
	ip(s.t, n, "addr", "replace", addr, "dev", "veth0", "nodad")
}

// capture records for a moment.
func (s *soakRun) capture() {
	file := s.file("capture.pcapng")
	p := start(s.t, s.lab.A, "capture", "-o", file, "--control", s.file("control"), "-s", "64")
	time.Sleep(time.Second + rand.N(time.Second))
	p.signal(syscall.SIGINT)
	if err := p.end(20 * time.Second); err != nil {
		s.t.Errorf("capture: %v %s", err, p.logged())
	}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		s.t.Errorf("nothing captured: %v", err)
	}
	s.captures++
}

// kill starts a peer and kills it in the midst of its work.
func (s *soakRun) kill(i int) {
	args := []string{"put", "disk@10.78.0.1", s.file("content")}
	switch i % 3 {
	case 1:
		args = []string{"get", "disk@10.78.0.1", s.file("back")}
	case 2:
		args = []string{"ping", "-d", "veth1", "-c", "-a", "10.78.0.1", "-C", "100000"}
	}
	p := start(s.t, s.lab.B, args...)
	time.Sleep(rand.N(400 * time.Millisecond))
	p.kill()
	_ = p.end(20 * time.Second)
	s.kills++
}

// newSoak makes the network and starts the endpoint.
func newSoak(t *testing.T) *soakRun {
	s := &soakRun{t: t, lab: nettest.New(t, nettest.Config{}), dir: t.TempDir()}
	ip(t, s.lab.A, "link", "add", "veth1", "type", "veth", "peer", "name", "veth1", "netns", s.lab.B.Name)
	for i, n := range []*nettest.Namespace{s.lab.A, s.lab.B} {
		ip(t, n, "addr", "add", fmt.Sprintf("10.78.0.%d/24", i+1), "dev", "veth1")
		ip(t, n, "link", "set", "veth1", "up")
	}
	writeFile(t, s.file("content"), make([]byte, 8<<20))
	s.configure(false)
	t.Setenv(soakStateVariable, s.file("state"))
	s.p = serveFile(t, s.lab.A, s.file("roxie.yaml"), "--control", s.file("control"))
	s.load = &load{t: t, c: newClient(t, s.lab.B)}
	for _, a := range []string{"10.77.0.1", "10.77.0.1", "fd77::1", "10.77.0.9"} {
		s.load.targets = append(s.load.targets, netip.MustParseAddr(a))
	}
	return s
}

// steady is the endpoint's state when it does not change any more: what is only made at the start has
// ended.
func (s *soakRun) steady() *soakState {
	s.t.Helper()
	last := s.state()
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		now := s.state()
		if now.equal(last) {
			return now
		}
		last = now
	}
	s.t.Fatalf("the endpoint is not steady without load: %v", last)
	return nil
}

// memoryAt is when the memory is measured that the end is compared with: what is made once is made.
const memoryAt = 2 * time.Minute

// TestSoak lasts for ROXIE_SOAK minutes: `make soak MINUTES=10`.
func TestSoak(t *testing.T) {
	needRoot(t)
	minutes, err := strconv.ParseFloat(os.Getenv(soakVariable), 64)
	short := err != nil
	if !short && minutes < 3 {
		t.Fatalf("%s=%v: want 3 minutes or more", soakVariable, minutes)
	}
	s := newSoak(t)
	first, own := s.steady(), s.own()
	d := 4 * time.Second
	if !short {
		s.trouble(memoryAt)
		d = time.Duration(minutes*float64(time.Minute)) - memoryAt
	}
	then := s.settled(first)
	s.trouble(d)
	end := s.settled(first)
	l := s.load
	t.Logf("%d work requests, %d completed, %d of them failed; %d connections, %d tries in vain, %d peers killed, %d captures",
		l.posted.Load(), l.completed.Load(), l.failed.Load(), l.connected.Load(), l.refused.Load(), s.kills, s.captures)
	t.Logf("at the beginning %v", first)
	t.Logf("before           %v", then)
	t.Logf("at the end       %v", end)
	if l.posted.Load() != l.completed.Load() || l.connected.Load() == 0 || s.kills == 0 || s.captures == 0 {
		t.Errorf("work requests: %d posted, %d completed", l.posted.Load(), l.completed.Load())
	}
	if grown := float64(end.RSS)/float64(then.RSS) - 1; !short && (grown > 0.05 || grown < -0.05) {
		t.Errorf("memory after 2 minutes %d KiB, at the end %d KiB: %+.1f %%", then.RSS, end.RSS, 100*grown)
	}
	if now := s.own(); !maps.Equal(now.Files, own.Files) {
		t.Errorf("this end has %v, at the beginning %v", now, own)
	}
	s.p.signal(syscall.SIGTERM)
	if err := s.p.end(10 * time.Second); err != nil {
		t.Errorf("endpoint ended with %v", err)
	}
}

// own is the state of the load's end.
func (s *soakRun) own() *soakState {
	return &soakState{Goroutines: runtime.NumGoroutine(), Files: filesOf(os.Getpid())}
}
