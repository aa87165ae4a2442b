package xdp

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// lab is two anonymous network namespaces joined by a veth pair, "a" in the first and "b" in the
// second. Nothing of it outlives the test process.
type lab struct {
	a, b  netns.NsHandle
	index [2]int
	links [2]*netlink.Handle
}

// within runs f on a thread of its own in namespace ns; the thread ends with it.
func within(ns netns.NsHandle, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the runtime drops the thread
		if err := netns.Set(ns); err != nil {
			panic(err)
		}
		f()
	}()
	<-done
}

// needRoot skips where the kernel or the rights for real AF_XDP are missing.
func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for network namespaces and AF_XDP")
	}
}

func newNamespace(tb testing.TB) netns.NsHandle {
	tb.Helper()
	var ns netns.NsHandle
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		ns, err = netns.New()
	}()
	<-done
	if errors.Is(err, unix.EPERM) {
		tb.Skip("needs CAP_SYS_ADMIN for network namespaces")
	}
	must(tb, err)
	tb.Cleanup(func() { _ = ns.Close() })
	return ns
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// newLab makes the pair with that many queues and that MTU, both ends up.
func newLab(tb testing.TB, queues, mtu int) *lab {
	tb.Helper()
	needRoot(tb)
	l := &lab{a: newNamespace(tb), b: newNamespace(tb)}
	for i, ns := range []netns.NsHandle{l.a, l.b} {
		h, err := netlink.NewHandleAt(ns)
		must(tb, err)
		tb.Cleanup(h.Close)
		l.links[i] = h
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumRxQueues, attrs.NumTxQueues = "a", mtu, queues, queues
	must(tb, l.links[0].LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: "b", PeerNamespace: netlink.NsFd(l.b), PeerMTU: uint32(mtu),
		PeerNumRxQueues: uint32(queues), PeerNumTxQueues: uint32(queues),
	}))
	for i, name := range []string{"a", "b"} {
		ln, err := l.links[i].LinkByName(name)
		must(tb, err)
		l.index[i] = ln.Attrs().Index
		// No IPv6 address, so that the kernel sends no frames of its own.
		must(tb, l.links[i].LinkSetIP6AddrGenMode(ln, nl.IN6_ADDR_GEN_MODE_NONE))
		must(tb, l.links[i].LinkSetUp(ln))
	}
	return l
}

// program attaches a program that redirects everything by queue to end (0 or 1) and returns its
// map.
func (l *lab) program(tb testing.TB, end, queues int, mode link.XDPAttachFlags) *ebpf.Map {
	tb.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4,
		MaxEntries: uint32(queues)})
	must(tb, err)
	tb.Cleanup(func() { _ = m.Close() })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Dual BSD/GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // ctx->rx_queue_index
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Imm(asm.R3, 2), // XDP_PASS where no socket is
			asm.FnRedirectMap.Call(),
			asm.Return(),
		},
	})
	must(tb, err)
	tb.Cleanup(func() { _ = p.Close() })
	within([]netns.NsHandle{l.a, l.b}[end], func() {
		var lk link.Link
		lk, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: l.index[end], Flags: mode})
		if err == nil {
			tb.Cleanup(func() { _ = lk.Close() })
		}
	})
	must(tb, err)
	return m
}

// open opens a socket on end (0 or 1) and closes it with the test.
func (l *lab) open(tb testing.TB, end int, c Config) *Socket {
	tb.Helper()
	s, err := l.tryOpen(end, c)
	must(tb, err)
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func (l *lab) tryOpen(end int, c Config) (s *Socket, err error) {
	c.Interface = []string{"a", "b"}[end]
	within([]netns.NsHandle{l.a, l.b}[end], func() { s, err = Open(c) })
	return s, err
}
