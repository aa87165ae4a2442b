// Package internal holds a test only: the rules about who may import whom, and what the pure core
// may use. ARCHITECTURE.md tells why.
package internal

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/roxie-rdma/roxie"

// pure is what of the standard library can neither wait, talk nor look at a clock.
var pure = []string{
	"bytes", "cmp", "container/heap", "encoding/binary", "encoding/hex", "errors", "fmt", "hash/crc32",
	"iter", "maps", "math", "math/bits", "net/netip", "slices", "sort", "strconv", "strings",
}

// A rule says what the production code of a folder may import. Patterns are import paths, of our
// own packages without the module; "p/..." is p and all below, "..." is anything.
type rule struct {
	folder string   // "p/..." covers all below too; the first rule that fits counts
	std    []string // of the standard library
	own    []string // of this module
	others []string // of other modules
}

var anything = []string{"..."}

var rules = []rule{
	{"rxe/wire", pure, nil, []string{"golang.org/x/sys/cpu"}},
	{"rxe/internal/mutant", pure, nil, nil},
	{"rxe/mr", with(pure, "sync", "sync/atomic", "unsafe", "runtime", "runtime/debug"),
		[]string{"rxe/internal/mutant"}, nil},
	{"rxe/cm", with(pure, "time"), []string{"rxe/wire"}, nil},
	{"rxe/sim/...", with(pure, "time", "bufio", "io", "os", "crypto/sha256", "hash", "runtime/debug"),
		[]string{"rxe/..."}, nil},
	{"rxe", with(pure, "time", "sync", "sync/atomic"),
		[]string{"rxe/internal/mutant", "rxe/mr", "rxe/wire"}, nil},

	{"bpf", anything, nil, []string{"github.com/cilium/ebpf/...", "golang.org/x/sys/unix"}},
	{"xdp", anything, nil, []string{"github.com/cilium/ebpf/...", "golang.org/x/sys/unix"}},

	{"internal/lab", anything, nil, anything},
	{"internal/nettest", anything, []string{"internal/lab"}, anything},
	{"internal/netdev", anything, []string{"rxe/wire"}, anything},

	{"verbs", anything, []string{"bpf", "xdp", "rxe", "rxe/mr", "rxe/wire", "internal/netdev"}, anything},
	{"verbs/verbstest", anything, []string{"verbs", "rxe/sim", "rxe/wire"}, nil},
	{"verbs/vethtest", anything, []string{"verbs", "internal/lab", "internal/nettest"}, nil},
	{"verbs/capture", anything, []string{"verbs", "rxe", "rxe/wire"},
		[]string{"github.com/gopacket/gopacket/..."}},
	{"verbs/observe", anything, []string{"bpf", "verbs", "rxe", "rxe/mr", "xdp"},
		[]string{"github.com/prometheus/client_golang/..."}},
	{"verbs/cm", anything, []string{"verbs", "rxe/cm", "rxe/wire", "internal/netdev"}, anything},

	{"internal/hostile", nil, nil, nil}, // tests only
	{"internal/srp/...", anything, []string{"rxe/mr", "verbs", "verbs/cm", "internal/srp"}, nil},
	{"internal/privs", anything, []string{"internal/netdev"}, []string{"golang.org/x/sys/unix"}},
	{"internal/starter", anything, []string{"verbs", "internal/netdev"}, []string{"golang.org/x/sys/unix"}},
	{"internal/xfer", anything, []string{"verbs", "verbs/cm"}, nil},
	{"internal/serve", anything, []string{"bpf", "rxe/cm", "verbs", "verbs/capture", "verbs/cm", "verbs/observe",
		"internal/netdev", "internal/perf", "internal/rping", "internal/starter", "internal/xfer"}, anything},
	{"internal/...", anything, []string{"bpf", "xdp", "rxe/...", "verbs/...", "internal/..."}, anything},
	{"docs/...", anything, []string{"verbs", "verbs/cm"}, nil},
	{"bench/...", anything, []string{"bench/...", "bpf", "xdp", "rxe/...", "verbs/...", "internal/..."}, anything},
	{"interop/...", anything, []string{"interop/...", "rxe/...", "verbs/...", "internal/..."}, anything},
	{"cmd/...", anything, []string{"bench/...", "bpf", "xdp", "rxe/...", "verbs/...", "internal/..."},
		anything},
}

