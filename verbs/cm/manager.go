package cm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Errors of this package, to be tested for with errors.Is. RejectError is a peer's refusal.
var (
	ErrClosed      = errors.New("connection manager is closed")
	ErrUnreachable = errors.New("peer does not answer")
	ErrNoAddress   = errors.New("no own address of that family: add one to the interface")
	ErrEnded       = errors.New("connection has ended")
	ErrWithdrawn   = errors.New("peer has given up: its request has waited too long")
)

// RejectError is returned by Dial when the peer said no.
type RejectError struct {
	Reason  rcm.Reason
	Status  rcm.SIDRStatus // of a datagram service
	Info    []byte         // additional information about the reason, up to 72 bytes
	Private []byte         // what the peer sent along
}

// Error names the reason.
func (e *RejectError) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("peer rejected the request: %v", e.Status)
	}
	return fmt.Sprintf("peer rejected the connection: %v", e.Reason)
}

// Config sets up a Manager. The zero value of each field means a good default.
type Config struct {
	// Keepalive is how long an established connection may be idle before the peer is asked for a
	// sign of life: a WRITE of no bytes. 0: never.
	Keepalive time.Duration
	// Timers and limits of the exchange; Rand, GUID, MaxMTU, Keepalive and ProbeStale are set here.
	Machine rcm.Config
}

const (
	madSlots   = 128 // MADs on their way out, and receives posted
	madBuffer  = verbs.GRHBytes + rcm.MADSize
	closeGrace = time.Second // how long Close lets DREQs go out
)

// Manager is the communication manager of a device: QP1, the state machine behind it, and the
// goroutine that moves both. Its methods may be called from any goroutine.
type Manager struct {
	ctx  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mem  *verbs.MR // madSlots receive buffers, then madSlots MADs to send
	base time.Time
	keep time.Duration

	mu        sync.Mutex
	machine   *rcm.Machine
	conns     map[rcm.ID]owner
	listeners map[rcm.ListenID]listenerOwner
	ids       map[*ID]struct{}
	channels  uint64 // made so far
	ports     ports
	routes    map[route]*peer
	noWay     map[route]error // why a route was not found, while it is not
	free      []uint64        // send slots
	sentTo    [madSlots]*peer // by send slot
	resolving int             // routes that are being found
	askFrom   rcm.Time        // until when the strangers have been allotted that the kernel asks for
	closed    bool
	vanished  bool // the interface has gone
	ended     bool // nothing of the device is there any more

	// What the device tells, without waiting for anything.
	toldMu      sync.Mutex
	established []rcm.ID                  // connections whose QP has got its first packet
	changes     map[verbs.Change]struct{} // around it
	unwatch     func()

	kicked chan struct{}
	stop   chan struct{}
	done   chan struct{}
}

// owner is whom a connection's events are for: a Conn or an ID. m.mu is held.
type owner interface {
	take(*rcm.Event)
	shut()
}

// listenerOwner is whom a listener's requests are for: a Listener or an ID. m.mu is held.
type listenerOwner interface {
	request(*rcm.Event)
	shut()
}

// route is an own address and a peer's.
type route struct{ local, remote wire.GID }

// New opens QP1 of a device. It fails if somebody else has it. cfg may be nil.
func New(ctx *verbs.Context, cfg *Config) (*Manager, error) {
	if cfg == nil {
		cfg = new(Config)
	}
	m := &Manager{
		ctx: ctx, base: time.Now(), keep: cfg.Keepalive, askFrom: -rcm.Time(maxAsked * askEvery),
		conns: map[rcm.ID]owner{}, listeners: map[rcm.ListenID]listenerOwner{}, routes: map[route]*peer{},
		noWay: map[route]error{},
		ids:   map[*ID]struct{}{}, ports: ports{}, changes: map[verbs.Change]struct{}{},
		kicked: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	mc := cfg.Machine
	mc.Rand, mc.GUID, mc.MaxMTU = secret, ctx.Device().NodeGUID, mtuCode(ctx.Port().MaxPMTU)
	mc.Keepalive, mc.ProbeStale = cfg.Keepalive, true
	var err error
	if m.machine, err = rcm.New(mc); err != nil {
		return nil, fmt.Errorf("open connection manager: %w", err)
	}
	if err := m.open(); err != nil {
		m.free = nil
		m.destroy()
		return nil, fmt.Errorf("open connection manager: %w", err)
	}
	m.unwatch = ctx.OnChange(m.changed)
	go m.run()
	return m, nil
}

// secret is 64 bits that no peer can guess.
func secret() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return binary.NativeEndian.Uint64(b[:])
}

// open makes QP1 and posts its receives.
func (m *Manager) open() (err error) {
	if m.pd, err = m.ctx.AllocPD(); err != nil {
		return err
	}
	// Ordinary memory, which outlives the device: its owner may close that one first.
	if m.mem, err = m.pd.RegMR(make([]byte, 2*madSlots*madBuffer), verbs.LocalWrite); err != nil {
		return err
	}
	if m.cq, err = m.ctx.CreateCQ(2 * madSlots); err != nil {
		return err
	}
	m.qp, err = m.ctx.CreateQP(m.pd, &verbs.QPInitAttr{
		Type: verbs.GSI, SendCQ: m.cq, RecvCQ: m.cq, SigAll: true,
		Cap: verbs.QPCap{MaxSendWR: madSlots, MaxRecvWR: madSlots},
	})
	if err != nil {
		return err
	}
	a := verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: rcm.GSIQKey}
	masks := []verbs.AttrMask{verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey, 0,
		verbs.AttrSQPSN}
	for _, mask := range masks {
		if err := m.qp.Modify(&a, mask|verbs.AttrState); err != nil {
			return err
		}
		a.State++
	}
	for i := range uint64(madSlots) {
		m.free = append(m.free, i)
		if err := m.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) postRecv(slot uint64) error {
	return m.qp.PostRecv(&verbs.RecvWR{WRID: slot,
		SGList: []verbs.SGE{m.mem.SGE(int(slot)*madBuffer, madBuffer)}})
}

