package rxe_test

import (
	"encoding/binary"
	"sync"
	"testing"
	"unsafe"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// direct joins one shard of two devices by plain calls, in the goroutine that uses it.
type direct struct {
	a, b *rxe.Shard
	now  rxe.Time
	buf  [4352]byte
}

// settle moves frames both ways until there are none.
func (d *direct) settle() {
	d.now += 1000
	d.a.Enter()
	d.b.Enter()
	for d.pass(d.a, d.b)+d.pass(d.b, d.a) > 0 {
	}
	d.a.Leave()
	d.b.Leave()
}

func (d *direct) pass(from, to *rxe.Shard) (n int) {
	from.Turn(d.now)
	for ; n < 64; n++ {
		l := from.Transmit(d.now, rxe.Frame{Head: d.buf[:]})
		if l == 0 {
			break
		}
		to.Receive(d.now, rxe.Frame{Head: d.buf[:l]})
	}
	return n
}

// TestAtomicsOverShards: two shards, each driven by a goroutine of its own, add to one word by 10^6
// FETCH_ADDs each, and swap another by CMP_SWAP loops: nothing is lost. Both for a word that is aligned
// in memory and for one that lies across two.
func TestAtomicsOverShards(t *testing.T) {
	each := 1_000_000
	if raceEnabled || testing.Short() {
		each = 20_000
	}
	for _, shift := range []int{0, 3} {
		atomicsOverShards(t, each, shift)
		each /= 10
	}
}

func atomicsOverShards(t *testing.T, each, shift int) {
	x := newFan(t, 2, 256)
	words := make([]uint64, 512) // aligned
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 4096)[shift : 4096-8+shift]
	target, err := x.b.Reg(x.qb[0].Init().PD, mem, memAddr, sim.AllAccess)
	x.ok(err)
	var wg sync.WaitGroup
	for i := range 2 {
		src, err := x.a.Reg(x.qa[i].Init().PD, make([]byte, 4096), memAddr+0x10000*uint64(i+1), sim.AllAccess)
		x.ok(err)
		cq, err := x.a.Dev.NewCQ(64)
		x.ok(err)
		in := x.qa[i].Init()
		in.SendCQ, in.RecvCQ = cq, cq
		qa, err := x.a.Dev.CreateQP(x.a.Dev.Shards()[i], in)
		x.ok(err)
		x.ok(x.qb[i].Modify(&rxe.QPAttr{}, rxe.AttrState)) // RESET
		x.ok(sim.Connect(x.a, qa, x.b, x.qb[i], sim.ConnAttr{RdAtomic: 16, NoTimeout: true, Access: sim.AllAccess}))
		wg.Go(func() {
			d := &direct{a: x.a.Dev.Shards()[i], b: x.b.Dev.Shards()[i], now: 1}
			add := rxe.SendWR{Opcode: rxe.WRAtomicFetchAdd, Flags: rxe.SendSignaled, RemoteAddr: memAddr + 512, RKey: target.Key,
				CompareAdd: 1, SGEs: []rxe.SGE{src.SGE(0, 8)}}
			swap := add
			swap.Opcode, swap.RemoteAddr, swap.SGEs = rxe.WRAtomicCmpSwap, memAddr+1024, []rxe.SGE{src.SGE(8, 8)}
			var c [64]rxe.CQE
			var last, swapped uint64
			for done := 0; done < each; {
				n := min(16, each-done)
				for range n {
					if err := qa.PostSend(&add); err != nil {
						t.Error(err)
						return
					}
				}
				swap.CompareAdd, swap.Swap = swapped, swapped+1
				if err := qa.PostSend(&swap); err != nil {
					t.Error(err)
					return
				}
				qa.RingDoorbell()
				d.settle()
				got := cq.Poll(c[:])
				for _, e := range c[:got] {
					if e.Status != rxe.WCSuccess {
						t.Errorf("completion %+v", e)
						return
					}
				}
				if got != n+1 {
					t.Errorf("%d completions of %d", got, n+1)
					return
				}
				done += n
				orig := binary.NativeEndian.Uint64(src.Buf)
				if orig < last {
					t.Errorf("original %d after %d: the word went back", orig, last)
					return
				}
				last = orig
				if swapped = binary.NativeEndian.Uint64(src.Buf[8:]); swapped == swap.CompareAdd {
					swapped++ // ours
				}
			}
		})
	}
	wg.Wait()
	if got := binary.NativeEndian.Uint64(target.Buf[512:]); got != 2*uint64(each) {
		t.Errorf("shift %d: total %d, want exactly %d", shift, got, 2*each)
	}
	if got := binary.NativeEndian.Uint64(target.Buf[1024:]); got == 0 || got > uint64(2*(each/16+1)) {
		t.Errorf("shift %d: %d swaps succeeded of %d", shift, got, 2*(each/16+1))
	}
}

// TestAtomicValues: FETCH_ADD wraps, CMP_SWAP stores only on equality, operands and results are in the
// order of bytes of the hosts, big-endian on the wire.
func TestAtomicValues(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{rd: 4})
	word := p.mem.Buf[8:16]
	binary.NativeEndian.PutUint64(word, 1<<64-2)
	k := packet{op: wire.RCFetchAdd, psn: firstPSN, va: memAddr + 8, rkey: p.mem.Key, swap: 5}
	if s := one(t, p.inject(k)); s.orig != 1<<64-2 || binary.NativeEndian.Uint64(word) != 3 {
		t.Fatalf("original %#x, memory % x", s.orig, word)
	}
	for i, cmp := range []uint64{4, 3} {
		k := packet{op: wire.RCCmpSwap, psn: firstPSN.Add(uint32(1 + i)), va: memAddr + 8, rkey: p.mem.Key, compare: cmp, swap: 0x0102030405060708}
		if s := one(t, p.inject(k)); s.orig != 3 {
			t.Fatalf("original %#x", s.orig)
		}
		if got := binary.NativeEndian.Uint64(word); got != map[uint64]uint64{4: 3, 3: 0x0102030405060708}[cmp] {
			t.Fatalf("compare %d left %#x", cmp, got)
		}
	}
	out := one(t, p.post(rxe.SendWR{ID: 1, Opcode: rxe.WRAtomicFetchAdd, SGEs: []rxe.SGE{p.mem.SGE(64, 3), p.mem.SGE(80, 5)},
		RemoteAddr: 0x5000, RKey: 7, CompareAdd: 0x1122334455667788}))
	var b wire.Packet
	if wire.Parse(wire.Frame{Head: out.frame}, &b) != wire.ReasonOK || b.AtomicETH().SwapAdd() != 0x1122334455667788 || b.AtomicETH().VA() != 0x5000 {
		t.Fatalf("sent %v", &b)
	}
	p.inject(packet{op: wire.RCAtomicAck, psn: ourPSN, syn: wire.AckSyndrome(31), orig: 0x0102030405060708})
	p.wantWC("1:success")
	got := append(append([]byte(nil), p.mem.Buf[64:67]...), p.mem.Buf[80:85]...)
	if binary.NativeEndian.Uint64(got) != 0x0102030405060708 {
		t.Fatalf("result % x over two elements", got)
	}
}
