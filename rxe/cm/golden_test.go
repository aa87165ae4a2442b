package cm

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// captured is one line of a testdata file.
type captured struct {
	at  Addr // as the receiver sees it
	mad MAD
}

func gid(t testing.TB, s string) wire.GID {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return wire.GID(a.As16())
}

func readCapture(t testing.TB, name string) (all []captured) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n")[1:] {
		f := strings.Fields(line)
		raw, err := hex.DecodeString(f[2])
		if err != nil || len(raw) != MADSize {
			t.Fatalf("%s: %d bytes, %v", name, len(raw), err)
		}
		all = append(all, captured{Addr{gid(t, f[1]), gid(t, f[0]), 1}, MAD(raw)})
	}
	return all
}

func diff(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	t.Errorf("%s: bytes differ", what)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("  byte %d (body %d): got %02x, want %02x", i, i-headerSize, got[i], want[i])
		}
	}
}

func TestGoldenDecodeEncode(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.hex")
	if len(files) == 0 {
		t.Fatal("no testdata")
	}
	seen := map[Attr]bool{}
	for _, f := range files {
		for i, c := range readCapture(t, filepath.Base(f)) {
			msg, d := Decode(c.mad[:])
			if d != DropNone {
				t.Fatalf("%s line %d: %v", f, i+2, d)
			}
			seen[msg.Attr()] = true
			again := Encode(c.mad.TID(), msg)
			diff(t, f, again[:], c.mad[:])
		}
	}
	for _, a := range []Attr{
		AttrREQ, AttrREP, AttrRTU, AttrREJ, AttrDREQ, AttrDREP, AttrSIDRREQ, AttrSIDRREP,
	} {
		if !seen[a] {
			t.Errorf("no capture of %v", a)
		}
	}
}

func TestGoldenFields(t *testing.T) {
	msgs := readCapture(t, "rping.hex")
	a, b := gid(t, "192.168.7.1"), gid(t, "192.168.7.2")
	var q REQ
	decode(&msgs[0].mad, &q)
	want := REQ{
		LocalID: 0x32b985e1, Service: Service(PortSpaceTCP, 7174), CAGUID: 0x000000fffe000701,
		QPN: 0x37, ResponderResources: 1, InitiatorDepth: 1, RemoteTimeout: 20, LocalTimeout: 20,
		PSN: 0x4936, RetryCount: 7, PKey: 0xffff, MTU: 5, RNRRetry: 7, MaxRetries: 15,
		Primary: PathRecord{
			LocalLID: 0xffff, RemoteLID: 0xffff, Local: a, Remote: b,
			FlowLabel: 0x7c5bd, HopLimit: 64, AckTimeout: 17,
		},
	}
	want.Private = q.Private
	if q != want {
		t.Errorf("REQ\n got %+v\nwant %+v", q, want)
	}
	h, ok := parseIPHeader(q.Private[:])
	if !ok || h != (IPHeader{SrcPort: 0xc369, Src: a, Dst: b}) {
		t.Errorf("IP header: %+v, %v", h, ok)
	}
	var p REP
	decode(&msgs[1].mad, &p)
	wantREP := REP{
		LocalID: 0x31b985e1, RemoteID: 0x32b985e1, QPN: 0x38, PSN: 0x41c8d1,
		ResponderResources: 1, InitiatorDepth: 1, AckDelay: 15, RNRRetry: 7,
		CAGUID: 0x000000fffe000702,
	}
	if p != wantREP {
		t.Errorf("REP\n got %+v\nwant %+v", p, wantREP)
	}
	var d DREQ
	decode(&msgs[3].mad, &d)
	if d.LocalID != 0x32b985e1 || d.RemoteID != 0x31b985e1 || d.QPN != 0x38 {
		t.Errorf("DREQ: %+v", d)
	}
	var r REJ
	decode(&readCapture(t, "reject.hex")[1].mad, &r)
	if r.Reason != ReasonInvalidServiceID || r.Message != KindREQ || r.LocalID != 0 {
		t.Errorf("REJ: %+v", r)
	}
	var s SIDRREP
	decode(&readCapture(t, "udaddy_sidr.hex")[1].mad, &s)
	if s.QKey != UDQKey || s.QPN != 0x3c || s.Service != Service(PortSpaceUDP, 7174) {
		t.Errorf("SIDR_REP: %+v", s)
	}
}

