package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// childEnv makes the test binary play a child process: its value says which.
const childEnv = "ROXIE_BPF_TEST_CHILD"

func TestMain(m *testing.M) {
	args := strings.Fields(os.Getenv(childEnv))
	if len(args) == 0 {
		os.Exit(m.Run())
	}
	if err := child(args); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// child runs in the child process: "attach IFNAME" attaches, says so and waits to be killed;
// "caps IFNAME MASK" gives up all capabilities but those of the mask, then loads and attaches.
func child(args []string) error {
	ifi, err := net.InterfaceByName(args[1])
	if err != nil {
		return err
	}
	if args[0] == "caps" {
		mask, err := strconv.ParseUint(args[2], 16, 64)
		if err != nil {
			return err
		}
		if err := keepCapabilities(mask); err != nil {
			return err
		}
	}
	p, err := Load(Config{})
	if err != nil {
		return err
	}
	if err := p.Attach(ifi.Index, Auto); err != nil {
		return err
	}
	fmt.Println("attached", p.Attachment().ProgramID)
	if args[0] == "attach" {
		io.Copy(io.Discard, os.Stdin) // until the parent goes
	}
	return p.Close()
}

// keepCapabilities drops all other capabilities of the calling goroutine, which stays on its
// thread.
func keepCapabilities(mask uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		bits := uint32(mask >> (32 * i))
		data[i] = unix.CapUserData{Effective: bits, Permitted: bits}
	}
	runtime.LockOSThread()
	return unix.Capset(&hdr, &data[0])
}

// startChild starts a child in a namespace and returns the first line it writes.
func startChild(t *testing.T, ns *nettest.Namespace, args string) (*exec.Cmd, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+args)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}
