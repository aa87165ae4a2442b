// Package starter keeps the few rights that an endpoint needs in a process of its own.
//
// The worker, which handles every byte from the network, has no capability. What takes one, a
// steering program on an interface and AF_XDP sockets, comes to it as open files by a Unix socket
// pair (SCM_RIGHTS):
//
//	starter: CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF          worker: nothing
//	   │  lookup(name): only what is configured              │
//	   │ ◀───────────────── {"open": "eth0"} ─────────────── │  interface is there, or is back
//	   │ ── {"name": "eth0", …} + link, maps, sockets ─────▶ │  verbs.Open
//
// Or there is no process for it: Leave puts everything into the socket once, before the rights go
// (package privs), and a Client finds it there. Then an interface that is made anew stays closed.
//
// A worker that has been taken over can ask for the configured interfaces with the configured
// queues, and for nothing else: no name, number, program or address that it sends is used. One
// message is one packet of the socket, at most MaxMessage bytes; what does not parse ends the talk.
package starter
