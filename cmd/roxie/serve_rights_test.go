package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/privs"
	"github.com/roxie-rdma/roxie/verbs"
)

// nobody is a user that need not have an entry.
const nobody = 65534

const rightsConfig = `
interfaces: [{name: veth0}]
services: {rping: , echo: }
exports:
  - {name: disk, file: %s/disk, size: 8MiB, access: read-write, allow: [10.77.0.0/24]}
  - {name: scratch, size: 1MiB, access: read-write, allow: [10.77.0.0/24]}
`

// openDir is a directory that everybody may read and nobody may write, too.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "roxie-rights")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(data, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rightsEndpoint starts an endpoint that becomes nobody.
func rightsEndpoint(t *testing.T, l *nettest.Lab, flags ...string) *process {
	t.Helper()
	dir := openDir(t)
	file := filepath.Join(dir, "roxie.yaml")
	writeFile(t, file, fmt.Appendf(nil, rightsConfig, filepath.Join(dir, "data")))
	return serveFile(t, l.A, file, append([]string{"--user", strconv.Itoa(nobody)}, flags...)...)
}

// wantRights checks every thread of a process.
func wantRights(t *testing.T, pid int, caps uint64) {
	t.Helper()
	threads, err := privs.Of(pid)
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads of %d: %v", len(threads), pid, err)
	}
	some := false
	for _, r := range threads {
		// The starter starts the worker by a thread that has nothing either.
		nothing := r.Effective|r.Permitted|r.Ambient == 0
		exact := r.Effective == caps && r.Permitted == caps && r.Ambient == caps
		if r.UID != nobody || r.GID != nobody || !nothing && !exact || r.Bounding&^starterMask() != 0 || !r.NoNewPrivs {
			t.Fatalf("process %d has a thread with %+v, want user %d, capabilities %#x, no new ones", pid, r, nobody, caps)
		}
		some = some || exact
	}
	if !some {
		t.Fatalf("no thread of process %d has the capabilities %#x", pid, caps)
	}
}

// starterMask is the capabilities of a starter.
func starterMask() (mask uint64) {
	for _, c := range starterCaps {
		mask |= 1 << c
	}
	return mask
}

// ip runs ip in a namespace.
func ip(t *testing.T, n *nettest.Namespace, args ...string) {
	t.Helper()
	if err := tryIP(n, args...); err != nil {
		t.Fatal(err)
	}
}

// tryIP is ip for any goroutine.
func tryIP(n *nettest.Namespace, args ...string) error {
	cmd := exec.Command("ip", args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("ip %v: %w %s", args, err, out.String())
	}
	return nil
}

// remake makes the interface anew, after its end in the endpoint's namespace is gone.
func remake(t *testing.T, l *nettest.Lab) {
	t.Helper()
	ip(t, l.A, "link", "add", "veth0", "mtu", "9000", "type", "veth", "peer", "name", "veth0", "mtu", "9000", "netns", l.B.Name)
	ip(t, l.A, "addr", "add", "10.77.0.1/24", "dev", "veth0")
	ip(t, l.B, "addr", "add", "10.77.0.2/24", "dev", "veth0")
	ip(t, l.A, "link", "set", "veth0", "up")
	ip(t, l.B, "link", "set", "veth0", "up")
}

