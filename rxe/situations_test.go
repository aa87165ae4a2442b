package rxe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// The situations of the design's table, with the send queue of the region's owner stalled at every
// work request of one life of a registration:
//
//	│ LOCAL_INV(old) │ REG_MR(new) │ BIND_MW(window → new) │ LOCAL_INV(window) │
//	0                1             2                       3                   4
//
// Everything is posted at once, unsignaled, with the CPU's side already at the next use. Each stall
// is a gate: a SEND that waits for a receive at the peer, and an invalidation of a region that is
// free, which by its fence waits for that SEND and holds everything behind it.

const numStalls = 5

// cycle is one life, stalled.
type cycle struct {
	*attack
	op        rxe.WROpcode // of accesses
	stall     int
	old, next mr.Key
	oldVA     uint64
	nextVA    uint64
	w         *window
	winKey    mr.Key // before the bind
	signaled  rxe.SendFlags
}

func newCycle(t testing.TB, stall int, op rxe.WROpcode, flags rxe.SendFlags) *cycle {
	p := newPair(t, pairConfig{node: sim.NodeConfig{Shards: 2}, conn: sim.ConnAttr{PMTU: 4096, Timeout: 16}})
	x := &attack{pair: p, m: newFast(t, p.b, 16), listA: pages(4, 0xaa), listB: pages(4, 0xbb)}
	c := &cycle{attack: x, op: op, oldVA: fastVA, nextVA: fastVA + 1<<20, signaled: flags}
	x.m.mapSG(x.listA)
	x.m.reg(1, c.oldVA, 16384, sim.AllAccess, rxe.SendSignaled)
	x.done(1)
	c.old, c.next = x.m.key, x.m.key.Inc()
	gate := newFast(t, x.b, 1)
	hold := func() {
		x.m.post(x.b.q, rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{x.b.mem.SGE(0, 8)}})
		gate.inv(0, gate.key, 0)
	}
	hold()
	x.m.inv(10, c.old, flags)
	x.m.key = c.next // the CPU's side is at the next use
	x.m.mapSG(x.listB)
	hold()
	x.m.reg(11, c.nextVA, 16384, sim.AllAccess, flags)
	hold()
	c.w = x.window(mr.KindWindow2)
	c.winKey = c.w.key
	num, err := x.m.tab.StageBind(c.w.key.Index())
	x.ok(err)
	x.m.post(x.b.q, rxe.SendWR{ID: 12, Opcode: rxe.WRBindMW, Flags: flags, MWKey: c.w.key, RKey: c.w.key.Inc(),
		Parent: c.next, RemoteAddr: c.nextVA + 4096, Length: 4096, Access: rw, List: num})
	c.w.key = c.w.key.Inc()
	hold()
	x.m.inv(13, c.w.key, flags)
	hold()
	for range stall {
		c.pass()
	}
	c.stall = stall
	return c
}

// pass lets the next gate go.
func (c *cycle) pass() {
	c.letGo()
	c.stall++
	c.f.Run(c.f.Now() + 2_000_000)
	if st := c.b.q.State(); st != rxe.StateRTS {
		c.t.Fatalf("stall %d: QP is in %v", c.stall, st)
	}
}

// installed is what the hardware must have at a stall.
func (c *cycle) installed() (region, window mr.Info) {
	region = mr.Info{Key: c.next, Kind: mr.KindFast, State: mr.StateValid, PD: c.m.pd, Access: sim.AllAccess,
		IOVA: c.nextVA, Length: 16384, Segs: 1}
	window = mr.Info{Key: c.winKey, Kind: mr.KindWindow2, State: mr.StateFree, PD: c.m.pd}
	switch c.stall {
	case 0:
		region.Key, region.IOVA = c.old, c.oldVA
	case 1:
		region = mr.Info{Key: c.old, Kind: mr.KindFast, State: mr.StateFree, PD: c.m.pd}
	case 3:
		region.Bound = 1
		window = mr.Info{Key: c.w.key, Kind: mr.KindWindow2, State: mr.StateValid, PD: c.m.pd, Access: rw,
			IOVA: c.nextVA + 4096, Length: 4096, QPN: uint32(c.b.q.QPN()), Parent: c.m.key.Index(), Segs: 1}
	case 4:
		window.Key = c.w.key
	}
	return region, window
}

