package wire_test

import (
	"fmt"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// A SEND of 5 bytes is built and taken apart again.
func Example() {
	path := wire.Path{
		SrcMAC: wire.MAC{2, 0, 0, 0, 0, 1}, DstMAC: wire.MAC{2, 0, 0, 0, 0, 2}, VLAN: -1,
		Src:      wire.GIDFromIPv4([4]byte{10, 0, 0, 1}),
		Dst:      wire.GIDFromIPv4([4]byte{10, 0, 0, 2}),
		HopLimit: 64, SrcPort: wire.SourcePort(wire.FlowLabel(0x11, 0x12)),
	}
	var t wire.Template // one per QP
	t.Init(&path, 0x12, 0xffff)

	buf := make([]byte, 2048)
	bth := (*wire.BTH)(t.Begin(buf, wire.RCSendOnly))
	bth.SetPSN(0x100)
	bth.SetAckReq(true)
	n := copy(buf[t.HeaderLen(wire.RCSendOnly):], "hello")
	frame := wire.Frame{Head: buf[:t.Finish(wire.Frame{Head: buf}, wire.RCSendOnly, n)]}

	p := new(wire.Packet) // one per shard
	if r := wire.Parse(frame, p); r != wire.ReasonOK {
		fmt.Println("dropped:", r)
		return
	}
	fmt.Println(p)
	fmt.Printf("%s%s\n", p.Data0, p.Data1)
	// Output:
	// RC_SEND_ONLY qpn=0x000012 psn=0x000100 flags=ackreq len=5 pad=3
	// hello
}
