package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every --json that takes a file is the one that knows "-".
func TestEveryJSONFlag(t *testing.T) {
	n := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if flag := c.LocalFlags().Lookup("json"); flag != nil && flag.Value.Type() != "bool" {
			n++
			if _, ok := flag.Value.(*jsonOutput); !ok {
				t.Errorf("%s --json - makes a file of that name", c.CommandPath())
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	if n < 12 {
		t.Errorf("%d commands with --json FILE", n)
	}
}

// With --json - standard output is JSON and nothing else.
func TestJSONToStandardOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range []string{"sim --runs 1 --packets 500 --calm --json -",
		"sim --runs 1 --packets 500 --calm --json=-"} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), strings.Fields(args), &stdout, &stderr); code != exitOK {
			t.Fatalf("%s: exit code %d: %s", args, code, &stderr)
		}
		var got map[string]any
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || len(got) == 0 {
			t.Errorf("%s: standard output is no JSON: %v\n%s", args, err, &stdout)
		}
		if !strings.Contains(stderr.String(), "trace ") {
			t.Errorf("%s: the words are not on standard error: %s", args, &stderr)
		}
	}
	if files, err := os.ReadDir("."); err != nil || len(files) > 0 {
		t.Errorf("files were made: %v %v", files, err)
	}
}

// A file that cannot be written, or is none, is refused before the work begins.
func TestOutputRefused(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--json", filepath.Join(dir, "none", "x")}, exitFailure, "no such file or directory"},
		{[]string{"--json", dir}, exitFailure, "is a directory"},
		{[]string{"--json", ""}, exitUsage, "say which file, or -"},
		{[]string{"--pcap", "-"}, exitUsage, "--pcap writes a file"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), append([]string{"sim", "--packets", "500"}, tt.args...),
			&stdout, &stderr)
		if code != tt.code || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, want %d; %q, want %q in it; standard output %q", tt.args, code,
				tt.code, &stderr, tt.want, &stdout)
		}
	}
}

func TestReserve(t *testing.T) {
	dir := t.TempDir()
	if _, err := reserve(filepath.Join(dir, "none", "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
	if _, err := reserve(dir); err == nil {
		t.Error("a directory can be written")
	}
	for _, tt := range []struct {
		name  string
		old   string // "-": there is no file
		wrote string
		err   error
		left  string // "-": no file
	}{
		{"success", "-", "new", nil, "new"},
		{"nothing came of it", "-", "", errors.New("interrupted"), "-"},
		{"bytes arrived wrong", "-", "new", errors.New("1 byte arrived wrong"), "new"},
		{"disk full", "-", "ne", &fs.PathError{Op: "write", Path: filepath.Join(dir, "x"),
			Err: errors.New("no space")}, "-"},
		{"old file, nothing came of it", "old", "", errors.New("interrupted"), "old"},
		{"old file, success", "old", "new", nil, "new"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(dir, "x")
			_ = os.Remove(name)
			if tt.old != "-" {
				if err := os.WriteFile(name, []byte(tt.old), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			release, err := reserve(name)
			if err != nil {
				t.Fatal(err)
			}
			if tt.wrote != "" {
				if err := os.WriteFile(name, []byte(tt.wrote), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			release(tt.err)
			left := "-"
			if b, err := os.ReadFile(name); err == nil {
				left = string(b)
			}
			if left != tt.left {
				t.Errorf("left %q, want %q", left, tt.left)
			}
		})
	}
}
