package rxe_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Reports about other implementations that no other file's subject covers; docs/conformance.md says
// where each number comes from.

// TestCase21ElementCount: a record in a send or receive queue that claims more elements than the queue was made
// for fails alone; nothing behind the record is read.
func TestCase21ElementCount(t *testing.T) {
	for _, n := range []uint64{5, 32, 33, 255} { // made for 4
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		wr := p.writeWR(1, 8)
		p.must(p.q.PostSend(&wr))
		m := rxe.QueueMemory(&p.q.SQ)
		m[0] = m[0]&^(0xff<<16) | n<<16
		p.q.RingDoorbell()
		if s := p.run(); len(s) != 0 {
			t.Errorf("%d elements: sent %v", n, s)
		}
		p.wantWC("1:local QP operation error")

		p = qpIn(t, rxe.StateRTS, rawConfig{})
		p.recv(2, 64)
		rxe.QueueMemory(&p.q.RQ)[0] = n
		wantNAK(t, p.inject(packet{op: wire.RCSendOnly, psn: firstPSN, payload: fill(8, 1)}), firstPSN, wire.NAKRemoteOp)
		p.wantWC("2:local QP operation error")
	}
}

// TestCase25LengthsLie: packets of every opcode whose IP and UDP lengths end them early, seal and all, at every
// byte: what is shorter than its headers is dropped, what is shorter than its message is refused, and
// memory outside the region stays as it is.
func TestCase25LengthsLie(t *testing.T) {
	const ip = 14
	for op := wire.Opcode(0); op < 0x20; op++ {
		if !op.Known() {
			continue
		}
		p := qpIn(t, rxe.StateRTS, rawConfig{})
		p.recv(1, 4096)
		whole := p.frame(packet{op: op, va: memAddr, rkey: p.mem.Key, length: 64, payload: fill(64, 1)})
		for end := ip + 20 + 8; end < len(whole); end++ {
			f := bytes.Clone(whole[:end])
			binary.BigEndian.PutUint16(f[ip+2:], uint16(end-ip))
			binary.BigEndian.PutUint16(f[ip+24:], uint16(end-ip-20))
			binary.BigEndian.PutUint16(f[ip+10:], 0)
			sum := uint32(0)
			for i := 0; i < 20; i += 2 {
				sum += uint32(binary.BigEndian.Uint16(f[ip+i:]))
			}
			sum = sum>>16 + sum&0xffff
			binary.BigEndian.PutUint16(f[ip+10:], ^uint16(sum>>16+sum))
			if _, _, want := wire.CheckICRC(wire.Frame{Head: f}); want != 0 {
				binary.LittleEndian.PutUint32(f[end-4:], want)
			}
			if p.q.State() == rxe.StateErr {
				p.checkGuards()
				p = qpIn(t, rxe.StateRTS, rawConfig{})
				p.recv(1, 4096)
				p.tmpl.Init(&p.path, p.q.QPN(), 0xffff)
			}
			p.s.Enter()
			p.s.Receive(p.now, wire.Frame{Head: f})
			p.run()
			for _, c := range p.poll() {
				if c.Status == rxe.WCSuccess && c.ByteLen > uint32(max(0, end-ip-20-8-12-4)) {
					t.Fatalf("%v cut to %d bytes: %+v", op, end, c)
				}
			}
		}
		p.checkGuards()
	}
}

// registered puts the owner's list in force under its software key.
func (x *attack) registered(iova, n uint64) {
	x.t.Helper()
	x.m.reg(1, iova, n, sim.AllAccess, rxe.SendSignaled)
	x.done(1)
}

// TestCase29BumpedKey: the application's key is one ahead when it posts the LOCAL_INV of the registered one, as
// storage drivers do: what is compared is the key that the last REG_MR installed.
func TestCase29BumpedKey(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	x.registered(fastVA, 16384)
	old := x.m.key
	x.m.key = old.Inc()
	x.wantProbe(rxe.WRRDMAWrite, old, fastVA, 64, rxe.WCSuccess)
	x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 64, rxe.WCRemAccessErr)
	x.m.inv(2, old, rxe.SendSignaled)
	x.done(1)
	x.wantProbe(rxe.WRRDMAWrite, old, fastVA, 64, rxe.WCRemAccessErr)
}

