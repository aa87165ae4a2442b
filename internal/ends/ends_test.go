package ends_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/ends"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// endArg makes the test binary play an end.
const endArg = "play-an-end"

type config struct {
	Do    string // see TestMain
	Extra string
}

type event struct {
	Heard string
	Error string
}

func TestMain(m *testing.M) {
	if len(os.Args) != 2 || os.Args[1] != endArg {
		os.Exit(m.Run())
	}
	var cfg config
	ctx, cancel, err := ends.Configure(context.Background(), os.Stdin, &cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cancel()
	t := ends.NewTeller(os.Stdout)
	t.Tell(event{Heard: cfg.Do})
	switch cfg.Do {
	case "wait":
		<-ctx.Done()
		t.Tell(event{Heard: "the end"})
	case "fail":
		t.Tell(event{Error: "no luck"})
	case "shout":
		fmt.Fprintln(os.Stderr, "roxie: all is lost")
		os.Exit(1)
	case "die":
		os.Exit(7)
	case "hang":
		select {}
	}
}

// TestEnds goes through what an end can do, and what its parent then knows.
func TestEnds(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	for _, c := range []struct{ do, fault string }{
		{"nothing", ""},
		{"wait", ""},
		{"fail", "A: no luck"},
		{"shout", "A: all is lost"},
		{"die", "A ended without a result: exit status 7"},
		{"hang", "A ended without a result: signal: killed"},
	} {
		t.Run(c.do, func(t *testing.T) {
			t.Parallel()
			var reason string
			var heard []string
			first := make(chan struct{}, 2)
			e, err := ends.Start(context.Background(), l.A, "", []string{endArg}, &config{Do: c.do}, func(e *event) {
				if e.Error != "" {
					reason = e.Error
					return
				}
				heard = append(heard, e.Heard)
				first <- struct{}{}
			})
			if err != nil {
				t.Fatal(err)
			}
			<-first
			if c.do == "wait" || c.do == "hang" {
				e.Close()
			}
			<-e.Done()
			e.Close() // once more does no harm
			want := []string{c.do}
			if c.do == "wait" {
				want = append(want, "the end")
			}
			if fmt.Sprint(heard) != fmt.Sprint(want) {
				t.Errorf("heard %q, want %q", heard, want)
			}
			if got := fmt.Sprint(e.Fault("A", reason)); got != c.fault && (c.fault != "" || got != "<nil>") {
				t.Errorf("fault %q, want %q", got, c.fault)
			}
		})
	}
}

// TestStartFaults starts what cannot be started.
func TestStartFaults(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	hear := func(*event) {}
	if _, err := ends.Start(context.Background(), l.A, "/nonexistent", nil, &config{}, hear); err == nil ||
		!strings.Contains(err.Error(), "start /nonexistent in "+l.A.Name) {
		t.Errorf("no such program: %v", err)
	}
	if _, err := ends.Start(context.Background(), l.A, "", []string{endArg}, make(chan int), hear); err == nil ||
		!strings.Contains(err.Error(), "configure the end in "+l.A.Name) {
		t.Errorf("a configuration that is none: %v", err)
	}
}

// TestCancel ends an end by its context.
func TestCancel(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	heard := make(chan struct{}, 2)
	e, err := ends.Start(ctx, l.B, "", []string{endArg}, &config{Do: "hang"}, func(*event) { heard <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	<-heard
	cancel()
	select {
	case <-e.Done():
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

// A configuration as long as what the decoder reads at a time leaves the newline behind it for later.
// That is not the parent's end.
func TestConfigureNewline(t *testing.T) {
	in, parent := io.Pipe()
	var cfg config
	b, _ := json.Marshal(cfg)
	cfg.Extra = strings.Repeat("x", 512-len(b))
	if b, _ = json.Marshal(cfg); len(b) != 512 {
		t.Fatalf("%d bytes", len(b))
	}
	go parent.Write(append(b, '\n'))
	ctx, cancel, err := ends.Configure(context.Background(), in, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	select {
	case <-ctx.Done():
		t.Fatal("a newline ends the run")
	case <-time.After(50 * time.Millisecond):
	}
	if err := parent.Close(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}

// TestConfigureFault meets a user who calls the end by hand.
func TestConfigureFault(t *testing.T) {
	_, _, err := ends.Configure(context.Background(), strings.NewReader("help\n"), &config{})
	if err == nil || !strings.Contains(err.Error(), "for roxie's own use") {
		t.Errorf("%v", err)
	}
}
