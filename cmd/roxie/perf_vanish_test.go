package main

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/perf"
)

// An end that waits for an answer of one that does nothing any more learns of it, although all it
// has sent was acknowledged: TCP does not tell, for the other end's machine is alive.
func TestPerfVanish(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		args string
		want string
	}{
		{"write_lat", "retry counter exceeded"},
		{"write_bw --verify -s 4096 -c UC", "the other end is gone: no answer for"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			out := &started{is: make(chan struct{})}
			var stderr bytes.Buffer
			done := make(chan int, 1)
			go func() {
				args := append([]string{"perf"}, strings.Fields(tt.args)...)
				done <- run(t.Context(), append(args, "--lab", "-D", "60"), out, &stderr)
			}()
			select {
			case <-out.is:
			case code := <-done:
				t.Fatalf("code %d: %s", code, stderr.String())
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
			case code := <-done:
				if code != exitFailure || !strings.Contains(stderr.String(), tt.want) {
					t.Errorf("code %d, %q, want %q", code, stderr.String(), tt.want)
				}
			case <-time.After(30 * time.Second):
				_ = unix.Kill(pid, unix.SIGKILL)
				t.Fatal("still waiting after 30 s")
			}
		})
	}
	if own := ownLabs(t); own != nil {
		t.Errorf("left behind: %v", own)
	}
}
