package internal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// folders are the packages that docs/conformance.md names.
var folders = map[string]string{
	"rxe": "rxe", "wire": "rxe/wire", "mr": "rxe/mr", "sim": "rxe/sim", "soak": "rxe/sim/soak", "cm": "rxe/cm",
	"vcm":   "verbs/cm",
	"verbs": "verbs", "xdp": "xdp", "bpf": "bpf", "perf": "internal/perf", "roxie": "cmd/roxie",
	"internal": "internal", "capture": "verbs/capture", "observe": "verbs/observe",
}

// testsOf are the names of the tests and fuzzers of a folder.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob("../" + folder + "/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", folder, err)
	}
	def := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range def.FindAllStringSubmatch(string(b), -1) {
			names[m[1]] = true
		}
	}
	return names
}

// TestConformance: every file, test and link that docs/conformance.md names exists, and every test that bears
// the number of a public report stands in its list.
func TestConformance(t *testing.T) {
	b, err := os.ReadFile("../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	tests := map[string]map[string]bool{}
	for pkg, folder := range folders {
		tests[pkg] = testsOf(t, folder)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(\\w+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(doc, -1) {
		named[m[1]+"."+m[2]] = true
		if !tests[m[1]][m[2]] {
			t.Errorf("there is no %s.%s", m[1], m[2])
		}
	}
	files := 0
	for _, m := range regexp.MustCompile("`([a-z]+(?:/[\\w.-]+)+\\.\\w+)`").FindAllStringSubmatch(doc, -1) {
		files++
		if _, err := os.Stat("../" + m[1]); err != nil {
			t.Error(err)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllStringSubmatch(doc, -1) {
		if _, err := os.Stat(filepath.Join("../docs", m[1])); err != nil {
			t.Error(err)
		}
	}
	if len(named) < 150 || files < 100 {
		t.Errorf("found only %d tests and %d files named: has the form changed?", len(named), files)
	}
	for _, pkg := range []string{"rxe", "wire", "verbs"} {
		for name := range tests[pkg] {
			if strings.HasPrefix(name, "TestCase") && !named[pkg+"."+name] {
				t.Errorf("%s.%s is not in the list of reports", pkg, name)
			}
		}
	}
}

// TestTargets: every `make` target that a document names exists.
func TestTargets(t *testing.T) {
	b, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(b), -1) {
		targets[m[1]] = true
	}
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, f := range append(docs, "../README.md", "../ARCHITECTURE.md", "../CHANGELOG.md", "../STYLE.md") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)(?:`|^)make ([a-z0-9-]+)").FindAllStringSubmatch(string(b), -1) {
			named++
			if !targets[m[1]] {
				t.Errorf("%s names `make %s`, which is no target", f, m[1])
			}
		}
	}
	if named < 20 {
		t.Errorf("only %d targets are named: is this how documents name them?", named)
	}
}
