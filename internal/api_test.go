package internal

import (
	"bytes"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// apiPackages are the names that docs/api.md has for packages.
var apiPackages = map[string]string{
	"verbs": "verbs", "cm": "verbs/cm", "rcm": "rxe/cm", "wire": "rxe/wire",
}

// loadPackages reads what the compiler says these packages export, aliases followed.
func loadPackages(t *testing.T, folders map[string]string) map[string]*types.Package {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, folder := range folders {
		args = append(args, module+"/"+folder)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = file
	}
	look := func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
	from := importer.ForCompiler(token.NewFileSet(), "gc", look)
	packages := map[string]*types.Package{}
	for name, folder := range folders {
		if packages[name], err = from.Import(module + "/" + folder); err != nil {
			t.Fatal(err)
		}
	}
	return packages
}

// exported reports whether a package has Name, or Type.Name for a field or method.
func exported(p *types.Package, name string) bool {
	first, rest, member := strings.Cut(name, ".")
	object := p.Scope().Lookup(first)
	if object == nil || !object.Exported() || !member {
		return object != nil && object.Exported()
	}
	found, _, _ := types.LookupFieldOrMethod(types.NewPointer(object.Type()), true, p, rest)
	if found == nil { // an interface's methods are not its pointer's
		found, _, _ = types.LookupFieldOrMethod(object.Type(), true, p, rest)
	}
	return found != nil && found.Exported()
}

// TestAPI: docs/api.md has every function and enumerated constant of rdma-core's headers once, the Go
// names beside them exist, and where there are none it says why.
func TestAPI(t *testing.T) {
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadFile("testdata/rdma-core-44.txt")
	if err != nil {
		t.Fatal(err)
	}
	packages := loadPackages(t, apiPackages)
	quoted := regexp.MustCompile("`([^`]+)`")
	cName := regexp.MustCompile(`^(?:ibv|rdma|IBV|RDMA|mult|mbps)_\w+$`)
	goName := regexp.MustCompile(`^(verbs|cm|rcm|wire)\.([A-Z].*)$`)

	rows := map[string]bool{}
	for line := range bytes.Lines(doc) {
		for _, m := range quoted.FindAllSubmatch(line, -1) {
			g := goName.FindStringSubmatch(string(m[1]))
			if g != nil && !exported(packages[g[1]], g[2]) {
				t.Errorf("there is no %s", m[1])
			}
		}
		cells := strings.Split(string(line), "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		if strings.TrimSpace(cells[2]) == "" && strings.TrimSpace(cells[3]) == "" {
			t.Errorf("no Go name and no reason: %s", line)
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			if !cName.MatchString(m[1]) || rows[m[1]] {
				t.Errorf("%s is no name of C, or stands here twice", m[1])
			}
			rows[m[1]] = true
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if !goName.MatchString(m[1]) {
				t.Errorf("%s is no name of Go", m[1])
			}
		}
	}
	all := strings.Fields(string(names))
	for _, name := range all {
		if !rows[name] {
			t.Errorf("%s is missing", name)
		}
		delete(rows, name)
	}
	if len(all) < 400 {
		t.Errorf("%d names of the headers: is the list cut?", len(all))
	}
	for name := range rows {
		if !laterNames[name] {
			t.Errorf("%s is not in the headers", name)
		}
	}
}

// laterNames came after the headers whose names testdata holds.
var laterNames = map[string]bool{
	"IBV_WR_FLUSH": true, "IBV_WC_FLUSH": true,
	"IBV_ACCESS_FLUSH_GLOBAL": true, "IBV_ACCESS_FLUSH_PERSISTENT": true,
}

// TestAPIExported: what TestAPI relies on tells names that are there from ones that are not.
func TestAPIExported(t *testing.T) {
	p := loadPackages(t, apiPackages)["verbs"]
	for name, want := range map[string]bool{
		"Open": true, "CQ.Poll": true, "WC.SrcQP": true, "QPState.String": true, "Link.Receive": true,
		"Opened": false, "CQ.Polled": false, "CQ.mu": false, "errnoless": false,
	} {
		if exported(p, name) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
}