// TestCase30RegisteredAgain: map once, register and invalidate many times: it is the one list each time.
func TestCase30RegisteredAgain(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	for i := range 10 {
		x.registered(fastVA, 16384)
		clear(x.listA)
		x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA+4000, 200, rxe.WCSuccess)
		if n := count(x.listA, 0x11); n != 200 {
			t.Fatalf("round %d: %d bytes reached the list", i, n)
		}
		x.m.inv(2, x.m.key, rxe.SendSignaled)
		x.done(1)
		x.m.key = x.m.key.Inc()
	}
}

// TestCase31LocalOnly: a region registered for its owner alone has a key that LOCAL_INV takes.
func TestCase31LocalOnly(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	x.m.reg(1, fastVA, 16384, mr.LocalWrite, rxe.SendSignaled)
	x.done(1)
	x.wantProbe(rxe.WRRDMAWrite, x.m.key, fastVA, 8, rxe.WCRemAccessErr)
	x.m.inv(2, x.m.key, rxe.SendSignaled)
	x.done(1)
}

// TestCase33KeyWraps: hundreds of uses of a region, the 8 bits of its key going round: each use is reached
// through its own key, and the one before no more.
func TestCase33KeyWraps(t *testing.T) {
	x := newAttack(t)
	x.m.mapSG(x.listA)
	for i := range 600 {
		old := x.m.key
		x.registered(fastVA, 16384)
		if i%37 == 0 || old.Variant() >= 254 || old.Variant() < 2 {
			x.wantProbe(rxe.WRRDMARead, old, fastVA, 64, rxe.WCSuccess)
			x.wantProbe(rxe.WRRDMARead, mr.MakeKey(old.Index(), old.Variant()-1), fastVA, 64, rxe.WCRemAccessErr)
		}
		x.m.inv(2, old, rxe.SendSignaled)
		x.done(1)
		x.m.key = old.Inc()
	}
}

// TestCase34PageSizes: regions of elements of 4 KiB, 64 KiB and odd sizes, starting anywhere, at an IOVA that
// divides by no page: every byte is where it belongs.
func TestCase34PageSizes(t *testing.T) {
	for _, iova := range []uint64{fastVA, fastVA + 4096, fastVA + 1, 1<<63 + 12345} {
		for _, sizes := range [][]int{{4096, 4096, 4096}, {65536, 65536}, {100, 65536, 4096, 7}, {65536 - 9, 65536, 1, 4095}} {
			x := newAttack(t)
			var list [][]byte
			total := 0
			for i, n := range sizes {
				b := make([]byte, n+i+1)
				list = append(list, b[i+1:])
				total += n
			}
			x.m.mapSG(list...)
			x.registered(iova, uint64(total))
			for i := range x.a.mem.Buf {
				x.a.mem.Buf[i] = byte(i * 7)
			}
			for _, at := range []int{0, 90, 4000, total - 5000} {
				at = max(min(at, total-5000), 0)
				n := min(5000, total-at)
				x.wantAccess(rxe.WRRDMAWrite, x.m.key, iova+uint64(at), n, rxe.WCSuccess)
				if got := bytes.Join(list, nil)[at:][:n]; !bytes.Equal(got, x.a.mem.Buf[:n]) {
					t.Fatalf("IOVA %#x, elements %v: %d bytes at %d differ", iova, sizes, n, at)
				}
			}
			x.wantAccess(rxe.WRRDMARead, x.m.key, iova+uint64(total)-9, 10, rxe.WCRemAccessErr)
		}
	}
}

