package qemu

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSetPriority: also the session has the priority, else it would not count against others.
func TestSetPriority(t *testing.T) {
	const nice = 7
	c := exec.Command("sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if err := SetPriority(c.Process.Pid, nice); err != nil {
		t.Fatal(err)
	}
	// The system call returns 20 - nice.
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, c.Process.Pid); err != nil || n != 20-nice {
		t.Errorf("the process's priority is %d, %v; want nice %d", 20-n, err, nice)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", c.Process.Pid))
	if err != nil {
		t.Logf("no autogroup here: %v", err)
	} else if want := fmt.Sprintf("nice %d\n", nice); !strings.HasSuffix(string(b), want) {
		t.Errorf("the session: %q, want %q", b, want)
	}
}
