package keyrules

import (
	_ "embed" // what was measured
	"encoding/json"
	"fmt"
)

// Verdict is how an owner did.
type Verdict string

// The verdicts.
const (
	Passes Verdict = "passes"
	Status Verdict = "status wrong" // refused, but the application is told something else
	Fails  Verdict = "**fails**"
)

// Verdict is the outcome in a word.
func (o *Outcome) Verdict() Verdict {
	switch {
	case o.Pass:
		return Passes
	case o.Refused:
		return Status
	}
	return Fails
}

// Record is what Linux's rdma_rxe did with the same steps, the peer being roxie.
type Record struct {
	Kernel string // uname -r
	Rules  []Measured
}

// Measured is what one rule gave.
type Measured struct {
	ID, Rule, Got string
	Verdict       Verdict
}

// NewRecord makes a record of outcomes.
func NewRecord(kernel string, out []Outcome) *Record {
	r := &Record{Kernel: kernel}
	for i := range out {
		o := &out[i]
		r.Rules = append(r.Rules, Measured{o.ID, o.Rule, o.Got, o.Verdict()})
	}
	return r
}

// JSON is the record as it is kept in linux.json.
func (r *Record) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "\t")
	return append(b, '\n'), err
}

// find is what a rule gave.
func (r *Record) find(id, rule string) Measured {
	for _, m := range r.Rules {
		if m.ID == id && m.Rule == rule {
			return m
		}
	}
	return Measured{}
}

// Differs says where outcomes are judged otherwise than the record has it.
func (r *Record) Differs(out []Outcome) (where []string) {
	for i := range out {
		o := &out[i]
		if was := r.find(o.ID, o.Rule); was.Verdict != o.Verdict() {
			where = append(where, fmt.Sprintf("%s: %s: %q (%s), recorded %q (%s)", o.ID, o.Rule, o.Got,
				o.Verdict(), was.Got, was.Verdict))
		}
	}
	return where
}

//go:embed linux.json
var recorded []byte

// Linux is the record that was made last (make keys-guest).
func Linux() *Record {
	r := new(Record)
	if err := json.Unmarshal(recorded, r); err != nil {
		panic(fmt.Sprintf("linux.json: %v", err)) // a test reads it
	}
	return r
}