// TestCase35OperationsByKind: each operation with a key of each kind of region: what the kind is not for is an
// error of its own, nowhere a crash.
func TestCase35OperationsByKind(t *testing.T) {
	const acc, prot, op = rxe.WCRemAccessErr, rxe.WCLocProtErr, rxe.WCLocQPOpErr
	for _, k := range []struct {
		kind                  string
		remote, local, invals rxe.WCStatus
	}{
		{"user", rxe.WCSuccess, rxe.WCSuccess, op},
		{"fast", rxe.WCSuccess, rxe.WCSuccess, rxe.WCSuccess},
		{"fast, free", acc, prot, rxe.WCSuccess}, // no harm, as in rxe
		{"window 1", rxe.WCSuccess, prot, op},
		{"window 2", rxe.WCSuccess, prot, rxe.WCSuccess},
		{"window 2, free", acc, prot, op},
		{"none", acc, prot, op},
	} {
		t.Run(k.kind, func(t *testing.T) {
			x := newAttack(t)
			key, va := mr.Key(0xfffff00), uint64(winVA)
			switch k.kind {
			case "user":
				key = x.b.mem.Key
			case "fast":
				x.m.mapSG(x.listA)
				x.registered(winVA, 16384)
				key = x.m.key
			case "fast, free":
				key = x.m.key
			case "window 1", "window 2":
				w := x.window(bothKinds["type "+k.kind[7:]])
				w.mustBind(winVA, winLen, rw|mr.RemoteAtomic)
				key = w.key
			case "window 2, free":
				key = x.window(mr.KindWindow2).key
			}
			for _, o := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead, rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd, rxe.WRAtomicWrite} {
				if st := x.access(o, key, va, 8); st != k.remote {
					t.Errorf("operation %d by the peer: %v, want %v", o, st, k.remote)
				} else if st != rxe.WCSuccess {
					x.reconnect()
				}
			}
			for _, o := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead} {
				x.b.send(t, rxe.SendWR{ID: 2, Opcode: o, SGEs: []rxe.SGE{{Addr: va, Length: 8, LKey: key}}, RemoteAddr: memAddr, RKey: x.a.mem.Key})
				if st := x.wait(x.b, 1)[0].Status; st != k.local {
					t.Errorf("operation %d with it as lkey: %v, want %v", o, st, k.local)
				} else if st != rxe.WCSuccess {
					x.reconnect()
				}
			}
			x.m.inv(3, key, rxe.SendSignaled)
			if st := x.wait(x.b, 1)[0].Status; st != k.invals {
				t.Errorf("LOCAL_INV: %v, want %v", st, k.invals)
			}
		})
	}
}

// TestCase37BindRules: a bind is judged by the rights it asks for, not those of the binding before; a new key may
// have the 8 bits of the old one; region, window and QP are of one domain.
func TestCase37BindRules(t *testing.T) {
	x := newAttack(t)
	plain, err := x.b.n.Reg(x.b.q.Init().PD, make([]byte, 4096), 1<<32, mr.LocalWrite|mr.RemoteRead|mr.MWBind)
	x.ok(err)
	noWrite, err := x.b.n.Reg(x.b.q.Init().PD, make([]byte, 4096), 1<<33, mr.RemoteRead|mr.MWBind)
	x.ok(err)
	elsewhere, err := x.b.n.Reg(x.b.n.AllocPD(), make([]byte, 4096), 1<<34, sim.AllAccess)
	x.ok(err)
	for _, c := range []struct {
		name   string
		parent *sim.Region
		access mr.Access
		want   rxe.WCStatus
	}{
		{"rights of its own", plain, mr.RemoteWrite, rxe.WCSuccess},
		{"write without the owner's", noWrite, mr.RemoteWrite, rxe.WCMWBindErr},
		{"read without the owner's write", noWrite, mr.RemoteRead, rxe.WCSuccess},
		{"another domain", elsewhere, mr.RemoteRead, rxe.WCMWBindErr},
	} {
		w := x.window(mr.KindWindow1)
		w.mustBind(winVA, winLen, rw) // the binding before has all rights
		if st := w.bind(x.b.q, c.parent.Key, c.parent.Addr, 64, c.access); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		} else if st != rxe.WCSuccess {
			x.reconnect()
		}
	}
	w := x.window(mr.KindWindow2)
	w.mustBind(winVA, winLen, rw)
	x.m.inv(1, w.key, rxe.SendSignaled)
	x.done(1)
	w.key = mr.MakeKey(w.key.Index(), w.key.Variant()-1) // so that the next key is the old one
	num, err := x.m.tab.StageBind(w.key.Index())
	x.ok(err)
	old := mr.MakeKey(w.key.Index(), w.key.Variant()+1)
	x.b.send(t, rxe.SendWR{Opcode: rxe.WRBindMW, MWKey: old, RKey: old, Parent: x.b.mem.Key, RemoteAddr: winVA, Length: winLen, Access: rw, List: num})
	x.done(1)
	x.wantAccess(rxe.WRRDMAWrite, old, winVA, 8, rxe.WCSuccess)
}

