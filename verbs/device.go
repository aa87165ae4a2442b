package verbs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Errors of a Context and its objects.
var (
	ErrClosed  = errors.New("device is closed")                           // after Context.Close
	ErrBusy    = errors.New("object is still in use")                     // EBUSY: its users go first
	ErrForeign = errors.New("object belongs to another device or domain") // EINVAL
	ErrInvalid = errors.New("invalid argument")                           // EINVAL
)

// Context is one opened RoCE device: a network interface with some of its queues. Its methods, and
// those of the objects made from it, may be called from any goroutine, if they do not say
// otherwise.
type Context struct {
	cfg      Config
	name     string
	dev      *rxe.Device
	pollers  []*poller
	prog     *bpf.Program // nil on a link that is no interface
	attached bpf.Attachment
	conn     *netdev.Conn // nil likewise
	monitor  *netdev.Monitor
	net      network
	groups   *groups
	events   eventQueue
	cqs      sync.Map // *rxe.CQ → *CQ
	srqs     sync.Map // *rxe.SRQ → *SRQ
	failHook failHooks
	watchers watchers

	openMTU int // link MTU when it was opened

	shut     atomic.Bool   // Close has begun
	closed   chan struct{} // closed then
	ended    chan struct{} // closed when Close is through
	workers  sync.WaitGroup
	goneOnce sync.Once

	mu        sync.Mutex // what follows
	link      netdev.Link
	addrs     []netip.Prefix
	gids      []wire.GID // by index; zero where an address went
	nextPD    uint32
	nextShard int
	mapped    map[*MR][]byte // memory that Close gives back
	qps       map[*QP]struct{}
	ahs       map[*AH]struct{}
}

// handle is what all objects made from a Context have: who uses them, and whether they live.
type handle struct {
	ctx   *Context
	users int         // objects that refer to this one; Context.mu
	dead  bool        // destroyed; Context.mu
	gone  atomic.Bool // the same, for what must not lock
}

// use notes one more user of each object, or of none when one of them cannot be used.
func (c *Context) use(hs ...*handle) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() {
		return ErrClosed
	}
	for _, h := range hs {
		if h.ctx != c || h.dead {
			return ErrForeign
		}
	}
	for _, h := range hs {
		h.users++
	}
	return nil
}

func (c *Context) unuse(hs ...*handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range hs {
		h.users--
	}
}

// bury marks an object as destroyed. It fails with ErrBusy while it has users; first is false when
// it was destroyed before.
func (h *handle) bury() (first bool, err error) {
	h.ctx.mu.Lock()
	defer h.ctx.mu.Unlock()
	if h.users > 0 {
		return false, ErrBusy
	}
	first = !h.dead
	h.dead = true
	h.gone.Store(true)
	return first, nil
}

// network answers questions about the way to a peer: netdev.Conn, or a netdev.Snapshot for a link
// that is no interface.
type network interface {
	Route(index int, src, dst netip.Addr) (netdev.Route, error)
	Resolve(ctx context.Context, index int, dst netip.Addr) (wire.MAC, error)
	Lookup(index int, dst netip.Addr) (mac wire.MAC, known bool, err error)
}

// PortInfo describes the port of a device opened by OpenLinks, as an interface would.
type PortInfo struct {
	Name       string
	MAC        wire.MAC
	MTU        int                     // link MTU; 0: 9000
	Addrs      []netip.Prefix          // in GID order
	Neighbours map[netip.Addr]wire.MAC // peers; a destination that is missing cannot be reached
}

// OpenLinks opens a device on given links, one a shard, instead of an interface: on a simulated
// wire, or joined in memory to another device (NewLinkPair). It needs no rights. Config's fields
// about sockets and steering are not used. Close closes the links, also when OpenLinks fails.
func OpenLinks(links []Link, port PortInfo, cfg *Config) (*Context, error) {
	c, err := openLinks(links, port, cfg)
	if err != nil {
		for _, l := range links {
			_ = l.Close()
		}
		return nil, fmt.Errorf("open %s: %w", port.Name, err)
	}
	return c, nil
}

func openLinks(links []Link, port PortInfo, cfg *Config) (*Context, error) {
	conf, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	conf.Queues = len(links)
	if port.MTU == 0 {
		port.MTU = 9000
	}
	snap := &netdev.Snapshot{
		Link: netdev.Link{Index: 1, Name: port.Name, Kind: "memory", MAC: port.MAC, MTU: port.MTU,
			Up: true, Running: true, RXQueues: len(links), TXQueues: len(links)},
		Addrs: port.Addrs, Neighbours: port.Neighbours,
	}
	c := newContext(conf, snap.Link, port.Addrs)
	c.net = snap
	c.groups = openGroups(c)
	if err := c.start(links); err != nil {
		return nil, err
	}
	return c, nil
}

