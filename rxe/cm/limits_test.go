package cm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// flood sends n REQs, with comm ids and QPNs from base, and returns how many events came.
func flood(m *Machine, at Addr, base, n int) (ids []ID) {
	for i := range n {
		q := peerREQ()
		q.LocalID, q.QPN = uint32(base+i+1), wire.QPN(base+i+1)
		q.Primary.Local = at.Remote
		mad := Encode(uint64(i), q)
		m.Receive(0, at, mad[:])
	}
	for ev, ok := m.Poll(); ok; ev, ok = m.Poll() {
		ids = append(ids, ev.ID)
	}
	return ids
}

// TestHalfOpenCaps: 128 a peer and 4096 in all; above that nothing is answered or kept.
func TestHalfOpenCaps(t *testing.T) {
	m := newMachine(t, testConfig())
	_, err := m.Listen(ListenParam{Service: tcp})
	must(t, err)
	at := peerAddr
	ids := flood(m, at, 0, 1000)
	if len(ids) != 128 || m.Len() != 128 || m.Stats().Drops[DropHalfOpenPeer] != 872 {
		t.Fatalf("%d of one peer, drops %v", len(ids), m.Stats().Drops)
	}
	quiet(t, m)
	// Another peer is not hurt; when one of the first peer's is established it may have another.
	for i := range 40 {
		at.Remote[14] = byte(i + 1)
		flood(m, at, 0, 1000)
	}
	if m.HalfOpen() != 4096 || m.Len() != 4096 || m.Stats().Drops[DropHalfOpen] == 0 {
		t.Fatalf("%d half-open, drops %v", m.HalfOpen(), m.Stats().Drops)
	}
	must(t, m.Accept(0, ids[0], ours, nil))
	if got := flood(m, peerAddr, 5000, 1); len(got) != 0 {
		t.Error("an accepted request is still half-open")
	}
	must(t, m.CommEst(0, ids[0]))
	drain(m)
	if got := flood(m, peerAddr, 5000, 2); len(got) != 1 {
		t.Errorf("%d admitted after one was established", len(got))
	}
	// Forged requests make room by themselves.
	for m.HalfOpen() > 0 {
		m.Expire(m.Deadline())
		drain(m)
	}
	if now := time.Duration(m.now); now > 2*time.Minute {
		t.Errorf("half-open for %v", now)
	}
	if len(m.halfPeer) != 0 || len(m.byRemote) != 1 || len(m.byQP) != 1 {
		t.Errorf("%d peers, %d, %d", len(m.halfPeer), len(m.byRemote), len(m.byQP))
	}
}

// TestLimits: the other limits of Config and ListenParam.
func TestLimits(t *testing.T) {
	t.Run("MaxEvents", func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxEvents, cfg.MaxHalfOpenPeer = 10, 100
		m := newMachine(t, cfg)
		_, err := m.Listen(ListenParam{Service: tcp})
		must(t, err)
		if ids := flood(m, peerAddr, 0, 50); len(ids) != 10 || m.Stats().Drops[DropEvents] != 40 {
			t.Errorf("%d admitted, drops %v", len(ids), m.Stats().Drops)
		}
	})
	t.Run("Backlog", func(t *testing.T) {
		m := newMachine(t, testConfig())
		_, err := m.Listen(ListenParam{Service: tcp, Backlog: 3})
		must(t, err)
		ids := flood(m, peerAddr, 0, 5)
		if len(ids) != 3 || m.Stats().Drops[DropBacklog] != 2 {
			t.Fatalf("%d admitted, drops %v", len(ids), m.Stats().Drops)
		}
		must(t, m.Accept(0, ids[0], ours, nil))
		must(t, m.Reject(0, ids[1], ReasonConsumer, nil, nil))
		if ids = flood(m, peerAddr, 100, 5); len(ids) != 2 {
			t.Errorf("%d admitted after two were answered", len(ids))
		}
	})
	t.Run("MaxConns", func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxConns = 2
		m := newMachine(t, cfg)
		_, err := m.Listen(ListenParam{Service: tcp})
		must(t, err)
		connect(t, m, 0)
		connect(t, m, 0)
		_, err = m.Connect(0, ConnectParam{Addr: peerAddr, Service: tcp, MTU: 1})
		if err != ErrLimit {
			t.Errorf("Connect: %v", err)
		}
		if ids := flood(m, peerAddr, 0, 5); len(ids) != 0 || m.Stats().Drops[DropConns] != 5 {
			t.Errorf("%d admitted", len(ids))
		}
	})
	t.Run("MaxQueue", func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxQueue = 5
		m := newMachine(t, cfg)
		for range 9 {
			recv(m, 0, 1, &DREQ{LocalID: 1, RemoteID: 2})
		}
		if len(m.out) != 5 || m.Stats().Drops[DropQueue] != 4 {
			t.Errorf("%d queued, drops %v", len(m.out), m.Stats().Drops)
		}
	})
	t.Run("MaxFarewells", func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxFarewells, cfg.MaxHalfOpenPeer = 10, 1000
		m := newMachine(t, cfg)
		_, err := m.Listen(ListenParam{Service: tcp})
		must(t, err)
		for _, id := range flood(m, peerAddr, 0, 100) {
			must(t, m.Reject(0, id, ReasonConsumer, nil, nil))
		}
		if len(m.farewells.byKey) != 10 || len(m.farewells.order) != 10 {
			t.Errorf("%d remembered", len(m.farewells.byKey))
		}
	})
}

