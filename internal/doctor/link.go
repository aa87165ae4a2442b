package doctor

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/xdp"
)

// patient is one interface under examination.
type patient struct {
	Section
	cfg     Config
	conn    *netdev.Conn
	link    netdev.Link
	details netdev.Details
	machine *machine
	queues  int // roxie will use these, from 0 on
}

func examineInterface(conn *netdev.Conn, m *machine, cfg Config) Section {
	p := &patient{Section: Section{Name: cfg.Interface}, cfg: cfg, conn: conn, machine: m}
	if !p.find() {
		return p.Section
	}
	p.details = netdev.Inspect(p.link)
	p.mode()
	p.zeroCopy()
	p.steering()
	p.mtu()
	p.offloads()
	p.addresses()
	p.neighbours()
	p.firewall()
	return p.Section
}

// find looks for the interface, and whether frames pass.
func (p *patient) find() bool {
	link, err := p.conn.LinkByName(p.cfg.Interface)
	switch {
	case errors.Is(err, netdev.ErrNoLink):
		p.add("link", Broken, "roxie devinfo -l lists those there are; roxie lab up makes some",
			"%v", err)
		return false
	case err != nil:
		p.add("link", Broken, "", "%v", err)
		return false
	case link.MAC == (wire.MAC{}):
		p.add("link", Broken, "roxie devinfo -l",
			"%s is no Ethernet interface; devinfo lists those that are", link.Name)
		return false
	}
	p.link = link
	about := link.Driver
	if about == "" {
		about = link.Kind
	}
	switch {
	case !link.Up:
		p.add("link", Broken, "ip link set "+link.Name+" up",
			"%s (driver %s) is down", link.Name, about)
	case !link.Running:
		p.add("link", Broken, "plug the cable, or bring up the other end of a veth pair",
			"%s (driver %s) has no carrier", link.Name, about)
	default:
		p.add("link", OK, "", "up, driver %s, %v", about, link.MAC)
	}
	return true
}

// software reports whether there is no hardware behind the interface that could be faster.
func (p *patient) software() bool {
	return p.link.Kind != "device" || p.link.Driver == "virtio_net"
}

// mode says how the steering program will run, as far as the driver tells.
func (p *patient) mode() {
	d := &p.details
	const native = netdev.XDPNative | netdev.XDPRedirect
	switch {
	case !d.XDPKnown:
		p.add("xdp mode", OK, "roxie doctor "+p.link.Name+" --try (the link may flap)",
			"this kernel does not tell whether the driver runs XDP natively (6.3 does); a try does")
	case d.XDP&native != native:
		p.add("xdp mode", Slow,
			"use an interface whose driver has XDP (most NICs, virtio_net, veth, tap)",
			"driver %s has no native XDP: the generic mode works, but later and slower", p.link.Driver)
	case d.XDP&netdev.XDPBuffers == 0 && p.link.MTU > onePage:
		p.add("xdp mode", Slow, "ip link set "+p.link.Name+" mtu 3400",
			"driver %s runs XDP natively only on frames of one buffer, and MTU %d needs several: "+
				"generic mode is left", p.link.Driver, p.link.MTU)
	default:
		p.add("xdp mode", OK, "", "driver %s runs XDP natively", p.link.Driver)
	}
	for _, lro := range []string{"rx-lro", "rx-gro-hw"} {
		if d.Offload(lro) && p.link.Driver != "virtio_net" {
			p.add("merging", Slow, "ethtool -K "+p.link.Name+" "+lro+" off",
				"%s is on: the NIC merges frames, and most drivers refuse native XDP then", lro)
		}
	}
}

// onePage is the link MTU up to which a frame fits one buffer of every driver.
const onePage = 3400

func (p *patient) zeroCopy() {
	switch d := &p.details; {
	case !d.XDPKnown:
	case d.XDP&netdev.XDPZeroCopy != 0:
		p.add("zero-copy", OK, "", "driver %s has it; roxie takes it where it can", p.link.Driver)
	case p.software():
		p.add("zero-copy", OK, "", "driver %s copies each frame once more; software interfaces do",
			p.link.Driver)
	default:
		p.add("zero-copy", Slow, "use a NIC whose driver has it (ice, i40e, ixgbe, igc, mlx5_core, …)",
			"driver %s copies each frame once more", p.link.Driver)
	}
}

