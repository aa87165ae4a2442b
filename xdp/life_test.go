package xdp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// openFDs counts this process's descriptors, mapped counts its mappings of AF_XDP rings.
func openFDs(tb testing.TB) int {
	tb.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	must(tb, err)
	return len(d)
}

func mapped(tb testing.TB) int {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must(tb, err)
	return strings.Count(string(b), "socket:[")
}

// ping sends one frame from a to b and waits for it.
func ping(t *testing.T, a, b *Socket) {
	t.Helper()
	sendPattern(t, a, 100)
	if k := a.Kick(); k != KickSent {
		t.Fatalf("kick: %v, %+v", k, a.Stats())
	}
	if w := b.Wait(time.Second); w&WokenRX == 0 || b.Receive(8) != 1 {
		t.Fatalf("no frame: %+v %+v", a.Stats(), b.Stats())
	}
	b.Release()
}

func TestOpenClose100(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	a := l.open(t, 0, Config{})
	var fds int
	for i := range 100 {
		b, err := l.tryOpen(1, Config{XSKMAP: m, FillDepth: 64, TXFrames: 64})
		if err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		ping(t, a, b)
		must(t, b.Close())
		must(t, b.Close())
		if i == 0 {
			fds = openFDs(t)
		}
	}
	// The runtime may open a descriptor or two of its own; a leak would be 100 and more.
	if n := openFDs(t); n > fds+4 {
		t.Errorf("%d descriptors after 100 cycles, %d after the first", n, fds)
	}
	if n := mapped(t); n != 4 {
		t.Errorf("%d rings mapped, want the 4 of the open socket", n)
	}
}

// TestBusyNamesHolder opens a queue twice, the first time in another process.
func TestBusyNamesHolder(t *testing.T) {
	if os.Getenv("XDP_TEST_CHILD") != "" {
		holderChild(t)
		return
	}
	l := newLab(t, 2, 1500)
	other := l.open(t, 0, Config{Queue: 1}) // must not be taken for the holder
	if boundTo("/proc/"+strconv.Itoa(os.Getpid()), strconv.Itoa(other.FD()), l.index[0], 0) ||
		!boundTo("/proc/"+strconv.Itoa(os.Getpid()), strconv.Itoa(other.FD()), l.index[0], 1) {
		t.Error("a socket's queue was not found out")
	}
	cmd := childTest("TestBusyNamesHolder")
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	within(l.a, func() { err = cmd.Start() })
	must(t, err)
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	for r := bufio.NewReader(stdout); ; {
		line, err := r.ReadString('\n')
		if must(t, err); strings.HasPrefix(line, "bound") {
			break
		}
	}
	start := time.Now()
	_, err = l.tryOpen(0, Config{})
	var busy *BusyError
	if !errors.As(err, &busy) || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("second open: %v, want a BusyError", err)
	}
	if d := time.Since(start); d < rebindWait/2 {
		t.Errorf("gave up after %v", d)
	}
	want := fmt.Sprintf("queue 0 of a is in use by xdp.test (pid %d); stop it", cmd.Process.Pid)
	if !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not say %q", err, want)
	}
}

// holderChild holds queue 0 of a until its input ends.
func holderChild(t *testing.T) {
	s, err := Open(Config{Interface: "a", FillDepth: 8, TXFrames: 8})
	must(t, err)
	defer s.Close()
	fmt.Println("bound")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// childTest runs one test of this binary in a process of its own, with XDP_TEST_CHILD set.
func childTest(name string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self, "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), "XDP_TEST_CHILD=1")
	return cmd
}

func TestOpenErrors(t *testing.T) {
	l := newLab(t, 1, 1500)
	for _, c := range []struct {
		name string
		c    Config
		is   error
		says string
	}{
		{"queue", Config{Queue: 7}, unix.EINVAL, "no such queue"},
		{"zero-copy", Config{ZeroCopy: Require}, ErrZeroCopy, "use ZeroCopy: Auto"},
		{"interface", Config{Ifindex: 4711}, unix.ENODEV, "no interface with index 4711"},
		{"config", Config{FillDepth: -1}, nil, "FillDepth -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fds := openFDs(t)
			_, err := l.tryOpen(0, c.c)
			if err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("%v, want %v", err, c.is)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
			if n := openFDs(t); n > fds {
				t.Errorf("%d descriptors left open", n-fds)
			}
		})
	}
}

