package mr

import (
	"errors"
	"testing"
)

func allocWindow(tb testing.TB, tab *Table, kind Kind) Key {
	tb.Helper()
	key, err := tab.Alloc(kind, 7)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// tryBind stages a binding and executes it, by the window's kind.
func tryBind(tb testing.TB, tab *Table, b *Bind, pd PD) Fault {
	tb.Helper()
	if b.Key == 0 {
		b.Key = b.Window.Inc()
	}
	num, err := tab.StageBind(b.Window.Index())
	if err != nil {
		tb.Fatal(err)
	}
	if tab.pool(b.Window.Index()).kind == KindWindow2 {
		return tab.Bind2(num, b, pd, qpn)
	}
	_, f := tab.Bind1(num, b, pd)
	return f
}

// bind binds and returns the new key.
func bind(tb testing.TB, tab *Table, b Bind) Key {
	tb.Helper()
	if f := tryBind(tb, tab, &b, 7); f != FaultNone {
		tb.Fatalf("bind: %v", f)
	}
	return b.Key
}

// windowTable has a region of 64 KiB at 0x10000 and one window of each type.
func windowTable(tb testing.TB) (tab *Table, region Key, mem []byte, windows map[Kind]Key) {
	tb.Helper()
	tab = New(64, 0, nil)
	mem = make([]byte, 1<<16)
	region = publish(tb, tab, remote, 0x10000, mem).Key()
	windows = map[Kind]Key{
		KindWindow1: allocWindow(tb, tab, KindWindow1),
		KindWindow2: allocWindow(tb, tab, KindWindow2),
	}
	return tab, region, mem, windows
}

func read(tab *Table, key Key, va, n uint64) Fault {
	_, f := tab.Check(key, 7, qpn, RemoteRead, va, n)
	return f
}

func TestW1RebindAndUnbind(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	first := windows[KindWindow1]
	if f := read(tab, first, 0x10000, 1); f == FaultNone {
		t.Error("readable before it is bound")
	}
	b := Bind{Window: first, Parent: region, Access: RemoteRead, Addr: 0x12000, Length: 0x1000}
	second := bind(t, tab, b)
	b.Window, b.Addr = second, 0x14000
	third := bind(t, tab, b)
	if got := tab.Lookup(region.Index()).Bound; got != 1 {
		t.Errorf("%d windows counted after a rebind", got)
	}
	for _, c := range []struct {
		key  Key
		va   uint64
		want Fault
	}{{first, 0x12000, FaultVariant}, {second, 0x12000, FaultVariant},
		{third, 0x12000, FaultRange}, {third, 0x14000, FaultNone}} {
		if f := read(tab, c.key, c.va, 1); f != c.want {
			t.Errorf("key %#x at %#x: got %v, want %v", c.key, c.va, f, c.want)
		}
	}
	stale := Bind{Window: second, Parent: region, Access: RemoteRead, Addr: 0x10000, Length: 1}
	if f := tryBind(t, tab, &stale, 7); f != FaultVariant {
		t.Errorf("bind by an old key: %v", f)
	}
	last := bind(t, tab, Bind{Window: third})
	if f := read(tab, third, 0x14000, 1); f != FaultVariant {
		t.Errorf("old key after unbinding: %v", f)
	}
	if f := read(tab, last, 0x14000, 1); f != FaultAccess {
		t.Errorf("new key after unbinding: %v", f)
	}
	if got := tab.Lookup(region.Index()).Bound; got != 0 {
		t.Errorf("%d windows counted after unbinding", got)
	}
}

func TestW2BindFromValid(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000,
		Length: 8}
	b.Window, b.Key = bind(t, tab, b), 0
	before := tab.Lookup(b.Window.Index())
	if f := tryBind(t, tab, &b, 7); f != FaultState {
		t.Errorf("got %v", f)
	}
	if after := tab.Lookup(b.Window.Index()); after != before {
		t.Errorf("%+v became %+v", before, after)
	}
	if got := tab.Lookup(region.Index()).Bound; got != 1 {
		t.Errorf("%d windows counted", got)
	}
}

func TestW3OtherQP(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000,
		Length: 8}
	w2 := bind(t, tab, b)
	b.Window = windows[KindWindow1]
	w1 := bind(t, tab, b)
	if _, f := tab.Check(w2, 7, qpn+1, RemoteRead, 0x10000, 1); f != FaultQP {
		t.Errorf("type 2: %v", f)
	}
	if _, f := tab.Check(w1, 7, qpn+1, RemoteRead, 0x10000, 1); f != FaultNone {
		t.Errorf("type 1: %v", f)
	}
}

func TestW4Invalidate(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000,
		Length: 8}
	w2 := bind(t, tab, b)
	invalidate(t, tab, w2)
	if f := read(tab, w2, 0x10000, 1); f != FaultState {
		t.Errorf("after LOCAL_INV: %v", f)
	}
	if got := tab.Lookup(region.Index()).Bound; got != 0 {
		t.Errorf("%d windows counted", got)
	}
	b.Window, b.Key = w2, w2 // the consumer may keep the variant
	bind(t, tab, b)
	if f := read(tab, w2, 0x10000, 1); f != FaultNone {
		t.Errorf("bound again: %v", f)
	}
}

