package sim

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// Direct joins two QPs on two devices by plain calls: what one shard transmits, the other receives
// at once. There is no fabric, no clock to wait for and no fault: it measures the engine alone. One
// goroutine uses it.
type Direct struct {
	A, B DirectEnd
	// QPs are those of A; QPs[0] is A.QP. The peer of QPs[i] is Peers[i].
	QPs, Peers []*rxe.QP
	// OnFrame, if set, sees every frame before it is received.
	OnFrame func(to *DirectEnd, f rxe.Frame)

	ud  bool
	now rxe.Time
	buf [bufSize]byte
	wc  [64]rxe.CQE
}

// DirectEnd is one side.
type DirectEnd struct {
	Node *Node
	QP   *rxe.QP
	CQ   *rxe.CQ
	Mem  *Region
	AH   uint32 // of the other side, with UD

	pd   mr.PD
	recv rxe.RecvWR // posted again for each SEND
}

// DirectConfig sets up a Direct. Zero values take the defaults named.
type DirectConfig struct {
	Type rxe.QPType // default RC
	PMTU uint32     // default 4096
	Mem  int        // bytes of each side's region, default 1 MiB
	QPs  int        // of each side, default 1
}

const (
	directHead  = 3840 // of a frame, as in AF_XDP's chunks
	directDepth = 128
	directQKey  = 0x11111111
	// directStep is how much later each run of Shuttle is, in ns.
	directStep = 1000
)

// NewDirect makes two ends that are ready to send.
func NewDirect(c DirectConfig) (*Direct, error) {
	if c.Type == 0 {
		c.Type = rxe.RC
	}
	if c.PMTU == 0 {
		c.PMTU = 4096
	}
	if c.Mem == 0 {
		c.Mem = 1 << 20
	}
	f := New(Config{})
	d := &Direct{ud: c.Type == rxe.UD}
	for _, e := range []*DirectEnd{&d.A, &d.B} {
		if err := e.init(f, c); err != nil {
			return nil, fmt.Errorf("make end: %w", err)
		}
	}
	for range max(c.QPs, 1) {
		if err := d.addQP(c); err != nil {
			return nil, fmt.Errorf("make QP: %w", err)
		}
	}
	d.A.QP, d.B.QP = d.QPs[0], d.Peers[0]
	if !d.ud {
		return d, nil
	}
	for _, e := range []*DirectEnd{&d.A, &d.B} {
		peer := d.peer(e)
		if err := ReadyUD(e.QP, directQKey); err != nil {
			return nil, err
		}
		ah, err := e.Node.Dev.CreateAH(e.pd, e.Node.Path(peer.Node))
		if err != nil {
			return nil, err
		}
		e.AH = ah.Num()
	}
	return d, nil
}

func (e *DirectEnd) init(f *Fabric, c DirectConfig) (err error) {
	if e.Node, err = f.AddNode(NodeConfig{}); err != nil {
		return err
	}
	e.pd = e.Node.AllocPD()
	if e.CQ, err = e.Node.Dev.NewCQ(4 * directDepth); err != nil {
		return err
	}
	mem := make([]byte, c.Mem+rxe.GRHBytes)
	for i := range mem {
		mem[i] = byte(i * 7)
	}
	if e.Mem, err = e.Node.Reg(e.pd, mem, 0, AllAccess); err != nil {
		return err
	}
	e.recv = rxe.RecvWR{SGEs: []rxe.SGE{e.Mem.SGE(0, len(mem))}}
	return nil
}

// addQP makes a QP on each side and connects them.
func (d *Direct) addQP(c DirectConfig) error {
	var qps [2]*rxe.QP
	for i, e := range []*DirectEnd{&d.A, &d.B} {
		var err error
		qps[i], err = e.Node.Dev.CreateQP(e.Node.Dev.Shards()[0], rxe.QPInit{Type: c.Type, PD: e.pd,
			SendCQ: e.CQ, RecvCQ: e.CQ, MaxSendWR: directDepth, MaxRecvWR: directDepth,
			MaxSend: 1, MaxRecv: 1})
		if err != nil {
			return err
		}
	}
	d.QPs, d.Peers = append(d.QPs, qps[0]), append(d.Peers, qps[1])
	if d.ud {
		return nil
	}
	return Connect(d.A.Node, qps[0], d.B.Node, qps[1], ConnAttr{PMTU: c.PMTU, Timeout: 20})
}

func (d *Direct) peer(e *DirectEnd) *DirectEnd {
	if e == &d.A {
		return &d.B
	}
	return &d.A
}

// WR is a work request of A for n bytes, ready to be posted: signaled, addressed to B's memory.
func (d *Direct) WR(op rxe.WROpcode, n int) rxe.SendWR {
	wr := rxe.SendWR{Opcode: op, Flags: rxe.SendSignaled, SGEs: []rxe.SGE{d.A.Mem.SGE(0, n)},
		RemoteAddr: d.B.Mem.Addr, RKey: d.B.Mem.Key, CompareAdd: 1}
	if d.ud {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = d.A.AH, d.B.QP.QPN(), directQKey
	}
	return wr
}