// TestKeepalive: an event each interval, never two unpolled, and none after the end.
func TestKeepalive(t *testing.T) {
	cfg := testConfig()
	cfg.Keepalive = time.Second
	m, id := inState(t, cfg, StateEstablished, true)
	for i := range 3 {
		m.Expire(Time(i+1) * Time(time.Second))
		if ev := poll(t, m, EventKeepalive); ev.ID != id {
			t.Errorf("event %+v", ev)
		}
	}
	for i := range 5 {
		m.Expire(Time(i+4) * Time(time.Second))
	}
	poll(t, m, EventKeepalive)
	must(t, m.SetKeepalive(8e9, id, 5*time.Second))
	if m.Deadline() != 13e9 {
		t.Errorf("deadline %d", m.Deadline())
	}
	must(t, m.SetKeepalive(8e9, id, 0))
	if m.Deadline() != Never {
		t.Errorf("deadline %d", m.Deadline())
	}
	must(t, m.SetKeepalive(8e9, id, time.Second))
	m.Expire(9e9)
	must(t, m.Disconnect(9e9, id, nil))
	noEvent(t, m)
	if err := m.SetKeepalive(0, id, -1); err != ErrInvalidParam {
		t.Error(err)
	}
	if err := m.SetKeepalive(0, id+1, 1); err != ErrUnknownID {
		t.Error(err)
	}
}

// TestSlowDisconnect: a DREQ is answered even if the application does not.
func TestSlowDisconnect(t *testing.T) {
	m, _ := inState(t, testConfig(), StateDREQRcvd, true)
	if d := time.Duration(m.Deadline()); d > Timeout(20)/2 {
		t.Errorf("answers after %v", d)
	}
	m.Expire(m.Deadline())
	if out := next(t, m, AttrDREP); out.MAD.TID() != dreqTID {
		t.Errorf("transaction %d", out.MAD.TID())
	}
}

