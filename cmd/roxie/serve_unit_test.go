package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/privs"
)

const unitFile = "../../dist/roxie.service"

// unitVariable makes the test binary start with the rights that the systemd unit gives.
const unitVariable = "ROXIE_TEST_UNIT"

func init() {
	if os.Getenv(unitVariable) == "" {
		return
	}
	_ = os.Unsetenv(unitVariable)
	fmt.Fprintln(os.Stderr, privs.Exec(privs.User{Name: "nobody", UID: nobody, GID: nobody}, starterCaps))
	os.Exit(exitFailure)
}

// unitOf reads a unit: its directives, of a repeated one all values.
func unitOf(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			out[key] = append(out[key], value)
		}
	}
	return out
}

// TestUnit: the unit gives what the code needs, and nothing else.
func TestUnit(t *testing.T) {
	unit := unitOf(t)
	var caps []string
	for _, c := range starterCaps {
		caps = append(caps, c.String())
	}
	for _, key := range []string{"AmbientCapabilities", "CapabilityBoundingSet"} {
		if got := strings.Join(unit[key], " "); got != strings.Join(caps, " ") {
			t.Errorf("%s=%s, a starter has %v", key, got, caps)
		}
	}
	want := addressFamilies(t)
	got := strings.Fields(strings.Join(unit["RestrictAddressFamilies"], " "))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("RestrictAddressFamilies=%v, the code uses %v", got, want)
	}
	if user := unit["User"]; len(user) != 1 || !strings.Contains(unit["ExecStart"][0], "--user "+user[0]) {
		t.Errorf("User=%v, but %v", user, unit["ExecStart"])
	}
	for _, command := range []string{"ExecStart", "ExecStartPre"} {
		c := newServeCommand()
		args := strings.Fields(unit[command][0])
		if err := c.ParseFlags(args[2:]); args[1] != "serve" || err != nil {
			t.Errorf("%s=%v: %v", command, args, err)
		}
	}
	for key, value := range map[string]string{"NoNewPrivileges": "yes", "ProtectSystem": "strict", "KillMode": "mixed",
		"LimitMEMLOCK": "infinity", "SystemCallArchitectures": "native"} {
		if !slices.Equal(unit[key], []string{value}) {
			t.Errorf("%s=%v, want %s", key, unit[key], value)
		}
	}
}

// addressFamilies finds the socket families that an endpoint's code names. The netlink library's is
// its own; it is the only one that opens sockets besides.
func addressFamilies(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{"AF_NETLINK": true}
	for _, dir := range []string{"bpf", "xdp", "verbs", "verbs/cm", "internal/netdev", "internal/serve", "internal/starter"} {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", dir, files, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "AF_") {
					found[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	delete(found, "AF_UNSPEC")
	var out []string
	for name := range found {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// TestUnitVerified has systemd look at the unit, where it is installed.
func TestUnitVerified(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "roxie.service")
	writeFile(t, file, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/roxie", "/bin/true")))
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestServeAsUnit starts with the rights of the unit, three capabilities and no root: it needs no
// other.
func TestServeAsUnit(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	t.Setenv(unitVariable, "1")
	p := rightsEndpoint(t, l, "--starter")
	wantRights(t, p.cmd.Process.Pid, starterMask())
	wantRights(t, child(t, p.cmd.Process.Pid), 0)
	if err := os.Unsetenv(unitVariable); err != nil {
		t.Fatal(err)
	}
	good(t, l.B, "ping", "-d", "veth0", "-c", "-a", "10.77.0.1", "-C", "3", "-V")
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}
