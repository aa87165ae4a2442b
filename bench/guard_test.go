package bench

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// spin keeps the CPU busy for a while, without the help of a clock that could be slow itself.
func spin(n int) {
	x := uint64(n)
	for range n {
		x = x*6364136223846793005 + 1442695040888963407
	}
	benchSink += x
}

// TestGuardFindsSlowness makes the engine slow on purpose, inside it, between a responder's key check
// and its copy, and wants the guard to say so; and to be content without.
func TestGuardFindsSlowness(t *testing.T) {
	const rounds = 6
	all, err := enginePairs()
	if err != nil {
		t.Fatal(err)
	}
	var pairs []*guardPair
	for _, p := range all {
		if slices.Contains([]string{"write_64", "responder_64", "icrc_build"}, p.name) {
			pairs = append(pairs, p)
		}
	}
	ctx := context.Background()
	if err := measurePairs(ctx, pairs, rounds); err != nil {
		t.Fatal(err)
	}
	reference := &Guard{Ratios: map[string]float64{}}
	for _, p := range pairs {
		reference.Ratios[p.name] = p.ratio()
	}
	measure := func() *Guard {
		g := &Guard{Ratios: map[string]float64{}}
		for _, p := range pairs {
			p.of.message, p.per.message = 0, 0
		}
		if err := guardEngine(ctx, g, pairs, reference, rounds, 2); err != nil {
			t.Fatal(err)
		}
		return g
	}
	var b strings.Builder
	// Another process can slow one half of a ratio for a whole measurement, not for several.
	for attempt := 0; len(measure().judge(&b, reference)) > 0; attempt++ {
		if attempt == 3 {
			t.Fatalf("nothing has changed, but the guard fails:\n%s", b.String())
		}
	}
	for _, p := range pairs {
		if d := p.per.d; d != nil {
			// As long as four such messages: far below the bound.
			n := int(4 * p.per.message)
			d.B.QP.Shard().TestHook = func() { spin(n) }
		}
	}
	b.Reset()
	failed := measure().judge(&b, reference)
	slices.Sort(failed)
	if !slices.Equal(failed, []string{"responder_64", "write_64"}) {
		t.Errorf("the engine was slowed, but what failed is %v:\n%s", failed, b.String())
	}
}

func TestGuardJudges(t *testing.T) {
	reference := &Guard{Ratios: map[string]float64{"write_64": 1, wirePrefix + "write_64k": 0.8}}
	for _, tt := range []struct {
		name         string
		now          map[string]float64
		inconclusive bool
		failed       string
		said         string
	}{
		{"as before", map[string]float64{"write_64": 1.1, wirePrefix + "write_64k": 0.7}, false, "", ""},
		{"a little slower", map[string]float64{"write_64": 0.6, wirePrefix + "write_64k": 0.4}, false, "", ""},
		{"engine", map[string]float64{"write_64": 0.49, wirePrefix + "write_64k": 0.8}, false, "write_64",
			"TOO SLOW"},
		{"wire", map[string]float64{"write_64": 1, wirePrefix + "write_64k": 0.3}, false,
			wirePrefix + "write_64k", "TOO SLOW"},
		{"disturbed", map[string]float64{"write_64": 1, wirePrefix + "write_64k": 0.3}, true, "",
			"inconclusive"},
		{"missing", map[string]float64{"write_64": 1}, false, wirePrefix + "write_64k", "not measured"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &Guard{Ratios: tt.now, inconclusive: map[string]bool{wirePrefix + "write_64k": tt.inconclusive}}
			var b strings.Builder
			if got := strings.Join(g.judge(&b, reference), " "); got != tt.failed ||
				!strings.Contains(b.String(), tt.said) {
				t.Errorf("failed %q, want %q, and %q in\n%s", got, tt.failed, tt.said, b.String())
			}
		})
	}
}

// The committed reference has exactly what is measured.
func TestGuardReference(t *testing.T) {
	reference, err := guardReference()
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := enginePairs()
	if err != nil {
		t.Fatal(err)
	}
	var measured []string
	for _, p := range pairs {
		measured = append(measured, p.name)
	}
	for _, c := range (&meter{}).wireCases() {
		measured = append(measured, c.name)
	}
	slices.Sort(measured)
	if got := slices.Sorted(maps.Keys(reference.Ratios)); !slices.Equal(got, measured) {
		t.Errorf("guard.json has %v, measured are %v", got, measured)
	}
	for name, v := range reference.Ratios {
		if v <= 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
	var text bytes.Buffer
	if err := reference.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	if text.String() != string(guardJSON) {
		t.Errorf("written again, guard.json is\n%s", &text)
	}
	if err := reference.Write(io.Discard); err != nil {
		t.Errorf("the reference itself fails: %v", err)
	}
}

// On the wire the least cost of each side counts, whatever the round.
func TestGuardWireRatio(t *testing.T) {
	ratio, good := wireRatio([]wireCost{{raw: 3, ours: 9}, {raw: 2, ours: 5}, {raw: 5, ours: 4}})
	if ratio != 0.5 || good != 2 {
		t.Errorf("ratio %v, %d undisturbed rounds; want 0.5 and 2", ratio, good)
	}
}

// TestThreadTime: other threads' work does not count.
func TestThreadTime(t *testing.T) {
	c := &engineCase{name: "sleep", stretch: func() (int, int, error) {
		time.Sleep(50 * time.Millisecond)
		return 1, 1, nil
	}}
	if err := measureAll(context.Background(), []*engineCase{c}, 1); err != nil {
		t.Fatal(err)
	}
	if c.message > 25e6 {
		t.Errorf("50 ms of sleep count as %v ns of CPU", c.message)
	}
}
