package cm

import "testing"

// TestDuplicateAnswers: a duplicate is answered by the very bytes its first copy was answered with;
// only a DREQ of another transaction, whose sender has lost the first, gets a DREP of its own.
func TestDuplicateAnswers(t *testing.T) {
	own := []byte("private data")
	for _, tc := range []struct {
		name   string
		state  State
		active bool
		answer func(m *Machine, id ID) error // makes the first answer
		attr   Attr
		tid    uint64 // of the duplicate
		again  func(id ID) Message
		times  int
	}{
		{"REQ, being thought about", StateREQRcvd, false,
			func(m *Machine, id ID) error { return m.MRA(0, id, 20) }, AttrMRA,
			reqTID, func(ID) Message { return peerREQ() }, 3},
		{"REQ, accepted", StateREQRcvd, false,
			func(m *Machine, id ID) error { return m.Accept(0, id, ours, own) }, AttrREP,
			reqTID, func(ID) Message { return peerREQ() }, 3},
		{"REQ, accepted after an MRA", StateMRAREQSent, false,
			func(m *Machine, id ID) error { return m.Accept(0, id, ours, own) }, AttrREP,
			reqTID, func(ID) Message { return peerREQ() }, 3},
		{"REP, being thought about", StateREPRcvd, true,
			func(m *Machine, id ID) error { return m.MRA(0, id, 20) }, AttrMRA,
			1, func(id ID) Message { return peerREP(id) }, 3},
		{"REP, established", StateREPRcvd, true,
			func(m *Machine, id ID) error { return m.Establish(0, id, own) }, AttrRTU,
			1, func(id ID) Message { return peerREP(id) }, 3},
		{"DREQ, answered", StateDREQRcvd, true,
			func(m *Machine, id ID) error { return m.Disconnect(0, id, own) }, AttrDREP,
			dreqTID, func(id ID) Message {
				return &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN}
			}, 3},
		{"SIDR_REQ, accepted", StateSIDRREQRcvd, false,
			func(m *Machine, id ID) error { return m.Accept(0, id, ours, own) }, AttrSIDRREP,
			reqTID, func(ID) Message { return peerSIDRREQ() }, 3},
		{"SIDR_REQ, rejected", StateSIDRREQRcvd, false,
			func(m *Machine, id ID) error { return m.Reject(0, id, ReasonConsumer, nil, own) }, AttrSIDRREP,
			reqTID, func(ID) Message { return peerSIDRREQ() }, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, id := inState(t, testConfig(), tc.state, tc.active)
			must(t, tc.answer(m, id))
			first := next(t, m, tc.attr).MAD
			drain(m)
			before := m.Stats()
			for range tc.times {
				recv(m, 1, tc.tid, tc.again(id))
				again := next(t, m, tc.attr).MAD
				diff(t, "answer", again[:], first[:])
				noEvent(t, m)
			}
			mad := Encode(0, tc.again(id))
			i := mad.Attr().Index()
			if n := m.Stats().Duplicates[i] - before.Duplicates[i]; n != uint64(tc.times) {
				t.Errorf("%d duplicates counted", n)
			}
		})
	}
	m, id := inState(t, testConfig(), StateDREQRcvd, true)
	must(t, m.Disconnect(0, id, own))
	next(t, m, AttrDREP)
	recv(m, 1, dreqTID+9, &DREQ{LocalID: peerID, RemoteID: uint32(id), QPN: ourQPN})
	out := next(t, m, AttrDREP)
	var drep DREP
	decode(&out.MAD, &drep)
	if out.MAD.TID() != dreqTID+9 || drep != (DREP{LocalID: uint32(id), RemoteID: peerID}) {
		t.Errorf("DREP %+v in transaction %x", drep, out.MAD.TID())
	}
}

// TestLateMessages: what comes when its time is over changes nothing and has no answer.
func TestLateMessages(t *testing.T) {
	for _, tc := range []struct {
		name   string
		state  State
		active bool
		msg    func(id ID) Message
	}{
		{"RTU after COMM_EST", StateEstablished, false, func(id ID) Message {
			return &RTU{LocalID: peerID, RemoteID: uint32(id)}
		}},
		{"REQ of an established connection", StateEstablished, false, func(ID) Message {
			return peerREQ()
		}},
		{"DREP without DREQ", StateEstablished, true, func(id ID) Message {
			return &DREP{LocalID: peerID, RemoteID: uint32(id)}
		}},
		{"MRA of a REQ that is answered", StateREPRcvd, true, func(id ID) Message {
			return &MRA{LocalID: peerID, RemoteID: uint32(id), Message: KindREQ, ServiceTimeout: 31}
		}},
		{"REP while leaving", StateDREQSent, true, func(id ID) Message { return peerREP(id) }},
		{"RTU while leaving", StateDREQRcvd, false, func(id ID) Message {
			return &RTU{LocalID: peerID, RemoteID: uint32(id)}
		}},
		{"REJ in time wait", StateTimewait, true, func(id ID) Message {
			return &REJ{LocalID: peerID, RemoteID: uint32(id), Reason: ReasonStaleConn}
		}},
		{"REP in time wait", StateTimewait, true, func(id ID) Message { return peerREP(id) }},
		{"DREP in time wait", StateTimewait, false, func(id ID) Message {
			return &DREP{LocalID: peerID, RemoteID: uint32(id)}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, id := inState(t, testConfig(), tc.state, tc.active)
			deadline := m.Deadline()
			for range 3 {
				recv(m, 1, reqTID, tc.msg(id))
			}
			quiet(t, m)
			noEvent(t, m)
			if m.State(id) != tc.state || m.Deadline() != deadline {
				t.Errorf("state %v, deadline %v, was %v, %v", m.State(id), m.Deadline(), tc.state, deadline)
			}
		})
	}
}
