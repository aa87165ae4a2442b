package cm

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

var (
	hostileSeed = flag.Uint64("hostile.seed", 0, "run this one seed of TestHostile")
	hostileRuns = flag.Uint64("hostile.runs", 100, "seeds of TestHostile")
)

// foe is a peer that sends whatever it likes, and an application that calls whatever it likes, at
// any time, both from one seed. It notes what a machine has promised: which IDs live and what has
// been said about them.
type foe struct {
	t     testing.TB
	seed  uint64
	step  int
	rng   *rand.Rand
	m     *Machine
	now   Time
	lists []ListenID
	ids   []ID              // all that there were
	life  map[ID]*foeLife   // what the application knows of them
	peers []Addr            // of the foe's machines
	owed  map[wire.GID]bool // whom the machine may write to
	idle  float64           // how often nobody takes events and MADs
	ends  map[string]int    // how IDs have ended
}

type foeLife struct {
	active, datagram bool
	last             EventKind
	over             string // why no event may follow; "" while it lives
}

func (f *foe) fail(format string, args ...any) {
	f.t.Helper()
	f.t.Fatalf("seed=%d step %d at %v: %s\n"+
		"replay: go test ./rxe/cm -run 'TestHostile$' -hostile.seed=%d",
		f.seed, f.step, time.Duration(f.now), fmt.Sprintf(format, args...), f.seed)
}

func newFoe(t testing.TB, seed uint64) *foe {
	f := &foe{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), life: map[ID]*foeLife{},
		owed: map[wire.GID]bool{}, ends: map[string]int{}}
	f.idle = pick(f, []float64{0.1, 0.5, 0.95})
	cfg := Config{
		Rand: f.rng.Uint64, GUID: ourGUID, ProbeStale: f.chance(0.5), MaxConns: 15 + f.rng.IntN(25),
		MaxHalfOpen: 20, MaxHalfOpenPeer: 8, MaxEvents: 5 + f.rng.IntN(25), MaxQueue: 10 + f.rng.IntN(50),
		MaxFarewells: 6,
		Keepalive:    time.Duration(f.rng.IntN(2)) * 5 * time.Second,
	}
	if f.chance(0.3) {
		cfg.MaxRetries, cfg.ResponseTimeout = 2, 12
	}
	f.m = newMachine(t, cfg)
	for n := range byte(3) {
		f.peers = append(f.peers, Addr{ourGID, wire.GIDFromIPv4([4]byte{10, 0, 0, 9 + n}), 1})
	}
	f.peers = append(f.peers, Addr{gid(t, "fd00::5"), gid(t, "fd00::9"), 1}, // and a few odd ones
		Addr{ourGID, ourGID, 1}, Addr{ourGID, peerGID, 0x777}, Addr{wire.GID{}, peerGID, 1})
	f.listen()
	return f
}

func (f *foe) chance(p float64) bool { return f.rng.Float64() < p }

func pick[T any](f *foe, list []T) T { return list[f.rng.IntN(len(list))] }

func (f *foe) id() ID {
	if len(f.ids) == 0 || f.chance(0.05) {
		return ID(f.rng.Uint32())
	}
	if f.chance(0.6) { // a recent one
		return f.ids[len(f.ids)-1-f.rng.IntN(min(len(f.ids), 6))]
	}
	return pick(f, f.ids)
}

func (f *foe) listen() {
	for _, s := range []ServiceID{tcp, udp, 1 << 40} {
		l, err := f.m.Listen(ListenParam{Service: s, Backlog: f.rng.IntN(12)})
		if err == nil {
			f.lists = append(f.lists, l)
		}
	}
}

