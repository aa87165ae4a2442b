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
