package mr

import (
	"errors"
	"testing"
)

// TestRegisterAfterFree: what was staged for an index does not reach its next owner.
func TestRegisterAfterFree(t *testing.T) {
	tab := New(2, 0, nil)
	key := allocFast(t, tab, 1)
	v := stage(t, tab, Region{Key: key, Access: remote}, make([]byte, 8))
	if _, f := tab.Unpublish(key.Index()); f != FaultNone {
		t.Fatal(f)
	}
	if err := tab.Free(key.Index()); err != nil {
		t.Fatal(err)
	}
	if next := allocFast(t, tab, 1); next.Index() != key.Index() {
		t.Fatalf("index %d", next.Index())
	}
	if f := tab.Register(v, 7); f != FaultKeyIndex {
		t.Errorf("got %v", f)
	}
}

// TestDeepPipeline: many registrations are captured before the first executes, each with its own
// list, key and geometry.
func TestDeepPipeline(t *testing.T) {
	const depth = 100
	tab := New(8, 0, nil)
	key := allocFast(t, tab, 1)
	mems, views := make([][]byte, depth), make([]*View, depth)
	for round := range 3 {
		for i := range depth {
			mems[i] = make([]byte, 8)
			key = key.Inc()
			views[i] = stage(t, tab, Region{Key: key, Access: remote, IOVA: uint64(i) << 12},
				mems[i])
		}
		for i, v := range views {
			if f := tab.Register(v, 7); f != FaultNone {
				t.Fatal(f)
			}
			if f := write(tab, v.Key(), uint64(i)<<12, []byte{byte(i + 1)}); f != FaultNone {
				t.Fatalf("round %d registration %d: %v", round, i, f)
			}
			invalidate(t, tab, v.Key())
		}
		for i, mem := range mems {
			if mem[0] != byte(i+1) {
				t.Errorf("round %d: memory %d holds %d", round, i, mem[0])
			}
		}
	}
	if n := len(*tab.pool(key.Index()).ring.Load()); n > 4*depth {
		t.Errorf("%d buffers for %d at once", n, depth)
	}
}

func TestPipelineBound(t *testing.T) {
	tab := New(8, 0, nil)
	key := allocFast(t, tab, 1)
	if _, err := tab.Map(key.Index(), [][]byte{make([]byte, 8)}); err != nil {
		t.Fatal(err)
	}
	nums := make(map[uint32]bool)
	for {
		num, err := tab.Stage(Region{Key: key, Length: 8})
		if errors.Is(err, ErrPipeline) {
			break
		}
		if err != nil || nums[num] {
			t.Fatalf("number %#x: %v", num, err)
		}
		nums[num] = true
	}
	if len(nums) < maxBuffers/2 {
		t.Errorf("only %d at once", len(nums))
	}
	for num := range nums {
		tab.Unstage(key.Index(), num)
		tab.Unstage(key.Index(), num)
	}
	for range maxBuffers / 2 {
		if _, err := tab.Stage(Region{Key: key, Length: 8}); err != nil {
			t.Fatalf("after Unstage: %v", err)
		}
	}
}

// TestBuffersWaitForGrace: neither a view nor a list is used again while a shard may hold it.
func TestBuffersWaitForGrace(t *testing.T) {
	g := NewGrace(1)
	tab := New(8, 0, g)
	key := allocFast(t, tab, 1)
	g.Enter(0)
	old := register(t, tab, Region{Key: key, Access: remote}, make([]byte, 8))
	seen := map[*View]bool{old: true, old.buf.free: true}
	lists := map[*List]bool{old.list: true}
	for range 20 {
		invalidate(t, tab, key)
		v := register(t, tab, Region{Key: key, Access: remote}, make([]byte, 8))
		if seen[v] || seen[v.buf.free] || lists[v.list] {
			t.Fatal("storage used again before grace")
		}
		seen[v], seen[v.buf.free], lists[v.list] = true, true, true
	}
	if old.Key() != key || old.Length() != 8 || old.List().Len() != 8 {
		t.Error("a view changed while a shard may hold it")
	}
	for range 20 {
		invalidate(t, tab, key)
		v := register(t, tab, Region{Key: key, Access: remote}, make([]byte, 8))
		if seen[v] && lists[v.list] {
			return
		}
		g.Quiesce(0)
	}
	t.Error("storage is not used again after grace")
}

// TestPairAllocations: registering and invalidating allocates nothing, mapping included.
func TestPairAllocations(t *testing.T) {
	g := NewGrace(1)
	tab := New(8, 0, g)
	g.Enter(0)
	key := allocFast(t, tab, 4)
	segs := [][]byte{make([]byte, 10), make([]byte, 4096), make([]byte, 20), make([]byte, 30)}
	src := make([]byte, 64)
	pair := func() {
		register(t, tab, Region{Key: key, Access: remote}, segs...)
		if f := write(tab, key, 4000, src); f != FaultNone {
			t.Fatal(f)
		}
		invalidate(t, tab, key)
		g.Start()
		key = key.Inc()
		g.Quiesce(0)
	}
	for range 20 {
		pair()
	}
	if n := testing.AllocsPerRun(1000, pair); n != 0 {
		t.Errorf("%v allocations a pair", n)
	}
}
