package rxe_test

import (
	"bytes"
	"flag"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/sim"
)

// This file lets an owner map, register, bind, invalidate, free and allocate at random, on several
// connections of two protection domains and on several shards, with send queues held at times,
// while a peer attacks with keys in force, stale, announced and guessed. The model says what each
// step must do; after each, completions, every byte of the owner's memory, all that is installed
// and the counters of faults must be what it says.

var (
	keySeed = flag.Uint64("keyseed", 0, "TestKeySimulation: run this seed alone")
	keyRuns = flag.Uint64("keyruns", 0, "TestKeySimulation: run so many seeds")
)

const (
	keyArena    = 1 << 15
	keyBlock    = 1 << 11 // a list has at most one piece in each block
	keyPMTU     = 512
	keyIndices  = 32
	keyPatience = rxe.Time(60_000_000_000)
)

// keySim is one run.
type keySim struct {
	model
	t      testing.TB
	r      *sim.Rand
	f      *sim.Fabric
	owner  *sim.Node
	peer   *sim.Node
	lossy  bool
	arena  []byte // the owner's memory; model.mem is what must be in it
	pds    []mr.PD
	safe   []*sim.Region   // of the owner, one a domain, for what is not under test
	gates  []mr.Key        // of fast regions that are never registered, one a domain
	hidden map[uint32]bool // indices of these
	far    *sim.Region     // of the peer
	conns  []*keyConn
	stale  []mr.Key // keys that were in force
	psn    rxe.PSN
	nextID uint64
	faults [mr.NumFaults]uint64 // expected
	steps  map[string]int
}

// keyConn is a connection: the peer attacks from its end, the owner works on the other.
type keyConn struct {
	own, far     *rxe.QP
	ownCQ, recvs *rxe.CQ // the owner's
	farCQ        *rxe.CQ
	pd           int
	held         bool   // a SEND waits for a receive that the peer has not posted
	posted       []work // behind it
}

// work is a posted work request of the owner.
type work struct {
	id       uint64
	op       rxe.WROpcode
	signaled bool
	key      mr.Key // LOCAL_INV
	s        *staged
}

func TestKeySimulation(t *testing.T) {
	if *keySeed != 0 {
		runKeySim(t, *keySeed)
		return
	}
	runs := *keyRuns
	if runs == 0 {
		if runs = 60; testing.Short() || raceEnabled {
			runs = 12
		}
	}
	total := map[string]int{}
	for seed := uint64(1); seed <= runs; seed++ {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			for what, n := range runKeySim(t, seed) {
				total[what] += n
			}
		})
		if !ok {
			t.Fatalf("seed=%d; again: go test ./rxe -run TestKeySimulation -args -keyseed=%d", seed, seed)
		}
	}
	t.Log(total)
	for _, what := range []string{"attack ok", "attack refused", "stale refused", "race cut", "race won",
		"REG_MR ok", "REG_MR error", "LOCAL_INV ok", "LOCAL_INV error", "BIND_MW ok", "BIND_MW error",
		"SEND_WITH_INV ok", "SEND_WITH_INV error", "local ok", "local error", "held"} {
		if total[what] == 0 {
			t.Errorf("it never happened: %s", what)
		}
	}
}

func runKeySim(t *testing.T, seed uint64) map[string]int {
	s := newKeySim(t, seed)
	for range 400 {
		s.step()
		if t.Failed() {
			break
		}
	}
	return s.steps
}

