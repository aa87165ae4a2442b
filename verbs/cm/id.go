package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// ID is one end of a connection, a listener, or a place in a datagram service (struct rdma_cm_id).
// What happens to it comes as events of its channel. Its methods may be called from several
// goroutines; those that do something over the network return at once, and their outcome is an
// event.
type ID struct {
	m       *Manager
	channel atomic.Pointer[EventChannel]
	space   rcm.PortSpace
	unacked int           // channel.mu
	asks    chan struct{} // holds a token when requests may wait, for GetRequest
	gone    chan struct{} // closed by Destroy, and by the device's end

	// Context is the application's own.
	Context any

	// The manager's lock is held for all of these.
	state    idState
	options  options
	local    netip.Addr // bound, or found by ResolveAddr; not valid: any
	port     uint16
	place    *place // what of it is nobody else's
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
	way      *peer                    // to the peer, once resolved
	homeless bool                     // told that the own address has gone
	toldWay  verbs.Change             // what an EventAddrChange has told of last
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
	idAnswered // by the peer; no QP, so Establish or Reject follows
	idConnected
	idEnded
	idDestroyed
)

var idStates = [...]string{"idle", "bound", "listening", "resolving its address",
	"with its address resolved", "with its route resolved", "requested", "connecting", "answered",
	"connected", "ended", "destroyed"}

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
	ch.m.mu.Lock()
	defer ch.m.mu.Unlock()
	if ch.m.over() {
		return nil, ErrClosed
	}
	return ch.newID(space, context)
}

// newID files an ID. The manager's lock is held.
func (ch *EventChannel) newID(space rcm.PortSpace, context any) (*ID, error) {
	id := &ID{m: ch.m, space: space, Context: context, groups: map[netip.Addr]*verbs.AH{},
		asks: make(chan struct{}, 1), gone: make(chan struct{})}
	id.channel.Store(ch)
	ch.mu.Lock()
	defer ch.mu.Unlock()
	select {
	case <-ch.closed:
		return nil, ErrClosed
	default:
	}
	ch.ids[id] = struct{}{}
	ch.m.ids[id] = struct{}{}
	return id, nil
}

// Channel is where the ID's events arrive.
func (id *ID) Channel() *EventChannel { return id.channel.Load() }

// QP is the ID's queue pair, nil without.
func (id *ID) QP() *verbs.QP {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.qp
}

// LocalAddr is the own address and port; the address is not valid while any will do
// (rdma_get_local_addr, rdma_get_src_port).
func (id *ID) LocalAddr() netip.AddrPort {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return netip.AddrPortFrom(id.local, id.port)
}

// RemoteAddr is the peer's address and port (rdma_get_peer_addr, rdma_get_dst_port).
func (id *ID) RemoteAddr() netip.AddrPort {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.remote
}

// Bind chooses the own address and port (rdma_bind_addr). Port 0: one that nobody has, which
// LocalAddr tells. An address that is not valid or [::]: any, of which OptionAFOnly leaves the IPv6
// ones; 0.0.0.0: any IPv4 address, unless OptionAFOnly was set to 0. A port is one ID's, but see
// OptionReuseAddr. Errors: rcm.ErrInUse, ErrNoAddress, verbs.ErrInvalid.
func (id *ID) Bind(addr netip.AddrPort) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.state != idIdle {
		return id.errState("bind")
	}
	local := addr.Addr().Unmap()
	if local.IsValid() && !local.IsUnspecified() {
		if _, err := id.m.gidIndex(local.As16()); err != nil {
			return fmt.Errorf("bind to %v: %w", addr, err)
		}
	}
	if err := id.bind(local, addr.Port()); err != nil {
		return fmt.Errorf("bind to %v: %w", addr, err)
	}
	return nil
}

// bind takes a port. m.mu is held.
func (id *ID) bind(local netip.Addr, port uint16) error {
	p := &place{space: id.space, port: port, local: local, reuse: id.options.reuse,
		family: id.options.family(local)}
	if local.IsUnspecified() {
		p.local = netip.Addr{}
	}
	if err := id.m.ports.take(p, uint16(secret())); err != nil {
		return err
	}
	id.place, id.local, id.port, id.state = p, p.local, p.port, idBound
	return nil
}