func newContext(cfg Config, link netdev.Link, addrs []netip.Prefix) *Context {
	c := &Context{
		cfg: cfg, name: link.Name, openMTU: link.MTU, link: link, addrs: addrs, gids: netdev.GIDs(addrs),
		closed: make(chan struct{}), ended: make(chan struct{}), mapped: map[*MR][]byte{},
		qps: map[*QP]struct{}{}, ahs: map[*AH]struct{}{},
	}
	c.events.init()
	return c
}

// start makes the engine on the links and starts the threads.
func (c *Context) start(links []Link) error {
	portMTU := netdev.PMTU(c.usableMTU(), false)
	if portMTU == 0 {
		return fmt.Errorf("link MTU %d does not hold the smallest path MTU: "+
			"`ip link set %s mtu %d` or more", c.link.MTU, c.name, netdev.LinkMTU(netdev.MinPMTU, true))
	}
	seed := c.cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	c.nextPD = uint32(seed>>32) | 1
	var err error
	c.dev, err = rxe.NewDevice(rxe.Config{
		Shards: len(links), Rand: rand.New(rand.NewPCG(seed, 0)).Uint64, MaxPMTU: uint32(c.topPMTU(portMTU)),
		Window: uint32(c.cfg.Window), VLAN: uint16(c.cfg.VLAN),
	}, clock())
	if err != nil {
		return err
	}
	c.dev.SetPortMTU(uint32(portMTU))
	c.dev.SetGIDs(c.liveGIDs())
	for i, l := range links {
		p := &poller{
			shard: c.dev.Shards()[i], link: l, ctx: c, index: i, backoff: kickSoon,
			caller: c.cfg.Progress == ProgressCaller,
			done:   make(chan struct{}), poke: make(chan struct{}, 1), tick: time.NewTimer(0),
		}
		if x, ok := l.(*xdpLink); ok {
			p.sock = x.Socket
		}
		if c.cfg.Capture != nil {
			p.taps = []*tap{{c.cfg.captured}}
		}
		c.pollers = append(c.pollers, p)
	}
	for i, p := range c.pollers {
		cpu := -1
		if len(c.cfg.Pin) > 0 {
			cpu = c.cfg.Pin[i]
		}
		go p.run(cpu, c.cfg.Spin)
	}
	return nil
}

// usableMTU is the link MTU less the VLAN tag, which AF_XDP counts.
func (c *Context) usableMTU() int {
	if c.cfg.VLAN != 0 {
		return c.link.MTU - 4
	}
	return c.link.MTU
}

// maxPMTU is the largest path MTU of the port at present, 0 if not even the smallest fits. c.mu is
// held.
func (c *Context) maxPMTU(ipv6 bool) int {
	return min(netdev.PMTU(c.usableMTU(), ipv6), int(c.dev.Config().MaxPMTU))
}

// topPMTU is what the path MTU can rise to while the device is open, when it is now: sockets that
// take frames of several parts take all, others what fits one part.
func (c *Context) topPMTU(now int) int {
	if c.prog != nil && c.multiPart() {
		return netdev.MaxPMTU
	}
	return now
}

// liveGIDs are the entries of the GID table that have an address. c.mu is held, or c is new.
func (c *Context) liveGIDs() []wire.GID {
	var out []wire.GID
	for _, g := range c.gids {
		if g != (wire.GID{}) {
			out = append(out, g)
		}
	}
	return out
}

// isClosed reports whether Close has begun.
func (c *Context) isClosed() bool { return c.shut.Load() }

// newPD gives out a domain number, never 0.
func (c *Context) newPD() mr.PD {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nextPD++; c.nextPD == 0 {
		c.nextPD = 1
	}
	return mr.PD(c.nextPD)
}

// deviceGone reports, once, that the interface does not exist any more, and ends all QPs: nothing
// will answer. It may be called with a shard held.
func (c *Context) deviceGone() {
	c.goneOnce.Do(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.link.Running { // else it has been said
			c.events.put(AsyncEvent{Type: EventPortErr})
		}
		c.events.put(AsyncEvent{Type: EventDeviceFatal})
		c.link.Up, c.link.Running = false, false
		if !c.isClosed() {
			c.workers.Add(1)
			go c.failAll()
		}
		c.watchers.tell(Change{Kind: ChangeGone})
	})
}

// failAll moves all QPs to ERR, so that what is posted completes with WCWRFlushErr.
func (c *Context) failAll() {
	defer c.workers.Done()
	for _, q := range c.allQPs() {
		q.poller.hold()
		_ = q.qp.Modify(&rxe.QPAttr{State: StateErr}, AttrState) // from RESET there is nothing to end
		q.poller.release()
	}
}

func (c *Context) allQPs() []*QP {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.qps))
}

// index is the interface's.
func (c *Context) index() int { return c.link.Index } // never changes
