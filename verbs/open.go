package verbs

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/xdp"
)

// ErrDown says that the interface is down or has no carrier.
var ErrDown = errors.New("interface is down")

// Open opens the RoCE device on a network interface of the calling thread's network namespace: it
// attaches the steering program, opens an AF_XDP socket on each queue and starts a thread for each.
// Sockets stay in that namespace, from whatever thread the Context is used later. cfg may be nil.
//
// It needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or cfg.Prepared. Errors to test for, each with a
// text that says what to do: *netdev.CapError, netdev.ErrNoLink, ErrDown, *netdev.MemlockError,
// *bpf.ForeignError, *bpf.ModeError, *xdp.BusyError, xdp.ErrZeroCopy. Nothing is left behind then.
func Open(ifname string, cfg *Config) (*Context, error) {
	conf, err := cfg.withDefaults()
	if err != nil {
		if conf.Prepared != nil {
			_ = conf.Prepared.Close()
		}
		return nil, fmt.Errorf("open %s: %w", ifname, err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := openInterface(ifname, conf)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ifname, err)
	}
	return c, nil
}

func openInterface(ifname string, conf Config) (_ *Context, err error) {
	prep := conf.Prepared
	if prep != nil {
		defer prep.Close()
	} else if err := netdev.RequireCaps(netdev.CapNetAdmin, netdev.CapNetRaw, netdev.CapBPF); err != nil {
		return nil, err
	}
	conn, err := netdev.Open()
	if err != nil {
		return nil, err
	}
	c := &Context{conn: conn}
	var links []Link
	defer func() {
		if err != nil {
			for _, l := range links {
				_ = l.Close()
			}
			c.closeKernel()
		}
	}()
	monitor, err := netdev.NewMonitor()
	if err != nil {
		return nil, err
	}
	c.monitor = monitor // before the state is read: nothing is missed
	link, addrs, err := readInterface(conn, ifname, conf.Queues)
	if err != nil {
		return nil, err
	}
	full := newContext(conf, link, addrs)
	full.conn, full.monitor, full.net = conn, monitor, conn
	c = full
	c.groups = openGroups(c)
	if err := c.steer(); err != nil {
		return nil, err
	}
	sockets := c.socketConfig(0)
	if err := netdev.RaiseMemlock(uint64(conf.Queues) * memlock(&sockets)); err != nil {
		return nil, err
	}
	for i := range conf.Queues {
		sc := c.socketConfig(i)
		if prep != nil {
			sc.Socket, prep.sockets[i] = prep.sockets[i], nil
		}
		l, err := openXDPLink(sc)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	if err := c.start(links); err != nil {
		return nil, err
	}
	c.workers.Add(1)
	go c.follow()
	return c, nil
}

// readInterface finds the interface and makes sure that it can work.
func readInterface(conn *netdev.Conn, ifname string, queues int) (netdev.Link, addresses, error) {
	link, err := conn.LinkByName(ifname)
	if err != nil {
		return link, nil, err
	}
	switch {
	case !link.Up:
		return link, nil, fmt.Errorf("%w: `ip link set %s up`", ErrDown, link.Name)
	case link.RXQueues < queues || link.TXQueues < queues:
		return link, nil, fmt.Errorf("%s has %d receive and %d transmit queues, %d are wanted: "+
			"take fewer, or `ethtool -L`", link.Name, link.RXQueues, link.TXQueues, queues)
	}
	addrs, err := conn.Addrs(link.Index)
	return link, addrs, err
}

// steer attaches the program and tells it our addresses.
func (c *Context) steer() (err error) {
	if p := c.cfg.Prepared; p != nil {
		err = c.adopt(p)
	} else {
		c.prog, err = bpf.Load(bpf.Config{Queues: c.cfg.Queues})
	}
	if err != nil {
		return err
	}
	for _, a := range c.addrs {
		if err := c.prog.Add(uint16(c.cfg.VLAN), a.Addr()); err != nil {
			return err
		}
	}
	if c.cfg.Prepared == nil {
		if err := c.prog.Attach(c.link.Index, c.cfg.Mode); err != nil {
			return err
		}
	}
	c.attached, c.cfg.Prepared = c.prog.Attachment(), nil
	return nil
}

// Socket sizes for all interfaces but veth, where xdp's defaults are best: NICs have rings of their
// own, and what is behind a tap sends in bursts that nothing holds back.
const (
	nicFillDepth = 2048
	nicTXFrames  = 2048
	nicInFlight  = 1024
)

// socketConfig is what queue i's socket is opened with.
func (c *Context) socketConfig(i int) xdp.Config {
	f := &c.cfg
	s := xdp.Config{
		Ifindex: c.link.Index, Interface: c.link.Name, Queue: i, XSKMAP: c.prog.XSKMap(),
		SG:        c.multiPart(),
		FillDepth: f.FillDepth, TXFrames: f.Frames, TXBudget: f.TXBudget, InFlight: f.InFlight,
		RXRing: f.RingSize, FillRing: f.RingSize, TXRing: f.RingSize, CompletionRing: f.RingSize,
		ZeroCopy: f.ZeroCopy,
	}
	if c.link.Kind != "veth" {
		setDefault(&s.FillDepth, nicFillDepth)
		setDefault(&s.TXFrames, nicTXFrames)
		setDefault(&s.InFlight, nicInFlight)
	}
	return s
}

// multiPart decides whether sockets take frames of several parts, which longer ones than a chunk
// need. A NIC may lose zero-copy by it; a veth has none to lose, and its MTU may rise.
func (c *Context) multiPart() bool {
	return c.link.Kind == "veth" || c.openMTU+xdp.MinFrame > xdp.DefaultChunkSize-xdp.RXReserve
}

func setDefault(v *int, to int) {
	if *v == 0 {
		*v = to
	}
}

// memlock is what a socket locks, in bytes.
func memlock(s *xdp.Config) uint64 {
	fill, tx := s.FillDepth, s.TXFrames
	setDefault(&fill, xdp.DefaultFillDepth)
	setDefault(&tx, xdp.DefaultTXFrames)
	return uint64(fill+tx) * xdp.DefaultChunkSize
}

// LockedMemory returns how many bytes a device of so many queues locks at most, for RLIMIT_MEMLOCK,
// with the sizes that the zero Config gives and a predecessor's memory that is not free yet.
func LockedMemory(queues int) uint64 {
	return uint64(queues) * 2 * (nicFillDepth + nicTXFrames) * xdp.DefaultChunkSize
}

// Close ends the device: threads, sockets, steering program. Objects made from it are dead
// afterwards, QPs without flushing; the memory of AllocMR regions is given back and must not be
// touched any more. Closing twice is fine.
func (c *Context) Close() error {
	if c.shut.Swap(true) {
		<-c.ended
		return nil
	}
	close(c.closed)
	var errs []error
	for _, p := range c.pollers {
		p.stop.Store(true)
		p.asleep.Store(false)
		p.link.Wake()
	}
	for _, p := range c.pollers {
		<-p.done
		p.hold()
		p.shut = true
		p.release()
	}
	if c.prog != nil {
		errs = append(errs, c.prog.Detach())
	}
	for _, p := range c.pollers {
		errs = append(errs, p.link.Close())
	}
	c.closeKernel()
	c.mu.Lock() // from here on deviceGone sees shut, or its goroutine is counted
	mapped := c.mapped
	c.mapped = nil
	c.mu.Unlock()
	c.workers.Wait()
	for m, buf := range mapped {
		unmapMemory(buf)
		m.buf = nil
	}
	close(c.ended)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close %s: %w", c.name, err)
	}
	return nil
}

// closeKernel closes what Open opened besides the sockets, as far as it got.
func (c *Context) closeKernel() {
	if c.groups != nil {
		c.groups.close()
	}
	if c.prog != nil {
		_ = c.prog.Close()
	}
	if c.monitor != nil {
		_ = c.monitor.Close()
	}
	if c.conn != nil {
		_ = c.conn.Close()
	}
}
