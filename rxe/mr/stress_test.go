package mr

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// invalidation is an application that registers a buffer, invalidates it, and writes it without any
// synchronisation once the invalidation is complete, while two shards write through whatever key is
// in force. Under the race detector any access of a shard after the completion is a report.
type invalidation struct {
	grace   *Grace // of the shards
	tab     *Table
	noWait  bool // mistake: the application does not wait for grace
	noTouch bool // and it leaves its memory alone, so that only views can race
	rounds  int
}

func (in *invalidation) run(tb testing.TB) (writes int64) {
	key := allocFast(tb, in.tab, 3)
	mem := make([]byte, 256)
	segs := [][]byte{mem[:10], mem[10:200], mem[200:]}
	var current atomic.Uint32
	var stop atomic.Bool
	var count atomic.Int64
	var end sync.WaitGroup
	for shard := range 2 {
		end.Go(func() {
			src := make([]byte, 100) // each shard has a half of its own: writes of two do race
			in.grace.Enter(shard)
			for i := 0; !stop.Load(); i++ {
				if f := write(in.tab, Key(current.Load()), 0x1000+uint64(128*shard+i%28),
					src); f == FaultNone {
					count.Add(1)
				}
				if i%100 == 99 { // now and then offline
					in.grace.Leave(shard)
					runtime.Gosched()
					in.grace.Enter(shard)
				} else {
					in.grace.Quiesce(shard)
				}
			}
			in.grace.Leave(shard)
		})
	}
	// The application's shard is the third.
	in.grace.Enter(2)
	for range in.rounds {
		key = key.Inc()
		register(tb, in.tab, Region{Key: key, Access: remote, IOVA: 0x1000}, segs...)
		current.Store(uint32(key))
		for was := count.Load(); count.Load() < was+2; {
			in.grace.Quiesce(2)
			runtime.Gosched()
		}
		invalidate(tb, in.tab, key)
		for e := in.grace.Start(); !in.noWait && !in.grace.Passed(e); {
			in.grace.Quiesce(2)
			runtime.Gosched()
		}
		for i := range mem {
			if !in.noTouch {
				mem[i]++
			}
		}
	}
	in.grace.Leave(2)
	stop.Store(true)
	end.Wait()
	return count.Load()
}

// rounds is n, or a tenth of it under the race detector, which is slow and needs no luck.
func rounds(n int) int {
	if raceEnabled {
		return n / 10
	}
	return n
}

// TestGraceBeforeReuse: with grace, no shard touches the memory or a recycled view.
func TestGraceBeforeReuse(t *testing.T) {
	g := NewGrace(3)
	in := &invalidation{grace: g, tab: New(8, 0, g), rounds: rounds(2000)}
	t.Logf("%d writes", in.run(t))
}

// TestStress lets three shards register, invalidate, bind and check at random, over one region and
// three windows. In the end the region counts the windows that are bound, no more and no less.
func TestStress(t *testing.T) {
	g := NewGrace(3)
	tab := New(16, 0, g)
	region := allocFast(t, tab, 1)
	index := region.Index()
	if _, err := tab.Map(index, [][]byte{make([]byte, 64)}); err != nil {
		t.Fatal(err)
	}
	windows := make([]uint32, 3)
	for i := range windows {
		kind := KindWindow2
		if i == 0 {
			kind = KindWindow1
		}
		windows[i] = allocWindow(t, tab, kind).Index()
	}
	var end sync.WaitGroup
	var bound, closed atomic.Int64
	for shard := range 3 {
		end.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(shard)))
			g.Enter(shard)
			for i := range rounds(20000) {
				// The keys in force are known to nobody: read them as a snooper would.
				parent := tab.load(index).Key()
				w := windows[rng.IntN(len(windows))]
				window := tab.load(w).Key()
				switch rng.IntN(5) {
				case 0:
					num, err := tab.Stage(Region{Key: parent.Inc(), Access: remote, Length: 64})
					if err != nil {
						t.Error(err)
						return
					}
					tab.Register(tab.Staged(index, num), 7)
				case 1:
					if old, f := tab.Invalidate(parent, 7, qpn); f == FaultNone && old != nil {
						closed.Add(1)
					}
				case 2:
					num, err := tab.StageBind(w)
					if err != nil {
						t.Error(err)
						return
					}
					b := Bind{Window: window, Key: window.Inc(), Parent: parent, Access: RemoteRead,
						Length: uint64(rng.IntN(3))}
					f := FaultNone
					if w == windows[0] {
						_, f = tab.Bind1(num, &b, 7)
					} else {
						f = tab.Bind2(num, &b, 7, qpn)
					}
					if f == FaultNone {
						bound.Add(1)
					}
				case 3:
					tab.Invalidate(window, 7, qpn)
				case 4:
					if v, f := tab.Check(window, 7, qpn, RemoteRead, 0, 1); f == FaultNone {
						v.List().CopyOut(v.Offset(0), make([]byte, 1))
					}
				}
				if i%7 == 0 {
					g.Quiesce(shard)
				}
			}
			g.Leave(shard)
		})
	}
	end.Wait()
	want := 0
	for _, w := range windows {
		if tab.Lookup(w).Parent == index {
			want++
		}
	}
	if got := tab.Lookup(index).Bound; got != want {
		t.Errorf("the region counts %d windows, %d are bound", got, want)
	}
	if bound.Load() == 0 || closed.Load() == 0 {
		t.Errorf("%d bindings, %d invalidations: too few meet", bound.Load(), closed.Load())
	}
	t.Logf("%d bindings, %d invalidations", bound.Load(), closed.Load())
}
