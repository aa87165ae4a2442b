package cm

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestRetransmission: a REQ is sent 1 + 15 times, at growing intervals; then the peer is told.
func TestRetransmission(t *testing.T) {
	m := newMachine(t, testConfig())
	id := connect(t, m, 0)
	first := next(t, m, AttrREQ).MAD
	full := Timeout(20) + 2*Timeout(16)
	want := 500 * time.Millisecond
	at := Time(0)
	for i := range 15 {
		due := m.Deadline()
		if got := time.Duration(due - at); got < want || got > want+want/8 {
			t.Errorf("retransmission %d after %v, want %v and an eighth", i, got, want)
		}
		m.Expire(due - 1)
		quiet(t, m)
		m.Expire(due)
		again := next(t, m, AttrREQ).MAD
		diff(t, "retransmitted REQ", again[:], first[:])
		at, want = due, min(2*want, full)
	}
	noEvent(t, m)
	m.Expire(m.Deadline())
	out := next(t, m, AttrREJ)
	var rej REJ
	decode(&out.MAD, &rej)
	if rej.Reason != ReasonTimeout || rej.InfoLength != 8 || rej.Info[7] != ourGUID {
		t.Errorf("REJ: %+v", rej)
	}
	if ev := poll(t, m, EventUnreachable); ev.ID != id || ev.TimeWait || m.Len() != 0 {
		t.Errorf("event %+v, %d connections", ev, m.Len())
	}
	if s := m.Stats(); s.Retries[ixREQ] != 15 || s.Sent[ixREQ] != 16 {
		t.Errorf("stats: %+v", s)
	}
}

// TestConfirmTimeout: a peer that was accepted has so long to confirm, whatever it asks for; then it is
// told, and nothing is left but the time in which its packets die out.
func TestConfirmTimeout(t *testing.T) {
	for _, mra := range []bool{false, true} {
		cfg := testConfig()
		cfg.ConfirmTimeout = 10 * time.Second
		m, id := inState(t, cfg, StateREPSent, false)
		drain(m)
		if mra {
			recv(m, 0, 7, &MRA{LocalID: peerID, RemoteID: uint32(id), Message: KindREP,
				ServiceTimeout: 24})
			if m.State(id) != StateMRAREPRcvd {
				t.Fatalf("state %v", m.State(id))
			}
		}
		var at Time
		for m.HalfOpen() > 0 {
			at = m.Deadline()
			m.Expire(at)
		}
		if d := time.Duration(at); d != cfg.ConfirmTimeout {
			t.Errorf("MRA %v: given up after %v", mra, d)
		}
		if ev := poll(t, m, EventUnreachable); ev.ID != id || !ev.TimeWait {
			t.Errorf("event %+v", ev)
		}
	}
}

// TestTimeoutRejectFindsByGUID: a REJ of a peer that does not know our id ends its request.
func TestTimeoutRejectFindsByGUID(t *testing.T) {
	m, id := inState(t, testConfig(), StateREQRcvd, false)
	rej := &REJ{LocalID: peerID, Message: KindOther, Reason: ReasonTimeout, InfoLength: 8}
	recv(m, 1, 5, rej)
	if m.State(id) != StateREQRcvd {
		t.Error("a REJ with GUID 0 ended the request")
	}
	rej.Info[7] = peerGUID
	recv(m, 1, 5, rej)
	if ev := poll(t, m, EventRejected); ev.ID != id || ev.Reason != ReasonTimeout {
		t.Errorf("event %+v", ev)
	}
	// A late copy of the REQ is not a new request.
	recv(m, 2, reqTID, peerREQ())
	next(t, m, AttrREJ)
	noEvent(t, m)
}