// message is one of any kind, mostly such as a peer in some state would send it.
func (f *foe) message(at Addr, id ID) Message {
	own := uint32(peerID + f.rng.IntN(12))
	qpn := peerQPN + wire.QPN(f.rng.IntN(12))
	our := ourQPN
	if f.chance(0.1) {
		our++
	}
	switch f.rng.IntN(14) {
	case 0, 1, 2:
		q := peerREQ()
		q.LocalID, q.QPN, q.CAGUID = own, qpn, peerGUID+uint64(f.rng.IntN(2))
		q.Primary.Local, q.Primary.Remote = at.Remote, at.Local
		q.Transport = Transport(f.rng.IntN(3))
		if f.chance(0.2) {
			q.Alternate = q.Primary
			q.RemoteTimeout, q.LocalTimeout, q.MaxRetries = uint8(f.rng.Uint32()), uint8(f.rng.Uint32()), 1
			q.Primary.AckTimeout = uint8(f.rng.Uint32())
		}
		if f.chance(0.1) {
			q.Service = pick(f, []ServiceID{udp, 1 << 40, 5})
		}
		return q
	case 3:
		return &MRA{LocalID: own, RemoteID: uint32(id), Message: Kind(f.rng.IntN(4)),
			ServiceTimeout: uint8(f.rng.IntN(32))}
	case 4:
		q := &REJ{LocalID: own, RemoteID: uint32(id), Message: Kind(f.rng.IntN(4)),
			Reason: Reason(f.rng.IntN(37)), InfoLength: uint8(f.rng.IntN(128))}
		if f.chance(0.3) { // by the GUID
			q.RemoteID, q.Reason, q.Info[7] = 0, ReasonTimeout, peerGUID
		}
		return q
	case 5, 6:
		q := peerREP(id)
		q.LocalID, q.QPN = own, qpn
		return q
	case 7:
		return &RTU{LocalID: own, RemoteID: uint32(id)}
	case 8:
		return &DREQ{LocalID: own, RemoteID: uint32(id), QPN: our}
	case 9:
		return &DREP{LocalID: own, RemoteID: uint32(id)}
	case 10:
		q := peerSIDRREQ()
		q.RequestID = own
		return q
	case 11:
		return &SIDRREP{RequestID: uint32(id), Service: udp, QPN: qpn, Status: SIDRStatus(f.rng.IntN(7)),
			InfoLength: uint8(f.rng.Uint32())}
	case 12:
		return &LAP{LocalID: own, RemoteID: uint32(id), QPN: our}
	}
	return &APR{LocalID: own, RemoteID: uint32(id)}
}

// peerOf is the foe's idea of who is at the other end of an ID, often right.
func (f *foe) peerOf(id ID) (Addr, uint32) {
	if c := f.m.conns[id]; c != nil && f.chance(0.8) {
		return Addr{c.at.Local, c.at.Remote, 1}, c.remoteID
	}
	return pick(f, f.peers), 0
}

// attack sends one MAD: a good one, a damaged one, or none at all.
func (f *foe) attack() {
	id := f.id()
	at, remoteID := f.peerOf(id)
	mad := Encode(f.rng.Uint64N(4), f.message(at, id))
	switch a := mad.Attr(); {
	case remoteID == 0, a == AttrREQ, a == AttrSIDRREQ, a == AttrSIDRREP:
	default:
		binary.BigEndian.PutUint32(mad[headerSize:], remoteID)
	}
	if f.chance(0.25) {
		for range 1 + f.rng.IntN(4) {
			mad[f.rng.IntN(len(mad))] = byte(f.rng.Uint32())
		}
	}
	b := mad[:]
	if f.chance(0.03) {
		b = b[:f.rng.IntN(len(b))]
	}
	f.owed[at.Remote] = true
	queued := len(f.m.out)
	f.m.Receive(f.now, at, b)
	if n := len(f.m.out) - queued; n > 2 {
		f.fail("one %v is answered with %d MADs", mad.Attr(), n)
	}
	if f.chance(0.2) { // again
		f.m.Receive(f.now, at, b)
	}
}

