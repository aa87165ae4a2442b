package perf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"
)

// This file is the exchange between two ends of this program, after they have seen that they are
// (greet). Its steps are perftest's: hello with version and path MTU, one key message for each QP,
// barriers, a report at the end; in each of them the client speaks first. The format is its own, one
// JSON value a line, because it says more: perftest's has no place for what was verified.

const (
	exchangeVersion = 1
	dialTimeout     = 5 * time.Second
	stepTimeout     = 30 * time.Second
	maxLine         = 1 << 22
)

// keepAlive finds out within half a minute that the other end's machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second,
	Count: 5}

// hello says what an end was started with. Both must have been started alike.
type hello struct {
	Roxie     int // exchangeVersion
	Test      string
	Transport Transport
	Size      int
	All       bool
	QPs       int
	Verify    bool
	Iters     int `json:",omitempty"` // with All
	PMTU      int // the largest this end can do
}

// keys are what the other end needs to reach one QP and its memory.
type keys struct {
	QPN      uint32
	PSN      uint32
	GID      [16]byte
	RdAtomic int
	RKey     uint32
	Addr     uint64
}

// report is what an end has to say after one message size.
type report struct {
	Messages   uint64 // client: sent; server: received, where it sees them
	Packets    uint64
	Retransmit uint64
	Verified   uint64
	Mismatches uint64
	First      string // the first mismatch
	figures
	XDPMode  string
	ZeroCopy bool
}

// figures are what the active end has measured.
type figures struct {
	Took   time.Duration
	Best   float64 // bytes a second, in the best stretch
	Rounds uint64  // of a latency test
	Lat    *Latency
}

// line is what travels: one of the others, or the reason to give up.
type line struct {
	Step  string
	Error string          `json:",omitempty"`
	Body  json.RawMessage `json:",omitempty"`
}

var (
	errGone = errors.New("the other end is gone")
	errTold = errors.New("the other end says")
)

// exchange is one connection to the other end. It is used by one goroutine.
type exchange struct {
	conn   net.Conn
	client bool
	lines  chan line
	gone   context.CancelCauseFunc
	attention
}

// listen waits for one client. The interface is open by then, so that whoever sees the port open
// may start.
func listen(ctx context.Context, port int, ready func(net.Addr)) (net.Conn, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("wait for a client: %w; give another port with -p", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close()
	if ready != nil {
		ready(l.Addr())
	}
	conn, err := l.Accept()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return conn, err
}

func dial(ctx context.Context, server string, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(server, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("reach the server: %w; %s", err, reachHint(err))
	}
	return conn, nil
}

// newExchange starts to read. The returned context ends when the other end is gone.
func newExchange(ctx context.Context, conn net.Conn, client bool) (*exchange, context.Context) {
	ctx, gone := context.WithCancelCause(ctx)
	x := &exchange{conn: conn, client: client, lines: make(chan line, 16), gone: gone}
	context.AfterFunc(ctx, x.end)
	go x.read(ctx)
	return x, ctx
}

func (x *exchange) read(ctx context.Context) {
	defer close(x.lines)
	in := bufio.NewScanner(x.conn)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var l line
		err := json.Unmarshal(in.Bytes(), &l)
		if err == nil && l.Error != "" {
			err = fmt.Errorf("%w: %s", errTold, l.Error)
		}
		if err != nil {
			x.gone(err)
			break
		}
		x.wake()
		select {
		case x.lines <- l:
		case <-ctx.Done():
			return
		}
	}
	err := in.Err()
	if err == nil || errors.Is(err, net.ErrClosed) {
		err = io.EOF
	}
	x.gone(fmt.Errorf("%w: %w", errGone, err))
	x.end()
}

func (x *exchange) write(l line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_ = x.conn.SetWriteDeadline(time.Now().Add(stepTimeout))
	_, err = x.conn.Write(append(b, '\n'))
	return err
}

// fail tells the other end why there will be no more. It is the last thing sent.
func (x *exchange) fail(err error) {
	if !errors.Is(err, errGone) && !errors.Is(err, errTold) {
		_ = x.write(line{Step: "fail", Error: err.Error()})
	}
}

func (x *exchange) close() {
	x.gone(errGone)
	_ = x.conn.Close()
}

func (x *exchange) put(step string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.write(line{Step: step, Body: body})
}

// get waits for the other end's line of a step; no longer than limit, if that is not 0.
func (x *exchange) get(ctx context.Context, step string, v any, limit time.Duration) error {
	var late <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	var l line
	var ok bool
	select {
	case l, ok = <-x.lines:
	case <-ctx.Done():
		select { // the other end may have said its last before it went
		case l, ok = <-x.lines:
		default:
		}
	case <-late:
		return fmt.Errorf("the other end is silent for %v in step %q", limit, step)
	}
	if !ok {
		return context.Cause(ctx)
	}
	x.taken()
	if l.Step != step {
		return fmt.Errorf("the other end sent %q when %q was due: is it the same version of roxie?",
			l.Step, step)
	}
	return json.Unmarshal(l.Body, v)
}

// swap sends ours and returns theirs; the client speaks first.
func swap[T any](ctx context.Context, x *exchange, step string, ours T) (theirs T, err error) {
	if x.client {
		if err = x.put(step, ours); err == nil {
			err = x.get(ctx, step, &theirs, stepTimeout)
		}
		return theirs, err
	}
	if err = x.get(ctx, step, &theirs, stepTimeout); err == nil {
		err = x.put(step, ours)
	}
	return theirs, err
}

// barrier returns when both ends have called it.
func (x *exchange) barrier(ctx context.Context) error {
	_, err := swap(ctx, x, "barrier", struct{}{})
	return err
}

// agree compares the two hellos and returns the path MTU of the run.
func agree(ours, theirs hello) (pmtu int, err error) {
	differs := func(flag string, a, b any) error {
		return fmt.Errorf("%s: %v here, %v at the other end; start both with the same", flag, a, b)
	}
	switch {
	case ours.Roxie != theirs.Roxie:
		return 0, differs("exchange format", ours.Roxie, theirs.Roxie)
	case ours.Test != theirs.Test:
		return 0, differs("test", ours.Test, theirs.Test)
	case ours.Transport != theirs.Transport:
		return 0, differs("-c", ours.Transport, theirs.Transport)
	case ours.Size != theirs.Size:
		return 0, differs("-s", ours.Size, theirs.Size)
	case ours.All != theirs.All:
		return 0, differs("-a", ours.All, theirs.All)
	case ours.Iters != theirs.Iters:
		return 0, differs("-n", ours.Iters, theirs.Iters)
	case ours.QPs != theirs.QPs:
		return 0, differs("-q", ours.QPs, theirs.QPs)
	case ours.Verify != theirs.Verify:
		return 0, differs("--verify", ours.Verify, theirs.Verify)
	}
	return min(ours.PMTU, theirs.PMTU), nil
}

// reachHint says what to do about a server that could not be reached.
func reachHint(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return "check its address, and the way to it (roxie doctor --peer ADDRESS)"
	}
	return "start the same command there first, without an address"
}
