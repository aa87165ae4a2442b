package netdev

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dropCaps takes all capabilities from the calling thread, which must not be used again.
func dropCaps(t *testing.T) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var nothing [2]unix.CapUserData
	if err := unix.Capset(&head, &nothing[0]); err != nil {
		t.Fatal(err)
	}
}

// onThread runs f on a thread of its own.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the thread ends
		f()
	}()
	<-done
}

func TestRequireCaps(t *testing.T) {
	if os.Geteuid() == 0 && !HaveCap(CapNetAdmin) {
		t.Skip("root without CAP_NET_ADMIN")
	}
	if os.Geteuid() == 0 {
		if err := RequireCaps(CapNetAdmin); err != nil {
			t.Errorf("as root: %v", err)
		}
	}
	onThread(func() {
		dropCaps(t)
		if HaveCap(CapNetRaw) || HaveCap(CapBPF) {
			t.Error("a capability that was dropped is there")
		}
		err := RequireCaps(CapNetAdmin, CapBPF)
		var missing *CapError
		if !errors.As(err, &missing) || len(missing.Missing) != 2 {
			t.Fatalf("error is %v, want a *CapError with both", err)
		}
		want := "missing CAP_NET_ADMIN, CAP_BPF: run as root, or allow it with " +
			"`setcap cap_net_admin,cap_bpf+ep FILE`"
		if err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	})
}

// limitEnv makes the test binary the process whose limits are lowered: that cannot be undone.
const limitEnv = "ROXIE_TEST_MEMLOCK"

func TestRaiseMemlock(t *testing.T) {
	if os.Getenv(limitEnv) != "" {
		memlockChild(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRaiseMemlock$", "-test.v")
	cmd.Env = append(os.Environ(), limitEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func memlockChild(t *testing.T) {
	const soft, hard = 64 << 10, 1 << 20
	limit := unix.Rlimit{Cur: soft, Max: hard}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	if HaveCap(CapIPCLock) {
		if err := RaiseMemlock(1 << 40); err != nil {
			t.Errorf("with CAP_IPC_LOCK: %v", err)
		}
	}
	onThread(func() {
		dropCaps(t)
		if err := RaiseMemlock(hard); err != nil {
			t.Errorf("up to the hard limit: %v", err)
		}
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur != hard {
			t.Errorf("limit is %d, %v; want %d", limit.Cur, err, hard)
		}
		err := RaiseMemlock(hard + 1)
		var tooLow *MemlockError
		if !errors.As(err, &tooLow) || tooLow.Need != hard+1 || tooLow.Limit != hard {
			t.Fatalf("beyond the hard limit: %v", err)
		}
		for _, want := range []string{"1025 KiB", "limit is 1024 KiB", "ulimit -l 1025",
			"LimitMEMLOCK=1025K"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %q", want, fmt.Sprint(err))
			}
		}
	})
}