func newKeySim(t *testing.T, seed uint64) *keySim {
	s := &keySim{t: t, r: sim.NewRand(seed), lossy: seed%3 == 0, arena: make([]byte, keyArena),
		steps: map[string]int{}}
	s.f = sim.New(sim.Config{Seed: seed})
	var err error
	shards := 1 + int(seed%3)
	grace := mr.NewGrace(shards)
	s.owner, err = s.f.AddNode(sim.NodeConfig{Shards: shards, Device: rxe.Config{Grace: grace,
		Keys: mr.New(keyIndices, uint32(seed), grace)}}) // a small table: indices are used again
	s.must(err)
	s.peer, err = s.f.AddNode(sim.NodeConfig{Shards: 1 + int(seed%2)})
	s.must(err)
	for i := range s.arena {
		s.arena[i] = byte(s.r.Uint64())
	}
	s.mem, s.objects, s.hidden = bytes.Clone(s.arena), map[uint32]*object{}, map[uint32]bool{}
	farPD := s.peer.AllocPD()
	s.far, err = s.peer.Reg(farPD, make([]byte, 1<<14), 0x5000_0000, sim.AllAccess)
	s.must(err)
	for range 2 {
		pd := s.owner.AllocPD()
		s.pds = append(s.pds, pd)
		reg, err := s.owner.Reg(pd, make([]byte, 4096), 0x6000_0000, sim.AllAccess)
		s.must(err)
		gate, err := s.owner.Dev.Keys().AllocFast(pd, 1)
		s.must(err)
		s.safe, s.gates = append(s.safe, reg), append(s.gates, gate)
		s.hidden[reg.Key.Index()], s.hidden[gate.Index()] = true, true
	}
	for i := range 5 {
		c := &keyConn{pd: i / 3}
		s.conns = append(s.conns, c)
		s.create(c, farPD)
	}
	for range 5 {
		s.allocate(mr.KindFast)
		s.allocate(mr.KindUser)
	}
	for range 2 {
		s.allocate(mr.KindWindow1)
		s.allocate(mr.KindWindow2)
	}
	if s.lossy {
		s.f.SetFaults(sim.Faults{Drop: 0.03, Duplicate: 0.03, Reorder: 0.03, Corrupt: 0.01, Delay: 0.02})
	}
	return s
}

func (s *keySim) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// create makes the two QPs of a connection and connects them.
func (s *keySim) create(c *keyConn, farPD mr.PD) {
	s.t.Helper()
	cq := func(n *sim.Node) *rxe.CQ {
		q, err := n.Dev.NewCQ(256)
		s.must(err)
		return q
	}
	qp := func(n *sim.Node, pd mr.PD, send, recv *rxe.CQ) *rxe.QP {
		shards := n.Dev.Shards()
		q, err := n.Dev.CreateQP(shards[s.r.Intn(len(shards))], rxe.QPInit{Type: rxe.RC, PD: pd,
			SendCQ: send, RecvCQ: recv, MaxSendWR: 64, MaxRecvWR: 16, MaxSend: 2, MaxRecv: 2})
		s.must(err)
		return q
	}
	c.ownCQ, c.recvs, c.farCQ = cq(s.owner), cq(s.owner), cq(s.peer)
	c.own = qp(s.owner, s.pds[c.pd], c.ownCQ, c.recvs)
	c.far = qp(s.peer, farPD, c.farCQ, cq(s.peer)) // nobody looks at its receives
	s.connect(c)
}

func (s *keySim) connect(c *keyConn) {
	s.t.Helper()
	s.psn = s.psn.Add(0x10000 + uint32(s.r.Intn(0x10000))) // frames of earlier lives are far away
	s.must(sim.Connect(s.owner, c.own, s.peer, c.far, sim.ConnAttr{PMTU: keyPMTU, PSN: s.psn,
		Timeout: 9, RNRTimer: 31}))
}