// steering looks at what is in the way of the program and of the sockets.
func (p *patient) steering() {
	foreign := p.foreign()
	p.countQueues()
	if p.memlock() {
		p.bind()
	}
	if p.cfg.Try && !foreign {
		p.try()
	}
}

// foreign tells about an XDP program that is there. Attaching asks for its holder: it is refused
// before anything happens.
func (p *patient) foreign() bool {
	id, name, there := bpf.Foreign(p.link.Index)
	if !there {
		p.add("xdp program", OK, "", "none is attached")
		return false
	}
	found := bpf.ForeignError{Ifindex: p.link.Index, Interface: p.link.Name, ID: id, Name: name}
	if p.machine.steer {
		if prog, err := bpf.Load(bpf.Config{Queues: 1, Addresses: 1, CarrierWait: -1}); err == nil {
			var refused *bpf.ForeignError
			if errors.As(prog.Attach(p.link.Index, bpf.Auto), &refused) {
				found = *refused
			}
			_ = prog.Close()
		}
	}
	fix := "ip link set " + p.link.Name + " xdp off (if nobody needs it; bpftool link detach, " +
		"if it hangs on a bpf_link)"
	if found.PID != 0 {
		fix = "end " + found.Command + ", or use another interface"
	}
	p.add("xdp program", Broken, fix, "%v", &found)
	return true
}

// countQueues looks at whether frames arrive at queues that roxie listens to.
func (p *patient) countQueues() {
	l, d := &p.link, &p.details
	have := min(l.RXQueues, l.TXQueues)
	p.queues = p.cfg.Queues
	if p.queues == 0 {
		p.queues = min(have, maxQueues)
	}
	if p.queues > have {
		p.add("queues", Broken,
			"ethtool -L "+l.Name+" combined "+itoa(p.queues)+", or --queues "+itoa(have),
			"%d queues are wanted; there are %d to receive and %d to send", p.queues, l.RXQueues, l.TXQueues)
		p.queues = have
		return
	}
	beyond := 0
	for _, q := range d.Indirection {
		if int(q) >= p.queues {
			beyond++
		}
	}
	steered := len(d.Indirection) > 0 && beyond == 0
	switch {
	case l.RXQueues > p.queues && !steered:
		p.add("queues", Broken,
			"ethtool -L "+l.Name+" combined "+itoa(p.queues)+", or ethtool -X "+l.Name+
				" equal "+itoa(p.queues)+", or --queues "+itoa(min(have, maxQueues))+" where roxie is started",
			"frames arrive on %d queues, roxie listens to %d: the kernel gets the rest, and drops it",
			l.RXQueues, p.queues)
	case p.queues > 1 && d.HashKnown && !(d.Hash4 && d.Hash6):
		p.add("queues", Slow, "ethtool -N "+l.Name+" rx-flow-hash udp4 sdfn; ethtool -N "+l.Name+
			" rx-flow-hash udp6 sdfn",
			"%d queues, but the NIC spreads UDP by addresses only: all of a peer's QPs meet on one",
			p.queues)
	case p.queues > 1 && p.cfg.Queues == 0:
		p.add("queues", OK, "", "%d; tell roxie to use all of them (--queues %[1]d): "+
			"frames on the others go to the kernel", p.queues)
	default:
		p.add("queues", OK, "", "%d of %d to receive, of %d to send", p.queues, l.RXQueues, l.TXQueues)
	}
}

// Chunks that a socket locks, to send and to receive (package verbs).
const (
	vethChunks = xdp.DefaultFillDepth + xdp.DefaultTXFrames
	nicChunks  = 2 * 2048
)

// memlock is what a device with sockets of the usual size locks, in bytes.
func memlock(kind string, queues int) uint64 {
	chunks := uint64(nicChunks)
	if kind == "veth" {
		chunks = vethChunks
	}
	return uint64(queues) * chunks * xdp.DefaultChunkSize
}

