package perf

import (
	"strings"
	"testing"
)

func newChecker(size int) *checker {
	p := make([]byte, size+patternSlack)
	fillPattern(p)
	return &checker{pattern: p, on: true}
}

// A slot's next message must differ from what it holds, whatever the size of the ring, and so must
// neighbours, other QPs' messages, and a message moved by any number of bytes.
func TestPatternDiffers(t *testing.T) {
	k := newChecker(64)
	first := func(qp int, n, slots uint64) byte { return k.pattern[shift(qp, n, slots)] }
	for slots := uint64(1); slots <= maxSlots; slots *= 2 {
		for n := range uint64(3 * patternSteps) {
			here, next := shift(0, n, slots), shift(0, n+slots, slots)
			if first(0, n, slots) == first(0, n+slots, slots) && here < next {
				t.Fatalf("%d slots: message %d and the next in its slot start alike", slots, n)
			}
			if here == next || here == shift(0, n+1, slots) || here == shift(1, n, slots) {
				t.Fatalf("%d slots: message %d has the same bytes as a neighbour", slots, n)
			}
		}
	}
	for by := 1; by < 64; by++ {
		got := k.pattern[by : by+64]
		wrong := *k
		wrong.check(append([]byte(nil), got...), 0, 0, 4)
		if wrong.wrong == 0 {
			t.Errorf("a message moved by %d bytes is taken for right", by)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name     string
		inject   int
		damage   func(b []byte)
		wrong    uint64
		first    string
		verified uint64
	}{
		{"right", 0, func([]byte) {}, 0, "", 200},
		{"one bit", 0, func(b []byte) { b[7] ^= 1 }, 1, "QP 2, message 5, byte 7 of 200", 200},
		{"lost tail", 0, func(b []byte) { clear(b[100:]) }, 100, "byte 100 of 200", 200},
		{"injected", 1, func([]byte) {}, 1, "byte 155 of 200", 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newChecker(200)
			k.inject = tt.inject
			at := shift(2, 5, 16)
			b := append([]byte(nil), k.pattern[at:at+200]...)
			tt.damage(b)
			k.check(b, 2, 5, 16)
			// A random byte may be 0 already: the count of a lost tail is a little lower.
			if k.wrong > tt.wrong || k.wrong < tt.wrong*9/10 || (k.wrong == 0) != (tt.wrong == 0) {
				t.Errorf("%d bytes wrong, want %d", k.wrong, tt.wrong)
			}
			if k.verified != tt.verified {
				t.Errorf("%d bytes verified, want %d", k.verified, tt.verified)
			}
			if !strings.Contains(k.first, tt.first) {
				t.Errorf("first difference %q, want %q in it", k.first, tt.first)
			}
			again := *k
			again.check(append([]byte(nil), k.pattern[at:at+200]...), 2, 5, 16)
			if again.wrong != k.wrong {
				t.Error("a right message after it counts as wrong")
			}
		})
	}
}

func TestCheckerOff(t *testing.T) {
	k := newChecker(8)
	k.on = false
	k.check(make([]byte, 8), 0, 0, 4)
	k.checkValue(1, 2, 0)
	k.flag()
	if k.verified != 0 || k.wrong != 0 {
		t.Errorf("%d verified, %d wrong without --verify", k.verified, k.wrong)
	}
}