// TestPrivateData: limits are enforced, data arrives whole and zero-filled.
func TestPrivateData(t *testing.T) {
	big := make([]byte, 300)
	m := newMachine(t, testConfig())
	for _, tc := range []struct {
		transport Transport
		service   ServiceID
		room      int
	}{
		{TransportRC, tcp, 56}, {TransportRC, 1 << 40, 92},
		{TransportUD, udp, 180}, {TransportUD, 1 << 40, 216},
	} {
		p := ConnectParam{Addr: peerAddr, Service: tc.service, Transport: tc.transport, MTU: 1}
		p.Private = big[:tc.room]
		if _, err := m.Connect(0, p); err != nil {
			t.Errorf("%+v: %v", tc, err)
		}
		p.Private = big[:tc.room+1]
		if _, err := m.Connect(0, p); err != ErrPrivateData {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	accept := func(m *Machine, id ID, b []byte) error { return m.Accept(0, id, ours, b) }
	reject := func(m *Machine, id ID, b []byte) error { return m.Reject(0, id, 28, nil, b) }
	rejectInfo := func(m *Machine, id ID, b []byte) error { return m.Reject(0, id, 28, b, nil) }
	establish := func(m *Machine, id ID, b []byte) error { return m.Establish(0, id, b) }
	disconnect := func(m *Machine, id ID, b []byte) error { return m.Disconnect(0, id, b) }
	for _, tc := range []struct {
		state State
		call  func(m *Machine, id ID, private []byte) error
		room  int
	}{
		{StateREQRcvd, accept, 196},
		{StateREQRcvd, reject, 148},
		{StateREQRcvd, rejectInfo, 72},
		{StateREPRcvd, establish, 224},
		{StateEstablished, disconnect, 220},
		{StateDREQRcvd, disconnect, 224},
		{StateSIDRREQRcvd, accept, 136},
		{StateSIDRREQRcvd, reject, 136},
	} {
		m, id := inState(t, testConfig(), tc.state, true)
		if err := tc.call(m, id, big[:tc.room+1]); err != ErrPrivateData {
			t.Errorf("%v, %d bytes: %v", tc.state, tc.room+1, err)
		}
		quiet(t, m)
		if err := tc.call(m, id, big[:tc.room]); err != nil {
			t.Errorf("%v, %d bytes: %v", tc.state, tc.room, err)
		}
	}
}

// TestListeners: exact addresses win, services are taken once.
func TestListeners(t *testing.T) {
	m := newMachine(t, testConfig())
	all, err := m.Listen(ListenParam{Service: tcp})
	must(t, err)
	one, err := m.Listen(ListenParam{Service: tcp, Local: ourGID})
	must(t, err)
	if _, err := m.Listen(ListenParam{Service: tcp}); err != ErrInUse {
		t.Error(err)
	}
	recv(m, 0, 1, peerREQ())
	ev := poll(t, m, EventConnectRequest)
	if ev.Listener != one || string(ev.Private[:6]) != "hello\x00" {
		t.Errorf("event %+v", ev)
	}
	must(t, m.Unlisten(one))
	q := peerREQ()
	q.LocalID, q.QPN = 1, 1
	recv(m, 0, 1, q)
	if ev := poll(t, m, EventConnectRequest); ev.Listener != all {
		t.Errorf("event %+v", ev)
	}
	must(t, m.Unlisten(all))
	if err := m.Unlisten(all); err != ErrUnknownID {
		t.Error(err)
	}
	recv(m, 0, 1, peerSIDRREQ())
	out := next(t, m, AttrSIDRREP)
	var rep SIDRREP
	decode(&out.MAD, &rep)
	if rep.Status != SIDRUnsupported || rep.RequestID != peerID {
		t.Errorf("SIDR_REP %+v", rep)
	}
}

// TestCallErrors: parameters and configurations that are refused.
func TestCallErrors(t *testing.T) {
	m, id := inState(t, testConfig(), StateEstablished, true)
	err := m.Accept(0, id, ours, nil)
	var se *StateError
	if !errors.As(err, &se) || se.State != StateEstablished || !errors.Is(err, ErrInvalidState) ||
		!strings.Contains(err.Error(), "accept in state Established") {
		t.Errorf("Accept: %v", err)
	}
	for _, err := range []error{
		m.Accept(0, 1, ours, nil), m.Establish(0, 1, nil), m.Reject(0, 1, 28, nil, nil),
		m.MRA(0, 1, 5), m.Disconnect(0, 1, nil),
	} {
		if err != ErrUnknownID {
			t.Error(err)
		}
	}
	if err := m.MRA(0, id, 32); err != ErrInvalidParam {
		t.Error(err)
	}
	for _, p := range []ConnectParam{
		{Addr: peerAddr, MTU: 0}, {Addr: peerAddr, MTU: 6}, {Addr: peerAddr, MTU: 1, Transport: 2},
	} {
		if _, err := m.Connect(0, p); !errors.Is(err, ErrInvalidParam) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	rnd := lcg(1)
	for _, cfg := range []Config{
		{}, {Rand: rnd}, {Rand: rnd, GUID: 1, MaxMTU: 6}, {Rand: rnd, GUID: 1, MaxRetries: 16},
		{Rand: rnd, GUID: 1, ResponseTimeout: 23}, {Rand: rnd, GUID: 1, ServiceTimeout: 32},
		{Rand: rnd, GUID: 1, RetryFirst: 1}, {Rand: rnd, GUID: 1, Keepalive: -1},
		{Rand: rnd, GUID: 1, MaxHalfOpen: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v accepted", cfg)
		}
	}
}

// TestAckTimeout: codes for 4.096 µs·2ⁿ of ACK delay plus twice the packet lifetime.
func TestAckTimeout(t *testing.T) {
	for _, tc := range []struct{ delay, life, want uint8 }{
		{15, 16, 17}, {16, 16, 18}, {17, 16, 18}, {18, 16, 19}, {19, 16, 19}, {0, 0, 2},
		{31, 31, 31},
	} {
		if got := ackTimeout(tc.delay, tc.life); got != tc.want {
			t.Errorf("delay %d, life %d: %d, want %d", tc.delay, tc.life, got, tc.want)
		}
	}
	if Timeout(20) != 4294967296*time.Nanosecond {
		t.Errorf("Timeout(20) = %v", Timeout(20))
	}
}

// TestNames: every number that can be shown has a text.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	name := func(s fmt.Stringer, unknown bool) {
		t.Helper()
		text := s.String()
		if text == "" || seen[text] && !unknown {
			t.Errorf("%T: %q", s, text)
		}
		seen[text] = true
	}
	for r := range Reason(36) {
		name(r, r == 34)
	}
	if got := Reason(28).String(); got != "rejected by the application" {
		t.Error(got)
	}
	for s := range NumStates {
		name(s, false)
	}
	for d := range NumDrops {
		name(d, false)
	}
	for k := EventConnectRequest; k <= EventKeepalive; k++ {
		name(k, false)
	}
	seen = map[string]bool{}
	for a := AttrREQ; a <= AttrAPR; a++ {
		name(a, false)
	}
	for s := range SIDRStatus(7) {
		name(s, false)
	}
	for _, s := range []ServiceID{
		tcp, udp, Service(PortSpaceIB, 1), Service(PortSpaceIPoIB, 2), 1 << 40,
	} {
		name(s, false)
	}
	name(State(200), true)
	name(EventKind(200), true)
	name(Attr(1), true)
	name(Drop(200), true)
	if tcp.String() != "TCP:7174" || tcp != 0x01061c06 || tcp.Port() != 7174 {
		t.Errorf("%v %x", tcp, uint64(tcp))
	}
	if AttrSIDRREP.Index() != ixSIDRREP || AttrREQ.Index() != ixREQ || AttrDREP.Index() != ixDREP {
		t.Error("indices of the state table")
	}
}

// TestHostileTimeouts: what a peer promises or asks for can't make us keep it long, or busy.
func TestHostileTimeouts(t *testing.T) {
	for _, code := range []uint8{0, 31} {
		m := newMachine(t, testConfig())
		_, err := m.Listen(ListenParam{Service: tcp})
		must(t, err)
		q := peerREQ()
		q.LocalTimeout, q.RemoteTimeout, q.Primary.AckTimeout = code, code, code
		recv(m, 0, 1, q)
		id := drain(m)
		must(t, m.Accept(0, id, ours, nil))
		if p, err := m.QPParam(id); err != nil || Timeout(p.Timeout) < 100*time.Millisecond ||
			Timeout(p.Timeout) > 10*time.Second {
			t.Errorf("code %d: our QP's ACK timeout has code %d (%v)", code, p.Timeout, err)
		}
		for m.State(id) == StateREPSent {
			before, now := m.now, m.Deadline()
			m.Expire(now)
			if d := time.Duration(now - before); d < 400*time.Millisecond || d > 20*time.Second {
				t.Errorf("code %d: a retransmission after %v", code, d)
			}
		}
		var out, last Out
		for m.Next(&out) {
			last = out
		}
		if msg, _ := Decode(last.MAD[:]); msg.(*REJ).Reason != ReasonTimeout {
			t.Errorf("code %d: last word %v", code, msg)
		}
		if ev := poll(t, m, EventUnreachable); !ev.TimeWait {
			t.Errorf("code %d: %+v", code, ev)
		}
		if d := time.Duration(m.Deadline() - m.now); d > time.Minute {
			t.Errorf("code %d: time wait of %v", code, d)
		}
	}
	m, id := inState(t, testConfig(), StateREQSent, true)
	rep := peerREP(id)
	rep.AckDelay = 31
	recv(m, 0, 1, rep)
	must(t, m.Establish(0, id, nil))
	recv(m, 0, 1, &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN})
	must(t, m.Disconnect(0, id, nil))
	if d := time.Duration(m.Deadline()); d > time.Minute {
		t.Errorf("time wait of %v", d)
	}
}

