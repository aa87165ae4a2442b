package bench

import (
	"bytes"
	"context"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// This file measures what losses leave, in the simulator: the engines are the real ones, the time is
// virtual, and a seed decides which frames are lost. The figures are the same on every machine.

// Loss is the goodput at a loss rate, of the window as it is and of plain go-back-N: the same engine
// with a window that is fixed, whatever is lost.
type Loss struct {
	Rate        float64 `json:"rate"` // probability that a frame is lost
	Gbps        float64 `json:"gbps"` // in virtual time
	Share       float64 `json:"share"`
	Retransmits float64 `json:"retransmits"` // share of all request packets
	Fixed       float64 `json:"fixed_gbps"`
	FixedShare  float64 `json:"fixed_share"` // each ÷ loss-free, of its own kind
	FixedAgain  float64 `json:"fixed_retransmits"`
}

// The path: 10 Gb/s and a round trip of 100 µs, WRITEs of 64 KiB at PMTU 4096, 16 at a time.
const (
	lossOneWay  = 50_000 // ns
	lossBurst   = 4      // frames a step
	lossFrame   = 4154
	lossPace    = lossBurst * lossFrame * 8 / 10 // ns a step, for 10 Gb/s
	lossSize    = 65536
	lossDepth   = 16
	lossWindow  = 128
	lossTimeout = 8 // 1.05 ms
)

// lossRates are those of the plot.
var lossRates = []float64{0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03}

// LossRun measures.
func LossRun(ctx context.Context, quick bool) ([]Loss, error) {
	rates, seeds, span := lossRates, 3, rxe.Time(200_000_000)
	if quick {
		rates, seeds, span = []float64{0, 0.01}, 1, 20_000_000
	}
	var out []Loss
	for _, rate := range rates {
		l := Loss{Rate: rate}
		for seed := range seeds {
			for _, fixed := range []bool{false, true} {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				gbps, again, err := lossy(rate, uint64(seed+1), fixed, span)
				if err != nil {
					return nil, fmt.Errorf("loss %v, seed %d, fixed window %v: %w", rate, seed+1, fixed, err)
				}
				g, a := &l.Gbps, &l.Retransmits
				if fixed {
					g, a = &l.Fixed, &l.FixedAgain
				}
				*g += gbps / float64(seeds)
				*a += again / float64(seeds)
			}
		}
		out = append(out, l)
		out[len(out)-1].Share = l.Gbps / out[0].Gbps
		out[len(out)-1].FixedShare = l.Fixed / out[0].Fixed
	}
	return out, nil
}

// lossy is one run. It returns the goodput and the share of packets sent again.
func lossy(rate float64, seed uint64, fixed bool, span rxe.Time) (gbps, again float64, err error) {
	f := sim.New(sim.Config{Seed: seed, Latency: lossOneWay, Pace: lossPace, Faults: sim.Faults{Drop: rate}})
	dev := rxe.Config{Window: lossWindow}
	if fixed {
		dev.MinWindow, dev.NoProbe = lossWindow, true
	}
	var nodes [2]*sim.Node
	var qps [2]*rxe.QP
	var mem [2]*sim.Region
	var cq *rxe.CQ
	for i := range nodes {
		n, err := f.AddNode(sim.NodeConfig{Device: dev, TxBurst: lossBurst})
		if err != nil {
			return 0, 0, err
		}
		pd := n.AllocPD()
		c, err := n.Dev.NewCQ(4 * lossDepth)
		if err != nil {
			return 0, 0, err
		}
		nodes[i] = n
		qps[i], err = n.Dev.CreateQP(n.Dev.Shards()[0], rxe.QPInit{Type: rxe.RC, PD: pd, SendCQ: c, RecvCQ: c,
			MaxSendWR: lossDepth, MaxRecvWR: 1, MaxSend: 1, MaxRecv: 1})
		if err != nil {
			return 0, 0, err
		}
		if mem[i], err = n.Reg(pd, make([]byte, lossDepth*lossSize), 0, sim.AllAccess); err != nil {
			return 0, 0, err
		}
		fill(mem[i].Buf, uint64(i))
		if i == 0 {
			cq = c
		}
	}
	if err := sim.Connect(nodes[0], qps[0], nodes[1], qps[1],
		sim.ConnAttr{PMTU: 4096, Timeout: lossTimeout}); err != nil {
		return 0, 0, err
	}
	post := func(slot int) error {
		err := qps[0].PostSend(&rxe.SendWR{ID: uint64(slot), Opcode: rxe.WRRDMAWrite, Flags: rxe.SendSignaled,
			SGEs:       []rxe.SGE{mem[0].SGE(slot*lossSize, lossSize)},
			RemoteAddr: mem[1].Addr + uint64(slot*lossSize), RKey: mem[1].Key})
		qps[0].RingDoorbell()
		return err
	}
	open, messages := lossDepth, 0
	for i := range lossDepth {
		if err := post(i); err != nil {
			return 0, 0, err
		}
	}
	var cqe [lossDepth]rxe.CQE
	var failed error
	took := span
	f.RunUntil(100*span, func() bool {
		got := cq.Poll(cqe[:])
		for _, c := range cqe[:got] {
			if c.Status != rxe.WCSuccess {
				failed = fmt.Errorf("completion with %v", c.Status)
				return true
			}
			if f.Now() > span {
				open--
				continue
			}
			messages++
			if failed = post(int(c.WRID)); failed != nil {
				return true
			}
		}
		if got > 0 {
			f.Kick(nodes[0])
		}
		return open == 0
	})
	switch {
	case failed != nil:
		return 0, 0, failed
	case open > 0:
		return 0, 0, fmt.Errorf("%d messages never completed", open)
	case !bytes.Equal(mem[0].Buf, mem[1].Buf):
		return 0, 0, fmt.Errorf("what arrived is not what was sent")
	}
	c := &qps[0].Shard().C
	return float64(messages) * lossSize * 8 / float64(took), float64(c.Retransmits) / float64(c.SentPkts), nil
}