func (p *patient) memlock() bool {
	need := memlock(p.link.Kind, p.queues)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		p.add("memlock", Broken, "", "read RLIMIT_MEMLOCK: %v", err)
		return false
	}
	switch {
	case netdev.HaveCap(netdev.CapIPCLock):
		p.add("memlock", OK, "", "CAP_IPC_LOCK lifts the limit; %d KiB will be locked", need>>10)
	case limit.Max >= need:
		p.add("memlock", OK, "", "%d KiB will be locked, %s may be", need>>10, limitText(limit.Max))
	case netdev.HaveCap(netdev.CapSysResource):
		p.add("memlock", OK, "",
			"%d KiB will be locked; the limit of %d KiB will be raised (CAP_SYS_RESOURCE)",
			need>>10, limit.Max>>10)
	default:
		e := netdev.MemlockError{Need: need, Limit: limit.Max}
		text, fix, _ := strings.Cut(e.Error(), ": ")
		p.add("memlock", Broken, fix, "%s", text)
		return false
	}
	return true
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "any amount"
	}
	return itoa(int(n>>10)) + " KiB"
}

// bind sees whether another process has a socket on one of the queues.
func (p *patient) bind() {
	if !p.machine.sockets || !p.link.Up {
		return
	}
	for q := range p.queues {
		s, err := xdp.Open(xdp.Config{Ifindex: p.link.Index, Interface: p.link.Name, Queue: q,
			FillDepth: 8, TXFrames: 8, ZeroCopy: xdp.Never})
		var busy *xdp.BusyError
		switch {
		case errors.As(err, &busy):
			fix := "stop the process that has it, or take another interface"
			if len(busy.Holders) > 0 {
				fix = "kill " + itoa(busy.Holders[0].PID) + " (if it may be stopped), or take another interface"
			}
			text, _, _ := strings.Cut(busy.Error(), ";")
			p.add("socket", Broken, fix, "%s", text)
			return
		case err != nil:
			p.add("socket", Broken, "", "%v", err)
			return
		}
		_ = s.Close()
	}
	p.add("socket", OK, "", "no other process has an AF_XDP socket on queues 0 to %d", p.queues-1)
}

// try attaches the program, for a moment.
func (p *patient) try() {
	if !p.machine.steer {
		return
	}
	prog, err := bpf.Load(bpf.Config{Queues: p.queues, Addresses: 1})
	if err != nil {
		p.add("try", Broken, "", "%v", err)
		return
	}
	defer prog.Close()
	if err := prog.Attach(p.link.Index, bpf.Auto); err != nil {
		p.add("try", Broken, "", "%v", err)
		return
	}
	a := prog.Attachment()
	switch {
	case a.Fallback != nil:
		p.add("try", Slow, "", "attached in generic mode: %v", a.Fallback)
	case p.link.Running && !a.Carrier:
		p.add("try", Broken, "", "attached natively, but the carrier did not come back in 5 s")
	default:
		p.add("try", OK, "", "the program was attached in %v mode, and taken off", a.Mode)
	}
}

// offloads: what the NIC takes out of a frame before the program sees it.
func (p *patient) offloads() {
	const name = "rx-vlan-hw-parse"
	switch {
	case p.details.Offloads == nil:
	case !slices.Contains(p.details.Offloads, name):
		p.add("vlan offload", OK, "", "off: the program sees tags")
	case p.cfg.VLAN != 0 && !p.software():
		p.add("vlan offload", Broken, "ethtool -K "+p.link.Name+" rxvlan off",
			"on: the NIC takes tags off, so that frames of VLAN %d look untagged and go to the kernel",
			p.cfg.VLAN)
	case p.software():
		p.add("vlan offload", OK, "", "on, which hides no tag that comes as bytes, "+
			"as roxie and other hosts send it")
	default:
		p.add("vlan offload", OK, "ethtool -K "+p.link.Name+" rxvlan off",
			"on, which matters only where roxie is given a VLAN: tagged frames look untagged")
	}
}