// TestExpiryOrder: what is due at the same time happens in order of age.
func TestExpiryOrder(t *testing.T) {
	cfg := testConfig()
	cfg.Rand = script() // no jitter
	m := newMachine(t, cfg)
	var want []ID
	for range 9 {
		want = append(want, connect(t, m, 0))
	}
	m.Destroy(0, want[2])
	want = append(want[:2], want[3:]...)
	drain(m)
	m.Expire(m.Deadline())
	for _, id := range want {
		var out Out
		if !m.Next(&out) {
			t.Fatal("nothing to send")
		}
		var q REQ
		decode(&out.MAD, &q)
		if ID(q.LocalID) != id {
			t.Errorf("%x, want %x", q.LocalID, id)
		}
	}
}

// TestDestroyTakesEventsBack: a destroyed connection's events that are on their way do not arrive.
func TestDestroyTakesEventsBack(t *testing.T) {
	m := newMachine(t, testConfig())
	id := connect(t, m, 0)
	recv(m, 0, 1, peerREP(id))
	m.Destroy(0, id)
	noEvent(t, m)
	m.Destroy(0, id) // twice is fine
}

// TestWrongAnswers: a SIDR_REP for another service, a crossing DREQ for another QP.
func TestWrongAnswers(t *testing.T) {
	m, id := inState(t, testConfig(), StateSIDRREQSent, true)
	recv(m, 0, 1, &SIDRREP{RequestID: uint32(id), Service: udp + 1, QPN: peerQPN})
	noEvent(t, m)
	recv(m, 0, 1, &SIDRREP{RequestID: uint32(id), Service: udp, Status: SIDRNoQP, InfoLength: 200})
	if ev := poll(t, m, EventRejected); ev.Status != SIDRNoQP || len(ev.Info) != ARISize {
		t.Errorf("event %+v", ev)
	}
	m, id = inState(t, testConfig(), StateDREQSent, true)
	recv(m, 0, 1, &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN + 1})
	noEvent(t, m)
	quiet(t, m)
}

// TestVoidTakesEventsBack: an ID that the application has rejected, or destroyed when it was over
// already, raises no event that was waiting to be polled.
func TestVoidTakesEventsBack(t *testing.T) {
	m := newMachine(t, testConfig())
	id := connect(t, m, 0)
	recv(m, 0, 1, peerREP(id))
	must(t, m.Reject(0, id, ReasonConsumer, nil, nil))
	noEvent(t, m)

	id = connect(t, m, 0)
	other := connect(t, m, 0)
	for _, x := range []ID{id, other} {
		recv(m, 0, 1, &REJ{LocalID: peerID, RemoteID: uint32(x), Reason: ReasonConsumer})
	}
	m.Destroy(0, id)
	if ev := poll(t, m, EventRejected); ev.ID != other {
		t.Error("the other's event is gone")
	}
	noEvent(t, m)
}
