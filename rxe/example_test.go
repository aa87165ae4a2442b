package rxe_test

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// host is what a program has around the engine: a device, memory that peers may use, a queue pair.
type host struct {
	dev *rxe.Device
	gid wire.GID
	mac wire.MAC
	mem []byte
	key mr.Key
	cq  *rxe.CQ
	qp  *rxe.QP
}

const hostPD = 1 // any number but 0: protection domains are the caller's to hand out

func newHost(n byte) *host {
	h := &host{mac: wire.MAC{2, 0, 0, 0, 0, n}, gid: wire.GIDFromIPv4([4]byte{10, 0, 0, n})}
	seed := uint64(n)
	random := func() uint64 { seed = seed*6364136223846793005 + 1; return seed }
	h.dev = must(rxe.NewDevice(rxe.Config{Rand: random}, 0))
	h.dev.SetGIDs([]wire.GID{h.gid})

	// Memory becomes a region in two steps: an index of the key table, and what it is to show there.
	h.mem = make([]byte, 4096)
	h.key = must(h.dev.Keys().Alloc(mr.KindUser, hostPD))
	view := must(mr.NewView(mr.Region{Key: h.key, PD: hostPD, Access: mr.LocalWrite | mr.RemoteWrite,
		IOVA: 0x1000, Length: 4096, List: mr.NewList(h.mem)}))
	check(h.dev.Keys().Publish(view))

	h.cq = must(h.dev.NewCQ(16))
	h.qp = must(h.dev.CreateQP(h.dev.Shards()[0], rxe.QPInit{Type: rxe.RC, PD: hostPD,
		SendCQ: h.cq, RecvCQ: h.cq, MaxSendWR: 8, MaxSend: 1}))
	return h
}

// connect brings the QP to RTS, as ibv_modify_qp does: INIT, RTR with what the peer sends, RTS with
// what it gets.
func (h *host) connect(peer *host) {
	a := rxe.QPAttr{State: rxe.StateInit, Port: 1, AccessFlags: mr.RemoteWrite}
	check(h.qp.Modify(&a, rxe.AttrState|rxe.AttrPKeyIndex|rxe.AttrPort|rxe.AttrAccessFlags))
	a = rxe.QPAttr{State: rxe.StateRTR, PathMTU: 1024, DestQPN: peer.qp.QPN(), RQPSN: 100,
		AV: rxe.AV{Path: wire.Path{SrcMAC: h.mac, DstMAC: peer.mac, VLAN: -1, Src: h.gid, Dst: peer.gid,
			HopLimit: 64, SrcPort: wire.SourcePort(wire.FlowLabel(h.qp.QPN(), peer.qp.QPN()))}}}
	check(h.qp.Modify(&a, rxe.AttrState|rxe.AttrAV|rxe.AttrPathMTU|rxe.AttrDestQPN|rxe.AttrRQPSN|
		rxe.AttrMaxDestRdAtomic|rxe.AttrMinRNRTimer))
	a = rxe.QPAttr{State: rxe.StateRTS, SQPSN: 100, Timeout: 10, RetryCnt: 7, RNRRetry: 7}
	check(h.qp.Modify(&a, rxe.AttrState|rxe.AttrTimeout|rxe.AttrRetryCnt|rxe.AttrRNRRetry|
		rxe.AttrSQPSN|rxe.AttrMaxQPRdAtomic))
}

