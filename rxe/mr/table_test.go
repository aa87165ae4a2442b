package mr

import (
	"errors"
	"testing"
)

// publish registers mem as a user region of PD 7.
func publish(tb testing.TB, tab *Table, access Access, iova uint64, mem []byte) *View {
	tb.Helper()
	key, err := tab.Alloc(KindUser, 7)
	if err != nil {
		tb.Fatal(err)
	}
	v, err := NewView(Region{Key: key, PD: 7, Access: access, IOVA: iova, Length: uint64(len(mem)),
		List: NewList(mem)})
	if err != nil {
		tb.Fatal(err)
	}
	if err := tab.Publish(v); err != nil {
		tb.Fatal(err)
	}
	return v
}

func TestCheck(t *testing.T) {
	const all = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | MWBind
	tab := New(64, 1, nil)
	user := publish(t, tab, LocalWrite|RemoteWrite, 0x1000, make([]byte, 4096)).Key()
	local := publish(t, tab, LocalWrite, 0x1000, make([]byte, 4096)).Key()
	readOnly := publish(t, tab, 0, 0x1000, make([]byte, 4096)).Key()
	top := publish(t, tab, all, 1<<64-4096, make([]byte, 4096)).Key()
	zero := publish(t, tab, all|ZeroBased, 0, make([]byte, 4096)).Key()
	fast := allocFast(t, tab, 1)
	free := allocFast(t, tab, 1)
	register(t, tab, Region{Key: fast, Access: all, IOVA: 0x1000}, make([]byte, 4096))
	window1, window2 := allocWindow(t, tab, KindWindow1), allocWindow(t, tab, KindWindow2)
	unbound := allocWindow(t, tab, KindWindow1)
	window1 = bind(t, tab, Bind{Window: window1, Parent: fast, Access: RemoteRead, Addr: 0x1800,
		Length: 0x100})
	window2 = bind(t, tab, Bind{Window: window2, Parent: fast, Access: RemoteRead, Addr: 0x1800,
		Length: 0x100})
	reserved, err := tab.Alloc(KindUser, 7)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name  string
		key   Key
		pd    PD
		need  Access
		va, n uint64
		want  Fault
	}{
		{"all of it", user, 7, RemoteWrite, 0x1000, 4096, FaultNone},
		{"the first byte", user, 7, RemoteWrite, 0x1000, 1, FaultNone},
		{"the last byte", user, 7, RemoteWrite, 0x1fff, 1, FaultNone},
		{"one past", user, 7, RemoteWrite, 0x1fff, 2, FaultRange},
		{"at the end", user, 7, RemoteWrite, 0x2000, 1, FaultRange},
		{"one below", user, 7, RemoteWrite, 0xfff, 2, FaultRange},
		{"one too long", user, 7, RemoteWrite, 0x1000, 4097, FaultRange},
		{"wraps into it", user, 7, RemoteWrite, 1<<64 - 1, 0x1002, FaultRange},
		{"wraps around it", user, 7, RemoteWrite, 0x1001, 1<<64 - 1, FaultRange},
		{"length of all ones", user, 7, RemoteWrite, 0x1000, 1<<64 - 1, FaultRange},
		{"key 0", 0, 7, RemoteWrite, 0x1000, 1, FaultKeyIndex},
		{"key 0 and PD 0", 0, 0, RemoteWrite, 0, 1, FaultKeyIndex},
		{"index 0, variant 1", 1, 7, RemoteWrite, 0x1000, 1, FaultKeyIndex},
		{"never allocated", MakeKey(63, 0), 7, RemoteWrite, 0x1000, 1, FaultKeyIndex},
		{"above the limit", MakeKey(1<<20, 0), 7, RemoteWrite, 0x1000, 1, FaultKeyIndex},
		{"the highest index", 0xffffffff, 7, RemoteWrite, 0x1000, 1, FaultKeyIndex},
		{"allocated, not published", reserved, 7, RemoteWrite, 0x1000, 1, FaultKeyIndex},
		{"next variant", user.Inc(), 7, RemoteWrite, 0x1000, 1, FaultVariant},
		{"other PD", user, 8, RemoteWrite, 0x1000, 1, FaultPD},
		{"PD 0", user, 0, RemoteWrite, 0x1000, 1, FaultPD},
		{"missing right", user, 7, RemoteRead, 0x1000, 1, FaultAccess},
		{"one of two rights", user, 7, RemoteWrite | RemoteAtomic, 0x1000, 1, FaultAccess},
		{"read as lkey", user, 7, 0, 0x1000, 1, FaultNone},
		{"write as lkey", user, 7, LocalWrite, 0x1000, 1, FaultNone},
		{"local region as rkey", local, 7, RemoteWrite, 0x1000, 1, FaultAccess},
		{"local region as lkey", local, 7, LocalWrite, 0x1000, 1, FaultNone},
		{"read-only region, read as lkey", readOnly, 7, 0, 0x1000, 1, FaultNone},
		{"read-only region, written as lkey", readOnly, 7, LocalWrite, 0x1000, 1, FaultAccess},
		{"up to 2^64", top, 7, RemoteWrite, 1<<64 - 1, 1, FaultNone},
		{"past 2^64", top, 7, RemoteWrite, 1<<64 - 1, 2, FaultRange},
		{"zero-based", zero, 7, RemoteWrite, 0, 4096, FaultNone},
		{"zero-based, past", zero, 7, RemoteWrite, 4096, 1, FaultRange},
		{"fast", fast, 7, RemoteAtomic, 0x1000, 8, FaultNone},
		{"fast as lkey", fast, 7, LocalWrite, 0x1000, 8, FaultNone},
		{"free fast region", free, 7, RemoteWrite, 0x1000, 1, FaultState},
		{"free fast region as lkey", free, 7, 0, 0, 1, FaultState},
		{"window", window1, 7, RemoteRead, 0x1800, 0x100, FaultNone},
		{"window, other PD", window1, 8, RemoteRead, 0x1800, 0x100, FaultPD},
		{"window as lkey", window1, 7, 0, 0x1800, 1, FaultKind},
		{"window written as lkey", window1, 7, LocalWrite, 0x1800, 1, FaultKind},
		{"window never bound", unbound, 7, RemoteRead, 0, 1, FaultAccess},
		{"type 2 window", window2, 7, RemoteRead, 0x1800, 0x100, FaultNone},
		{"type 2 window, below", window2, 7, RemoteRead, 0x17ff, 1, FaultRange},
		{"type 2 window, right", window2, 7, RemoteWrite, 0x1800, 1, FaultAccess},
	} {
		v, f := tab.Check(c.key, c.pd, qpn, c.need, c.va, c.n)
		if f != c.want {
			t.Errorf("%s: got %v, want %v", c.name, f, c.want)
		}
		if (v != nil) != (f == FaultNone) {
			t.Errorf("%s: fault %v with view %v", c.name, f, v)
		}
		if v == nil {
			continue
		}
		if off := v.Offset(c.va); off > v.List().Len() || c.n > v.List().Len()-off {
			t.Errorf("%s: offset %d leaves the list", c.name, off)
		}
	}
	if _, f := tab.Check(window2, 7, qpn+1, RemoteRead, 0x1800, 1); f != FaultQP {
		t.Errorf("type 2 window through another QP: %v", f)
	}
}