// reconnect brings a connection back that an error has ended. What was posted is gone; so is what
// the owner's software had hoped for.
func (s *keySim) reconnect(c *keyConn) {
	s.t.Helper()
	s.must(c.own.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	s.must(c.far.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	s.settle()
	want := c.posted
	if c.held {
		want = append([]work{{}, {}}, want...) // the gate's two
	}
	s.completions(c, want, rxe.WCWRFlushErr)
	for _, q := range []*rxe.QP{c.own, c.far} {
		s.must(q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState))
	}
	var b [64]rxe.CQE
	c.farCQ.Poll(b[:])
	c.recvs.Poll(b[:])
	c.held, c.posted = false, nil
	for _, o := range s.objects {
		if o.kind == mr.KindWindow1 || o.kind == mr.KindWindow2 {
			o.soft = o.key
		}
	}
	s.connect(c)
}

// settle runs until nothing moves any more, but for what is held.
func (s *keySim) settle() { s.f.Run(s.f.Now() + 12_000_000) }

// completions expects those of works, in order, with one status: all of them for an error, those
// that are signaled for a success.
func (s *keySim) completions(c *keyConn, works []work, st rxe.WCStatus) {
	s.t.Helper()
	var b [64]rxe.CQE
	for _, w := range works {
		if st == rxe.WCSuccess && !w.signaled {
			continue
		}
		if c.ownCQ.Poll(b[:1]) != 1 || b[0].WRID != w.id || b[0].Status != st {
			s.t.Fatalf("completion %+v, want %d with %v", b[0], w.id, st)
		}
	}
}

// step does one thing at random and checks everything.
func (s *keySim) step() {
	c := s.conns[s.r.Intn(len(s.conns))]
	switch s.r.Intn(20) {
	case 0, 1:
		s.mapOrBump()
	case 2, 3, 4, 5:
		s.postReg(c)
	case 6:
		s.postInv(c)
	case 7, 8:
		s.postBind(c)
	case 9:
		s.holdOrLetGo(c)
	case 10:
		if s.r.Intn(3) == 0 {
			s.control()
		}
	case 11:
		s.sendInv(c)
	case 12:
		s.localUse()
	case 13, 14:
		s.race()
	default:
		s.attack()
	}
	s.verify()
}

// verify compares all there is with the model.
func (s *keySim) verify() {
	s.t.Helper()
	if !bytes.Equal(s.arena, s.mem) {
		for i := range s.arena {
			if s.arena[i] != s.mem[i] {
				s.t.Fatalf("byte %d is %#02x, want %#02x", i, s.arena[i], s.mem[i])
			}
		}
	}
	for index, o := range s.objects {
		got := s.owner.Dev.Keys().Lookup(index)
		got.Segs = 0
		if want := o.info(); got != want {
			s.t.Fatalf("index %d: %+v, want %+v", index, got, want)
		}
	}
	var faults [mr.NumFaults]uint64
	for _, sh := range s.owner.Dev.Shards() {
		for f, n := range sh.C.KeyFaults {
			faults[f] += n
		}
	}
	if faults != s.faults {
		s.t.Fatalf("faults %v, want %v", faults, s.faults)
	}
}

// pick returns an object of one of the kinds that fits; mostly: now and then any of these kinds.
func (s *keySim) pick(fits func(*object) bool, kinds ...mr.Kind) *object {
	any := fits == nil || s.r.Intn(8) == 0
	var all []*object
	for i := range uint32(keyIndices) { // in order: a map's is not the seed's
		o := s.objects[i]
		for _, k := range kinds {
			if o != nil && o.kind == k && (any || fits(o)) {
				all = append(all, o)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[s.r.Intn(len(all))]
}

// conn returns a connection for an object: mostly one through which it can be used.
func (s *keySim) conn(o *object) *keyConn {
	if o == nil || s.r.Intn(8) == 0 {
		return s.conns[s.r.Intn(len(s.conns))]
	}
	var all []*keyConn
	for _, c := range s.conns {
		if s.pds[c.pd] == o.pd && (o.qp == nil || o.qp == c.own) {
			all = append(all, c)
		}
	}
	return all[s.r.Intn(len(all))]
}

func (s *keySim) anyObject() *object {
	return s.pick(func(o *object) bool { return o.length > 0 }, mr.KindFast, mr.KindUser,
		mr.KindWindow1, mr.KindWindow2)
}

// allocate makes a new object.
func (s *keySim) allocate(kind mr.Kind) {
	s.t.Helper()
	tab := s.owner.Dev.Keys()
	o := &object{kind: kind, pd: s.pds[s.r.Intn(4)/3]}
	var err error
	if kind == mr.KindFast {
		o.key, err = tab.AllocFast(o.pd, 8)
	} else {
		o.key, err = tab.Alloc(kind, o.pd)
	}
	s.must(err)
	o.soft = o.key
	o.valid = kind == mr.KindWindow1 // with no range
	s.objects[o.key.Index()] = o
	if kind == mr.KindUser {
		s.must(tab.Publish(s.userView(o)))
	}
}

// userView registers a user region's object anew and returns what to publish.
func (s *keySim) userView(o *object) *mr.View {
	s.t.Helper()
	list := s.list()
	at := positions(list)
	o.access, o.valid, o.bytes, o.length = s.rights(), true, at, uint64(len(at))
	o.iova = s.iova(o.length, o.access)
	v, err := mr.NewView(mr.Region{Key: o.key, PD: o.pd, Access: o.access, IOVA: o.iova,
		Length: o.length, List: mr.NewList(s.segments(list)...)})
	s.must(err)
	return v
}

// list is up to 6 pieces of memory in random order, the shortest of one byte.
func (s *keySim) list() (out []piece) {
	const blocks = keyArena / keyBlock
	used := [blocks]bool{}
	for range 1 + s.r.Intn(6) {
		b := s.r.Intn(blocks)
		if used[b] {
			continue
		}
		used[b] = true
		n := 1 + s.r.Intn(keyBlock)
		if s.r.Intn(4) == 0 {
			n = 1 + s.r.Intn(9)
		}
		out = append(out, piece{b*keyBlock + s.r.Intn(keyBlock-n+1), n})
	}
	return out
}

func (s *keySim) segments(list []piece) (out [][]byte) {
	for _, p := range list {
		out = append(out, s.arena[p.at:p.at+p.n])
	}
	return out
}

// rights are mostly generous.
func (s *keySim) rights() mr.Access {
	a := sim.AllAccess
	if s.r.Intn(3) == 0 {
		for _, drop := range []mr.Access{mr.LocalWrite, mr.RemoteWrite, mr.RemoteRead, mr.RemoteAtomic,
			mr.MWBind} {
			if s.r.Intn(2) == 0 {
				a &^= drop
			}
		}
	}
	if s.r.Intn(10) == 0 {
		a |= mr.ZeroBased
	}
	return a
}

// iova is where n bytes are registered: often the same place, at times the end of all addresses.
func (s *keySim) iova(n uint64, a mr.Access) uint64 {
	switch {
	case a&mr.ZeroBased != 0:
		return 0
	case s.r.Intn(8) == 0:
		return -n
	case s.r.Intn(3) == 0:
		return 0x10000 + uint64(s.r.Intn(100))
	}
	return 0x10000
}

// guess is a key: in force, announced, stale, near one of these, or from nowhere.
func (s *keySim) guess() mr.Key {
	for {
		if key := s.anyKey(); !s.hidden[key.Index()] {
			return key
		}
	}
}

func (s *keySim) anyKey() mr.Key {
	o := s.anyObject()
	switch s.r.Intn(9) {
	case 0, 1, 2:
		return o.key
	case 3:
		return o.soft
	case 4:
		return o.key ^ mr.Key(1<<s.r.Intn(8))
	case 5:
		return mr.MakeKey(uint32(s.r.Intn(2*keyIndices)), uint8(s.r.Uint64()))
	case 6:
		return mr.Key(s.r.Uint64())
	case 7:
		return 0
	}
	if len(s.stale) > 0 {
		return s.stale[s.r.Intn(len(s.stale))]
	}
	return o.key
}

// target chooses a key and a range that is mostly inside what it names.
func (s *keySim) target() (key mr.Key, va uint64, n int) {
	key = s.guess()
	n = 1 + s.r.Intn(3*keyPMTU)
	if s.r.Intn(3) == 0 {
		n = 1 + s.r.Intn(16)
	}
	o := s.byKey(key)
	if o == nil || o.length == 0 {
		return key, 0x10000, n
	}
	switch s.r.Intn(10) {
	case 0:
		return key, o.iova - uint64(s.r.Intn(n+1)), n // across the start, perhaps
	case 1:
		return key, o.iova + o.length - uint64(s.r.Intn(n+1)), n // across the end
	case 2:
		return key, -uint64(1 + s.r.Intn(n)), n // past 2^64, perhaps
	}
	n = min(n, int(o.length))
	return key, o.iova + uint64(s.r.Intn(int(o.length)-n+1)), n
}
