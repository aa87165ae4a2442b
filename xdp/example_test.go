package xdp_test

import (
	"fmt"
	"log"
	"net"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/xdp"
)

// Two sockets on the two ends of a veth pair: one asks, the other turns the frame round. It needs
// root.
func Example() {
	inFreshNamespace("left", "right", func() {
		left, closeLeft := open("left")
		defer closeLeft()
		right, closeRight := open("right")
		defer closeRight()

		// Write a frame where the kernel will read it, queue it, and make one system call for all
		// that is queued.
		head, _, ok := left.Reserve()
		if !ok {
			log.Fatal("no room for a frame") // not with an empty ring
		}
		n := copy(head, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
		n += copy(head[n:], "hello")
		left.Submit(n)
		left.Kick()

		answer(right)

		if left.Wait(time.Second)&xdp.WokenRX == 0 {
			log.Fatal("no answer")
		}
		for i := range left.Receive(32) {
			frame, _, _ := left.Packet(i)
			fmt.Printf("%x says %s\n", frame[6:12], frame[14:])
		}
		left.Release()
		fmt.Println("sent", left.Stats().TXFrames, "received", left.Stats().RXFrames)
	})
	// Output:
	// 020000000002 says HELLO
	// sent 1 received 1
}

// answer turns round what has arrived: addresses swapped, letters raised.
func answer(s *xdp.Socket) {
	if s.Wait(time.Second)&xdp.WokenRX == 0 {
		log.Fatal("nothing arrived")
	}
	for i := range s.Receive(32) {
		frame, _, _ := s.Packet(i)
		head, _, ok := s.Reserve()
		if !ok {
			break
		}
		copy(head[0:], frame[6:12])
		copy(head[6:], "\x02\x00\x00\x00\x00\x02\x88\xb5")
		for j, c := range frame[14:] {
			head[14+j] = c &^ 0x20
		}
		s.Submit(len(frame))
	}
	s.Release()
	s.Kick()
}

// open attaches a program to an interface that redirects everything that arrives on a queue to the
// socket of that queue, if there is one, and opens a socket for queue 0. A real program picks what
// it wants and leaves the rest to the kernel's stack.
func open(ifname string) (s *xdp.Socket, closeAll func()) {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1,
	})
	check(err)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "MIT", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // ctx->rx_queue_index
			asm.LoadMapPtr(asm.R1, sockets.FD()),
			asm.Mov.Imm(asm.R3, 2), // XDP_PASS where no socket is
			asm.FnRedirectMap.Call(),
			asm.Return(),
		},
	})
	check(err)
	ifi, err := net.InterfaceByName(ifname)
	check(err)
	attached, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifi.Index})
	check(err)
	s, err = xdp.Open(xdp.Config{Interface: ifname, XSKMAP: sockets})
	check(err)
	return s, func() {
		check(s.Close())
		check(attached.Close())
		check(prog.Close())
		check(sockets.Close())
	}
}

// inFreshNamespace runs f in a network namespace of its own with a veth pair, and leaves nothing.
func inFreshNamespace(a, b string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		ns, err := netns.New()
		check(err)
		defer ns.Close()
		check(netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: a, MTU: 1500, TxQLen: 1000}, PeerName: b,
		}))
		for _, name := range []string{a, b} {
			ln, err := netlink.LinkByName(name)
			check(err)
			const noIPv6 = 1 // IN6_ADDR_GEN_MODE_NONE: the kernel sends no frames of its own
			check(netlink.LinkSetIP6AddrGenMode(ln, noIPv6))
			check(netlink.LinkSetUp(ln))
		}
		f()
	}()
	<-done
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
