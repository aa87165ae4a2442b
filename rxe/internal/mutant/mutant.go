// Package mutant holds planted bugs, to prove that the simulation finds them. Each is a condition in
// the engine. In normal builds the conditions are constants and false: the compiler leaves nothing of
// them. The build tag mutants makes them variables, which Set switches on.
package mutant

// Info describes a planted bug.
type Info struct {
	Name  string // as given to roxie sim --mutant
	About string // what is wrong
}