func TestW5Range(t *testing.T) {
	tab, region, mem, windows := windowTable(t)
	for kind, key := range windows {
		key = bind(t, tab, Bind{Window: key, Parent: region, Access: RemoteWrite, Addr: 0x12000,
			Length: 0x1000})
		for _, c := range []struct {
			va   uint64
			n    int
			want Fault
		}{
			{0x12000, 0x1000, FaultNone}, {0x12fff, 1, FaultNone},
			{0x11fc0, 64, FaultRange}, {0x13000, 64, FaultRange}, {0x12800, 0x1000, FaultRange},
			{0x10000, 0x10000, FaultRange}, {0x11fff, 2, FaultRange}, {0x20000, 1, FaultRange},
		} {
			clear(mem)
			src := make([]byte, c.n)
			for i := range src {
				src[i] = 1
			}
			if f := write(tab, key, c.va, src); f != c.want {
				t.Errorf("%v: write %d at %#x: got %v, want %v", kind, c.n, c.va, f, c.want)
			}
			for i, b := range mem {
				va := uint64(i) + 0x10000
				if in := c.want == FaultNone && va >= c.va &&
					va < c.va+uint64(c.n); in != (b == 1) {
					t.Fatalf("%v: write %d at %#x: byte at %#x is %d", kind, c.n, c.va, va, b)
				}
			}
		}
	}
}

func TestW6Rights(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	for kind, key := range windows {
		key = bind(t, tab, Bind{Window: key, Parent: region, Access: RemoteRead, Addr: 0x12000,
			Length: 8})
		if f := read(tab, key, 0x12000, 8); f != FaultNone {
			t.Errorf("%v: read: %v", kind, f)
		}
		if f := write(tab, key, 0x12000, []byte{1}); f != FaultAccess {
			t.Errorf("%v: write: %v", kind, f)
		}
	}
}

// TestW7W8BindRefuses: all that a binding is refused for, for both types, and that nothing changes.
func TestW7W8BindRefuses(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	other := publishIn(t, tab, 8, remote, 0x10000, make([]byte, 64)).Key()
	noBind := publish(t, tab, remote&^MWBind, 0x10000, make([]byte, 64)).Key()
	readOnly := publish(t, tab, RemoteRead|MWBind, 0x10000, make([]byte, 64)).Key()
	zeroBased := publish(t, tab, remote|ZeroBased, 0, make([]byte, 64)).Key()
	free := allocFast(t, tab, 1)
	window := allocWindow(t, tab, KindWindow1)
	for kind, key := range windows {
		good := Bind{Window: key, Parent: region, Access: RemoteRead, Addr: 0x10000, Length: 64}
		for _, c := range []struct {
			name   string
			change func(*Bind)
			pd     PD
			want   Fault
		}{
			{"PD of the QP", func(*Bind) {}, 8, FaultPD},
			{"PD of the region", func(b *Bind) { b.Parent = other }, 7, FaultPD},
			{"region without MWBind", func(b *Bind) { b.Parent = noBind }, 7, FaultAccess},
			{"zero-based region", func(b *Bind) { b.Parent, b.Addr = zeroBased, 0 }, 7,
				FaultAccess},
			{"window writes, region does not", func(b *Bind) {
				b.Parent, b.Access = readOnly,
					RemoteWrite
			}, 7, FaultAccess},
			{"window has atomics, region does not write", func(b *Bind) {
				b.Parent,
					b.Access = readOnly, RemoteAtomic
			}, 7, FaultAccess},
			{"local right", func(b *Bind) { b.Access = LocalWrite }, 7, FaultAccess},
			{"MWBind on a window", func(b *Bind) { b.Access = MWBind }, 7, FaultAccess},
			{"region's variant", func(b *Bind) { b.Parent = b.Parent.Inc() }, 7, FaultVariant},
			{"no region", func(b *Bind) { b.Parent = 0 }, 7, FaultKeyIndex},
			{"free region", func(b *Bind) { b.Parent = free }, 7, FaultState},
			{"window as region", func(b *Bind) { b.Parent = window }, 7, FaultKind},
			{"itself as region", func(b *Bind) { b.Parent = b.Window }, 7, FaultKind},
			{"window's variant", func(b *Bind) { b.Window = b.Window.Inc() }, 7, FaultVariant},
			{"new key of another index", func(b *Bind) { b.Key = window }, 7, FaultKeyIndex},
			{"past the region", func(b *Bind) { b.Length = 1<<16 + 1 }, 7, FaultRange},
			{"below the region", func(b *Bind) { b.Addr = 0xffff }, 7, FaultRange},
			{"W8: wraps to 64", func(b *Bind) { b.Addr, b.Length = 0x10040, 1<<64-0x10000 }, 7,
				FaultRange},
			{"W8: wraps from above", func(b *Bind) { b.Addr, b.Length = 1<<64-64, 0x20000 }, 7,
				FaultRange},
			{"length of all ones", func(b *Bind) { b.Length = 1<<64 - 1 }, 7, FaultRange},
		} {
			b := good
			c.change(&b)
			before := tab.Lookup(key.Index())
			if f := tryBind(t, tab, &b, c.pd); f != c.want {
				t.Errorf("%v: %s: got %v, want %v", kind, c.name, f, c.want)
			}
			if after := tab.Lookup(key.Index()); after != before {
				t.Errorf("%v: %s: %+v became %+v", kind, c.name, before, after)
			}
		}
		if n := tab.Lookup(region.Index()).Bound; n != 0 {
			t.Errorf("%v: refused bindings left %d counted", kind, n)
		}
	}
	b := Bind{Window: windows[KindWindow1], Parent: region, Access: ZeroBased | RemoteRead,
		Addr: 0x10000, Length: 8}
	if f := tryBind(t, tab, &b, 7); f != FaultAccess {
		t.Errorf("zero-based type 1: %v", f)
	}
	b = Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000}
	if f := tryBind(t, tab, &b, 7); f != FaultRange {
		t.Errorf("type 2 of length 0: %v", f)
	}
	b = Bind{Window: windows[KindWindow2], Key: windows[KindWindow2], Parent: region,
		Addr: 0x10000, Length: 1}
	if _, f := tab.Bind1(1<<16|1, &b, 7); f != FaultPending {
		t.Errorf("a number never staged: %v", f)
	}
	num, err := tab.StageBind(windows[KindWindow2].Index())
	if err != nil {
		t.Fatal(err)
	}
	if _, f := tab.Bind1(num, &b, 7); f != FaultKind {
		t.Errorf("type 2 window bound as type 1: %v", f)
	}
	if f := tab.Bind2(num, &Bind{Window: MakeKey(60, 0)}, 7, qpn); f != FaultKeyIndex {
		t.Errorf("no window: %v", f)
	}
	if _, err := tab.StageBind(region.Index()); !errors.Is(err, ErrKey) {
		t.Errorf("staging a binding of a region: %v", err)
	}
}

