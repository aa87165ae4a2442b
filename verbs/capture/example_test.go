package capture_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/capture"
	"github.com/roxie-rdma/roxie/verbs/observe"
	"github.com/roxie-rdma/roxie/verbs/verbstest"
)

// A device sends a message while it is captured; then the file is read again. On a real interface
// the device comes from verbs.Open, and the file is an os.File for Wireshark.
func ExampleStart() {
	n := must(verbstest.New(verbstest.Config{}))
	defer n.Close()
	from, client := newEnd(n.Device(0))
	to, server := newEnd(n.Device(1))
	must(0, from.qp.ConnectRC(client.PSN, server, verbs.ConnOptions{}))
	must(0, to.qp.ConnectRC(server.PSN, client, verbs.ConnOptions{}))

	var file bytes.Buffer
	c := must(capture.Start(&file, capture.Config{Filter: "opcode send or opcode ack"}, n.Device(0)))
	must(0, to.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{to.mr.SGE(0, 64)}}))
	must(0, from.qp.PostSend(&verbs.SendWR{WRID: 42, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{from.mr.SGE(0, 5)}}))
	fmt.Println(from.take().Status)
	stats := must(c.Stop())
	fmt.Println(stats.Written, "packets,", stats.Lost, "lost")

	r := must(pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions))
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		must(0, err)
		var p wire.Packet
		wire.Parse(wire.Frame{Head: frame}, &p)
		fmt.Println(p.Op, p.PayloadLen, "bytes")
	}
	// Output:
	// success
	// 2 packets, 0 lost
	// RC_SEND_ONLY 5 bytes
	// RC_ACKNOWLEDGE 0 bytes
}

// A ring keeps the last seconds, and writes them when a QP fails: here because its peer has gone.
func ExampleConfig_ring() {
	n := must(verbstest.New(verbstest.Config{}))
	defer n.Close()
	from, client := newEnd(n.Device(0))
	_, server := newEnd(n.Device(1))
	must(0, from.qp.ConnectRC(client.PSN, server, verbs.ConnOptions{Timeout: 10, RetryCnt: 2}))
	n.Partition(0, 1, true)

	var file bytes.Buffer
	c := must(capture.Start(&file, capture.Config{Ring: time.Minute}, n.Device(0)))
	must(0, from.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{from.mr.SGE(0, 5)}}))
	fmt.Println(from.take().Status)
	<-c.Done()
	stats := must(c.Stop())
	_, why, _ := strings.Cut(stats.Trigger, "failed")
	fmt.Println("written because the QP failed" + why)
	// Output:
	// transport retry counter exceeded
	// written because the QP failed: no answer within the ACK timeout
}

// A filter is parsed once and asked about any number of frames.
func ExampleParseFilter() {
	for _, text := range []string{"opcode read and host 10.77.0.1", "not dropped", "in out"} {
		_, err := capture.ParseFilter(text)
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// <nil>
	// filter "in out": "out" is too much: join tests with `and` or `or`
}

// A program offers captures of its devices on a control socket, and another one, as `roxie capture`
// is, takes the next two packets.
func ExampleHub() {
	n := must(verbstest.New(verbstest.Config{}))
	defer n.Close()
	from, client := newEnd(n.Device(0))
	to, server := newEnd(n.Device(1))
	must(0, from.qp.ConnectRC(client.PSN, server, verbs.ConnOptions{}))
	must(0, to.qp.ConnectRC(server.PSN, client, verbs.ConnOptions{}))

	dir := must(os.MkdirTemp("", "hub"))
	defer os.RemoveAll(dir)
	control := must(observe.Serve(filepath.Join(dir, "control.sock"), n.Device(0)))
	defer control.Close()
	hub := new(capture.Hub)
	defer hub.Close()
	hub.Attach(n.Device(0))
	control.Handle("/capture", http.StripPrefix("/capture", hub))
	control.Handle("/capture/", http.StripPrefix("/capture", hub))

	// The other program: all it knows is the path of the socket.
	ctx := context.Background()
	other := capture.Client{HTTP: observe.Dial(control.Path()), URL: observe.Base + "/capture"}
	stream := must(other.Start(ctx, capture.Config{Count: 2}, "")) // of any interface
	defer stream.Close()

	must(0, to.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{to.mr.SGE(0, 64)}}))
	must(0, from.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{from.mr.SGE(0, 5)}}))
	from.take()
	file := must(io.ReadAll(stream))
	fmt.Println(len(file) > 0, must(stream.Stats()).Written)
	// Output:
	// true 2
}