// TestMRAPostpones: the retransmission waits for the service timeout, once per transmission.
func TestMRAPostpones(t *testing.T) {
	m, id := inState(t, testConfig(), StateREQSent, true)
	mra := &MRA{LocalID: peerID, RemoteID: uint32(id), Message: KindREQ, ServiceTimeout: 24}
	recv(m, 0, 1, mra)
	first := m.Deadline()
	if d := time.Duration(first); d < Timeout(24) || d > Timeout(24)+time.Second {
		t.Errorf("deadline %v", d)
	}
	recv(m, first-1, 1, mra)
	if m.Deadline() != first {
		t.Error("a second MRA postponed again")
	}
	m.Expire(first)
	next(t, m, AttrREQ)
	recv(m, first, 1, mra)
	if m.Deadline() < first+Time(Timeout(24)) {
		t.Error("the MRA after a retransmission did not count")
	}
	mra.ServiceTimeout = 31 // 2.4 hours
	m.Expire(m.Deadline())
	now := Time(Timeout(26))
	recv(m, now, 1, mra)
	if d := time.Duration(m.Deadline() - now); d > Timeout(maxServiceCode)+time.Second {
		t.Errorf("an MRA made us wait %v", d)
	}
}

// TestAutomaticMRA: an application that thinks long costs no retransmission.
func TestAutomaticMRA(t *testing.T) {
	m, id := inState(t, testConfig(), StateREQRcvd, false)
	if d := time.Duration(m.Deadline()); d != Timeout(20)/2 {
		t.Errorf("MRA after %v", d)
	}
	m.Expire(m.Deadline())
	out := next(t, m, AttrMRA)
	var mra MRA
	decode(&out.MAD, &mra)
	if mra != (MRA{LocalID: uint32(id), RemoteID: peerID, Message: KindREQ, ServiceTimeout: 24}) {
		t.Errorf("MRA: %+v", mra)
	}
	if d := time.Duration(m.Deadline()); d != 60*time.Second {
		t.Errorf("gives up after %v", d)
	}
}

// TestStaleConnection: a REQ from the remote QP of a connection (same CA) is rejected, and the old
// connection ends with a DREQ, or is probed.
func TestStaleConnection(t *testing.T) {
	q := peerREQ()
	q.LocalID = peerID + 1
	for _, active := range []bool{true, false} {
		for _, probe := range []bool{false, true} {
			t.Run(fmt.Sprintf("active=%v,probe=%v", active, probe), func(t *testing.T) {
				cfg := testConfig()
				cfg.ProbeStale = probe
				m, id := inState(t, cfg, StateEstablished, active)
				recv(m, 1, 7, q)
				var out Out
				var rej REJ
				if !m.Next(&out) || out.MAD.Attr() != AttrREJ {
					t.Fatal("no REJ")
				}
				decode(&out.MAD, &rej)
				if rej.Reason != ReasonStaleConn || rej.RemoteID != q.LocalID ||
					out.MAD.TID() != 7 {
					t.Errorf("REJ: %+v", rej)
				}
				if probe {
					quiet(t, m)
					recv(m, 1, 7, q) // one probe at a time
					poll(t, m, EventKeepalive)
					if m.State(id) != StateEstablished {
						t.Errorf("state %v", m.State(id))
					}
					return
				}
				next(t, m, AttrDREQ)
				if m.State(id) != StateDREQSent {
					t.Errorf("state %v", m.State(id))
				}
			})
		}
	}
	// The same QPN on another CA, or at another address, is somebody else.
	m, id := inState(t, testConfig(), StateEstablished, false)
	q.CAGUID++
	recv(m, 1, 7, q)
	poll(t, m, EventConnectRequest)
	if m.State(id) != StateEstablished {
		t.Errorf("state %v", m.State(id))
	}
	// During time wait the QP is no longer in use.
	m, _ = inState(t, testConfig(), StateTimewait, false)
	q.CAGUID--
	recv(m, 1, 7, q)
	poll(t, m, EventConnectRequest)
}

// TestStaleREP: the same for a REP, and for a communication id that is in use.
func TestStaleREP(t *testing.T) {
	for _, tc := range []struct {
		name   string
		id     uint32
		qpn    wire.QPN
		reason Reason
		dreq   bool
	}{
		{"remote QP in use", peerID + 1, peerQPN, ReasonStaleConn, true},
		{"remote id in use", peerID, peerQPN + 1, ReasonDuplicateCommID, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, old := inState(t, testConfig(), StateEstablished, false)
			id := connect(t, m, 1)
			drain(m)
			rep := peerREP(id)
			rep.LocalID, rep.QPN = tc.id, tc.qpn
			recv(m, 2, 3, rep)
			ev := poll(t, m, EventRejected)
			if ev.ID != id || ev.Reason != tc.reason || !ev.Local || m.State(id) != StateIdle {
				t.Errorf("event %+v", ev)
			}
			if got := m.State(old) == StateDREQSent; got != tc.dreq {
				t.Errorf("old connection: %v", m.State(old))
			}
		})
	}
}

