package bpf_test

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/xdp"
)

// RoCEv2 for one address of eth0 goes to a socket; all else stays with the kernel. It needs
// CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW.
func Example() {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		log.Fatal(err)
	}
	p, err := bpf.Load(bpf.Config{Queues: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close() // also takes it off the interface

	if err := p.Add(0, netip.MustParseAddr("192.0.2.1")); err != nil { // VLAN 0: untagged
		log.Fatal(err)
	}
	if err := p.Attach(eth0.Index, bpf.Auto); err != nil {
		log.Fatal(err)
	}
	// The socket enters itself into the map. Until then its frames go on to the kernel as well.
	socket, err := xdp.Open(xdp.Config{Interface: "eth0", Queue: 0, XSKMAP: p.XSKMap()})
	if err != nil {
		log.Fatal(err)
	}
	defer socket.Close()
	a := p.Attachment()
	fmt.Printf("program %d is on %s, %v; carrier: %v\n", a.ProgramID, a.Interface, a.Mode, a.Carrier)

	// … the socket receives; see package xdp …

	stats, err := p.Stats()
	if err != nil {
		log.Fatal(err)
	}
	for verdict, frames := range stats {
		fmt.Println(bpf.Verdict(verdict), frames)
	}
}

// What may be in the way says so by its type, and its text says what to do.
func ExampleProgram_Attach() {
	p, err := bpf.Load(bpf.Config{})
	if missing := (*bpf.CapabilityError)(nil); errors.As(err, &missing) {
		log.Fatalf("run it as root, or give it %v", missing.Missing)
	} else if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	const ifindex = 2
	err = p.Attach(ifindex, bpf.Native)
	foreign := (*bpf.ForeignError)(nil)
	switch {
	case errors.As(err, &foreign) && foreign.Roxie():
		log.Fatalf("%s: process %d has it already", foreign.Interface, foreign.PID)
	case errors.As(err, &foreign):
		log.Fatalf("%s: program %q is there; it stays", foreign.Interface, foreign.Name)
	case errors.Is(err, bpf.ErrNotSupported): // the driver cannot: then in the kernel's core, slower
		err = p.Attach(ifindex, bpf.Generic)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// The verdicts are counters' labels.
func ExampleVerdict() {
	for v := range bpf.Verdict(bpf.NumVerdicts) {
		fmt.Println(v)
	}
	// Output:
	// redirected
	// not_ip
	// not_udp
	// other_port
	// fragment
	// qinq
	// other_address
	// no_socket
	// truncated
	// malformed
}
