package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateManual = flag.Bool("update-manual", false, "write docs/commands again")

// commandDocs is where the repository holds the pages for reading in a browser.
var commandDocs = filepath.Join("..", "..", "docs", "commands")

// What docs/commands says is what --help says: `make commands-doc` writes it again.
func TestCommandDocs(t *testing.T) {
	pages, err := manual(true, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if *updateManual {
		if err := os.RemoveAll(commandDocs); err != nil {
			t.Fatal(err)
		}
		if code := run(context.Background(), []string{"manual", "--format", "markdown", commandDocs},
			os.Stdout, os.Stderr); code != exitOK {
			t.Fatalf("exit code %d", code)
		}
	}
	committed, err := os.ReadDir(commandDocs)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range committed {
		if _, ok := pages[entry.Name()]; !ok {
			t.Errorf("%s tells of a command that is not there; make commands-doc", entry.Name())
		}
	}
	for name, page := range pages {
		got, err := os.ReadFile(filepath.Join(commandDocs, name))
		if err != nil {
			t.Errorf("%v; make commands-doc", err)
			continue
		}
		if diff := cmp.Diff(strings.Split(string(page), "\n"),
			strings.Split(string(got), "\n")); diff != "" {
			t.Errorf("%s is not what --help says; make commands-doc:\n%s", name, diff)
		}
	}
}

// Every command has a page, with all its flags, under the name that man looks for.
func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "man1")
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"manual", dir}, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	pages := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.HasParent() && !c.IsAvailableCommand() {
			return
		}
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil {
			t.Error(err)
			return
		}
		text := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "", `\fR`, "").Replace(string(page))
		if want := `.TH "` + strings.ToUpper(name) + `" "1"`; !strings.Contains(text, want) {
			t.Errorf("%s has no title %s:\n%.300s", name, want, text)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s does not tell of --%s", name, f.Name)
			}
		})
		if strings.Contains(text, "[=false]") {
			t.Errorf("%s tells of a switch as if it took a value", name)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	if files, _ := os.ReadDir(dir); len(files) != pages {
		t.Errorf("%d pages, want %d", len(files), pages)
	}
}

func TestManualErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"manual"}, exitUsage, "`roxie manual DIR`"},
		{[]string{"manual", "--format", "pdf", t.TempDir()}, exitUsage, `no format "pdf"`},
		{[]string{"manual", file}, exitFailure, "not a directory"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), tt.args, &stdout, &stderr); code != tt.code ||
			!strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: exit code %d, %q; want %d, %q in it", tt.args, code, &stderr, tt.code, tt.want)
		}
	}
}

func TestParagraphs(t *testing.T) {
	const text = "Words of ibv_*_pingpong and `a_b`.\nMore:\n\n  qp N   a QP <*>\n  in     received\nThe end.\n"
	const want = "Words of ibv\\_\\*\\_pingpong and `a_b`.\nMore:\n\n    qp N   a QP <*>\n    in     " +
		"received\n\nThe end."
	if diff := cmp.Diff(want, paragraphs(text)); diff != "" {
		t.Error(diff)
	}
}

// The configuration that the Debian package installs is one that serve takes.
func TestShippedConfiguration(t *testing.T) {
	var stdout, stderr bytes.Buffer
	file := filepath.Join("..", "..", "dist", "roxie.yaml")
	if code := run(context.Background(), []string{"serve", "--config", file, "--check"},
		&stdout, &stderr); code != exitOK {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
}
