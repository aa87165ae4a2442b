package mr

import (
	"errors"
	"testing"
)

func TestAllocExhaustionAndReuse(t *testing.T) {
	const n = 10
	tab := New(n+1, 3, nil)
	keys := make([]Key, 0, n)
	for range n {
		key, err := tab.Alloc(KindUser, 1)
		if err != nil {
			t.Fatal(err)
		}
		if key.Index() == 0 {
			t.Fatal("index 0 given out")
		}
		keys = append(keys, key)
	}
	if _, err := tab.Alloc(KindUser, 1); !errors.Is(err, ErrExhausted) {
		t.Fatalf("got %v, want ErrExhausted", err)
	}
	if tab.Len() != n || tab.Limit() != n {
		t.Errorf("%d of %d in use", tab.Len(), tab.Limit())
	}
	for _, i := range []int{4, 2, 7} {
		if err := tab.Free(keys[i].Index()); err != nil {
			t.Fatal(err)
		}
	}
	if err := tab.Free(keys[4].Index()); !errors.Is(err, ErrKey) {
		t.Errorf("freed twice: %v", err)
	}
	for _, i := range []int{4, 2, 7} { // first freed, first used
		key, err := tab.Alloc(KindUser, 1)
		if err != nil {
			t.Fatal(err)
		}
		if key != keys[i].Inc() {
			t.Errorf("got %#x after %#x: want the same index and the next variant", key, keys[i])
		}
	}
	if _, err := tab.Alloc(KindUser, 0); !errors.Is(err, ErrPD) {
		t.Errorf("PD 0: %v", err)
	}
}

// TestReuseIsDelayed: a freed index rests while there are others.
func TestReuseIsDelayed(t *testing.T) {
	tab := New(MaxLimit, 0, nil)
	last := make(map[uint32]int)
	shortest := 1 << 30
	for i := range 3 * reuseDelay {
		key, err := tab.Alloc(KindUser, 1)
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := last[key.Index()]; ok {
			shortest = min(shortest, i-was)
		}
		last[key.Index()] = i
		if err := tab.Free(key.Index()); err != nil {
			t.Fatal(err)
		}
	}
	if shortest < reuseDelay || len(last) > reuseDelay+2 {
		t.Errorf("used again after %d, want %d; %d indices touched", shortest, reuseDelay,
			len(last))
	}
}

// TestWholeTable: all indices of the greatest table can be in use, and be given back.
func TestWholeTable(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("takes 200 MB, and alone")
	}
	tab := New(MaxLimit, 9, nil)
	list := NewList(make([]byte, 1))
	for i := range MaxLimit - 1 {
		key, err := tab.Alloc(KindUser, 1)
		if err != nil {
			t.Fatalf("index %d: %v", i, err)
		}
		v, err := NewView(Region{Key: key, PD: 1, Access: RemoteRead, Length: 1, List: list})
		if err != nil {
			t.Fatal(err)
		}
		if err := tab.Publish(v); err != nil {
			t.Fatal(err)
		}
		if v, f := tab.Check(key, 1, qpn, RemoteRead, 0, 1); f != FaultNone || v.Key() != key {
			t.Fatalf("key %#x: %v", key, f)
		}
	}
	if _, err := tab.Alloc(KindUser, 1); !errors.Is(err, ErrExhausted) {
		t.Errorf("got %v, want ErrExhausted", err)
	}
	for i := uint32(1); i < MaxLimit; i++ {
		if _, f := tab.Unpublish(i); f != FaultNone {
			t.Fatalf("index %d: %v", i, f)
		}
		if err := tab.Free(i); err != nil {
			t.Fatalf("index %d: %v", i, err)
		}
	}
	if tab.Len() != 0 {
		t.Errorf("%d left", tab.Len())
	}
}

// TestStaleKeyOfEarlierLife: neither the last key of an index nor its first matches its next life.
func TestStaleKeyOfEarlierLife(t *testing.T) {
	tab := New(2, 0, nil)
	first := allocFast(t, tab, 1)
	used := MakeKey(first.Index(), 200)
	register(t, tab, Region{Key: used, Access: RemoteRead}, make([]byte, 8))
	if _, f := tab.Unpublish(first.Index()); f != FaultNone {
		t.Fatal(f)
	}
	if err := tab.Free(first.Index()); err != nil {
		t.Fatal(err)
	}
	v := publish(t, tab, RemoteRead, 0, make([]byte, 8))
	if v.Key() != used.Inc() {
		t.Fatalf("got %#x, want %#x", v.Key(), used.Inc())
	}
	for _, key := range []Key{first, used} {
		if _, f := tab.Check(key, 7, qpn, RemoteRead, 0, 1); f != FaultVariant {
			t.Errorf("key %#x: %v", key, f)
		}
	}
}

func TestPublishRefuses(t *testing.T) {
	tab := New(8, 0, nil)
	v := publish(t, tab, RemoteRead, 0, make([]byte, 8))
	if err := tab.Publish(v); !errors.Is(err, ErrInUse) {
		t.Errorf("twice: %v", err)
	}
	fast := allocFast(t, tab, 1)
	foreign, err := NewView(Region{Key: fast, PD: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := tab.Publish(foreign); !errors.Is(err, ErrKey) {
		t.Errorf("over a fast region: %v", err)
	}
	never, err := NewView(Region{Key: MakeKey(7, 0), PD: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := tab.Publish(never); !errors.Is(err, ErrKey) {
		t.Errorf("never allocated: %v", err)
	}
}

// TestFreeWaits: an index cannot be freed while it is published or a shard may hold its view.
func TestFreeWaits(t *testing.T) {
	g := NewGrace(2)
	tab := New(8, 0, g)
	v := publish(t, tab, RemoteRead, 0, make([]byte, 8))
	index := v.Key().Index()
	if err := tab.Free(index); !errors.Is(err, ErrInUse) {
		t.Errorf("published: %v", err)
	}
	g.Enter(1)
	if old, f := tab.Unpublish(index); f != FaultNone || old != v {
		t.Fatalf("unpublish: %v", f)
	}
	if _, f := tab.Unpublish(index); f != FaultKeyIndex {
		t.Errorf("unpublish again: %v", f)
	}
	if err := tab.Free(index); !errors.Is(err, ErrInUse) {
		t.Errorf("before grace: %v", err)
	}
	g.Quiesce(1)
	if err := tab.Free(index); err != nil {
		t.Errorf("after grace: %v", err)
	}
	if err := tab.Free(0); !errors.Is(err, ErrKey) {
		t.Errorf("index 0: %v", err)
	}
	if _, f := tab.Unpublish(0); f != FaultKeyIndex {
		t.Errorf("unpublish 0: %v", f)
	}
}
