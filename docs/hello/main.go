// Hello writes a text into another process's memory, by RDMA:
//
//	hello IF              lend memory on an interface, and print what is written into it
//	hello IF ADDR TEXT    write into the memory of the hello at an address
//
// docs/tutorial.md goes through it.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"
	"os"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

const port = 7777

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 && len(os.Args) != 4 {
		log.Fatal("usage: hello IF [ADDR TEXT]")
	}
	device := must(verbs.Open(os.Args[1], nil)) // the interface becomes an RDMA device
	defer device.Close()
	manager := must(cm.New(device, nil)) // RDMA-CM: connects by address and port
	defer manager.Close()

	pd := must(device.AllocPD())                                     // protection domain
	mr := must(pd.AllocMR(4096, verbs.LocalWrite|verbs.RemoteWrite)) // memory
	cq := must(device.CreateCQ(16))                                  // completions
	qp := must(device.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, // a queue pair
		SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))
	if len(os.Args) == 2 {
		serve(manager, mr, cq, qp)
	} else {
		write(manager, mr, cq, qp, netip.MustParseAddr(os.Args[2]), os.Args[3])
	}
}

// serve lends mr to the first client, and waits until it has been written to.
func serve(manager *cm.Manager, mr *verbs.MR, cq *verbs.CQ, qp *verbs.QP) {
	listener := must(manager.Listen(port, nil))
	fmt.Println("waiting for a client on port", port)
	request := must(listener.Accept(context.Background()))

	check(cm.Prepare(qp, 0))
	check(qp.PostRecv(&verbs.RecvWR{})) // a WRITE with an immediate takes a receive
	lent := binary.BigEndian.AppendUint64(nil, mr.Addr())
	lent = binary.BigEndian.AppendUint32(lent, uint32(mr.RKey()))
	conn := must(request.Accept(context.Background(), qp, &cm.Params{Private: lent}))

	wc := wait(cq)
	fmt.Printf("%v wrote %q\n", conn.RemoteAddr().Addr(), mr.Bytes()[:wc.Imm])
	<-conn.Done() // the client hangs up
}

// write puts text where the server at addr has said, without the server's doing anything.
func write(manager *cm.Manager, mr *verbs.MR, cq *verbs.CQ, qp *verbs.QP, addr netip.Addr, text string) {
	ctx := context.Background()
	conn := must(manager.Dial(ctx, netip.AddrPortFrom(addr, port), qp, nil))
	lent := conn.Private()

	n := copy(mr.Bytes(), text)
	check(qp.PostSend(&verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(n),
		SGList:     []verbs.SGE{mr.SGE(0, n)},
		RemoteAddr: binary.BigEndian.Uint64(lent), RKey: verbs.Key(binary.BigEndian.Uint32(lent[8:])),
	}))
	fmt.Println(wait(cq).Opcode, "of", n, "bytes: success")
	check(conn.Disconnect(ctx))
}

// wait returns the next completion, which must be a good one.
func wait(cq *verbs.CQ) verbs.WC {
	var wc [1]verbs.WC
	for must(cq.Poll(wc[:])) == 0 {
		check(cq.Wait(context.Background()))
	}
	if wc[0].Status != verbs.WCSuccess {
		log.Fatalf("%v: %v", wc[0].Status, wc[0].VendorErr)
	}
	return wc[0]
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
