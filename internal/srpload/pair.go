package srpload

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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// This file runs both ends in a lab, each as a process of its own: the program that is running,
// told by ChildCommand that it is one end. It reads its Config as JSON from standard input and answers
// with an event a line on standard output.

// ChildCommand is the argument that makes the program call Child.
const ChildCommand = "srp-end"

// event is one line of a child's output. One field is set.
type event struct {
	Ready  bool    `json:",omitempty"`
	Result *Result `json:",omitempty"`
	Error  string  `json:",omitempty"`
}

// Child is one end of a Pair: what the program does that was started with ChildCommand.
func Child(ctx context.Context, in io.Reader, out io.Writer) error {
	var cfg Config
	if err := json.NewDecoder(in).Decode(&cfg); err != nil {
		return fmt.Errorf("read configuration: %w; this command is for roxie's own use", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the parent closes its end, or dies: nobody wants the result any more
		_, _ = io.Copy(io.Discard, in) // the newline behind the configuration is no end
		cancel()
	}()
	enc := json.NewEncoder(out)
	r, err := Run(ctx, cfg, Hooks{Ready: func(net.Addr) { _ = enc.Encode(event{Ready: true}) }})
	switch {
	case err != nil:
		return enc.Encode(event{Error: err.Error()})
	case r != nil:
		return enc.Encode(event{Result: r})
	}
	return nil
}

// Pair runs loads between the two sides of a lab: the target in A, the initiator in B.
type Pair struct {
	Lab  *lab.Lab
	Exe  string  // the program to run; empty: this one
	CPUs *[2]int // of the target and of the initiator, see Config.CPU; nil: any
}

const (
	readyTimeout = 30 * time.Second
	killAfter    = 3 * time.Second
)

// Run runs both ends and returns what the initiator measured. Both are gone when it returns.
func (p *Pair) Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	target, initiator := cfg, cfg
	target.Interface, initiator.Interface = p.Lab.A.Interface, p.Lab.B.Interface
	target.CPU, initiator.CPU = -1, -1
	if p.CPUs != nil {
		target.CPU, initiator.CPU = p.CPUs[0], p.CPUs[1]
	}
	target.Server, initiator.Server = "", p.Lab.A.IPv4.String()
	a, err := p.start(ctx, p.Lab.A, &target)
	if err != nil {
		return nil, err
	}
	defer a.end()
	select {
	case <-a.ready:
	case <-a.done:
		return nil, a.fault("target")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(readyTimeout):
		return nil, fmt.Errorf("the target is not ready after %v", readyTimeout)
	}
	b, err := p.start(ctx, p.Lab.B, &initiator)
	if err != nil {
		return nil, err
	}
	defer b.end()
	select {
	case <-b.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if b.result != nil {
		return b.result, nil
	}
	err = b.fault("initiator")
	select {
	case <-a.done: // it has given up, too, and knows better why
		err = errors.Join(a.fault("target"), err)
	case <-time.After(killAfter):
	}
	return nil, err
}

// child is one end's process.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	ready  chan struct{}
	done   chan struct{} // closed when it is gone and all it said has been heard
	errors bytes.Buffer  // its standard error

	// Valid when done.
	err    error
	text   string // the reason it gave
	result *Result
}

func (p *Pair) start(ctx context.Context, at *lab.Namespace, cfg *Config) (*child, error) {
	exe := p.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	c := &child{cmd: exec.CommandContext(ctx, exe, ChildCommand), done: make(chan struct{}),
		ready: make(chan struct{})}
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
	go c.listen(out)
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

func (c *child) listen(out io.Reader) {
	defer close(c.done)
	dec := json.NewDecoder(out)
	for {
		var e event
		if dec.Decode(&e) != nil {
			break
		}
		switch {
		case e.Ready:
			close(c.ready)
		case e.Error != "":
			c.text = e.Error
		case e.Result != nil:
			c.result = e.Result
		}
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
