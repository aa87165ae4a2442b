package verbs

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/xdp"
)

// TestQuery: what a device tells about itself.
func TestQuery(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	c := openIn(t, l.A, Config{Queues: 2})
	d, p := c.Device(), c.Port()
	if d.Shards != 2 || d.MaxSGE != rxe.MaxSGE || d.Name != "roxie_"+l.A.Interface || d.NodeGUID == 0 {
		t.Errorf("device %+v", d)
	}
	if p.State != PortActive || p.LinkMTU != 9000 || p.MaxPMTU != 4096 || p.MaxPMTU6 != 4096 ||
		p.MAC != wire.MAC(l.A.MAC) || p.Ifindex != l.A.Ifindex || p.LinkState == "" {
		t.Errorf("port %+v", p)
	}
	gids := c.GIDs()
	if len(gids) != 3 || gids[0].GID[0] != 0xfe || gid(t, c, false).GID.IPv4() != l.A.IPv4.As4() ||
		gids[0].Type.String() != "RoCE v2" {
		t.Errorf("GIDs %v", gids)
	}
	if g, err := c.GID(gids[1].Index); err != nil || g != gids[1].GID {
		t.Errorf("GID 1: %v, %v", g, err)
	}
	if c.XDPMode() != bpf.Native.String() || c.ZeroCopy() {
		t.Errorf("mode %q, zero-copy %v", c.XDPMode(), c.ZeroCopy())
	}
	e := newEnd(t, c, endConfig{})
	e.must(e.qp.Modify(&QPAttr{State: StateInit, Port: 1, AccessFlags: RemoteRead},
		AttrState|AttrPKeyIndex|AttrPort|AttrAccessFlags))
	a, in := e.qp.Query()
	if a.State != StateInit || a.AccessFlags != RemoteRead || in.Type != RC ||
		in.Cap.MaxSendWR != 128 {
		t.Errorf("QP %+v, %+v", a, in)
	}
}

// TestGeneric: the steering program in the kernel's generic mode, copy mode demanded.
func TestGeneric(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	cfg := Config{Mode: bpf.Generic, ZeroCopy: xdp.Never}
	a, b := newEnd(t, openIn(t, l.A, cfg), endConfig{size: 1 << 17}),
		newEnd(t, openIn(t, l.B, cfg), endConfig{size: 1 << 17})
	if a.c.XDPMode() != bpf.Generic.String() {
		t.Errorf("mode %q", a.c.XDPMode())
	}
	connect(t, a, b, ConnOptions{})
	testSend(t, a, b, 100001)
	if s := b.c.Stats(); s.BPF[bpf.VerdictRedirected] == 0 || s.Shards[0].XDP.RXFrames == 0 {
		t.Errorf("statistics %+v", s)
	}
}

// TestVLANAndCapture: tagged both ways; both ends capture the same frames with their directions.
func TestVLANAndCapture(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		var mu sync.Mutex
		var frames [2][3]int // by end and direction
		hook := func(end int) func(Direction, int, time.Time, []byte, []byte) {
			return func(d Direction, shard int, at time.Time, head, tail []byte) {
				mu.Lock()
				defer mu.Unlock()
				frames[end][d]++
				if tag := binary.BigEndian.Uint32(head[12:]); tag != 0x81000000|77 {
					t.Errorf("end %d: frame with tag %#x", end, tag)
				}
				if shard != 0 || time.Since(at).Abs() > time.Minute || len(head)+len(tail) < 60 {
					t.Errorf("end %d: frame of %d+%d bytes at %v", end, len(head), len(tail), at)
				}
			}
		}
		ca, cb := cfg, cfg
		ca.VLAN, cb.VLAN = 77, 77
		ca.Capture, cb.Capture = hook(0), hook(1)
		x, y := w.open(t, ca, cb)
		a, b := newEnd(t, x, endConfig{size: 1 << 17}), newEnd(t, y, endConfig{size: 1 << 17})
		connectBy(t, a, b, ConnOptions{}, true)
		testSend(t, a, b, 10000)
		testRead(t, a, b, 10000)
		a.must(x.Close())
		b.must(y.Close())
		if frames[0][Outbound] != frames[1][Inbound] || frames[0][Inbound] != frames[1][Outbound] ||
			frames[0][Outbound] < 4 || frames[1][Outbound] < 4 {
			t.Errorf("captured %v", frames)
		}
	})
}

