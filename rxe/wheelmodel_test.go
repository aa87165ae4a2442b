package rxe

import (
	"math"
	"testing"
)

// TestWheel compares the timing wheel with a list: random timers near and far are set, moved both
// ways, disarmed and taken out, over steps of nanoseconds to months. None fires early, none later than
// a tick after it is due, and deadline is never late.
func TestWheel(t *testing.T) {
	const nodes, tick = 40, Time(1) << tickShift
	for seed := uint64(1); seed <= 60; seed++ {
		r := seed * 0x9e3779b97f4a7c15
		next := func(n uint64) uint64 {
			r = r*6364136223846793005 + 1442695040888963407
			return r >> 20 % n
		}
		span := func() Time { return Time(next(1000)+1) << next(46) } // up to 2 years
		now := Time(next(1 << 40))
		var w wheel
		w.init(now)
		ns := make([]timerNode, nodes)
		want := make([]Time, nodes) // Never: not armed
		for i := range ns {
			ns[i] = timerNode{qp: &QP{bell: uint32(i)}, at: Never, level: -1}
			want[i] = Never
		}
		for step := range 3000 {
			i := next(nodes)
			switch next(8) {
			case 0, 1, 2:
				want[i] = now + span()
				w.set(&ns[i], want[i])
			case 3:
				if want[i] != Never { // a little later, as an ACK moves it
					want[i] += Time(next(100_000))
					w.set(&ns[i], want[i])
				}
			case 4:
				want[i] = Never
				w.clear(&ns[i])
			case 5:
				want[i] = Never
				w.remove(&ns[i])
			default:
				to := now + span()
				if d := w.deadline(); next(2) == 0 && d != Never {
					to = max(d, now) // as a driver that sleeps
				}
				now = to
			}
			earliest := Never
			for _, at := range want {
				earliest = min(earliest, at)
			}
			if d := w.deadline(); d > earliest+tick && earliest < math.MaxInt64-2*tick {
				t.Fatalf("seed %d, step %d: deadline %d, a timer is due at %d", seed, step, d, earliest)
			}
			w.advance(now)
			for n := w.pop(now); n != nil; n = w.pop(now) {
				i := n.qp.bell
				if want[i] > now {
					t.Fatalf("seed %d, step %d: timer fired at %d, due at %d", seed, step, now, want[i])
				}
				want[i] = Never
			}
			for i, at := range want {
				if at <= now-tick {
					t.Fatalf("seed %d, step %d: timer %d, due at %d, has not fired at %d", seed, step, i, at, now)
				}
			}
		}
	}
}

// TestWheelForever: a deadline at the end of time is none, and does not disturb others.
func TestWheelForever(t *testing.T) {
	var w wheel
	w.init(0)
	far := timerNode{qp: &QP{}, at: Never, level: -1}
	near := timerNode{qp: &QP{}, at: Never, level: -1}
	w.set(&far, Never-1)
	if d := w.deadline(); d < 1<<50 {
		t.Fatalf("deadline %d", d)
	}
	w.set(&near, 1_000_000)
	if d := w.deadline(); d > 1_000_000+1<<tickShift {
		t.Fatalf("deadline %d", d)
	}
	w.advance(2_000_000)
	if n := w.pop(2_000_000); n != &near || w.pop(2_000_000) != nil {
		t.Fatal("another timer fired")
	}
}
