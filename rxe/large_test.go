package rxe_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

const gib2 = 1 << 31

// sparse is 2 GiB of memory that takes place only where it is written.
func sparse(t testing.TB) []byte {
	b, err := syscall.Mmap(-1, 0, gib2, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // fewer page faults
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b
}

// repeated registers 2 GiB that are the same megabyte over and over: position i holds unit[i mod 2^20].
func repeated(t testing.TB, n *sim.Node, pd mr.PD, unit []byte) *sim.Region {
	segs := make([][]byte, gib2/len(unit))
	for i := range segs {
		segs[i] = unit
	}
	return regList(t, n, pd, mr.NewList(segs...))
}

func regList(t testing.TB, n *sim.Node, pd mr.PD, l *mr.List) *sim.Region {
	t.Helper()
	key, err := n.Dev.Keys().Alloc(mr.KindUser, pd)
	if err != nil {
		t.Fatal(err)
	}
	v, err := mr.NewView(mr.Region{Key: key, PD: pd, Access: sim.AllAccess, IOVA: 1 << 40, Length: l.Len(), List: l})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Dev.Keys().Publish(v); err != nil {
		t.Fatal(err)
	}
	return &sim.Region{Key: key, Addr: 1 << 40}
}

// big is two connected QPs, 2 GiB that repeat on one side and 2 GiB sparse on the other.
type big struct {
	t    *testing.T
	p    *pair
	unit []byte
	mem  []byte
	seen int // bytes of mem that have been checked and given back
}

func newBig(t *testing.T, pmtu uint32) *big {
	x := &big{t: t, p: newPair(t, pairConfig{conn: sim.ConnAttr{PMTU: pmtu, NoTimeout: true, PSN: 0xfffff0}}), unit: make([]byte, 1<<20)}
	r := sim.NewRand(31)
	for i := range x.unit {
		x.unit[i] = byte(r.Uint64())
	}
	return x
}

// run lets the two shards work until one completion is there, checking what arrives and giving it back.
func (x *big) run() rxe.CQE {
	d := &direct{a: x.p.a.q.Shard(), b: x.p.b.q.Shard(), now: 1}
	x.p.a.q.RingDoorbell()
	var c [1]rxe.CQE
	for steps := 0; x.p.a.cq.Poll(c[:]) == 0; steps++ {
		d.now += 1000
		d.a.Enter()
		d.b.Enter()
		if d.pass(d.a, d.b)+d.pass(d.b, d.a) == 0 {
			x.t.Fatal("nothing moves")
		}
		d.a.Leave()
		d.b.Leave()
		if steps%2000 == 0 {
			x.check(int(x.p.b.q.Stats.RcvdBytes+x.p.a.q.Stats.RcvdBytes) - 1<<20)
		}
	}
	return c[0]
}

// check compares mem up to about byte end.
func (x *big) check(end int) {
	x.t.Helper()
	const part = 32 << 20
	for ; x.mem != nil && x.seen+part <= end; x.seen += part {
		for at := x.seen; at < x.seen+part; at += len(x.unit) {
			if !bytes.Equal(x.mem[at:][:len(x.unit)], x.unit) {
				x.t.Fatalf("megabyte %d differs", at>>20)
			}
		}
		_ = syscall.Madvise(x.mem[x.seen:][:part], syscall.MADV_DONTNEED)
	}
}

// TestCase27Write2GiB: a WRITE of 2^31 bytes, the longest message there is, into contiguous memory, in
// bounded time and memory: every byte arrives. One byte more is refused at post.
func TestCase27Write2GiB(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("slow")
	}
	x := newBig(t, 4096)
	x.mem = sparse(t)
	src := repeated(t, x.p.a.n, x.p.a.q.Init().PD, x.unit)
	dst := regList(t, x.p.b.n, x.p.b.q.Init().PD, mr.NewList(x.mem))
	wr := rxe.SendWR{ID: 1, Opcode: rxe.WRRDMAWrite, Flags: rxe.SendSignaled, RemoteAddr: dst.Addr, RKey: dst.Key,
		SGEs: []rxe.SGE{{Addr: src.Addr, Length: gib2, LKey: src.Key}, {Addr: src.Addr, Length: 1, LKey: src.Key}}}
	if err := x.p.a.q.PostSend(&wr); !errors.Is(err, rxe.ErrMsgSize) {
		t.Fatalf("2^31 + 1 bytes: %v", err)
	}
	wr.SGEs = wr.SGEs[:1]
	x.p.ok(x.p.a.q.PostSend(&wr))
	start := time.Now()
	wantStatus(t, x.run(), rxe.WCSuccess)
	t.Logf("2 GiB in %v", time.Since(start).Round(time.Millisecond))
	x.check(gib2)
	if x.seen != gib2 || x.p.a.q.Stats.Retransmits != 0 || x.p.a.q.Stats.SentPkts != gib2/4096 {
		t.Fatalf("%d bytes seen, %+v", x.seen, x.p.a.q.Stats)
	}
}

