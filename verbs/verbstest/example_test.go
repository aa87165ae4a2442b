package verbstest_test

import (
	"context"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// end is what the program under test has on each side: memory, a completion queue, a queue pair.
func end(d *verbs.Context) (mr *verbs.MR, cq *verbs.CQ, qp *verbs.QP, info verbs.ConnInfo) {
	pd := must(d.AllocPD())
	mr, cq = must(pd.AllocMR(8000, verbs.LocalWrite)), must(d.CreateCQ(16))
	qp = must(d.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))
	return mr, cq, qp, verbs.ConnInfo{QPN: qp.Num(), PSN: verbs.RandomPSN(), GID: must(d.GID(0))}
}

// wait takes the next completion.
func wait(cq *verbs.CQ) {
	var wc [1]verbs.WC
	for must(cq.Poll(wc[:])) == 0 {
		must(0, cq.Wait(context.Background()))
	}
	if wc[0].Status != verbs.WCSuccess {
		panic(wc[0].Status)
	}
}

// A hundred messages cross a network that loses, doubles, damages and reorders frames.
func Example() {
	faults := sim.Faults{Drop: 0.02, Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.01}
	n := must(verbstest.New(verbstest.Config{Seed: 1, Faults: faults}))
	defer n.Close()
	from, fromCQ, client, c := end(n.Device(0))
	to, toCQ, server, s := end(n.Device(1))
	must(0, client.ConnectRC(c.PSN, s, verbs.ConnOptions{}))
	must(0, server.ConnectRC(s.PSN, c, verbs.ConnOptions{}))
	in, out, sum := []verbs.SGE{to.SGE(0, 8000)}, []verbs.SGE{from.SGE(0, 8000)}, 0
	for i := range 100 {
		must(0, server.PostRecv(&verbs.RecvWR{SGList: in}))
		from.Bytes()[7999] = byte(i)
		must(0, client.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: out}))
		wait(toCQ)
		wait(fromCQ)
		sum += int(to.Bytes()[7999])
	}
	fmt.Println(sum, n.Stats().Dropped > 0, n.Stats().Corrupted > 0)
	// Output: 4950 true true
}