// call does something with some ID, fitting or not.
func (f *foe) call() {
	id := f.id()
	m, l := f.m, f.life[id]
	private := make([]byte, f.rng.IntN(3)*120)
	void := func(err error, why string) {
		if err == nil && l != nil {
			f.end(l, why)
		}
	}
	switch f.rng.IntN(12) {
	case 0, 1:
		p := ConnectParam{Param: ours, Addr: pick(f, f.peers), Service: tcp, MTU: 3}
		if f.chance(0.3) {
			p.Service, p.Transport = udp, TransportUD
		}
		f.owed[p.Addr.Remote] = true
		if n, err := m.Connect(f.now, p); err == nil {
			f.born(n, &foeLife{active: true, datagram: p.Transport == TransportUD})
		}
	case 2, 3, 4:
		datagram := m.State(id) == StateSIDRREQRcvd
		if err := m.Accept(f.now, id, ours, private); datagram {
			void(err, "accepted")
		}
	case 5, 6:
		_ = m.Establish(f.now, id, private)
	case 7:
		void(m.Reject(f.now, id, ReasonConsumer, nil, private), "rejected")
	case 8:
		_ = m.CommEst(f.now, id)
	case 9:
		_ = m.Disconnect(f.now, id, private)
	case 10:
		_ = m.MRA(f.now, id, uint8(f.rng.IntN(33)))
		_ = m.SetKeepalive(f.now, id, time.Duration(f.rng.IntN(3))*time.Second)
	case 11:
		if f.chance(0.3) {
			m.Destroy(f.now, id)
			void(nil, "destroyed")
		}
		if f.chance(0.05) {
			_ = m.Unlisten(pick(f, f.lists))
			f.listen()
		}
	}
}

func (f *foe) born(id ID, l *foeLife) {
	if old := f.life[id]; old != nil && old.over == "" {
		f.fail("id %08x is given twice", id)
	}
	f.life[id] = l
	f.ids = append(f.ids, id)
}

func (f *foe) end(l *foeLife, why string) {
	if l.over == "" {
		l.over = why
		f.ends[why]++
	}
}

// follows lists what may come after each event; 0 is none yet of an ID that Connect has made.
var follows = map[EventKind][]EventKind{
	0: {EventConnectResponse, EventEstablished, EventRejected, EventUnreachable},
	EventConnectRequest: {EventEstablished, EventRejected, EventUnreachable, EventConnectError,
		EventDisconnected},
	EventConnectResponse: {EventEstablished, EventRejected},
	EventEstablished:     {EventDisconnected},
	EventDisconnected:    {EventTimewaitExit},
	EventRejected:        {EventTimewaitExit},
	EventUnreachable:     {EventTimewaitExit},
}

// poll takes up to n events and holds the machine to its word.
func (f *foe) poll(n int) {
	for range n {
		ev, ok := f.m.Poll()
		if !ok {
			return
		}
		if ev.Kind == EventConnectRequest {
			f.born(ev.ID, &foeLife{datagram: ev.Request.Transport == TransportUD, last: ev.Kind})
			continue
		}
		l := f.life[ev.ID]
		switch {
		case l == nil:
			f.fail("%v for an ID that nobody knows", ev.Kind)
		case l.over != "":
			f.fail("%v for an ID that is %s", ev.Kind, l.over)
		case ev.Kind == EventKeepalive:
			if l.last != EventEstablished {
				f.fail("keepalive after %v", l.last)
			}
			continue
		}
		fits := false
		for _, k := range follows[l.last] {
			fits = fits || k == ev.Kind
		}
		if !fits {
			f.fail("%v after %v", ev.Kind, l.last)
		}
		l.last = ev.Kind
		switch ev.Kind {
		case EventConnectError, EventTimewaitExit:
			f.end(l, ev.Kind.String())
		case EventRejected, EventUnreachable:
			if !ev.TimeWait {
				f.end(l, ev.Kind.String())
			}
		case EventEstablished:
			if l.datagram {
				f.end(l, "resolved")
			}
		}
	}
}

// pull takes up to n MADs: each goes to somebody who has written, or was called.
func (f *foe) pull(n int) {
	var out Out
	for range n {
		if !f.m.Next(&out) {
			return
		}
		if !f.owed[out.Addr.Remote] {
			f.fail("%v to %v, who has not said a word", out.MAD.Attr(), out.Addr.Remote)
		}
		if _, d := Decode(out.MAD[:]); d != DropNone {
			f.fail("MAD of ours: %v", d)
		}
	}
}

