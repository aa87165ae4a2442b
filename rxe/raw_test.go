package rxe_test

import (
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// rawPeer is one QP under test and a peer made of bare packets: what the QP sends is collected,
// what the peer says is written by the test.
type rawPeer struct {
	t      testing.TB
	f      *sim.Fabric
	n      *sim.Node
	q      *rxe.QP
	cq     *rxe.CQ
	mem    *sim.Region
	s      *rxe.Shard
	now    rxe.Time
	tmpl   wire.Template
	path   wire.Path
	pmtu   int
	events []rxe.Event
	around []byte // the region and guards before and behind it
}

const guardBytes = 4096

// checkGuards fails if anything was written outside the region.
func (p *rawPeer) checkGuards() {
	p.t.Helper()
	for i := 0; i < guardBytes; i++ {
		if p.around[i] != 0 || p.around[len(p.around)-1-i] != 0 {
			p.t.Fatal("memory outside the region was written")
		}
	}
}

const (
	peerQPN  = 0x4242
	firstPSN = wire.PSN(0xfffffe) // so that every test wraps
	ourPSN   = wire.PSN(0x7ffffe)
)

// rawConfig is what differs from the usual QP.
type rawConfig struct {
	typ     rxe.QPType
	access  mr.Access
	pmtu    int
	rd      int // responder resources and initiator depth, -1 = 0
	sendWR  int
	recvWR  int
	retry   uint8
	rnr     uint8
	timeout uint8
	srq     *rxe.SRQ
	cqDepth int
	credits bool
	sges    int // per work request, 4
	inline  int // bytes, 128
	v6      bool
	vlan    int // 0: no tag
	shards  int
	budget  int
}

// qpIn makes a QP in the given state, facing a raw peer.
func qpIn(t testing.TB, state rxe.QPState, c rawConfig) *rawPeer {
	t.Helper()
	f := sim.New(sim.Config{})
	n, err := f.AddNode(sim.NodeConfig{V6: c.v6,
		Device: rxe.Config{Credits: c.credits, VLAN: uint16(c.vlan), Budget: uint32(c.budget)}, Shards: c.shards})
	if err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{t: t, f: f, n: n, s: n.Dev.Shards()[0], now: 1_000_000_000}
	p.setDefaults(&c)
	pd := n.AllocPD()
	p.cq, err = n.Dev.NewCQ(c.cqDepth)
	p.must(err)
	p.q, err = n.Dev.CreateQP(p.s, rxe.QPInit{Type: c.typ, PD: pd, SendCQ: p.cq, RecvCQ: p.cq, SRQ: c.srq,
		MaxSendWR: uint32(c.sendWR), MaxRecvWR: uint32(c.recvWR), MaxSend: uint32(c.sges), MaxRecv: uint32(c.sges),
		MaxInline: uint32(c.inline)})
	p.must(err)
	p.around = make([]byte, guardBytes+1<<16+guardBytes)
	p.mem, err = n.Reg(pd, p.around[guardBytes:guardBytes+1<<16], memAddr, sim.AllAccess)
	p.must(err)
	for i := range p.mem.Buf {
		p.mem.Buf[i] = byte(i * 3)
	}
	p.bring(state, c)
	return p
}

func (p *rawPeer) setDefaults(c *rawConfig) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.typ == 0 {
		c.typ = rxe.RC
	}
	if c.access == 0 {
		c.access = sim.AllAccess
	}
	def(&c.pmtu, 256)
	def(&c.rd, 4)
	def(&c.sendWR, 16)
	def(&c.recvWR, 16)
	def(&c.cqDepth, 256)
	def(&c.sges, 4)
	def(&c.inline, 128)
	if c.rd < 0 {
		c.rd = 0
	}
	if c.timeout == 0 {
		c.timeout = 14
	}
	p.pmtu = c.pmtu
}

