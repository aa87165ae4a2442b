package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// This file runs both ends of a test in a lab, each as a process of its own: the program that is
// running, told by ChildCommand that it is one end. It reads its Config as JSON from standard input
// and answers with an event a line on standard output.

// ChildCommand is the argument that makes the program call Child.
const ChildCommand = "perf-end"

// event is one line of a child's output. One field is set.
type event struct {
	Ready  bool    `json:",omitempty"`
	Setup  *Setup  `json:",omitempty"`
	Moment *Moment `json:",omitempty"`
	Result *Result `json:",omitempty"`
	Error  string  `json:",omitempty"`
	Gone   bool    `json:",omitempty"` // of Error: it only says that the other end had enough
}

// Child is one end of a Pair: what the program does that was started with ChildCommand.
func Child(ctx context.Context, in io.Reader, out io.Writer) error {
	var cfg Config
	if err := json.NewDecoder(in).Decode(&cfg); err != nil {
		return fmt.Errorf("read configuration: %w; this command is for roxie's own use", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer cfg.GC.start()()
	go untilClosed(in, cancel)
	enc := json.NewEncoder(out)
	var mu sync.Mutex
	tell := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(e)
	}
	_, err := Run(ctx, cfg, Hooks{
		Ready:    func(net.Addr) { tell(event{Ready: true}) },
		Setup:    func(s *Setup) { tell(event{Setup: s}) },
		Progress: func(m *Moment) { tell(event{Moment: m}) },
		Result:   func(r *Result) { tell(event{Result: r}) },
	})
	if err != nil {
		tell(event{Error: err.Error(), Gone: errors.Is(err, errGone) || errors.Is(err, errTold)})
	}
	return nil
}

// untilClosed calls cancel when the parent closes its end, or dies: nobody wants the result any
// more. The newline behind the configuration, which may not have been read with it, is no end.
func untilClosed(in io.Reader, cancel func()) {
	_, _ = io.Copy(io.Discard, in)
	cancel()
}

// Pair runs tests between the two sides of a lab: the server in A, the client in B.
type Pair struct {
	Lab     *lab.Lab
	Exe     string  // the program to run; empty: this one
	CPUs    *[2]int // of the server and of the client, see Config.CPU; nil: any
	Profile string  // write CPU profiles to this name with .server and .client; empty: none
}

const (
	readyTimeout = 20 * time.Second
	killAfter    = 3 * time.Second
	reasonWait   = 5 * time.Second // a busy machine takes that long to bury a process
)

// Run runs both ends of a test and returns what the client measured. Both are gone when it returns.
func (p *Pair) Run(ctx context.Context, cfg Config, hooks Hooks) ([]Result, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, client := cfg, cfg
	server.Interface, client.Interface = p.Lab.A.Interface, p.Lab.B.Interface
	server.CPU, client.CPU = -1, -1
	if p.CPUs != nil {
		server.CPU, client.CPU = p.CPUs[0], p.CPUs[1]
	}
	server.Capture, server.Control = "", "" // one file: the client's sees both directions, too
	client.Server = p.Lab.A.IPv4.String()
	if !p.Lab.A.IPv4.IsValid() {
		client.Server = p.Lab.A.IPv6.String()
	}

	ready := make(chan struct{})
	var once sync.Once
	a, err := p.start(ctx, p.Lab.A, &server, func(e *event) {
		if e.Ready {
			once.Do(func() { close(ready) })
		}
	})
	if err != nil {
		return nil, err
	}
	defer a.end()
	select {
	case <-ready:
	case <-a.done:
		return nil, a.fault("server")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(readyTimeout):
		return nil, fmt.Errorf("the server is not ready after %v", readyTimeout)
	}
	var results []Result
	b, err := p.start(ctx, p.Lab.B, &client, func(e *event) {
		switch {
		case e.Setup != nil && hooks.Setup != nil:
			hooks.Setup(e.Setup)
		case e.Moment != nil && hooks.Progress != nil:
			hooks.Progress(e.Moment)
		case e.Result != nil:
			results = append(results, *e.Result)
			if hooks.Result != nil {
				hooks.Result(e.Result)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	defer b.end()
	return results, p.await(ctx, a, b)
}

// await waits for both ends. When one has failed, the other gets a moment to say what it knows: a
// reason of its own is better than that the other end is gone.
func (p *Pair) await(ctx context.Context, server, client *child) error {
	var own, second error
	hear := func(c *child, name string) bool {
		err := c.fault(name)
		switch {
		case err == nil:
			return false
		case c.told && second == nil:
			second = err
		case !c.told && own == nil:
			own = err
		}
		return true
	}
	aDone, bDone := server.done, client.done
	var late <-chan time.Time
	for aDone != nil || bDone != nil {
		failed := false
		select {
		case <-aDone:
			aDone, failed = nil, hear(server, "server")
		case <-bDone:
			bDone, failed = nil, hear(client, "client")
		case <-late:
			return second
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case own != nil:
			return own
		case late == nil && failed:
			late = time.After(reasonWait)
		}
	}
	return second
}

// child is one end's process.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	done   chan struct{} // closed when it is gone and all it said has been heard
	errors bytes.Buffer  // its standard error

	// Valid when done.
	err  error
	text string // the reason it gave
	told bool   // its reason is the other end
}

func (p *Pair) start(ctx context.Context, at *lab.Namespace, cfg *Config,
	hear func(*event)) (*child, error) {
	exe := p.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	args := []string{ChildCommand}
	if p.Profile != "" {
		end := ".server"
		if cfg.Server != "" {
			end = ".client"
		}
		args = append(args, "--cpuprofile", p.Profile+end)
	}
	c := &child{cmd: exec.CommandContext(ctx, exe, args...), done: make(chan struct{})}
	c.cmd.Stderr = &c.errors
	c.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: unix.SIGKILL,
		Setpgid:   true, // Ctrl-C is for the parent, who ends both in good order
	}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(unix.SIGTERM) }
	c.cmd.WaitDelay = killAfter
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.in = in
	if err := at.Start(c.cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", exe, at.Name, err)
	}
	go c.listen(out, hear)
	b, err := json.Marshal(cfg)
	if err == nil {
		_, err = in.Write(append(b, '\n'))
	}
	if err != nil {
		c.end()
		return nil, fmt.Errorf("configure the end in %s: %w", at.Name, err)
	}
	return c, nil
}

func (c *child) listen(out io.Reader, hear func(*event)) {
	defer close(c.done)
	dec := json.NewDecoder(out)
	for {
		var e event
		if dec.Decode(&e) != nil {
			break
		}
		if e.Error != "" {
			c.text, c.told = e.Error, e.Gone
		}
		hear(&e)
	}
	_, _ = io.Copy(io.Discard, out)
	c.err = c.cmd.Wait()
}

// end ends the process if it still runs, and waits until it is gone.
func (c *child) end() {
	_ = c.in.Close()
	select {
	case <-c.done:
		return
	case <-time.After(killAfter):
	}
	_ = c.cmd.Process.Kill()
	<-c.done
}

// fault says why the process failed, nil if it did not. It is called when done.
func (c *child) fault(name string) error {
	switch said := strings.TrimSpace(c.errors.String()); {
	case c.text != "":
		return fmt.Errorf("%s: %s", name, c.text)
	case c.err == nil:
		return nil
	case said != "":
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(said, "roxie: "))
	default:
		return fmt.Errorf("%s ended without a result: %w", name, c.err)
	}
}
