package observe_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/roxie-rdma/roxie/verbs/observe"
)

// The dashboard and the documentation name only metrics that there are.
func TestNamedMetricsExist(t *testing.T) {
	known := map[string]bool{}
	ch := make(chan *prometheus.Desc)
	go func() {
		observe.NewCollector(nil).Describe(ch)
		close(ch)
	}()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range ch {
		known[name.FindStringSubmatch(d.String())[1]] = true
	}
	if len(known) < 60 {
		t.Fatalf("%d metrics", len(known))
	}
	word := regexp.MustCompile(`\broxie_[a-z0-9_]+[a-z0-9]\b`)
	for file, least := range map[string]int{"../../dist/grafana/roxie.json": 25, "../../docs/observe.md": 5} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		for _, w := range word.FindAllString(string(text), -1) {
			named[w] = true
			base := w
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !known[base] {
				t.Errorf("%s names %s, which does not exist", file, w)
			}
		}
		if len(named) < least {
			t.Errorf("%s names %d metrics only", file, len(named))
		}
	}
}

func TestDashboardIsValid(t *testing.T) {
	text, err := os.ReadFile("../../dist/grafana/roxie.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Title         string
		SchemaVersion int
		Panels        []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.SchemaVersion == 0 || len(d.Panels) < 10 {
		t.Fatalf("no dashboard: %q, schema %d, %d panels", d.Title, d.SchemaVersion, len(d.Panels))
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H == 0 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %s shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			if q.RefID == "" || strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") {
				t.Errorf("panel %s: %q", p.Title, q.Expr)
			}
		}
	}
}