// TestLinkDown sends over a link that goes down and comes up again.
func TestLinkDown(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	a := l.open(t, 0, Config{})
	b := l.open(t, 1, Config{XSKMAP: m})
	ping(t, a, b)
	ln, err := l.links[0].LinkByName("a")
	must(t, err)
	must(t, l.links[0].LinkSetDown(ln))
	sendPattern(t, a, 100)
	if k := a.Kick(); k != KickDown {
		t.Fatalf("kick on a link that is down: %v", k)
	}
	if err := a.Err(); err != nil {
		t.Errorf("link down is taken for gone: %v", err)
	}
	if got := a.Stats().TXDown; got != 1 {
		t.Errorf("TXDown is %d, want 1", got)
	}
	must(t, l.links[0].LinkSetUp(ln))
	if k := a.Kick(); k != KickSent {
		t.Fatalf("kick after the link came up: %v", k)
	}
	if w := b.Wait(time.Second); w != WokenRX || b.Receive(8) != 1 {
		t.Fatalf("the frame kept over the outage did not arrive: %+v", b.Stats())
	}
	ping(t, a, b)
}

// TestLinkDeleted deletes the pair under a sender, a waiting receiver and a spinning one.
func TestLinkDeleted(t *testing.T) {
	l := newLab(t, 2, 1500)
	m := l.program(t, 1, 2, link.XDPDriverMode)
	a := l.open(t, 0, Config{})
	b := l.open(t, 1, Config{XSKMAP: m})
	spinning := l.open(t, 1, Config{XSKMAP: m, Queue: 1})
	ping(t, a, b)
	deleted := make(chan error, 1)
	go func() {
		ln, err := l.links[0].LinkByName("a")
		if err == nil {
			err = l.links[0].LinkDel(ln)
		}
		deleted <- err
	}()
	deadline := time.Now().Add(5 * time.Second)
	for spinning.Err() == nil && time.Now().Before(deadline) {
		spinning.Receive(8)
	}
	must(t, <-deleted)
	if err := spinning.Err(); err != ErrGone {
		t.Errorf("spinning receiver: %v, want ErrGone", err)
	}
	if w := b.Wait(10 * time.Millisecond); w != WokenGone {
		t.Errorf("waiting receiver: %v, want WokenGone", w)
	}
	sendPattern(t, a, 100)
	if k := a.Kick(); k != KickGone {
		t.Errorf("sender: %v, want KickGone", k)
	}
	if err := a.RefreshMTU(); !errors.Is(err, ErrGone) {
		t.Errorf("RefreshMTU: %v, want ErrGone", err)
	}
	for _, s := range []*Socket{a, b, spinning} {
		must(t, s.Close())
	}
}

func TestRefreshMTU(t *testing.T) {
	l := newLab(t, 1, 1500)
	s := l.open(t, 0, Config{SG: true})
	if got := s.MaxFrame(); got != 1514 {
		t.Fatalf("MaxFrame is %d, want 1514", got)
	}
	ln, err := l.links[0].LinkByName("a")
	must(t, err)
	must(t, l.links[0].LinkSetMTU(ln, 4200))
	must(t, s.RefreshMTU())
	if got := s.MaxFrame(); got != 4214 {
		t.Errorf("MaxFrame is %d, want 4214", got)
	}
}

// TestWait covers what ends a sleep.
func TestWait(t *testing.T) {
	l := newLab(t, 1, 1500)
	m := l.program(t, 1, 1, link.XDPDriverMode)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	must(t, err)
	defer unix.Close(wake)
	a := l.open(t, 0, Config{})
	b := l.open(t, 1, Config{XSKMAP: m, WakeFD: wake})
	start := time.Now()
	if w := b.Wait(30 * time.Millisecond); w != 0 {
		t.Errorf("woken by %v, want nothing", w)
	}
	if d := time.Since(start); d < 20*time.Millisecond {
		t.Errorf("slept %v, want 30ms", d)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
	if w := b.Wait(-1); w != WokenFD {
		t.Errorf("woken by %v, want WokenFD", w)
	}
	// Wait sends what is submitted; the eventfd is still readable.
	sendPattern(t, a, 60)
	a.Wait(0)
	if w := b.Wait(time.Second); w != WokenRX|WokenFD {
		t.Errorf("woken by %v, want both", w)
	}
}

func TestPreopenedSocket(t *testing.T) {
	l := newLab(t, 1, 1500)
	var fd int
	var err error
	within(l.a, func() { fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) })
	must(t, err)
	s := l.open(t, 0, Config{Socket: os.NewFile(uintptr(fd), "xsk")})
	if s.FD() != fd {
		t.Errorf("descriptor %d, want the given %d", s.FD(), fd)
	}
	must(t, s.Close())
	if err := unix.Fstat(fd, new(unix.Stat_t)); err != unix.EBADF {
		t.Errorf("descriptor after Close: %v, want it closed", err)
	}
}
