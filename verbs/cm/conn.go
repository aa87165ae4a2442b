package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Params are one end's wishes for a connection. The zero value of each takes the default named.
type Params struct {
	Private []byte // for the peer: Dial up to 56 bytes, Accept up to 196
	// ResponderResources is how many READs and atomics of the peer are served at once (0: 16,
	// negative: none), InitiatorDepth how many of our own may be outstanding (likewise). The
	// exchange lowers them to what both ends can do.
	ResponderResources int
	InitiatorDepth     int
	RetryCount         uint8        // 0: 7
	RNRRetry           uint8        // 0: 7, for ever
	MinRNRTimer        uint8        // 0: 12 (0.64 ms)
	Access             verbs.Access // what the peer may do; 0: remote write, read and atomics
	Local              netip.Addr   // Dial: own address; zero: one of the peer's family
	PathMTU            int          // Dial: bytes; 0: the port's largest
	TrafficClass       uint8        // Dial
	// AckTimeout is the code n of the QP's ACK timeout, 4.096 µs × 2ⁿ, 1 to 31, for Dial and
	// Connect that of the peer's QP too (0: from what both ends and the path say they need).
	AckTimeout uint8
	PortSpace  rcm.PortSpace

	// Of an ID without a QP, whose owner connects one by ID.QPAttr: its number, its type (0: RC)
	// and whether it has an SRQ.
	QPN  verbs.QPN
	Type verbs.QPType
	SRQ  bool
}

func (p *Params) fill() Params {
	var out Params
	if p != nil {
		out = *p
	}
	depth := func(v int) int {
		switch {
		case v == 0:
			return 16
		case v < 0:
			return 0
		}
		return min(v, 128)
	}
	out.ResponderResources, out.InitiatorDepth = depth(out.ResponderResources),
		depth(out.InitiatorDepth)
	if out.RetryCount == 0 {
		out.RetryCount = 7
	}
	if out.RNRRetry == 0 {
		out.RNRRetry = 7
	}
	if out.MinRNRTimer == 0 {
		out.MinRNRTimer = 12
	}
	if out.Access == 0 {
		out.Access = verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic
	}
	if out.PortSpace == 0 {
		out.PortSpace = rcm.PortSpaceTCP
	}
	if out.Type == 0 {
		out.Type = verbs.RC
	}
	return out
}

// about notes what the QP says of itself; nil: what the caller has said.
func (p *Params) about(qp *verbs.QP) {
	if qp == nil {
		return
	}
	_, init := qp.Query()
	p.QPN, p.Type, p.SRQ = qp.Num(), qp.Type(), init.SRQ != nil
}

// half is this end's part of the exchange.
func (p *Params) half(psn verbs.PSN) rcm.Param {
	return rcm.Param{
		QPN: p.QPN, PSN: psn, SRQ: p.SRQ, RetryCount: p.RetryCount, RNRRetry: p.RNRRetry,
		ResponderResources: uint8(p.ResponderResources), InitiatorDepth: uint8(p.InitiatorDepth),
	}
}

// Conn is a connection of a QP.
type Conn struct {
	m       *Manager
	id      rcm.ID
	qp      *verbs.QP
	params  Params
	local   netip.Addr
	remote  netip.AddrPort
	private []byte
	attr    verbs.QPAttr // of RTR and RTS
	events  chan rcm.Event
	done    chan struct{}
	once    sync.Once
	err     error
}

const connEvents = 16 // more than a connection ever has

func (m *Manager) newConn(id rcm.ID, qp *verbs.QP, p Params) *Conn {
	return &Conn{m: m, id: id, qp: qp, params: p, events: make(chan rcm.Event, connEvents),
		done: make(chan struct{})}
}

// QP is the connection's queue pair.
func (c *Conn) QP() *verbs.QP { return c.qp }

// Private is what the peer sent with its request or answer, zero-filled to the field's length.
func (c *Conn) Private() []byte { return c.private }

// RemoteAddr is the peer's address and, on the accepting side, the port it connected from.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// LocalAddr is the own address.
func (c *Conn) LocalAddr() netip.Addr { return c.local }

