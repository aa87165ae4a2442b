package rxe_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file puts an engine in the place of one end of a recorded conversation.

// replayEnd is that engine: one device, one QP with the recorded number, memory at the recorded
// addresses.
type replayEnd struct {
	t    testing.TB
	rec  *recording
	c    *conversation
	me   int
	n    *sim.Node
	s    *rxe.Shard
	q    *rxe.QP
	pd   mr.PD
	send *rxe.CQ
	recv *rxe.CQ
	ah   *rxe.AH
	mem  *sim.Region
	keys []keyPair
	now  rxe.Time
	sent []*packetView
	path wire.Path // of what we send
}

// keyPair translates a key of the recording to the one our table gave out.
type keyPair struct{ kernel, ours mr.Key }

// What the producer sets its QPs up with and does not print.
const (
	recordedRdAtomic = 4
	recordedTimeout  = 14
	recordedQueue    = 64
)

// replayWindow does not follow losses: a recorded peer acknowledges what the kernel sent, and in its
// time, so that holding back would stop the conversation. A READ is asked for as a whole then, too.
const replayWindow = 1 << 16

func newReplayEnd(t testing.TB, rec *recording, c *conversation, me int, buf []byte) *replayEnd {
	t.Helper()
	e := &replayEnd{t: t, rec: rec, c: c, me: me, now: 1_000_000_000}
	var err error
	const first = 17 // the device counts QPNs from here, a random number of steps on
	rnd := func() uint64 { return uint64(c.qpn[me] - first) }
	e.n, err = sim.New(sim.Config{}).AddNode(sim.NodeConfig{
		Device: rxe.Config{Rand: rnd, Window: replayWindow, MinWindow: replayWindow}})
	e.must(err)
	dev := e.n.Dev
	dev.SetGIDs([]wire.GID{rec.ends[me].gid})
	e.s, e.pd = dev.Shards()[0], e.n.AllocPD()
	e.send, err = dev.NewCQ(256)
	e.must(err)
	e.recv, err = dev.NewCQ(256)
	e.must(err)
	e.q, err = dev.CreateQP(e.s, rxe.QPInit{Type: c.typ, PD: e.pd, SendCQ: e.send, RecvCQ: e.recv,
		MaxSendWR: recordedQueue, MaxRecvWR: recordedQueue, MaxSend: 4, MaxRecv: 4, MaxInline: 64})
	e.must(err)
	if e.q.QPN() != c.qpn[me] {
		t.Fatalf("QPN %#x, want %#x", e.q.QPN(), c.qpn[me])
	}
	const all = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic | mr.MWBind
	e.mem, err = e.n.Reg(e.pd, buf, rec.ends[me].addr, all)
	e.must(err)
	closed, err := e.n.Reg(e.pd, buf, rec.ends[me].addr, 0)
	e.must(err)
	e.keys = []keyPair{{rec.ends[me].key, e.mem.Key}, {rec.ends[me].keyRead, closed.Key}}
	e.bring(all &^ mr.MWBind)
	return e
}

func (e *replayEnd) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// bring takes the QP to RTS.
func (e *replayEnd) bring(access mr.Access) {
	e.t.Helper()
	c, peer := e.c, 1-e.me
	e.path = wire.Path{VLAN: -1, Src: e.rec.ends[e.me].gid, Dst: e.rec.ends[peer].gid, HopLimit: 64,
		SrcPort: 0xc000}
	for _, v := range c.packets {
		e.path.SrcMAC, e.path.DstMAC = v.p.SrcMAC, v.p.DstMAC
		if v.from != e.me {
			e.path.SrcMAC, e.path.DstMAC = v.p.DstMAC, v.p.SrcMAC
		}
	}
	retry, rnr := c.retries()
	a := rxe.QPAttr{Port: 1, AccessFlags: access, QKey: c.qkey, AV: rxe.AV{Path: e.path},
		PathMTU: c.pmtu, DestQPN: c.qpn[peer], RQPSN: c.psn[peer], SQPSN: c.psn[e.me],
		MaxDestRdAtomic: recordedRdAtomic, MaxQPRdAtomic: recordedRdAtomic,
		MinRNRTimer: c.rnrTimer(), Timeout: recordedTimeout, RetryCnt: retry, RNRRetry: rnr}
	var steps [3]rxe.AttrMask
	switch c.typ {
	case rxe.RC:
		steps = [3]rxe.AttrMask{rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags,
			rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN | rxe.AttrMaxDestRdAtomic |
				rxe.AttrMinRNRTimer,
			rxe.AttrTimeout | rxe.AttrRetryCnt | rxe.AttrRNRRetry | rxe.AttrSQPSN | rxe.AttrMaxQPRdAtomic}
	case rxe.UC:
		steps = [3]rxe.AttrMask{rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags,
			rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN, rxe.AttrSQPSN}
	case rxe.UD:
		steps = [3]rxe.AttrMask{rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrQKey, 0, rxe.AttrSQPSN}
		var err error
		e.ah, err = e.n.Dev.CreateAH(e.pd, a.AV)
		e.must(err)
	}
	for i, mask := range steps {
		a.State = rxe.StateInit + rxe.QPState(i)
		e.must(e.q.Modify(&a, mask|rxe.AttrState))
	}
}

// run lets the engine do what it has to do; what it sends is appended to e.sent.
func (e *replayEnd) run() {
	e.t.Helper()
	e.s.Enter()
	for {
		e.s.Expire(e.now)
		e.s.Turn(e.now)
		n := 0
		for b := make([]byte, 8192); ; n++ {
			l := e.s.Transmit(e.now, wire.Frame{Head: b})
			if l == 0 {
				break
			}
			v, r := newPacketView(b[:l])
			if r != wire.ReasonOK {
				e.t.Fatalf("a bad frame is sent: %v", r)
			}
			v.from = e.me
			e.sent = append(e.sent, v)
		}
		if n == 0 && !e.s.Pending() {
			break
		}
	}
	e.s.Events()
	if e.s.Leave() {
		e.s.Enter()
		e.s.Turn(e.now)
		e.s.Leave()
	}
}

