// Package bpf steers RoCEv2 frames from a network interface to AF_XDP sockets.
//
// An XDP program looks at every frame the interface receives. UDP port 4791 to an address of the
// address table goes to the socket of the queue the frame arrived on; everything else goes on to
// the kernel's stack as if nothing were there:
//
//	frame ─▶ Ethernet ─▶ [802.1Q] ─▶ IPv4 | IPv6 ─▶ UDP 4791 ─▶ (VLAN, address) ─▶ socket[queue]
//	           │           │           │               │             │                 │
//	           └───────────┴───────────┴───────────────┴─────────────┴─────────────────┘
//	                                no: on to the kernel's stack
//
// The program never drops and never changes a frame. It takes one 802.1Q tag at most (VLAN 0, a
// priority tag, is the same as no tag), IPv4 with options, IPv6 without extension headers, no
// fragments. Counters say how often each verdict was reached. A NIC with receive VLAN offload hides
// the tag from the program, so that a tagged frame looks untagged: turn it off where VLANs matter.
//
// [Load] makes the program and its maps, [Program.Attach] hangs it on an interface by a bpf_link,
// which goes away with the process, however that ends; no file system (/sys/fs/bpf) is needed. A
// program of somebody else on the interface is never replaced.
//
// The package knows one thing about RoCE, the UDP port. It opens no sockets: these enter
// themselves in [Program.XSKMap]. It needs Linux 5.18 (multi-buffer XDP) or later, CAP_BPF and
// CAP_NET_ADMIN.
package bpf
