package verbs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
)

// TestQueues: connections between all pairs of queues. Where the two ends live on different ones,
// frames arrive at the wrong shard and are handed over, and counted.
func TestQueues(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		for _, queues := range []int{2, 4} {
			t.Run(fmt.Sprint(queues), func(t *testing.T) {
				cfg.Queues = queues
				ca, cb := w.open(t, cfg, cfg)
				for i := range queues {
					for j := range queues {
						a := newEnd(t, ca, endConfig{shard: i + 1})
						b := newEnd(t, cb, endConfig{shard: j + 1})
						connect(t, a, b, ConnOptions{})
						if a.qp.Shard() != i || b.qp.Shard() != j {
							t.Fatalf("QPs on shards %d and %d, want %d and %d", a.qp.Shard(), b.qp.Shard(), i, j)
						}
						before := handovers(ca) + handovers(cb)
						testSend(t, a, b, 10000)
						testWrite(t, a, b, 10000)
						testRead(t, a, b, 10000)
						if got := handovers(ca) + handovers(cb) - before; (got > 0) != (i != j) {
							t.Errorf("from shard %d to %d: %d frames handed over", i, j, got)
						}
					}
				}
			})
		}
	})
}

func handovers(c *Context) uint64 {
	s := c.Stats()
	return s.Total.Handovers
}

// TestRoundRobin: QPs that do not choose go round the shards.
func TestRoundRobin(t *testing.T) {
	ca, _ := openMemory(t, Config{Queues: 4}, Config{Queues: 4})
	for i := range 8 {
		if e := newEnd(t, ca, endConfig{}); e.qp.Shard() != i%4 {
			t.Errorf("QP %d lives on shard %d", i, e.qp.Shard())
		}
	}
}

// TestOneCQManyShards: QPs of all shards complete to one queue, each in order.
func TestOneCQManyShards(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		cfg.Queues = 4
		ca, cb := w.open(t, cfg, cfg)
		cq, err := ca.CreateCQ(1024)
		if err != nil {
			t.Fatal(err)
		}
		const each = 100
		var ends []*end
		for range 4 {
			a, b := newEnd(t, ca, endConfig{cq: cq}), newEnd(t, cb, endConfig{})
			connect(t, a, b, ConnOptions{})
			ends = append(ends, a)
			for i := range each {
				a.send(SendWR{WRID: uint64(i), Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 100)},
					RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
			}
		}
		next := map[QPN]uint64{}
		for _, c := range ends[0].wait(4 * each) {
			if c.Status != WCSuccess || c.WRID != next[c.QPN] {
				t.Fatalf("completion %+v, want WRID %d", c, next[c.QPN])
			}
			next[c.QPN]++
		}
	})
}

// TestLoopback: QPs of one device reach each other, on one shard and on two.
func TestLoopback(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		cfg.Queues = 2
		c, _ := w.open(t, cfg, cfg)
		for _, shards := range [][2]int{{1, 1}, {1, 2}} {
			a, b := newEnd(t, c, endConfig{shard: shards[0], size: 1 << 17}),
				newEnd(t, c, endConfig{shard: shards[1], size: 1 << 17})
			connect(t, a, b, ConnOptions{})
			testSend(t, a, b, 100001)
			testWrite(t, a, b, 100001)
			testRead(t, a, b, 100001)
			testAtomics(t, a, b)
		}
		if s := c.Stats(); s.Total.Loopbacks == 0 || s.Total.RcvdPkts != 0 {
			t.Errorf("%d frames turned round, %d received", s.Total.Loopbacks, s.Total.RcvdPkts)
		}
	})
}

