package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

// This file is what the soak knows of the endpoint: what it has, asked for by a signal.

// soakStateVariable makes the endpoint write its state to a file at SIGUSR2.
const soakStateVariable = "ROXIE_SOAK_STATE"

func init() {
	file := os.Getenv(soakStateVariable)
	if file == "" || os.Getenv(runMain) == "" {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			debug.FreeOSMemory()
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			b, err := json.Marshal(soakState{Goroutines: runtime.NumGoroutine(), Stacks: stacks.String()})
			if err == nil && os.WriteFile(file+".new", b, 0o600) == nil {
				_ = os.Rename(file+".new", file)
			}
		}
	}()
}

// soakState is what must not grow.
type soakState struct {
	Goroutines int
	Stacks     string         // of them, for the report
	Files      map[string]int // descriptors by what they are, BPF programs, maps and links among them
	RSS        int            // KiB
}

// equal compares all but the memory.
func (s *soakState) equal(o *soakState) bool {
	return s.Goroutines == o.Goroutines && maps.Equal(s.Files, o.Files)
}

func (s *soakState) String() string {
	return fmt.Sprintf("%d goroutines, %d KiB, files %v", s.Goroutines, s.RSS, s.Files)
}

// filesOf counts a process's descriptors.
func filesOf(pid int) map[string]int {
	out := map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, f := range fds {
		if name, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil {
			kind, _, _ := strings.Cut(name, "[")
			out[strings.TrimSuffix(kind, ":")]++
		}
	}
	return out
}

// state asks the endpoint.
func (s *soakRun) state() *soakState {
	s.t.Helper()
	file := s.file("state")
	_ = os.Remove(file)
	s.p.signal(syscall.SIGUSR2)
	var st soakState
	eventually(s.t, "state of the endpoint", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &st) == nil
	})
	pid := s.p.cmd.Process.Pid
	st.Files = filesOf(pid)
	st.RSS = rss(s.t, pid)
	return &st
}

// settled waits until the endpoint has what it had before the load, and no more memory is given
// back: what has gone may still be on its way out.
func (s *soakRun) settled(first *soakState) *soakState {
	s.t.Helper()
	var least *soakState
	for end := time.Now().Add(soakSettle); ; time.Sleep(200 * time.Millisecond) {
		now := s.state()
		switch {
		case !now.equal(first):
			if time.Now().After(end) {
				s.t.Fatalf("%v after the load there is\n%v, at the beginning there was\n%v\n%s\nat the beginning:\n%s",
					soakSettle, now, first, now.Stacks, first.Stacks)
			}
			least = nil
		case least == nil || now.RSS < least.RSS-least.RSS/200:
			least = now
		default:
			return least
		}
	}
}

// steady is the endpoint's state when it has not changed for a second: what is only made at the start
// has ended.
func (s *soakRun) steady() *soakState {
	s.t.Helper()
	last, since := s.state(), time.Now()
	for end := time.Now().Add(soakSettle); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		now := s.state()
		if !now.equal(last) {
			last, since = now, time.Now()
		}
		if time.Since(since) > time.Second {
			return now
		}
	}
	s.t.Fatalf("the endpoint is not steady without load: %v", last)
	return nil
}

// own is the state of the load's end.
func (s *soakRun) own() *soakState {
	return &soakState{Goroutines: runtime.NumGoroutine(), Files: filesOf(os.Getpid())}
}

// tsharkCaptures is how many captures tshark reads, too: it takes seconds for each.
const tsharkCaptures = 10

// readCaptures decodes the whole packets that were recorded: every ICRC is right, and every frame
// is what it should be.
func (s *soakRun) readCaptures() {
	s.t.Helper()
	tshark, err := exec.LookPath("tshark")
	packets, read := 0, 0
	for i, file := range s.recorded {
		in, e := os.Open(file)
		if e != nil {
			s.t.Fatal(e)
		}
		var out strings.Builder
		if e := decodeCapture(&out, in); e != nil {
			s.t.Errorf("%s: %v", file, e)
		}
		_ = in.Close()
		for line := range strings.Lines(out.String()) {
			if packets++; strings.Contains(line, "refused=") {
				s.t.Errorf("%s: %s", file, line)
			}
		}
		if err != nil || i%(len(s.recorded)/tsharkCaptures+1) != 0 {
			continue
		}
		read++
		// It takes a SEND of 12 bytes or less for a call of RPC over RDMA that has been cut.
		cmd := exec.Command(tshark, "--disable-protocol", "rpcordma", "-r", file, "-Y", "_ws.malformed")
		if bad, e := cmd.Output(); e != nil || len(bad) > 0 {
			s.t.Errorf("%s: malformed for tshark: %s %v", file, bad, e)
		}
	}
	s.t.Logf("%d whole packets recorded and read again, %d captures of %d by tshark, too", packets, read, len(s.recorded))
	if packets == 0 {
		s.t.Error("no packet was recorded")
	}
}
