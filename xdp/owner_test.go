//go:build xdpdebug

package xdp

import (
	"strings"
	"testing"
)

// mustPanic runs f and wants a panic whose text holds want.
func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if got, _ := recover().(string); !strings.Contains(got, want) {
			t.Errorf("panic %q, want one with %q", got, want)
		}
	}()
	f()
}

func TestPairOwnerDoubleReceive(t *testing.T) {
	_, b, k := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 0)
	d := desc{addr: uint64(b.rxBase) + RXReserve, len: 60}
	k.side[1].rx.put(d)
	k.side[1].rx.put(d) // the kernel gives one chunk twice
	k.side[1].rx.publish()
	mustPanic(t, "goes from fill to rx, but its owner is rx", func() { b.Receive(8) })
}

func TestPairOwnerDoubleSubmit(t *testing.T) {
	a, _, k := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 0)
	k.manual = true
	sendPattern(t, a, 60)
	a.free = append(a.free, uint32(a.tx.entries[0].addr)) // one chunk in two places
	mustPanic(t, "goes from free to reserved, but its owner is tx", func() { a.Reserve() })
}

func TestPairOwnerDoubleFree(t *testing.T) {
	a, _, k := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 0)
	sendPattern(t, a, 60)
	a.Kick()
	a.Reap()
	a.state[0] = txLast // as if the table were wrong too
	k.side[0].comp.put(uint64(a.txBase))
	k.side[0].comp.publish()
	mustPanic(t, "goes from tx to free, but its owner is free", func() { a.Reap() })
}

func TestPairOwnerPoison(t *testing.T) {
	a, b, _ := newPair(t, Config{FillDepth: 8, TXFrames: 8}, 0)
	sendPattern(t, a, 60)
	a.Kick()
	b.Receive(1)
	head, _, _ := b.Packet(0)
	b.Release()
	if head[0] != poison || head[59] != poison {
		t.Error("a released frame was not overwritten")
	}
}
