package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/xfer"
)

// process is this program as a process of its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	conf string
	mu   sync.Mutex
	log  bytes.Buffer // standard error
	out  chan string  // lines of standard output
	done chan error
}

// start runs a command line in a namespace.
func start(t testing.TB, n *nettest.Namespace, args ...string) *process {
	t.Helper()
	p, err := launch(t, n, args...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// launch is start for any goroutine.
func launch(t testing.TB, n *nettest.Namespace, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return launchAs(t, n, exec.Command(exe, args...))
}

// launchAs is launch for a command that comes to this program by way of others.
func launchAs(t testing.TB, n *nettest.Namespace, cmd *exec.Cmd) (*process, error) {
	p := &process{t: t, cmd: cmd, out: make(chan string, 100), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), runMain+"=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = writer(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.log.Write(b)
	})
	if err := n.Start(p.cmd); err != nil {
		return nil, err
	}
	go func() {
		in := bufio.NewScanner(stdout)
		for in.Scan() {
			select {
			case p.out <- in.Text():
			default:
			}
		}
		close(p.out)
		p.done <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(cmd.Args[1:], " "), p.logged())
		}
	})
	return p, nil
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// errRuns is that a process has not ended in time.
var errRuns = errors.New("has not ended")

// end waits for the process to end.
func (p *process) end(within time.Duration) error {
	p.t.Helper()
	err := p.await(within)
	if errors.Is(err, errRuns) {
		p.t.Fatal(err)
	}
	return err
}

// await is end for any goroutine.
func (p *process) await(within time.Duration) error {
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(within):
		return fmt.Errorf("%v %w after %v", p.cmd.Args[1:], errRuns, within)
	}
}

// logs waits for a text in the log.
func (p *process) logs(text string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%q in the log", text), func() bool { return strings.Contains(p.logged(), text) })
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s after 20 s", what)
		}
	}
}

// endpoint starts `roxie serve` and waits until it is ready.
func endpoint(t testing.TB, n *nettest.Namespace, config string, flags ...string) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "roxie.yaml")
	writeFile(t, file, []byte(config))
	return serveFile(t, n, file, flags...)
}

func serveFile(t testing.TB, n *nettest.Namespace, file string, flags ...string) *process {
	t.Helper()
	p := start(t, n, append([]string{"serve", "--config", file, "-v"}, flags...)...)
	p.conf = file
	p.ready()
	return p
}

// ready waits until the endpoint says so.
func (p *process) ready() {
	p.t.Helper()
	select {
	case line, ok := <-p.out:
		if !ok || !strings.HasPrefix(line, "ready: ") {
			p.t.Fatalf("not ready: %q %s", line, p.logged())
		}
	case <-time.After(20 * time.Second):
		p.t.Fatalf("not ready after 20 s: %s", p.logged())
	}
}

func writeFile(t testing.TB, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// in runs a command line of this program in a namespace, in this process.
func in(t testing.TB, n *nettest.Namespace, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.Do(func() { code = run(ctx, args, &out, &err) })
	return code, out.String(), err.String()
}

// good is in for what must succeed.
func good(t testing.TB, n *nettest.Namespace, args ...string) string {
	t.Helper()
	code, out, stderr := in(t, n, args...)
	if code != exitOK {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	return out
}

// bad is in for what must fail with a text.
func bad(t testing.TB, n *nettest.Namespace, text string, args ...string) {
	t.Helper()
	code, out, stderr := in(t, n, args...)
	if code != exitFailure || !strings.Contains(stderr, text) {
		t.Fatalf("%v: exit code %d, %q %q, want %q", args, code, out, stderr, text)
	}
}

func randomFile(t testing.TB, n int) (name string, content []byte) {
	t.Helper()
	content = make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(content)
	name = filepath.Join(t.TempDir(), "content")
	writeFile(t, name, content)
	return name, content
}

func sameFile(t testing.TB, name string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s has %d bytes and differs from the %d expected", name, len(got), len(want))
	}
}

// reload changes an endpoint's configuration and waits until it has been read.
func (p *process) reload(config, logged string) {
	p.t.Helper()
	writeFile(p.t, p.conf, []byte(config))
	before := strings.Count(p.logged(), logged)
	p.signal(syscall.SIGHUP)
	eventually(p.t, fmt.Sprintf("%q in the log", logged), func() bool {
		return strings.Count(p.logged(), logged) > before
	})
}

// result reads the JSON that a transfer has printed.
func (p *process) result() (r xfer.Result) {
	p.t.Helper()
	var text strings.Builder
	for line := range p.out {
		text.WriteString(line)
	}
	if err := json.NewDecoder(strings.NewReader(text.String())).Decode(&r); err != nil && !errors.Is(err, io.EOF) {
		p.t.Fatalf("%v: %q", err, text.String())
	}
	return r
}
