package privs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/internal/netdev"
)

const (
	nobody   = 65534
	variable = "PRIVS_TEST"
)

// TestMain lets the test binary become a user, and tell what it is then.
func TestMain(m *testing.M) {
	switch os.Getenv(variable) {
	case "drop":
		fmt.Println(Exec(User{Name: "nobody", UID: nobody, GID: nobody}, nil, variable+"=tell"))
		os.Exit(1)
	case "keep":
		keep := []netdev.Cap{netdev.CapNetRaw, netdev.CapBPF}
		fmt.Println(Exec(User{Name: "nobody", UID: nobody, GID: nobody}, keep, variable+"=start"))
		os.Exit(1)
	case "start": // with some capabilities: a child has none
		tell()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), variable+"=tell")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := StartBare(cmd); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if err := cmd.Wait(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	case "tell":
		tell()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func tell() {
	threads, err := Of(os.Getpid())
	if err != nil || len(threads) == 0 {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, r := range threads {
		if r != threads[0] {
			fmt.Printf("%+v differs\n", r)
		}
	}
	fmt.Printf("%+v\n", threads[0])
	for _, try := range []string{"/etc/shadow", "/proc/1/environ"} {
		if f, err := os.Open(try); err == nil {
			fmt.Println("may read", try)
			f.Close()
		}
	}
}

func TestExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const none = "{UID:65534 GID:65534 Effective:0 Permitted:0 Ambient:0 Inheritable:0 Bounding:%d NoNewPrivs:true}\n"
	const two = uint64(1<<netdev.CapNetRaw | 1<<netdev.CapBPF)
	for _, tt := range []struct{ mode, want string }{
		{"drop", fmt.Sprintf(none, 0)},
		{"keep", fmt.Sprintf("{UID:65534 GID:65534 Effective:%[1]d Permitted:%[1]d Ambient:%[1]d Inheritable:%[1]d "+
			"Bounding:%[1]d NoNewPrivs:true}\n", two) + fmt.Sprintf(none, two)},
	} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), variable+"="+tt.mode)
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != tt.want {
			t.Errorf("%s: %v\n%swant\n%s", tt.mode, err, out, tt.want)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, tt := range []struct {
		name string
		uid  int
		bad  string
	}{{"65534", 65534, ""}, {"123456", 123456, ""}, {"root", 0, "is root"}, {"0", 0, "is root"},
		{"no-such-user", 0, "unknown user"}, {"-1", 0, "user"}} {
		u, err := Lookup(tt.name)
		if tt.bad != "" && (err == nil || !strings.Contains(err.Error(), tt.bad)) || tt.bad == "" && (err != nil || u.UID != tt.uid) {
			t.Errorf("%s: %+v %v", tt.name, u, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := StartBare(exec.Command("/bin/true")); err == nil {
			t.Error("root starts a process without rights, which would have all of them")
		}
	}
}

func TestRaiseMemlock(t *testing.T) {
	before, err := RaiseMemlock(0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := RaiseMemlock(before); err != nil || got != before {
		t.Errorf("to what it is: %d %v", got, err)
	}
	if got, err := RaiseMemlock(before + 4096); err != nil || got != before+4096 && got != before {
		t.Errorf("from %d by 4096: %d %v", before, got, err)
	}
}
