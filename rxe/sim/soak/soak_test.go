package soak

import (
	"fmt"
	"testing"
)

func TestSeeds(t *testing.T) {
	for seed := uint64(1); seed <= 25; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := Run(Options{Seed: seed, Packets: 20000, Faults: DefaultFaults})
			for _, v := range r.Violations {
				t.Error(v)
			}
			t.Logf("%+v ops %v attacks %d renewals %d grants %d until %d", r.Stats, r.Ops, r.Attacks, r.Renewals, r.Grants, r.Until)
		})
	}
}
