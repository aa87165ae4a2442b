package starter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/verbs"
)

// MaxMessage is the longest message in bytes, besides its files.
const MaxMessage = 4096

const (
	maxFiles = 253 // SCM_MAX_FD of the kernel
	patience = 20 * time.Second
)

// ErrNoStarter says that an interface cannot be opened again, for want of rights.
var ErrNoStarter = errors.New("no right to open the interface again, and no starter to ask")

type request struct {
	Open string `json:"open"`
}

// answer comes with the files of verbs.Prepared.Export, or says why not.
type answer struct {
	Name  string          `json:"name"`
	Meta  json.RawMessage `json:"meta,omitempty"`
	Kind  string          `json:"kind,omitempty"` // of the error, where its receiver acts on it
	Error string          `json:"error,omitempty"`
}

// The kinds of errors that go over as themselves.
var kinds = map[string]error{"no-link": netdev.ErrNoLink, "down": verbs.ErrDown}

// remoteError is the other process's error.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// Pair makes the two ends of a socket pair, closed on exec.
func Pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "starter's end"), os.NewFile(uintptr(fds[1]), "worker's end"), nil
}

// conn makes a connection of an end, which it closes.
func conn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("%s is no Unix socket", f.Name())
	}
	return u, nil
}

// Lookup tells how an interface is to be opened; ok is false if it is not configured.
type Lookup func(name string) (cfg *verbs.Config, ok bool)

// prepare makes the answer to a request for an interface, and its files.
func prepare(name string, lookup Lookup) (answer, []*os.File) {
	a := answer{Name: name}
	fail := func(err error) (answer, []*os.File) {
		a.Error = err.Error()
		for kind, e := range kinds {
			if errors.Is(err, e) {
				a.Kind = kind
			}
		}
		a.Error = a.Error[:min(len(a.Error), MaxMessage/4)]
		return a, nil
	}
	cfg, ok := lookup(name)
	if !ok {
		return fail(errors.New("the interface is not configured"))
	}
	p, err := verbs.Prepare(name, cfg)
	if err != nil {
		return fail(err)
	}
	meta, files, err := p.Export()
	if err != nil {
		return fail(errors.Join(err, p.Close()))
	}
	a.Meta = meta
	return a, files
}

// send writes an answer with its files, which it closes.
func send(c *net.UnixConn, a *answer, files []*os.File) error {
	defer closeAll(files)
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = unix.UnixRights(fds...)
	}
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// receive reads one message with its files, which are closed on exec.
func receive(c *net.UnixConn, v any) (files []*os.File, err error) {
	b, oob := make([]byte, MaxMessage+1), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		fds, e := unix.ParseUnixRights(&messages[i])
		err = errors.Join(err, e)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n > MaxMessage || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("message is too long")
	default:
		err = json.Unmarshal(b[:n], v)
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

// Serve answers the worker at the other end of a Pair until it closes its end (nil), or sends what is
// no request. It closes end.
func Serve(end *os.File, lookup Lookup) error {
	c, err := conn(end)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		var q request
		files, err := receive(c, &q)
		closeAll(files) // nothing is wanted
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("request of the worker: %w", err)
		}
		a, out := prepare(q.Open, lookup)
		if err := send(c, &a, out); err != nil {
			return fmt.Errorf("answer to the worker: %w", err)
		}
	}
}

// Leave puts the interfaces into an end of a Pair, or why one cannot be opened, and closes it. What is
// there is for NewHeir at the other end.
func Leave(end *os.File, names []string, lookup Lookup) error {
	c, err := conn(end)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, name := range names {
		a, files := prepare(name, lookup)
		if err := send(c, &a, files); err != nil {
			return fmt.Errorf("leave interface %s: %w", name, err)
		}
	}
	return nil
}

// Client is a worker's source of prepared interfaces. Its methods may be called from any goroutine.
type Client struct {
	mu   sync.Mutex
	c    *net.UnixConn // nil: no starter
	left map[string]*inheritance
}

type inheritance struct {
	p   *verbs.Prepared
	err error
}

// NewClient makes the source of a worker that has a starter at the other end, of which it takes
// possession.
func NewClient(end *os.File) (*Client, error) {
	c, err := conn(end)
	if err != nil {
		return nil, err
	}
	return &Client{c: c}, nil
}

// NewHeir makes the source of a worker from what Leave has put into the other end, of which it takes
// possession.
func NewHeir(end *os.File) (*Client, error) {
	c, err := conn(end)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	h := &Client{left: map[string]*inheritance{}}
	for {
		a, p, err := take(c)
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if a == nil {
			return nil, errors.Join(fmt.Errorf("read what was prepared: %w", err), h.Close())
		}
		h.left[a.Name] = &inheritance{p, err}
	}
}

// take reads one answer.
func take(c *net.UnixConn) (*answer, *verbs.Prepared, error) {
	var a answer
	files, err := receive(c, &a)
	if err != nil {
		return nil, nil, err
	}
	if a.Error != "" {
		closeAll(files)
		return &a, nil, &remoteError{a.Error, kinds[a.Kind]}
	}
	p, err := verbs.ImportPrepared(a.Meta, files)
	return &a, p, err
}

// Open asks for an interface. The error wraps netdev.ErrNoLink or verbs.ErrDown where waiting may
// help, and ErrNoStarter where there is nobody to ask, or not any more.
func (c *Client) Open(ctx context.Context, name string) (*verbs.Prepared, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		i := c.left[name]
		if i == nil {
			return nil, ErrNoStarter
		}
		delete(c.left, name)
		if i.err != nil {
			return nil, fmt.Errorf("%w; when there was a right: %w", ErrNoStarter, i.err)
		}
		return i.p, nil
	}
	deadline := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	conn := c.c // lost forgets it while the function below may still be called
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := json.Marshal(request{Open: name})
	if err != nil {
		return nil, err
	}
	if _, err = c.c.Write(b); err != nil {
		return nil, c.lost(err)
	}
	a, p, err := take(c.c)
	switch {
	case a == nil:
		return nil, c.lost(err)
	case a.Name != name:
		if p != nil {
			_ = p.Close()
		}
		return nil, c.lost(fmt.Errorf("answer about %q, not %q", a.Name, name))
	}
	return p, err
}

// lost gives the starter up: what comes next from it would be the answer to another question.
func (c *Client) lost(err error) error {
	_ = c.c.Close()
	c.c = nil
	return fmt.Errorf("%w: it does not answer: %w", ErrNoStarter, err)
}

// Close gives up what has not been opened. Closing twice is fine.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	if c.c != nil {
		errs = append(errs, c.c.Close())
		c.c = nil
	}
	for _, i := range c.left {
		if i.p != nil {
			errs = append(errs, i.p.Close())
		}
	}
	c.left = nil
	return errors.Join(errs...)
}