// An exclusive import stands in the named files of a folder only.
var exclusive = []struct {
	folder, imports string
	files           []string
	why             string
}{
	{"rxe", "sync/atomic", []string{
		"queue.go", "cq.go", "handover.go", // rings between two goroutines
		"device.go", "ud.go", // tables that shards read while the control path adds to them
		"shard.go", // doorbells
		"qp.go",    // the state that posters look at
	}, "what crosses goroutines is in few places"},
	{"rxe", "sync", []string{"device.go"}, "only control calls lock"},
	{"rxe/mr", "unsafe", []string{"mem_unsafe.go"}, "it is reviewed in one place"},
	{"xdp", "unsafe", []string{"sys_unsafe.go"}, "it is reviewed in one place"},
	{"internal/netdev", "unsafe", []string{"ethtool.go"}, "it is reviewed in one place"},
	{"verbs", module + "/xdp", []string{
		"poller.go", "link.go", // frames
		"config.go", "open.go", "query.go", // set-up and statistics of the sockets
	}, "xdp and rxe meet in one place"},
	{"verbs", "unsafe", nil, "memory is the business of rxe/mr"},
	{"bpf", "unsafe", nil, "the library does it"},
}

// durations is what the pure core may use of package time: a length of time, not the clock.
var durations = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute"}

func with(list []string, more ...string) []string {
	return append(slices.Clone(list), more...)
}

// fits reports whether an import path or folder fits one of the patterns.
func fits(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		below, all := strings.CutSuffix(p, "/...")
		return p == "..." || p == name || all && (name == below || strings.HasPrefix(name, below+"/"))
	})
}

// check returns what is wrong with a source file; name is its path below the module's root.
func check(name string, source *ast.File) (faults []string) {
	folder, base := path.Split(name)
	folder = path.Clean(folder)
	isTest := strings.HasSuffix(base, "_test.go")
	at := slices.IndexFunc(rules, func(r rule) bool { return fits(folder, []string{r.folder}) })
	if at < 0 {
		if isTest {
			return nil
		}
		return []string{"no rule in internal/deps_test.go says what this folder may import"}
	}
	for _, spec := range source.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return []string{err.Error()}
		}
		if isTest {
			faults = append(faults, checkTestImport(folder, imported)...)
		} else {
			faults = append(faults, checkImport(rules[at], folder, base, imported)...)
		}
	}
	if fits(folder, []string{"rxe/..."}) && !isTest {
		faults = append(faults, impurities(source)...)
	}
	return faults
}

func checkImport(r rule, folder, base, imported string) (faults []string) {
	local, own := strings.CutPrefix(imported, module+"/")
	first, _, _ := strings.Cut(imported, "/")
	allowed := r.others
	switch {
	case own:
		allowed = r.own
	case !strings.Contains(first, "."):
		allowed = r.std
	}
	if !fits(local, allowed) {
		faults = append(faults, fmt.Sprintf("%s may not import %s", folder, imported))
	}
	if local == "internal/nettest" && folder != "verbs/vethtest" { // which is for tests itself
		faults = append(faults, "internal/nettest is for tests")
	}
	for _, x := range exclusive {
		if x.folder == folder && x.imports == imported && !slices.Contains(x.files, base) {
			faults = append(faults, fmt.Sprintf("%s may import %s only in %v: %s",
				folder, imported, x.files, x.why))
		}
	}
	return faults
}

