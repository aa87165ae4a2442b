package sim

import "github.com/roxie-rdma/roxie/rxe"

// Lot decides what becomes of frames on a wire that is not a Fabric's: one in real time, between
// programs that run. One goroutine at a time uses it.
type Lot struct {
	Stats Stats // Packets, and what was done to them

	faults Faults
	dice   dice
	rng    *Rand
}

// Arrival is one arrival of a frame at its destination.
type Arrival struct {
	After rxe.Time // than an undisturbed frame
	Frame []byte
}

// NewLot makes a lot whose draws the seed decides. Faults.Script is not used: see Draw.
func NewLot(seed uint64, x Faults) *Lot {
	l := &Lot{rng: NewRand(seed)}
	l.SetFaults(x)
	return l
}

// SetFaults replaces the fault model from now on.
func (l *Lot) SetFaults(x Faults) {
	x.defaults()
	l.faults, l.dice = x, newDice(&x)
}

// Draw decides about one frame: where v is Chance by the probabilities, else by v. It returns how the
// frame arrives, in copies that are the caller's: not at all, once, or twice. b is only read.
func (l *Lot) Draw(v Verdict, b []byte) (out []Arrival) {
	x := &l.faults
	l.Stats.Packets++
	what := v.fate()
	if v == Chance {
		what = l.dice.roll(l.rng)
	}
	if what.has(fateDrop) {
		l.Stats.Dropped++
		return nil
	}
	first := Arrival{Frame: append([]byte(nil), b...)}
	if what.has(fateDuplicate) {
		l.Stats.Duplicated++
		late := x.ReorderBy
		if v == Echo {
			late = x.DelayBy
		}
		out = append(out, Arrival{l.upTo(late), append([]byte(nil), b...)})
	}
	if what.has(fateCorrupt) {
		l.Stats.Corrupted++
		bit := l.rng.Intn((len(b) - 14) * 8)
		first.Frame[14+bit/8] ^= 1 << (bit % 8)
	}
	if what.has(fateTruncate) {
		l.Stats.Truncated++
		first.Frame = first.Frame[:14+l.rng.Intn(len(b)-14)]
	}
	switch {
	case what.has(fateReorder):
		l.Stats.Reordered++
		first.After = l.upTo(x.ReorderBy)
	case what.has(fateLate):
		l.Stats.Delayed++
		first.After = x.DelayBy
	case what.has(fateDelay):
		l.Stats.Delayed++
		first.After = l.upTo(x.DelayBy)
	}
	return append(out, first)
}

func (l *Lot) upTo(d rxe.Time) rxe.Time { return 1 + rxe.Time(l.rng.Intn(int(d))) }
