package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
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
//
//	veth0   load; links flap, addresses come and go
//	veth1   peers that are killed
//	veth2   load; the interface is deleted and made anew

// soakVariable is how many minutes it lasts; without it some seconds, with all but the comparison of
// memory.
const soakVariable = "ROXIE_SOAK"

// soakSettle is how long the endpoint may take to be rid of what has gone.
const soakSettle = 60 * time.Second

// soakRun is one run. What is wrong comes as errors: only the test's own goroutine may end it.
type soakRun struct {
	t    *testing.T
	lab  *nettest.Lab
	dir  string
	p    *process
	load *load

	kills, captures, remade int
	recorded                []string // captures with whole packets
}

func (s *soakRun) file(name string) string { return filepath.Join(s.dir, name) }

const soakConfig = `
interfaces: [{name: veth0, keepalive: 2s}, {name: veth1, keepalive: 2s}, {name: veth2, keepalive: 2s}]
limits: {connections-per-peer: 200, memory: 256MiB}
services:
  rping:
  echo: {size: %s}
exports:
  - name: scratch
    size: 1MiB
    access: read-write
    allow: [10.77.0.0/24, 10.78.0.0/24, 10.79.0.0/24, "fd77::/64"]
  - {name: disk, file: %s, size: 16MiB, access: read-write, allow: [10.78.0.0/24]}
%s`

// configure writes one of two configurations.
func (s *soakRun) configure(second bool) error {
	size, more := "4KiB", ""
	if second {
		size, more = "8KiB", "  - {name: more, size: 2MiB, allow: [10.77.0.0/24]}\n"
	}
	text := fmt.Appendf(nil, soakConfig, size, s.file("disk"), more)
	if err := os.WriteFile(s.file("new"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(s.file("new"), s.file("roxie.yaml"))
}

func (s *soakRun) reload(second bool) error {
	if err := s.configure(second); err != nil {
		return err
	}
	return s.p.cmd.Process.Signal(syscall.SIGHUP)
}

// joined are goroutines that work until one of them returns an error, or the time is over.
type joined struct {
	ctx  context.Context
	stop context.CancelCauseFunc
	all  sync.WaitGroup
}

func (j *joined) run(f func(context.Context) error) {
	j.all.Go(func() {
		if err := f(j.ctx); err != nil {
			j.stop(err)
		}
	})
}

// every does something again and again.
func (j *joined) every(d time.Duration, f func(i int) error) {
	j.run(func(ctx context.Context) error {
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(d/2 + rand.N(d)):
			}
			if err := f(i); err != nil {
				return err
			}
		}
	})
}

// wait returns the first error.
func (j *joined) wait() error {
	j.all.Wait()
	if err := context.Cause(j.ctx); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// trouble runs load and trouble for a while, then has both end and the interfaces as they were.
func (s *soakRun) trouble(d time.Duration) {
	s.t.Helper()
	over, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	j := &joined{}
	j.ctx, j.stop = context.WithCancelCause(over)
	defer j.stop(nil)
	pace := min(d/4, 8*time.Second)
	j.run(func(ctx context.Context) error { return s.load.run(ctx, 24) })
	j.run(func(ctx context.Context) error { return s.vanish(ctx, pace) })
	j.every(pace, s.flap)
	j.every(pace/2, func(i int) error { // addresses come and go
		return tryIP(s.lab.A, "addr", []string{"replace", "del"}[i%2], "10.77.0.9/24", "dev", "veth0")
	})
	j.every(pace, func(i int) error { return s.reload(i%2 == 0) })
	j.every(pace/2, s.capture)
	j.every(pace/8, s.kill)
	err := j.wait()
	for _, verb := range []string{"replace", "del"} {
		err = errors.Join(err, tryIP(s.lab.A, "addr", verb, "10.77.0.9/24", "dev", "veth0"))
	}
	before := strings.Count(s.p.logged(), "configuration taken")
	if err = errors.Join(err, s.reload(false)); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "configuration", func() bool { return strings.Count(s.p.logged(), "configuration taken") > before })
}

// flap takes the link down for a moment, at either end, and the IPv6 address that goes with it.
func (s *soakRun) flap(i int) error {
	n, addr := s.lab.A, "fd77::1/64"
	if i%2 == 1 {
		n, addr = s.lab.B, "fd77::2/64"
	}
	if err := tryIP(n, "link", "set", "veth0", "down"); err != nil {
		return err
	}
	time.Sleep(rand.N(500 * time.Millisecond))
	if err := tryIP(n, "link", "set", "veth0", "up"); err != nil {
		return err
	}
	return tryIP(n, "addr", "replace", addr, "dev", "veth0", "nodad")
}

