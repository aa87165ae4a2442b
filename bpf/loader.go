package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Port is the UDP destination port of RoCEv2 (IANA roce, InfiniBand Annex A17).
const Port = 4791

const (
	defaultQueues      = 64
	defaultAddresses   = 1024
	defaultCarrierWait = 5 * time.Second
	maxQueues          = 1 << 16
	maxAddresses       = 1 << 20
	maxVLAN            = 4094
)

// Mode is a way to attach the program.
type Mode int

const (
	// Auto takes Native if the driver has it, else Generic.
	Auto Mode = iota
	// Native runs the program in the driver, before the kernel makes a socket buffer.
	Native
	// Generic runs it in the kernel's core, on any interface, later and often slower.
	Generic
)

// String returns auto, native or generic.
func (m Mode) String() string {
	switch m {
	case Auto:
		return "auto"
	case Native:
		return "native"
	case Generic:
		return "generic"
	}
	return fmt.Sprintf("mode(%d)", int(m))
}

// Config sizes a [Program].
type Config struct {
	// Queues is the number of slots of the XSKMAP: the highest receive queue with a socket, plus
	// one. 1 to 65536; 0 means 64.
	Queues int
	// Addresses is the capacity of the address table. 1 to 1048576; 0 means 1024.
	Addresses int
	// CarrierWait bounds the time Attach waits for a carrier. 0 means 5 s, negative none.
	CarrierWait time.Duration
}

func (c *Config) validate() error {
	if c.Queues == 0 {
		c.Queues = defaultQueues
	}
	if c.Addresses == 0 {
		c.Addresses = defaultAddresses
	}
	if c.CarrierWait == 0 {
		c.CarrierWait = defaultCarrierWait
	}
	if c.Queues < 1 || c.Queues > maxQueues {
		return fmt.Errorf("bpf: Queues is %d, not 1 to %d", c.Queues, maxQueues)
	}
	if c.Addresses < 1 || c.Addresses > maxAddresses {
		return fmt.Errorf("bpf: Addresses is %d, not 1 to %d", c.Addresses, maxAddresses)
	}
	return nil
}

// Program is the steering program with its maps, attached to at most one interface. Its methods may
// be called from several goroutines.
type Program struct {
	cfg Config

	mu       sync.Mutex
	objs     steerObjects
	link     link.Link
	attached Attachment
	perCPU   []uint64
	closed   bool
}

// Attachment tells how a [Program] hangs on an interface.
type Attachment struct {
	Ifindex   int    // 0: not attached
	Interface string // its name when it was attached
	Mode      Mode   // Native or Generic
	Fallback  error  // why Auto did not get Native, a *ModeError; nil if it did, or was not asked to
	ProgramID uint32 // as in bpftool prog show
	LinkID    uint32 // as in bpftool link show
	Up        bool   // the interface was up at the end of Attach
	Carrier   bool   // and had a carrier
}

// Load loads the program into the kernel, attached to nothing. Errors: [CapabilityError],
// [ErrNotSupported] (a kernel before 5.18).
func Load(cfg Config) (*Program, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	spec, err := loadSteer()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	spec.Maps[steerMapSockets].MaxEntries = uint32(cfg.Queues)
	spec.Maps[steerMapAddresses].MaxEntries = uint32(cfg.Addresses)
	p := &Program{cfg: cfg}
	if err := spec.LoadAndAssign(&p.objs, nil); err != nil {
		if errors.Is(err, ebpf.ErrNotSupported) {
			return nil, fmt.Errorf("load the steering program: kernel before 5.18: %w: %w",
				ErrNotSupported, err)
		}
		return nil, permission("load the steering program", err)
	}
	return p, nil
}

// Attach hangs the program on an interface of the calling thread's network namespace and waits up
// to Config.CarrierWait for its carrier, because native mode resets the link of many NICs. An
// interface that is down, or stays without carrier, is no error: [Program.Attachment] tells.
//
// Errors: [ErrNoInterface]; [ForeignError] if any XDP program is on the interface, also one of
// another process of roxie; [ModeError] if it refuses the mode, in Auto both; [CapabilityError];
// [ErrAttached]; [ErrClosed].
func (p *Program) Attach(ifindex int, mode Mode) error {
	lnk, err := p.hang(ifindex, mode)
	if err != nil {
		return err
	}
	up, carrier := waitCarrier(ifindex, p.cfg.CarrierWait)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == lnk { // not detached meanwhile
		p.attached.Up, p.attached.Carrier = up, carrier
	}
	return nil
}

