package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/perf"
)

// An end that waits for an answer of one that does nothing any more learns of it, although all it
// has sent was acknowledged: TCP does not tell, for the other end's machine is alive.
func TestPerfVanish(t *testing.T) {
	needRoot(t)
	writeLat, err := perf.Lookup("write_lat")
	if err != nil {
		t.Fatal(err)
	}
	writeBW, err := perf.Lookup("write_bw")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cfg  perf.Config
		want string
	}{
		{"RC latency", perf.Config{Test: writeLat}, "retry counter exceeded"},
		{"UC bandwidth", perf.Config{Test: writeBW, Verify: true, Size: 4096, Transport: perf.UC},
			"the other end is gone: no answer for"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := lab.New(lab.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
			tt.cfg.GIDIndex, tt.cfg.CPU, tt.cfg.Duration = -1, -1, time.Minute
			moves, done := make(chan struct{}, 1), make(chan error, 1)
			go func() {
				pair := perf.Pair{Lab: l}
				_, err := pair.Run(t.Context(), tt.cfg, perf.Hooks{Progress: func(m *perf.Moment) {
					if m.Bytes > 0 {
						select {
						case moves <- struct{}{}:
						default:
						}
					}
				}})
				done <- err
			}()
			// Before the first message has been answered, the server may still owe a step of the
			// exchange, which has a longer limit of its own.
			select {
			case <-moves:
			case err := <-done:
				t.Fatal(err)
			}
			server, err := exec.Command("pgrep", "-o", "-f", "-P", strconv.Itoa(os.Getpid()),
				perf.ChildCommand).Output()
			if err != nil {
				t.Fatalf("find the server's process: %v", err)
			}
			pid, _ := strconv.Atoi(strings.TrimSpace(string(server)))
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
			case <-time.After(25 * time.Second):
				_ = unix.Kill(pid, unix.SIGKILL)
				t.Fatalf("still waiting after 25 s: %v", <-done)
			}
		})
	}
}
