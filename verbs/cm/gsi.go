package cm

import (
	"errors"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file moves MADs between the state machine and QP1.

const (
	maxRoutes  = 1024 // address handles kept
	maxWaiting = 16   // MADs that wait for one route, on their way out
	maxHeld    = 64   // requests of one address that wait until it can be answered
	// maxAsked is how many strangers the kernel asks for in a burst, askEvery how long it is until it
	// may ask for one more. What it asks for stays in its table for up to two minutes, answered or
	// not, and from 512 neighbours on it forgets others for it, of all the machine's interfaces.
	maxAsked = 256
	askEvery = 500 * time.Millisecond
)

// peer is the way to one address: an address handle, or what waits until it is known.
type peer struct {
	ah      *verbs.AH
	waiting []rcm.MAD
	held    []held
	users   int // IDs that want to hear when the way is another one
	sending int // MADs that QP1 still has
}

// held is a request from an address that cannot be answered yet.
type held struct {
	from verbs.QPN
	mad  rcm.MAD
}

// completion takes one completion of QP1: a MAD that came in, or a send slot that is free again.
func (m *Manager) completion(wc *verbs.WC) {
	if wc.Opcode != verbs.WCRecv {
		slot := wc.WRID - madSlots
		m.sentTo[slot].sending--
		m.free = append(m.free, slot)
		if wc.Status != verbs.WCSuccess {
			m.revive()
		}
		return
	}
	if wc.Status != verbs.WCSuccess {
		return
	}
	b := m.mem.Bytes()[wc.WRID*madBuffer:][:madBuffer]
	if at, ok := source(b, wc.SrcQP); ok && int(wc.ByteLen) == madBuffer && !m.closed {
		m.machine.SetMaxMTU(mtuCode(m.ctx.Port().MaxPMTU)) // the link MTU may have changed
		if mad := (*rcm.MAD)(b[verbs.GRHBytes:]); !m.hold(at, mad) {
			m.machine.Receive(m.now(), at, mad[:])
		}
	}
	_ = m.postRecv(wc.WRID) // fails when the device is closed
}

// revive lets QP1 send again after a send that failed, whose MAD is lost as on a wire.
func (m *Manager) revive() {
	if m.qp.State() == verbs.StateSQE {
		_ = m.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState) // the device is closed
	}
}

// hold keeps a request back until the way to its sender is known, and reports whether it has. A
// request costs its sender nothing and may bear any address: one that nobody has shall take neither
// a place in a listener's backlog nor anybody's time. If the way cannot be found nothing is kept;
// who is there sends the request again.
func (m *Manager) hold(at rcm.Addr, mad *rcm.MAD) bool {
	if !isRequest(mad) {
		return false
	}
	r := route{at.Local, at.Remote}
	p := m.routes[r]
	switch {
	case p == nil:
		p = m.resolve(r, false)
	case p.ah != nil:
		return false
	}
	if p != nil && len(p.held) < maxHeld {
		p.held = append(p.held, held{at.QPN, *mad})
	}
	return true
}

// source reads the addresses of a MAD from the GRH area before it.
func source(grh []byte, qpn verbs.QPN) (at rcm.Addr, ok bool) {
	at.QPN = qpn
	switch {
	case grh[20]>>4 == 4 && grh[0]>>4 != 6:
		at.Remote = wire.GIDFromIPv4([4]byte(grh[32:36]))
		at.Local = wire.GIDFromIPv4([4]byte(grh[36:40]))
	case grh[0]>>4 == 6:
		at.Remote, at.Local = wire.GID(grh[8:24]), wire.GID(grh[24:40])
	default:
		return at, false
	}
	return at, !at.Remote.IsMulticast()
}

// transmit sends what the machine has, as long as there are slots.
func (m *Manager) transmit() {
	var out rcm.Out
	for len(m.free) > 0 && m.machine.Next(&out) {
		r := route{out.Addr.Local, out.Addr.Remote}
		p := m.routes[r]
		switch {
		case p == nil:
			if p = m.resolve(r, isRequest(&out.MAD)); p != nil {
				p.waiting = append(p.waiting, out.MAD)
			}
		case p.ah == nil:
			if len(p.waiting) < maxWaiting {
				p.waiting = append(p.waiting, out.MAD)
			}
		default:
			m.send(p, &out.MAD)
		}
	}
}

func (m *Manager) send(p *peer, mad *rcm.MAD) {
	if len(m.free) == 0 {
		return // lost, as on a wire; it is sent again
	}
	slot := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	off := int(slot+madSlots) * madBuffer
	copy(m.mem.Bytes()[off:], mad[:])
	err := m.qp.PostSend(&verbs.SendWR{
		WRID: slot + madSlots, Opcode: verbs.WRSend, SGList: []verbs.SGE{m.mem.SGE(off, rcm.MADSize)},
		AH: p.ah, RemoteQPN: 1, RemoteQKey: rcm.GSIQKey,
	})
	if err != nil {
		m.free = append(m.free, slot)
		return
	}
	m.sentTo[slot] = p
	p.sending++
}