// TestCase44RingIndices: work requests and receives are posted on one goroutine and taken on another: a record
// is never seen before it is whole, nor lost, nor seen twice.
func TestCase44RingIndices(t *testing.T) {
	n := uint64(50_000)
	if raceEnabled {
		n = 2000
	}
	p := newPair(t, pairConfig{qp: rxe.QPInit{MaxSendWR: 16, MaxRecvWR: 16, MaxInline: 16}})
	stop := make(chan struct{})
	go func() { // both shards
		defer close(stop)
		d := &direct{a: p.a.q.Shard(), b: p.b.q.Shard(), now: 1}
		for (p.a.q.Stats.Completions < n || p.b.q.Stats.Completions < n) && p.a.q.State() == rxe.StateRTS {
			d.now += 1000
			d.a.Enter()
			d.b.Enter()
			if d.pass(d.a, d.b)+d.pass(d.b, d.a) == 0 {
				runtime.Gosched()
			}
			d.a.Leave()
			d.b.Leave()
		}
	}()
	var data [8]byte
	var wc [8]rxe.CQE
	var sent, received, done uint64
	receive := func() {
		for _, c := range wc[:p.b.cq.Poll(wc[:])] {
			got := binary.NativeEndian.Uint64(p.b.mem.Buf[received%1024*8:])
			if c.WRID != received || c.Imm != uint32(received) || got != received || c.Status != rxe.WCSuccess {
				t.Fatalf("receive %d: %+v, data %d", received, c, got)
			}
			received++
		}
	}
	for posted := uint64(0); done < n; {
		if posted < n && p.b.q.PostRecv(&rxe.RecvWR{ID: posted, SGEs: []rxe.SGE{p.b.mem.SGE(int(posted%1024)*8, 8)}}) == nil {
			posted++
		}
		binary.NativeEndian.PutUint64(data[:], sent)
		if sent < posted && p.a.q.PostSend(&rxe.SendWR{ID: sent, Opcode: rxe.WRSendWithImm, Flags: rxe.SendSignaled | rxe.SendInline, Inline: data[:], Imm: uint32(sent)}) == nil {
			sent++
			p.a.q.RingDoorbell()
		}
		receive()
		for _, c := range wc[:p.a.cq.Poll(wc[:])] {
			if c.WRID != done || c.Status != rxe.WCSuccess {
				t.Fatalf("send %d: %+v", done, c)
			}
			done++
		}
		runtime.Gosched()
	}
	<-stop
	for before := received - 1; before != received; { // those that came between the last two looks
		before = received
		receive()
	}
	if received != n {
		t.Fatalf("%d of %d received", received, n)
	}
}

// TestCase51TwoFences: the fence waits for READs and atomics and lets WRITEs be; LOCAL_INV waits for everything.
func TestCase51TwoFences(t *testing.T) {
	fenced := func(p *rawPeer, id uint64) rxe.SendWR {
		wr := p.writeWR(id, 8)
		wr.Flags = rxe.SendFence
		return wr
	}
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	one(t, p.post(p.writeWR(1, 8)))
	one(t, p.post(fenced(p, 2))) // the WRITE before is not acknowledged
	one(t, p.post(p.readWR(3, 8)))
	if s := p.post(fenced(p, 4)); len(s) != 0 {
		t.Fatalf("passed a READ: %v", s)
	}
	one(t, p.inject(p.response(wire.RCReadRespOnly, ourPSN.Add(2), 8)))

	p = qpIn(t, rxe.StateRTS, rawConfig{})
	key, err := p.n.Dev.Keys().AllocFast(p.q.Init().PD, 1)
	p.must(err)
	one(t, p.post(p.writeWR(1, 8)))
	p.post(rxe.SendWR{ID: 2, Opcode: rxe.WRLocalInv, RKey: key.Inc()}) // fails, but when its turn comes
	p.wantWC()
	p.state(rxe.StateRTS)
	p.inject(ack(ourPSN))
	p.wantWC("1:success", "2:local QP operation error")
}

