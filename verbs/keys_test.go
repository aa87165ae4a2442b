package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/mr"
)

// newMemoryPair connects two ends in memory, whose peer gives up at once.
func newMemoryPair(t *testing.T) (a, b *end) {
	t.Helper()
	return newPair(t, wires[0], Config{}, endConfig{}, ConnOptions{RetryCnt: 1})
}

// again connects both ends anew after an error.
func again(t *testing.T, a, b *end) {
	t.Helper()
	for _, e := range []*end{a, b} {
		e.must(e.qp.Modify(&QPAttr{State: StateReset}, AttrState))
		var wc [16]WC
		for n := 1; n > 0; {
			n, _ = e.cq.Poll(wc[:])
		}
	}
	connect(t, a, b, ConnOptions{RetryCnt: 1})
}

// reach lets a write n bytes to va through key, and says how it went. The connection is there again
// afterwards.
func reach(t *testing.T, a, b *end, key Key, va uint64, n int) WCStatus {
	t.Helper()
	a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, n)}, RemoteAddr: va, RKey: key})
	st := a.wait(1)[0].Status
	if st != WCSuccess {
		again(t, a, b)
	}
	return st
}

func wantReach(t *testing.T, a, b *end, key Key, va uint64, n int, want WCStatus) {
	t.Helper()
	if st := reach(t, a, b, key, va, n); st != want {
		t.Fatalf("WRITE of %d bytes to %#x with key %#x: %v, want %v", n, va, uint32(key), st, want)
	}
}

// TestRegisterRights: what a peer may change, the owner must be allowed to.
func TestRegisterRights(t *testing.T) {
	_, b := newMemoryPair(t)
	mem := make([]byte, 64)
	for _, access := range []Access{RemoteWrite, RemoteAtomic, RemoteRead | RemoteWrite} {
		if _, err := b.pd.RegMR(mem, access); !errors.Is(err, ErrInvalid) {
			t.Errorf("RegMR with %v: %v", access, err)
		}
		m, err := b.pd.AllocFastMR(1)
		b.must(err)
		b.must(m.MapSG([][]byte{mem}, 0))
		if err := b.qp.PostSend(&SendWR{Opcode: WRRegMR, MR: m, Access: access}); err != ErrInvalid {
			t.Errorf("REG_MR with %v: %v", access, err)
		}
	}
	for _, access := range []Access{0, LocalWrite, RemoteRead, LocalWrite | RemoteWrite | RemoteAtomic} {
		m, err := b.pd.RegMR(mem, access)
		b.must(err)
		if err := m.Rereg(ReregAccess, nil, nil, access|RemoteWrite&^access); access&LocalWrite == 0 &&
			!errors.Is(err, ErrInvalid) {
			t.Errorf("Rereg of %v: %v", access, err)
		}
		b.must(m.Dereg())
	}
	if _, err := b.pd.RegMR(nil, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("RegMR of nothing: %v", err)
	}
	if _, err := b.pd.AllocFastMR(0); !errors.Is(err, ErrInvalid) {
		t.Errorf("AllocFastMR of no segment: %v", err)
	}
}

// TestKindsOfRegions: work requests and calls that are not for a kind of region are refused.
func TestKindsOfRegions(t *testing.T) {
	_, b := newMemoryPair(t)
	key := b.mr.RKey()
	if err := b.mr.MapSG([][]byte{make([]byte, 8)}, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("MapSG of a user region: %v", err)
	}
	if b.mr.UpdateKey(uint8(key) + 1); b.mr.RKey() != key {
		t.Error("UpdateKey changed a user region's key")
	}
	if err := b.qp.PostSend(&SendWR{Opcode: WRRegMR, MR: b.mr, Access: LocalWrite}); err != ErrInvalid {
		t.Errorf("REG_MR of a user region: %v", err)
	}
	m, err := b.pd.AllocFastMR(2)
	b.must(err)
	if err := b.qp.PostSend(&SendWR{Opcode: WRRegMR, MR: m, Access: LocalWrite}); err != ErrInvalid {
		t.Errorf("REG_MR of nothing: %v", err)
	}
	if err := m.MapSG(make([][]byte, 3), 0); !errors.Is(err, mr.ErrListSize) {
		t.Errorf("MapSG of too many segments: %v", err)
	}
	if err := m.Rereg(ReregAccess, nil, nil, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("Rereg of a fast region: %v", err)
	}
	if got := IncRKey(0x1ff); got != 0x100 {
		t.Errorf("IncRKey(0x1ff) is %#x", uint32(got))
	}
	b.send(SendWR{Opcode: WRLocalInv, RKey: b.mr.RKey()})
	b.done(WCLocQPOpErr)
}

