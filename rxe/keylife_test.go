package rxe_test

import (
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
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
