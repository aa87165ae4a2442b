package cm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	rxnettest "github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/verbs"
)

// vethHosts are two devices on a veth pair.
func vethHosts(t testing.TB, cfg *Config) (a, b *host) {
	t.Helper()
	a, b, _ = vethLab(t, cfg)
	return a, b
}

// vethLab gives the namespaces, too.
func vethLab(t testing.TB, cfg *Config) (a, b *host, l *rxnettest.Lab) {
	t.Helper()
	l = rxnettest.New(t, rxnettest.Config{})
	open := func(n *rxnettest.Namespace, ip4, ip6 string) *host {
		h := &host{t: t, ip4: netip.MustParseAddr(ip4), ip6: netip.MustParseAddr(ip6)}
		var err error
		n.Do(func() { h.ctx, err = verbs.Open("veth0", nil) })
		h.must(err)
		t.Cleanup(func() { h.must(h.ctx.Close()) })
		h.manage(cfg)
		return h
	}
	return open(l.A, "10.77.0.1", "fd77::1"), open(l.B, "10.77.0.2", "fd77::2"), l
}

// streams joins a and b by a stream.
func streams(a, b *host, l *StreamListener, cfg *StreamConfig) (x, y *Stream, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	x, err = a.m.DialStream(ctx, netip.AddrPortFrom(b.ip4, l.l.Port()), cfg)
	if err != nil {
		return nil, nil, err
	}
	c, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	return x, c.(*Stream), nil
}

func streamListener(t testing.TB, h *host, cfg *StreamConfig) *StreamListener {
	t.Helper()
	l, err := h.m.ListenStream(40, cfg)
	h.must(err)
	t.Cleanup(func() { l.Close() })
	return l
}

func streamPair(t testing.TB, cfg *StreamConfig) (x, y *Stream) {
	t.Helper()
	a, b := hosts(t, nil)
	x, y, err := streams(a, b, streamListener(t, b, cfg), cfg)
	a.must(err)
	t.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}

// TestStreamConn is golang.org/x/net's test of a net.Conn, with buffers as usual and tiny ones.
func TestStreamConn(t *testing.T) {
	for name, tt := range map[string]struct {
		hosts func(testing.TB, *Config) (*host, *host)
		cfg   StreamConfig
	}{
		"memory": {hosts, StreamConfig{}},
		"tiny":   {hosts, StreamConfig{Buffers: 2, BufferSize: 64}},
		"veth":   {vethHosts, StreamConfig{}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := tt.hosts(t, nil)
			l := streamListener(t, b, &tt.cfg)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				x, y, err := streams(a, b, l, &tt.cfg)
				if err != nil {
					return nil, nil, nil, err
				}
				return x, y, func() { x.Close(); y.Close() }, nil
			})
		})
	}
}

// TestStreamBytes sends lengths around the buffers' both ways at once.
func TestStreamBytes(t *testing.T) {
	x, y := streamPair(t, &StreamConfig{Buffers: 4, BufferSize: 1000})
	want := make([]byte, 300_001)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(want)
	errs := make(chan error, 4)
	for _, s := range []*Stream{x, y} {
		go func() {
			for at, n := 0, 1; at < len(want); n = n*3%2500 + 1 {
				k, err := s.Write(want[at:min(at+n, len(want))])
				if err != nil {
					errs <- err
					return
				}
				at += k
			}
			errs <- s.CloseWrite()
		}()
		go func() {
			got, err := io.ReadAll(s)
			if err == nil && !bytes.Equal(got, want) {
				err = errors.New("bytes differ")
			}
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestStreamHalfClose: the end of one direction leaves the other as it is.
func TestStreamHalfClose(t *testing.T) {
	x, y := streamPair(t, nil)
	if err := errors.Join(x.CloseWrite(), x.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Write([]byte("more")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after CloseWrite: %v", err)
	}
	if n, err := y.Read(make([]byte, 10)); n != 0 || err != io.EOF {
		t.Errorf("Read: %d, %v", n, err)
	}
	if _, err := y.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 6)
	if _, err := io.ReadFull(x, b); err != nil || string(b) != "answer" {
		t.Errorf("Read: %q, %v", b, err)
	}
}

// TestStreamBackpressure: who does not read stops the writer, within what both ends may have on their
// way, and nothing is lost.
func TestStreamBackpressure(t *testing.T) {
	x, y := streamPair(t, &StreamConfig{Buffers: 4, BufferSize: 1 << 10})
	_ = x.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := x.Write(make([]byte, 1<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n != 4<<10 {
		t.Fatalf("Write: %d bytes, %v", n, err)
	}
	_ = x.SetWriteDeadline(time.Time{})
	go func() {
		_, _ = x.Write([]byte("the rest"))
		_ = x.CloseWrite()
	}()
	got, err := io.ReadAll(y)
	if err != nil || len(got) != n+8 {
		t.Errorf("Read: %d bytes, %v", len(got), err)
	}
}

// TestStreamCloseDelivers: what was written before Close arrives, and then the end.
func TestStreamCloseDelivers(t *testing.T) {
	x, y := streamPair(t, nil)
	if _, err := x.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(y); err != nil || len(got) != 100_000 {
		t.Errorf("Read: %d bytes, %v", len(got), err)
	}
	eventuallyFails := func() error {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			if _, err := y.Write(make([]byte, 10)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := eventuallyFails(); !errors.Is(err, ErrEnded) {
		t.Errorf("Write to a closed stream: %v", err)
	}
}

// TestStreamLost: an end that dies without a word is noticed by the keepalive.
func TestStreamLost(t *testing.T) {
	a, b := hosts(t, &Config{Keepalive: 50 * time.Millisecond})
	x, y, err := streams(a, b, streamListener(t, b, nil), nil)
	a.must(err)
	defer x.Close()
	b.must(y.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)) // deaf from now on
	_ = x.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := x.Read(make([]byte, 1)); !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrEnded) {
		t.Errorf("Read: %v", err)
	}
	y.abort()
	y.closeOnce.Do(func() { close(y.closing) })
}

// TestStreamStranger: neither end takes the other for a stream that is none.
func TestStreamStranger(t *testing.T) {
	a, b := hosts(t, nil)
	streamListener(t, b, nil)
	qp, _ := a.qp(verbs.RC)
	var rej *RejectError
	if _, err := a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 40), qp, nil); !errors.As(err, &rej) {
		t.Errorf("dial without a stream: %v", err)
	}
	l, err := b.m.Listen(41, nil)
	b.must(err)
	go func() {
		if r, err := l.Accept(context.Background()); err == nil {
			qp, _ := b.qp(verbs.RC)
			_, _ = r.Accept(context.Background(), qp, nil)
		}
	}()
	if _, err := a.m.DialStream(within(t), netip.AddrPortFrom(b.ip4, 41), nil); !errors.Is(err, ErrNotStream) {
		t.Errorf("stream to something else: %v", err)
	}
}

// TestStreamHTTP: net/http over streams, bodies of a MiB both ways.
func TestStreamHTTP(t *testing.T) {
	a, b := hosts(t, nil)
	l := streamListener(t, b, nil)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return a.m.DialStream(ctx, netip.AddrPortFrom(b.ip4, 40), nil)
		}}}
	body := bytes.Repeat([]byte("roxie "), 1<<20/6)
	for range 3 {
		resp, err := client.Post("http://rdma/", "text/plain", bytes.NewReader(body))
		a.must(err)
		got, err := io.ReadAll(resp.Body)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes came back, %v", len(got), err)
		}
		_ = resp.Body.Close()
	}
	client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
