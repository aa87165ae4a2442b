package internal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// A block is what stands between two fences of a document.
type block struct {
	info string // behind the first fence
	text string
	line int
}

// blocksOf returns a document's blocks in order.
func blocksOf(t *testing.T, name string) (blocks []block) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	number := 0
	for line := range strings.Lines(string(b)) {
		number++
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{info: strings.TrimSpace(info), line: number}
		case fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line
		}
	}
	if open != nil {
		t.Fatalf("%s: the block of line %d does not end", name, open.line)
	}
	return blocks
}

// A terminal is a shell that a reader types into.
type terminal struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	out     bytes.Buffer
	from    int // where the output of the last block begins
	pending string
}

func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

// said is what the last block has printed so far.
func (s *terminal) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.out.Bytes()[s.from:])
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	s := &terminal{cmd: exec.Command("bash")}
	s.cmd.Dir = ".."
	s.cmd.Stdout, s.cmd.Stderr = s, s
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.in.Close()
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // what it has left running
		_ = s.cmd.Wait()
	})
	return s
}

// await waits until the terminal's last block has printed what found looks for.
func (s *terminal) await(t *testing.T, b block, what string, found func(out string) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		out := s.said()
		if found(out) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("line %d: %s\ndid not print %s, but\n%s", b.line, b.text, what, out)
		}
	}
}

// finish waits for the prompt after the last block, which must have succeeded.
func (s *terminal) finish(t *testing.T, b block) {
	t.Helper()
	if s.pending == "" {
		return
	}
	end := regexp.MustCompile("(?m)^" + s.pending + ` (\d+)$`)
	s.await(t, b, "the prompt", end.MatchString)
	if m := end.FindStringSubmatch(s.said()); m[1] != "0" {
		t.Errorf("before line %d: exit status %s:\n%s", b.line, m[1], s.said())
	}
	s.pending = ""
}

// enter types a block.
func (s *terminal) enter(t *testing.T, b block, text string) {
	t.Helper()
	s.finish(t, b)
	s.mu.Lock()
	s.from = s.out.Len()
	s.mu.Unlock()
	s.pending = fmt.Sprintf("end-of-%d", b.line)
	if _, err := fmt.Fprintf(s.in, "%s\necho %s $?\n", text, s.pending); err != nil {
		t.Fatal(err)
	}
}

var (
	changing = regexp.MustCompile(`(?:[0-9a-fx.:]*[0-9][0-9a-fx.:]*(?:ns|µs|ms|m|s)?)+`)
	blank    = regexp.MustCompile(`\s+`)
)

// norm is a line without what changes from one run to the next: anything with a digit, the unit of a
// time included, and blanks.
func norm(line string) string {
	return strings.TrimSpace(blank.ReplaceAllString(changing.ReplaceAllString(line, "#"), " "))
}

// TestNorm: what differs between two runs is not seen, what differs else is.
func TestNorm(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"3 rounds of 64 bytes in 0.007 s, 2.206359ms each", "3 rounds of 64 bytes in 0.002 s, 735.3µs each", true},
		{"after 1m2.5s", "after 59s", true},
		{"QP 0x12ab   up", "QP 0x9f up", true},
		{"3 rounds", "3 pounds", false},
		{"mismatch", "match", false},
	} {
		if (norm(c.a) == norm(c.b)) != c.same {
			t.Errorf("%q and %q: %q, %q", c.a, c.b, norm(c.a), norm(c.b))
		}
	}
}

// has reports whether the lines of want are in out, in order.
func has(out, want string) bool {
	lines := strings.Split(out, "\n")
	for w := range strings.Lines(want) {
		for {
			if len(lines) == 0 {
				return false
			}
			line := lines[0]
			lines = lines[1:]
			if norm(line) == norm(w) {
				break
			}
		}
	}
	return true
}

// TestTutorial: the part of docs/tutorial.md that plays in two namespaces, typed into three terminals block
// by block, prints what it says. What a box of "text" shows must come before the next is typed; of a box
// without it, the prompt.
func TestTutorial(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root")
	}
	dir, name := t.TempDir(), fmt.Sprintf("%stutorial%d", lab.Prefix, os.Getpid())
	if out, err := exec.Command("go", "build", "-o", dir, "../cmd/roxie").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { _ = lab.Remove(name) }) // where the last block has not been reached
	own := strings.NewReplacer("$PWD/bin", dir, "bin/hello", dir+"/hello",
		"/tmp/roxie-tutorial", dir+"/t", "roxie lab ", "roxie lab --name "+name+" ",
		"namespace roxie-", "namespace "+name+"-")

	terminals, typed, seen := map[string]*terminal{}, 0, 0
	blocks := blocksOf(t, "../docs/tutorial.md")
	for i, b := range blocks {
		kind, where, _ := strings.Cut(b.info, " ")
		s := terminals[where]
		switch {
		case kind == "see":
			want := own.Replace(b.text)
			s.await(t, b, want, func(out string) bool { return has(out, want) })
			seen++
		case kind == "sh" && len(where) == 1:
			if s == nil {
				s = openTerminal(t)
				terminals[where] = s
			}
			s.enter(t, b, own.Replace(b.text))
			typed++
			if i+1 < len(blocks) && blocks[i+1].info == "text" {
				want := own.Replace(blocks[i+1].text)
				s.await(t, b, want, func(out string) bool { return has(out, want) })
				seen++
			} else {
				s.finish(t, b)
			}
		}
	}
	for _, s := range terminals {
		s.finish(t, block{text: "the end"})
	}
	if typed < 20 || seen < 12 {
		t.Errorf("only %d blocks were typed, %d answers seen: has the form changed?", typed, seen)
	}
	if names, err := lab.List(); err != nil || strings.Contains(fmt.Sprint(names), name) {
		t.Errorf("the lab is still there: %v, %v", names, err)
	}
	if left, _ := filepath.Glob(dir + "/t*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestHelloListing: what the tutorial shows of docs/hello stands there.
func TestHelloListing(t *testing.T) {
	source, err := os.ReadFile("../docs/hello/main.go")
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(s string) string { return strings.TrimSpace(blank.ReplaceAllString(s, " ")) }
	lines := map[string]bool{}
	for line := range strings.Lines(string(source)) {
		lines[squeeze(line)] = true
	}
	shown := 0
	for _, b := range blocksOf(t, "../docs/tutorial.md") {
		if b.info != "go" {
			continue
		}
		for line := range strings.Lines(b.text) {
			if shown++; !lines[squeeze(line)] {
				t.Errorf("docs/hello has no line %q", line)
			}
		}
	}
	if shown < 5 {
		t.Errorf("%d lines of docs/hello are shown", shown)
	}
}
