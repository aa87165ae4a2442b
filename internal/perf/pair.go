package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/internal/ends"
	"github.com/roxie-rdma/roxie/internal/lab"
)

// This file runs both ends of a test in a lab, each as a process of its own (package ends).

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
	ctx, cancel, err := ends.Configure(ctx, in, &cfg)
	if err != nil {
		return err
	}
	defer cancel()
	defer cfg.GC.start()()
	t := ends.NewTeller(out)
	_, err = Run(ctx, cfg, Hooks{
		Ready:    func(net.Addr) { t.Tell(event{Ready: true}) },
		Setup:    func(s *Setup) { t.Tell(event{Setup: s}) },
		Progress: func(m *Moment) { t.Tell(event{Moment: m}) },
		Result:   func(r *Result) { t.Tell(event{Result: r}) },
	})
	if err != nil {
		t.Tell(event{Error: err.Error(), Gone: errors.Is(err, errGone) || errors.Is(err, errTold)})
	}
	return nil
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
	defer a.Close()
	select {
	case <-ready:
	case <-a.Done():
		return nil, a.Fault("server", a.text)
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
	defer b.Close()
	return results, p.await(ctx, a, b)
}

// await waits for both ends. When one has failed, the other gets a moment to say what it knows: a
// reason of its own is better than that the other end is gone.
func (p *Pair) await(ctx context.Context, server, client *child) error {
	var own, second error
	hear := func(c *child, name string) bool {
		err := c.Fault(name, c.text)
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
	aDone, bDone := server.Done(), client.Done()
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
	*ends.End
	text string // the reason it gave; valid when done
	told bool   // its reason is the other end
}

func (p *Pair) start(ctx context.Context, at *lab.Namespace, cfg *Config,
	hear func(*event)) (c *child, err error) {
	args := []string{ChildCommand}
	if p.Profile != "" {
		end := ".server"
		if cfg.Server != "" {
			end = ".client"
		}
		args = append(args, "--cpuprofile", p.Profile+end)
	}
	c = &child{}
	c.End, err = ends.Start(ctx, at, p.Exe, args, cfg, func(e *event) {
		if e.Error != "" {
			c.text, c.told = e.Error, e.Gone
		}
		hear(e)
	})
	return c, err
}