// Done is closed when the connection has ended, from either side; the QP is in ERR then.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection has ended, nil while it lives.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Disconnect ends the connection with a DREQ and waits for the peer's answer or for ctx. The QP
// goes to ERR. Ending an ended connection does nothing.
func (c *Conn) Disconnect(ctx context.Context) error {
	c.m.mu.Lock()
	err := c.m.machine.Disconnect(c.m.now(), c.id, nil)
	c.m.pump()
	c.m.mu.Unlock()
	c.m.kick()
	if err != nil && !errors.Is(err, rcm.ErrUnknownID) && !errors.Is(err, rcm.ErrInvalidState) {
		return fmt.Errorf("disconnect: %w", err)
	}
	defer c.end(ErrEnded)
	if err != nil {
		return nil
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end marks the end of the connection and flushes its QP. Only the first call counts.
func (c *Conn) end(why error) {
	c.once.Do(func() {
		c.err = why
		if c.qp != nil && c.qp.State() != verbs.StateReset && c.qp.State() != verbs.StateErr {
			_ = c.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // destroyed: fine
		}
		close(c.done)
	})
}

// take acts on an event of the machine, and passes it to whoever waits in Dial or Accept.
func (c *Conn) take(ev *rcm.Event) {
	switch ev.Kind {
	case rcm.EventKeepalive:
		c.probe()
		return
	case rcm.EventEstablished:
		if c.qp != nil && c.qp.State() == verbs.StateRTR { // accepted
			if err := c.send(); err != nil {
				c.end(err)
			}
		}
	case rcm.EventDisconnected:
		_ = c.m.machine.Disconnect(c.m.now(), ev.ID, nil) // the DREP, if the peer began
		c.end(ErrEnded)
	case rcm.EventUnreachable, rcm.EventConnectError:
		c.end(ErrUnreachable)
	case rcm.EventRejected:
		c.end(rejection(ev))
	}
	select {
	case c.events <- *ev:
	default:
	}
}

// shut ends the connection because the manager ends.
func (c *Conn) shut() { c.end(ErrClosed) }

// probe sends a WRITE of no bytes, which the peer's QP acknowledges or, if it is gone, does not:
// then the QP ends in an error, and with it the connection.
func (c *Conn) probe() {
	_ = c.qp.PostSend(&verbs.SendWR{WRID: KeepaliveWRID, Opcode: verbs.WRRDMAWrite})
}

// KeepaliveWRID is the work request id of keepalives. They complete only when they fail.
const KeepaliveWRID = 1<<64 - 1

// await returns the next event of one of the kinds, or why the connection will not come about.
func (c *Conn) await(ctx context.Context, kinds ...rcm.EventKind) (rcm.Event, error) {
	for {
		select {
		case ev := <-c.events:
			for _, k := range kinds {
				if ev.Kind == k {
					return ev, nil
				}
			}
		case <-c.done:
			return rcm.Event{}, c.err
		case <-ctx.Done():
			return rcm.Event{}, ctx.Err()
		}
	}
}

// abandon gives the connection up in any state. The peer is told as the state demands.
func (c *Conn) abandon(why error) {
	c.m.mu.Lock()
	c.m.machine.Destroy(c.m.now(), c.id)
	delete(c.m.conns, c.id)
	c.m.pump()
	c.m.mu.Unlock()
	c.m.kick()
	c.end(why)
}

// Prepare brings a QP from RESET to INIT, where receives can be posted. Dial and Accept do it for a
// QP that is still in RESET.
func Prepare(qp *verbs.QP, access verbs.Access) error {
	if qp.State() != verbs.StateReset {
		return nil
	}
	a := verbs.QPAttr{State: verbs.StateInit, Port: 1, AccessFlags: access}
	return qp.Modify(&a, initMask)
}

const initMask = verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccessFlags

// receive takes the QP to RTR with what the exchange has settled.
func (c *Conn) receive(p rcm.QPParam, rq verbs.PSN) (err error) {
	if c.attr, err = c.m.qpAttr(&p, &c.params, rq); err != nil {
		return err
	}
	c.attr.State = verbs.StateRTR
	return c.qp.Modify(&c.attr, rtrMask(c.qp.Type()))
}

// send takes the QP from RTR to RTS.
func (c *Conn) send() error {
	c.attr.State = verbs.StateRTS
	return c.qp.Modify(&c.attr, rtsMask(c.qp.Type()))
}

// qpAttr is what the exchange has settled, for RTR and RTS.
func (m *Manager) qpAttr(p *rcm.QPParam, own *Params, rq verbs.PSN) (verbs.QPAttr, error) {
	i, err := m.gidIndex(p.Addr.Local)
	if err != nil {
		return verbs.QPAttr{}, err
	}
	a := verbs.QPAttr{
		Port: 1, PathMTU: 128 << p.MTU, DestQPN: p.DestQPN, RQPSN: rq, SQPSN: p.SQPSN,
		AH: verbs.AHAttr{DGID: p.Addr.Remote, SGIDIndex: i, TrafficClass: p.TClass,
			FlowLabel: p.FlowLabel, HopLimit: p.HopLimit},
		MaxDestRdAtomic: min(p.MaxDestRdAtomic, 128), MaxQPRdAtomic: min(p.MaxRdAtomic, 128),
		MinRNRTimer: own.MinRNRTimer, Timeout: p.Timeout, RetryCnt: p.RetryCount,
		RNRRetry: p.RNRRetry, AccessFlags: own.Access,
	}
	if own.AckTimeout != 0 {
		a.Timeout = own.AckTimeout
	}
	return a, nil
}

// rtrMask is what RTR takes of a qpAttr, rtsMask what RTS does.
func rtrMask(t verbs.QPType) verbs.AttrMask {
	mask := verbs.AttrState | verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN |
		verbs.AttrAccessFlags
	if t == verbs.RC {
		mask |= verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer
	}
	return mask
}

func rtsMask(t verbs.QPType) verbs.AttrMask {
	mask := verbs.AttrState | verbs.AttrSQPSN
	if t == verbs.RC {
		mask |= verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrMaxQPRdAtomic
	}
	return mask
}

// connect takes the QP to RTS.
func (c *Conn) connect(p rcm.QPParam, rq verbs.PSN) error {
	if err := c.receive(p, rq); err != nil {
		return err
	}
	return c.send()
}

func addrOf(g wire.GID) netip.Addr { return netip.AddrFrom16(g).Unmap() }

// mtuCode is the code of a path MTU: 1 for 256 bytes to 5 for 4096.
func mtuCode(bytes int) (code uint8) {
	for code = 1; code < 5 && 256<<code <= bytes; code++ {
	}
	return code
}
