package raw

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// config measures between the ends of a fresh lab, briefly.
func config(t testing.TB, size, threads int) Config {
	t.Helper()
	l := nettest.New(t, nettest.Config{})
	at := func(n *lab.Namespace) End {
		return End{Netns: "/run/netns/" + n.Name, Interface: n.Interface}
	}
	return Config{A: at(l.A), B: at(l.B), FrameSize: size, Threads: threads,
		Duration: 200 * time.Millisecond}
}

func TestStream(t *testing.T) {
	for _, threads := range []int{1, 2} {
		for _, size := range []int{82, 122, 1082, 4154, 9014} {
			t.Run(fmt.Sprintf("threads=%d/size=%d", threads, size), func(t *testing.T) {
				r, err := Stream(context.Background(), config(t, size, threads))
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%.3f Mpps %.2f Gb/s, %+v", r.Mpps, r.Gbps, r)
				if r.Frames == 0 || r.Lost != 0 || r.Mode != "native" {
					t.Errorf("%+v, want frames and no loss", r)
				}
				if want := r.Mpps * float64(size) * 8 / 1e3; r.Gbps != want {
					t.Errorf("%v Gb/s, want %v", r.Gbps, want)
				}
			})
		}
	}
}

func TestPingPong(t *testing.T) {
	for _, threads := range []int{1, 2} {
		for _, size := range []int{82, 4154, 9014} {
			t.Run(fmt.Sprintf("threads=%d/size=%d", threads, size), func(t *testing.T) {
				r, err := PingPong(context.Background(), config(t, size, threads))
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%+v", r)
				if r.Rounds == 0 || r.Lost != 0 || r.Min <= 0 || r.P50 < r.Min || r.P99 < r.P50 ||
					r.Max < r.P99 {
					t.Errorf("%+v, want rounds, no loss, and quantiles in order", r)
				}
			})
		}
	}
}

func TestGeneric(t *testing.T) {
	c := config(t, 82, 1)
	c.Generic = true
	r, err := Stream(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Mode != "generic" || r.Frames == 0 || r.Lost != 0 {
		t.Errorf("%+v", r)
	}
}

// TestAgain: nothing stays behind that would hinder the next measurement.
func TestAgain(t *testing.T) {
	c := config(t, 82, 1)
	c.Duration = 20 * time.Millisecond
	for range 3 {
		if _, err := Stream(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		if _, err := PingPong(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCancel(t *testing.T) {
	for _, threads := range []int{1, 2} {
		c := config(t, 82, threads)
		c.Duration = time.Minute
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		if _, err := Stream(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stream: %v", err)
		}
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
		if _, err := PingPong(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ping-pong: %v", err)
		}
		cancel()
	}
}

func TestRefuses(t *testing.T) {
	good := config(t, 82, 1)
	for name, change := range map[string]func(*Config){
		"small frame": func(c *Config) { c.FrameSize = 17 },
		"big frame":   func(c *Config) { c.FrameSize = 9015 },
		"threads":     func(c *Config) { c.Threads = 3 },
		"batch":       func(c *Config) { c.Batch = -1 },
		"interface":   func(c *Config) { c.B.Interface = "nope" },
		"namespace":   func(c *Config) { c.A.Netns = "/run/netns/nope" },
		"queue":       func(c *Config) { c.B.Queue = 3 },
		"CPUs":        func(c *Config) { c.Threads, c.CPUs = 2, []int{0} },
	} {
		c := good
		change(&c)
		if _, err := Stream(context.Background(), c); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
