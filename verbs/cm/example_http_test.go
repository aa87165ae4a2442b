package cm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// open makes a device with a manager; here on a wire in memory, with verbs.Open on an interface.
func open(links []verbs.Link, own, peer byte) (*verbs.Context, *cm.Manager) {
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	dev, err := verbs.OpenLinks(links, verbs.PortInfo{Name: "mem", MAC: wire.MAC{2, 5: own},
		Addrs:      []netip.Prefix{netip.PrefixFrom(addr(own), 24)},
		Neighbours: map[netip.Addr]wire.MAC{addr(peer): {2, 5: peer}}}, nil)
	if err != nil {
		panic(err)
	}
	m, err := cm.New(dev, nil)
	if err != nil {
		panic(err)
	}
	return dev, m
}

// net/http over RDMA: the server's listener and the client's dialer are the only difference.
func ExampleManager_DialStream() {
	a, b := verbs.NewLinkPair(1)
	devA, server := open(a, 1, 2)
	defer devA.Close()
	defer server.Close()
	devB, client := open(b, 2, 1)
	defer devB.Close()
	defer client.Close()

	l, err := server.ListenStream(80, nil)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello by %s", r.Context().Value(http.LocalAddrContextKey).(net.Addr).Network())
	}))

	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			to, err := netip.ParseAddrPort(addr)
			if err != nil {
				return nil, err
			}
			return client.DialStream(ctx, to, nil)
		}}}
	r, err := c.Get("http://192.0.2.1/")
	if err != nil {
		panic(err)
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	fmt.Println(r.Status, string(text))
	// Output: 200 OK hello by rdma
}
