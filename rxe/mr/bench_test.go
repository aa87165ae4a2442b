package mr

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// benchTable publishes n user regions of one page each, all in PD 7, over the same memory. Every
// step-th of them, hot in all, is returned, in random order. They form a ring: the base of each
// view, which a check does not look at, is the key of the next.
func benchTable(tb testing.TB, n, hot, step int) (*Table, []Key) {
	tb.Helper()
	tab := New(MaxLimit, 1, nil)
	list := NewList(make([]byte, 4096))
	var ring []Key
	for i := range n {
		key, err := tab.Alloc(KindUser, 7)
		if err != nil {
			tb.Fatal(err)
		}
		v, err := NewView(Region{Key: key, PD: 7, Access: LocalWrite | RemoteWrite, IOVA: 0x1000,
			Length: 4096, List: list})
		if err != nil {
			tb.Fatal(err)
		}
		if err := tab.Publish(v); err != nil {
			tb.Fatal(err)
		}
		if i%step == 0 && len(ring) < hot {
			ring = append(ring, key)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(hot, func(i, j int) { ring[i], ring[j] = ring[j], ring[i] })
	for i, key := range ring {
		tab.load(key.Index()).base = uint64(ring[(i+1)%hot])
	}
	return tab, ring
}

// BenchmarkCheck measures one check of 64 bytes: always the same key, 1 K hot keys in a table of 1
// M (allocated one after the other, or "spread" over the table, where each has pages of its own and
// address translation counts), any of 1 M. "chained" takes each key from the view before, as does
// "chase", which is nothing but the two dependent loads over the same memory. "stream" knows its
// keys ahead, as the packets of a batch bring them; "loads" is the two loads for these.
func BenchmarkCheck(b *testing.B) {
	for _, c := range []struct {
		name string
		hot  int
		step int
	}{{"1", 1, 1}, {"1k_hot", 1024, 1}, {"1k_spread", 1024, 1023}, {"1m_random", MaxLimit - 1, 1}} {
		tab, ring := benchTable(b, MaxLimit-1, c.hot, c.step)
		entries := flatten(tab)
		b.Run("chained/"+c.name, func(b *testing.B) {
			key := ring[0]
			for range b.N {
				v, f := tab.Check(key, 7, 17, RemoteWrite, 0x1800, 64)
				if f != FaultNone {
					b.Fatal(f)
				}
				key = Key(v.base)
			}
		})
		b.Run("chase/"+c.name, func(b *testing.B) {
			key := ring[0]
			for range b.N {
				key = Key(entries[key.Index()].base)
			}
			sink = uint64(key)
		})
		b.Run("stream/"+c.name, func(b *testing.B) {
			for i, n := 0, 0; n < b.N; n++ {
				if _, f := tab.Check(ring[i], 7, 17, RemoteWrite, 0x1800, 64); f != FaultNone {
					b.Fatal(f)
				}
				if i++; i == len(ring) {
					i = 0
				}
			}
		})
		b.Run("loads/"+c.name, func(b *testing.B) {
			sum := uint64(0)
			for i, n := 0, 0; n < b.N; n++ {
				sum += entries[ring[i].Index()].base
				if i++; i == len(ring) {
					i = 0
				}
			}
			sink = sum
		})
	}
}

var sink uint64

// flatten returns the entries of a table as a plain slice.
func flatten(tab *Table) []*View {
	out := make([]*View, MaxLimit)
	for i := range out {
		out[i] = tab.load(uint32(i))
	}
	return out
}

// BenchmarkPair measures what one REG_MR and LOCAL_INV cost here, staging, epoch and quiescent
// point included: with the list mapped once, and mapped anew each time.
func BenchmarkPair(b *testing.B) {
	for _, c := range []struct {
		name string
		segs int
		anew bool
	}{{"mapped_once", 1, false}, {"mapped_1", 1, true}, {"mapped_16_pages", 16, true}} {
		b.Run(c.name, func(b *testing.B) {
			g := NewGrace(4)
			tab := New(MaxLimit, 1, g)
			g.Enter(0)
			key := allocFast(b, tab, c.segs)
			segs := make([][]byte, c.segs)
			for i := range segs {
				segs[i] = make([]byte, 4096)
			}
			n, err := tab.Map(key.Index(), segs)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for range b.N {
				if c.anew {
					if _, err := tab.Map(key.Index(), segs); err != nil {
						b.Fatal(err)
					}
				}
				num, err := tab.Stage(Region{Key: key, Access: remote, IOVA: 0x1000, Length: n})
				if err != nil {
					b.Fatal(err)
				}
				if f := tab.Register(tab.Staged(key.Index(), num), 7); f != FaultNone {
					b.Fatal(f)
				}
				if _, f := tab.Invalidate(key, 7, 17); f != FaultNone {
					b.Fatal(f)
				}
				e := g.Start()
				g.Quiesce(0)
				if !g.Passed(e) {
					b.Fatal("not passed")
				}
				key = key.Inc()
			}
		})
	}
}

// BenchmarkCheckInStorm measures the check of 1 K keys while another shard registers and
// invalidates a region without pause; "calm" is the same without.
func BenchmarkCheckInStorm(b *testing.B) {
	for _, name := range []string{"calm", "storm"} {
		b.Run(name, func(b *testing.B) {
			g := NewGrace(2)
			tab, ring := benchTable(b, 1<<14, 1<<10, 1)
			tab.grace = g
			key := allocFast(b, tab, 1)
			if _, err := tab.Map(key.Index(), [][]byte{make([]byte, 8)}); err != nil {
				b.Fatal(err)
			}
			var stop atomic.Bool
			var end sync.WaitGroup
			if name == "storm" {
				end.Go(func() { storm(tab, g, key, &stop) })
			}
			g.Enter(0)
			for i, n := 0, 0; n < b.N; n++ {
				if _, f := tab.Check(ring[i], 7, 17, RemoteWrite, 0x1800, 64); f != FaultNone {
					b.Fatal(f)
				}
				if i++; i == len(ring) {
					i = 0
				}
				if n%64 == 0 {
					g.Quiesce(0)
				}
			}
			g.Leave(0)
			stop.Store(true)
			end.Wait()
		})
	}
}

// storm registers and invalidates in batches of 64, as a shard does that has nothing else to do.
func storm(tab *Table, g *Grace, key Key, stop *atomic.Bool) {
	g.Enter(1)
	for n := 1; !stop.Load(); n++ {
		num, err := tab.Stage(Region{Key: key, Length: 8})
		if err == nil { // else the other shard has not run for thousands of rounds
			tab.Register(tab.Staged(key.Index(), num), 7)
			tab.Invalidate(key, 7, 17)
		}
		if n%64 == 0 {
			g.Passed(g.Next())
			g.Quiesce(1)
		}
	}
	g.Leave(1)
}

// BenchmarkQuiesce measures the cost of a batch: one quiescent point when nobody waits.
func BenchmarkQuiesce(b *testing.B) {
	g := NewGrace(4)
	g.Enter(0)
	for range b.N {
		g.Quiesce(0)
	}
}

// BenchmarkList measures the copy of one packet's payload.
func BenchmarkList(b *testing.B) {
	page := make([]byte, 4096)
	segs := [][]byte{page[:3000]}
	for range 254 {
		segs = append(segs, page)
	}
	uneven := append([][]byte{page[:100], page[:200]}, segs...)
	src := make([]byte, 4096)
	for _, c := range []struct {
		name string
		l    *List
	}{{"one", NewList(make([]byte, 1<<20))}, {"pages", NewList(segs...)}, {"uneven",
		NewList(uneven...)}} {
		for _, n := range []int{64, 4096} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for i := range b.N {
					if !c.l.CopyIn(uint64(i)%200*4096+1000, src[:n]) {
						b.Fatal("out of range")
					}
				}
			})
		}
		b.Run(c.name+"/last_64", func(b *testing.B) {
			for i := range b.N {
				if !c.l.CopyInLast(uint64(i)%200*4096+1000, src[:64]) {
					b.Fatal("out of range")
				}
			}
		})
		b.Run(c.name+"/fetch_add", func(b *testing.B) {
			for i := range b.N {
				if _, ok := c.l.FetchAdd(uint64(i)%200*4096+1000, 1); !ok {
					b.Fatal("out of range")
				}
			}
		})
	}
}
