package internal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTestingListing: the Go code of docs/testing.md stands in the tests that it links to.
func TestTestingListing(t *testing.T) {
	lines := map[string]bool{}
	for _, name := range []string{"verbs/verbstest/example_test.go", "rxe/sim/script_example_test.go",
		"verbs/vethtest/vethtest_test.go"} {
		b, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			lines[strings.TrimSpace(line)] = true
		}
	}
	shown := 0
	for _, b := range blocksOf(t, "../docs/testing.md") {
		if b.info != "go" {
			continue
		}
		for line := range strings.Lines(b.text) {
			if shown++; !lines[strings.TrimSpace(line)] {
				t.Errorf("no test has the line %q", line)
			}
		}
	}
	if shown < 6 {
		t.Errorf("only %d lines are shown", shown)
	}
}

// TestLinks: every file that a document links to exists.
func TestLinks(t *testing.T) {
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range append(docs, "../README.md", "../ARCHITECTURE.md") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(string(b), -1) {
			found++
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d links", found)
	}
}
