package lab_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// childEnv makes the test binary play a child process that builds a lab, says its name and waits to
// be killed.
const childEnv = "ROXIE_LAB_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	l, err := lab.New(lab.Config{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(l.Name)
	io.Copy(io.Discard, os.Stdin)
	l.Close()
}

// TestStale kills a process with a lab: the lab is found and removed.
func TestStale(t *testing.T) {
	nettest.New(t, nettest.Config{})
	cmd, name := startChild(t, nil)
	if stale, err := lab.Stale(); err != nil || slices.Contains(stale, name) {
		t.Errorf("stale while its process lives: %v %v", stale, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	cmd.Wait()
	if !strings.HasPrefix(name, lab.Prefix) {
		t.Fatalf("the child says %q", name)
	}
	if stale, err := lab.Stale(); err != nil || !slices.Contains(stale, name) {
		t.Errorf("not stale after the kill: %v %v", stale, err)
	}
	// Another test's sweep may be faster.
	if err := lab.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if stale, err := lab.Stale(); err != nil || slices.Contains(stale, name) {
		t.Errorf("still stale: %v %v", stale, err)
	}
}

// startChild starts the child and returns the first line it writes.
func startChild(t testing.TB, attr *syscall.SysProcAttr) (*exec.Cmd, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // go test's own directory is for root alone
	exe = filepath.Join(dir, "child")
	if err := os.WriteFile(exe, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = attr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child says %q: %v", line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// TestNoRight builds labs in processes that may not: one line says what is needed, and nothing
// stays.
func TestNoRight(t *testing.T) {
	nettest.New(t, nettest.Config{})
	for _, caps := range [][]uintptr{nil, {unix.CAP_NET_ADMIN}, {unix.CAP_SYS_ADMIN}} {
		cmd, line := startChild(t, &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
			AmbientCaps: caps,
		})
		if !strings.HasPrefix(line, "a lab needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN: ") {
			t.Errorf("with capabilities %v: %q", caps, line)
		}
		if err := cmd.Wait(); err == nil {
			t.Errorf("with capabilities %v: exit code 0", caps)
		}
		left, err := filepath.Glob(fmt.Sprintf("/run/netns/%s.%d.*", lab.Prefix, cmd.Process.Pid))
		if err != nil || left != nil {
			t.Errorf("with capabilities %v: left %v, %v", caps, left, err)
		}
	}
}

// TestStartPdeathsig shows that a child with a parent death signal survives the call that started
// it, and dies with the lab.
func TestStartPdeathsig(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := l.A.Start(cmd); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		t.Fatalf("the child died at once: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-exited:
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("the child ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		cmd.Process.Kill()
		t.Error("the child outlived the lab")
	}
	if err := l.A.Start(exec.Command("true")); err == nil {
		t.Error("a command was started in a closed lab")
	}
}
