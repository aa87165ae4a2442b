package soak

import "github.com/roxie-rdma/roxie/rxe/internal/mutant"

// Mutant is a bug planted in the engine, for Plant.
type Mutant = mutant.Info

// Mutants lists the bugs of this build: none without the build tag mutants.
func Mutants() []Mutant { return mutant.List() }

// Plant switches a bug on for all that runs from now on, and all others off; the empty name switches
// all off. It is false for a name that Mutants does not list. No run may be under way.
func Plant(name string) (known bool) { return mutant.Set(name) }
