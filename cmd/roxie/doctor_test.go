package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/internal/lab"
)

func TestDoctorExitCodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	name := fmt.Sprintf("%s-doctortest-%d", lab.Prefix, os.Getpid())
	t.Cleanup(func() { _ = lab.Remove(name) })
	l, err := lab.New(lab.Config{Name: name})
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"veth0"}, exitOK, "veth0: ok"},
		{nil, exitOK, "veth0: ok"},
		{[]string{"eth7"}, exitFailure, "broken  link"},
		{[]string{"veth0", "--queues", "3"}, exitFailure, "broken  queues"},
		{[]string{"veth0", "veth1"}, exitUsage, ""},
		{[]string{"--try"}, exitUsage, "are about one interface"},
		{[]string{"veth0", "--peer", "there"}, exitUsage, "IPv4 or IPv6"},
		{[]string{"veth0", "--vlan", "5000"}, exitUsage, "1 to 4094"},
	} {
		l.A.Do(func() {
			code, stdout, stderr := cli(append([]string{"doctor"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stdout+stderr, tt.want) {
				t.Errorf("%v: code %d, want %d and %q in\n%s%s", tt.args, code, tt.code, tt.want, stdout,
					stderr)
			}
		})
	}
	l.A.Do(func() {
		code, stdout, _ := cli("doctor", "eth7", "--json")
		var report struct {
			Grade    string
			Sections []struct {
				Findings []struct{ Name, Grade, Reason, Fix string }
			}
		}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatal(err)
		}
		if f := report.Sections[1].Findings[0]; code != exitFailure || report.Grade != "broken" ||
			f.Name != "link" || f.Grade != "broken" || f.Reason == "" || f.Fix == "" {
			t.Errorf("code %d, %+v", code, report)
		}
	})
}