// Post hands a work request of A to its send queue, and B the receive that a SEND needs.
func (d *Direct) Post(wr *rxe.SendWR) error {
	if wr.Opcode == rxe.WRSend {
		if err := d.B.QP.PostRecv(&d.B.recv); err != nil {
			return err
		}
	}
	return d.A.QP.PostSend(wr)
}

// Complete rings A's doorbell, moves frames until none is left, and takes n completions of A, and of B
// what it has. It returns how many frames there were.
func (d *Direct) Complete(n int) (frames int, err error) {
	d.A.QP.RingDoorbell()
	frames = d.Shuttle()
	return frames, d.take(n)
}

// take polls n completions of A, and all of B.
func (d *Direct) take(n int) error {
	for n > 0 {
		got := d.A.CQ.Poll(d.wc[:min(n, len(d.wc))])
		if got == 0 {
			return fmt.Errorf("%d completions are missing", n)
		}
		for i := range d.wc[:got] {
			if st := d.wc[i].Status; st != rxe.WCSuccess {
				return fmt.Errorf("completion with %v", st)
			}
		}
		n -= got
	}
	for d.B.CQ.Poll(d.wc[:]) > 0 {
	}
	return nil
}

// PostEach posts a work request of A, for RDMA, to each of the QPs from number from on, and moves frames
// until all is complete. It returns how many frames there were.
func (d *Direct) PostEach(wr *rxe.SendWR, from, n int) (frames int, err error) {
	for _, q := range d.QPs[from : from+n] {
		if err := q.PostSend(wr); err != nil {
			return 0, err
		}
		q.RingDoorbell()
	}
	frames = d.Shuttle()
	return frames, d.take(n)
}

// Shuttle moves frames both ways until neither side has any, and returns how many there were. It asks
// the shards what a driver asks them.
func (d *Direct) Shuttle() (frames int) {
	a, b := d.A.QP.Shard(), d.B.QP.Shard()
	d.now += directStep
	a.Enter()
	b.Enter()
	for {
		frames += d.pass(a, &d.B) + d.pass(b, &d.A)
		if !a.Pending() && !b.Pending() {
			break
		}
	}
	a.Leave()
	b.Leave()
	return frames
}

func (d *Direct) pass(from *rxe.Shard, to *DirectEnd) (frames int) {
	s := to.QP.Shard()
	from.Turn(d.now)
	for range stepFrames {
		if !from.CanTransmit() {
			break
		}
		n := from.Transmit(d.now, rxe.Frame{Head: d.buf[:directHead], Tail: d.buf[directHead:]})
		if n == 0 {
			break
		}
		f := rxe.Frame{Head: d.buf[:n]}
		if n > directHead {
			f = rxe.Frame{Head: d.buf[:directHead], Tail: d.buf[directHead:n]}
		}
		if d.OnFrame != nil {
			d.OnFrame(to, f)
		}
		s.Receive(d.now, f)
		frames++
	}
	return frames
}

// Replay is a stretch of requests to B as they were on the wire, to play to B's responder alone as
// often as wanted.
type Replay struct {
	d      *Direct
	frames []rxe.Frame
	reply  [rxe.MinFrame]byte
}

// Record posts n work requests like wr and keeps their frames.
func (d *Direct) Record(wr rxe.SendWR, n int) (*Replay, error) {
	r := &Replay{d: d}
	d.OnFrame = func(to *DirectEnd, f rxe.Frame) {
		if to == &d.B {
			b := append(append([]byte(nil), f.Head...), f.Tail...)
			c := rxe.Frame{Head: b[:len(f.Head):len(f.Head)], Tail: b[len(f.Head):]}
			r.frames = append(r.frames, c)
		}
	}
	defer func() { d.OnFrame = nil }()
	if err := r.Rewind(); err != nil {
		return nil, err
	}
	for range n {
		if err := d.Post(&wr); err != nil {
			return nil, err
		}
		if _, err := d.Complete(1); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Packets is how many packets a Play has.
func (r *Replay) Packets() int { return len(r.frames) }

// Rewind brings both QPs back to the first of their packets.
func (r *Replay) Rewind() error {
	d := r.d
	for _, q := range []*rxe.QP{d.A.QP, d.B.QP} {
		if err := q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState); err != nil {
			return err
		}
	}
	return Connect(d.A.Node, d.A.QP, d.B.Node, d.B.QP, ConnAttr{PMTU: 4096, Timeout: 20})
}

// Play gives the frames to B's responder in batches, as a driver does, and takes its answers. It
// returns how many of these there were.
func (r *Replay) Play() (answers int) {
	s, d := r.d.B.QP.Shard(), r.d
	d.now += directStep
	s.Enter()
	for at := 0; at < len(r.frames); at += stepFrames {
		s.Turn(d.now)
		for _, f := range r.frames[at:min(at+stepFrames, len(r.frames))] {
			s.Receive(d.now, f)
		}
		s.Turn(d.now)
		for s.Transmit(d.now, rxe.Frame{Head: r.reply[:]}) > 0 {
			answers++
		}
	}
	s.Leave()
	return answers
}