// TestServeUser: the endpoint becomes an ordinary user without a capability in any thread. After that
// it moves data, follows addresses, has the kernel confirm a neighbour, and reads its configuration
// again. Without a starter an interface that is made anew stays closed.
func TestServeUser(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	p := rightsEndpoint(t, l)
	wantRights(t, p.cmd.Process.Pid, 0)
	noListener(t, p.cmd.Process.Pid)
	name, content := randomFile(t, 3<<20+17)
	out := filepath.Join(t.TempDir(), "out")
	good(t, l.B, "put", "disk@10.77.0.1", name)
	good(t, l.B, "get", "disk@10.77.0.1", out)
	sameFile(t, out, content)

	c := newClient(t, l.B)
	e := c.export("scratch", true)
	if err := l.A.DoErr(func() error { return forget("10.77.0.2") }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "neighbour", func() (known bool) {
		l.A.Do(func() { known = neighbourKnown(t, "10.77.0.2") })
		return known
	})
	if got := e.do(verbs.WRRDMAWrite, 0, 8); got != verbs.WCSuccess {
		t.Errorf("WRITE after the neighbour was forgotten: %v", got)
	}
	ip(t, l.A, "addr", "add", "10.77.0.9/24", "dev", "veth0")
	p.logs("GID table change")
	if _, err := c.dial("10.77.0.9:7175", nil); err != nil {
		t.Errorf("connect to an address added later: %v", err)
	}
	p.signal(syscall.SIGHUP)
	p.logs("configuration taken")
	wantRights(t, p.cmd.Process.Pid, 0)

	c.close()
	ip(t, l.A, "link", "del", "veth0")
	p.logs("interface has gone")
	remake(t, l)
	p.logs("port error: the interface stays closed")
	if strings.Count(p.logged(), "interface opened") != 1 {
		t.Error("the interface was opened again")
	}
	wantLines(t, p.logged(), []string{
		`level=WARN msg="port error: .* interface=veth0 event="port error"`, // PORT_ERR
		`level=ERROR msg="interface has gone: all its connections are over.*" interface=veth0`,
		`level=ERROR msg="port error: the interface stays closed until the endpoint is started again; ` +
			`with a starter \(serve --starter\) it would be opened when it comes back" interface=veth0`,
	})
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// wantLines makes sure that a log has lines in an order, each once.
func wantLines(t *testing.T, log string, lines []string) {
	t.Helper()
	at := 0
	for _, line := range lines {
		found := regexp.MustCompile(`(?m)`+line).FindAllStringIndex(log, -1)
		if len(found) != 1 || found[0][0] < at {
			t.Errorf("%d lines like %s, want one, in the order of\n%s", len(found), line, strings.Join(lines, "\n"))
			continue
		}
		at = found[0][0]
	}
}

// noListener makes sure that nothing in the process's namespace listens for TCP.
func noListener(t *testing.T, pid int) {
	t.Helper()
	for _, kind := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
				t.Errorf("%s: something listens: %s", kind, line)
			}
		}
	}
}

// forget takes a neighbour out of the kernel's table.
func forget(addr string) error {
	link, err := netlink.LinkByName("veth0")
	if err != nil {
		return err
	}
	a := netip.MustParseAddr(addr)
	return netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice()})
}

func neighbourKnown(t *testing.T, addr string) bool {
	t.Helper()
	conn, err := netdev.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	link, err := conn.LinkByName("veth0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := conn.Neighbour(link.Index, netip.MustParseAddr(addr))
	return err == nil && n.State.Known()
}

// child returns the process that another has started.
func child(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		if b, e := os.ReadFile(name); e == nil {
			text = append(text, b...)
		}
	}
	f := strings.Fields(string(text))
	if len(f) == 0 {
		t.Fatalf("process %d has no child: %v", pid, err)
	}
	n, err := strconv.Atoi(f[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestServeStarter: the worker has no rights, the starter three capabilities; an interface that is
// made anew is opened again. The worker's end is the starter's, and the other way round.
func TestServeStarter(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	p := rightsEndpoint(t, l, "--starter")
	caps := starterMask()
	worker := child(t, p.cmd.Process.Pid)
	wantRights(t, p.cmd.Process.Pid, caps)
	wantRights(t, worker, 0)
	ping := func() {
		t.Helper()
		good(t, l.B, "ping", "-d", "veth0", "-c", "-a", "10.77.0.1", "-C", "3", "-V")
	}
	ping()
	for i := range 2 {
		ip(t, l.A, "link", "del", "veth0")
		eventually(t, "end", func() bool { return strings.Count(p.logged(), "interface has gone") == i+1 })
		remake(t, l)
		eventually(t, "interface", func() bool { return strings.Count(p.logged(), "interface opened") == i+2 })
		ping()
	}
	p.signal(syscall.SIGHUP)
	p.logs("configuration taken")
	ping()
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}

	p = rightsEndpoint(t, l, "--starter")
	worker = child(t, p.cmd.Process.Pid)
	p.kill()
	eventually(t, "end of the worker of a starter that was killed", func() bool {
		return syscall.Kill(worker, 0) == syscall.ESRCH || zombie(worker)
	})
	p = rightsEndpoint(t, l, "--starter")
	if err := syscall.Kill(child(t, p.cmd.Process.Pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.end(10 * time.Second); err == nil {
		t.Error("exit code 0 after the worker was killed")
	}
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}
