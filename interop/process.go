package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// process is a program that runs at one of the two ends.
type process struct {
	name string
	done chan struct{}
	err  error
	out  output
	end  context.CancelFunc
	proc *os.Process // of a program here
}

// output gathers what a program writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// graceTime is how long a program may take to end when it is told to.
const graceTime = 3 * time.Second

// priority is that of the two ends, before what looks at captures.
const priority = -15

// here starts a program in the namespace with the guest's other end.
func (r *rig) here(ctx context.Context, argv ...string) (*process, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{name: argv[0], done: make(chan struct{}), end: cancel}
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdout, c.Stderr = &p.out, &p.out
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
	c.WaitDelay = time.Second
	if err := r.g.Side.Start(c); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	p.proc = c.Process
	if err := qemu.SetPriority(c.Process.Pid, priority); err != nil {
		_ = c.Process.Kill()
		_ = c.Wait()
		cancel()
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		_ = c.Process.Signal(unix.SIGTERM)
		time.AfterFunc(graceTime, func() { _ = c.Process.Kill() })
	})
	go func() {
		p.finish(c.Wait())
	}()
	return p, nil
}

// there starts a program in the guest.
func (r *rig) there(ctx context.Context, argv ...string) (*process, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{name: argv[0], done: make(chan struct{}), end: cancel}
	c := r.g.Command(ctx, argv...)
	c.Stdout, c.Stderr = &p.out, &p.out
	if err := c.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s in the guest: %w", argv[0], err)
	}
	go func() { p.finish(c.Wait()) }()
	return p, nil
}

func (p *process) finish(err error) {
	p.err = err
	close(p.done)
	p.end()
}

// wait waits for the end of a program. The error says what it last wrote.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		<-p.done // it is being ended
		if p.err == nil {
			return nil
		}
		return p.failure(context.Cause(ctx))
	}
	return p.failure(p.err)
}

// failure makes an error of a program's end.
func (p *process) failure(err error) error {
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	var gexit *qemu.ExitError
	text := err.Error()
	switch {
	case errors.As(err, &exit):
		text = exit.Error()
	case errors.As(err, &gexit):
		text = fmt.Sprintf("exit status %d", gexit.Code)
	}
	return fmt.Errorf("%s: %s: %s", p.name, text, lastLines(p.out.String()))
}

// kill ends a program as a crash would.
func (p *process) kill() {
	if p.proc != nil {
		_ = p.proc.Kill()
	}
	<-p.done
}

// stop ends a program and waits until it is gone.
func (p *process) stop() {
	p.end()
	<-p.done
}

// until waits for a condition that is looked at again and again.
func until(ctx context.Context, what string, condition func() (bool, error)) error {
	const every = 30 * time.Millisecond
	for {
		ok, err := condition()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-time.After(every):
		}
	}
}

// run runs a program in the guest to its end and returns what it wrote.
func (r *rig) run(ctx context.Context, script string) (string, error) {
	out, err := r.g.Shell(ctx, script).Output()
	return string(out), err
}
