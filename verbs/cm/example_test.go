package cm_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// two opens two devices that are joined in memory, with a manager each.
func two() (devs [2]*verbs.Context, ms [2]*cm.Manager) {
	la, lb := verbs.NewLinkPair(1)
	for i, l := range [][]verbs.Link{la, lb} {
		own, peer := byte(i+1), byte(2-i)
		devs[i], _ = verbs.OpenLinks(l, verbs.PortInfo{Name: "mem", MAC: wire.MAC{2, 0, 0, 0, 0, own},
			Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, own}), 24)},
			Neighbours: map[netip.Addr]wire.MAC{netip.AddrFrom4([4]byte{10, 0, 0, peer}): {2, 0, 0, 0, 0,
				peer}}}, nil)
		ms[i], _ = cm.New(devs[i], nil)
	}
	return devs, ms
}

// A client and a server, told by events what to do next.
func ExampleEventChannel() {
	devs, ms := two()
	var chans [2]*cm.EventChannel
	for i := range chans {
		defer devs[i].Close()
		defer ms[i].Close()
		chans[i], _ = ms[i].CreateEventChannel()
	}
	attach := func(i int, id *cm.ID) { // a QP, to which receives may be posted now
		pd, _ := devs[i].AllocPD()
		cq, _ := devs[i].CreateCQ(16)
		_, _ = id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	}
	listener, _ := chans[1].CreateID(rcm.PortSpaceTCP, nil)
	_ = listener.Bind(netip.MustParseAddrPort("10.0.0.2:7174"))
	_ = listener.Listen(0)
	client, _ := chans[0].CreateID(rcm.PortSpaceTCP, nil)
	_ = client.ResolveAddr(netip.MustParseAddrPort("10.0.0.2:7174"), time.Second)

	step := func(i int, who string) *cm.Event {
		ev, err := chans[i].Get(context.Background())
		if err != nil {
			panic(err)
		}
		fmt.Println(who, ev.Type)
		ev.Ack()
		return ev
	}
	step(0, "client")
	_ = client.ResolveRoute(time.Second)
	step(0, "client")
	attach(0, client)
	_ = client.Connect(&cm.Params{Private: []byte("hello")})

	req := step(1, "server")
	fmt.Printf("it says %q\n", req.Private[:5])
	attach(1, req.ID)
	_ = req.ID.Accept(nil)
	step(0, "client")
	step(1, "server")
	_ = client.Disconnect()
	step(1, "server")
	_ = req.ID.Disconnect()
	step(0, "client")
	for _, id := range []*cm.ID{client, req.ID, listener} {
		_ = id.Destroy()
	}
	// Output:
	// client ADDR_RESOLVED
	// client ROUTE_RESOLVED
	// server CONNECT_REQUEST
	// it says "hello"
	// client ESTABLISHED
	// server ESTABLISHED
	// server DISCONNECTED
	// client DISCONNECTED
}
