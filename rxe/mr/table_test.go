package mr

import "testing"

func TestCheckUser(t *testing.T) {
	tab := New(64, 1, nil)
	key, err := tab.Alloc(KindUser, 7)
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 4096)
	v, err := NewView(Region{Key: key, PD: 7, Access: LocalWrite | RemoteWrite, IOVA: 0x1000, Length: 4096, List: NewList(mem)})
	if err != nil {
		t.Fatal(err)
	}
	if err := tab.Publish(v); err != nil {
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
		{"whole", key, 7, RemoteWrite, 0x1000, 4096, FaultNone},
		{"local read", key, 7, 0, 0x1000, 4096, FaultNone},
		{"last byte", key, 7, RemoteWrite, 0x1fff, 1, FaultNone},
		{"past", key, 7, RemoteWrite, 0x1fff, 2, FaultRange},
		{"below", key, 7, RemoteWrite, 0xfff, 2, FaultRange},
		{"wrap", key, 7, RemoteWrite, 1<<64 - 1, 0x1002, FaultRange},
		{"variant", key.Inc(), 7, RemoteWrite, 0x1000, 1, FaultVariant},
		{"pd", key, 8, RemoteWrite, 0x1000, 1, FaultPD},
		{"access", key, 7, RemoteRead, 0x1000, 1, FaultAccess},
		{"zero", 0, 7, RemoteRead, 0x1000, 1, FaultKeyIndex},
		{"far", 0xffffffff, 7, RemoteRead, 0x1000, 1, FaultKeyIndex},
	} {
		if _, f := tab.Check(c.key, c.pd, 17, c.need, c.va, c.n); f != c.want {
			t.Errorf("%s: got %v, want %v", c.name, f, c.want)
		}
	}
	if _, f := tab.Unpublish(key.Index()); f != FaultNone {
		t.Fatal(f)
	}
	if err := tab.Free(key.Index()); err != nil {
		t.Fatal(err)
	}
}
