package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/qemu/channel"
)

// Cmd is a program in the guest, used like exec.Cmd. Its methods are for one goroutine.
type Cmd struct {
	Argv   []string
	Stdin  io.Reader // nil: end of file at once
	Stdout io.Writer // nil: thrown away
	Stderr io.Writer

	guest *Guest
	ctx   context.Context
	id    uint32
	done  chan struct{} // closed once status is set
	once  sync.Once
	end   channel.Status
	err   error // why no status came
	wrErr error // of Stdout or Stderr
	stop  func() bool
}

// ExitError says that a program in the guest did not end well.
type ExitError struct {
	Program string
	Code    int            // -1 after a signal
	Signal  syscall.Signal // 0: none
	Stderr  []byte         // its last part, if Output gathered it
}

func (e *ExitError) Error() string {
	s := fmt.Sprintf("guest: %s: exit status %d", e.Program, e.Code)
	if e.Signal != 0 {
		s = fmt.Sprintf("guest: %s: %v", e.Program, e.Signal)
	}
	if text := strings.TrimSpace(string(e.Stderr)); text != "" {
		s += ": " + lastLines(text, 3)
	}
	return s
}

// Command prepares a program; ctx ends it with SIGKILL, and all of its process group.
func (g *Guest) Command(ctx context.Context, argv ...string) *Cmd {
	return &Cmd{Argv: argv, guest: g, ctx: ctx, done: make(chan struct{})}
}

// Shell prepares a shell script, in which the first failing command ends it.
func (g *Guest) Shell(ctx context.Context, script string) *Cmd {
	return g.Command(ctx, "sh", "-ec", script)
}

// Start starts the program. What it writes goes to Stdout and Stderr until Wait returns.
func (c *Cmd) Start() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.guest.begin(c); err != nil {
		return err
	}
	c.stop = context.AfterFunc(c.ctx, func() { _ = c.Signal(unix.SIGKILL) })
	if c.Stdin == nil {
		return c.guest.conn.Send(channel.Stdin, c.id, nil)
	}
	go func() {
		_, err := io.Copy(c.guest.conn.Writer(channel.Stdin, c.id), c.Stdin)
		if err == nil {
			_ = c.guest.conn.Send(channel.Stdin, c.id, nil)
		} else {
			_ = c.Signal(unix.SIGKILL)
		}
	}()
	return nil
}

// Signal sends a signal to the program and its children. It may be called from any goroutine.
func (c *Cmd) Signal(s syscall.Signal) error {
	return c.guest.conn.Send(channel.Signal, c.id, []byte{byte(s)})
}

// Done is closed when the program has ended.
func (c *Cmd) Done() <-chan struct{} { return c.done }

// Wait waits for the end of a program that was started: *ExitError unless it ended with code 0, the
// context's error if that ended it, ErrGone if the guest died.
func (c *Cmd) Wait() error {
	<-c.done
	c.stop()
	switch {
	case c.err != nil:
		return c.err
	case c.end.Error != "":
		return fmt.Errorf("guest: %s", c.end.Error)
	case c.end.Signal == int(unix.SIGKILL) && c.ctx.Err() != nil:
		return fmt.Errorf("guest: %s: %w", c.Argv[0], context.Cause(c.ctx))
	case c.end.Code != 0:
		return &ExitError{Program: strings.Join(c.Argv, " "), Code: c.end.Code,
			Signal: syscall.Signal(c.end.Signal)}
	}
	return c.wrErr
}

// Run is Start and Wait.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and returns what it wrote to standard output. Without a Stderr of its
// own, an ExitError holds the rest.
func (c *Cmd) Output() ([]byte, error) {
	var out, errs bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &errs
	}
	err := c.Run()
	var exit *ExitError
	if errors.As(err, &exit) {
		exit.Stderr = errs.Bytes()
	}
	return out.Bytes(), err
}

// finish notes how the program ended, once.
func (c *Cmd) finish(s channel.Status, err error) {
	c.once.Do(func() {
		c.end, c.err = s, err
		close(c.done)
	})
}

// write hands output on. A writer's error does not stop the program.
func (c *Cmd) write(w io.Writer, b []byte) {
	if w == nil {
		return
	}
	if _, err := w.Write(b); err != nil && c.wrErr == nil {
		c.wrErr = fmt.Errorf("output of %s: %w", c.Argv[0], err)
	}
}

// Push writes a file in the guest.
func (g *Guest) Push(ctx context.Context, path string, executable bool, data io.Reader) error {
	mode := "644"
	if executable {
		mode = "755"
	}
	c := g.Command(ctx, "sh", "-ec", `cat >"$1"; chmod "$2" "$1"`, "sh", path, mode)
	c.Stdin = data
	_, err := c.Output()
	return err
}

// Pull reads a file of the guest.
func (g *Guest) Pull(ctx context.Context, path string, to io.Writer) error {
	c := g.Command(ctx, "cat", path)
	var errs bytes.Buffer
	c.Stdout, c.Stderr = to, &errs
	err := c.Run()
	var exit *ExitError
	if errors.As(err, &exit) {
		exit.Stderr = errs.Bytes()
	}
	return err
}
