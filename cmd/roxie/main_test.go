package main

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestRunExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout string // a part of it
		stderr string // a part of it
	}{
		{"version", []string{"version"}, exitOK, "roxie ", ""},
		{"help", []string{"--help"}, exitOK, "Available Commands", ""},
		{"nothing", nil, exitUsage, "", "roxie needs a command; it knows "},
		{"unknown", []string{"nosuchcommand"}, exitUsage, "", `has no command "nosuchcommand"`},
		{"nearly", []string{"versoin"}, exitUsage, "", "did you mean version?"},
		{"flag", []string{"version", "--speed"}, exitUsage, "", "--speed; see roxie version --help"},
		{"argument", []string{"version", "7"}, exitUsage, "", "see roxie version --help"},
		{"group", []string{"completion", "tcsh"}, exitUsage, "",
			`roxie completion has no command "tcsh"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(context.Background(), tt.args, &stdout, &stderr)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(stdout.String(), tt.stdout) {
				t.Errorf("standard output %q, want %q in it", stdout.String(), tt.stdout)
			}
			if tt.stderr == "" {
				if stderr.Len() != 0 {
					t.Errorf("standard error %q, want none", stderr.String())
				}
				return
			}
			line := stderr.String()
			if !strings.HasPrefix(line, "roxie: ") || strings.Count(line, "\n") != 1 ||
				!strings.Contains(line, tt.stderr) {
				t.Errorf("standard error %q, want one line \"roxie: …%s…\"", line, tt.stderr)
			}
		})
	}
}

// Every command must be prepared: cobra's own reports of an error are usage texts of many lines.
func TestEveryCommandIsPrepared(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.SilenceErrors || !c.SilenceUsage {
			t.Errorf("%s reports errors by itself", c.CommandPath())
		}
		if !c.Runnable() {
			t.Errorf("%s accepts any subcommand", c.CommandPath())
		}
		if c.Short == "" {
			t.Errorf("%s has no short description", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
}

func TestOneLine(t *testing.T) {
	err := errors.Join(errors.New("open device"), errors.New("  attach program\r\n"))
	if got, want := oneLine(err.Error()), "open device; attach program"; got != want {
		t.Errorf("oneLine = %q, want %q", got, want)
	}
}

func TestPrintVersion(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.3.0"}}
	var bare, full bytes.Buffer
	if err := printVersion(&bare, info); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(bare.String(), "commit") {
		t.Errorf("a build without VCS data names a commit:\n%s", bare.String())
	}
	info.Settings = []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123abcd"},
		{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
		{Key: "vcs.modified", Value: "true"},
	}
	if err := printVersion(&full, info); err != nil {
		t.Fatal(err)
	}
	want := "roxie v0.3.0\ncommit  0123abcd with local changes\ndated   2026-01-02T03:04:05Z\n"
	if !strings.HasPrefix(full.String(), want) {
		t.Errorf("got:\n%swant it to begin with:\n%s", full.String(), want)
	}
}

// A tarball has no git: the release is stamped in.
func TestPrintStampedVersion(t *testing.T) {
	release = "v9.8.7"
	defer func() { release = "" }()
	var b bytes.Buffer
	if err := printVersion(&b, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "roxie v9.8.7\n") {
		t.Errorf("got:\n%s", b.String())
	}
}