// TestForgedMessages: what does not come from the peer, or with other ids, changes nothing.
func TestForgedMessages(t *testing.T) {
	other := peerAddr
	other.Remote[15]++
	elsewhere := peerAddr
	elsewhere.Local[15]++
	for _, row := range stateRows {
		for _, s := range stimuli[:messageStimuli] {
			for _, at := range []Addr{other, elsewhere} {
				m, id := inState(t, testConfig(), row.state, row.active)
				deadline := m.conns[id].deadline
				saved := peerAddr
				peerAddr = at
				must(t, s.do(m, id))
				peerAddr = saved
				if m.State(id) != row.state || m.conns[id].deadline != deadline {
					t.Errorf("%v: %s from %v moved it to %v", row.state, s.name, at, m.State(id))
				}
				for ev, ok := m.Poll(); ok; ev, ok = m.Poll() {
					if ev.ID == id {
						t.Errorf("%v: %s from %v: event %v", row.state, s.name, at, ev.Kind)
					}
				}
			}
		}
	}
	for _, active := range []bool{true, false} {
		m, id := inState(t, testConfig(), StateEstablished, active)
		recv(m, 1, 1, &DREQ{LocalID: peerID + 1, RemoteID: uint32(id), QPN: ourQPN})
		recv(m, 1, 1, &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN + 1})
		recv(m, 1, 1, &REJ{LocalID: peerID + 1, RemoteID: uint32(id)})
		recv(m, 1, 1, &REJ{LocalID: peerID, RemoteID: uint32(id) + 1})
		s := m.Stats().Drops
		if m.State(id) != StateEstablished || s[DropRemoteID] != 2 || s[DropQPN] != 1 ||
			s[DropUnknownID] != 1 {
			t.Errorf("state %v, drops %v", m.State(id), s)
		}
	}
}

// TestUnknownConnection: DREQ and REP are answered, the rest is dropped.
func TestUnknownConnection(t *testing.T) {
	m := newMachine(t, testConfig())
	recv(m, 0, 42, &DREQ{LocalID: peerID, RemoteID: 0x123, QPN: 5})
	out := next(t, m, AttrDREP)
	var drep DREP
	decode(&out.MAD, &drep)
	if drep != (DREP{LocalID: 0x123, RemoteID: peerID}) || out.MAD.TID() != 42 ||
		out.Addr != peerAddr {
		t.Errorf("DREP %+v in %d to %+v", drep, out.MAD.TID(), out.Addr)
	}
	recv(m, 0, 43, peerREP(0x123))
	out = next(t, m, AttrREJ)
	var rej REJ
	decode(&out.MAD, &rej)
	if rej.Reason != ReasonInvalidCommID || rej.Message != KindREP || rej.RemoteID != peerID {
		t.Errorf("REJ %+v", rej)
	}
	for _, msg := range []Message{
		&MRA{RemoteID: 1}, &REJ{RemoteID: 1}, &RTU{RemoteID: 1}, &DREP{RemoteID: 1},
		&SIDRREP{RequestID: 1}, &APR{RemoteID: 1},
	} {
		recv(m, 0, 1, msg)
	}
	quiet(t, m)
	noEvent(t, m)
}

// TestTimewait lasts two packet lifetimes and the ACK delay.
func TestTimewait(t *testing.T) {
	for _, active := range []bool{true, false} {
		m, _ := inState(t, testConfig(), StateTimewait, active)
		want := 2*Timeout(16) + Timeout(15)
		if got := time.Duration(m.Deadline()); got != want {
			t.Errorf("time wait of %v, want %v", got, want)
		}
	}
}

