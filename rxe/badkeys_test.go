package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// badKey is a key that grants nothing, with how it is used.
type badKey struct {
	name  string
	make  func(x *attack) (key mr.Key, va uint64)
	n     int
	fault mr.Fault
}

// badKeys are all ways in which a peer's key or address is wrong. The region of the attack is
// registered over list A.
var badKeys = []badKey{
	{"stale", func(x *attack) (mr.Key, uint64) {
		old := x.m.key
		x.m.inv(2, old, rxe.SendSignaled)
		x.m.key = old.Inc()
		x.m.reg(3, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
		x.done(2)
		return old, fastVA
	}, 64, mr.FaultVariant},
	{"of a freed index", func(x *attack) (mr.Key, uint64) {
		if _, f := x.m.tab.Unpublish(x.m.key.Index()); f != mr.FaultNone {
			x.t.Fatal(f)
		}
		return x.m.key, fastVA
	}, 64, mr.FaultKeyIndex},
	{"invalidated", func(x *attack) (mr.Key, uint64) {
		x.m.inv(2, x.m.key, rxe.SendSignaled)
		x.done(1)
		return x.m.key, fastVA
	}, 64, mr.FaultState},
	{"guessed variant", func(x *attack) (mr.Key, uint64) { return x.m.key ^ 0x55, fastVA }, 64,
		mr.FaultVariant},
	{"guessed index", func(*attack) (mr.Key, uint64) { return mr.MakeKey(1<<24-1, 7), fastVA }, 64,
		mr.FaultKeyIndex},
	{"zero", func(*attack) (mr.Key, uint64) { return 0, fastVA }, 64, mr.FaultKeyIndex},
	{"of another domain", func(x *attack) (mr.Key, uint64) {
		r, err := x.b.n.Reg(x.b.n.AllocPD(), x.listA, fastVA, sim.AllAccess)
		x.ok(err)
		return r.Key, fastVA
	}, 64, mr.FaultPD},
	{"without the right", func(x *attack) (mr.Key, uint64) {
		r, err := x.b.n.Reg(x.m.pd, x.listA, fastVA, mr.LocalWrite|mr.MWBind)
		x.ok(err)
		return r.Key, fastVA
	}, 64, mr.FaultAccess},
	{"below", func(x *attack) (mr.Key, uint64) { return x.m.key, fastVA - 1 }, 64, mr.FaultRange},
	{"across the end", func(x *attack) (mr.Key, uint64) { return x.m.key, fastVA + 16384 - 63 }, 64,
		mr.FaultRange},
	{"above", func(x *attack) (mr.Key, uint64) { return x.m.key, fastVA + 16384 }, 1, mr.FaultRange},
	{"past 2^64", func(x *attack) (mr.Key, uint64) { return x.m.key, 1<<64 - 8 }, 64, mr.FaultRange},
	{"a window of another QP", func(x *attack) (mr.Key, uint64) {
		w := x.window(mr.KindWindow2)
		w.mustBind(winVA, winLen, rw)
		return w.key, winVA
	}, 64, mr.FaultQP},
	{"a window whose QP has gone", func(x *attack) (mr.Key, uint64) {
		w := x.window(mr.KindWindow2)
		w.mustBind(winVA, winLen, rw)
		x.b.n.Dev.DestroyQP(x.b.q)
		return w.key, winVA
	}, 64, mr.FaultState},
	{"a window that is not bound", func(x *attack) (mr.Key, uint64) {
		return x.window(mr.KindWindow1).key, 0
	}, 64, mr.FaultAccess},
}

// TestBadRemoteKeys: the peer is told a remote access error, the owner's QP goes to error, nothing is
// touched, and the counter of just this cause counts.
func TestBadRemoteKeys(t *testing.T) {
	for _, bad := range badKeys {
		for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead} {
			t.Run(bad.name+" "+opName(op), func(t *testing.T) {
				x := newAttack(t)
				x.m.mapSG(x.listA)
				x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
				x.done(1)
				key, va := bad.make(x)
				faults := &x.b.n.Dev.Shards()[0].C.KeyFaults
				want := *faults
				want[bad.fault]++
				x.wantProbe(op, key, va, bad.n, rxe.WCRemAccessErr)
				if *faults != want {
					t.Errorf("key faults %v, want %v", *faults, want)
				}
			})
		}
	}
}

// TestBadLocalKeys: a SEND from memory by a key that grants nothing completes with a local protection
// error, sends nothing, and counts by its cause.
func TestBadLocalKeys(t *testing.T) {
	for _, bad := range append([]badKey{
		{"a window", func(x *attack) (mr.Key, uint64) {
			w := x.window(mr.KindWindow1)
			w.mustBind(winVA, winLen, rw)
			return w.key, winVA
		}, 64, mr.FaultKind},
	}, badKeys...) {
		switch bad.name {
		case "without the right", "a window that is not bound", "a window of another QP",
			"a window whose QP has gone":
			continue // reading locally needs no right; windows are no lkeys whatever their state
		}
		t.Run(bad.name, func(t *testing.T) {
			x := newAttack(t)
			x.m.mapSG(x.listA)
			x.m.reg(1, fastVA, 16384, sim.AllAccess, rxe.SendSignaled)
			x.done(1)
			key, va := bad.make(x)
			faults := &x.b.n.Dev.Shards()[0].C.KeyFaults
			want := *faults
			want[bad.fault]++
			x.a.recv(t, 5, x.a.mem.SGE(0, 64))
			x.b.send(t, rxe.SendWR{ID: 6, Opcode: rxe.WRSend, SGEs: []rxe.SGE{{Addr: va,
				Length: uint32(bad.n), LKey: key}}})
			wantStatus(t, x.wait(x.b, 1)[0], rxe.WCLocProtErr)
			if *faults != want {
				t.Errorf("key faults %v, want %v", *faults, want)
			}
			if x.a.cq.Len() != 0 || x.b.q.State() != rxe.StateErr {
				t.Errorf("%d receives at the peer, QP in %v", x.a.cq.Len(), x.b.q.State())
			}
		})
	}
}
