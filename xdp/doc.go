// Package xdp gives Go programs AF_XDP sockets: Ethernet frames straight between a network
// interface's queue and user memory, past the kernel's network stack, without allocation or copy
// on our side.
//
// # Rings and frames
//
// A Socket is bound to one queue of one interface. Its packet memory (UMEM) is cut into chunks of
// 4096 or 2048 bytes. Each chunk has exactly one owner at any time, and goes round in one of two
// circles:
//
//	           receive chunks (Config.FillDepth)            transmit chunks (Config.TXFrames)
//
//	  ┌────────────── fill ring ◄─────────────┐      ┌───────── free stack ◄────────────┐
//	  │                                       │      │                                  │
//	  ▼                                       │      ▼ Reserve                          │ Reap
//	kernel                                 Release  caller writes a frame          completion
//	  │                                       ▲      │                                ring
//	  │ frame arrives                         │      ▼ Submit                           ▲
//	  └──► RX ring ──► Receive ──► caller ────┘     TX ring ──► Kick ──► kernel sends ──┘
//	                               reads Packet
//
// The rings are shared memory with one writer and one reader each; only Kick and Wait make system
// calls (and Receive where a driver asks for it). A loop that serves both directions looks like
// this:
//
//	for {
//		n := s.Receive(32)
//		for i := range n {
//			head, tail, _ := s.Packet(i) // look, but do not keep
//			...
//			if head, tail, ok := s.Reserve(); ok {
//				... // write an answer of size bytes, first into head, the rest into tail
//				s.Submit(size)
//			}
//		}
//		s.Release()
//		s.Kick() // one system call for all answers
//		if n == 0 && s.InFlight() == 0 {
//			s.Wait(100 * time.Millisecond)
//		}
//	}
//
// A frame longer than one chunk holds needs Config.SG and comes in several parts: on receive at
// most 3840 bytes a part (1792 with small chunks), cut anywhere; on sending Config.TXHead bytes
// and then chunks. Two parts, which is up to 7680 bytes, come without a further call; Part and
// ReserveParts reach the others.
//
// # Losing nothing
//
// AF_XDP reports a full device queue in two ways. EAGAIN leaves the descriptors in the ring: Kick
// returns KickAgain and continues next time. EBUSY means that the driver dropped one frame: Kick
// counts it and goes on. Config.InFlight caps the frames sent and not completed, below what a veth
// pair can hold, so that none is dropped there on the way out. The receiver drops what arrives
// while all its chunks are in use; Stats shows it. A window in the protocol above must bound that.
//
// # What it does not do
//
// It loads no XDP program: that is the job of cilium/ebpf (see the example) or of this module's
// package bpf. It takes the program's XSKMAP and enters the socket, at the queue's index. It knows
// no protocol above Ethernet, does not spread work over queues (open a Socket for each queue), and
// starts no goroutine. Unaligned chunks, TX metadata and several sockets on one queue are not
// offered.
//
// tcpdump sees nothing of what an AF_XDP socket receives or sends.
//
// # Rights and kernels
//
// Open needs CAP_NET_RAW, unless it gets an opened socket, and enough locked memory (CAP_IPC_LOCK
// or RLIMIT_MEMLOCK). Linux 5.4 is the least, Config.SG wants 6.6. Before 6.18 and its stable
// back-ports, copy mode could report frames as completed too early when a device finishes them out
// of order; take a kernel with that fix where frames must not be torn.
//
// A build with the tag xdpdebug checks the owner of every chunk at each step, panics at the first
// one in two places, and overwrites what is given back.
package xdp