// hang is Attach without the wait, which must not keep others from the counters.
func (p *Program) hang(ifindex int, mode Mode) (link.Link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, ErrClosed
	case p.link != nil:
		return nil, ErrAttached
	case mode != Auto && mode != Native && mode != Generic:
		return nil, fmt.Errorf("attach: %v is no mode", mode)
	}
	l, err := findLink(ifindex)
	if err != nil {
		return nil, err
	}
	if id, _ := l.program(); id != 0 {
		return nil, foreignError(ifindex, l)
	}
	a := Attachment{Ifindex: ifindex, Interface: l.name, Mode: mode}
	if mode == Auto {
		a.Mode = Native
	}
	lnk, err := p.attach(ifindex, l, a.Mode)
	var refused *ModeError
	if mode == Auto && errors.As(err, &refused) {
		a.Mode, a.Fallback = Generic, refused
		if lnk, err = p.attach(ifindex, l, Generic); err != nil {
			err = fmt.Errorf("%w; before that: %w", err, refused)
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := lnk.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read link: %w", err), lnk.Close())
	}
	a.LinkID, a.ProgramID = uint32(info.ID), uint32(info.Program)
	p.link, p.attached = lnk, a
	return lnk, nil
}

// attach tries one mode.
func (p *Program) attach(ifindex int, l *linkState, mode Mode) (link.Link, error) {
	flags := link.XDPDriverMode
	if mode == Generic {
		flags = link.XDPGenericMode
	}
	lnk, err := link.AttachXDP(link.XDPOptions{
		Program: p.objs.RoxieSteer, Interface: ifindex, Flags: flags})
	if err == nil {
		return lnk, nil
	}
	switch cause(err) {
	case unix.EBUSY, unix.EEXIST: // somebody was faster
		if now, err := findLink(ifindex); err == nil {
			if id, _ := now.program(); id != 0 {
				return nil, foreignError(ifindex, now)
			}
		}
	case unix.ENODEV, unix.ENXIO:
		return nil, fmt.Errorf("attach to interface %d: %w", ifindex, ErrNoInterface)
	case unix.EPERM, unix.EACCES:
		return nil, permission("attach to "+l.name, err)
	}
	return nil, &ModeError{Interface: l.name, MTU: int(l.mtu), Mode: mode, Err: err}
}

// Attachment tells how the program is attached; the zero value if it is not.
func (p *Program) Attachment() Attachment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attached
}

// XSKMap is the table of AF_XDP sockets, keyed by receive queue. A socket must be bound to the
// interface and queue of its slot, or the kernel drops what is steered to it. The kernel removes a
// socket that is closed. The map belongs to the program and is closed with it.
func (p *Program) XSKMap() *ebpf.Map { return p.objs.Sockets }

// Add enters a local address: unicast or multicast, IPv4 (also in IPv6-mapped form) or IPv6, in a
// VLAN (1 to 4094; 0 is untagged and priority-tagged). A zone is ignored. Adding it twice is fine,
// but counts once. Errors: [ErrTableFull], [ErrClosed].
func (p *Program) Add(vlan uint16, addr netip.Addr) error {
	key, err := addressKey(vlan, addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	err = p.objs.Addresses.Put(key, uint32(1))
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("add address %v: %w (%d)", addr, ErrTableFull, p.cfg.Addresses)
	}
	if err != nil {
		return fmt.Errorf("add address %v: %w", addr, err)
	}
	return nil
}

// Remove takes an address out. One that is not there is fine. Errors: [ErrClosed].
func (p *Program) Remove(vlan uint16, addr netip.Addr) error {
	key, err := addressKey(vlan, addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if err := p.objs.Addresses.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove address %v: %w", addr, err)
	}
	return nil
}

func addressKey(vlan uint16, addr netip.Addr) (steerAddressKey, error) {
	if !addr.IsValid() {
		return steerAddressKey{}, errors.New("no address given")
	}
	if vlan > maxVLAN {
		return steerAddressKey{}, fmt.Errorf("VLAN %d is not 0 to %d", vlan, maxVLAN)
	}
	return steerAddressKey{Addr: addr.As16(), Vlan: vlan}, nil
}

// Detach takes the program off its interface; it may be attached again. Its maps keep their
// content. Not being attached is fine.
func (p *Program) Detach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.detach()
}

func (p *Program) detach() error {
	if p.link == nil {
		return nil
	}
	err := p.link.Close()
	p.link, p.attached = nil, Attachment{}
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	return nil
}

// Close detaches the program and closes its maps. Closing twice is fine.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return errors.Join(p.detach(), p.objs.Close())
}
