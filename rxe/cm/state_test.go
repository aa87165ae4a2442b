package cm

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/states.txt")

// The hand-made peer of these tests.
const (
	peerID   = 0x77
	peerGUID = 0x9
	peerQPN  = wire.QPN(0x99)
	peerPSN  = wire.PSN(0x999)
	ourGUID  = 0x5
	ourQPN   = wire.QPN(0x55)
	ourPSN   = wire.PSN(0x555)
	reqTID   = 0x1111
	dreqTID  = 0x2222
)

var (
	ourGID   = wire.GIDFromIPv4([4]byte{10, 0, 0, 5})
	peerGID  = wire.GIDFromIPv4([4]byte{10, 0, 0, 9})
	peerAddr = Addr{Local: ourGID, Remote: peerGID, QPN: 1}
	tcp      = Service(PortSpaceTCP, 7174)
	udp      = Service(PortSpaceUDP, 7174)
	ours     = Param{QPN: ourQPN, PSN: ourPSN, ResponderResources: 4, InitiatorDepth: 4}
)

// lcg is a small random source.
func lcg(seed uint64) func() uint64 {
	x := seed
	return func() uint64 {
		x = x*6364136223846793005 + 1442695040888963407
		return x>>33 ^ x
	}
}

func testConfig() Config { return Config{Rand: lcg(1), GUID: ourGUID} }

// peerREQ is the REQ of the hand-made peer.
func peerREQ() *REQ {
	q := &REQ{
		LocalID: peerID, Service: tcp, CAGUID: peerGUID, QPN: peerQPN, PSN: peerPSN,
		ResponderResources: 2, InitiatorDepth: 3, RemoteTimeout: 20, LocalTimeout: 20,
		RetryCount: 6, RNRRetry: 5, PKey: 0xffff, MTU: 3, MaxRetries: 15,
		Primary: PathRecord{Local: peerGID, Remote: ourGID, HopLimit: 64, AckTimeout: 17},
	}
	h := IPHeader{SrcPort: 1, Src: peerGID, Dst: ourGID}
	h.put(q.Private[:])
	copy(q.Private[IPHeaderSize:], "hello")
	return q
}

func peerSIDRREQ() *SIDRREQ {
	q := &SIDRREQ{RequestID: peerID, PKey: 0xffff, Service: udp}
	h := IPHeader{SrcPort: 1, Src: peerGID, Dst: ourGID}
	h.put(q.Private[:])
	return q
}

func peerREP(id ID) *REP {
	return &REP{
		LocalID: peerID, RemoteID: uint32(id), QPN: peerQPN, PSN: peerPSN, CAGUID: peerGUID,
		ResponderResources: 2, InitiatorDepth: 3, AckDelay: 15, RNRRetry: 7,
	}
}

func recv(m *Machine, now Time, tid uint64, msg Message) {
	mad := Encode(tid, msg)
	m.Receive(now, peerAddr, mad[:])
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drain forgets what m has to say and returns the last event's id.
func drain(m *Machine) (id ID) {
	var out Out
	for m.Next(&out) {
	}
	for ev, ok := m.Poll(); ok; ev, ok = m.Poll() {
		id = ev.ID
	}
	return id
}

func connect(t testing.TB, m *Machine, now Time) ID {
	t.Helper()
	id, err := m.Connect(now, ConnectParam{Param: ours, Addr: peerAddr, Service: tcp, MTU: 3})
	must(t, err)
	return id
}

// inState returns a machine with one connection in the state, and its id. Established, DREQSent,
// DREQRcvd and Timewait can be had on the active and on the passive side.
func inState(t testing.TB, cfg Config, s State, active bool) (*Machine, ID) {
	t.Helper()
	m := newMachine(t, cfg)
	_, err := m.Listen(ListenParam{Service: tcp})
	must(t, err)
	_, err = m.Listen(ListenParam{Service: udp})
	must(t, err)
	var id ID
	switch s {
	case StateREQSent:
		id = connect(t, m, 0)
	case StateMRAREQRcvd:
		m, id = inState(t, cfg, StateREQSent, true)
		recv(m, 0, 1, &MRA{
			LocalID: peerID, RemoteID: uint32(id), Message: KindREQ, ServiceTimeout: 24,
		})
	case StateREPRcvd:
		m, id = inState(t, cfg, StateREQSent, true)
		recv(m, 0, 1, peerREP(id))
	case StateMRAREPSent:
		m, id = inState(t, cfg, StateREPRcvd, true)
		must(t, m.MRA(0, id, 24))
	case StateREQRcvd:
		recv(m, 0, reqTID, peerREQ())
		id = drain(m)
	case StateMRAREQSent:
		m, id = inState(t, cfg, StateREQRcvd, false)
		must(t, m.MRA(0, id, 24))
	case StateREPSent:
		m, id = inState(t, cfg, StateREQRcvd, false)
		must(t, m.Accept(0, id, ours, nil))
	case StateMRAREPRcvd:
		m, id = inState(t, cfg, StateREPSent, false)
		recv(m, 0, reqTID, &MRA{
			LocalID: peerID, RemoteID: uint32(id), Message: KindREP, ServiceTimeout: 24,
		})
	case StateEstablished:
		if active {
			m, id = inState(t, cfg, StateREPRcvd, true)
			must(t, m.Establish(0, id, nil))
		} else {
			m, id = inState(t, cfg, StateREPSent, false)
			recv(m, 0, reqTID, &RTU{LocalID: peerID, RemoteID: uint32(id)})
		}
	case StateDREQSent:
		m, id = inState(t, cfg, StateEstablished, active)
		must(t, m.Disconnect(0, id, nil))
	case StateDREQRcvd:
		m, id = inState(t, cfg, StateEstablished, active)
		recv(m, 0, dreqTID, &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN})
	case StateTimewait:
		m, id = inState(t, cfg, StateDREQRcvd, active)
		must(t, m.Disconnect(0, id, nil))
	case StateSIDRREQSent:
		id, err = m.Connect(0, ConnectParam{Addr: peerAddr, Service: udp, Transport: TransportUD})
		must(t, err)
	case StateSIDRREQRcvd:
		recv(m, 0, reqTID, peerSIDRREQ())
		id = drain(m)
	default:
		t.Fatalf("no way to state %v", s)
	}
	drain(m)
	if m.State(id) != s {
		t.Fatalf("state %v, want %v", m.State(id), s)
	}
	return m, id
}

