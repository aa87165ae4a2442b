package verbstest_test

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

func network(t *testing.T, c verbstest.Config) *verbstest.Network {
	t.Helper()
	n, err := verbstest.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

// pair connects a QP of device a with one of device b.
func pair(t *testing.T, n *verbstest.Network, a, b int, o verbs.ConnOptions) (x, y *peer) {
	t.Helper()
	x, y = newPeer(n.Device(a)), newPeer(n.Device(b))
	must(0, x.qp.ConnectRC(x.info.PSN, y.info, o))
	must(0, y.qp.ConnectRC(y.info.PSN, x.info, o))
	return x, y
}

type peer struct {
	mr   *verbs.MR
	cq   *verbs.CQ
	qp   *verbs.QP
	info verbs.ConnInfo
}

func newPeer(d *verbs.Context) *peer {
	mr, cq, qp, info := end(d)
	return &peer{mr, cq, qp, info}
}

// send posts a SEND of 8 bytes and returns its status.
func (p *peer) send(t *testing.T) verbs.WCStatus {
	t.Helper()
	must(0, p.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{p.mr.SGE(0, 8)}}))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	for must(p.cq.Poll(wc[:])) == 0 {
		must(0, p.cq.Wait(ctx))
	}
	return wc[0].Status
}

// TestPartition: a cut path makes requests fail, and what is joined again works.
func TestPartition(t *testing.T) {
	n := network(t, verbstest.Config{Devices: 3})
	quick := verbs.ConnOptions{Timeout: 8, RetryCnt: 1} // 1 ms, twice
	a, b := pair(t, n, 0, 1, quick)
	c, d := pair(t, n, 2, 1, verbs.ConnOptions{})
	must(0, b.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 8)}}))
	must(0, d.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{d.mr.SGE(0, 8)}}))
	n.Partition(1, 0, true) // answers only
	if st := a.send(t); st != verbs.WCRetryExcErr {
		t.Errorf("over a cut path: %v", st)
	}
	if st := c.send(t); st != verbs.WCSuccess {
		t.Errorf("beside it: %v", st)
	}
	n.Partition(1, 0, false)
	a, b = pair(t, n, 0, 1, verbs.ConnOptions{})
	must(0, b.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 8)}}))
	if st := a.send(t); st != verbs.WCSuccess {
		t.Errorf("over a path that is joined again: %v", st)
	}
}

// TestScript: the frames that a script names meet their faults, and no others.
func TestScript(t *testing.T) {
	var frames atomic.Int32
	n := network(t, verbstest.Config{Script: "drop n1>n2 RC_SEND_ONLY count=2\nat 0ms partition n2 n1 for 1us",
		Tap: func(from, to int, b []byte) {
			var p wire.Packet
			if from == 0 && to == 1 && wire.Parse(wire.Frame{Head: b}, &p) == wire.ReasonOK && p.Op == wire.RCSendOnly {
				frames.Add(1)
			}
		}})
	a, b := pair(t, n, 0, 1, verbs.ConnOptions{})
	must(0, b.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 8)}}))
	if st := a.send(t); st != verbs.WCSuccess {
		t.Fatal(st)
	}
	if got, x := frames.Load(), n.Stats(); got < 3 || x.Dropped < 2 {
		t.Errorf("sent %d times, %d frames dropped", got, x.Dropped)
	}
}

// TestManager: the connection manager works here, with faults, over both families and several queues.
func TestManager(t *testing.T) {
	n := network(t, verbstest.Config{Queues: 2, Seed: 3, Faults: sim.Faults{Drop: 0.1, Duplicate: 0.1, Reorder: 0.1}})
	ms := []*cm.Manager{must(cm.New(n.Device(0), nil)), must(cm.New(n.Device(1), nil))}
	defer ms[0].Close()
	defer ms[1].Close()
	l := must(ms[1].Listen(7, nil))
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, addr := range []netip.Addr{n.Addr(1), n.Addr6(1)} {
		a, b := newPeer(n.Device(0)), newPeer(n.Device(1))
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				_, _ = r.Accept(ctx, b.qp, nil)
			}
		}()
		c, err := ms[0].Dial(ctx, netip.AddrPortFrom(addr, 7), a.qp, nil)
		if err != nil {
			t.Fatal(err)
		}
		must(0, c.Disconnect(ctx))
	}
}

// TestRefused: configurations that make no sense.
func TestRefused(t *testing.T) {
	for text, c := range map[string]verbstest.Config{
		"out of range": {Devices: 300},
		"line 1":       {Script: "explode"},
		"partition":    {Script: "at 1ms sleep n1.0 for 1ms"},
	} {
		if _, err := verbstest.New(c); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