// check: all is bounded, and the accounts are right.
func (f *foe) check() {
	m, c := f.m, &f.m.cfg
	if f.step%16 == 0 {
		checkInvariants(f.t, m)
	}
	if m.Len() > c.MaxConns || m.HalfOpen() > c.MaxHalfOpen || len(m.out) > c.MaxQueue ||
		len(m.events) > c.MaxEvents+6*c.MaxConns {
		f.fail("%d connections, %d half-open, %d MADs, %d events", m.Len(), m.HalfOpen(), len(m.out),
			len(m.events))
	}
	for g, n := range m.halfPeer {
		if n > c.MaxHalfOpenPeer {
			f.fail("%d half-open from %v", n, g)
		}
	}
}

// finish: the application answers and ends nothing any more but what waits for it alone. All comes
// to its end, each ID to one.
func (f *foe) finish() {
	for id, l := range f.life {
		if s := f.m.State(id); s == StateEstablished || s == StateREPRcvd || s == StateMRAREPSent {
			f.m.Destroy(f.now, id)
			f.end(l, "destroyed")
		}
	}
	begin := f.now
	for {
		f.poll(1 << 20)
		f.pull(1 << 20)
		d := f.m.Deadline()
		if d == Never {
			break
		}
		f.now = max(f.now, d)
		f.m.Expire(f.now)
		f.check()
		// A connection that becomes established at its end is the application's to end.
		for id, l := range f.life {
			if f.m.State(id) == StateEstablished && l.over == "" {
				f.m.Destroy(f.now, id)
				f.end(l, "destroyed")
			}
		}
		if f.now-begin > Time(45*time.Minute) {
			f.fail("no end: %d connections", f.m.Len())
		}
	}
	if f.m.Len()+f.m.HalfOpen()+len(f.m.byRemote)+len(f.m.byQP)+len(f.m.halfPeer) != 0 {
		f.fail("left: %d connections, %d half-open, %d, %d, %d", f.m.Len(), f.m.HalfOpen(),
			len(f.m.byRemote), len(f.m.byQP), len(f.m.halfPeer))
	}
	for id, l := range f.life {
		if l.over == "" {
			f.fail("id %08x has no end, last event %v", id, l.last)
		}
	}
}

func (f *foe) run(steps int) {
	for f.step = range steps {
		switch x := f.rng.IntN(20); {
		case x < 11:
			f.attack()
		case x < 15:
			f.call()
		case x == 15:
			f.now = f.now.add(time.Duration(f.rng.Int64N(int64(3 * time.Second))))
			f.m.Expire(f.now)
		case x == 16 && f.chance(0.1):
			f.now = f.now.add(time.Duration(f.rng.Int64N(int64(3 * time.Minute))))
			f.m.Expire(f.now)
		}
		if !f.chance(f.idle) {
			f.poll(1 + f.rng.IntN(40))
		}
		if !f.chance(f.idle) {
			f.pull(1 + f.rng.IntN(80))
		}
		f.check()
	}
	f.finish()
}

// TestHostile: whatever a peer sends and an application calls, in whatever state, each ID has one
// end and no event after it, memory keeps to its bounds, and nothing is left.
func TestHostile(t *testing.T) {
	if *hostileSeed != 0 {
		newFoe(t, *hostileSeed).run(600)
		return
	}
	total := map[string]int{}
	var drops [NumDrops]uint64
	for seed := range *hostileRuns {
		f := newFoe(t, seed+1)
		f.run(600)
		for why, n := range f.ends {
			total[why] += n
		}
		for d, n := range f.m.Stats().Drops {
			drops[d] += n
		}
	}
	t.Log(total, drops)
	if *hostileRuns < 100 {
		return
	}
	// What never happens is not tested.
	for _, why := range []string{"destroyed", "rejected", "accepted", "resolved", "CONNECT_ERROR",
		"TIMEWAIT_EXIT", "REJECTED", "UNREACHABLE"} {
		if total[why] < int(*hostileRuns)/10 {
			t.Errorf("%s ends only %d IDs", why, total[why])
		}
	}
	for d := DropLength; d < NumDrops; d++ {
		if drops[d] == 0 {
			t.Errorf("no drop for %v", d)
		}
	}
}
