package starter

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/verbs"
)

// configured knows veth0 with two queues, and an interface that is not there.
func configured(name string) (*verbs.Config, bool) {
	return &verbs.Config{Queues: 2}, name == "veth0" || name == "gone0"
}

// start serves one end of a pair and returns the other, and what Serve returns.
func start(t *testing.T, n *nettest.Namespace) (*os.File, <-chan error) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		if n == nil {
			done <- Serve(a, configured)
			return
		}
		n.Do(func() { done <- Serve(a, configured) })
	}()
	return b, done
}

// files lists this process's programs, maps and links, and AF_XDP sockets among others.
func files(t *testing.T) (out []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && (strings.Contains(to, "bpf") || strings.HasPrefix(to, "socket:")) {
			kind, _, _ := strings.Cut(to, "[")
			out = append(out, kind)
		}
	}
	slices.Sort(out)
	return out
}

// TestClient opens an interface again and again with what a starter gives.
func TestClient(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	before := files(t)
	end, done := start(t, l.A)
	c, err := NewClient(end)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p, err := c.Open(t.Context(), "veth0")
		if err != nil {
			t.Fatal(err)
		}
		var dev *verbs.Context
		l.A.Do(func() { dev, err = verbs.Open("veth0", &verbs.Config{Queues: 2, Prepared: p}) })
		if err != nil {
			t.Fatal(err)
		}
		if got := dev.XDPMode(); got != "native" {
			t.Errorf("XDP mode %v", got)
		}
		// It is taken, whoever asks.
		if _, err := c.Open(t.Context(), "veth0"); err == nil || !strings.Contains(err.Error(), "has an XDP program already") {
			t.Errorf("a second time: %v", err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Open(t.Context(), "gone0"); !errors.Is(err, netdev.ErrNoLink) {
		t.Errorf("an interface that is not there: %v", err)
	}
	for _, name := range []string{"lo", "", "veth0\x00", "../veth0", strings.Repeat("x", 1000)} {
		if _, err := c.Open(t.Context(), name); err == nil || !strings.Contains(err.Error(), "not configured") {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the starter ended with %v", err)
	}
	if _, err := c.Open(t.Context(), "veth0"); !errors.Is(err, ErrNoStarter) {
		t.Errorf("after Close: %v", err)
	}
	if after := files(t); !slices.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
}

// TestMismatch: what is prepared is good for this interface and these queues, once.
func TestMismatch(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	prepare := func(n *nettest.Namespace) (p *verbs.Prepared) {
		t.Helper()
		err := n.DoErr(func() (err error) { p, err = verbs.Prepare("veth0", &verbs.Config{Queues: 2}); return err })
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tt := range []struct {
		queues int
		twice  bool
		want   string
	}{{queues: 1, want: "2 queues are prepared, 1 are wanted"}, {queues: 2, twice: true, want: "used already"},
		{queues: 99, want: "want 1 to"}} {
		p := prepare(l.A)
		l.A.Do(func() {
			if tt.twice {
				dev, err := verbs.Open("veth0", &verbs.Config{Queues: 2, Prepared: p})
				if err != nil {
					t.Fatal(err)
				}
				defer dev.Close()
			}
			if dev, err := verbs.Open("veth0", &verbs.Config{Queues: tt.queues, Prepared: p}); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v: %v %v", tt, dev, err)
			}
		})
		// Given back in any case.
		if err := prepare(l.A).Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHeir: what is left is there after the giver has gone, once for each interface.
func TestHeir(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	before := files(t)
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.A.DoErr(func() error { return Leave(a, []string{"veth0", "gone0"}, configured) }); err != nil {
		t.Fatal(err)
	}
	c, err := NewHeir(b)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Open(t.Context(), "veth0")
	if err != nil {
		t.Fatal(err)
	}
	l.A.Do(func() {
		dev, err := verbs.Open("veth0", &verbs.Config{Queues: 2, Prepared: p})
		if err != nil {
			t.Fatal(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct{ name, want string }{{"veth0", "no starter"}, {"gone0", "no such"}, {"gone0", "no starter"}} {
		if _, err := c.Open(t.Context(), tt.name); !errors.Is(err, ErrNoStarter) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if after := files(t); !slices.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
}

// TestHostileWorker: whatever a worker sends, the starter opens nothing that is not configured, keeps
// nothing that it is sent, and ends the talk at what is no request.
func TestHostileWorker(t *testing.T) {
	before := files(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, tt := range []struct {
		name, send string
		over       bool // the talk
	}{
		{"nothing but space", " ", true},
		{"no JSON", "open veth0", true},
		{"too long", `{"open": "` + strings.Repeat("a", MaxMessage) + `"}`, true},
		{"cut", `{"open": "veth0`, true},
		{"another type", `{"open": 7}`, true},
		{"an answer", `{"name": "veth0", "meta": {"Ifindex": 1}}`, false},
		{"more than a name", `{"open": "lo", "queues": 4096, "program": 7, "user": 0}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			end, done := start(t, nil)
			u, err := conn(end)
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			rights := unix.UnixRights(int(null.Fd()), int(null.Fd()))
			if _, _, err := u.WriteMsgUnix([]byte(tt.send), rights, nil); err != nil {
				t.Fatal(err)
			}
			if tt.over {
				if err := <-done; err == nil {
					t.Error("the starter did not mind")
				}
				return
			}
			b := make([]byte, MaxMessage)
			n, err := u.Read(b)
			var a answer
			if err == nil {
				err = json.Unmarshal(b[:n], &a)
			}
			if err != nil || !strings.Contains(a.Error, "not configured") || a.Meta != nil {
				t.Errorf("%v %+v", err, a)
			}
			if err := u.Close(); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	if after := files(t); !slices.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
}

// TestSilentStarter: a worker does not wait for ever, and does not take a late answer for another.
func TestSilentStarter(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c, err := NewClient(b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for range 2 {
		if _, err := c.Open(ctx, "veth0"); !errors.Is(err, ErrNoStarter) {
			t.Errorf("a starter that does not answer: %v", err)
		}
	}
}