// TestRejectedRequests: REQs that the application never sees, and the reasons.
func TestRejectedRequests(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(q *REQ)
		reason Reason
	}{
		{"no listener", func(q *REQ) { q.Service++ }, ReasonInvalidServiceID},
		{"RD", func(q *REQ) { q.Transport = TransportRD }, ReasonInvalidTransportType},
		{"XRC", func(q *REQ) { q.Transport, q.Extended = 3, 1 }, ReasonInvalidTransportType},
		{"MTU 0", func(q *REQ) { q.MTU = 0 }, ReasonInvalidMTU},
		{"MTU above ours", func(q *REQ) { q.MTU = 4 }, ReasonInvalidMTU},
		{"MTU 15", func(q *REQ) { q.MTU = 15 }, ReasonInvalidMTU},
		{"not its address", func(q *REQ) { q.Primary.Local[15]++ }, ReasonInvalidGID},
		{"not our address", func(q *REQ) { q.Primary.Remote[15]++ }, ReasonInvalidGID},
		{"other partition", func(q *REQ) { q.PKey = 0x8001 }, ReasonUnsupported},
		{"CMA version", func(q *REQ) { q.Private[0] = 1 }, ReasonUnsupported},
		{"IP version", func(q *REQ) { q.Private[1] = 0x50 }, ReasonUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.MaxMTU = 3
			m := newMachine(t, cfg)
			_, err := m.Listen(ListenParam{Service: tcp})
			must(t, err)
			q := peerREQ()
			tc.change(q)
			recv(m, 0, 9, q)
			out := next(t, m, AttrREJ)
			var rej REJ
			decode(&out.MAD, &rej)
			if rej.Reason != tc.reason || rej.RemoteID != peerID || rej.Message != KindREQ ||
				out.MAD.TID() != 9 {
				t.Errorf("%v: %+v", rej.Reason, rej)
			}
			noEvent(t, m)
			if m.Len() != 0 {
				t.Error("a connection is left")
			}
		})
	}
	m := newMachine(t, testConfig())
	mad := Encode(9, peerREQ())
	mad[2] = 3
	m.Receive(0, peerAddr, mad[:])
	out := next(t, m, AttrREJ)
	var rej REJ
	decode(&out.MAD, &rej)
	if rej.Reason != ReasonInvalidClassVersion {
		t.Errorf("class version: %v", rej.Reason)
	}
}

// TestLimitedMember: P_Keys match without the membership bit, unless both lack it.
func TestLimitedMember(t *testing.T) {
	for _, tc := range []struct {
		a, b uint16
		want bool
	}{
		{0xffff, 0xffff, true}, {0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false}, {0x8001, 0xffff, false},
	} {
		if got := samePartition(tc.a, tc.b); got != tc.want {
			t.Errorf("%04x %04x: %v", tc.a, tc.b, got)
		}
	}
}

// TestAlternatePath: a REP says that there is no failover, a LAP is answered so.
func TestAlternatePath(t *testing.T) {
	m := newMachine(t, testConfig())
	_, err := m.Listen(ListenParam{Service: tcp})
	must(t, err)
	q := peerREQ()
	q.Alternate = q.Primary
	recv(m, 0, 1, q)
	id := drain(m)
	must(t, m.Accept(0, id, ours, nil))
	out := next(t, m, AttrREP)
	var rep REP
	decode(&out.MAD, &rep)
	if rep.Failover != 1 {
		t.Errorf("failover accepted %d", rep.Failover)
	}
	recv(m, 0, 1, &RTU{LocalID: peerID, RemoteID: uint32(id)})
	for _, tc := range []struct {
		remote uint32
		status APRStatus
	}{{uint32(id), APRUnsupported}, {uint32(id) + 1, APRInvalidCommID}} {
		recv(m, 0, 77, &LAP{LocalID: peerID, RemoteID: tc.remote})
		out = next(t, m, AttrAPR)
		var apr APR
		decode(&out.MAD, &apr)
		if apr != (APR{LocalID: tc.remote, RemoteID: peerID, Status: tc.status}) ||
			out.MAD.TID() != 77 {
			t.Errorf("APR %+v", apr)
		}
	}
}