// Close ends all connections, telling their peers, and gives QP1 back. Their QPs go to ERR. A
// second call does nothing. A device that has been closed before takes all with it, and no peer is
// told.
func (m *Manager) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		<-m.done
		return nil
	}
	m.closed = true
	m.unwatch()
	m.shutAll()
	m.pump()
	m.mu.Unlock()
	for end := time.Now().Add(closeGrace); m.sending() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	close(m.stop)
	<-m.done
	if err := m.destroy(); !m.deviceClosed() {
		return err
	}
	return nil
}

// over reports whether nothing new can begin. m.mu is held.
func (m *Manager) over() bool { return m.closed || m.vanished }

// shutAll ends what there is. m.mu is held.
func (m *Manager) shutAll() {
	if m.vanished {
		return // done
	}
	for id, c := range m.conns {
		m.machine.Destroy(m.now(), id)
		delete(m.conns, id)
		if _, is := c.(*ID); !is {
			c.shut()
		}
	}
	for id, l := range m.listeners {
		if _, is := l.(*ID); !is {
			_ = m.machine.Unlisten(id)
			delete(m.listeners, id)
			l.shut()
		}
	}
	for id := range m.ids {
		id.shut()
	}
}

// deviceClosed reports whether the device has been closed under the manager.
func (m *Manager) deviceClosed() bool {
	_, err := m.cq.Poll(nil)
	return errors.Is(err, verbs.ErrClosed)
}

// sending reports whether MADs are still on their way out.
func (m *Manager) sending() bool {
	if m.deviceClosed() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.routes {
		if p.ah == nil && len(p.waiting) > 0 {
			return true
		}
	}
	return len(m.free) < madSlots
}

func (m *Manager) destroy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	var errs []error
	try := func(ok bool, f func() error) {
		if ok {
			errs = append(errs, f())
		}
	}
	try(m.qp != nil, func() error { return m.qp.Destroy() })
	for _, p := range m.routes {
		try(p.ah != nil, p.ah.Destroy)
	}
	try(m.cq != nil, func() error { return m.cq.Destroy() })
	try(m.mem != nil, func() error { return m.mem.Close() })
	try(m.pd != nil && m.resolving == 0, func() error { return m.pd.Dealloc() })
	return errors.Join(errs...)
}

func (m *Manager) now() rcm.Time { return rcm.Time(time.Since(m.base)) }

// Stats returns the state machine's counters.
func (m *Manager) Stats() rcm.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Stats()
}

// run takes completions of QP1 and runs the machine's timers.
func (m *Manager) run() {
	defer close(m.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		m.cq.ReqNotify(false)
		wait := m.work()
		timer.Reset(wait)
		select {
		case <-m.cq.Notify():
		case <-m.kicked:
		case <-timer.C:
		case <-m.stop:
			return
		}
	}
}

// kick makes run look at the deadline again.
func (m *Manager) kick() {
	select {
	case m.kicked <- struct{}{}:
	default:
	}
}

// work does everything that is due and returns how long nothing else is.
func (m *Manager) work() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var wc [32]verbs.WC
	for {
		n, err := m.cq.Poll(wc[:])
		for i := range wc[:n] {
			m.completion(&wc[i])
		}
		if errors.Is(err, verbs.ErrClosed) {
			m.vanish()
		}
		if n == 0 || err != nil {
			break
		}
	}
	m.machine.Expire(m.now())
	m.confirm()
	m.follow()
	m.pump()
	wait := time.Hour
	if d := m.machine.Deadline(); d != rcm.Never {
		wait = min(wait, max(0, time.Duration(d-m.now())))
	}
	return wait
}

// pump hands out what the machine has to say: MADs to the wire, events to their owners.
func (m *Manager) pump() {
	for {
		ev, ok := m.machine.Poll()
		if !ok {
			break
		}
		m.event(&ev)
	}
	m.transmit()
}

// event gives an event to the listener or connection it is for.
func (m *Manager) event(ev *rcm.Event) {
	if ev.Kind == rcm.EventConnectRequest {
		if l := m.listeners[ev.Listener]; l != nil {
			l.request(ev)
		} else {
			_ = m.machine.Reject(m.now(), ev.ID, rcm.ReasonInvalidServiceID, nil, nil)
		}
		return
	}
	c := m.conns[ev.ID]
	if c == nil {
		return
	}
	c.take(ev)
	if last(ev) {
		delete(m.conns, ev.ID)
	}
}

// last reports whether no event follows for the connection.
func last(ev *rcm.Event) bool {
	switch ev.Kind {
	case rcm.EventTimewaitExit, rcm.EventConnectError:
		return true
	case rcm.EventRejected, rcm.EventUnreachable:
		return !ev.TimeWait
	}
	return false
}
