package cm

import (
	"encoding/binary"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// simHost is one incarnation of a host.
type simHost struct {
	w       *simWorld
	n       int
	m       *Machine
	dead    bool
	nextQPN wire.QPN
	conns   map[ID]*simConn
	asked   map[uint32]bool // calls that have raised a ConnectRequest here
}

// simConn is what an application knows of a connection.
type simConn struct {
	call   *simCall
	active bool
	host   *simHost
	id     ID
	param  Param
	state  EventKind // last event but keepalives; 0 = none yet
	gone   bool      // destroyed or rejected by the application
	over   bool      // last event has come
}

// simCall is one Connect.
type simCall struct {
	n               uint32
	active, passive *simConn
	established     bool // the active application has called Establish
	datagram        bool // SIDR
}

func (w *simWorld) boot(n int) *simHost {
	h := &simHost{
		w: w, n: n, nextQPN: 0x11, conns: map[ID]*simConn{}, asked: map[uint32]bool{},
	}
	m, err := New(Config{
		Rand: w.rng.Uint64, GUID: uint64(n + 1), ProbeStale: w.chance(0.3),
		Keepalive: time.Duration(w.rng.IntN(2)) * 3 * time.Second,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	h.m = m
	for _, s := range []ServiceID{tcp, udp} {
		if _, err := m.Listen(ListenParam{Service: s}); err != nil {
			w.t.Fatal(err)
		}
	}
	return h
}

// settle lets h's messages and events out.
func (h *simHost) settle() {
	for {
		var out Out
		for h.m.Next(&out) {
			h.w.transmit(h, out)
		}
		ev, ok := h.m.Poll()
		if !ok {
			break
		}
		h.event(ev)
	}
	checkInvariants(h.w.t, h.m)
}

// connect starts a call.
func (h *simHost) connect() {
	n := uint32(len(h.w.calls))
	h.nextQPN++
	c := &simConn{
		call: &simCall{n: n, datagram: h.w.chance(0.2)}, active: true, host: h,
		param: Param{
			QPN: h.nextQPN, PSN: wire.PSN(h.w.rng.Uint32N(1 << 24)), RetryCount: 7, RNRRetry: 7,
			ResponderResources: uint8(h.w.rng.IntN(9)), InitiatorDepth: uint8(h.w.rng.IntN(9)),
		},
	}
	c.call.active = c
	h.w.calls = append(h.w.calls, c.call)
	p := ConnectParam{
		Param: c.param, Addr: Addr{Local: simGID(h.n), Remote: simGID(1 - h.n)},
		Service: tcp, MTU: 3, Private: binary.BigEndian.AppendUint32(nil, n),
	}
	if c.call.datagram {
		p.Service, p.Transport = udp, TransportUD
	}
	id, err := h.m.Connect(h.w.now, p)
	if err != nil {
		h.w.fail("connect: %v", err)
	}
	c.id = id
	h.conns[id] = c
	h.w.trace("%d connects call %d", h.n, n)
	if h.w.faults.rude && h.w.chance(0.1) {
		h.later(2*time.Second, c, c.destroy)
	}
	h.settle()
}

// later runs an application's action unless the host has died or the connection is over.
func (h *simHost) later(d time.Duration, c *simConn, run func()) {
	h.w.after(h.w.upTo(d), func() {
		if !h.dead && !c.over && !c.gone {
			run()
			h.settle()
		}
	})
}

func (c *simConn) destroy() {
	c.host.w.trace("%d destroys call %d", c.host.n, c.call.n)
	c.host.m.Destroy(c.host.w.now, c.id)
	c.gone = true
}

func (c *simConn) disconnect() {
	c.host.w.trace("%d disconnects call %d", c.host.n, c.call.n)
	err := c.host.m.Disconnect(c.host.w.now, c.id, nil)
	if err != nil && c.state == EventEstablished {
		c.host.w.fail("disconnect: %v", err)
	}
}

// event is the application.
func (h *simHost) event(ev Event) {
	w := h.w
	w.seen[ev.Kind.String()]++
	c := h.conns[ev.ID]
	if ev.Kind == EventConnectRequest {
		h.request(ev)
		return
	}
	if c == nil || c.gone || c.over {
		w.fail("%d: event %v for a connection that is over or unknown", h.n, ev.Kind)
	}
	w.trace("%d event %v call %d", h.n, ev.Kind, c.call.n)
	was := c.state
	if ev.Kind != EventKeepalive {
		c.state = ev.Kind
	}
	ok := false
	switch ev.Kind {
	case EventConnectResponse:
		ok = was == 0 && c.active
		h.response(c)
	case EventEstablished:
		if c.call.datagram {
			ok, c.over = c.active && was == 0 && ev.Remote.QPN == c.call.passive.param.QPN &&
				ev.Remote.QKey == UDQKey, true
			break
		}
		ok = c.active && was == EventConnectResponse || !c.active && was == EventConnectRequest
		h.established(c)
	case EventRejected, EventUnreachable, EventConnectError:
		ok = was == 0 || was == EventConnectResponse || was == EventConnectRequest
		c.over = !ev.TimeWait
		polite := !w.faults.rude && !w.faults.crash
		if ev.Kind == EventUnreachable && polite && w.faults.loss <= 0.15 {
			// Sixteen attempts make that one in 10^9.
			w.fail("%d: unreachable at a loss of %v", h.n, w.faults.loss)
		}
	case EventDisconnected:
		ok = was == EventEstablished || was == EventConnectRequest
		if !w.faults.rude || w.chance(0.7) {
			c.disconnect()
		}
	case EventTimewaitExit:
		ok = was != EventEstablished && was != 0
		c.over = true
	case EventKeepalive:
		ok = was == EventEstablished
	}
	if !ok {
		w.fail("%d: event %v after %v", h.n, ev.Kind, was)
	}
}

func (h *simHost) request(ev Event) {
	w := h.w
	n := binary.BigEndian.Uint32(ev.Private)
	call := w.calls[n]
	w.trace("%d event CONNECT_REQUEST call %d", h.n, n)
	if h.asked[n] {
		w.fail("%d: call %d asks twice", h.n, n)
	}
	h.asked[n] = true
	if h.conns[ev.ID] != nil {
		w.fail("%d: id %x used twice", h.n, ev.ID)
	}
	if ev.Remote != call.active.param && !call.datagram {
		w.fail("request %+v, want %+v", ev.Remote, call.active.param)
	}
	h.nextQPN++
	c := &simConn{
		call: call, host: h, id: ev.ID, state: EventConnectRequest,
		param: Param{
			QPN: h.nextQPN, PSN: wire.PSN(w.rng.Uint32N(1 << 24)), RNRRetry: 6, QKey: UDQKey,
		},
	}
	call.passive = c
	h.conns[ev.ID] = c
	switch {
	case w.faults.rude && w.chance(0.1):
		// never answers
	case w.faults.rude && w.chance(0.1):
		h.later(time.Second, c, c.destroy)
	case w.chance(0.1):
		h.later(time.Second, c, func() { c.reject() })
	case w.chance(0.2):
		h.later(10*time.Second, c, c.accept)
	default:
		c.accept()
	}
}

func (c *simConn) reject() {
	if err := c.host.m.Reject(c.host.w.now, c.id, ReasonConsumer, nil, nil); err != nil {
		c.host.w.fail("reject: %v", err)
	}
	c.gone = true
}

func (c *simConn) accept() {
	c.host.w.trace("%d accepts call %d", c.host.n, c.call.n)
	if err := c.host.m.Accept(c.host.w.now, c.id, c.param, nil); err != nil {
		c.host.w.fail("accept: %v", err)
	}
	c.over = c.call.datagram
}

// response is the active application's answer to a REP.
func (h *simHost) response(c *simConn) {
	w := h.w
	establish := func() {
		if err := h.m.Establish(w.now, c.id, nil); err != nil {
			w.fail("establish: %v", err)
		}
		c.call.established = true
		p := c.call.passive
		if h.m.conns[c.id].remoteID != uint32(p.id) {
			return // the passive host has been replaced
		}
		// Data may come before the RTU.
		w.after(w.upTo(time.Second), func() {
			if p.host.dead || h.dead || p.over || p.gone || c.gone {
				return
			}
			switch err := p.host.m.CommEst(w.now, p.id); {
			case err != nil && p.state == EventConnectRequest:
				w.fail("comm_est: %v", err)
			}
			p.host.settle()
		})
	}
	switch {
	case w.faults.rude && w.chance(0.1):
		h.later(time.Second, c, func() { c.reject() })
	case w.chance(0.2):
		h.later(8*time.Second, c, establish)
	default:
		establish()
	}
}

func (h *simHost) established(c *simConn) {
	w := h.w
	if !c.call.established {
		w.fail("call %d is established at the passive side only", c.call.n)
	}
	h.checkPair(c.call)
	if h.w.chance(0.7) {
		h.later(5*time.Second, c, func() {
			if h.m.State(c.id) == StateEstablished {
				c.disconnect()
			}
		})
	}
	if w.faults.rude && w.chance(0.1) {
		h.later(5*time.Second, c, c.destroy)
	}
}

// checkPair compares what the two ends believe.
func (h *simHost) checkPair(call *simCall) {
	a, p := call.active, call.passive
	if a.host.dead || p.host.dead || a.gone || p.gone || a.over || p.over {
		return
	}
	if a.host.m.conns[a.id].remoteID != uint32(p.id) && h.w.faults.crash {
		return // a late REQ has reached the passive side's successor
	}
	qa, err1 := a.host.m.QPParam(a.id)
	qp, err2 := p.host.m.QPParam(p.id)
	if err1 != nil || err2 != nil {
		h.w.fail("call %d: %v, %v", call.n, err1, err2)
	}
	if qa.DestQPN != p.param.QPN || qp.DestQPN != a.param.QPN || qa.SQPSN != qp.RQPSN ||
		qp.SQPSN != qa.RQPSN || qa.MTU != qp.MTU || qa.MaxRdAtomic > qp.MaxDestRdAtomic ||
		qp.MaxRdAtomic > qa.MaxDestRdAtomic || qa.RNRRetry != 6 || qp.RNRRetry != 7 {
		h.w.fail("call %d:\n active %+v\npassive %+v", call.n, qa, qp)
	}
}