// Listen takes requests, of which up to backlog may wait for an answer (rdma_listen; 0: 128). Each
// is an EventConnectRequest with an ID of its own; GetRequest waits for one. An ID that is not
// bound listens on any address and a port that nobody has. Errors: rcm.ErrInUse, verbs.ErrInvalid,
// ErrClosed.
func (id *ID) Listen(backlog int) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idBound && id.state != idIdle {
		return id.errState("listen")
	}
	if m.over() {
		return ErrClosed
	}
	if backlog <= 0 {
		backlog = 128
	}
	if id.state == idIdle {
		if err := id.bind(netip.Addr{}, 0); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	reuse := id.place.reuse
	id.place.reuse = false // a listener shares with nobody
	l, err := rcm.ListenID(0), rcm.ErrInUse
	if !m.ports.taken(id.place) {
		p := rcm.ListenParam{Service: rcm.Service(id.space, id.port), Backlog: backlog,
			Family: id.place.family}
		if id.local.IsValid() {
			p.Local = id.local.As16()
		}
		l, err = m.machine.Listen(p)
	}
	if err != nil {
		id.place.reuse = reuse
		return fmt.Errorf("listen on port %d: %w", id.port, err)
	}
	id.listen, id.state = l, idListening
	m.listeners[l] = id
	return nil
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
	if err == nil && id.place != nil && id.place.version() != 0 &&
		local.IsIPv4() != (id.place.version() == rcm.IPv4) {
		err = ErrNoAddress
	}
	if err != nil {
		return fmt.Errorf("resolve %v: %w", dst, err)
	}
	before := id.state
	id.state, id.remote = idAddrResolving, dst
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	id.deadline = cancel
	r := route{local, dst.Addr().As16()}
	found := make(chan error, 1)
	m.resolving++
	go func() {
		ah, err := m.createAH(r)
		m.mu.Lock()
		m.resolving--
		switch {
		case m.ended:
			m.discard(ah, err)
		case err == nil:
			m.fileRoute(r, ah)
		}
		m.mu.Unlock()
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
		if id.state == idAddrResolving {
			id.addrFound(r, before, err)
		}
	}()
	return nil
}

// addrFound is the end of ResolveAddr. m.mu is held.
func (id *ID) addrFound(r route, before idState, err error) {
	ev := &Event{Type: EventAddrResolved, ID: id}
	if err == nil {
		id.state, id.local = idAddrResolved, addrOf(r.local)
		if id.way = id.m.routes[r]; id.way != nil {
			id.way.users++
		}
	} else {
		id.state, ev.Type, ev.Err = before, EventAddrError, err
	}
	id.put(ev)
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
	id.put(&Event{Type: EventRouteResolved, ID: id})
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
	id.release()
	id.state = idDestroyed
	delete(m.ids, id)
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
	for _, orphan := range id.forget() {
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

// release gives back what an ID that is through holds of its manager. m.mu is held.
func (id *ID) release() {
	if id.deadline != nil {
		id.deadline()
	}
	if id.state == idListening {
		_ = id.m.machine.Unlisten(id.listen) // the device is gone: not there
		delete(id.m.listeners, id.listen)
	}
	if id.place != nil {
		id.m.ports.remove(id.place)
		id.place = nil
	}
	if id.way != nil {
		id.way.users--
		id.way = nil
	}
	select {
	case <-id.gone:
	default:
		close(id.gone)
	}
}

// shut: the manager ends, and with it the device. m.mu is held.
func (id *ID) shut() {
	id.release()
	if id.conn != nil {
		id.conn.end(ErrClosed)
	}
	id.state = idEnded
	id.put(&Event{Type: EventDeviceRemoval, ID: id, Err: ErrClosed})
}

// moved: the way to the peer is another one. Its QP and its handles tell of it, each for itself.
// m.mu is held.
func (id *ID) moved(x *verbs.Change) {
	if id.state < idAddrResolved || id.state >= idEnded || id.local != addrOf(x.Src) ||
		id.remote.Addr().Unmap() != addrOf(x.Dst) || id.toldWay == *x {
		return
	}
	id.toldWay = *x
	id.put(&Event{Type: EventAddrChange, ID: id})
}

// checkHome tells an ID whose own address has gone from the interface, once until it is back. m.mu
// is held.
func (id *ID) checkHome() {
	if !id.local.IsValid() || id.state >= idEnded {
		return
	}
	_, err := id.m.gidIndex(wire.GID(id.local.As16()))
	if err != nil && !id.homeless {
		id.put(&Event{Type: EventAddrChange, ID: id, Err: err})
	}
	id.homeless = err != nil
}
