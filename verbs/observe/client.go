package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// Base is the URL that requests to a control socket begin with.
const Base = "http://roxie"

// Dial returns an HTTP client whose requests all go to the control socket at path, whatever host
// their URL names (Base will do). It connects with the first request.
func Dial(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		DisableCompression: true,
	}}
}

// Client asks a control socket. Its methods may be called from any goroutine.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client of the control socket at path.
func NewClient(path string) *Client { return &Client{path, Dial(path)} }

// State returns the state of the program behind the socket.
func (c *Client) State(ctx context.Context) (s Snapshot, err error) {
	body, err := c.get(ctx, "/state")
	if err == nil {
		if err = json.Unmarshal(body, &s); err != nil {
			err = foreign(c.path)
		}
	}
	return s, err
}

// Metrics returns what Prometheus would scrape.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) { return c.get(ctx, "/metrics") }

// Dump returns all of a QP as text, or as JSON. Without a device it is looked for on all of them.
func (c *Client) Dump(ctx context.Context, qpn uint32, device string, asJSON bool) ([]byte, error) {
	v := url.Values{}
	if device != "" {
		v.Set("device", device)
	}
	if asJSON {
		v.Set("format", "json")
	}
	return c.get(ctx, fmt.Sprintf("/dump/%d?%s", qpn, v.Encode()))
}

// get returns the body of a good answer; a bad one is the error. That nobody answers is explained.
func (c *Client) get(ctx context.Context, what string) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, Base+what, nil)
	if err != nil {
		return nil, err
	}
	a, err := c.http.Do(q)
	if err != nil {
		return nil, Explain(c.path, err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = Refusal(c.path, a, body)
	}
	return body, err
}

// isSocket says whether a path leads to a socket.
func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.Mode().Type() == fs.ModeSocket
}

// foreign is the error of a socket behind which another program is.
func foreign(path string) error {
	return fmt.Errorf("%s is another program's socket: say with --control where the endpoint's control "+
		"socket is", path)
}

// Refusal returns the error that an answer of the control socket at path stands for, whose status is
// not OK.
func Refusal(path string, a *http.Response, body []byte) error {
	text := strings.TrimSpace(string(body))
	switch {
	case !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain"):
		return foreign(path)
	case a.StatusCode == http.StatusNotFound && strings.HasPrefix(text, "404 "):
		// Of the HTTP server, not of a handler.
		return fmt.Errorf("the program behind control socket %s does not offer this: `roxie serve` does", path)
	}
	return errors.New(text)
}

// Explain says what the error of a request to the control socket at path likely means, and what to do.
func Explain(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no control socket at %s: start `roxie serve` with --control %s, or say with "+
			"--control where it is", path, path)
	case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(path):
		return fmt.Errorf("%s is no socket: say with --control where the endpoint's control socket is", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody answers at %s: the process that made this control socket is gone; start "+
			"it again, or say with --control where another one is", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("control socket %s is open to the user who runs the endpoint only: run this as that "+
			"user, or root", path)
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	if strings.Contains(err.Error(), "malformed HTTP ") {
		return foreign(path)
	}
	return fmt.Errorf("control socket %s: %w", path, err)
}