// TestRereg: memory, domain and rights of a region change in one step.
func TestRereg(t *testing.T) {
	a, b := newMemoryPair(t)
	one, two := make([]byte, 4096), make([]byte, 8192)
	m, err := b.pd.RegMR(one, LocalWrite|RemoteWrite|MWBind)
	b.must(err)
	first := m.Addr()
	fill(a.mr.Bytes()[:100], 9)
	wantReach(t, a, b, m.RKey(), first, 100, WCSuccess)

	b.must(m.Rereg(ReregTranslation, nil, two, 0))
	wantReach(t, a, b, m.RKey(), first, 100, WCRemAccessErr)
	wantReach(t, a, b, m.RKey(), m.Addr()+8092, 100, WCSuccess)
	b.seen()
	if m.Len() != 8192 || !bytes.Equal(two[8092:], a.mr.Bytes()[:100]) {
		t.Error("the WRITE did not reach the new memory")
	}
	b.must(m.Rereg(ReregAccess, nil, nil, LocalWrite|RemoteRead|MWBind))
	wantReach(t, a, b, m.RKey(), m.Addr(), 100, WCRemAccessErr)

	other, err := b.c.AllocPD()
	b.must(err)
	b.must(m.Rereg(ReregPD|ReregAccess, other, nil, LocalWrite|RemoteWrite))
	wantReach(t, a, b, m.RKey(), m.Addr(), 100, WCRemAccessErr)
	if err := other.Dealloc(); !errors.Is(err, ErrBusy) {
		t.Errorf("domain with a region: %v", err)
	}
	b.must(m.Rereg(ReregPD|ReregAccess, b.pd, nil, LocalWrite|RemoteWrite|MWBind))
	b.must(other.Dealloc())
	wantReach(t, a, b, m.RKey(), m.Addr(), 100, WCSuccess)

	win, err := b.pd.AllocMW(MWType2)
	b.must(err)
	b.send(SendWR{Opcode: WRBindMW, MW: win, MR: m, Key: IncRKey(win.RKey()), Access: RemoteWrite,
		Addr: m.Addr() + 100, Length: 50})
	b.done(WCSuccess)
	if err := m.Rereg(ReregAccess, nil, nil, 0); !errors.Is(err, ErrBusy) {
		t.Errorf("Rereg under a window: %v", err)
	}
	if err := m.Dereg(); !errors.Is(err, ErrBusy) {
		t.Errorf("Dereg under a window: %v", err)
	}
	wantReach(t, a, b, win.RKey(), m.Addr()+100, 50, WCSuccess)
	b.must(win.Dealloc())
	if err := m.Rereg(ReregPD, nil, nil, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("Rereg without a domain: %v", err)
	}
	if err := m.Rereg(ReregTranslation, nil, nil, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("Rereg without memory: %v", err)
	}
	b.must(m.Dereg())
	if err := m.Rereg(ReregAccess, nil, nil, 0); !errors.Is(err, ErrForeign) {
		t.Errorf("Rereg after Dereg: %v", err)
	}
}

