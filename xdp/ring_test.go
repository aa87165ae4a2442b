package xdp

import (
	"fmt"
	"runtime"
	"testing"
)

// starts are ring indices to begin at: those where 32-bit arithmetic goes wrong, if it does.
var starts = []uint32{0, 1, 1<<31 - 3, 1<<32 - 64, 1<<32 - 3, 1<<32 - 1}

func TestRingRoomAndReady(t *testing.T) {
	for _, at := range starts {
		t.Run(fmt.Sprintf("at=%#x", at), func(t *testing.T) {
			r := heapRing[uint64](8, at)
			p, c := newProducer(r), newConsumer(r)
			if got := p.room(1); got != 8 {
				t.Fatalf("room of an empty ring is %d, want 8", got)
			}
			for i := range uint64(8) {
				p.put(i)
			}
			if got := p.room(1); got != 0 {
				t.Fatalf("room of a full ring is %d, want 0", got)
			}
			if got := c.ready(1); got != 0 {
				t.Fatalf("%d entries ready before publish, want 0", got)
			}
			p.publish()
			if got := c.ready(8); got != 8 {
				t.Fatalf("%d entries ready, want 8", got)
			}
			for i := range uint32(5) {
				if got := c.entries[(c.next+i)&c.mask]; got != uint64(i) {
					t.Fatalf("entry %d is %d", i, got)
				}
			}
			c.release(c.next + 5)
			if got := p.room(6); got != 5 {
				t.Fatalf("room after release of 5 is %d, want 5", got)
			}
			if p.drained() {
				t.Fatal("drained with 3 entries left")
			}
			c.release(c.next + 3)
			if !p.drained() {
				t.Fatal("not drained with all entries released")
			}
		})
	}
}

// TestRingCachedIndex shows that the shared index is read only when the private copy does not
// suffice.
func TestRingCachedIndex(t *testing.T) {
	r := heapRing[uint64](8, 1<<32-2)
	p, c := newProducer(r), newConsumer(r)
	for i := range uint64(4) {
		p.put(i)
	}
	p.publish()
	if got := c.ready(1); got != 4 {
		t.Fatalf("ready %d, want 4", got)
	}
	p.put(4)
	p.publish()
	if got := c.ready(4); got != 4 {
		t.Fatalf("ready(4) looked again: %d, want the cached 4", got)
	}
	if got := c.ready(5); got != 5 {
		t.Fatalf("ready(5) is %d, want 5", got)
	}
}

// TestRingModel drives a ring with batches of all sizes against a slice.
func TestRingModel(t *testing.T) {
	const size = 16
	for _, at := range starts {
		r := heapRing[desc](size, at)
		p, c := newProducer(r), newConsumer(r)
		var model []uint64
		next := uint64(0)
		for step := range 5000 {
			put := min(uint32(step*7%11), p.room(uint32(step*7%11)))
			for range put {
				p.put(desc{addr: next, len: uint32(next), options: 1})
				model = append(model, next)
				next++
			}
			p.publish()
			if got := c.ready(size); int(got) != len(model) {
				t.Fatalf("at %#x step %d: %d ready, want %d", at, step, got, len(model))
			}
			take := min(uint32(step*5%13), uint32(len(model)))
			for i := range take {
				d := c.entries[(c.next+i)&c.mask]
				if d.addr != model[i] || d.len != uint32(model[i]) {
					t.Fatalf("at %#x step %d: got %+v, want %d", at, step, d, model[i])
				}
			}
			c.release(c.next + take)
			model = model[take:]
			if got, want := p.room(size), uint32(size-len(model)); got != want {
				t.Fatalf("at %#x step %d: room %d, want %d", at, step, got, want)
			}
		}
		if next < 10*size {
			t.Fatalf("only %d entries went through", next)
		}
	}
}

// TestRingTwoGoroutines passes numbers from one goroutine to another across the wrap; under -race
// and on arm64 it fails if the index accesses do not order the entries.
func TestRingTwoGoroutines(t *testing.T) {
	const total = 100_000
	r := heapRing[desc](64, 1<<32-1000)
	go func() {
		p := newProducer(r)
		for i := uint64(0); i < total; {
			n := min(p.room(1), uint32(1+i%17), uint32(total-i))
			if n == 0 {
				runtime.Gosched()
				continue
			}
			for range n {
				p.put(desc{addr: i, len: uint32(i), options: uint32(i >> 3)})
				i++
			}
			p.publish()
		}
	}()
	c := newConsumer(r)
	for i := uint64(0); i < total; {
		n := c.ready(1)
		if n == 0 {
			runtime.Gosched()
			continue
		}
		for j := range n {
			want := desc{addr: i, len: uint32(i), options: uint32(i >> 3)}
			if got := c.entries[(c.next+j)&c.mask]; got != want {
				t.Fatalf("entry %d is %+v, want %+v", i, got, want)
			}
			i++
		}
		c.release(c.next + n)
	}
}

func TestRingNeedWakeup(t *testing.T) {
	r := heapRing[uint64](8, 0)
	p := newProducer(r)
	if p.needWakeup() {
		t.Fatal("wake-up wanted with the flag clear")
	}
	r.flags.Store(flagNeedWakeup)
	if !p.needWakeup() {
		t.Fatal("no wake-up wanted with the flag set")
	}
}

func BenchmarkRing(b *testing.B) {
	r := heapRing[desc](2048, 1<<32-1000)
	p, c := newProducer(r), newConsumer(r)
	for b.Loop() {
		if p.room(32) < 32 {
			b.Fatal("full")
		}
		for i := range uint64(32) {
			p.put(desc{addr: i, len: 64})
		}
		p.publish()
		n := c.ready(32)
		for i := range n {
			sink += int(c.entries[(c.next+i)&c.mask].len)
		}
		c.release(c.next + n)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/entry")
}
