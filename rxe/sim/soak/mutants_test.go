//go:build mutants

package soak

import (
	"strings"
	"testing"
	"time"
)

// TestMutants: what roxie sim does without other flags finds each of the planted bugs. Each is sought with
// seeds of its own, so that none is found only because the workload was made for it.
func TestMutants(t *testing.T) {
	list := Mutants()
	if len(list) < 80 {
		t.Fatalf("%d mutants", len(list))
	}
	defer Plant("")
	var scratch Scratch
	for i, m := range list {
		t.Run(m.Name, func(t *testing.T) {
			if !Plant(m.Name) {
				t.Fatal("not known")
			}
			start, first := time.Now(), uint64(1)
			if i%2 == 1 {
				first = 1 + uint64(i)*1000
			}
			for run := range uint64(DefaultRuns) {
				r := Run(Options{Seed: first + run, Packets: DefaultPackets, Faults: DefaultFaults, Scratch: &scratch})
				if len(r.Violations) > 0 {
					text, _, _ := strings.Cut(r.Violations[0].String(), "\n")
					t.Logf("caught after %d runs and %v: %v", run+1, time.Since(start).Round(time.Millisecond), text)
					return
				}
			}
			t.Errorf("survives %d runs: %s", DefaultRuns, m.About)
		})
	}
	if Plant("no such bug") {
		t.Error("an unknown name is taken")
	}
}
