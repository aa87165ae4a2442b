package rxe_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file runs a device of several shards by as many goroutines, on heap memory, for the race
// detector: two shards receive WRITEs without pause through whatever key there is, the owner's shard
// executes, and the application, a goroutine of its own, changes its memory by plain stores as soon as
// it was told that it may. Nothing orders shards and application but what the engine does: without
// grace, the detector reports.

// raceWorld is the device and its application.
type raceWorld struct {
	t       testing.TB
	noEnter bool // mistake: the attacking shards work without saying so, so that nobody waits for them
	dev     *rxe.Device
	pd      mr.PD
	cq      *rxe.CQ
	owner   *rxe.QP
	peer    wire.Template // of the owner's peer
	inject  chan []byte   // frames for the owner's shard
	psn     wire.PSN      // of the next of them

	mem, other []byte
	key        atomic.Uint32   // what the attackers use
	hits       [2]atomic.Int64 // WRITEs that got through, of each attacker
	tries      [2]atomic.Int64
	stop       atomic.Bool
	end        sync.WaitGroup
}

const (
	racePMTU = 256
	raceVA   = 0x1000
	raceLen  = 1500
)

func newRaceWorld(t testing.TB, noEnter bool) *raceWorld {
	seed := uint64(7)
	dev, err := rxe.NewDevice(rxe.Config{Shards: 3, Rand: func() uint64 { seed += 0x9e3779b97f4a7c15; return seed }}, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &raceWorld{t: t, noEnter: noEnter, dev: dev, pd: 7, inject: make(chan []byte, 4), psn: firstPSN,
		mem: make([]byte, raceLen), other: make([]byte, raceLen)}
	w.cq, err = dev.NewCQ(64)
	w.must(err)
	w.owner = w.qp(0, rxe.RC, &w.peer)
	w.end.Go(w.own)
	for i := range 2 {
		var tmpl wire.Template
		q := w.qp(1+i, rxe.UC, &tmpl)
		w.end.Go(func() { w.attack(i, q, &tmpl) })
	}
	return w
}

func (w *raceWorld) close() {
	w.stop.Store(true)
	w.end.Wait()
}

func (w *raceWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// qp makes a QP that is ready, and the template of its peer's packets.
func (w *raceWorld) qp(shard int, typ rxe.QPType, peer *wire.Template) *rxe.QP {
	w.t.Helper()
	s := w.dev.Shards()[shard]
	s.Enter()
	defer s.Leave()
	q, err := w.dev.CreateQP(s, rxe.QPInit{Type: typ, PD: w.pd, SendCQ: w.cq, RecvCQ: w.cq, MaxSendWR: 16,
		MaxRecvWR: 16})
	w.must(err)
	ours := wire.Path{SrcMAC: wire.MAC{2, 0, 0, 0, 0, 1}, DstMAC: wire.MAC{2, 0, 0, 0, 0, 2}, VLAN: -1,
		Src: wire.GIDFromIPv4([4]byte{10, 0, 0, 1}), Dst: wire.GIDFromIPv4([4]byte{10, 0, 0, 2}),
		HopLimit: 64, SrcPort: 0xc123}
	theirs := ours
	theirs.SrcMAC, theirs.DstMAC, theirs.Src, theirs.Dst = ours.DstMAC, ours.SrcMAC, ours.Dst, ours.Src
	peer.Init(&theirs, q.QPN(), 0xffff)
	a := rxe.QPAttr{Port: 1, AccessFlags: mr.RemoteWrite, AV: rxe.AV{Path: ours}, PathMTU: racePMTU,
		DestQPN: peerQPN, RQPSN: firstPSN, MaxDestRdAtomic: 1, MinRNRTimer: 1, RetryCnt: 7, RNRRetry: 7}
	rtr := rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN
	rts := rxe.AttrSQPSN
	if typ == rxe.RC {
		rtr |= rxe.AttrMaxDestRdAtomic | rxe.AttrMinRNRTimer
		rts |= rxe.AttrTimeout | rxe.AttrRetryCnt | rxe.AttrRNRRetry | rxe.AttrMaxQPRdAtomic
	}
	for i, mask := range []rxe.AttrMask{rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags, rtr, rts} {
		a.State = rxe.StateInit + rxe.QPState(i)
		w.must(q.Modify(&a, mask|rxe.AttrState))
	}
	return q
}

// own drives the owner's shard, as a driver does.
func (w *raceWorld) own() {
	s := w.owner.Shard()
	var buf [512]byte
	for now := rxe.Time(0); !w.stop.Load(); now += 1000 {
		s.Enter()
		select {
		case f := <-w.inject:
			s.Receive(now, wire.Frame{Head: f})
		default:
		}
		s.Turn(now)
		for s.Transmit(now, wire.Frame{Head: buf[:]}) > 0 { // to nobody
		}
		s.Leave()
		runtime.Gosched()
	}
}

// attack is the driver of a shard whose peer sends one WRITE of two packets after the other.
func (w *raceWorld) attack(i int, q *rxe.QP, tmpl *wire.Template) {
	s, psn := q.Shard(), firstPSN
	var buf [512]byte
	half := uint64(i) * raceLen / 2 // each has memory of its own: two WRITEs do race
	for now := rxe.Time(0); !w.stop.Load(); now += 1000 {
		key := w.key.Load()
		if !w.noEnter {
			s.Enter()
		}
		faults := s.C.KeyFaults
		for n := range uint64(4) {
			va := raceVA + half + n*23
			s.Receive(now, writePacket(tmpl, buf[:], wire.UCWriteFirst, psn, va, key, racePMTU))
			s.Receive(now, writePacket(tmpl, buf[:], wire.UCWriteLast, psn.Next(), va, key, 100))
			psn = psn.Add(2)
		}
		if s.C.KeyFaults == faults {
			w.hits[i].Add(1)
		}
		s.Turn(now)
		s.Leave()
		w.tries[i].Add(1)
		runtime.Gosched()
	}
}

// writePacket builds one packet of a WRITE of 356 bytes.
func writePacket(tmpl *wire.Template, b []byte, op wire.Opcode, psn wire.PSN, va uint64, key uint32, n int) wire.Frame {
	hdr := tmpl.Begin(b, op)
	(*wire.BTH)(hdr).SetPSN(psn)
	if o := op.Info().RETHOff; o != 0 {
		h := (*wire.RETH)(hdr[o:])
		h.SetVA(va)
		h.SetRKey(key)
		h.SetLength(racePMTU + 100)
	}
	return wire.Frame{Head: b[:tmpl.Finish(wire.Frame{Head: b}, op, n)]}
}

// post posts a signaled work request and waits for its success.
func (w *raceWorld) post(wr rxe.SendWR) {
	w.t.Helper()
	wr.Flags = rxe.SendSignaled
	w.must(w.owner.PostSend(&wr))
	w.owner.RingDoorbell()
	w.completion()
}

func (w *raceWorld) completion() rxe.CQE {
	w.t.Helper()
	var c [1]rxe.CQE
	w.until(func() bool { return w.cq.Poll(c[:]) == 1 })
	if c[0].Status != rxe.WCSuccess {
		w.t.Fatalf("%+v", c[0])
	}
	return c[0]
}

func (w *raceWorld) until(done func() bool) {
	w.t.Helper()
	for start := time.Now(); !done(); runtime.Gosched() {
		if time.Since(start) > 20*time.Second {
			w.t.Fatal("waited in vain")
		}
	}
}

// attacked waits until both attackers have come through with the key; tried, until both have tried.
func (w *raceWorld) attacked(key mr.Key) {
	w.t.Helper()
	w.key.Store(uint32(key))
	w.progress(&w.hits)
}

func (w *raceWorld) tried() { w.progress(&w.tries) }

func (w *raceWorld) progress(n *[2]atomic.Int64) {
	w.t.Helper()
	a, b := n[0].Load(), n[1].Load()
	w.until(func() bool { return n[0].Load() > a+1 && n[1].Load() > b+1 })
}

// reuse is the application with memory that is its own again: it writes without asking anybody, and
// finds there what it wrote.
func (w *raceWorld) reuse(x byte) {
	w.t.Helper()
	for i := range w.mem {
		w.mem[i] = x
	}
	w.tried()
	for i, got := range w.mem {
		if got != x {
			w.t.Fatalf("byte %d was written after the memory was given back", i)
		}
	}
}

// grace waits as the control path does.
func (w *raceWorld) grace() {
	w.t.Helper()
	g := w.dev.Grace()
	e := g.Start()
	w.until(func() bool { return g.Passed(e) })
}

func (w *raceWorld) segs() [][]byte { return [][]byte{w.mem[:10], w.mem[10:700], w.mem[700:]} }

// register makes a user region of the memory.
func (w *raceWorld) register(access mr.Access) mr.Key {
	w.t.Helper()
	key, err := w.dev.Keys().Alloc(mr.KindUser, w.pd)
	w.must(err)
	w.must(w.dev.Keys().Publish(w.view(key, access, w.segs()...)))
	return key
}

func (w *raceWorld) view(key mr.Key, access mr.Access, segs ...[]byte) *mr.View {
	w.t.Helper()
	v, err := mr.NewView(mr.Region{Key: key, PD: w.pd, Access: access, IOVA: raceVA, Length: raceLen,
		List: mr.NewList(segs...)})
	w.must(err)
	return v
}

const raceAccess = mr.LocalWrite | mr.RemoteWrite | mr.MWBind

// endings are the ways in which an application gets its memory back.
var endings = []struct {
	name string
	run  func(w *raceWorld, rounds int)
}{
	{"LOCAL_INV", func(w *raceWorld, rounds int) { w.fastRegion(rounds, false) }},
	{"SEND_WITH_INV", func(w *raceWorld, rounds int) { w.fastRegion(rounds, true) }},
	{"BIND_MW", (*raceWorld).rebind},
	{"DeregMR", func(w *raceWorld, rounds int) {
		for i := range rounds {
			key := w.register(raceAccess)
			w.attacked(key)
			if _, f := w.dev.Keys().Unpublish(key.Index()); f != mr.FaultNone {
				w.t.Fatal(f)
			}
			w.grace()
			w.reuse(byte(i))
			w.must(w.dev.Keys().Free(key.Index()))
		}
	}},
	{"ReregMR", func(w *raceWorld, rounds int) {
		key := w.register(raceAccess)
		for i := range rounds {
			w.attacked(key)
			for _, to := range [][]byte{w.other, w.mem} {
				if _, f := w.dev.Keys().Rereg(w.view(key, raceAccess, to)); f != mr.FaultNone {
					w.t.Fatal(f)
				}
				w.grace()
				if &to[0] == &w.other[0] {
					w.reuse(byte(i))
				}
			}
		}
	}},
}

func (w *raceWorld) fastRegion(rounds int, remote bool) {
	tab := w.dev.Keys()
	key, err := tab.AllocFast(w.pd, 3)
	w.must(err)
	for i := range rounds {
		_, err := tab.Map(key.Index(), w.segs())
		w.must(err)
		num, err := tab.Stage(mr.Region{Key: key, Access: raceAccess, IOVA: raceVA, Length: raceLen})
		w.must(err)
		w.post(rxe.SendWR{Opcode: rxe.WRRegMR, RKey: key, List: num})
		w.attacked(key)
		if remote {
			w.must(w.owner.PostRecv(&rxe.RecvWR{}))
			w.inject <- w.sendInv(key)
			if c := w.completion(); c.Flags != rxe.WCWithInv || c.Imm != uint32(key) {
				w.t.Fatalf("%+v", c)
			}
		} else {
			w.post(rxe.SendWR{Opcode: rxe.WRLocalInv, RKey: key})
		}
		w.reuse(byte(i))
		key = key.Inc()
	}
}

// sendInv is an empty SEND_WITH_INV of the owner's peer.
func (w *raceWorld) sendInv(key mr.Key) []byte {
	b := make([]byte, 256)
	hdr := w.peer.Begin(b, wire.RCSendOnlyInv)
	(*wire.BTH)(hdr).SetPSN(w.psn)
	(*wire.IETH)(hdr[wire.RCSendOnlyInv.Info().InvOff:]).SetRKey(uint32(key))
	w.psn = w.psn.Next()
	return b[:w.peer.Finish(wire.Frame{Head: b}, wire.RCSendOnlyInv, 0)]
}

func (w *raceWorld) rebind(rounds int) {
	tab := w.dev.Keys()
	parent := w.register(raceAccess)
	key, err := tab.Alloc(mr.KindWindow1, w.pd)
	w.must(err)
	bind := func(n uint64) {
		num, err := tab.StageBind(key.Index())
		w.must(err)
		wr := rxe.SendWR{Opcode: rxe.WRBindMW, MWType1: true, MWKey: key, RKey: key.Inc(), Parent: parent, List: num}
		if n > 0 {
			wr.RemoteAddr, wr.Length, wr.Access = raceVA, n, mr.RemoteWrite
		}
		w.post(wr)
		key = wr.RKey
	}
	for i := range rounds {
		bind(raceLen)
		w.attacked(key)
		bind(0)
		w.reuse(byte(i))
	}
}

// TestGraceBeforeReuse: memory that was given back is the application's alone.
func TestGraceBeforeReuse(t *testing.T) {
	rounds := 300
	if raceEnabled {
		rounds = 60
	}
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			w := newRaceWorld(t, false)
			defer w.close()
			e.run(w, rounds)
			t.Logf("%d rounds, %d batches of WRITEs came through", rounds,
				w.hits[0].Load()+w.hits[1].Load())
		})
	}
}