// script is a Config.Rand that gives the numbers of a capture first.
func script(v ...uint64) func() uint64 {
	return func() uint64 {
		if len(v) == 0 {
			return 0
		}
		x := v[0]
		v = v[1:]
		return x
	}
}

func newMachine(t testing.TB, cfg Config) *Machine {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// next returns the one MAD that m has to send.
func next(t testing.TB, m *Machine, want Attr) Out {
	t.Helper()
	var out, more Out
	if !m.Next(&out) {
		t.Fatalf("nothing to send, want %v", want)
	}
	if out.MAD.Attr() != want {
		t.Fatalf("sends %v, want %v", out.MAD.Attr(), want)
	}
	if m.Next(&more) {
		t.Fatalf("sends %v after %v", more.MAD.Attr(), want)
	}
	return out
}

func quiet(t testing.TB, m *Machine) {
	t.Helper()
	var out Out
	if m.Next(&out) {
		t.Fatalf("sends %v, want nothing", out.MAD.Attr())
	}
}

// poll returns the one event that m has.
func poll(t testing.TB, m *Machine, want EventKind) Event {
	t.Helper()
	ev, ok := m.Poll()
	if !ok {
		t.Fatalf("no event, want %v", want)
	}
	if ev.Kind != want {
		t.Fatalf("event %v, want %v: %+v", ev.Kind, want, ev)
	}
	if more, ok := m.Poll(); ok {
		t.Fatalf("event %v after %v", more.Kind, want)
	}
	return ev
}

func noEvent(t testing.TB, m *Machine) {
	t.Helper()
	if ev, ok := m.Poll(); ok {
		t.Fatalf("event %v, want none", ev.Kind)
	}
}

// withTID sets the transaction id, whose form is each CM's own affair.
func withTID(mad MAD, tid uint64) MAD {
	for i := range 8 {
		mad[15-i] = byte(tid >> (8 * i))
	}
	return mad
}

// TestGoldenActive: our side of the rping conversation has Linux's bytes.
func TestGoldenActive(t *testing.T) {
	msgs := readCapture(t, "rping.hex")
	tid := msgs[0].mad.TID()
	a, b := gid(t, "192.168.7.1"), gid(t, "192.168.7.2")
	m := newMachine(t, Config{Rand: script(0, 0x32b985e1), GUID: 0x000000fffe000701})
	id, err := m.Connect(0, ConnectParam{
		Param: Param{
			QPN: 0x37, PSN: 0x4936, ResponderResources: 1, InitiatorDepth: 1,
			RetryCount: 7, RNRRetry: 7,
		},
		Addr: Addr{a, b, 1}, Service: Service(PortSpaceTCP, 7174), MTU: 5, FlowLabel: 0x7c5bd,
		SrcPort: 0xc369,
	})
	if err != nil {
		t.Fatal(err)
	}
	out := next(t, m, AttrREQ)
	req := withTID(out.MAD, tid)
	diff(t, "REQ", req[:], msgs[0].mad[:])
	if out.Addr != (Addr{a, b, 1}) {
		t.Errorf("REQ goes to %+v", out.Addr)
	}

	m.Receive(0, msgs[1].at, msgs[1].mad[:])
	ev := poll(t, m, EventConnectResponse)
	if ev.ID != id || ev.Remote.QPN != 0x38 || len(ev.Private) != REPPrivate {
		t.Errorf("response: %+v", ev)
	}
	qp, err := m.QPParam(id)
	want := QPParam{
		Transport: TransportRC, Addr: Addr{a, b, 1}, DestQPN: 0x38, RQPSN: 0x4936, SQPSN: 0x41c8d1,
		MTU: 5, MaxDestRdAtomic: 1, MaxRdAtomic: 1, Timeout: 17, RetryCount: 7, RNRRetry: 7,
		PKey: 0xffff, FlowLabel: 0x7c5bd, HopLimit: 64,
	}
	if err != nil || qp != want {
		t.Errorf("QPParam %v\n got %+v\nwant %+v", err, qp, want)
	}
	if err := m.Establish(0, id, nil); err != nil {
		t.Fatal(err)
	}
	rtu := next(t, m, AttrRTU).MAD
	diff(t, "RTU", rtu[:], msgs[2].mad[:])
	poll(t, m, EventEstablished)

	if err := m.Disconnect(0, id, nil); err != nil {
		t.Fatal(err)
	}
	dreq := withTID(next(t, m, AttrDREQ).MAD, tid)
	diff(t, "DREQ", dreq[:], msgs[3].mad[:])
	m.Receive(0, msgs[4].at, msgs[4].mad[:])
	poll(t, m, EventDisconnected)
	m.Expire(m.Deadline())
	poll(t, m, EventTimewaitExit)
	if m.Len() != 0 || m.Deadline() != Never {
		t.Errorf("%d connections, deadline %d", m.Len(), m.Deadline())
	}
}

// TestGoldenPassive: the other side of the same conversation.
func TestGoldenPassive(t *testing.T) {
	msgs := readCapture(t, "rping.hex")
	m := newMachine(t, Config{Rand: script(0, 0x31b985e1), GUID: 0x000000fffe000702})
	l, err := m.Listen(ListenParam{Service: Service(PortSpaceTCP, 7174)})
	if err != nil {
		t.Fatal(err)
	}
	m.Receive(0, msgs[0].at, msgs[0].mad[:])
	ev := poll(t, m, EventConnectRequest)
	if ev.Listener != l || ev.Remote.QPN != 0x37 || len(ev.Private) != REQUserPrivate {
		t.Errorf("request: %+v", ev)
	}
	if r := ev.Request; r.MTU != 5 || r.IP == nil || r.IP.SrcPort != 0xc369 || r.AckTimeout != 17 {
		t.Errorf("request: %+v", r)
	}
	err = m.Accept(0, ev.ID, Param{
		QPN: 0x38, PSN: 0x41c8d1, ResponderResources: 9, InitiatorDepth: 9, RNRRetry: 7,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := next(t, m, AttrREP)
	diff(t, "REP", out.MAD[:], msgs[1].mad[:])
	if out.Addr != msgs[0].at {
		t.Errorf("REP goes to %+v", out.Addr)
	}
	qp, _ := m.QPParam(ev.ID)
	if qp.DestQPN != 0x37 || qp.SQPSN != 0x4936 || qp.RQPSN != 0x41c8d1 || qp.MaxRdAtomic != 1 ||
		qp.MaxDestRdAtomic != 1 || qp.Timeout != 17 || qp.RetryCount != 7 || qp.RNRRetry != 7 {
		t.Errorf("QPParam: %+v", qp)
	}
	m.Receive(0, msgs[2].at, msgs[2].mad[:])
	poll(t, m, EventEstablished)
	m.Receive(0, msgs[3].at, msgs[3].mad[:])
	poll(t, m, EventDisconnected)
	quiet(t, m)
	if err := m.Disconnect(0, ev.ID, nil); err != nil {
		t.Fatal(err)
	}
	drep := next(t, m, AttrDREP).MAD
	diff(t, "DREP", drep[:], msgs[4].mad[:])
}

// TestGoldenReject: nobody listens.
func TestGoldenReject(t *testing.T) {
	msgs := readCapture(t, "reject.hex")
	m := newMachine(t, Config{Rand: script(), GUID: 2})
	m.Receive(0, msgs[0].at, msgs[0].mad[:])
	rej := next(t, m, AttrREJ).MAD
	diff(t, "REJ", rej[:], msgs[1].mad[:])
	noEvent(t, m)
}

// TestGoldenSIDR: both sides of udaddy's address resolution.
func TestGoldenSIDR(t *testing.T) {
	msgs := readCapture(t, "udaddy_sidr.hex")
	var q SIDRREQ
	decode(&msgs[0].mad, &q)
	h, _ := parseIPHeader(q.Private[:])
	m := newMachine(t, Config{Rand: script(0, uint64(q.RequestID)), GUID: 1})
	id, err := m.Connect(0, ConnectParam{
		Addr: Addr{h.Src, h.Dst, 0}, Service: Service(PortSpaceUDP, 7174), Transport: TransportUD,
		SrcPort: h.SrcPort,
	})
	if err != nil {
		t.Fatal(err)
	}
	req := withTID(next(t, m, AttrSIDRREQ).MAD, msgs[0].mad.TID())
	diff(t, "SIDR_REQ", req[:], msgs[0].mad[:])
	m.Receive(0, msgs[1].at, msgs[1].mad[:])
	ev := poll(t, m, EventEstablished)
	if ev.ID != id || ev.Remote.QPN != 0x3c || ev.Remote.QKey != UDQKey || m.Len() != 0 {
		t.Errorf("resolved: %+v", ev)
	}

	m = newMachine(t, Config{Rand: script(0, 1), GUID: 2})
	if _, err := m.Listen(ListenParam{Service: Service(PortSpaceUDP, 7174)}); err != nil {
		t.Fatal(err)
	}
	m.Receive(0, msgs[0].at, msgs[0].mad[:])
	ev = poll(t, m, EventConnectRequest)
	if ev.Request.Transport != TransportUD || len(ev.Private) != SIDRREQUserPrivate {
		t.Errorf("request: %+v", ev)
	}
	if err := m.Accept(0, ev.ID, Param{QPN: 0x3c, QKey: UDQKey}, nil); err != nil {
		t.Fatal(err)
	}
	rep := next(t, m, AttrSIDRREP).MAD
	diff(t, "SIDR_REP", rep[:], msgs[1].mad[:])
	// The answer was lost: the same one, and no second event.
	m.Receive(1, msgs[0].at, msgs[0].mad[:])
	rep = next(t, m, AttrSIDRREP).MAD
	diff(t, "SIDR_REP again", rep[:], msgs[1].mad[:])
	noEvent(t, m)
}

// TestGoldenText: one line for each message of a conversation.
func TestGoldenText(t *testing.T) {
	var got []string
	for _, name := range []string{"rping.hex", "reject.hex", "udaddy_sidr.hex"} {
		for _, c := range readCapture(t, name) {
			msg, _ := Decode(c.mad[:])
			got = append(got, msg.String())
		}
	}
	for _, msg := range []Message{
		&MRA{LocalID: 1, RemoteID: 2, Message: KindREP, ServiceTimeout: 24},
		&LAP{LocalID: 1, RemoteID: 2, Local: ourGID, Remote: peerGID},
		&APR{LocalID: 1, RemoteID: 2, Status: APRUnsupported},
		&APR{Status: APRInvalidCommID}, &APR{}, &APR{Status: 9},
		&REQ{Service: 1 << 40, Transport: TransportExtended, MTU: 9},
	} {
		got = append(got, msg.String())
	}
	b, err := os.ReadFile("testdata/text.txt")
	must(t, err)
	want := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := range max(len(got), len(want)) {
		g, w := append(got, "")[min(i, len(got))], append(want, "")[min(i, len(want))]
		if g != w {
			t.Errorf("line %d\n got %s\nwant %s", i, g, w)
		}
	}
}
