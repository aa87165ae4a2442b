package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// ID is one end of a connection, a listener, or a place in a datagram service (struct rdma_cm_id).
// What happens to it comes as events of its channel. Its methods may be called from several
// goroutines; those that do something over the network return at once, and their outcome is an
// event.
type ID struct {
	m       *Manager
	channel *EventChannel
	space   rcm.PortSpace
	unacked int // channel.mu

	// Context is the application's own.
	Context any

	// The manager's lock is held for all of these.
	state    idState
	local    netip.Addr // bound, or found by ResolveAddr; not valid: any
	port     uint16
	remote   netip.AddrPort
	id       rcm.ID       // of the machine
	listen   rcm.ListenID // of the machine
	conn     *Conn        // QP and parameters, once connecting
	qp       *verbs.QP
	ownQP    bool         // made by CreateQP
	asked    *rcm.Request // by a peer
	peer     rcm.Param    // its half
	psn      verbs.PSN
	groups   map[netip.Addr]*verbs.AH // nil: about to join
	deadline context.CancelFunc       // of what is being resolved
}

type idState uint8

const (
	idIdle idState = iota
	idBound
	idListening
	idAddrResolving
	idAddrResolved
	idRouteResolved
	idRequested // by a peer, not answered
	idConnecting
	idConnected
	idEnded
	idDestroyed
)

var idStates = [...]string{"idle", "bound", "listening", "resolving its address",
	"with its address resolved",
	"with its route resolved", "requested", "connecting", "connected", "ended", "destroyed"}

// String names the state.
func (s idState) String() string { return idStates[s] }

// errState says that a call does not fit.
func (id *ID) errState(call string) error {
	return fmt.Errorf("%s: the id is %v: %w", call, id.state, verbs.ErrInvalid)
}

// CreateID makes an ID (rdma_create_id). The port space is rcm.PortSpaceTCP (RDMA_PS_TCP) for
// connections, PortSpaceUDP (RDMA_PS_UDP) for datagrams and multicast groups.
func (ch *EventChannel) CreateID(space rcm.PortSpace, context any) (*ID, error) {
	if space != rcm.PortSpaceTCP && space != rcm.PortSpaceUDP {
		return nil, fmt.Errorf("create id: port space %v: %w", space, verbs.ErrInvalid)
	}
	return ch.newID(space, context)
}

func (ch *EventChannel) newID(space rcm.PortSpace, context any) (*ID, error) {
	id := &ID{m: ch.m, channel: ch, space: space, Context: context, groups: map[netip.Addr]*verbs.AH{}}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	select {
	case <-ch.closed:
		return nil, ErrClosed
	default:
	}
	ch.ids[id] = struct{}{}
	return id, nil
}

// QP is the ID's queue pair, nil without.
func (id *ID) QP() *verbs.QP {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.qp
}

// LocalAddr is the own address and port; the address is not valid while any will do
// (rdma_get_local_addr).
func (id *ID) LocalAddr() netip.AddrPort {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return netip.AddrPortFrom(id.local, id.port)
}

// RemoteAddr is the peer's address and port (rdma_get_peer_addr).
func (id *ID) RemoteAddr() netip.AddrPort {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.remote
}

// Bind chooses the own address and port (rdma_bind_addr). An address that is unspecified or not
// valid: any; port 0: one that is free, when Listen is called. Errors: ErrNoAddress,
// verbs.ErrInvalid.
func (id *ID) Bind(addr netip.AddrPort) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.state != idIdle {
		return id.errState("bind")
	}
	local := addr.Addr().Unmap()
	if !local.IsValid() || local.IsUnspecified() {
		local = netip.Addr{}
	} else if _, err := id.m.gidIndex(local.As16()); err != nil {
		return fmt.Errorf("bind to %v: %w", addr, err)
	}
	id.local, id.port, id.state = local, addr.Port(), idBound
	return nil
}

// firstFreePort is where the search for a free port begins.
const firstFreePort = 49152

// Listen takes requests, of which up to backlog may wait for an answer (rdma_listen; 0: 128). Each
// is an EventConnectRequest with an ID of its own. Errors: rcm.ErrInUse, verbs.ErrInvalid,
// ErrClosed.
func (id *ID) Listen(backlog int) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idBound && id.state != idIdle {
		return id.errState("listen")
	}
	if m.closed {
		return ErrClosed
	}
	if backlog <= 0 {
		backlog = 128
	}
	p := rcm.ListenParam{Backlog: backlog}
	if id.local.IsValid() {
		p.Local = id.local.As16()
	}
	first, last := id.port, id.port
	if id.port == 0 {
		first, last = firstFreePort, 0xffff
	}
	for port := uint32(first); port <= uint32(last); port++ {
		p.Service = rcm.Service(id.space, uint16(port))
		l, err := m.machine.Listen(p)
		if errors.Is(err, rcm.ErrInUse) && port < uint32(last) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listen on port %d: %w", port, err)
		}
		id.listen, id.port, id.state = l, uint16(port), idListening
		m.listeners[l] = id
		return nil
	}
	return nil // not reached: the last port returns
}

