package serve

import (
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/bpf"
)

// TestRights reads what is said about rights, and asks as a starter does.
func TestRights(t *testing.T) {
	c, err := Parse("x", []byte("interfaces: [{name: eth0, queues: 4, xdp: generic}]\nlimits: {memory: 1GiB}\n"+
		"user: roxie\nstarter: true\n"), Overrides{})
	if err != nil || c.User != "roxie" || !c.Starter {
		t.Fatalf("%+v %v", c, err)
	}
	if d, ok := c.Device("eth0"); !ok || d.Queues != 4 || d.Mode != bpf.Generic {
		t.Errorf("eth0: %+v %v", d, ok)
	}
	if d, ok := c.Device("eth1"); ok {
		t.Errorf("eth1 is not configured: %+v", d)
	}
	if n := c.LockedMemory(); n < 1<<30+4*(4096<<12) {
		t.Errorf("%d bytes are too few for 1 GiB of exports and four queues of 4096 chunks", n)
	}
	for text, want := range map[string]string{"starter: true": "name a user", "user: a b": "not a user's name",
		"{user: roxie, starter: maybe}": "want false, true"} {
		if _, err := Parse("x", []byte(text), Overrides{Interfaces: []string{"eth0"}}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
