package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// cli runs one command line and returns its exit code and what it printed.
func cli(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(context.Background(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestLabUpExecDown(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	name := fmt.Sprintf("%s-clitest-%d", lab.Prefix, os.Getpid())
	flag := "--name=" + name
	t.Cleanup(func() { _ = lab.Remove(name) })

	code, _, stderr := cli("lab", "exec", flag, "A", "--", "true")
	if code != exitFailure || !strings.Contains(stderr, "`roxie lab up --name "+name+"` builds it") {
		t.Errorf("exec without a lab: code %d, %q", code, stderr)
	}
	code, stdout, stderr := cli("lab", "up", flag, "--queues=2", "--link-mtu=4200")
	if strings.Contains(stderr, "need root") {
		t.Skip(stderr)
	}
	for _, want := range []string{name + "-a", "10.77.0.2/24", "MTU 4200", "2 queue(s)",
		"fd77::1/64"} {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Fatalf("up: code %d, %q, want %q in\n%s", code, stderr, want, stdout)
		}
	}
	if code, _, stderr := cli("lab", "up", flag); code != exitFailure ||
		!strings.Contains(stderr, "is up already") {
		t.Errorf("up twice: code %d, %q", code, stderr)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"interface in A", []string{"A", "--", "cat", "/sys/class/net/veth0/mtu"}, 0, "4200\n", ""},
		{"lower case, no dashes", []string{"b", "echo", "-n", "x"}, 0, "x", ""},
		{"exit code", []string{"A", "--", "sh", "-c", "exit 7"}, 7, "", ""},
		{"killed", []string{"A", "--", "sh", "-c", "kill -9 $$"}, 137, "", ""},
		{"no command", []string{"A", "--"}, exitUsage, "", "say what to run"},
		{"no side", []string{"C", "--", "true"}, exitUsage, "", "sides A and B"},
		{"not found", []string{"A", "--", "no-such-program"}, exitFailure, "",
			`roxie: there is no command "no-such-program"` + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := cli(append([]string{"lab", "exec", flag}, tt.args...)...)
			if code != tt.code || stdout != tt.stdout || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("code %d, output %q, error %q; want %d, %q, %q",
					code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
			}
		})
	}
	if code, _, stderr := cli("lab", "down", flag); code != exitOK {
		t.Errorf("down: code %d, %q", code, stderr)
	}
	if code, _, stderr := cli("lab", "down", flag); code != exitFailure ||
		!strings.Contains(stderr, "no lab "+name+" is up") {
		t.Errorf("down twice: code %d, %q", code, stderr)
	}
}
