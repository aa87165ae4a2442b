package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// need skips the test where a guest cannot be had.
func need(t testing.TB) {
	t.Helper()
	if os.Getenv("ROXIE_GUEST") == "" {
		t.Skip("boots a guest, which ROXIE_GUEST=1 asks for, as make interop does")
	}
	if os.Getuid() != 0 {
		t.Skip("boots a guest, which needs root")
	}
	for _, p := range []string{Emulator, "apt-get", "dpkg-deb", "xz"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("boots a guest, which needs %s", p)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("boots a guest, which needs /dev/net/tun")
	}
}

func boot(t testing.TB) (context.Context, *Guest) {
	t.Helper()
	need(t)
	// A signal ends the test as a failure does, so that nothing is left behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	t.Cleanup(stop)
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	t.Cleanup(cancel)
	img, err := Build(ctx, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Start(ctx, img, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%s answered after %v", img.Release, g.Booted.Round(10*time.Millisecond))
	return ctx, g
}

// TestGuest boots one guest and tries all that can be done with it; a boot costs seconds.
func TestGuest(t *testing.T) {
	ctx, g := boot(t)
	t.Run("Output", func(t *testing.T) {
		out, err := g.Command(ctx, "uname", "-r").Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != g.Image.Release {
			t.Errorf("uname -r: %q, %v; want %q", got, err, g.Image.Release)
		}
	})
	t.Run("Failure", func(t *testing.T) {
		_, err := g.Shell(ctx, "echo trouble >&2; exit 7").Output()
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != 7 || !strings.Contains(err.Error(), "trouble") {
			t.Errorf("got %v, want exit status 7 and its words", err)
		}
		if _, err := g.Command(ctx, "no-such-program").Output(); err == nil ||
			!strings.Contains(err.Error(), "no-such-program") {
			t.Errorf("a program that is missing: %v", err)
		}
	})
	t.Run("Files", func(t *testing.T) {
		want := bytes.Repeat([]byte("0123456789abcdef\n\x00\xff"), 1<<16)
		if err := g.Push(ctx, "/tmp/file", false, bytes.NewReader(want)); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := g.Pull(ctx, "/tmp/file", &got); err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d of %d bytes came back, or others: %v", got.Len(), len(want), err)
		}
	})
	t.Run("Background", func(t *testing.T) { background(ctx, t, g) })
	t.Run("Network", func(t *testing.T) {
		out, err := g.Command(ctx, "ping", "-c1", HostIPv4.Addr().String()).Output()
		if err != nil {
			t.Errorf("ping over IPv4: %v: %s", err, out)
		}
		out, err = g.Command(ctx, "ping", "-6", "-c1", HostIPv6.Addr().String()).Output()
		if err != nil {
			t.Errorf("ping over IPv6: %v: %s", err, out)
		}
	})
	t.Run("RDMA", func(t *testing.T) { device(ctx, t, g) })
	t.Run("Death", func(t *testing.T) {
		c := g.Command(ctx, "sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		pid := g.proc.Process.Pid
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); !errors.Is(err, ErrGone) {
			t.Errorf("a command of a guest that died: %v", err)
		}
		if err := g.Command(ctx, "true").Run(); !errors.Is(err, ErrGone) {
			t.Errorf("a command for a guest that is gone: %v", err)
		}
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			t.Errorf("the emulator, process %d, is still there", pid)
		}
		if names, err := lab.List(); err != nil || strings.Contains(fmt.Sprint(names), g.lab.Name) {
			t.Errorf("labs after Close: %v, %v", names, err)
		}
	})
}

// background runs several programs at once and ends some of them.
func background(ctx context.Context, t *testing.T, g *Guest) {
	const n = 8
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sleepers [n]*Cmd
	for i := range sleepers {
		sleepers[i] = g.Shell(ctx, "sleep 1000 & wait")
		if err := sleepers[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := sleepers[0].Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *ExitError
	if err := sleepers[0].Wait(); !errors.As(err, &exit) || exit.Signal != unix.SIGTERM {
		t.Errorf("after SIGTERM: %v", err)
	}
	cancel()
	for _, s := range sleepers[1:] {
		if err := s.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("after cancel: %v", err)
		}
	}
	// All are dead, their children too.
	out, err := g.Shell(context.WithoutCancel(ctx), "ps").Output()
	if err != nil || strings.Contains(string(out), "sleep 1000") {
		t.Errorf("processes left: %v\n%s", err, out)
	}
}

// device looks at the RDMA device, how it follows the link MTU, and that its queue drops nothing.
func device(ctx context.Context, t *testing.T, g *Guest) {
	out, err := g.Command(ctx, "tc", "qdisc", "show", "dev", GuestLink).Output()
	if want := fmt.Sprintf("qdisc pfifo 0: root refcnt 2 limit %dp", tapQueue); err != nil ||
		!strings.Contains(string(out), want) {
		t.Errorf("the guest's queue is %q, %v; want %q", out, err, want)
	}
	for _, c := range []struct {
		mtu  int
		want string
	}{{1500, "1024 (3)"}, {4200, "4096 (5)"}} {
		if err := g.SetMTU(ctx, c.mtu); err != nil {
			t.Fatal(err)
		}
		out, err := g.Command(ctx, "ibv_devinfo", "-v", "-d", GuestRDMA).Output()
		if err != nil {
			t.Fatal(err)
		}
		text := string(out)
		for _, want := range []string{
			"active_mtu:\t\t" + c.want,
			fmt.Sprintf("GID[%3d]:\t\t::ffff:10.77.0.2", GuestGIDv4),
			fmt.Sprintf("GID[%3d]:\t\tfd77::2", GuestGIDv6),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("link MTU %d: ibv_devinfo does not say %q:\n%s", c.mtu, want, text)
			}
		}
	}
}

// TestStillborn: a guest that ends before it answers is started again, a few times.
func TestStillborn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("makes a tap, which needs root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("makes a tap, which needs /dev/net/tun")
	}
	dir := t.TempDir()
	starts := filepath.Join(dir, "starts")
	program := "#!/bin/sh\necho x >>" + starts + "\necho 'Kernel panic' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, Emulator), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	logged := 0
	_, err := Start(t.Context(), new(Image), Config{Log: func(format string, args ...any) {
		logged++
		if line := fmt.Sprintf(format, args...); !strings.Contains(line, "Kernel panic") {
			t.Errorf("logged without the console: %s", line)
		}
	}})
	if !errors.Is(err, errStillborn) || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("Start: %v", err)
	}
	if logged != births-1 {
		t.Errorf("%d failed starts are logged, want %d", logged, births-1)
	}
	if b, err := os.ReadFile(starts); err != nil || bytes.Count(b, []byte("x")) != births {
		t.Errorf("started %d times, want %d (%v)", bytes.Count(b, []byte("x")), births, err)
	}
	if names, err := lab.List(); err != nil || slices.Contains(names, fmt.Sprint(labPrefix, os.Getpid())) {
		t.Errorf("its namespaces are left: %v %v", names, err)
	}
}
