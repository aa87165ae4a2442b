package rxe

import "testing"

// TestTimeBack: a clock that goes back neither hangs the wheel nor loses a timer.
func TestTimeBack(t *testing.T) {
	var w wheel
	w.init(0)
	n := timerNode{qp: new(QP), level: -1}
	w.advance(10 << tickShift)
	w.set(&n, 9<<tickShift+5)
	if got := w.pop(9 << tickShift); got != &n {
		t.Fatalf("popped %v", got)
	}
	w.set(&n, 1000<<tickShift)
	w.advance(5 << tickShift)
	if got := w.pop(5 << tickShift); got != nil {
		t.Fatal("fired early")
	}
	w.advance(1002 << tickShift)
	if got := w.pop(1002 << tickShift); got != &n {
		t.Fatal("lost")
	}
}

// TestWheelDue: timers that are due when they are set may still be disarmed or moved.
func TestWheelDue(t *testing.T) {
	var w wheel
	w.init(0)
	if w.deadline() != Never {
		t.Fatal("an empty wheel has a deadline")
	}
	w.advance(10 << tickShift)
	n := timerNode{qp: new(QP), level: -1}
	for _, later := range []Time{Never, 20 << tickShift, Never - 1} {
		w.set(&n, 5<<tickShift)
		if w.deadline() > 10<<tickShift {
			t.Fatal("due later than now")
		}
		w.set(&n, later)
		if w.pop(11<<tickShift) != nil {
			t.Fatalf("moved to %d, and fired", later)
		}
		if at := w.deadline(); at-1<<tickShift > later { // early is allowed
			t.Fatalf("moved to %d, deadline %d", later, at)
		}
	}
	w.remove(&n)
	if w.deadline() != Never {
		t.Fatal("left in the wheel")
	}
}