// TestAtomicsOverShards: FETCH_ADDs of two shards on one word add up.
func TestAtomicsOverShards(t *testing.T) {
	ca, cb := openMemory(t, Config{Queues: 2}, Config{Queues: 2})
	target := newEnd(t, cb, endConfig{})
	const each = 2000
	var ends []*end
	for i := range 2 {
		a := newEnd(t, ca, endConfig{shard: i + 1})
		b := newEnd(t, cb, endConfig{shard: i + 1, pd: target.pd})
		connect(t, a, b, ConnOptions{})
		ends = append(ends, a)
	}
	for n := 0; n < each; n += 100 {
		for _, a := range ends {
			for range 100 {
				a.send(SendWR{Opcode: WRAtomicFetchAdd, SGList: []SGE{a.mr.SGE(0, 8)}, CompareAdd: 1,
					RemoteAddr: target.mr.Addr(), RKey: target.mr.RKey()})
			}
		}
		for _, a := range ends {
			for _, c := range a.wait(100) {
				if c.Status != WCSuccess {
					t.Fatalf("completion %+v", c)
				}
			}
		}
	}
	target.seen()
	if got := binary.NativeEndian.Uint64(target.mr.Bytes()); got != 2*each {
		t.Errorf("sum is %d, want %d", got, 2*each)
	}
}

// TestSRQ: QPs share a receive queue; it tells when it runs low.
func TestSRQ(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		ca, cb := w.open(t, cfg, cfg)
		pd, err := cb.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		srq, err := cb.CreateSRQ(pd, SRQInitAttr{MaxWR: 8, MaxSGE: 1})
		if err != nil {
			t.Fatal(err)
		}
		var as, bs []*end
		for range 3 {
			a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{pd: pd, srq: srq})
			connect(t, a, b, ConnOptions{})
			as, bs = append(as, a), append(bs, b)
		}
		mem := bs[0].mr
		for i := range 8 {
			bs[0].must(srq.PostRecv(&RecvWR{WRID: uint64(i), SGList: []SGE{mem.SGE(i*64, 64)}}))
		}
		if err := srq.PostRecv(&RecvWR{}); err != ErrQueueFull {
			t.Errorf("ninth receive of eight: %v", err)
		}
		bs[0].must(srq.SetLimit(6))
		for i, a := range as {
			copy(a.mr.Bytes(), fmt.Sprint("message ", i))
			a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 9)}})
			c := bs[i].done(WCSuccess)
			if want := fmt.Sprint("message ", i); string(mem.Bytes()[c.WRID*64:c.WRID*64+9]) != want {
				t.Errorf("receive %d holds %q, want %q", c.WRID, mem.Bytes()[c.WRID*64:c.WRID*64+9], want)
			}
			a.done(WCSuccess)
		}
		if e := bs[0].event(); e.Type != EventSRQLimit || e.SRQ != srq {
			t.Errorf("event %v, want the SRQ limit", e)
		}
		if q := srq.Query(); q.Limit != 0 || q.MaxWR != 8 {
			t.Errorf("SRQ after its event: %+v", q)
		}
		bs[0].must(srq.Resize(100))
		if err := srq.Destroy(); err == nil {
			t.Error("an SRQ with QPs was destroyed")
		}
		for _, b := range bs {
			b.must(b.qp.Destroy())
		}
		bs[0].must(srq.Destroy())
	})
}