// untouched checks that the hardware has what it must have, and that no byte was written but n of
// list A and m of list B.
func (c *cycle) untouched(n, m int) {
	c.t.Helper()
	region, window := c.installed()
	if got := c.m.tab.Lookup(c.m.key.Index()); got != region {
		c.t.Errorf("the region is %+v, want %+v", got, region)
	}
	if got := c.m.tab.Lookup(c.w.key.Index()); got != window {
		c.t.Errorf("the window is %+v, want %+v", got, window)
	}
	if a, b := count(c.listA, 0x11), count(c.listB, 0x11); a != n || b != m ||
		count(c.listA, 0xaa) != len(c.listA)-a || count(c.listB, 0xbb) != len(c.listB)-b {
		c.t.Errorf("%d and %d bytes of the lists were written, want %d and %d", a, b, n, m)
	}
}

// reach accesses n bytes through a key; it must reach list (nil: be refused).
func (c *cycle) reach(key mr.Key, va uint64, n int, list []byte) {
	c.t.Helper()
	want := rxe.WCRemAccessErr
	if list != nil {
		want = rxe.WCSuccess
	}
	c.wantProbe(c.op, key, va, n, want)
	if list != nil && c.op == rxe.WRRDMARead && count(c.a.mem.Buf[:n], list[0]) != n {
		c.t.Errorf("the READ did not come from the list of %#x", list[0])
	}
}

// elsewhere runs a work request on another QP of the owner and returns its status. It must not
// succeed, for it is one that would disturb the cycle.
func (c *cycle) elsewhere(wr rxe.SendWR) {
	c.t.Helper()
	q, cq := c.qp(c.b, 0)
	peer, _ := c.qp(c.a, 0)
	c.ok(sim.Connect(c.b.n, q, c.a.n, peer, sim.ConnAttr{}))
	c.m.post(q, wr) // not signaled: it must complete nevertheless
	var got [1]rxe.CQE
	c.f.RunUntil(c.f.Now()+1_000_000_000, func() bool { return cq.Poll(got[:]) == 1 })
	if got[0].Status != rxe.WCLocQPOpErr || got[0].WRID != wr.ID || q.State() != rxe.StateErr {
		c.t.Errorf("%+v, QP in %v; want %v and %v", got[0], q.State(), rxe.WCLocQPOpErr, rxe.StateErr)
	}
}

// TestSituations is the table.
func TestSituations(t *testing.T) {
	for _, row := range []struct{ name, what string }{
		{"a", "the CPU's side is at the next use, LOCAL_INV of the old key still succeeds"},
		{"b", "the old key before LOCAL_INV: the old memory by the old geometry"},
		{"c", "the new key before REG_MR: refused"},
		{"d", "any key between LOCAL_INV and REG_MR: refused"},
		{"e", "LOCAL_INV of another variant: error, region untouched"},
		{"f", "REG_MR of a region that is not free: error, region untouched"},
		{"g", "unsignaled local operations: in order, without completions"},
		{"h", "after the completion of an invalidation nobody is in the memory"},
		{"i", "a region with a window is not freed; the window dies with its QP"},
	} {
		for stall := range numStalls {
			for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead} {
				name := fmt.Sprintf("%s/stall%d/%v", row.name, stall, opName(op))
				t.Run(name, func(t *testing.T) {
					flags := rxe.SendFlags(0)
					if row.name == "a" || row.name == "h" {
						flags = rxe.SendSignaled
					}
					c := newCycle(t, stall, op, flags)
					c.situation(row.name)
					if t.Failed() {
						t.Logf("(%s) %s", row.name, row.what)
					}
				})
			}
		}
	}
}

func opName(op rxe.WROpcode) string {
	if op == rxe.WRRDMARead {
		return "READ"
	}
	return "WRITE"
}