// checkTestImport holds tests to the direction only: those of a lower package know no upper one.
func checkTestImport(folder, imported string) []string {
	local, own := strings.CutPrefix(imported, module+"/")
	upper := []string{"cmd/...", "bench/..."}
	switch {
	case fits(folder, []string{"rxe/..."}):
		upper = append(upper, "verbs/...", "bpf", "xdp", "internal/...")
	case folder == "bpf":
		upper = append(upper, "verbs/...")
	case folder == "xdp":
		upper = append(upper, "verbs/...", "rxe/...")
	case fits(folder, []string{"cmd/...", "bench/..."}):
		upper = nil
	}
	if own && fits(local, upper) {
		return []string{fmt.Sprintf("tests of %s may not import %s", folder, imported)}
	}
	return nil
}

// impurities finds what a pure package must not do, as far as it shows in the syntax.
func impurities(source *ast.File) (faults []string) {
	ast.Inspect(source, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			faults = append(faults, "the pure core starts no goroutine")
		case *ast.ChanType, *ast.SelectStmt:
			faults = append(faults, "the pure core has no channels")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" &&
				!slices.Contains(durations, n.Sel.Name) {
				faults = append(faults, "the pure core does not use time."+n.Sel.Name)
			}
		}
		return true
	})
	return faults
}

func TestImports(t *testing.T) {
	const root = ".."
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || name != root && strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files++
		source, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, fault := range check(filepath.ToSlash(rel), source) {
			t.Errorf("%s: %s", rel, fault)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 10 {
		t.Errorf("only %d Go files found: the test looks in the wrong place", files)
	}
}

// The checker itself: each of these must be found, or must pass.
func TestChecker(t *testing.T) {
	own := func(p string) string { return `import "` + module + "/" + p + `"` }
	for _, tt := range []struct {
		file, source, want string // want "" is no fault
	}{
		{"rxe/qp.go", `import "strings"`, ""},
		{"rxe/qp.go", `import "os"`, "may not import os"},
		{"rxe/qp.go", `import "net"`, "may not import net"},
		{"rxe/qp.go", `import "golang.org/x/sys/unix"`, "may not import golang.org"},
		{"rxe/qp.go", own("xdp"), "may not import"},
		{"rxe/qp.go", own("rxe/sim"), "may not import"},
		{"rxe/responder.go", `import "sync/atomic"`, "only in [queue.go"},
		{"rxe/responder.go", `import "sync"`, "only in [device.go]"},
		{"rxe/responder_test.go", `import "sync"`, ""},
		{"rxe/responder_test.go", own("verbs"), "tests of rxe may not import"},
		{"rxe/timer.go", "import \"time\"\nvar d = 5 * time.Second", ""},
		{"rxe/timer.go", "import \"time\"\nvar d = time.Now()", "time.Now"},
		{"rxe/cm/conn.go", "func f() { go f() }", "goroutine"},
		{"rxe/sim/fabric.go", "var c chan int", "channels"},
		{"rxe/sim/script.go", `import "os"`, ""},
		{"rxe/mr/list.go", `import "unsafe"`, "only in [mem_unsafe.go]"},
		{"rxe/mr/mem_unsafe.go", `import "unsafe"`, ""},
		{"rxe/mr/list.go", own("rxe/wire"), "may not import"},
		{"xdp/rx.go", own("rxe"), "may not import"},
		{"xdp/rx.go", `import "github.com/cilium/ebpf/link"`, ""},
		{"xdp/rx.go", `import "github.com/vishvananda/netlink"`, "may not import"},
		{"verbs/poller.go", own("xdp"), ""},
		{"verbs/qp.go", own("xdp"), "only in [poller.go link.go"},
		{"verbs/qp.go", own("rxe/sim"), "may not import"},
		{"verbs/qp.go", own("internal/nettest"), "is for tests"},
		{"cmd/roxie/main.go", own("internal/nettest"), "is for tests"},
		{"cmd/roxie/main.go", own("verbs/cm"), ""},
		{"util/util.go", `import "os"`, "no rule"},
	} {
		source, err := parser.ParseFile(token.NewFileSet(), tt.file, "package p\n"+tt.source,
			parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(check(tt.file, source), "; ")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s with %q: faults %q, want %q", tt.file, tt.source, got, tt.want)
		}
	}
}