// TestCase27Read2GiB: the same by READ, 2^19 response PSNs, into memory that repeats.
func TestCase27Read2GiB(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("slow")
	}
	x := newBig(t, 4096)
	got := make([]byte, 1<<20)
	src := repeated(t, x.p.b.n, x.p.b.q.Init().PD, x.unit)
	dst := repeated(t, x.p.a.n, x.p.a.q.Init().PD, got)
	x.p.ok(x.p.a.q.PostSend(&rxe.SendWR{ID: 1, Opcode: rxe.WRRDMARead, Flags: rxe.SendSignaled, RemoteAddr: src.Addr, RKey: src.Key,
		SGEs: []rxe.SGE{{Addr: dst.Addr, Length: gib2, LKey: dst.Key}}}))
	c := x.run()
	wantStatus(t, c, rxe.WCSuccess)
	if c.ByteLen != gib2 || !bytes.Equal(got, x.unit) {
		t.Fatalf("byte_len %d, or other bytes", c.ByteLen)
	}
}

// TestCase27PSNExtreme: 2^31 bytes at PMTU 256 are 2^23 packets, half of all PSNs: the WRITE works,
// its PSNs wrap, and a READ that would need as many is refused.
func TestCase27PSNExtreme(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("slow")
	}
	x := newBig(t, 256)
	src := repeated(t, x.p.a.n, x.p.a.q.Init().PD, x.unit)
	got := make([]byte, 1<<20)
	dst := repeated(t, x.p.b.n, x.p.b.q.Init().PD, got)
	wr := rxe.SendWR{ID: 1, Opcode: rxe.WRRDMARead, Flags: rxe.SendSignaled, RemoteAddr: dst.Addr, RKey: dst.Key,
		SGEs: []rxe.SGE{{Addr: src.Addr, Length: gib2, LKey: src.Key}}}
	if err := x.p.a.q.PostSend(&wr); !errors.Is(err, rxe.ErrReadLen) {
		t.Fatalf("READ of 2^23 packets: %v", err)
	}
	wr.Opcode = rxe.WRRDMAWrite
	x.p.ok(x.p.a.q.PostSend(&wr))
	start := time.Now()
	wantStatus(t, x.run(), rxe.WCSuccess)
	t.Logf("2^23 packets in %v", time.Since(start).Round(time.Millisecond))
	s := x.p.a.q.Stats
	if s.SentPkts != 1<<23 || s.Retransmits != 0 || x.p.b.q.Query().RQPSN != wire.PSN(0xfffff0).Add(1<<23) || !bytes.Equal(got, x.unit) {
		t.Fatalf("%+v, expected PSN %#x", s, x.p.b.q.Query().RQPSN)
	}
}

// TestCase27SendPastTheLimit: a SEND goes on behind 2^31 bytes, into a receive that could take more: no
// message is longer, and the packet behind the limit is an invalid request.
func TestCase27SendPastTheLimit(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("slow")
	}
	p := qpIn(t, rxe.StateRTS, rawConfig{pmtu: 4096})
	dst := repeated(t, p.n, p.q.Init().PD, make([]byte, 1<<20))
	sge := rxe.SGE{Addr: dst.Addr, Length: gib2, LKey: dst.Key}
	p.must(p.q.PostRecv(&rxe.RecvWR{ID: 1, SGEs: []rxe.SGE{sge, sge}}))
	k := packet{op: wire.RCSendFirst, psn: firstPSN, payload: make([]byte, 4096)}
	const last = gib2 / 4096
	for i := range uint32(last) {
		p.receive(k)
		k.op, k.psn = wire.RCSendMiddle, firstPSN.Add(i+1)
	}
	if q := p.q.Query(); q.State != rxe.StateRTS || q.RQPSN != firstPSN.Add(last) {
		t.Fatalf("QP in %v, expects PSN %#x", q.State, q.RQPSN)
	}
	wantNAK(t, p.inject(k), firstPSN.Add(last), wire.NAKInvalidRequest)
	p.wantWC("1:local length error")
	p.state(rxe.StateErr)
}