func TestCheckWhole(t *testing.T) {
	tab := New(8, 0, nil)
	v := publish(t, tab, FlushGlobal, 0x1000, make([]byte, 100))
	empty, err := tab.Alloc(KindUser, 7)
	if err != nil {
		t.Fatal(err)
	}
	nothing, err := NewView(Region{Key: empty, PD: 7, Access: FlushGlobal})
	if err != nil {
		t.Fatal(err)
	}
	if err := tab.Publish(nothing); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		key  Key
		pd   PD
		need Access
		want Fault
	}{
		{"good", v.Key(), 7, FlushGlobal, FaultNone},
		{"other right", v.Key(), 7, FlushPersistent, FaultAccess},
		{"other PD", v.Key(), 8, FlushGlobal, FaultPD},
		{"other variant", v.Key().Inc(), 7, FlushGlobal, FaultVariant},
		{"nothing there", MakeKey(7, 0), 7, FlushGlobal, FaultKeyIndex},
		{"no byte", empty, 7, FlushGlobal, FaultRange},
	} {
		got, f := tab.CheckWhole(c.key, c.pd, qpn, c.need)
		if f != c.want || f == FaultNone && got != v {
			t.Errorf("%s: got %v, want %v", c.name, f, c.want)
		}
	}
}

func TestViewAccessors(t *testing.T) {
	tab := New(8, 0, nil)
	mem := make([]byte, 100)
	region := publish(t, tab, remote, 0x1000, mem)
	key := bind(t, tab, Bind{Window: allocWindow(t, tab, KindWindow2), Parent: region.Key(),
		Access: RemoteRead, Addr: 0x1010, Length: 8})
	v, f := tab.Check(key, 7, qpn, RemoteRead, 0x1014, 4)
	if f != FaultNone {
		t.Fatal(f)
	}
	if v.Key() != key || v.PD() != 7 || v.Kind() != KindWindow2 || v.State() != StateValid ||
		v.Access() != RemoteRead || v.IOVA() != 0x1010 || v.Length() != 8 || v.Base() != 0x10 ||
		v.List() != region.List() || v.QPN() != qpn || v.Parent() != region.Key().Index() ||
		v.Bound() != 0 || v.Offset(0x1014) != 0x14 {
		t.Errorf("got %+v", v)
	}
	if region.Bound() != 1 || region.Parent() != 0 || region.QPN() != 0 {
		t.Errorf("got %+v", region)
	}
}

