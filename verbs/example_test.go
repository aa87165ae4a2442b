package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// endpoint is one end of a conversation: memory, a completion queue and a queue pair.
type endpoint struct {
	device *verbs.Context
	memory *verbs.MR
	cq     *verbs.CQ
	qp     *verbs.QP
	psn    verbs.PSN
}

func newEndpoint(device *verbs.Context) (*endpoint, error) {
	pd, err := device.AllocPD()
	if err != nil {
		return nil, err
	}
	memory, err := pd.AllocMR(4096, verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	cq, err := device.CreateCQ(16)
	if err != nil {
		return nil, err
	}
	qp, err := device.CreateQP(pd, &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4},
	})
	if err != nil {
		return nil, err
	}
	return &endpoint{device, memory, cq, qp, verbs.RandomPSN()}, nil
}

// info is what the other end must know. Real programs send it over TCP.
func (e *endpoint) info() verbs.ConnInfo {
	gid, err := e.device.GID(0)
	if err != nil {
		log.Fatal(err)
	}
	return verbs.ConnInfo{QPN: e.qp.Num(), PSN: e.psn, GID: gid}
}

// completion waits for the next completion.
func (e *endpoint) completion() (verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := e.cq.Wait(ctx); err != nil {
		return verbs.WC{}, err
	}
	var wc [1]verbs.WC
	_, err := e.cq.Poll(wc[:])
	if err == nil && wc[0].Status != verbs.WCSuccess {
		err = fmt.Errorf("%v: %v", wc[0].Status, wc[0].VendorErr)
	}
	return wc[0], err
}

// Two endpoints exchange a message. They are joined in memory here; on real interfaces, each calls
// verbs.Open("eth0", nil) instead of openPair.
func Example() {
	clientDevice, serverDevice := openPair()
	defer clientDevice.Close()
	defer serverDevice.Close()
	client, err := newEndpoint(clientDevice)
	if err != nil {
		log.Fatal(err)
	}
	server, err := newEndpoint(serverDevice)
	if err != nil {
		log.Fatal(err)
	}

	// Connect.
	if err := client.qp.ConnectRC(client.psn, server.info(), verbs.ConnOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := server.qp.ConnectRC(server.psn, client.info(), verbs.ConnOptions{}); err != nil {
		log.Fatal(err)
	}

	// The server says where a message may go, the client sends one.
	err = server.qp.PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{server.memory.SGE(0, 4096)}})
	if err != nil {
		log.Fatal(err)
	}
	n := copy(client.memory.Bytes(), "hello over RDMA")
	err = client.qp.PostSend(&verbs.SendWR{
		WRID: 2, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{client.memory.SGE(0, n)},
	})
	if err != nil {
		log.Fatal(err)
	}

	received, err := server.completion()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("server: %v of %d bytes: %q\n", received.Opcode, received.ByteLen,
		server.memory.Bytes()[:received.ByteLen])
	sent, err := client.completion()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("client: %v of work request %d: %v\n", sent.Opcode, sent.WRID, sent.Status)
	// Output:
	// server: RECV of 15 bytes: "hello over RDMA"
	// client: SEND of work request 2: success
}

// openPair opens two devices on one wire in memory.
func openPair() (a, b *verbs.Context) {
	linkA, linkB := verbs.NewLinkPair(1)
	macA, macB := wire.MAC{2, 0, 0, 0, 0, 1}, wire.MAC{2, 0, 0, 0, 0, 2}
	addrA, addrB := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")
	a, err := verbs.OpenLinks(linkA, verbs.PortInfo{Name: "a", MAC: macA,
		Addrs: []netip.Prefix{addrA}, Neighbours: map[netip.Addr]wire.MAC{addrB.Addr(): macB}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	b, err = verbs.OpenLinks(linkB, verbs.PortInfo{Name: "b", MAC: macB,
		Addrs: []netip.Prefix{addrB}, Neighbours: map[netip.Addr]wire.MAC{addrA.Addr(): macA}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	return a, b
}
