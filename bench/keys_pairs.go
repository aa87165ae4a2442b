package bench

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

const (
	pairBatch = 32 // pairs posted at a time
	pairSegs  = 16
)

// pairs posts REG_MR and LOCAL_INV to a send queue of an engine without a wire and drives its shard.
type pairs struct {
	dev   *rxe.Device
	shard *rxe.Shard
	qp    *rxe.QP
	cq    *rxe.CQ
	tab   *mr.Table
	key   mr.Key
	segs  [][]byte
	now   rxe.Time
	cqe   [2]rxe.CQE
	frame [rxe.MinFrame]byte
}

// newPairs makes an engine over a key table, whose fast region key it registers, on one of the
// shards of grace.
func newPairs(tab *mr.Table, grace *mr.Grace, key mr.Key, shard, last int) (*pairs, error) {
	seed := uint64(1)
	rand := func() uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return seed
	}
	dev, err := rxe.NewDevice(rxe.Config{Shards: last + 1, Keys: tab, Grace: grace, Rand: rand}, 0)
	if err != nil {
		return nil, err
	}
	p := &pairs{dev: dev, shard: dev.Shards()[shard], tab: tab, key: key}
	for range pairSegs {
		p.segs = append(p.segs, make([]byte, 4096))
	}
	if _, err := tab.Map(key.Index(), p.segs); err != nil {
		return nil, err
	}
	if p.cq, err = dev.NewCQ(64); err != nil {
		return nil, err
	}
	p.shard.Enter()
	defer p.shard.Leave()
	if p.qp, err = dev.CreateQP(p.shard, rxe.QPInit{Type: rxe.RC, PD: checkPD, SendCQ: p.cq,
		RecvCQ: p.cq, MaxSendWR: 2 * pairBatch}); err != nil {
		return nil, err
	}
	return p, p.ready()
}

// ready brings the QP to RTS, towards nobody.
func (p *pairs) ready() error {
	a := rxe.QPAttr{Port: 1, PathMTU: 1024, MaxDestRdAtomic: 1, MaxQPRdAtomic: 1, AV: rxe.AV{
		Path: wire.Path{VLAN: -1, Src: wire.GIDFromIPv4([4]byte{10, 0, 0, 1}),
			Dst: wire.GIDFromIPv4([4]byte{10, 0, 0, 2}), HopLimit: 64}}}
	for i, mask := range []rxe.AttrMask{
		rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags,
		rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN | rxe.AttrMaxDestRdAtomic |
			rxe.AttrMinRNRTimer,
		rxe.AttrTimeout | rxe.AttrRetryCnt | rxe.AttrRNRRetry | rxe.AttrSQPSN | rxe.AttrMaxQPRdAtomic,
	} {
		a.State = rxe.StateInit + rxe.QPState(i)
		if err := p.qp.Modify(&a, mask|rxe.AttrState); err != nil {
			return err
		}
	}
	return nil
}

// run posts n pairs, at most pairBatch, and waits until the last is complete. With anew each
// registration gets a list mapped for it.
func (p *pairs) run(n int, anew bool) {
	for i := range n {
		if anew {
			if _, err := p.tab.Map(p.key.Index(), p.segs); err != nil {
				panic(err)
			}
		}
		num, err := p.tab.Stage(mr.Region{Key: p.key, Access: mr.LocalWrite | mr.RemoteWrite,
			IOVA: checkVA, Length: pairSegs * 4096})
		if err != nil {
			panic(err)
		}
		reg := rxe.SendWR{Opcode: rxe.WRRegMR, RKey: p.key, List: num}
		inv := rxe.SendWR{Opcode: rxe.WRLocalInv, RKey: p.key}
		if i == n-1 {
			inv.Flags = rxe.SendSignaled
		}
		if err := p.qp.PostSend(&reg); err != nil {
			panic(err)
		}
		if err := p.qp.PostSend(&inv); err != nil {
			panic(err)
		}
		p.key = p.key.Inc()
	}
	p.qp.RingDoorbell()
	s := p.shard
	for p.cq.Poll(p.cqe[:]) == 0 {
		p.now += 1000
		s.Enter()
		s.Turn(p.now)
		if s.CanTransmit() {
			s.Transmit(p.now, rxe.Frame{Head: p.frame[:]})
		}
		s.Leave()
	}
	if st := p.cqe[0].Status; st != rxe.WCSuccess {
		panic(st)
	}
}

func (p *pairs) close() {
	p.shard.Enter()
	p.dev.DestroyQP(p.qp)
	p.shard.Leave()
}

// pairs measures pairs on one core, and what they allocate.
func (k *Keys) pairs(rounds int) error {
	grace := mr.NewGrace(1)
	tab := mr.New(mr.MaxLimit, 1, grace)
	key, err := tab.AllocFast(checkPD, pairSegs)
	if err != nil {
		return err
	}
	p, err := newPairs(tab, grace, key, 0, 0)
	if err != nil {
		return err
	}
	defer p.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const n = 1 << 14
	var ns [2]float64
	for range rounds {
		for i, anew := range []bool{false, true} {
			lower(&ns[i], stretches(n, n/8, func(from, to int) {
				for ; from < to; from += pairBatch {
					p.run(pairBatch, anew)
				}
			}))
		}
	}
	k.RegInv, k.RegInvMapped = 1e9/ns[0], 1e9/ns[1]
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n / pairBatch {
		p.run(pairBatch, true)
	}
	runtime.ReadMemStats(&after)
	k.AllocsPerPair = float64(after.Mallocs-before.Mallocs) / n
	if k.AllocsPerPair < 0.001 { // the runtime's own
		k.AllocsPerPair = 0
	}
	return nil
}

// calls measures RegMR and Dereg of a device in memory.
func (k *Keys) calls(rounds int) error {
	links, _ := verbs.NewLinkPair(1)
	port := verbs.PortInfo{Name: "memory", MAC: wire.MAC{2, 0, 0, 0, 0, 1},
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}}
	dev, err := verbs.OpenLinks(links, port, nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	mem := make([]byte, 1<<16)
	var ns float64
	for range rounds {
		lower(&ns, stretches(1<<13, 1<<11, func(from, to int) {
			for ; from < to && err == nil; from++ {
				var m *verbs.MR
				if m, err = pd.RegMR(mem, verbs.LocalWrite|verbs.RemoteWrite); err == nil {
					err = m.Dereg()
				}
			}
		}))
	}
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	k.RegMR = float64(time.Second.Nanoseconds()) / ns
	return nil
}