// vanish has QPs work on an interface that is deleted under them, by either end, and made anew.
func (s *soakRun) vanish(ctx context.Context, pace time.Duration) error {
	for i := 0; ctx.Err() == nil; i++ {
		c, err := openClient(s.t, s.lab.B, "veth2")
		if err != nil {
			return fmt.Errorf("client on veth2: %w", err)
		}
		l := &load{c: c, account: s.load.account, targets: []netip.Addr{netip.MustParseAddr("10.79.0.1")}}
		work, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- l.run(work, 6) }()
		select {
		case <-ctx.Done():
		case <-time.After(pace/2 + rand.N(pace)):
		}
		opened, went := s.logged("interface opened"), s.logged("interface has gone")
		l.gone.Store(true)
		err = tryIP([]*nettest.Namespace{s.lab.A, s.lab.B}[i%2], "link", "del", "veth2")
		stop()
		err = errors.Join(err, <-done, c.m.Close(), c.dev.Close())
		if err == nil {
			err = s.await("interface has gone", went)
		}
		if err = errors.Join(err, s.addLink("veth2", 79)); err == nil {
			err = s.await("interface opened", opened)
		}
		if err != nil {
			return fmt.Errorf("deletion %d of veth2: %w", i, err)
		}
		s.remade++
	}
	return nil
}

// logged is how often the endpoint has said something.
func (s *soakRun) logged(text string) int { return strings.Count(s.p.logged(), text) }

// await waits until it has said it once more than before.
func (s *soakRun) await(text string, before int) error {
	for end := time.Now().Add(soakSettle); s.logged(text) <= before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("no %q in the log after %v", text, soakSettle)
		}
	}
	return nil
}

// addLink makes another pair, 10.NET.0.1 and 10.NET.0.2.
func (s *soakRun) addLink(name string, net int) error {
	errs := []error{tryIP(s.lab.A, "link", "add", name, "type", "veth", "peer", "name", name, "netns", s.lab.B.Name)}
	for i, n := range []*nettest.Namespace{s.lab.A, s.lab.B} {
		errs = append(errs, tryIP(n, "addr", "add", fmt.Sprintf("10.%d.0.%d/24", net, i+1), "dev", name),
			tryIP(n, "link", "set", name, "up"))
	}
	return errors.Join(errs...)
}

// captureCount is how many packets are recorded of those captures that are read at the end.
const captureCount = 2000

// capture records for a moment: a number of whole packets, or the heads of all of them.
func (s *soakRun) capture(i int) error {
	file := s.file(fmt.Sprintf("capture-%d.pcapng", len(s.recorded)))
	args := []string{"capture", "-o", file, "--control", s.file("control")}
	whole := i%2 == 0
	if whole {
		args = append(args, "-c", strconv.Itoa(captureCount))
	} else {
		args = append(args, "-s", "64")
	}
	p, err := launch(s.t, s.lab.A, args...)
	if err != nil {
		return err
	}
	defer p.kill()
	for end := time.Now().Add(soakSettle); !strings.Contains(p.logged(), "capturing"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) { // before that a signal ends it at once
			return fmt.Errorf("capture has not begun: %s", p.logged())
		}
	}
	err = p.await(time.Second + rand.N(time.Second))
	if errors.Is(err, errRuns) {
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		err = p.await(soakSettle)
	}
	if err != nil && !strings.Contains(p.logged(), "packets written") { // else it was on its way out
		return fmt.Errorf("capture: %w %s", err, p.logged())
	}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		return fmt.Errorf("nothing captured: %w", err)
	}
	if s.captures++; whole {
		s.recorded = append(s.recorded, file)
	}
	return nil
}

// kill starts a peer and kills it in the midst of its work.
func (s *soakRun) kill(i int) error {
	args := []string{"put", "disk@10.78.0.1", s.file("content")}
	switch i % 3 {
	case 1:
		args = []string{"get", "disk@10.78.0.1", s.file("back")}
	case 2:
		args = []string{"ping", "-d", "veth1", "-c", "-a", "10.78.0.1", "-C", "100000"}
	}
	p, err := launch(s.t, s.lab.B, args...)
	if err != nil {
		return err
	}
	time.Sleep(rand.N(400 * time.Millisecond))
	p.kill()
	if err := p.await(soakSettle); errors.Is(err, errRuns) {
		return err
	}
	s.kills++
	return nil
}

// newSoak makes the network and starts the endpoint.
func newSoak(t *testing.T) *soakRun {
	s := &soakRun{t: t, lab: nettest.New(t, nettest.Config{}), dir: t.TempDir()}
	writeFile(t, s.file("content"), make([]byte, 8<<20))
	if err := errors.Join(s.addLink("veth1", 78), s.addLink("veth2", 79), s.configure(false)); err != nil {
		t.Fatal(err)
	}
	t.Setenv(soakStateVariable, s.file("state"))
	s.p = serveFile(t, s.lab.A, s.file("roxie.yaml"), "--control", s.file("control"))
	s.load = &load{account: &account{}, c: newClient(t, s.lab.B)}
	for _, a := range []string{"10.77.0.1", "10.77.0.1", "fd77::1", "10.77.0.9"} {
		s.load.targets = append(s.load.targets, netip.MustParseAddr(a))
	}
	return s
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
	l := s.load.account
	t.Logf("%d work requests, %d completed, %d of them failed; %d connections, %d tries in vain; "+
		"%d interfaces made anew, %d peers killed, %d captures", l.posted.Load(), l.completed.Load(), l.failed.Load(),
		l.connected.Load(), l.refused.Load(), s.remade, s.kills, s.captures)
	t.Logf("at the beginning %v", first)
	t.Logf("before           %v", then)
	t.Logf("at the end       %v", end)
	if l.posted.Load() != l.completed.Load() || l.connected.Load() == 0 || s.kills == 0 || s.captures == 0 || s.remade == 0 {
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
	s.readCaptures()
}