// isRequest: such a MAD is the first between two peers; whoever sends it has chosen the other.
func isRequest(mad *rcm.MAD) bool {
	return mad.Attr() == rcm.AttrREQ || mad.Attr() == rcm.AttrSIDRREQ
}

// resolve finds the way to a peer, for which MADs can wait; nil if there is no room. It may take its
// time, so nobody waits for it with the lock held; an address that cannot be found is forgotten, and
// asked for again with the next retransmission. chosen: this end has chosen the peer, which is no
// stranger then.
func (m *Manager) resolve(r route, chosen bool) *peer {
	m.evict()
	if len(m.routes) >= maxRoutes {
		return nil
	}
	p := &peer{}
	m.routes[r] = p
	m.resolving++
	go func() {
		find := m.find
		if chosen {
			find = m.createAH
		}
		ah, err := find(r)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.resolving--
		if m.ended {
			m.discard(ah, err)
			return
		}
		switch {
		case err == nil:
			m.fileRoute(r, ah)
		case p.ah == nil && m.routes[r] == p:
			delete(m.routes, r)
			if len(m.noWay) >= maxRoutes {
				clear(m.noWay)
			}
			m.noWay[r] = err
		}
	}()
	return p
}

// find is createAH for strangers: what the kernel knows is there for anybody, but it does not ask for
// more of them than mayAsk allows. It learns of a peer on the link without that when the peer asks for
// the link address of this end.
func (m *Manager) find(r route) (*verbs.AH, error) {
	i, err := m.gidIndex(r.local)
	if err != nil {
		return nil, err
	}
	ah, known, err := m.pd.TryCreateAH(&verbs.AHAttr{DGID: r.remote, SGIDIndex: i})
	if known || err != nil {
		return ah, err
	}
	m.mu.Lock()
	may := m.mayAsk()
	m.mu.Unlock()
	if !may {
		return nil, errAsking
	}
	return m.createAH(r)
}

var errAsking = errors.New("too many strangers at a time")

// mayAsk reports whether the kernel may ask for a stranger, which counts as done then. m.mu is held.
func (m *Manager) mayAsk() bool {
	now := m.now()
	m.askFrom = max(m.askFrom, now-rcm.Time(maxAsked*askEvery))
	if m.askFrom+rcm.Time(askEvery) > now {
		return false
	}
	m.askFrom += rcm.Time(askEvery)
	return true
}

// fileRoute keeps the way to a peer, unless it is there already or there is no room, and goes on with
// what has waited for it.
func (m *Manager) fileRoute(r route, ah *verbs.AH) {
	delete(m.noWay, r)
	p := m.routes[r]
	if p == nil {
		if m.evict(); len(m.routes) < maxRoutes {
			p = &peer{}
			m.routes[r] = p
		}
	}
	if p == nil || p.ah != nil {
		_ = ah.Destroy() // the device is closed: gone with it
		return
	}
	p.ah = ah
	for i := range p.waiting {
		m.send(p, &p.waiting[i])
	}
	p.waiting = nil
	if len(p.held) == 0 {
		return
	}
	for i := range p.held {
		if h := &p.held[i]; !m.closed {
			m.machine.Receive(m.now(), rcm.Addr{Local: r.local, Remote: r.remote, QPN: h.from}, h.mad[:])
		}
	}
	p.held = nil
	m.pump()
	m.kick()
}

// discard ends what was found too late, and with the last of it the domain it is in. The errors are
// of no use to anybody: the device may be closed.
func (m *Manager) discard(ah *verbs.AH, err error) {
	if err == nil {
		_ = ah.Destroy()
	}
	if m.resolving == 0 {
		_ = m.pd.Dealloc()
	}
}

func (m *Manager) createAH(r route) (*verbs.AH, error) {
	i, err := m.gidIndex(r.local)
	if err != nil {
		return nil, err
	}
	return m.pd.CreateAH(&verbs.AHAttr{DGID: r.remote, SGIDIndex: i})
}

// evict makes room for a route: one goes that is known and that neither IDs nor MADs hold. A MAD
// whose address handle has gone would fail, and QP1 with it.
func (m *Manager) evict() {
	if len(m.routes) < maxRoutes {
		return
	}
	for r, p := range m.routes {
		if p.ah != nil && p.users+p.sending == 0 {
			_ = p.ah.Destroy()
			delete(m.routes, r)
			return
		}
	}
}

// gidIndex finds an own address in the GID table.
func (m *Manager) gidIndex(g wire.GID) (int, error) {
	for _, e := range m.ctx.GIDs() {
		if e.GID == g {
			return e.Index, nil
		}
	}
	return 0, ErrNoAddress
}
