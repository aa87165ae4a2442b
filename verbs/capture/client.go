package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Client begins captures in another process, by its Hub.
type Client struct {
	HTTP *http.Client
	URL  string // of the hub, without a slash at the end
}

// Stream is the file of a capture in another process, while it is made.
type Stream struct {
	io.ReadCloser
	ID     string
	client *Client
	resp   *http.Response
}

// Start begins a capture of one interface, or of all with an empty name. It ends when ctx does, but
// then what is under way is lost: Stop ends it in order.
func (c *Client) Start(ctx context.Context, cfg Config, iface string) (*Stream, error) {
	v := cfg.query()
	if iface != "" {
		v.Set("interface", iface)
	}
	resp, err := c.post(ctx, "/?"+v.Encode())
	if err != nil {
		return nil, err
	}
	return &Stream{ReadCloser: resp.Body, ID: resp.Header.Get(headerID), client: c, resp: resp}, nil
}

// Stop ends the capture: the rest of the file can be read then.
func (s *Stream) Stop(ctx context.Context) error { return s.client.tell(ctx, "/"+s.ID+"/stop") }

// Trigger has the ring written.
func (s *Stream) Trigger(ctx context.Context) error { return s.client.tell(ctx, "/"+s.ID+"/trigger") }

// Trigger has the rings of all captures written, and tells how many there are.
func (c *Client) Trigger(ctx context.Context) (n int, err error) {
	resp, err := c.post(ctx, "/trigger")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := fmt.Fscan(resp.Body, &n); err != nil {
		return 0, fmt.Errorf("read answer: %w", err)
	}
	return n, nil
}

// Stats tells what the capture did, once all of the file was read. Its error is the capture's.
func (s *Stream) Stats() (out Stats, err error) {
	if text := s.resp.Trailer.Get(trailerError); text != "" {
		err = errors.New(text)
	}
	text := s.resp.Trailer.Get(trailerStats)
	if text == "" {
		return out, errors.New("the endpoint ended before the capture did")
	}
	return out, errors.Join(err, json.Unmarshal([]byte(text), &out))
}

func (c *Client) tell(ctx context.Context, path string) error {
	resp, err := c.post(ctx, path)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// StatusError is an answer whose status is not OK.
type StatusError struct {
	Response *http.Response // its body has been read
	Body     []byte         // of at most 4 KiB
}

// Error is what the hub says.
func (e *StatusError) Error() string { return strings.TrimSpace(string(e.Body)) }

// post sends a request. What is not OK becomes a *StatusError.
func (c *Client) post(ctx context.Context, path string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.HTTP.Do(q)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<12)) // what there is of it
		return nil, &StatusError{resp, text}
	}
	return resp, nil
}
