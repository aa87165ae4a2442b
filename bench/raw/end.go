package raw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/xdp"
)

// end is one opened end: a socket, and the program that feeds it.
type end struct {
	*xdp.Socket
	mac   net.HardwareAddr
	start [headerLen]byte // of frames to the other end
	mode  string
	link  link.Link
	parts uint64 // chunks a frame takes on receive
}

// openBoth opens the two ends. The result must be closed also after an error.
func openBoth(c *Config) (a, b *end, err error) {
	if a, err = openEnd(c, c.A); err != nil {
		return a, nil, err
	}
	if b, err = openEnd(c, c.B); err == nil {
		a.address(b)
		b.address(a)
	}
	return a, b, err
}

// openEnd runs in the end's namespace, on a thread that ends with it.
func openEnd(c *Config, at End) (*end, error) {
	e := &end{}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, as the thread may have changed namespace
		done <- e.open(c, at)
	}()
	if err := <-done; err != nil {
		return e, fmt.Errorf("raw: open queue %d of %s: %w", at.Queue, at.Interface, err)
	}
	return e, nil
}

func (e *end) open(c *Config, at End) error {
	if at.Netns != "" {
		f, err := os.Open(at.Netns)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", at.Netns, err)
		}
	}
	ifi, err := net.InterfaceByName(at.Interface)
	if err != nil {
		return err
	}
	e.mac = ifi.HardwareAddr
	if len(e.mac) != 6 {
		return fmt.Errorf("not an Ethernet interface: address %v", e.mac)
	}
	if c.FrameSize > ifi.MTU+xdp.MinFrame {
		return fmt.Errorf("frames of %d bytes do not fit into MTU %d", c.FrameSize, ifi.MTU)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "roxie_raw", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4,
		MaxEntries: uint32(at.Queue + 1),
	})
	if err != nil {
		return fmt.Errorf("make XSKMAP: %w", err)
	}
	defer m.Close() // the program keeps it
	if err := e.attach(c, ifi.Index, m); err != nil {
		return err
	}
	e.Socket, err = xdp.Open(xdp.Config{
		Ifindex: ifi.Index, Queue: at.Queue, XSKMAP: m,
		SG: c.FrameSize > xdp.DefaultChunkSize-xdp.RXReserve, FillDepth: c.FillDepth,
	})
	room := xdp.DefaultChunkSize - xdp.RXReserve
	e.parts = uint64((c.FrameSize + room - 1) / room)
	return err
}

// attach loads the program and attaches it.
func (e *end) attach(c *Config, ifindex int, m *ebpf.Map) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "roxie_raw", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Flags: unix.BPF_F_XDP_HAS_FRAGS, Instructions: program(m),
	})
	if err != nil {
		return fmt.Errorf("load XDP program: %w", err)
	}
	defer p.Close() // the link keeps it
	if !c.Generic {
		e.mode = "native"
		e.link, err = link.AttachXDP(link.XDPOptions{
			Program: p, Interface: ifindex, Flags: link.XDPDriverMode,
		})
		if err == nil || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	e.mode = "generic"
	e.link, err = link.AttachXDP(link.XDPOptions{
		Program: p, Interface: ifindex, Flags: link.XDPGenericMode,
	})
	if err != nil {
		return fmt.Errorf("attach XDP program: %w", err)
	}
	return nil
}

// program redirects frames of our EtherType to the socket of their queue and passes all else.
func program(m *ebpf.Map) asm.Instructions {
	const pass = 2 // XDP_PASS
	var wire [2]byte
	binary.BigEndian.PutUint16(wire[:], etherType)
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 14),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, 12, asm.Half),
		asm.JNE.Imm(asm.R4, int32(binary.NativeEndian.Uint16(wire[:])), "pass"),
		asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // rx_queue_index
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Imm(asm.R3, pass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	}
}

// close is for opened and half-opened ends.
func (e *end) close() error {
	if e == nil {
		return nil
	}
	var err error
	if e.Socket != nil {
		err = e.Socket.Close()
	}
	if e.link != nil {
		err = errors.Join(err, e.link.Close())
	}
	return err
}

// address prepares the start of the frames from e to the other end.
func (e *end) address(to *end) {
	copy(e.start[0:6], to.mac)
	copy(e.start[6:12], e.mac)
	binary.BigEndian.PutUint16(e.start[12:], etherType)
}

// header writes the start of frame seq.
func (e *end) header(head []byte, seq uint32) {
	h := (*[headerLen]byte)(head)
	*h = e.start
	binary.BigEndian.PutUint32(h[14:], seq)
}

// sequence reads the number of a frame.
func sequence(head []byte) uint32 {
	return binary.BigEndian.Uint32((*[headerLen]byte)(head)[14:])
}

// pin binds the calling thread to the thread number's CPU.
func (c *Config) pin(thread int) error {
	if len(c.CPUs) == 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(c.CPUs[thread])
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("raw: pin to CPU %d: %w", c.CPUs[thread], err)
	}
	return nil
}