func (c *cycle) situation(row string) {
	c.t.Helper()
	const n = 8192
	written := func(n int) int { // how many bytes an admitted access of n changes
		if c.op == rxe.WRRDMARead {
			return 0
		}
		return n
	}
	switch row {
	case "a":
		for i, w := range c.wait(c.b, c.stall) {
			wantStatus(c.t, w, rxe.WCSuccess)
			if int(w.WRID) != 10+i {
				c.t.Errorf("completion %d is of %d", i, w.WRID)
			}
		}
		c.untouched(0, 0)
	case "b":
		if c.stall == 0 {
			c.reach(c.old, c.oldVA+4000, n, c.listA)
			c.reach(c.old, c.nextVA, 64, nil)
			c.reach(c.old, c.oldVA+n+1, n, nil)
			c.untouched(written(n), 0)
			break
		}
		c.reach(c.old, c.oldVA, n, nil)
		c.untouched(0, 0)
	case "c":
		if c.stall < 2 {
			c.reach(c.next, c.nextVA, n, nil)
			c.reach(c.next, c.oldVA, n, nil)
			c.untouched(0, 0)
			break
		}
		c.reach(c.next, c.nextVA, n, c.listB)
		c.reach(c.next, c.oldVA, n, nil)
		c.untouched(0, written(n))
	case "d":
		for variant := range 256 {
			key := mr.MakeKey(c.old.Index(), uint8(variant))
			if in, _ := c.installed(); key == in.Key && in.State == mr.StateValid || variant%8 > 1 && key != c.next {
				continue // its own rows; and every fourth of the others is enough
			}
			c.reach(key, c.oldVA, 64, nil)
		}
		c.untouched(0, 0)
	case "e":
		in, _ := c.installed()
		for _, key := range []mr.Key{in.Key.Inc(), in.Key ^ 0x80, mr.MakeKey(in.Key.Index(), 0)} {
			if key != in.Key {
				c.elsewhere(rxe.SendWR{ID: 20, Opcode: rxe.WRLocalInv, RKey: key})
			}
		}
		c.untouched(0, 0)
	case "f":
		if c.stall == 1 {
			return // it is free
		}
		in, _ := c.installed()
		for _, key := range []mr.Key{in.Key, in.Key.Inc()} {
			num, err := c.m.tab.Stage(mr.Region{Key: key, Access: sim.AllAccess, IOVA: c.oldVA, Length: 4096})
			c.ok(err)
			c.elsewhere(rxe.SendWR{ID: 21, Opcode: rxe.WRRegMR, RKey: key, List: num})
		}
		c.untouched(0, 0)
	case "g":
		for {
			c.untouched(0, 0)
			if c.b.cq.Len() != 0 {
				c.t.Errorf("%d completions of unsignaled work", c.b.cq.Len())
			}
			if c.stall == numStalls-1 {
				return
			}
			c.pass()
		}
	case "h":
		c.drained()
	case "i":
		c.withWindow()
	}
}

// drained is situation h, for the invalidations of the region and of the window: another shard is in
// the middle of a batch, with an access that it has checked and not yet done, when the gate is let
// go. (TestF7 holds one in the responder itself.)
func (c *cycle) drained() {
	key, va, list := c.old, c.oldVA, c.listA
	switch c.stall {
	case 0:
	case 3:
		key, va, list = c.w.key, c.nextVA+4096, c.listB[4096:8192]
	default:
		return // no invalidation is next
	}
	c.wait(c.b, c.stall)
	other := c.b.n.Dev.Shards()[1]
	c.b.n.Sleep(1, true)
	other.Enter()
	v, f := c.m.tab.Check(key, c.m.pd, uint32(c.b.q.QPN()), mr.RemoteWrite, va, 4096)
	if f != mr.FaultNone {
		c.t.Fatal(f)
	}
	c.letGo()
	c.f.Run(c.f.Now() + 2_000_000)
	if c.b.cq.Len() != 0 {
		c.t.Fatal("the invalidation completed while an access was held")
	}
	c.wantProbe(c.op, key, va, 64, rxe.WCRemAccessErr) // it has executed, though
	v.List().CopyIn(v.Offset(va), bytes.Repeat([]byte{0x77}, 4096))
	other.Leave()
	c.b.n.Sleep(1, false)
	c.done(1)
	if count(list, 0x77) != 4096 {
		c.t.Error("the view was taken from the access that held it")
	}
}

// withWindow is situation i.
func (c *cycle) withWindow() {
	if c.stall != 3 {
		return // no window is bound
	}
	c.elsewhere(rxe.SendWR{ID: 22, Opcode: rxe.WRLocalInv, RKey: c.next})
	if _, f := c.m.tab.Unpublish(c.next.Index()); f != mr.FaultBound {
		c.t.Errorf("freeing a region with a window: %v", f)
	}
	c.untouched(0, 0)
	c.b.n.Dev.DestroyQP(c.b.q)
	if got := c.m.tab.Lookup(c.w.key.Index()).State; got != mr.StateFree {
		c.t.Errorf("window of a destroyed QP is %v", got)
	}
	c.reach(c.next, c.nextVA, 64, c.listB)
	if _, f := c.m.tab.Unpublish(c.next.Index()); f != mr.FaultNone {
		c.t.Errorf("freeing a region whose window has gone: %v", f)
	}
	c.reach(c.next, c.nextVA, 64, nil)
}