func (p *rawPeer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// bring takes the QP to a state by the shortest legal way.
func (p *rawPeer) bring(state rxe.QPState, c rawConfig) {
	p.t.Helper()
	peerMAC := wire.MAC{2, 0, 0, 0, 0, 0xfe}
	peerGID := wire.GIDFromIPv4([4]byte{10, 0, 0, 254})
	if c.v6 {
		peerGID = wire.GID{0: 0xfd, 15: 254}
	}
	vlan := int16(-1)
	if c.vlan != 0 {
		vlan = int16(c.vlan)
	}
	ours := wire.Path{SrcMAC: p.n.MAC, DstMAC: peerMAC, VLAN: vlan, Src: p.n.GID, Dst: peerGID,
		HopLimit: 64, SrcPort: 0xc123}
	p.path = ours
	p.path.SrcMAC, p.path.DstMAC, p.path.Src, p.path.Dst = ours.DstMAC, ours.SrcMAC, ours.Dst, ours.Src
	p.tmpl.Init(&p.path, p.q.QPN(), 0xffff)
	a := rxe.QPAttr{Port: 1, AccessFlags: c.access, QKey: 0x11111111, AV: rxe.AV{Path: ours},
		PathMTU: uint32(c.pmtu), DestQPN: peerQPN, RQPSN: firstPSN, SQPSN: ourPSN,
		MaxDestRdAtomic: uint8(c.rd), MaxQPRdAtomic: uint8(c.rd), MinRNRTimer: 12,
		Timeout: c.timeout, RetryCnt: c.retry, RNRRetry: c.rnr}
	steps := []rxe.AttrMask{0,
		rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags,
		rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN | rxe.AttrMaxDestRdAtomic | rxe.AttrMinRNRTimer,
		rxe.AttrTimeout | rxe.AttrRetryCnt | rxe.AttrRNRRetry | rxe.AttrSQPSN | rxe.AttrMaxQPRdAtomic}
	switch c.typ {
	case rxe.UC:
		steps[2] = rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN
		steps[3] = rxe.AttrSQPSN
	case rxe.UD, rxe.GSI:
		steps[1] = rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrQKey
		steps[2], steps[3] = 0, rxe.AttrSQPSN
	}
	last := min(state, rxe.StateRTS)
	for st := rxe.StateInit; st <= last; st++ {
		a.State = st
		p.must(p.q.Modify(&a, steps[st]|rxe.AttrState))
	}
	switch {
	case state == rxe.StateSQE: // entered by a failure only
		p.post(rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{{Length: 1, LKey: 1}}, AH: 1})
		p.poll()
		p.state(rxe.StateSQE)
	case state > rxe.StateRTS:
		a.State = state
		p.must(p.q.Modify(&a, rxe.AttrState))
	}
}

// packet is a request or response to inject.
type packet struct {
	op       wire.Opcode
	psn      wire.PSN
	ackReq   bool
	se       bool
	va       uint64
	rkey     mr.Key
	length   int // RETH
	payload  []byte
	imm, inv uint32
	swap     uint64
	compare  uint64
	syn      wire.Syndrome
	msn      uint32
	orig     uint64
	place    uint8 // FETH
	sel      uint8
	qkey     uint32
	srcQP    wire.QPN
}

// frame builds the packet's frame.
func (p *rawPeer) frame(k packet) []byte {
	b := make([]byte, 8192)
	info := k.op.Info()
	hdr := p.tmpl.Begin(b, k.op)
	bth := (*wire.BTH)(hdr)
	bth.SetPSN(k.psn)
	bth.SetAckReq(k.ackReq)
	bth.SetSolicited(k.se)
	if o := info.RETHOff; o != 0 {
		h := (*wire.RETH)(hdr[o:])
		h.SetVA(k.va)
		h.SetRKey(uint32(k.rkey))
		h.SetLength(uint32(k.length))
	}
	if o := info.AETHOff; o != 0 {
		h := (*wire.AETH)(hdr[o:])
		h.SetSyndrome(k.syn)
		h.SetMSN(k.msn)
	}
	if o := info.ImmOff; o != 0 {
		(*wire.ImmDt)(hdr[o:]).Set(k.imm)
	}
	if o := info.InvOff; o != 0 {
		(*wire.IETH)(hdr[o:]).SetRKey(k.inv)
	}
	if o := info.AtomicETHOff; o != 0 {
		h := (*wire.AtomicETH)(hdr[o:])
		h.SetVA(k.va)
		h.SetRKey(uint32(k.rkey))
		h.SetSwapAdd(k.swap)
		h.SetCompare(k.compare)
	}
	if o := info.AtomicAckOff; o != 0 {
		(*wire.AtomicAckETH)(hdr[o:]).SetOrig(k.orig)
	}
	if o := info.FETHOff; o != 0 {
		(*wire.FETH)(hdr[o:]).Set(k.place, k.sel)
	}
	if o := info.DETHOff; o != 0 {
		h := (*wire.DETH)(hdr[o:])
		h.SetQKey(k.qkey)
		h.SetSrcQP(k.srcQP)
	}
	copy(b[p.tmpl.HeaderLen(k.op):], k.payload)
	return b[:p.tmpl.Finish(wire.Frame{Head: b}, k.op, len(k.payload))]
}

// sent is a packet the QP under test has transmitted.
type sent struct {
	op      wire.Opcode
	frame   []byte
	psn     wire.PSN
	ackReq  bool
	syn     wire.Syndrome
	msn     uint32
	payload []byte
	va      uint64
	rkey    mr.Key
	length  int
	imm     uint32
	orig    uint64
}

