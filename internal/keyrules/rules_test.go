package keyrules

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// openMemory joins two devices in memory.
func openMemory(t *testing.T) (owner, peer *verbs.Context) {
	t.Helper()
	var links [2][]verbs.Link
	links[0], links[1] = verbs.NewLinkPair(1)
	macs := [2]wire.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	addrs := [2]netip.Prefix{netip.MustParsePrefix("10.77.0.1/24"),
		netip.MustParsePrefix("10.77.0.2/24")}
	var ends [2]*verbs.Context
	for i := range ends {
		port := verbs.PortInfo{Name: fmt.Sprint("mem", i), MAC: macs[i], Addrs: addrs[i : i+1],
			Neighbours: map[netip.Addr]wire.MAC{addrs[1-i].Addr(): macs[1-i]}}
		c, err := verbs.OpenLinks(links[i], port, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c
	}
	return ends[0], ends[1]
}

var update = flag.Bool("update", false, "write the table of docs/keys.md anew")

// Where the table begins and ends in docs/keys.md.
const (
	doc   = "../../docs/keys.md"
	begin = "<!-- table: go test ./internal/keyrules -update -->\n"
	end_  = "<!-- end of table -->\n"
)

// TestRules: every rule holds, and docs/keys.md has the table of just this.
func TestRules(t *testing.T) {
	out, err := Run(openMemory(t))
	for _, o := range out {
		if !o.Pass {
			t.Errorf("%s: %s: %s", o.ID, o.Rule, o.Got)
		}
		if Linux().find(o.ID, o.Rule).Got == "" {
			t.Errorf("%s: %s: nothing known of Linux", o.ID, o.Rule)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != len(rules) {
		t.Errorf("%d of %d rules tried", len(out), len(rules))
	}
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(b), begin)
	table, tail, ok2 := strings.Cut(rest, end_)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no table", doc)
	}
	want := Markdown(out)
	if *update {
		if err := os.WriteFile(doc, []byte(head+begin+want+end_+tail), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if table != want {
		t.Errorf("the table of %s is another one: go test ./internal/keyrules -update", doc)
	}
	var text strings.Builder
	want = fmt.Sprintf("%d of %[1]d rules hold here; of Linux rdma_rxe %s: ", len(rules),
		Linux().Kernel)
	if err := Write(&text, out, Linux()); err != nil || !strings.Contains(text.String(), want) {
		t.Errorf("%v, no %q", err, want)
	}
}

// TestRecord: what was recorded of Linux is of these rules and no others, and an outcome that is
// judged otherwise differs from it.
func TestRecord(t *testing.T) {
	linux := Linux()
	if len(linux.Rules) != len(rules) {
		t.Errorf("%d rules were tried on Linux, there are %d", len(linux.Rules), len(rules))
	}
	b, err := linux.JSON()
	if err != nil || !bytes.Equal(b, recorded) {
		t.Errorf("linux.json is not as it would be written: %v", err)
	}
	verdicts := make(map[Verdict]int)
	for _, m := range linux.Rules {
		verdicts[m.Verdict]++
	}
	if len(verdicts) != 3 {
		t.Errorf("verdicts %v", verdicts)
	}
	for i, m := range linux.Rules {
		out := []Outcome{{ID: m.ID, Rule: m.Rule, Got: m.Got, Pass: m.Verdict == Passes,
			Refused: m.Verdict == Status}}
		if d := linux.Differs(out); len(d) != 0 {
			t.Errorf("%v", d)
		}
		out[0].Pass = !out[0].Pass
		if d := linux.Differs(out); len(d) != 1 && rules[i].id == m.ID {
			t.Errorf("%s: another verdict is not noticed", m.ID)
		}
	}
}
