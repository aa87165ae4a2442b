package srpload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file is what the two ends tell each other over TCP, one JSON value after the other: the
// initiator's hello with the workload, both ends' addresses, that both are ready, the reports.

const (
	sessionVersion = 1
	dialTimeout    = 5 * time.Second
	stepTimeout    = 30 * time.Second
)

// hello is the first message of each end. The target does what the initiator was told.
type hello struct {
	Version  int
	Workload Config
	PMTU     int
	Channels []verbs.ConnInfo // of the target only in its answer
}

// message is what follows.
type message struct {
	Channels []verbs.ConnInfo `json:",omitempty"`
	Ready    bool             `json:",omitempty"`
	End      bool             `json:",omitempty"` // no more I/Os
	Report   *report          `json:",omitempty"`
	Error    string           `json:",omitempty"`
}

// session is the connection to the other end.
type session struct {
	conn net.Conn
	enc  *json.Encoder
	dec  *json.Decoder
}

func newSession(ctx context.Context, conn net.Conn) (s *session, stop func() bool) {
	stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return &session{conn, json.NewEncoder(conn), json.NewDecoder(conn)}, stop
}

func (s *session) get(v any, limit time.Duration) error {
	if limit > 0 {
		_ = s.conn.SetReadDeadline(time.Now().Add(limit))
	} else {
		_ = s.conn.SetReadDeadline(time.Time{})
	}
	if err := s.dec.Decode(v); err != nil {
		return fmt.Errorf("the other end is gone or silent: %w", err)
	}
	if m, ok := v.(*message); ok && m.Error != "" {
		return fmt.Errorf("the other end says: %s", m.Error)
	}
	return nil
}

// Hooks are what a run tells. Each may be nil.
type Hooks struct {
	Ready func(net.Addr) // target: waiting for the initiator
}

// Run runs one end: the target, for one initiator, if cfg has no Server, else the initiator, which
// has the result; the target's is nil. All is closed when it returns. It stops with ctx.
func Run(ctx context.Context, cfg Config, hooks Hooks) (*Result, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Server == "" {
		return nil, runTarget(ctx, cfg, hooks)
	}
	return runInitiator(ctx, cfg)
}

func runTarget(ctx context.Context, cfg Config, hooks Hooks) (err error) {
	e, err := open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(cfg.Port))
	if err != nil {
		return fmt.Errorf("wait for an initiator: %w; give another port with -p", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()
	if hooks.Ready != nil {
		hooks.Ready(l.Addr())
	}
	conn, err := l.Accept()
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer conn.Close()
	s, stop := newSession(ctx, conn)
	defer stop()
	err = e.serveSession(ctx, s)
	if err != nil {
		_ = s.enc.Encode(message{Error: err.Error()})
	}
	return err
}

func (e *endpoint) serveSession(ctx context.Context, s *session) error {
	var h hello
	if err := s.get(&h, stepTimeout); err != nil {
		return err
	}
	if h.Version != sessionVersion {
		return fmt.Errorf("the initiator speaks version %d, this is %d", h.Version, sessionVersion)
	}
	w := h.Workload
	if err := w.validate(); err != nil {
		return err
	}
	mine := e.cfg
	mine.Workload, mine.Persistent, mine.Inv = w.Workload, w.Persistent, w.Inv
	mine.Channels, mine.Depth, mine.Size, mine.Seed = w.Channels, w.Depth, w.Size, w.Seed
	e.cfg = mine
	t, err := newTarget(e)
	if err != nil {
		return err
	}
	pmtu := min(h.PMTU, e.pmtu())
	answer := hello{Version: sessionVersion, PMTU: pmtu, Channels: e.addresses()}
	if err := s.enc.Encode(answer); err != nil {
		return err
	}
	if err := e.connect(h.Channels, pmtu); err != nil {
		return err
	}
	if err := s.enc.Encode(message{Ready: true}); err != nil {
		return err
	}
	until, end := context.WithCancel(ctx)
	defer end()
	var heard error
	done := make(chan struct{})
	go func() { // the next message is the initiator's last
		defer close(done)
		defer end()
		var m message
		heard = s.get(&m, 0)
	}()
	err = onThread(e.cfg, func() error { return t.serve(until) })
	if err != nil {
		return err
	}
	<-done
	if heard != nil {
		return errors.Join(context.Cause(ctx), heard)
	}
	r := e.finish()
	return s.enc.Encode(message{Report: &r})
}

func runInitiator(ctx context.Context, cfg Config) (_ *Result, err error) {
	e, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	conn, err := dial(ctx, net.JoinHostPort(cfg.Server, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	s, stop := newSession(ctx, conn)
	defer stop()
	r, err := e.initiate(ctx, s)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r, err
}

// dial tries for a while: a target between two loads opens its interface anew.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	for start := time.Now(); ; {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn, nil
		}
		if time.Since(start) > dialTimeout || ctx.Err() != nil {
			return nil, fmt.Errorf("reach the target: %w; start the same command without an address "+
				"there first", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (e *endpoint) initiate(ctx context.Context, s *session) (*Result, error) {
	in, err := newInitiator(e)
	if err != nil {
		return nil, err
	}
	h := hello{Version: sessionVersion, Workload: e.cfg, PMTU: e.pmtu(), Channels: e.addresses()}
	if err := s.enc.Encode(h); err != nil {
		return nil, err
	}
	var theirs hello
	if err := s.get(&theirs, stepTimeout); err != nil {
		return nil, err
	}
	if err := e.connect(theirs.Channels, theirs.PMTU); err != nil {
		return nil, err
	}
	var ready message
	if err := s.get(&ready, stepTimeout); err != nil {
		return nil, err
	}
	var first, last counts
	err = onThread(e.cfg, func() (err error) {
		if e.cfg.Persistent {
			if err := in.registerAll(ctx); err != nil {
				return err
			}
		}
		first, last, err = in.run(ctx)
		return err
	})
	if err != nil && !errors.Is(err, errFailed) {
		return nil, err
	}
	if err := s.enc.Encode(message{End: true}); err != nil {
		return nil, err
	}
	m := message{Report: &report{}}
	if e.report.Errors > 0 { // the other end may know why
		if err := s.get(&m, dialTimeout); err != nil {
			e.report.First += "; " + err.Error()
		}
	} else if err := s.get(&m, stepTimeout); err != nil {
		return nil, err
	}
	return in.result(first, last, m.Report), nil
}

// onThread runs the loop on a thread of its own, in caller mode on the CPU that was asked for:
// there it is what moves the packets.
func onThread(cfg Config, loop func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: what is set here must not outlive the loop
		if cfg.CPU >= 0 && cfg.Progress == Caller {
			var set unix.CPUSet
			set.Set(cfg.CPU)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				done <- fmt.Errorf("--cpu %d: %w", cfg.CPU, err)
				return
			}
		}
		done <- loop()
	}()
	return <-done
}
