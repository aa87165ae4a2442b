package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/xfer"
	"github.com/roxie-rdma/roxie/verbs"
)

// Endpoints with several interfaces, and several endpoints side by side.

// pair adds another pair of interfaces, 10.NET.0.1 and 10.NET.0.2.
func pair(t *testing.T, l *nettest.Lab, name string, net int) {
	t.Helper()
	ip(t, l.A, "link", "add", name, "mtu", "9000", "type", "veth", "peer", "name", name, "mtu", "9000", "netns", l.B.Name)
	for i, n := range []*nettest.Namespace{l.A, l.B} {
		ip(t, n, "addr", "add", fmt.Sprintf("10.%d.0.%d/24", net, i+1), "dev", name)
		ip(t, n, "link", "set", name, "up")
	}
}

// TestServeTwoInterfaces: one endpoint on two interfaces answers on both at once; one is deleted and
// made anew, while a connection on the other goes on.
func TestServeTwoInterfaces(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	pair(t, l, "veth1", 78)
	p := endpoint(t, l.A, `
interfaces: [{name: veth0}, {name: veth1}]
services: {rping: }
exports:
  - {name: scratch, size: 8MiB, access: read-write, allow: [10.77.0.0/24, 10.78.0.0/24]}
`)
	name, content := randomFile(t, 2<<20+5)
	both := func() {
		t.Helper()
		var all []*process
		for _, to := range []string{"veth0 10.77.0.1", "veth1 10.78.0.1"} {
			dev, addr, _ := strings.Cut(to, " ")
			all = append(all, start(t, l.B, "ping", "-d", dev, "-c", "-a", addr, "-C", "20", "-V"))
		}
		for _, c := range all {
			if err := c.end(30 * time.Second); err != nil {
				t.Errorf("ping: %v %s", err, c.logged())
			}
		}
	}
	both()
	good(t, l.B, "put", "scratch@10.78.0.1", name) // in by one, out by the other
	out := filepath.Join(t.TempDir(), "out")
	good(t, l.B, "get", "scratch@10.77.0.1", out)
	sameFile(t, out, content)

	c := clientOn(t, l.B, "veth1")
	w := newWorker(t, c, "10.78.0.1:7470")
	w.advance()
	good(t, l.B, "put", "scratch@10.77.0.1", name)
	w.advance()
	ip(t, l.A, "link", "del", "veth0")
	p.logs("interface has gone")
	w.advance()
	remake(t, l)
	eventually(t, "interface", func() bool { return strings.Count(p.logged(), "interface opened") == 3 })
	w.advance()
	good(t, l.B, "get", "scratch@10.77.0.1", out)
	sameFile(t, out, content)
	w.advance()
	w.end()
	c.close()
	both()
	if n := strings.Count(p.logged(), "interface has gone"); n != 1 {
		t.Errorf("%d interfaces have gone", n)
	}
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// worker writes to an export and reads back, again and again, on one connection.
type worker struct {
	t      *testing.T
	l      *link
	rounds atomic.Int64
	stop   context.CancelFunc
	done   chan error
}

// workerAt is where in the export it works: what put and get do not touch.
const workerAt = 6 << 20

func newWorker(t *testing.T, c *client, to string) *worker {
	t.Helper()
	l, err := c.dial(to, xfer.Hello{Name: "scratch", Write: true}.Marshal())
	if err == nil {
		l.Grant, err = xfer.ParseGrant(l.Private())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := &worker{t: t, l: l, stop: stop, done: make(chan error, 1)}
	go func() { w.done <- w.work(ctx) }()
	t.Cleanup(stop)
	return w
}

func (w *worker) work(ctx context.Context) error {
	const n = 64 << 10
	b := w.l.mem.Bytes()
	for ctx.Err() == nil {
		round := byte(w.rounds.Load())
		for i := range n {
			b[i] = round ^ byte(i)
		}
		want := bytes.Clone(b[:n])
		for _, op := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead} {
			if op == verbs.WRRDMARead {
				clear(b[:n])
			}
			wr := verbs.SendWR{Opcode: op, SGList: []verbs.SGE{w.l.mem.SGE(0, n)}, RemoteAddr: w.l.Addr + workerAt,
				RKey: verbs.Key(w.l.RKey)}
			if err := w.l.QP().PostSend(&wr); err != nil {
				return err
			}
			if wc, err := w.l.wait(); err != nil || wc.Status != verbs.WCSuccess {
				return fmt.Errorf("round %d: %v: %v %w", w.rounds.Load(), op, wc.Status, err)
			}
		}
		if !bytes.Equal(b[:n], want) {
			return fmt.Errorf("round %d reads something else than it wrote", w.rounds.Load())
		}
		w.rounds.Add(1)
	}
	return nil
}

// advance waits for some more rounds.
func (w *worker) advance() {
	w.t.Helper()
	before := w.rounds.Load()
	eventually(w.t, "progress of the other connection", func() bool {
		select {
		case err := <-w.done:
			w.t.Fatalf("the other connection has ended: %v", err)
		default:
		}
		return w.rounds.Load() > before+2
	})
}

func (w *worker) end() {
	w.t.Helper()
	w.stop()
	if err := <-w.done; err != nil {
		w.t.Error(err)
	}
}

// container is a process that keeps a mount namespace beside a network namespace: as little is in it
// as in a container, and nothing that another one sees.
type container struct {
	t *testing.T
	n *nettest.Namespace
	p *process
}

// containerSetup makes /tmp and /run its own, with this program and a file. The namespace's /sys is
// without BPF's file system.
const containerSetup = `set -e
mkdir "$1/new"
mount -t tmpfs tmpfs "$1/new"
cp "$2" "$1/new/roxie"
cp "$3" "$1/new/content"
mount --move "$1/new" /tmp
mount -t tmpfs tmpfs /run
test "$(stat -f -c %T /sys/fs/bpf)" != bpf_fs
echo ready: set up
exec sleep 1000`

func newContainer(t *testing.T, n *nettest.Namespace, file string) *container {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", containerSetup, "sh", t.TempDir(), exe, file)
	c := &container{t: t, n: n}
	if c.p, err = launchAs(t, n, cmd); err != nil {
		t.Fatal(err)
	}
	c.p.ready()
	return c
}

// exec starts a command in it.
func (c *container) exec(args ...string) *process {
	c.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(c.p.cmd.Process.Pid), "--mount", "--net",
		"--wd=/tmp"}, args...)...)
	p, err := launchAs(c.t, c.n, cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// must is exec for what must succeed, with its output.
func (c *container) must(args ...string) string {
	c.t.Helper()
	p := c.exec(args...)
	if err := p.end(50 * time.Second); err != nil {
		c.t.Fatalf("%v: %v %s", args, err, p.logged())
	}
	var out strings.Builder
	for line := range p.out {
		out.WriteString(line + "\n")
	}
	return out.String()
}

// serve starts an endpoint in it, on veth0.
func (c *container) serve() *process {
	c.t.Helper()
	const config = `
interfaces: [{name: veth0}]
control: /run/roxie/control.sock
services: {rping: }
exports: [{name: disk, file: /tmp/disk, size: 8MiB, access: read-write, allow: [10.0.0.0/8]}]`
	c.must("sh", "-c", "cat >/tmp/roxie.yaml <<END"+config+"\nEND")
	p := c.exec("/tmp/roxie", "serve", "--config", "/tmp/roxie.yaml", "-v")
	p.ready()
	return p
}

// TestServeContainers: two containers' worth of namespaces side by side, each with an endpoint on its
// own veth0, the same paths, and clients on veth1 that move files to and from the other.
//
//	A veth0 10.77.0.1 ═══ veth1 10.77.0.2 B
//	A veth1 10.78.0.2 ═══ veth0 10.78.0.1 B
func TestServeContainers(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{NoIPv6: true})
	ip(t, l.B, "link", "set", "veth0", "name", "veth1")
	ip(t, l.A, "link", "add", "veth1", "mtu", "9000", "type", "veth", "peer", "name", "veth0", "mtu", "9000",
		"netns", l.B.Name)
	ip(t, l.A, "addr", "add", "10.78.0.2/24", "dev", "veth1")
	ip(t, l.B, "addr", "add", "10.78.0.1/24", "dev", "veth0")
	for _, n := range []*nettest.Namespace{l.A, l.B} {
		ip(t, n, "link", "set", "veth0", "up")
		ip(t, n, "link", "set", "veth1", "up")
	}
	var content [2][]byte
	var all [2]*container
	var serving [2]*process
	for i, n := range []*nettest.Namespace{l.A, l.B} {
		var name string
		name, content[i] = randomFile(t, 3<<20+i)
		all[i] = newContainer(t, n, name)
		serving[i] = all[i].serve()
	}
	peer := []string{"10.78.0.1", "10.77.0.1"} // of A's client, of B's
	var moving []*process
	for i, c := range all {
		moving = append(moving, c.exec("/tmp/roxie", "put", "disk@"+peer[i], "/tmp/content"))
	}
	for _, p := range moving {
		if err := p.end(50 * time.Second); err != nil {
			t.Fatalf("put: %v %s", err, p.logged())
		}
	}
	for i, c := range all {
		c.must("/tmp/roxie", "ping", "-d", "veth1", "-c", "-a", peer[i], "-C", "3", "-V")
		c.must("/tmp/roxie", "get", "disk@"+peer[i], "/tmp/back")
		c.must("cmp", "/tmp/content", "/tmp/back")
		if text := c.must("/tmp/roxie", "stat"); !strings.Contains(text, "redirected") { // the same path in both
			t.Errorf("stat: %s", text)
		}
		root := fmt.Sprintf("/proc/%d/root/tmp/disk", all[1-i].p.cmd.Process.Pid)
		sameFile(t, root, content[i]) // in the other's own /tmp
	}
	for _, p := range serving {
		p.signal(syscall.SIGTERM)
		if err := p.end(10 * time.Second); err != nil {
			t.Error(err)
		}
	}
}