// TestCQ: a queue that overflows says so; resizing keeps what waits.
func TestCQ(t *testing.T) {
	onWires(t, func(t *testing.T, w wireKind) {
		ca, cb := w.open(t, Config{}, Config{})
		small, err := ca.CreateCQ(4)
		if err != nil {
			t.Fatal(err)
		}
		a, b := newEnd(t, ca, endConfig{cq: small}), newEnd(t, cb, endConfig{})
		connect(t, a, b, ConnOptions{})
		write := func(id uint64) {
			a.send(SendWR{WRID: id, Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 8)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		for i := range 4 {
			write(uint64(i))
		}
		until(t, func() bool { return small.Len() == 4 })
		if err := small.Resize(3); err == nil {
			t.Error("a queue of four completions was made shorter")
		}
		a.must(small.Resize(6))
		write(4)
		until(t, func() bool { return small.Len() == 5 })
		for i, c := range a.wait(5) {
			if c.WRID != uint64(i) || c.Status != WCSuccess {
				t.Errorf("completion %d: %+v", i, c)
			}
		}
		for i := range 8 {
			write(uint64(i))
		}
		if e := a.event(); e.Type != EventCQErr || e.CQ != small || e.Reason != rxe.ReasonCQOverflow {
			t.Errorf("event %v, want CQ error", e)
		}
		until(t, func() bool { return a.qp.State() == StateErr })
		if err := small.Wait(t.Context()); small.Len() == 0 && err != ErrCQOverflow {
			t.Errorf("Wait on an overflowed queue: %v", err)
		}
		var wc [16]WC
		n, err := small.Poll(wc[:])
		if n == 0 || err != nil {
			t.Errorf("the completions before the overflow: %d, %v", n, err)
		}
		if n, err = small.Poll(wc[:]); n != 0 || err != ErrCQOverflow {
			t.Errorf("Poll of an overflowed queue: %d, %v", n, err)
		}
	})
}

// TestSolicited: a queue armed for solicited completions fires for those only.
func TestSolicited(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{}, ConnOptions{})
		b.recv(1, b.mr.SGE(0, 8))
		b.recv(2, b.mr.SGE(0, 8))
		b.cq.ReqNotify(true)
		a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 8)}})
		a.done(WCSuccess)
		select {
		case <-b.cq.Notify():
			t.Error("notified of a completion that was not solicited")
		default:
		}
		a.send(SendWR{Opcode: WRSend, Flags: SendSolicited, SGList: []SGE{a.mr.SGE(0, 8)}})
		<-b.cq.Notify()
		if n := b.cq.Len(); n != 2 {
			t.Errorf("%d completions, want 2", n)
		}
	})
}

// TestFastMR: REG_MR, access, LOCAL_INV, and the window of type 2, each by work requests.
func TestFastMR(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{}, ConnOptions{RetryCnt: 1})
		m, err := b.pd.AllocFastMR(4)
		b.must(err)
		mem := [][]byte{make([]byte, 100), make([]byte, 200)}
		b.must(m.MapSG(mem, 0x10000))
		m.UpdateKey(0x77)
		b.send(SendWR{Opcode: WRRegMR, MR: m, Access: LocalWrite | RemoteWrite})
		if c := b.done(WCSuccess); c.Opcode != WCRegMR {
			t.Errorf("completion %+v", c)
		}
		fill(a.mr.Bytes(), 1)
		write := SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 250)}, RemoteAddr: 0x10000 + 20,
			RKey: m.RKey()}
		a.send(write)
		a.done(WCSuccess)
		b.seen()
		got := append(bytes.Clone(mem[0][20:]), mem[1][:170]...)
		if !bytes.Equal(got, a.mr.Bytes()[:250]) {
			t.Error("WRITE to a region of two segments arrived changed")
		}
		win, err := b.pd.AllocMW(MWType2)
		b.must(err)
		bindable, err := b.pd.RegMR(make([]byte, 4096), LocalWrite|MWBind)
		b.must(err)
		b.send(SendWR{Opcode: WRBindMW, MW: win, MR: bindable, Key: win.RKey().Inc(), Access: RemoteWrite,
			Addr: bindable.Addr() + 1000, Length: 100})
		b.done(WCSuccess)
		a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 100)},
			RemoteAddr: bindable.Addr() + 1000, RKey: win.RKey()})
		a.done(WCSuccess)
		if err := bindable.Dereg(); err == nil {
			t.Error("a region with a window was deregistered")
		}
		b.send(SendWR{Opcode: WRLocalInv, RKey: win.RKey()})
		b.send(SendWR{Opcode: WRLocalInv, RKey: m.RKey()})
		for _, c := range b.wait(2) {
			if c.Status != WCSuccess || c.Opcode != WCLocalInv {
				t.Errorf("completion %+v", c)
			}
		}
		b.must(bindable.Dereg())
		a.send(write)
		a.done(WCRemAccessErr)
		b.must(win.Dealloc())
		b.must(m.Dereg())
	})
}