// ResolveAddr finds the own address, if Bind has not chosen one, and the peer's link address
// (rdma_resolve_addr): EventAddrResolved, or EventAddrError after the timeout at the latest. It
// also takes a multicast group.
func (id *ID) ResolveAddr(dst netip.AddrPort, timeout time.Duration) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idIdle && id.state != idBound {
		return id.errState("resolve address")
	}
	local, err := m.localFor(dst.Addr(), id.local)
	if err != nil {
		return fmt.Errorf("resolve %v: %w", dst, err)
	}
	before := id.state
	id.state, id.remote = idAddrResolving, dst
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	id.deadline = cancel
	found := make(chan error, 1)
	go func() {
		ah, err := m.createAH(route{local, dst.Addr().As16()})
		if err == nil {
			err = ah.Destroy()
		}
		found <- err
	}()
	go func() {
		defer cancel()
		var err error
		select {
		case err = <-found:
		case <-ctx.Done():
			err = ErrUnreachable
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if id.state != idAddrResolving {
			return
		}
		ev := &Event{Type: EventAddrResolved, ID: id}
		if err == nil {
			id.state, id.local = idAddrResolved, addrOf(local)
		} else {
			id.state, ev.Type, ev.Err = before, EventAddrError, err
		}
		id.channel.put(id, ev)
	}()
	return nil
}

// ResolveRoute settles the path to the peer (rdma_resolve_route): EventRouteResolved. Over Ethernet
// there is no more to it than the address; the call is there for those who know the order of calls.
func (id *ID) ResolveRoute(time.Duration) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.state != idAddrResolved {
		return id.errState("resolve route")
	}
	id.state = idRouteResolved
	id.channel.put(id, &Event{Type: EventRouteResolved, ID: id})
	return nil
}

// CreateQP makes a QP for the ID, ready for receives (rdma_create_qp): of type RC unless init says
// UC, or UD in PortSpaceUDP. Destroy ends it.
func (id *ID) CreateQP(pd *verbs.PD, init *verbs.QPInitAttr) (*verbs.QP, error) {
	if (init.Type == verbs.UD) != (id.space == rcm.PortSpaceUDP) || init.Type == verbs.GSI {
		return nil, fmt.Errorf("create QP: type %v in port space %v: %w", init.Type, id.space,
			verbs.ErrInvalid)
	}
	qp, err := id.m.ctx.CreateQP(pd, init)
	if err == nil {
		if err = id.SetQP(qp); err != nil {
			err = errors.Join(err, qp.Destroy())
		}
	}
	if err != nil {
		return nil, err
	}
	id.m.mu.Lock()
	id.ownQP = true
	id.m.mu.Unlock()
	return qp, nil
}

// SetQP gives the ID a QP that stays the caller's to destroy. It is brought to INIT, or for UD to
// RTS, if it is in RESET.
func (id *ID) SetQP(qp *verbs.QP) error {
	var err error
	if qp.Type() == verbs.UD {
		err = prepareUD(qp)
	} else {
		err = Prepare(qp, (*Params)(nil).fill().Access)
	}
	if err != nil {
		return err
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.qp != nil || id.state >= idConnecting {
		return id.errState("set QP")
	}
	id.qp = qp
	return nil
}

// prepareUD brings a datagram QP to RTS, with the Q_Key of RDMA-CM.
func prepareUD(qp *verbs.QP) error {
	if qp.State() != verbs.StateReset {
		return nil
	}
	a := verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: rcm.UDQKey}
	masks := []verbs.AttrMask{verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey, 0,
		verbs.AttrSQPSN}
	for _, mask := range masks {
		if err := qp.Modify(&a, mask|verbs.AttrState); err != nil {
			return err
		}
		a.State++
	}
	return nil
}

// Destroy ends the ID in any state (rdma_destroy_id), and what CreateQP has made with it: the peer
// is told, a QP goes to ERR, groups are left. Events that nobody has taken are gone; for those
// taken and not acked it waits. A second call does nothing.
func (id *ID) Destroy() error {
	m := id.m
	m.mu.Lock()
	if id.state == idDestroyed {
		m.mu.Unlock()
		return nil
	}
	was := id.state
	id.state = idDestroyed
	if id.deadline != nil {
		id.deadline()
	}
	if was == idListening {
		_ = m.machine.Unlisten(id.listen)
		delete(m.listeners, id.listen)
	}
	if id.id != 0 {
		m.machine.Destroy(m.now(), id.id)
		delete(m.conns, id.id)
	}
	if id.conn != nil {
		id.conn.end(ErrEnded)
	}
	m.pump()
	qp, own, groups := id.qp, id.ownQP, id.groups
	id.groups = nil
	m.mu.Unlock()
	m.kick()
	for _, orphan := range id.channel.forget(id) {
		_ = orphan.Destroy() // rejects the request
	}
	var errs []error
	for group, ah := range groups {
		errs = append(errs, leave(qp, group, ah))
	}
	if own {
		errs = append(errs, qp.Destroy())
	}
	return errors.Join(errs...)
}

// shut: the manager ends, and with it the device. m.mu is held.
func (id *ID) shut() {
	if id.conn != nil {
		id.conn.end(ErrClosed)
	}
	id.state = idEnded
	id.channel.put(id, &Event{Type: EventDeviceRemoval, ID: id, Err: ErrClosed})
}