// A driver by hand: two engines, each with one shard, and a wire that loses the second packet. All
// that a shard asks of its driver is in activity.
func ExampleShard() {
	a, b := newHost(1), newHost(2)
	a.connect(b)
	b.connect(a)

	copy(a.mem, "memory to memory")
	check(a.qp.PostSend(&rxe.SendWR{ID: 7, Opcode: rxe.WRRDMAWrite, Flags: rxe.SendSignaled,
		SGEs: []rxe.SGE{{Addr: 0x1000, Length: 2000, LKey: a.key}}, RemoteAddr: 0x1000, RKey: b.key}))
	a.qp.RingDoorbell()

	now, sent := rxe.Time(0), 0
	activity := func(from, to *host) {
		s := from.dev.Shards()[0]
		s.Enter()
		s.Expire(now)
		s.Turn(now)
		buf := make([]byte, 2048)
		for {
			n := s.Transmit(now, wire.Frame{Head: buf})
			if n == 0 {
				break
			}
			var p wire.Packet
			wire.Parse(wire.Frame{Head: buf[:n]}, &p)
			fmt.Printf("%.1f ms  %v  PSN %d  %d bytes\n", float64(now)/1e6, p.Op, p.PSN, p.PayloadLen)
			if sent++; sent == 2 {
				fmt.Println("        … is lost")
				continue
			}
			peer := to.dev.Shards()[0]
			peer.Enter()
			peer.Receive(now, wire.Frame{Head: buf[:n]})
			peer.Leave()
		}
		s.Leave()
	}
	var cqe [1]rxe.CQE
	for a.cq.Poll(cqe[:]) == 0 {
		before := sent
		activity(a, b)
		activity(b, a)
		if sent == before { // nothing to do: a driver sleeps until a frame, or until then
			now = min(a.dev.Shards()[0].Deadline(), b.dev.Shards()[0].Deadline())
		}
	}
	fmt.Println(cqe[0].Opcode, cqe[0].WRID, cqe[0].Status)
	fmt.Printf("%s\n", b.mem[:16])
	// Output:
	// 0.0 ms  RC_WRITE_FIRST  PSN 100  1024 bytes
	// 0.0 ms  RC_WRITE_LAST  PSN 101  976 bytes
	//         … is lost
	// 4.2 ms  RC_WRITE_FIRST  PSN 100  1024 bytes
	// 4.2 ms  RC_WRITE_LAST  PSN 101  976 bytes
	// 4.2 ms  RC_ACKNOWLEDGE  PSN 101  0 bytes
	// RDMA_WRITE 7 success
	// memory to memory
}

// On a fabric of package sim the driver, the clock and the wire are there already: most questions
// about the engine are asked like this.
func ExampleQP() {
	f := sim.New(sim.Config{Seed: 1, Faults: sim.Faults{Drop: 0.05}})
	a, b := must(f.AddNode(sim.NodeConfig{})), must(f.AddNode(sim.NodeConfig{}))
	end := func(n *sim.Node) (*rxe.QP, *rxe.CQ, *sim.Region) {
		pd, cq := n.AllocPD(), must(n.Dev.NewCQ(64))
		q := must(n.Dev.CreateQP(n.Dev.Shards()[0], rxe.QPInit{Type: rxe.RC, PD: pd,
			SendCQ: cq, RecvCQ: cq, MaxSendWR: 64, MaxSend: 1}))
		return q, cq, must(n.Reg(pd, make([]byte, 1<<16), 0, sim.AllAccess))
	}
	qa, ca, ma := end(a)
	qb, _, mb := end(b)
	check(sim.Connect(a, qa, b, qb, sim.ConnAttr{}))

	for i := range 20 {
		check(qa.PostSend(&rxe.SendWR{Opcode: rxe.WRAtomicFetchAdd, Flags: rxe.SendSignaled,
			SGEs: []rxe.SGE{ma.SGE(8*i, 8)}, RemoteAddr: mb.Addr, RKey: mb.Key, CompareAdd: 1}))
	}
	qa.RingDoorbell()
	f.Kick(a)

	done, cqes := 0, make([]rxe.CQE, 64)
	f.RunUntil(rxe.Never, func() bool {
		done += ca.Poll(cqes)
		return done == 20
	})
	fmt.Println(done, "completions; the counter says", mb.Buf[0])
	fmt.Println("frames lost:", f.Stats.Dropped > 0)
	fmt.Println("packets sent again:", qa.Inspect().Counters.Retransmits > 0)
	// Output:
	// 20 completions; the counter says 20
	// frames lost: true
	// packets sent again: true
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
