package mr

import (
	"bytes"
	"errors"
	"testing"
)

const qpn = 17

func allocFast(tb testing.TB, tab *Table, maxSegs int) Key {
	tb.Helper()
	key, err := tab.AllocFast(7, maxSegs)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// stage maps segs and stages all of them under r.
func stage(tb testing.TB, tab *Table, r Region, segs ...[]byte) *View {
	tb.Helper()
	n, err := tab.Map(r.Key.Index(), segs)
	if err != nil {
		tb.Fatal(err)
	}
	r.Length = n
	return restage(tb, tab, r)
}

// restage stages r over the list mapped last.
func restage(tb testing.TB, tab *Table, r Region) *View {
	tb.Helper()
	num, err := tab.Stage(r)
	if err != nil {
		tb.Fatal(err)
	}
	v := tab.Staged(r.Key.Index(), num)
	if v == nil {
		tb.Fatal("not staged")
	}
	return v
}

func register(tb testing.TB, tab *Table, r Region, segs ...[]byte) *View {
	tb.Helper()
	v := stage(tb, tab, r, segs...)
	if f := tab.Register(v, 7); f != FaultNone {
		tb.Fatalf("register: %v", f)
	}
	return v
}

func invalidate(tb testing.TB, tab *Table, key Key) {
	tb.Helper()
	if _, f := tab.Invalidate(key, 7, qpn); f != FaultNone {
		tb.Fatalf("invalidate %#x: %v", key, f)
	}
}

// write writes through a key as a packet does.
func write(tab *Table, key Key, va uint64, src []byte) Fault {
	v, f := tab.Check(key, 7, qpn, RemoteWrite, va, uint64(len(src)))
	if f == FaultNone && !v.List().CopyIn(v.Offset(va), src) {
		panic("an accepted write leaves the list")
	}
	return f
}

const remote = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | MWBind

// TestF2: map once, then REG_MR and LOCAL_INV without a new list.
func TestF2RegisterAgainWithoutMapping(t *testing.T) {
	tab := New(8, 0, nil)
	key, mem := allocFast(t, tab, 1), make([]byte, 64)
	if _, err := tab.Map(key.Index(), [][]byte{mem}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if i%2 == 0 {
			key = key.Inc()
		}
		v := restage(t, tab, Region{Key: key, Access: remote, IOVA: 0x1000, Length: 64})
		if f := tab.Register(v, 7); f != FaultNone {
			t.Fatal(f)
		}
		if f := write(tab, key, 0x1000, []byte{byte(i)}); f != FaultNone || mem[0] != byte(i) {
			t.Fatalf("round %d: %v, byte %d", i, f, mem[0])
		}
		invalidate(t, tab, key)
		if f := write(tab, key, 0x1000, []byte{0xff}); f != FaultState || mem[0] != byte(i) {
			t.Fatalf("round %d after LOCAL_INV: %v, byte %d", i, f, mem[0])
		}
	}
	if n := len(*tab.pool(key.Index()).ring.Load()); n > 4 {
		t.Errorf("%d buffers for one registration at a time", n)
	}
}

// TestF4F5: what the application maps and stages is not seen before REG_MR executes, and what is
// registered keeps its memory and geometry.
func TestF4F5OldGeometryUntilRegistered(t *testing.T) {
	tab := New(8, 0, nil)
	k := allocFast(t, tab, 4)
	a, b := bytes.Repeat([]byte{0xaa}, 64), bytes.Repeat([]byte{0xbb}, 128)
	register(t, tab, Region{Key: k, Access: remote, IOVA: 0x1000}, a)
	next := stage(t, tab, Region{Key: k.Inc(), Access: remote, IOVA: 0x8000}, b[:100], b[100:])

	check := func(when string, key Key, va, n uint64, want Fault) {
		t.Helper()
		if f := write(tab, key, va, bytes.Repeat([]byte{1}, int(n))); f != want {
			t.Errorf("%s: key %#x at %#x: got %v, want %v", when, key, va, f, want)
		}
	}
	check("before", k, 0x1000, 64, FaultNone)
	check("before", k, 0x1000, 65, FaultRange)
	check("before", k, 0x8000, 1, FaultRange)
	check("before", k.Inc(), 0x8000, 1, FaultVariant) // F3
	if !bytes.Equal(a, bytes.Repeat([]byte{1}, 64)) || !bytes.Equal(b,
		bytes.Repeat([]byte{0xbb}, 128)) {
		t.Fatal("the old key does not reach the old memory alone")
	}
	invalidate(t, tab, k) // F6
	check("between", k, 0x1000, 1, FaultState)
	check("between", k.Inc(), 0x8000, 1, FaultVariant)
	if f := tab.Register(next, 7); f != FaultNone {
		t.Fatal(f)
	}
	check("after", k, 0x1000, 1, FaultVariant)
	check("after", k.Inc(), 0x1000, 1, FaultRange)
	check("after", k.Inc(), 0x8000, 128, FaultNone)
	if !bytes.Equal(b, bytes.Repeat([]byte{1}, 128)) {
		t.Error("the new key does not reach the new memory")
	}
}

// TestF8: invalidations that are refused leave everything as it is.
func TestF8InvalidateRefuses(t *testing.T) {
	tab := New(16, 0, nil)
	fast, bound := allocFast(t, tab, 1), allocFast(t, tab, 1)
	register(t, tab, Region{Key: fast, Access: remote}, make([]byte, 8))
	register(t, tab, Region{Key: bound, Access: remote}, make([]byte, 8))
	user := publish(t, tab, remote, 0, make([]byte, 8)).Key()
	w1 := bind(t, tab, Bind{Window: allocWindow(t, tab, KindWindow1), Parent: bound,
		Access: RemoteRead, Length: 8})
	w2 := bind(t, tab, Bind{Window: allocWindow(t, tab, KindWindow2), Parent: bound,
		Access: RemoteRead, Length: 8})
	freeWindow := allocWindow(t, tab, KindWindow2)
	for _, c := range []struct {
		name string
		key  Key
		pd   PD
		qpn  uint32
		want Fault
	}{
		{"key 0", 0, 7, qpn, FaultKeyIndex},
		{"never allocated", MakeKey(15, 0), 7, qpn, FaultKeyIndex},
		{"out of the table", 0xffffffff, 7, qpn, FaultKeyIndex},
		{"wrong variant", fast.Inc(), 7, qpn, FaultVariant},
		{"other PD", fast, 8, qpn, FaultPD}, // X6, X10c
		{"user region", user, 7, qpn, FaultKind},
		{"type 1 window", w1, 7, qpn, FaultKind},                // W4
		{"type 2 window, other QP", w2, 7, qpn + 1, FaultQP},    // WX
		{"type 2 window, other PD", w2, 8, qpn, FaultPD},        // WX
		{"type 2 window, free", freeWindow, 7, qpn, FaultState}, // PROTOCOL 3.2 item 6
		{"region with windows", bound, 7, qpn, FaultBound},
	} {
		before := tab.Lookup(c.key.Index())
		if old, f := tab.Invalidate(c.key, c.pd, c.qpn); f != c.want || old != nil {
			t.Errorf("%s: got %v, want %v", c.name, f, c.want)
		}
		if after := tab.Lookup(c.key.Index()); after != before {
			t.Errorf("%s: %+v became %+v", c.name, before, after)
		}
	}
	for _, key := range []Key{fast, bound, user} {
		if _, f := tab.Check(key, 7, qpn, RemoteWrite, 0, 8); f != FaultNone {
			t.Errorf("key %#x: %v", key, f)
		}
	}
}

// TestInvalidateTwice: a free fast region with the right key is no fault, and nothing is replaced.
func TestInvalidateTwice(t *testing.T) {
	tab := New(8, 0, nil)
	key := allocFast(t, tab, 1)
	invalidate(t, tab, key) // never registered
	v := register(t, tab, Region{Key: key, Access: remote}, make([]byte, 8))
	if old, f := tab.Invalidate(key, 7, qpn); f != FaultNone || old != v {
		t.Errorf("first: %v", f)
	}
	if old, f := tab.Invalidate(key, 7, qpn); f != FaultNone || old != nil {
		t.Errorf("second: %v", f)
	}
	if _, f := tab.Invalidate(key.Inc(), 7, qpn); f != FaultVariant {
		t.Errorf("another variant: %v", f)
	}
}

// TestF9: a region with local rights only is invalidated by its key.
func TestF9LocalOnly(t *testing.T) {
	tab := New(8, 0, nil)
	key := allocFast(t, tab, 1)
	register(t, tab, Region{Key: key, Access: LocalWrite}, make([]byte, 8))
	if f := write(tab, key, 0, []byte{1}); f != FaultAccess {
		t.Errorf("remote write: %v", f)
	}
	invalidate(t, tab, key)
}

// TestF14: REG_MR that is refused publishes nothing.
func TestF14RegisterRefuses(t *testing.T) {
	tab := New(8, 0, nil)
	a, b := allocFast(t, tab, 1), allocFast(t, tab, 1)
	mem := make([]byte, 8)

	v := stage(t, tab, Region{Key: a, Access: remote}, mem)
	if f := tab.Register(v, 8); f != FaultPD {
		t.Errorf("other PD: %v", f)
	}
	if f := tab.Register(v, 7); f != FaultPending {
		t.Errorf("a used number: %v", f)
	}
	if f := write(tab, a, 0, []byte{1}); f != FaultState || mem[0] != 0 {
		t.Errorf("a refused registration works: %v", f)
	}

	first := register(t, tab, Region{Key: a, Access: remote}, mem)
	second := restage(t, tab, Region{Key: a.Inc(), Access: remote, Length: 8})
	if f := tab.Register(second, 7); f != FaultState {
		t.Errorf("not free: %v", f)
	}
	if got := tab.load(a.Index()); got != first {
		t.Errorf("a refused registration replaced the first")
	}

	if _, err := tab.Map(b.Index(), [][]byte{mem, mem}); !errors.Is(err, ErrListSize) {
		t.Errorf("two segments: %v", err)
	}
	if _, err := tab.Map(b.Index(), nil); !errors.Is(err, ErrListSize) {
		t.Errorf("no segment: %v", err)
	}
	if _, err := tab.Stage(Region{Key: b, Length: 8}); !errors.Is(err, ErrListSize) {
		t.Errorf("nothing mapped: %v", err)
	}
	if _, err := tab.Map(b.Index(), [][]byte{mem}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		r    Region
		want error
	}{
		{"longer than the list", Region{Key: b, Length: 9}, ErrRange},
		{"past 2^64", Region{Key: b, IOVA: 1<<64 - 1, Length: 8}, ErrRange},
		{"unknown right", Region{Key: b, Access: 1 << 31, Length: 8}, ErrAccess},
		{"no such region", Region{Key: MakeKey(5, 0), Length: 8}, ErrKey},
		{"key 0", Region{Length: 8}, ErrKey},
	} {
		if _, err := tab.Stage(c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	user := publish(t, tab, remote, 0, mem)
	if f := tab.Register(user, 7); f != FaultPending {
		t.Errorf("a view never staged: %v", f)
	}
	for _, num := range []uint32{0, 1, 0xffffffff, 0x10000} {
		if v := tab.Staged(b.Index(), num); v != nil {
			t.Errorf("number %#x gives %v", num, v)
		}
		if v := tab.Staged(user.Key().Index(), num); v != nil {
			t.Errorf("number %#x of a user region gives %v", num, v)
		}
	}
	if _, err := tab.AllocFast(7, 0); !errors.Is(err, ErrListSize) {
		t.Errorf("no segments: %v", err)
	}
}