// TestDeregUnderFire: regions are taken away and their memory unmapped while a peer writes to them.
// A use afterwards would end the process.
func TestDeregUnderFire(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		for range 5 {
			a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{size: 1 << 16})
			connect(t, a, b, ConnOptions{})
			var refused atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				var wc [16]WC
				wr := SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 1<<16)},
					RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
				for !refused.Load() {
					_ = a.qp.PostSend(&wr)
					n, _ := a.cq.Poll(wc[:])
					for _, c := range wc[:n] {
						if c.Status == WCRemAccessErr {
							refused.Store(true)
						}
					}
				}
			}()
			time.Sleep(2 * time.Millisecond)
			a.must(b.mr.Close())
			select {
			case <-done:
			case <-time.After(testPatience):
				refused.Store(true)
				t.Fatal("the peer was not refused")
			}
			a.must(a.qp.Destroy())
			b.must(b.qp.Destroy())
		}
	})
}

// TestControlUnderLoad: control calls get their turn at a busy shard.
func TestControlUnderLoad(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{size: 1 << 16}, ConnOptions{})
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			var wc [16]WC
			wr := SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 1<<16)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			for !stop.Load() {
				_ = a.qp.PostSend(&wr)
				_, _ = a.cq.Poll(wc[:])
			}
		})
		start := time.Now()
		const rounds = 50
		for range rounds {
			x, y := newEnd(t, a.c, endConfig{size: 4096}), newEnd(t, b.c, endConfig{size: 4096})
			connect(t, x, y, ConnOptions{})
			x.must(x.qp.Destroy())
			y.must(y.qp.Destroy())
			x.must(x.mr.Close())
			y.must(y.mr.Close())
		}
		took := time.Since(start)
		stop.Store(true)
		wg.Wait()
		t.Logf("%v for two ends made, connected and destroyed", (took / rounds).Round(time.Microsecond))
		if took > rounds*100*time.Millisecond {
			t.Errorf("control calls starve: %v", took)
		}
		if s := a.qp.State(); s != StateRTS {
			t.Errorf("the busy QP is in %v", s)
		}
	})
}

// TestCloseUnderLoad: Close while others post, poll and wait.
func TestCloseUnderLoad(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{size: 1 << 16}, ConnOptions{})
		buf := make([]byte, 4096) // AllocMR memory goes with Close
		local, err := a.pd.RegMR(buf, LocalWrite)
		a.must(err)
		var wg sync.WaitGroup
		wg.Go(func() {
			var wc [16]WC
			wr := SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: []SGE{local.SGE(0, 4096)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			for {
				_ = a.qp.PostSend(&wr)
				if _, err := a.cq.Poll(wc[:]); err == ErrClosed {
					return
				}
			}
		})
		wg.Go(func() {
			for a.cq.Wait(t.Context()) != ErrClosed && !a.c.isClosed() { // what came before may wait
			}
		})
		time.Sleep(3 * time.Millisecond)
		a.must(a.c.Close())
		wg.Wait()
		if err := a.qp.Modify(&QPAttr{State: StateErr}, AttrState); err != ErrClosed {
			t.Errorf("Modify on a closed device: %v", err)
		}
	})
}

// TestGSI: a device has one QP1, and its datagrams use the well-known Q_Key.
func TestGSI(t *testing.T) {
	ca, cb := openMemory(t, Config{}, Config{})
	a, b := newEnd(t, ca, endConfig{typ: GSI}), newEnd(t, cb, endConfig{typ: GSI})
	_, err := ca.CreateQP(a.pd, &QPInitAttr{Type: GSI, SendCQ: a.cq, RecvCQ: a.cq})
	if err == nil {
		t.Error("a second QP1")
	}
	for _, e := range []*end{a, b} {
		e.startUD(1)
		e.must(e.qp.Modify(&QPAttr{QKey: rxe.QKeyGSI}, AttrQKey))
	}
	b.recv(1, b.mr.SGE(0, 256+GRHBytes))
	a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 256)}, AH: a.ahTo(cb, false), RemoteQPN: 1,
		RemoteQKey: rxe.QKeyGSI})
	a.done(WCSuccess)
	if c := b.done(WCSuccess); c.SrcQP != 1 || c.QPN != 1 {
		t.Errorf("receive %+v", c)
	}
}
