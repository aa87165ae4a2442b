//go:build mutants

package soak

import (
	"testing"
	"time"
)

// mutantRuns is what roxie sim does without flags: see DefaultRuns.
func TestMutants(t *testing.T) {
	list := Mutants()
	if len(list) < 25 {
		t.Fatalf("%d mutants", len(list))
	}
	defer Plant("")
	for _, m := range list {
		t.Run(m.Name, func(t *testing.T) {
			if !Plant(m.Name) {
				t.Fatal("not known")
			}
			start := time.Now()
			for seed := uint64(1); seed <= DefaultRuns; seed++ {
				r := Run(Options{Seed: seed, Packets: DefaultPackets, Faults: DefaultFaults})
				if len(r.Violations) > 0 {
					t.Logf("caught after %d runs and %v: %v", seed, time.Since(start).Round(time.Millisecond),
						r.Violations[0])
					return
				}
			}
			t.Errorf("survives %d runs: %s", DefaultRuns, m.About)
		})
	}
}
