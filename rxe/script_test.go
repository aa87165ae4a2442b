package rxe_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into testdata/*.txt")

// TestScript runs the conversations of testdata/*.txt and compares what they print, to the letter.
// After a change that is meant to change them: go test -run Script -rewrite, and read the diff.
func TestScript(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			frames := 0
			got, err := sim.RunScript(string(b), sim.ScriptConfig{Tap: func(_ rxe.Time, frame []byte) {
				frames++
				if line, r := wire.Decode(wire.Frame{Head: frame}); r != wire.ReasonOK {
					t.Errorf("frame %d: %s", frames, line)
				}
			}})
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if frames == 0 {
				t.Error("no frame was sent")
			}
			if got == string(b) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want := strings.Split(string(b), "\n")
			for i, line := range strings.Split(got, "\n") {
				if i >= len(want) || line != want[i] {
					t.Fatalf("%s:%d\n got %s\nwant %s", f, i+1, line,
						append(want, "nothing")[min(i, len(want))])
				}
			}
			t.Fatalf("%s: %d lines more than are printed", f, len(want)-strings.Count(got, "\n"))
		})
	}
}

// TestScriptErrors: a command that makes no sense says so, with its line.
func TestScriptErrors(t *testing.T) {
	const pair = "pair a b\n"
	for _, c := range []struct{ text, want string }{
		{"hello\n----\n", "line 1: hello: no such command"},
		{"# x\n\npair a\n----\n", "line 3: pair a: needs two names"},
		{pair + "pair a c\n----\n", "line 2: pair a c: a exists"},
		{pair, "line 1: no line ---- behind the last commands"},
		{pair + "send c 1 10\n----\n", "line 2: send c 1 10: no end is called c"},
		{pair + "send a x 10\n----\n", "an ID is no number: x"},
		{pair + "send a 1 10 fast\n----\n", "does not know what fast means"},
		{pair + "send a 1 10 speed=9\n----\n", "does not know speed="},
		{pair + "send a 1 100000\n----\n", "outside the end's memory"},
		{pair + "send a 1 300 inline\n----\n", "inline data"},
		{pair + "read a 1 10 key=k\n----\n", "no key is called k"},
		{pair + "modify a IDLE\n----\n", "no state is called IDLE"},
		{pair + "modify a RTR\n----\n", "line 2: modify a RTR: "},
		{pair + "run for=5\n----\n", "for=5 has no unit"},
		{pair + "word a 65529\n----\n", "outside the end's memory"},
		{"pair a b type=XRC\n----\n", "type= is RC, UC or UD"},
		{"pair a b deny=all\n----\n", "deny=all: read, write or atomic"},
		{"pair a b rnr=7\nsend a 1 9\nrun\n----\n", "does not come to an end"},
	} {
		_, err := sim.RunScript(c.text, sim.ScriptConfig{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.want)
		}
	}
}

// TestScriptKeepsText: what is not output stays, and output that stood there is replaced.
func TestScriptKeepsText(t *testing.T) {
	const script = "# one\n\npair a b\nstate a # not a comment\n----\n"
	if _, err := sim.RunScript(script, sim.ScriptConfig{}); err == nil {
		t.Error("a comment behind a command is taken")
	}
	got, err := sim.RunScript("# one\n\npair a b\n  state a\n----\nold\nold too\n\n# two\nword a 8\n----\n"+
		"\n# end\n", sim.ScriptConfig{})
	want := "# one\n\npair a b\n  state a\n----\na is in RTS\n\n# two\nword a 8\n----\n" +
		"a+8 holds 0x69625b544d463f38\n\n# end\n"
	if err != nil || got != want {
		t.Errorf("%v\n got %q\nwant %q", err, got, want)
	}
}