// outcome says in words what happened to m since before.
func outcome(m *Machine, id ID, was State, before Stats) string {
	var s []string
	if now := m.State(id); now != was {
		s = append(s, "→"+now.String())
	}
	var out Out
	for m.Next(&out) {
		text := "say " + out.MAD.Attr().String()
		msg, _ := Decode(out.MAD[:])
		switch q := msg.(type) {
		case *REJ:
			text += fmt.Sprintf("(%d)", q.Reason)
		case *SIDRREP:
			text += fmt.Sprintf("(%d)", q.Status)
		}
		s = append(s, text)
	}
	for ev, ok := m.Poll(); ok; ev, ok = m.Poll() {
		s = append(s, "event "+ev.Kind.String())
	}
	after := m.Stats()
	for d := range NumDrops {
		if after.Drops[d] != before.Drops[d] {
			s = append(s, "drop")
		}
	}
	for a := range NumAttrs {
		if after.Duplicates[a] != before.Duplicates[a] {
			s = append(s, "dup")
		}
	}
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

type stateRow struct {
	state  State
	active bool
}

var stateRows = []stateRow{
	{StateREQSent, true}, {StateMRAREQRcvd, true}, {StateREPRcvd, true}, {StateMRAREPSent, true},
	{StateREQRcvd, false}, {StateMRAREQSent, false},
	{StateREPSent, false}, {StateMRAREPRcvd, false},
	{StateEstablished, true}, {StateEstablished, false},
	{StateDREQSent, true}, {StateDREQSent, false}, {StateDREQRcvd, true}, {StateDREQRcvd, false},
	{StateTimewait, true}, {StateTimewait, false},
	{StateSIDRREQSent, true}, {StateSIDRREQRcvd, false},
}

// TestStateTable runs every state against every message, call and its timer, and compares with
// testdata/states.txt, which is to be read as the specification.
func TestStateTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("# what each state does with each message from its peer, call and timer;\n" +
		"# go test -run StateTable -rewrite rewrites it: read the difference\n")
	for _, row := range stateRows {
		side := "passive"
		if row.active {
			side = "active"
		}
		fmt.Fprintf(&b, "\n%v (%s)\n", row.state, side)
		for _, e := range stimuli {
			m, id := inState(t, testConfig(), row.state, row.active)
			before := m.Stats()
			err := e.do(m, id)
			result := outcome(m, id, row.state, before)
			if err != nil {
				if result != "nothing" {
					t.Errorf("%v %s: %v, but %s", row.state, e.name, err, result)
				}
				result = "error"
			}
			fmt.Fprintf(&b, "  %-12s %s\n", e.name, result)
		}
	}
	const name = "testdata/states.txt"
	if *rewrite {
		must(t, os.WriteFile(name, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(name)
	must(t, err)
	if b.String() == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	head := ""
	for i, g := range gotLines {
		if !strings.HasPrefix(g, " ") {
			head = g
		}
		w := ""
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Errorf("%s line %d, %s\n got %q\nwant %q", name, i+1, head, g, w)
		}
	}
}

type stimulus struct {
	name string
	do   func(m *Machine, id ID) error
	mad  func(id ID) MAD // messages only, which stand first
}

const messageStimuli = 13

func message(name string, tid uint64, f func(id ID) Message) stimulus {
	mad := func(id ID) MAD { return Encode(tid, f(id)) }
	return stimulus{name: name, mad: mad, do: func(m *Machine, id ID) error {
		b := mad(id)
		m.Receive(1, peerAddr, b[:])
		return nil
	}}
}

var stimuli = []stimulus{
	message("REQ", reqTID, func(ID) Message { return peerREQ() }),
	message("MRA of REQ", 1, func(id ID) Message {
		return &MRA{LocalID: peerID, RemoteID: uint32(id), Message: KindREQ, ServiceTimeout: 20}
	}),
	message("MRA of REP", 1, func(id ID) Message {
		return &MRA{LocalID: peerID, RemoteID: uint32(id), Message: KindREP, ServiceTimeout: 20}
	}),
	message("REJ", 1, func(id ID) Message {
		return &REJ{LocalID: peerID, RemoteID: uint32(id), Reason: ReasonConsumer}
	}),
	message("REJ stale", 1, func(id ID) Message {
		return &REJ{LocalID: peerID, RemoteID: uint32(id), Reason: ReasonStaleConn}
	}),
	message("REP", 1, func(id ID) Message { return peerREP(id) }),
	message("RTU", reqTID, func(id ID) Message {
		return &RTU{LocalID: peerID, RemoteID: uint32(id)}
	}),
	message("DREQ", dreqTID, func(id ID) Message {
		return &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN}
	}),
	message("DREP", dreqTID, func(id ID) Message {
		return &DREP{LocalID: peerID, RemoteID: uint32(id)}
	}),
	message("SIDR_REQ", reqTID, func(ID) Message { return peerSIDRREQ() }),
	message("SIDR_REP", 1, func(id ID) Message {
		return &SIDRREP{RequestID: uint32(id), Service: udp, QPN: peerQPN}
	}),
	message("LAP", 1, func(id ID) Message {
		return &LAP{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN}
	}),
	message("APR", 1, func(id ID) Message {
		return &APR{LocalID: peerID, RemoteID: uint32(id)}
	}),
	{name: "timer", do: func(m *Machine, id ID) error {
		if m.Deadline() != Never {
			m.Expire(m.Deadline())
		}
		return nil
	}},
	{name: "Accept", do: func(m *Machine, id ID) error { return m.Accept(1, id, ours, nil) }},
	{name: "Establish", do: func(m *Machine, id ID) error { return m.Establish(1, id, nil) }},
	{name: "Reject", do: func(m *Machine, id ID) error {
		return m.Reject(1, id, ReasonConsumer, nil, nil)
	}},
	{name: "MRA", do: func(m *Machine, id ID) error { return m.MRA(1, id, 24) }},
	{name: "CommEst", do: func(m *Machine, id ID) error { return m.CommEst(1, id) }},
	{name: "Disconnect", do: func(m *Machine, id ID) error { return m.Disconnect(1, id, nil) }},
	{name: "Destroy", do: func(m *Machine, id ID) error { m.Destroy(1, id); return nil }},
	{name: "gives up", do: func(m *Machine, id ID) error {
		// Nothing comes any more: until the connection is gone, without the messages on the way.
		for range 40 {
			if m.Deadline() == Never {
				break
			}
			m.Expire(m.Deadline())
			var out Out
			for m.Next(&out) {
			}
		}
		return nil
	}},
}

// TestEverythingEnds: whatever state a connection is in, Destroy ends it without another event, and
// soon enough.
func TestEverythingEnds(t *testing.T) {
	for _, row := range stateRows {
		m, id := inState(t, testConfig(), row.state, row.active)
		m.Destroy(1, id)
		noEvent(t, m)
		var last Time
		for m.Deadline() != Never {
			last = m.Deadline()
			m.Expire(last)
		}
		noEvent(t, m)
		if m.Len() != 0 || m.HalfOpen() != 0 || len(m.byRemote)+len(m.byQP)+len(m.halfPeer) != 0 {
			t.Errorf("%v: %d connections, %d half-open", row.state, m.Len(), m.HalfOpen())
		}
		if last > Time(2*time.Minute) {
			t.Errorf("%v: ends after %v", row.state, time.Duration(last))
		}
	}
}
