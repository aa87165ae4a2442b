package rxe_test

import (
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// TestReplayOwnLossy: recordings of our own engines over a wire that loses or repeats packets, taken
// behind the loss as the kernel's are, and replayed.
func TestReplayOwnLossy(t *testing.T) {
	const send, sendImm, write, writeImm, read, fadd = rxe.WRSend, rxe.WRSendWithImm, rxe.WRRDMAWrite,
		rxe.WRRDMAWriteWithImm, rxe.WRRDMARead, rxe.WRAtomicFetchAdd
	apart := []group{{{op: write, n: 2000}}, {{op: send, n: 3501}}, {{op: read, n: 4000}}, {{op: fadd, n: 8}},
		{{op: write, n: 1200}, {op: send, n: 1100}, {op: writeImm, n: 1500}, {op: sendImm, n: 8}},
		{{op: read, n: 0}}, {{op: read, n: 2500}}, {{op: fadd, n: 8}}, {{op: send, n: 0}}}
	together := []group{
		{{op: read, n: 2000}, {op: send, n: 16, flags: rxe.SendFence}, {op: send, n: 20, flags: rxe.SendInline}},
		{{op: write, n: 1200}, {op: send, n: 1100}, {op: read, n: 2100}, {op: fadd, n: 8}, {op: sendImm, n: 8}},
		{{op: read, n: 1500}, {op: read, n: 1500}, {op: read, n: 1500}, {op: read, n: 1500}},
		{{op: fadd, n: 8}, {op: fadd, n: 8}, {op: fadd, n: 8}}}
	lossy := map[string]int{}
	for _, c := range []struct {
		name  string
		fault sim.Verdict
		from  int // end whose packets meet the fault
		share float64
	}{
		{"loss", sim.Drop, endA, 0.25}, {"ackloss", sim.Drop, endB, 0.4}, {"dup", sim.Duplicate, endA, 0.6},
	} {
		for seed := uint64(1); seed <= 8; seed++ {
			for _, groups := range [][]group{apart, together} {
				answers := len(groups) == len(apart) // see TestReplayOwn
				t.Run(fmt.Sprintf("%s/seed=%d/answers=%v", c.name, seed, answers), func(t *testing.T) {
					dir := t.TempDir() + "/"
					w := &ownRecorder{t: t, typ: rxe.RC, pmtu: 1024, psn: 0x100}
					r := sim.NewRand(seed)
					w.fault = func(from int) sim.Verdict {
						if from == c.from && r.Chance(c.share) {
							return c.fault
						}
						return sim.Pass
					}
					w.record(dir+c.name, c.name, false, groups)
					rec := readRecording(t, dir, c.name)
					if rec.lossy {
						lossy[c.name]++
					}
					x := new(exceptions)
					replay(t, rec, x, (*player).requester)
					if answers {
						replay(t, rec, x, (*player).responder)
					}
				})
			}
		}
	}
	if lossy["loss"] == 0 || lossy["ackloss"] == 0 || lossy["dup"] == 0 {
		t.Errorf("recordings that show their faults: %v", lossy)
	}
}
