package verbs

import (
	"context"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// end is one side of a connection in a test.
type end struct {
	c   *Context
	pd  *PD
	cq  *CQ
	qp  *QP
	mr  *MR
	psn PSN
}

func openIn(t *testing.T, n *nettest.Namespace, cfg *Config) *Context {
	t.Helper()
	var c *Context
	n.Do(func() {
		var err error
		if c, err = Open(n.Interface, cfg); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func newEnd(t *testing.T, c *Context, size int) *end {
	t.Helper()
	e := &end{c: c, psn: RandomPSN()}
	var err error
	if e.pd, err = c.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if e.cq, err = c.CreateCQ(512); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = e.pd.AllocMR(size, LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	e.qp, err = c.CreateQP(e.pd, &QPInitAttr{Type: RC, SendCQ: e.cq, RecvCQ: e.cq, Shard: -1,
		Cap: QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// ipv4 is the GID index of the first IPv4 address.
func ipv4(t *testing.T, c *Context) GIDEntry {
	t.Helper()
	for _, g := range c.GIDs() {
		if g.GID.IsIPv4() {
			return g
		}
	}
	t.Fatal("no IPv4 address")
	return GIDEntry{}
}

func connect(t *testing.T, a, b *end, o ConnOptions) {
	t.Helper()
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		o.SGIDIndex = ipv4(t, p[0].c).Index
		peer := ConnInfo{QPN: p[1].qp.Num(), PSN: p[1].psn, GID: ipv4(t, p[1].c).GID}
		if err := p[0].qp.ConnectRC(p[0].psn, peer, o); err != nil {
			t.Fatal(err)
		}
	}
}

// wait takes n completions.
func (e *end) wait(t *testing.T, n int) []WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var out []WC
	wc := make([]WC, 16)
	for len(out) < n {
		if err := e.cq.Wait(ctx); err != nil {
			t.Fatalf("after %d of %d completions: %v", len(out), n, err)
		}
		got, err := e.cq.Poll(wc)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, wc[:got]...)
	}
	return out
}

func TestVethSend(t *testing.T) {
	for _, mode := range []Progress{ProgressPoller, ProgressCaller} {
		t.Run(mode.String(), func(t *testing.T) {
			lab := nettest.New(t, nettest.Config{})
			a := newEnd(t, openIn(t, lab.A, &Config{Progress: mode}), 1<<20)
			b := newEnd(t, openIn(t, lab.B, &Config{Progress: mode}), 1<<20)
			connect(t, a, b, ConnOptions{})
			copy(a.mr.Bytes(), "hello")
			if err := b.qp.PostRecv(&RecvWR{WRID: 7, SGList: []SGE{b.mr.SGE(0, 1<<20)}}); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := a.qp.PostSend(&SendWR{WRID: 9, Opcode: WRSend, Flags: SendSignaled,
				SGList: []SGE{a.mr.SGE(0, 100000)}}); err != nil {
				t.Fatal(err)
			}
			w := b.wait(t, 1)
			t.Log(time.Since(start))
			if w[0].Status != WCSuccess || w[0].WRID != 7 || w[0].ByteLen != 100000 {
				t.Errorf("receive completion %+v", w[0])
			}
			w = a.wait(t, 1)
			t.Log(time.Since(start))
			if w[0].Status != WCSuccess || w[0].WRID != 9 {
				t.Errorf("send completion %+v", w[0])
			}
			if got := string(b.mr.Bytes()[:5]); got != "hello" {
				t.Errorf("received %q", got)
			}
		})
	}
	_ = netdev.MinPMTU
}
