package verbstest

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/rxe/sim"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// Config sets up a network. Zero values take the defaults named.
type Config struct {
	Devices int    // 1 to 250, default 2
	Queues  int    // of each device, default 1
	MTU     int    // of each device's link, default 9000
	Seed    uint64 // decides the faults
	Faults  sim.Faults
	Script  string // faults of single frames and partitions, as sim.ParseFaults reads them
	Device  *verbs.Config

	// Tap, if set, sees every frame that a device sends, before its faults; to is -1 for many. It must
	// not keep the frame. Calls come one at a time.
	Tap func(from, to int, frame []byte)
}

// Network is a switch with devices. Its methods may be called from any goroutine.
type Network struct {
	cfg     Config
	devices []*verbs.Context
	links   [][]*link // by device and queue
	script  *sim.FaultScript

	mu     sync.Mutex
	lot    *sim.Lot
	cut    map[[2]int]bool
	timers map[*time.Timer]struct{}
	closed bool
	full   uint64 // frames that found their destination's ring full
}

// New opens the devices. Each has an IPv4 and an IPv6 address, GIDs 0 and 1, and knows all others.
func New(c Config) (*Network, error) {
	if c.Devices == 0 {
		c.Devices = 2
	}
	if c.Devices < 1 || c.Devices > 250 || c.Queues < 0 {
		return nil, fmt.Errorf("open network: %d devices with %d queues: out of range", c.Devices, c.Queues)
	}
	c.Queues = max(c.Queues, 1)
	n := &Network{cfg: c, lot: sim.NewLot(c.Seed, c.Faults), cut: map[[2]int]bool{},
		timers: map[*time.Timer]struct{}{}}
	if err := n.readScript(c.Script); err != nil {
		return nil, fmt.Errorf("open network: %w", err)
	}
	for i := range c.Devices {
		n.links = append(n.links, nil)
		for q := range c.Queues {
			n.links[i] = append(n.links[i], newLink(n, i, q))
		}
	}
	for i := range c.Devices {
		d, err := verbs.OpenLinks(n.linksOf(i), n.port(i), c.Device)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open network: %w", err), n.Close())
		}
		n.devices = append(n.devices, d)
	}
	return n, nil
}

// readScript starts a script. Of its orders a network knows partitions only.
func (n *Network) readScript(text string) (err error) {
	if n.script, err = sim.ParseFaults(text); err != nil {
		return err
	}
	for _, o := range n.script.Orders() {
		if o.What != "partition" || o.Num > n.cfg.Devices || o.Peer > n.cfg.Devices {
			return fmt.Errorf("the script says %q of device %d: a network of %d devices can partition them",
				o.What, o.Num, n.cfg.Devices)
		}
		n.after(time.Duration(o.At), func() {
			n.Partition(o.Num-1, o.Peer-1, true)
			n.after(time.Duration(o.For), func() { n.Partition(o.Num-1, o.Peer-1, false) })
		})
	}
	return nil
}

func (n *Network) linksOf(i int) (out []verbs.Link) {
	for _, l := range n.links[i] {
		out = append(out, l)
	}
	return out
}

func macOf(i int) wire.MAC { return wire.MAC{2, 0, 0, 0, 0, byte(i + 1)} }

func addrsOf(i int) (v4, v6 netip.Addr) {
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)})
}

func (n *Network) port(i int) verbs.PortInfo {
	v4, v6 := addrsOf(i)
	p := verbs.PortInfo{Name: fmt.Sprintf("mem%d", i), MAC: macOf(i), MTU: n.cfg.MTU,
		Addrs:      []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)},
		Neighbours: map[netip.Addr]wire.MAC{}}
	for j := range n.cfg.Devices {
		if j != i {
			v4, v6 := addrsOf(j)
			p.Neighbours[v4], p.Neighbours[v6] = macOf(j), macOf(j)
		}
	}
	return p
}

// Device is device i, from 0.
func (n *Network) Device(i int) *verbs.Context { return n.devices[i] }

// Addr is the IPv4 address of device i, which is its GID 0.
func (n *Network) Addr(i int) netip.Addr {
	v4, _ := addrsOf(i)
	return v4
}

// Addr6 is the IPv6 address of device i, which is its GID 1.
func (n *Network) Addr6(i int) netip.Addr {
	_, v6 := addrsOf(i)
	return v6
}

// SetFaults replaces the fault model from now on.
func (n *Network) SetFaults(x sim.Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lot.SetFaults(x)
}

// Partition cuts the path from one device to another, in this direction only, or joins it again.
func (n *Network) Partition(from, to int, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]int{from, to}] = cut
}

// Stats is what has been done to frames so far.
func (n *Network) Stats() sim.Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.lot.Stats
	s.Overflows = n.full
	return s
}

// Close closes the devices. Closing twice is fine.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	for t := range n.timers {
		t.Stop()
	}
	clear(n.timers)
	n.mu.Unlock()
	var errs []error
	for _, d := range n.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// after runs f later, unless the network is closed by then.
func (n *Network) after(d time.Duration, f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.later(d, f)
}

// later is after with n.mu held.
func (n *Network) later(d time.Duration, f func()) {
	if n.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		n.mu.Lock()
		_, live := n.timers[t]
		delete(n.timers, t)
		n.mu.Unlock()
		if live {
			f()
		}
	})
	n.timers[t] = struct{}{}
}

// send takes a frame from a queue of a device to where its address says.
func (n *Network) send(l *link, frame []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to := int(frame[5]) - 1
	if frame[0]&1 != 0 {
		to = -1
	}
	if n.cfg.Tap != nil {
		n.cfg.Tap(l.device, to, frame)
	}
	switch {
	case to < 0:
		for i := range n.links {
			if i != l.device {
				n.pass(l, i, frame)
			}
		}
	case to < len(n.links) && wire.MAC(frame[:6]) == macOf(to):
		n.pass(l, to, frame)
	}
}

// pass lets a frame meet its faults on the way to one device.
func (n *Network) pass(l *link, to int, frame []byte) {
	v := n.script.Judge(l.device+1, to+1, frame)
	if n.cut[[2]int{l.device, to}] {
		v = sim.Drop
	}
	dest := n.links[to][l.queue%len(n.links[to])]
	for _, a := range n.lot.Draw(v, frame) {
		if a.After == 0 {
			n.arrive(dest, a.Frame)
			continue
		}
		n.later(time.Duration(a.After), func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.arrive(dest, a.Frame)
		})
	}
}

// arrive puts a frame into a receive ring. The caller holds n.mu.
func (n *Network) arrive(l *link, frame []byte) {
	if !l.put(frame) {
		n.full++
		return
	}
	n.lot.Stats.Delivered++
}
