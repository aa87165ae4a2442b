package mr

import (
	"math/rand/v2"
	"testing"
)

// benchTable publishes n user regions of one page each, all in PD 7, over the same memory. hot of
// them, spread over all indices, are returned in random order, and form a ring: the base of each
// view, which a check does not look at, is the key of the next.
func benchTable(tb testing.TB, n, hot int) (*Table, []Key) {
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
		if i%(n/hot) == 0 && len(ring) < hot {
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

// BenchmarkCheck measures one check of 64 bytes: always the same key, 1 K hot keys in a table of
// 1 M, any of 1 M. "chained" takes each key from the view before, as does "chase", which is nothing
// but the two dependent loads over the same memory. "stream" knows its keys ahead, as the packets
// of a batch bring them; "loads" is the two loads for these.
func BenchmarkCheck(b *testing.B) {
	for _, c := range []struct {
		name string
		hot  int
	}{{"1", 1}, {"1k_hot", 1024}, {"1m_random", MaxLimit - 1}} {
		tab, ring := benchTable(b, MaxLimit-1, c.hot)
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
