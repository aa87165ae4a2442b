// Package ends runs the ends of a test in a lab, each as a process of its own in its namespace: the
// program that is running, told by an argument that it is one end. An end reads its configuration as a
// line of JSON from standard input and answers with an event, a line of JSON, at a time on standard
// output. It gives up when its parent closes that input or dies.
package ends

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// KillAfter is how long an end may take to stop when it is asked to.
const KillAfter = 3 * time.Second

// Configure is for the end: it reads cfg from in. The context that it returns is done when nobody
// wants the result any more.
func Configure(ctx context.Context, in io.Reader, cfg any) (context.Context, context.CancelFunc, error) {
	if err := json.NewDecoder(in).Decode(cfg); err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w; this command is for roxie's own use", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		// The newline behind the configuration, which may not have been read with it, is no end.
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, cancel, nil
}

// Teller is for the end: it tells the parent events. Any goroutine may use it.
type Teller struct {
	mu  sync.Mutex
	enc *json.Encoder
}

// NewTeller returns a Teller that writes to out.
func NewTeller(out io.Writer) *Teller { return &Teller{enc: json.NewEncoder(out)} }

// Tell writes an event. A parent that does not listen any more is noticed elsewhere.
func (t *Teller) Tell(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.enc.Encode(event)
}

// End is the parent's view of one end.
type End struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	done   chan struct{}
	errors bytes.Buffer // its standard error
	err    error        // valid when done
}

// Start runs exe (empty: this program) with args in a namespace and configures it with cfg. Each event
// that it tells goes to hear, one after the other. The end of ctx ends it, too.
func Start[E any](ctx context.Context, at *lab.Namespace, exe string, args []string, cfg any,
	hear func(*E)) (*End, error) {
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	e := &End{cmd: exec.CommandContext(ctx, exe, args...), done: make(chan struct{})}
	e.cmd.Stderr = &e.errors
	e.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: unix.SIGKILL,
		Setpgid:   true, // Ctrl-C is for the parent, who ends both in good order
	}
	e.cmd.Cancel = func() error { return e.cmd.Process.Signal(unix.SIGTERM) }
	e.cmd.WaitDelay = KillAfter
	in, err := e.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.in = in
	if err := at.Start(e.cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", exe, at.Name, err)
	}
	go listen(e, out, hear)
	b, err := json.Marshal(cfg)
	if err == nil {
		_, err = in.Write(append(b, '\n'))
	}
	if err != nil {
		e.Close()
		return nil, fmt.Errorf("configure the end in %s: %w", at.Name, err)
	}
	return e, nil
}

func listen[E any](e *End, out io.Reader, hear func(*E)) {
	defer close(e.done)
	dec := json.NewDecoder(out)
	for {
		var event E
		if dec.Decode(&event) != nil {
			break
		}
		hear(&event)
	}
	_, _ = io.Copy(io.Discard, out)
	e.err = e.cmd.Wait()
}

// Done is closed when the process is gone and all it said has been heard.
func (e *End) Done() <-chan struct{} { return e.done }

// Close ends the process if it still runs, and waits until it is gone.
func (e *End) Close() {
	_ = e.in.Close()
	select {
	case <-e.done:
		return
	case <-time.After(KillAfter):
	}
	_ = e.cmd.Process.Kill()
	<-e.done
}

// Fault says why the end, called name, failed, nil if it did not. A reason that it told, if not empty,
// is the reason. Call it when Done.
func (e *End) Fault(name, reason string) error {
	switch said := strings.TrimSpace(e.errors.String()); {
	case reason != "":
		return fmt.Errorf("%s: %s", name, reason)
	case e.err == nil:
		return nil
	case said != "":
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(said, "roxie: "))
	default:
		return fmt.Errorf("%s ended without a result: %w", name, e.err)
	}
}