func TestNewViewRefuses(t *testing.T) {
	list := NewList(make([]byte, 100))
	good := Region{Key: MakeKey(1, 0), PD: 1, Length: 100, List: list}
	for _, c := range []struct {
		name   string
		change func(*Region)
		want   error
	}{
		{"good", func(*Region) {}, nil},
		{"nothing, without a list", func(r *Region) { r.Length, r.List = 0, nil }, nil},
		{"ends at 2^64", func(r *Region) { r.IOVA = 1<<64 - 100 }, nil},
		{"PD 0", func(r *Region) { r.PD = 0 }, ErrPD},
		{"index 0", func(r *Region) { r.Key = 0xff }, ErrKey},
		{"unknown right", func(r *Region) { r.Access = 1 << 20 }, ErrAccess},
		{"valid bit as a right", func(r *Region) { r.Access = flagValid }, ErrAccess},
		{"zero-based with IOVA", func(r *Region) { r.Access, r.IOVA = ZeroBased, 1 }, ErrAccess},
		{"past 2^64", func(r *Region) { r.IOVA = 1<<64 - 99 }, ErrRange},
		{"no list", func(r *Region) { r.List = nil }, ErrRange},
		{"longer than the list", func(r *Region) { r.Length = 101 }, ErrRange},
		{"base past the end", func(r *Region) { r.Base = 1 }, ErrRange},
		{"base wraps", func(r *Region) { r.Base = 1<<64 - 1 }, ErrRange},
	} {
		r := good
		c.change(&r)
		if _, err := NewView(r); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestRereg(t *testing.T) {
	tab := New(8, 0, nil)
	mem := make([]byte, 8)
	v := publish(t, tab, LocalWrite|RemoteWrite|MWBind, 0x1000, mem)
	key := v.Key()
	change := func(pd PD, access Access) (*View, Fault) {
		t.Helper()
		next, err := NewView(Region{Key: key, PD: pd, Access: access, IOVA: 0x1000, Length: 8,
			List: v.List()})
		if err != nil {
			t.Fatal(err)
		}
		return tab.Rereg(next)
	}
	if old, f := change(9, LocalWrite|RemoteRead|MWBind); f != FaultNone || old != v {
		t.Fatalf("rereg: %v", f)
	}
	for _, c := range []struct {
		pd   PD
		need Access
		want Fault
	}{{7, RemoteRead, FaultPD}, {9, RemoteWrite, FaultAccess}, {9, RemoteRead, FaultNone}} {
		if _, f := tab.Check(key, c.pd, qpn, c.need, 0x1000, 8); f != c.want {
			t.Errorf("PD %d %v: got %v, want %v", c.pd, c.need, f, c.want)
		}
	}
	if _, f := change(7, LocalWrite|MWBind); f != FaultNone {
		t.Fatal(f)
	}
	w := bind(t, tab, Bind{Window: allocWindow(t, tab, KindWindow1), Parent: key,
		Access: RemoteRead,
		Addr:   0x1000, Length: 8})
	if _, f := change(7, 0); f != FaultBound {
		t.Errorf("with a window bound: %v", f)
	}
	if _, f := tab.Unpublish(key.Index()); f != FaultBound {
		t.Errorf("unpublish with a window bound: %v", f)
	}
	if _, f := tab.Check(w, 7, qpn, RemoteRead, 0x1000, 8); f != FaultNone {
		t.Errorf("the window: %v", f)
	}
	if _, f := tab.Unpublish(w.Index()); f != FaultNone {
		t.Fatal(f)
	}
	if _, f := tab.Unpublish(key.Index()); f != FaultNone {
		t.Errorf("unpublish after the window: %v", f)
	}
	if _, f := change(7, 0); f != FaultKeyIndex {
		t.Errorf("rereg of nothing: %v", f)
	}
	key = allocFast(t, tab, 1)
	if _, f := change(7, 0); f != FaultKind {
		t.Errorf("rereg of a fast region: %v", f)
	}
}

func TestLookup(t *testing.T) {
	tab := New(8, 0, nil)
	v := publish(t, tab, LocalWrite|RemoteRead|MWBind, 0x1000, make([]byte, 64))
	w := bind(t, tab, Bind{Window: allocWindow(t, tab, KindWindow2), Parent: v.Key(),
		Access: RemoteRead,
		Addr:   0x1010, Length: 8})
	want := Info{Key: v.Key(), Kind: KindUser, State: StateValid, PD: 7, Access: v.Access(),
		Bound: 1,
		Segs:  1, IOVA: 0x1000, Length: 64}
	if got := tab.Lookup(v.Key().Index()); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want = Info{Key: w, Kind: KindWindow2, State: StateValid, PD: 7, Access: RemoteRead, QPN: qpn,
		Parent: v.Key().Index(), Segs: 1, IOVA: 0x1010, Length: 8}
	if got := tab.Lookup(w.Index()); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := tab.Lookup(5); got != (Info{}) {
		t.Errorf("got %+v of nothing", got)
	}
}

func TestNames(t *testing.T) {
	for f := range NumFaults {
		if f.String() == "" || f.String() == "unknown" {
			t.Errorf("fault %d has no name", f)
		}
	}
	for _, c := range []struct {
		got  interface{ String() string }
		want string
	}{
		{NumFaults, "unknown"}, {KindFast, "fast"}, {Kind(9), "unknown"}, {StateFree, "free"},
		{State(9), "unknown"}, {Access(0), "local-read"}, {LocalWrite | RemoteRead,
			"local-write|remote-read"},
		{FlushPersistent | 1<<30, "flush-persistent|unknown"},
	} {
		if c.got.String() != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestKey(t *testing.T) {
	k := MakeKey(0x123456, 0xff)
	if k.Index() != 0x123456 || k.Variant() != 0xff || k != 0x123456ff {
		t.Errorf("got %#x", k)
	}
	if k.Inc() != 0x12345600 {
		t.Errorf("variant wraps into the index: %#x", k.Inc())
	}
}
