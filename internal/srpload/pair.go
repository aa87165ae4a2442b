package srpload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/roxie-rdma/roxie/internal/ends"
	"github.com/roxie-rdma/roxie/internal/lab"
)

// This file runs both ends in a lab, each as a process of its own (package ends).

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
	ctx, cancel, err := ends.Configure(ctx, in, &cfg)
	if err != nil {
		return err
	}
	defer cancel()
	t := ends.NewTeller(out)
	r, err := Run(ctx, cfg, Hooks{Ready: func(net.Addr) { t.Tell(event{Ready: true}) }})
	switch {
	case err != nil:
		t.Tell(event{Error: err.Error()})
	case r != nil:
		t.Tell(event{Result: r})
	}
	return nil
}

// Pair runs loads between the two sides of a lab: the target in A, the initiator in B.
type Pair struct {
	Lab  *lab.Lab
	Exe  string  // the program to run; empty: this one
	CPUs *[2]int // of the target and of the initiator, see Config.CPU; nil: any
}

const readyTimeout = 30 * time.Second

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
	ready, text := make(chan struct{}), ""
	a, err := ends.Start(ctx, p.Lab.A, p.Exe, []string{ChildCommand}, &target, func(e *event) {
		switch {
		case e.Ready:
			close(ready)
		case e.Error != "":
			text = e.Error
		}
	})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	select {
	case <-ready:
	case <-a.Done():
		return nil, a.Fault("target", text)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(readyTimeout):
		return nil, fmt.Errorf("the target is not ready after %v", readyTimeout)
	}
	var last event
	b, err := ends.Start(ctx, p.Lab.B, p.Exe, []string{ChildCommand}, &initiator, func(e *event) { last = *e })
	if err != nil {
		return nil, err
	}
	defer b.Close()
	select {
	case <-b.Done():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if last.Result != nil {
		return last.Result, nil
	}
	err = b.Fault("initiator", last.Error)
	select {
	case <-a.Done(): // it has given up, too, and knows better why
		err = errors.Join(a.Fault("target", text), err)
	case <-time.After(ends.KillAfter):
	}
	return nil, err
}
