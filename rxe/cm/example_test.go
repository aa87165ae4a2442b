package cm_test

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Two hosts in one process: the loop in the middle is all that a driver does.
func ExampleMachine() {
	client, server := wire.GIDFromIPv4([4]byte{10, 0, 0, 1}), wire.GIDFromIPv4([4]byte{10, 0, 0, 2})
	seed := uint64(1)
	random := func() uint64 { seed = seed*6364136223846793005 + 1; return seed }
	a, _ := cm.New(cm.Config{Rand: random, GUID: 1})
	b, _ := cm.New(cm.Config{Rand: random, GUID: 2})
	now := cm.Time(0)

	carry := func(from, to *cm.Machine) (carried bool) {
		var out cm.Out
		for from.Next(&out) {
			fmt.Println(out.Addr.Remote, "gets", out.MAD.Attr())
			back := cm.Addr{Local: out.Addr.Remote, Remote: out.Addr.Local, QPN: 1}
			to.Receive(now, back, out.MAD[:])
			carried = true
		}
		return carried
	}
	handle := func(name string, m *cm.Machine) {
		for ev, ok := m.Poll(); ok; ev, ok = m.Poll() {
			fmt.Println(name, ev.Kind)
			switch ev.Kind {
			case cm.EventConnectRequest: // create a QP, connect it, answer with its number
				m.Accept(now, ev.ID, cm.Param{QPN: 0x22, PSN: 200}, nil)
			case cm.EventConnectResponse: // connect the QP by m.QPParam(ev.ID)
				m.Establish(now, ev.ID, nil)
			case cm.EventEstablished:
				if name == "client" {
					m.Disconnect(now, ev.ID, nil)
				}
			case cm.EventDisconnected: // move the QP to the error state
				m.Disconnect(now, ev.ID, nil)
			}
		}
	}

	service := cm.Service(cm.PortSpaceTCP, 7174)
	b.Listen(cm.ListenParam{Service: service})
	a.Connect(now, cm.ConnectParam{
		Param: cm.Param{QPN: 0x11, PSN: 100}, Service: service, MTU: 5,
		Addr: cm.Addr{Local: client, Remote: server},
	})
	for a.Len()+b.Len() > 0 {
		busy := carry(a, b)
		handle("server", b)
		busy = carry(b, a) || busy
		handle("client", a)
		if !busy {
			now = min(a.Deadline(), b.Deadline()) // a driver sleeps, or until a MAD comes
			a.Expire(now)
			b.Expire(now)
			handle("client", a)
			handle("server", b)
		}
	}
	// Output:
	// ::ffff:10.0.0.2 gets REQ
	// server CONNECT_REQUEST
	// ::ffff:10.0.0.1 gets REP
	// client CONNECT_RESPONSE
	// client ESTABLISHED
	// ::ffff:10.0.0.2 gets RTU
	// ::ffff:10.0.0.2 gets DREQ
	// server ESTABLISHED
	// server DISCONNECTED
	// ::ffff:10.0.0.1 gets DREP
	// client DISCONNECTED
	// client TIMEWAIT_EXIT
	// server TIMEWAIT_EXIT
}