// TestWindowDiesWithItsQP: a window of type 2 is gone when Destroy returns; its region is free then.
func TestWindowDiesWithItsQP(t *testing.T) {
	a, b := newMemoryPair(t)
	m, err := b.pd.RegMR(make([]byte, 4096), LocalWrite|MWBind)
	b.must(err)
	win, err := b.pd.AllocMW(MWType2)
	b.must(err)
	b.send(SendWR{Opcode: WRBindMW, MW: win, MR: m, Key: IncRKey(win.RKey()), Access: RemoteWrite,
		Addr: m.Addr(), Length: 50})
	b.done(WCSuccess)
	wantReach(t, a, b, win.RKey(), m.Addr(), 50, WCSuccess)
	b.must(b.qp.Destroy())
	if info := b.c.dev.Keys().Lookup(win.RKey().Index()); info.State != mr.StateFree {
		t.Errorf("the window is %v", info.State)
	}
	b.must(m.Dereg())
	b.must(win.Dealloc())
}

// TestMemoryStaysWhileUsed: memory of AllocMR is not given back while anything else that the device
// honours, or will, lies in it.
func TestMemoryStaysWhileUsed(t *testing.T) {
	a, b := newMemoryPair(t)
	base, err := b.pd.AllocMR(1<<16, 0)
	b.must(err)
	mem := base.Bytes()
	user, err := b.pd.RegMR(mem[1000:2000], LocalWrite|RemoteWrite)
	b.must(err)
	fast, err := b.pd.AllocFastMR(2)
	b.must(err)
	b.must(fast.MapSG([][]byte{mem[5:100], mem[200:300]}, 0))
	reg := SendWR{Opcode: WRRegMR, MR: fast, Access: LocalWrite | RemoteWrite}
	b.send(reg)
	b.done(WCSuccess)
	wantBusy := func(why string) {
		t.Helper()
		if err := base.Close(); !errors.Is(err, ErrBusy) {
			t.Fatalf("Close while %s: %v", why, err)
		}
		mem[1500], mem[50] = 1, 1 // it is still there
	}
	wantBusy("a region lies in it")
	wantReach(t, a, b, user.RKey(), user.Addr(), 1000, WCSuccess)
	b.must(user.Dereg())
	wantBusy("it is registered and mapped")
	b.must(fast.MapSG([][]byte{make([]byte, 10)}, 0))
	wantBusy("it is registered")
	wantReach(t, a, b, fast.RKey(), 0, 195, WCSuccess)
	b.send(SendWR{Opcode: WRLocalInv, RKey: fast.RKey()})
	b.done(WCSuccess)
	b.must(fast.MapSG([][]byte{mem[:10]}, 0))
	wantBusy("it is mapped")
	b.must(fast.MapSG(nil, 0))
	if err := b.qp.PostSend(&reg); err != ErrInvalid {
		t.Errorf("REG_MR of nothing: %v", err)
	}
	b.must(base.Close())
	if base.Bytes() != nil {
		t.Error("memory is still shown")
	}
	b.must(base.Close())
}

// TestHandlesOfTheDead: a region or window that was given back cannot be mapped, registered or bound
// any more, whoever has its index now.
func TestHandlesOfTheDead(t *testing.T) {
	_, b := newMemoryPair(t)
	m, err := b.pd.AllocFastMR(1)
	b.must(err)
	segs := [][]byte{make([]byte, 8)}
	b.must(m.MapSG(segs, 0))
	win, err := b.pd.AllocMW(MWType2)
	b.must(err)
	b.must(m.Dereg())
	if err := m.MapSG(segs, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("MapSG after Dereg: %v", err)
	}
	if err := b.qp.PostSend(&SendWR{Opcode: WRRegMR, MR: m, Access: LocalWrite}); err != ErrInvalid {
		t.Errorf("REG_MR after Dereg: %v", err)
	}
	bind := SendWR{Opcode: WRBindMW, MW: win, MR: m, Key: IncRKey(win.RKey()), Length: 8}
	if err := b.qp.PostSend(&bind); err != ErrInvalid {
		t.Errorf("BIND_MW to a region after Dereg: %v", err)
	}
	b.must(win.Dealloc())
	if bind.MR = b.mr; b.qp.PostSend(&bind) != ErrInvalid {
		t.Error("BIND_MW of a window after Dealloc was posted")
	}
	b.must(m.Dereg())
	b.must(win.Dealloc())
}