// wait moves the clock to the next timer, if it is due before the end. It reports whether there was
// one.
func (e *replayEnd) wait(end rxe.Time) bool {
	e.t.Helper()
	at := e.s.Deadline()
	if at > end {
		return false
	}
	e.now = max(at, e.now+1)
	e.run()
	return true
}

// feed gives a recorded packet of the peer to the engine, its keys translated.
func (e *replayEnd) feed(v *packetView) {
	e.t.Helper()
	e.deliver(e.translated(v))
}

func (e *replayEnd) deliver(frame []byte) {
	e.t.Helper()
	e.now += 1000
	e.s.Enter()
	e.s.Receive(e.now, wire.Frame{Head: frame})
	e.run()
}

// translated is the packet's frame with our keys.
func (e *replayEnd) translated(v *packetView) []byte {
	frame := bytes.Clone(v.frame)
	var p wire.Packet
	if r := wire.Parse(wire.Frame{Head: frame}, &p); r != wire.ReasonOK {
		e.t.Fatal(r)
	}
	h := p.Headers()
	switch {
	case p.Info.RETHOff != 0:
		r := (*wire.RETH)(h[p.Info.RETHOff:])
		r.SetRKey(uint32(e.ourKey(mr.Key(r.RKey()))))
	case p.Info.AtomicETHOff != 0:
		r := (*wire.AtomicETH)(h[p.Info.AtomicETHOff:])
		r.SetRKey(uint32(e.ourKey(mr.Key(r.RKey()))))
	case p.Info.InvOff != 0:
		r := (*wire.IETH)(h[p.Info.InvOff:])
		r.SetRKey(uint32(e.ourKey(mr.Key(r.RKey()))))
	default:
		return frame
	}
	_, _, icrc := wire.CheckICRC(wire.Frame{Head: frame})
	end := 14 + int(binary.BigEndian.Uint16(frame[16:]))
	if p.V6 {
		end = 14 + 40 + int(binary.BigEndian.Uint16(frame[18:]))
	}
	binary.LittleEndian.PutUint32(frame[end-4:], icrc)
	return frame
}

// ourKey is the key that means here what k meant in the recording: of the same object with the same
// fault in the variant, or one of no object.
func (e *replayEnd) ourKey(k mr.Key) mr.Key {
	for _, p := range e.keys {
		if p.kernel.Index() == k.Index() {
			return p.ours ^ p.kernel ^ k
		}
	}
	const never = 0xfffff
	return mr.MakeKey(never, k.Variant())
}

// post posts a recorded work request.
func (e *replayEnd) post(id uint64, p *post) {
	e.t.Helper()
	wr := rxe.SendWR{ID: id, Opcode: p.op, Flags: p.flags | rxe.SendSignaled, RemoteAddr: p.raddr,
		RKey: p.rkey, Imm: p.imm, CompareAdd: p.compareAdd, Swap: p.swap}
	switch {
	case p.op == rxe.WRAtomicWrite:
		wr.Flags |= rxe.SendInline
		wr.Inline = binary.NativeEndian.AppendUint64(nil, p.compareAdd)
	case p.flags&rxe.SendInline != 0:
		wr.Inline = e.mem.Buf[:p.length]
	case p.length > 0:
		wr.SGEs = []rxe.SGE{e.mem.SGE(p.localAt(), int(p.length))}
	}
	if e.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah.Num(), e.c.qpn[1-e.me], e.c.qkey
	}
	e.must(e.q.PostSend(&wr))
	e.q.RingDoorbell()
}

// localAt is where the producer's requester has the data of a work request.
func (p *post) localAt() int {
	switch p.op {
	case rxe.WRRDMARead:
		return readAt
	case rxe.WRAtomicCmpSwap, rxe.WRAtomicFetchAdd:
		return atomicAt
	}
	return 0
}

// postRecv posts the receive for a recorded work request: too small where the recording says so.
func (e *replayEnd) postRecv(id uint64, p *post) {
	e.t.Helper()
	n := len(e.mem.Buf) - recvAt
	if p.recv != nil && p.recv.status != rxe.WCSuccess {
		n = int(p.length) / 2
	}
	e.must(e.q.PostRecv(&rxe.RecvWR{ID: id, SGEs: []rxe.SGE{e.mem.SGE(recvAt, n)}}))
}

// bind binds a type 2 window as recorded.
func (e *replayEnd) bind(s *step) {
	e.t.Helper()
	tab := e.n.Dev.Keys()
	key, err := tab.Alloc(mr.KindWindow2, e.pd)
	e.must(err)
	num, err := tab.StageBind(key.Index())
	e.must(err)
	e.must(e.q.PostSend(&rxe.SendWR{ID: 77, Opcode: rxe.WRBindMW, Flags: rxe.SendSignaled, MWKey: key,
		RKey: key.Inc(), Parent: e.mem.Key, RemoteAddr: s.off, Length: s.value,
		Access: mr.RemoteWrite | mr.RemoteRead, List: num}))
	e.q.RingDoorbell()
	e.run()
	var c [1]rxe.CQE
	if e.send.Poll(c[:]) != 1 || c[0].Status != rxe.WCSuccess {
		e.t.Fatalf("line %d: bind completes with %v (%v)", s.line, c[0].Status, c[0].Reason)
	}
	e.keys = append(e.keys, keyPair{s.key, key.Inc()})
}