// TestCase79InvalidKeyOfNothing: READ and WRITE of no bytes succeed whatever the key and address, through both
// ends (IBTA C9-88).
func TestCase79InvalidKeyOfNothing(t *testing.T) {
	p := newPair(t, pairConfig{})
	for _, op := range []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead} {
		for _, key := range []mr.Key{0, 0xffffffff, p.b.mem.Key + 1} {
			p.a.send(t, rxe.SendWR{Opcode: op, RemoteAddr: 1<<64 - 1, RKey: key})
			wantStatus(t, p.wait(p.a, 1)[0], rxe.WCSuccess)
		}
	}
}

// TestCase47EventWithoutRecv: a peer's WRITE that is refused takes no receive, and so no completion tells the
// application: an event that names the QP and the reason does.
func TestCase47EventWithoutRecv(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	k := p.write(firstPSN, 0, 8)
	k.rkey++
	wantNAK(t, p.inject(k), firstPSN, wire.NAKRemoteAccess)
	if len(p.events) != 1 || p.events[0].Type != rxe.EventQPAccessErr || p.events[0].QP != p.q || p.events[0].Reason != rxe.ReasonKeyVariant {
		t.Fatalf("events %+v", p.events)
	}
	p.state(rxe.StateErr)
}

// TestCase86SRQPastItsSize: an SRQ takes as many receives as it was made for and not one more, before and after
// a resize; what was refused changes nothing.
func TestCase86SRQPastItsSize(t *testing.T) {
	f := sim.New(sim.Config{})
	n, err := f.AddNode(sim.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, depth := range []uint32{1, 3, 8} {
		r, err := n.Dev.NewSRQ(n.Dev.Shards()[0], n.AllocPD(), depth, 1)
		if err != nil {
			t.Fatal(err)
		}
		post := func() (taken uint32) {
			for r.PostRecv(&rxe.RecvWR{}) == nil {
				taken++
			}
			return taken
		}
		if got := post(); got != depth || r.PostRecv(&rxe.RecvWR{}) != rxe.ErrQueueFull || r.Q.Len() != int(depth) {
			t.Errorf("SRQ of %d took %d", depth, got)
		}
		if err := r.Resize(depth + 3); err != nil || post() != 3 {
			t.Errorf("SRQ of %d made 3 longer: %v, %d held", depth, err, r.Q.Len())
		}
	}
}

// TestCase24ZeroBytes: messages of no bytes take one PSN and one packet, complete at both ends, and the answer to
// a READ is one RESPONSE ONLY without data.
func TestCase24ZeroBytes(t *testing.T) {
	p := newPair(t, pairConfig{})
	for i, op := range []rxe.WROpcode{rxe.WRSend, rxe.WRSendWithImm, rxe.WRRDMAWrite, rxe.WRRDMAWriteWithImm, rxe.WRRDMARead} {
		if op != rxe.WRRDMAWrite && op != rxe.WRRDMARead {
			p.b.recv(t, uint64(i), p.b.mem.SGE(0, 8))
		}
		before := p.b.q.Query().RQPSN
		p.a.send(t, rxe.SendWR{Opcode: op, RKey: 0xdeadbeef, Imm: 77})
		if c := p.wait(p.a, 1)[0]; c.Status != rxe.WCSuccess || c.ByteLen != 0 {
			t.Errorf("operation %d: %+v", op, c)
		}
		if op != rxe.WRRDMAWrite && op != rxe.WRRDMARead {
			c := p.wait(p.b, 1)[0]
			if withImm := c.Flags&rxe.WCWithImm != 0; c.WRID != uint64(i) || c.ByteLen != 0 || withImm != (op != rxe.WRSend) || withImm && c.Imm != 77 {
				t.Errorf("operation %d: received %+v", op, c)
			}
		}
		if n := p.b.q.Query().RQPSN.Diff(before); n != 1 {
			t.Errorf("operation %d took %d PSNs", op, n)
		}
	}
	if p.a.q.Stats.Retransmits != 0 {
		t.Error("something was sent again")
	}
}
