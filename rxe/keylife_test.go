package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestDroppedWorkGivesItsListBack: registrations that were posted and never ran, because the QP was
// reset or destroyed, neither hold their list nor run later.
func TestDroppedWorkGivesItsListBack(t *testing.T) {
	for _, how := range []string{"reset", "destroy", "error"} {
		t.Run(how, func(t *testing.T) {
			x := newAttack(t)
			x.m.mapSG(x.listA)
			x.hold()
			x.m.inv(1, x.m.key, 0)
			x.m.reg(2, fastVA, 16384, sim.AllAccess, 0) // taken by the engine, behind the LOCAL_INV
			x.f.Run(x.f.Now() + 100_000)
			num, err := x.m.tab.Stage(mr.Region{Key: x.m.key, IOVA: fastVA, Length: 16384})
			x.ok(err)
			x.m.post(x.b.q, rxe.SendWR{Opcode: rxe.WRRegMR, RKey: x.m.key, List: num}) // not taken
			x.m.mapSG(x.listB)
			if !x.m.tab.Uses(x.listA) {
				t.Fatal("posted work has no list")
			}
			switch how {
			case "reset":
				x.ok(x.b.q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState))
			case "destroy":
				x.b.n.Dev.DestroyQP(x.b.q)
			case "error":
				x.ok(x.b.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
				x.f.Run(x.f.Now() + 100_000)
			}
			if x.m.tab.Uses(x.listA) || x.m.tab.Staged(x.m.key.Index(), num) != nil {
				t.Fatal("dropped work keeps its list")
			}
		})
	}
}

// TestRepeatedReadOfDeadKey: a READ that the peer repeats, its answer being late, and behind it in
// the same batch the SEND_WITH_INV of a peer that has the answer by now. The repetition is refused,
// but the connection lives: the peer takes that NAK for what it is, of long ago.
func TestRepeatedReadOfDeadKey(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	tab := p.n.Dev.Keys()
	key, err := tab.AllocFast(p.q.Init().PD, 1)
	p.must(err)
	_, err = tab.Map(key.Index(), [][]byte{make([]byte, 4096)})
	p.must(err)
	num, err := tab.Stage(mr.Region{Key: key, Access: sim.AllAccess, IOVA: fastVA, Length: 4096})
	p.must(err)
	p.post(rxe.SendWR{Opcode: rxe.WRRegMR, RKey: key, List: num})
	read := packet{op: wire.RCReadRequest, psn: firstPSN, va: fastVA, rkey: key, length: 600}
	if got := p.inject(read); len(got) != 3 {
		t.Fatalf("%d answers", len(got))
	}
	p.recv(1, 64)
	got := p.inject(read, packet{op: wire.RCSendOnlyInv, psn: firstPSN.Add(3), inv: uint32(key),
		ackReq: true})
	if len(got) != 2 || got[0].syn != wire.NAKSyndrome(wire.NAKRemoteAccess) ||
		got[0].psn != firstPSN || got[1].syn.Kind() != wire.KindACK {
		t.Errorf("answers %+v", got)
	}
	p.state(rxe.StateRTS)
	if c := p.poll(); len(c) != 2 || c[1].Status != rxe.WCSuccess || c[1].Flags != rxe.WCWithInv {
		t.Errorf("completions %+v", c)
	}
	// The first time a READ meets a dead key, it ends the connection.
	wantNAK(t, p.inject(packet{op: wire.RCReadRequest, psn: firstPSN.Add(4), va: fastVA, rkey: key,
		length: 8}), firstPSN.Add(4), wire.NAKRemoteAccess)
	p.state(rxe.StateErr)
}