// TestRejectIsRepeated: a duplicate of a rejected REQ gets the same REJ, until it is forgotten.
func TestRejectIsRepeated(t *testing.T) {
	m, id := inState(t, testConfig(), StateREQRcvd, false)
	must(t, m.Reject(0, id, ReasonConsumer, []byte{1, 2}, []byte("no")))
	first := next(t, m, AttrREJ).MAD
	var rej REJ
	decode(&first, &rej)
	if rej.Reason != ReasonConsumer || rej.InfoLength != 2 || rej.Info[1] != 2 ||
		string(rej.Private[:3]) != "no\x00" || first.TID() != reqTID {
		t.Errorf("REJ %+v", rej)
	}
	now := Time(0)
	for range 3 {
		now = now.add(farewellTime)
		recv(m, now, reqTID, peerREQ())
		again := next(t, m, AttrREJ).MAD
		diff(t, "REJ again", again[:], first[:])
		noEvent(t, m)
	}
	q := peerREQ()
	q.QPN++
	recv(m, now, reqTID+1, q) // another transaction is another request
	poll(t, m, EventConnectRequest)

	m, id = inState(t, testConfig(), StateREQRcvd, false)
	must(t, m.Reject(0, id, ReasonConsumer, nil, nil))
	drain(m)
	recv(m, Time(farewellTime+1), reqTID, peerREQ())
	poll(t, m, EventConnectRequest)
}

// TestCommEst: the first data packet counts as the RTU; the RTU that follows changes nothing.
func TestCommEst(t *testing.T) {
	m, id := inState(t, testConfig(), StateREPSent, false)
	must(t, m.CommEst(1, id))
	if ev := poll(t, m, EventEstablished); ev.ID != id || ev.Private != nil {
		t.Errorf("event %+v", ev)
	}
	if m.Deadline() != Never {
		t.Error("the REP is still retransmitted")
	}
	recv(m, 2, reqTID, &RTU{LocalID: peerID, RemoteID: uint32(id)})
	noEvent(t, m)
	must(t, m.CommEst(3, id))
	noEvent(t, m)
	if err := m.CommEst(3, id+1); err != ErrUnknownID {
		t.Error(err)
	}
}

// TestSelfConnect: both ends on one machine.
func TestSelfConnect(t *testing.T) {
	m := newMachine(t, testConfig())
	_, err := m.Listen(ListenParam{Service: tcp})
	must(t, err)
	self := Addr{ourGID, ourGID, 1}
	a, err := m.Connect(0, ConnectParam{Param: ours, Addr: self, Service: tcp, MTU: 3})
	must(t, err)
	turn := func() {
		var out Out
		for m.Next(&out) {
			m.Receive(0, Addr{out.Addr.Remote, out.Addr.Local, 1}, out.MAD[:])
		}
	}
	turn()
	p := poll(t, m, EventConnectRequest).ID
	must(t, m.Accept(0, p, Param{QPN: 0x56}, nil))
	turn()
	poll(t, m, EventConnectResponse)
	must(t, m.Establish(0, a, nil))
	turn()
	m.Poll()
	poll(t, m, EventEstablished)
	if m.State(a) != StateEstablished || m.State(p) != StateEstablished {
		t.Errorf("%v, %v", m.State(a), m.State(p))
	}
	must(t, m.Disconnect(0, a, nil))
	turn()
	must(t, m.Disconnect(0, p, nil))
	turn()
	for m.Deadline() != Never {
		m.Expire(m.Deadline())
	}
	if m.Len() != 0 {
		t.Errorf("%d connections left", m.Len())
	}
}

// TestIPv6: the IP addressing header and the path over IPv6.
func TestIPv6(t *testing.T) {
	a, b := gid(t, "fd00:7::1"), gid(t, "fd00:7::2")
	m := newMachine(t, testConfig())
	_, err := m.Connect(0, ConnectParam{Addr: Addr{a, b, 1}, Service: tcp, MTU: 3, SrcPort: 9})
	must(t, err)
	out := next(t, m, AttrREQ)
	p := newMachine(t, Config{Rand: lcg(9), GUID: 9})
	_, err = p.Listen(ListenParam{Service: tcp})
	must(t, err)
	p.Receive(0, Addr{b, a, 1}, out.MAD[:])
	ev := poll(t, p, EventConnectRequest)
	if *ev.Request.IP != (IPHeader{9, a, b}) || ev.Request.Addr.Remote != a {
		t.Errorf("request %+v", ev.Request)
	}
	if out.MAD[headerSize+140+1] != 6<<4 {
		t.Errorf("IP version byte %02x", out.MAD[headerSize+140+1])
	}
	_, err = m.Connect(0, ConnectParam{Addr: Addr{a, ourGID, 1}, Service: tcp, MTU: 3})
	if !errors.Is(err, ErrInvalidParam) {
		t.Errorf("mixed families: %v", err)
	}
}