func publishIn(tb testing.TB, tab *Table, pd PD, access Access, iova uint64, mem []byte) *View {
	tb.Helper()
	v := publish(tb, tab, access, iova, mem)
	next, err := NewView(Region{Key: v.Key(), PD: pd, Access: access, IOVA: iova,
		Length: v.Length(), List: v.List()})
	if err != nil {
		tb.Fatal(err)
	}
	if _, f := tab.Rereg(next); f != FaultNone {
		tb.Fatal(f)
	}
	return next
}

func TestW9ZeroBased(t *testing.T) {
	tab, region, mem, windows := windowTable(t)
	key := bind(t, tab, Bind{Window: windows[KindWindow2], Parent: region,
		Access: ZeroBased | RemoteWrite,
		Addr:   0x12000, Length: 0x100})
	if f := write(tab, key, 16, []byte{1, 2, 3}); f != FaultNone || mem[0x2010] != 1 ||
		mem[0x2012] != 3 {
		t.Errorf("write at 16: %v", f)
	}
	if f := write(tab, key, 0xff, []byte{1, 2}); f != FaultRange {
		t.Errorf("past its end: %v", f)
	}
	if f := write(tab, key, 0x12000, []byte{1}); f != FaultRange {
		t.Errorf("at the region's address: %v", f)
	}
}

// TestUnbindQP: a destroyed QP's windows are free, others stay, and the region can go.
func TestUnbindQP(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000,
		Length: 8}
	mine := bind(t, tab, b)
	b.Window = allocWindow(t, tab, KindWindow2)
	b.Key = b.Window.Inc()
	num, err := tab.StageBind(b.Window.Index())
	if err != nil {
		t.Fatal(err)
	}
	if f := tab.Bind2(num, &b, 7, qpn+1); f != FaultNone {
		t.Fatal(f)
	}
	if n := tab.UnbindQP(qpn); n != 1 {
		t.Errorf("%d unbound", n)
	}
	if f := read(tab, mine, 0x10000, 1); f != FaultState {
		t.Errorf("my window: %v", f)
	}
	if _, f := tab.Check(b.Key, 7, qpn+1, RemoteRead, 0x10000, 1); f != FaultNone {
		t.Errorf("the other QP's window: %v", f)
	}
	if n := tab.Lookup(region.Index()).Bound; n != 1 {
		t.Errorf("%d windows counted", n)
	}
	if n := tab.UnbindQP(qpn+1) + tab.UnbindQP(qpn+1); n != 1 {
		t.Errorf("%d unbound", n)
	}
	if _, f := tab.Unpublish(region.Index()); f != FaultNone {
		t.Errorf("unpublish the region: %v", f)
	}
}
