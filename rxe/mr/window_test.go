package mr

import (
	"errors"
	"fmt"
	"sync/atomic"
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
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000, Length: 8}
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
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000, Length: 8}
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
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000, Length: 8}
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
		key = bind(t, tab, Bind{Window: key, Parent: region, Access: RemoteWrite, Addr: 0x12000, Length: 0x1000})
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
				if in := c.want == FaultNone && va >= c.va && va < c.va+uint64(c.n); in != (b == 1) {
					t.Fatalf("%v: write %d at %#x: byte at %#x is %d", kind, c.n, c.va, va, b)
				}
			}
		}
	}
}

func TestW6Rights(t *testing.T) {
	tab, region, _, windows := windowTable(t)
	for kind, key := range windows {
		key = bind(t, tab, Bind{Window: key, Parent: region, Access: RemoteRead, Addr: 0x12000, Length: 8})
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
			{"zero-based region", func(b *Bind) { b.Parent, b.Addr = zeroBased, 0 }, 7, FaultAccess},
			{"window writes, region does not", func(b *Bind) { b.Parent, b.Access = readOnly, RemoteWrite }, 7, FaultAccess},
			{"window has atomics, region does not write", func(b *Bind) { b.Parent, b.Access = readOnly, RemoteAtomic }, 7, FaultAccess},
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
			{"W8: wraps to 64", func(b *Bind) { b.Addr, b.Length = 0x10040, 1<<64-0x10000 }, 7, FaultRange},
			{"W8: wraps from above", func(b *Bind) { b.Addr, b.Length = 1<<64-64, 0x20000 }, 7, FaultRange},
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
	b := Bind{Window: windows[KindWindow1], Parent: region, Access: ZeroBased | RemoteRead, Addr: 0x10000, Length: 8}
	if f := tryBind(t, tab, &b, 7); f != FaultAccess {
		t.Errorf("zero-based type 1: %v", f)
	}
	b = Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000}
	if f := tryBind(t, tab, &b, 7); f != FaultRange {
		t.Errorf("type 2 of length 0: %v", f)
	}
	b = Bind{Window: windows[KindWindow2], Key: windows[KindWindow2], Parent: region, Addr: 0x10000, Length: 1}
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
	next, err := NewView(Region{Key: v.Key(), PD: pd, Access: access, IOVA: iova, Length: v.Length(), List: v.List()})
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
	key := bind(t, tab, Bind{Window: windows[KindWindow2], Parent: region, Access: ZeroBased | RemoteWrite,
		Addr: 0x12000, Length: 0x100})
	if f := write(tab, key, 16, []byte{1, 2, 3}); f != FaultNone || mem[0x2010] != 1 || mem[0x2012] != 3 {
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
	b := Bind{Window: windows[KindWindow2], Parent: region, Access: RemoteRead, Addr: 0x10000, Length: 8}
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

// windowsOverFast is a fast region with the key k, registered, and n type 2 windows with a binding
// staged each.
type windowsOverFast struct {
	*model
	key    Key
	view   *View
	binds  []Bind
	nums   []uint32
	starts []*View // free views of the windows
	faults []Fault // results, one a thread
}

func newWindowsOverFast(tb testing.TB, n int) *windowsOverFast {
	tab := New(16, 0, nil)
	s := &windowsOverFast{model: &model{tab: tab, g: tab.grace}, key: allocFast(tb, tab, 1)}
	s.view = register(tb, tab, Region{Key: s.key, Access: remote}, make([]byte, 64))
	ids := map[*View]uint64{s.view: 1, s.view.buf.free: 2}
	for range n {
		w := allocWindow(tb, tab, KindWindow2)
		num, err := tab.StageBind(w.Index())
		if err != nil {
			tb.Fatal(err)
		}
		s.binds = append(s.binds, Bind{Window: w, Key: w.Inc(), Parent: s.key, Access: RemoteRead, Length: 8})
		s.nums = append(s.nums, num)
		s.starts = append(s.starts, tab.load(w.Index()))
		ids[tab.load(w.Index())] = uint64(len(ids) + 1)
	}
	s.words = []*atomic.Uint64{&tab.grace.epoch}
	s.table = func() uint64 {
		h := ids[tab.load(s.key.Index())] | uint64(s.view.bound.Load()+1)<<8
		for i, b := range s.binds {
			h |= ids[tab.load(b.Window.Index())] << (16 + 8*i)
		}
		return h
	}
	s.shared = func() uint64 {
		h := s.table()
		for i, f := range s.faults {
			h |= uint64(f) << (40 + 5*i)
		}
		return h
	}
	s.reset = func() {
		tab.entry(s.key.Index()).Store(s.view)
		s.view.bound.Store(0)
		s.view.buf.state.Store(bufLive)
		for i, b := range s.binds {
			tab.entry(b.Window.Index()).Store(s.starts[i])
			s.starts[i].buf.state.Store(bufLive)
			for _, buf := range *tab.pool(b.Window.Index()).ring.Load() {
				if buf.num.Load() == s.nums[i] {
					buf.state.Store(bufStaged)
				}
			}
		}
		s.faults = make([]Fault, len(s.threads))
	}
	return s
}

// TestF15: BIND_MW of two windows on two shards against LOCAL_INV of their region on a third, over all
// interleavings: either the windows win, or the invalidation, and never both.
func TestF15AllInterleavings(t *testing.T) {
	s := newWindowsOverFast(t, 2)
	outcomes := make(map[string]int)
	s.threads = []func(*thread){
		func(*thread) { s.faults[0] = s.tab.Bind2(s.nums[0], &s.binds[0], 7, qpn) },
		func(*thread) { s.faults[1] = s.tab.Bind2(s.nums[1], &s.binds[1], 7, qpn) },
		func(*thread) { _, s.faults[2] = s.tab.Invalidate(s.key, 7, qpn) },
	}
	s.end = func() {
		f, bound := s.faults, 0
		outcomes[fmt.Sprint(f)]++
		for i := range s.binds {
			switch {
			case f[i] == FaultNone:
				bound++
			case f[i] != FaultState:
				s.fail("bind %d: %v", i, f[i])
			}
			key := s.binds[i].Key
			if _, got := s.tab.Check(key, 7, qpn, RemoteRead, 0, 8); (got == FaultNone) != (f[i] == FaultNone) {
				s.fail("bind %d says %v, a packet gets %v", i, f[i], got)
			}
		}
		_, got := s.tab.Check(s.key, 7, qpn, RemoteRead, 0, 8)
		switch {
		case bound > 0 && (f[2] != FaultBound || got != FaultNone || int(s.view.bound.Load()) != bound):
			s.fail("%d windows bound, invalidate %v, a packet gets %v", bound, f[2], got)
		case bound == 0 && (f[2] != FaultNone || got != FaultState):
			s.fail("no window bound, invalidate %v, a packet gets %v", f[2], got)
		}
	}
	if failure := s.explore(t); failure != "" {
		t.Error(failure)
	}
	if len(outcomes) != 2 {
		t.Errorf("the threads do not meet: %v", outcomes)
	}
}

// TestF16: LOCAL_INV of view 1 against LOCAL_INV of the same and REG_MR of view 2, over all
// interleavings: view 2 is never lost, and never invalidated by view 1's key.
func TestF16AllInterleavings(t *testing.T) {
	s := newWindowsOverFast(t, 0)
	next := stage(t, s.tab, Region{Key: s.key.Inc(), Access: remote}, make([]byte, 64))
	table := s.table
	s.table = func() uint64 {
		if s.tab.load(s.key.Index()) == next {
			return 3 << 8
		}
		return table()
	}
	reset := s.reset
	s.reset = func() { reset(); next.buf.state.Store(bufStaged) }
	outcomes := make(map[string]int)
	replaced := 0
	s.threads = []func(*thread){
		func(*thread) { _, s.faults[0] = s.tab.Invalidate(s.key, 7, qpn) },
		func(*thread) { _, s.faults[1] = s.tab.Invalidate(s.key, 7, qpn+1) },
		func(*thread) { s.faults[2] = s.tab.Register(next, 7) },
	}
	s.end = func() {
		f := s.faults
		outcomes[fmt.Sprint(f)]++
		_, got := s.tab.Check(next.Key(), 7, qpn, RemoteRead, 0, 8)
		_, old := s.tab.Check(s.key, 7, qpn, RemoteRead, 0, 8)
		for i := range 2 {
			if f[i] != FaultNone && !(f[i] == FaultVariant && f[2] == FaultNone) {
				s.fail("invalidate %d: %v", i, f[i])
			}
		}
		if old == FaultNone || f[0] != FaultNone && f[1] != FaultNone {
			s.fail("view 1 was not invalidated: %v, a packet gets %v", f, old)
		}
		if f[2] != FaultNone && f[2] != FaultState || (got == FaultNone) != (f[2] == FaultNone) {
			s.fail("register %v, a packet gets %v", f[2], got)
		}
		if f[2] == FaultNone {
			replaced++
		}
	}
	if failure := s.explore(t); failure != "" {
		t.Error(failure)
	}
	if len(outcomes) < 3 || replaced == 0 {
		t.Errorf("the threads do not meet: %v", outcomes)
	}
}
