package cm

import (
	"errors"
	"testing"
)

// TestListenFamily: a listener on all addresses of one IP version gets no requests of the other;
// the most special listener gets what several could.
func TestListenFamily(t *testing.T) {
	six, peer6 := gid(t, "fd00:7::5"), gid(t, "fd00:7::9")
	listen := func(m *Machine, p ListenParam) ListenID {
		t.Helper()
		p.Service = tcp
		l, err := m.Listen(p)
		must(t, err)
		return l
	}
	request := func(m *Machine, at Addr, n uint32) (ListenID, bool) {
		q := peerREQ()
		q.LocalID, q.QPN = n, peerQPN
		q.QPN += 1
		q.CAGUID += uint64(n)
		q.Primary.Local, q.Primary.Remote = at.Remote, at.Local
		h := IPHeader{SrcPort: 1, Src: at.Remote, Dst: at.Local}
		h.put(q.Private[:])
		mad := Encode(uint64(n), q)
		m.Receive(0, at, mad[:])
		ev, ok := m.Poll()
		return ev.Listener, ok
	}
	at4, at6 := peerAddr, Addr{Local: six, Remote: peer6, QPN: 1}
	m := newMachine(t, testConfig())
	l4 := listen(m, ListenParam{Family: IPv4})
	if got, ok := request(m, at4, 1); !ok || got != l4 {
		t.Errorf("IPv4 at %d, %v", got, ok)
	}
	if _, ok := request(m, at6, 2); ok {
		t.Error("an IPv4 listener took an IPv6 request")
	}
	var rej REJ
	out := next(t, m, AttrREJ)
	decode(&out.MAD, &rej)
	if rej.Reason != ReasonInvalidServiceID {
		t.Error(rej.Reason)
	}
	l6 := listen(m, ListenParam{Family: IPv6})
	if got, ok := request(m, at6, 3); !ok || got != l6 {
		t.Errorf("IPv6 at %d, %v", got, ok)
	}
	all := listen(m, ListenParam{})
	if got, _ := request(m, at4, 4); got != l4 {
		t.Errorf("IPv4 at %d beside one for all", got)
	}
	own := listen(m, ListenParam{Local: ourGID, Family: IPv6}) // an address has its family
	if got, _ := request(m, at4, 5); got != own {
		t.Errorf("IPv4 at %d beside one of the address", got)
	}
	if _, err := m.Listen(ListenParam{Service: tcp, Family: IPv4}); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	must(t, m.Unlisten(l6))
	if got, _ := request(m, at6, 6); got != all {
		t.Errorf("IPv6 at %d without its listener", got)
	}
}

// TestAckTimeoutOption: what the application asks for stands in the REQ and holds for its QP,
// whatever the peer's ACK delay.
func TestAckTimeoutOption(t *testing.T) {
	for _, code := range []uint8{1, 14, 31} {
		m := newMachine(t, testConfig())
		p := ConnectParam{Param: ours, Addr: peerAddr, Service: tcp, MTU: 3, AckTimeout: code}
		id, err := m.Connect(0, p)
		must(t, err)
		var req REQ
		out := next(t, m, AttrREQ)
		decode(&out.MAD, &req)
		if req.Primary.AckTimeout != code {
			t.Errorf("code %d: %d in the REQ", code, req.Primary.AckTimeout)
		}
		recv(m, 1, out.MAD.TID(), peerREP(id))
		poll(t, m, EventConnectResponse)
		if q, err := m.QPParam(id); err != nil || q.Timeout != code {
			t.Errorf("code %d: QP with %d, %v", code, q.Timeout, err)
		}
		must(t, m.Reject(1, id, ReasonConsumer, nil, nil))
	}
	m := newMachine(t, testConfig())
	p := ConnectParam{Param: ours, Addr: peerAddr, Service: tcp, MTU: 3, AckTimeout: 32}
	if _, err := m.Connect(0, p); !errors.Is(err, ErrInvalidParam) {
		t.Error(err)
	}
}

// TestSilentDisconnect: the application can tell a peer that answers from one that does not.
func TestSilentDisconnect(t *testing.T) {
	for _, silent := range []bool{false, true} {
		m, id := inState(t, testConfig(), StateDREQSent, true)
		if silent {
			for m.State(id) == StateDREQSent {
				m.Expire(m.Deadline())
			}
		} else {
			recv(m, 1, dreqTID, &DREP{LocalID: peerID, RemoteID: uint32(id)})
		}
		if ev := poll(t, m, EventDisconnected); ev.Silent != silent {
			t.Errorf("silent %v, want %v", ev.Silent, silent)
		}
	}
}
