package soak

import (
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/sim"
)

// check runs one seed and fails with what it takes to run it again.
func check(t *testing.T, o Options) Result {
	t.Helper()
	r := Run(o)
	for _, v := range r.Violations {
		t.Errorf("%v\nagain: go run ./cmd/roxie sim --seed %d --runs 1 --packets %d --drop %v --dup %v "+
			"--reorder %v --corrupt %v --delay %v", v, o.Seed, o.Packets, o.Faults.Drop, o.Faults.Duplicate,
			o.Faults.Reorder, o.Faults.Corrupt, o.Faults.Delay)
	}
	return r
}

func runs(most int) int {
	if testing.Short() || raceEnabled {
		return most / 5
	}
	return most
}

// TestSeeds: many short runs with the usual faults. Every operation completes in some of them.
func TestSeeds(t *testing.T) {
	var total Result
	for seed := 1; seed <= runs(25); seed++ {
		r := check(t, Options{Seed: uint64(seed), Packets: 20_000, Faults: DefaultFaults})
		total.Add(&r)
		if t.Failed() {
			return
		}
	}
	for k := Kind(0); k < NumKinds; k++ {
		if total.Ops[k] == 0 {
			t.Errorf("no %v has completed", k)
		}
	}
	for name, n := range map[string]uint64{"dropped": total.Dropped, "duplicated": total.Duplicated,
		"reordered": total.Reordered, "corrupted": total.Corrupted, "delayed": total.Delayed,
		"retransmits": total.Counters.Retransmits, "attacks": total.Attacks, "renewals": total.Renewals,
		"grants": total.Grants, "RNR NAKs": total.Counters.SendRNRErr, "handovers": total.Counters.Handovers,
		"grace stalls": total.Counters.GraceStalls} {
		if n == 0 {
			t.Errorf("%s is zero", name)
		}
	}
}

// TestFaults: each fault alone, none at all, and so many that retries run out.
func TestFaults(t *testing.T) {
	for name, f := range map[string]sim.Faults{
		"none":     {},
		"drop":     {Drop: 0.03},
		"dup":      {Duplicate: 0.2},
		"reorder":  {Reorder: 0.1},
		"corrupt":  {Corrupt: 0.03},
		"truncate": {Truncate: 0.02},
		"delay":    {Delay: 0.01},
		"terrible": {Drop: 0.25, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.05, Truncate: 0.02, Delay: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := 100; seed < 100+runs(5); seed++ {
				check(t, Options{Seed: uint64(seed), Packets: 10_000, Faults: f})
				check(t, Options{Seed: uint64(seed), Packets: 10_000, Faults: f, Calm: true})
			}
		})
	}
}

// TestTrace: the same options give the same frames and completions, another seed others.
func TestTrace(t *testing.T) {
	digest := func(seed uint64) string {
		r := check(t, Options{Seed: seed, Packets: 5000, Faults: DefaultFaults})
		return fmt.Sprintf("%x", r.Trace)
	}
	a, b, c := digest(7), digest(7), digest(8)
	if a != b || a == c {
		t.Errorf("digests %s, %s for one seed, %s for another", a, b, c)
	}
}

// TestFaultScript: a script decides instead of random stalls.
func TestFaultScript(t *testing.T) {
	s, err := sim.ParseFaults(`
		drop RC_READ_REQUEST count=20
		corrupt n1>n2 count=100
		duplicate RC_FETCH_ADD count=10
		late RC_ACKNOWLEDGE after=50 count=5
		at 50us partition n1 n2 for 2ms
		at 100us sleep n2.0 for 1ms
		at 200us txfull n1.0 for 1ms
		at 300us txhold n2.0 for 1ms
		at 300us rnr n2 for 2ms
		at 400us stall n1 for 1ms`)
	if err != nil {
		t.Fatal(err)
	}
	for seed := uint64(1); seed <= 3; seed++ {
		r := check(t, Options{Seed: seed, Packets: 10_000, Script: s})
		if r.Dropped < 20 || r.Corrupted == 0 || r.Duplicated == 0 || r.Delayed == 0 {
			t.Errorf("seed %d: faults %+v", seed, r.Stats)
		}
	}
}
