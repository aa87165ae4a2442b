package xdp

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// TestUnprivileged hands two sockets and a map to a process of user 65534, which must be able to
// receive, and to say what is wrong when it may not lock enough memory.
func TestUnprivileged(t *testing.T) {
	if os.Getenv("XDP_TEST_CHILD") != "" {
		unprivilegedChild(t)
		return
	}
	l := newLab(t, 2, 1500)
	m := l.program(t, 1, 2, link.XDPDriverMode)
	a := l.open(t, 0, Config{})
	cmd := childTest("TestUnprivileged")
	cmd.Path = "/proc/self/fd/3" // user 65534 may not walk to the binary
	cmd.Dir = "/"
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody}
	inherit := func(fd int, err error) {
		must(t, err)
		f := os.NewFile(uintptr(fd), "inherited")
		t.Cleanup(func() { _ = f.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	inherit(unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	inherit(unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0))
	for range 2 {
		var fd int
		var err error
		within(l.b, func() { fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) })
		inherit(fd, err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // the child receives one of these
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				if _, _, ok := a.Reserve(); ok {
					a.Submit(60)
					a.Kick()
				}
			}
		}
	}()
	var out []byte
	var err error
	within(l.b, func() { out, err = cmd.CombinedOutput() })
	close(stop)
	<-stopped
	if err != nil || !strings.Contains(string(out), "received 60 bytes") {
		t.Fatalf("child: %v\n%s", err, out)
	}
}

func unprivilegedChild(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Fatal("still root")
	}
	m, err := ebpf.NewMapFromFD(4)
	must(t, err)
	// Less than the socket needs; Open may raise it to the hard limit.
	var lim unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim))
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: lim.Max}))
	c := Config{Interface: "b", XSKMAP: m, FillDepth: 64, TXFrames: 64}
	c.Socket = os.NewFile(5, "xsk")
	s, err := Open(c)
	must(t, err)
	defer s.Close()
	if w := s.Wait(5 * time.Second); w != WokenRX || s.Receive(1) != 1 {
		t.Fatalf("nothing received: %v", w)
	}
	t.Logf("received %d bytes", s.Len(0))

	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}))
	c.Socket, c.Queue = os.NewFile(6, "xsk"), 1
	_, err = Open(c)
	want := "register 512 KiB of packet memory: no buffer space available (locked memory is limited" +
		" to 64 KiB"
	if !errors.Is(err, unix.ENOBUFS) || !strings.Contains(err.Error(), want) {
		t.Errorf("too little memory to lock: %v, want %s", err, want)
	}
	if _, err := Open(Config{Interface: "b"}); !errors.Is(err, unix.EPERM) ||
		!strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Errorf("no socket: %v, want EPERM and advice", err)
	}
}