// String is short, for failures.
func (s sent) String() string {
	return fmt.Sprintf("%v psn %#x syndrome %v msn %d, %d bytes", s.op, s.psn, s.syn, s.msn, len(s.payload))
}

// inject gives packets to the QP, one after the other in one batch, and returns what it answers.
func (p *rawPeer) inject(ks ...packet) []sent {
	p.t.Helper()
	p.s.Enter()
	for _, k := range ks {
		p.s.Receive(p.now, wire.Frame{Head: p.frame(k)})
	}
	return p.run()
}

// run lets the shard do what it has to do and returns the packets it sends.
func (p *rawPeer) run() (out []sent) {
	p.t.Helper()
	p.s.Enter()
	for {
		p.s.Expire(p.now)
		p.s.Turn(p.now)
		n := 0
		for {
			b := make([]byte, 5000)
			l := p.s.Transmit(p.now, wire.Frame{Head: b})
			if l == 0 {
				break
			}
			n++
			out = append(out, p.parse(b[:l]))
		}
		if n == 0 && !p.s.Pending() {
			break
		}
	}
	p.events = append(p.events, append([]rxe.Event(nil), p.s.Events()...)...)
	if p.s.Leave() {
		p.s.Enter()
		p.s.Turn(p.now)
		p.s.Leave()
	}
	return out
}

func (p *rawPeer) parse(b []byte) sent {
	p.t.Helper()
	var k wire.Packet
	if r := wire.Parse(wire.Frame{Head: b}, &k); r != wire.ReasonOK {
		p.t.Fatalf("QP sent a bad frame: %v", r)
	}
	s := sent{op: k.Op, frame: b, psn: k.PSN, ackReq: k.AckReq, payload: append([]byte(nil), k.Data0...)}
	if k.Info.RETHOff != 0 {
		s.va, s.rkey, s.length = k.RETH().VA(), mr.Key(k.RETH().RKey()), int(k.RETH().Length())
	}
	if k.Info.AETHOff != 0 {
		s.syn, s.msn = k.AETH().Syndrome(), k.AETH().MSN()
	}
	if k.Info.ImmOff != 0 {
		s.imm = k.Imm()
	}
	if k.Info.AtomicAckOff != 0 {
		s.orig = k.AtomicAckETH().Orig()
	}
	return s
}

// advance moves the clock, running timers at each deadline on the way.
func (p *rawPeer) advance(d rxe.Time) (out []sent) {
	p.t.Helper()
	end := p.now + d
	for {
		at := p.s.Deadline()
		if at > end {
			break
		}
		p.now = max(at, p.now+1)
		out = append(out, p.run()...)
	}
	p.now = end
	return append(out, p.run()...)
}

// post posts a signaled send work request and returns what goes out.
func (p *rawPeer) post(wr rxe.SendWR) []sent {
	p.t.Helper()
	wr.Flags |= rxe.SendSignaled
	p.must(p.q.PostSend(&wr))
	p.q.RingDoorbell()
	return p.run()
}

func (p *rawPeer) recv(id uint64, n int) {
	p.t.Helper()
	p.must(p.q.PostRecv(&rxe.RecvWR{ID: id, SGEs: []rxe.SGE{p.mem.SGE(0, n)}}))
}

func (p *rawPeer) poll() []rxe.CQE {
	b := make([]rxe.CQE, 256)
	return b[:p.cq.Poll(b)]
}

// one expects exactly one packet.
func one(t testing.TB, s []sent) sent {
	t.Helper()
	if len(s) != 1 {
		t.Fatalf("QP sent %d packets, want 1: %+v", len(s), s)
	}
	return s[0]
}

func wantNAK(t testing.TB, s []sent, psn wire.PSN, code wire.NAKCode) {
	t.Helper()
	if k := one(t, s); k.op != wire.RCAck || k.syn != wire.NAKSyndrome(code) || k.psn != psn {
		t.Fatalf("got %v psn %#x syndrome %#x, want NAK %d of psn %#x", k.op, k.psn, k.syn, code, psn)
	}
}

func wantAck(t testing.TB, s []sent, psn wire.PSN, msn uint32) {
	t.Helper()
	if k := one(t, s); k.op != wire.RCAck || k.syn.Kind() != wire.KindACK || k.psn != psn || k.msn != msn {
		t.Fatalf("got %v psn %#x syndrome %#x msn %d, want ACK of psn %#x msn %d", k.op, k.psn, k.syn, k.msn, psn, msn)
	}
}

func (p *rawPeer) state(want rxe.QPState) {
	p.t.Helper()
	if got := p.q.State(); got != want {
		p.t.Fatalf("QP is in %v, want %v", got, want)
	}
}
