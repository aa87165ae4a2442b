package hostile

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/rxe"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// replay: every packet of a connection that is over, its request for a connection among them, comes
// again, three times.
func replay(t *testing.T, r *rig) {
	var frames [][]byte
	skip := r.server.qp.Num()
	record := func(f func(head, tail []byte)) {
		r.mu.Lock()
		r.recorded = f
		r.mu.Unlock()
	}
	record(func(head, tail []byte) {
		b := append(bytes.Clone(head), tail...)
		var p wire.Packet
		if wire.Parse(wire.Frame{Head: b}, &p) == wire.ReasonOK && p.DestQP != skip {
			frames = append(frames, b)
		}
	})
	server, client := r.connect()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range 10 {
		must(t, client.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite,
			SGList:     []verbs.SGE{client.mem.SGE(0, 9000)},
			RemoteAddr: server.mem.Addr(), RKey: server.mem.RKey()}))
		_, err := client.wait(ctx)
		must(t, err)
	}
	must(t, client.conn.Disconnect(ctx))
	<-server.conn.Done()
	record(nil)
	must(t, server.qp.Destroy())
	clear(server.mem.Bytes())
	before, seen := r.ma.Stats(), r.requests.Load()
	_, by := r.counted(func() {
		for range 3 {
			r.send(frames...)
		}
	})
	data, mads := uint64(0), uint64(0)
	for _, f := range frames {
		if f[42] == byte(wire.UDSendOnly) {
			mads++
		} else {
			data++
		}
	}
	if data < 30 || mads < 3 || by[rxe.ReasonNoQP] != 3*data {
		t.Errorf("%d packets of data and %d messages of the manager came thrice; dropped: %v", data, mads,
			by)
	}
	if bytes.ContainsFunc(server.mem.Bytes(), func(c rune) bool { return c != 0 }) {
		t.Error("memory of the old connection was written")
	}
	r.until("the manager to see the messages", func() bool {
		return received(r.ma.Stats()) >= received(before)+3*mads
	})
	after := r.ma.Stats()
	if n := after.Sent[rcm.AttrREP.Index()] - before.Sent[rcm.AttrREP.Index()]; n > 0 ||
		r.requests.Load() != seen {
		t.Errorf("an old request was answered with %d REPs, and told to the application", n)
	}
	if n := after.Sent[rcm.AttrREJ.Index()] - before.Sent[rcm.AttrREJ.Index()]; n < 3 {
		t.Errorf("%d REJs", n)
	}
}

// received is how many messages a manager has looked at.
func received(s rcm.Stats) (n uint64) {
	for _, c := range s.Received {
		n += c
	}
	return n
}

// until waits for a condition.
func (r *rig) until(what string, f func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// mad is a message to A's manager.
func (r *rig) mad(src netip.Addr, msg rcm.Message) []byte {
	m := rcm.Encode(rand.Uint64(), msg)
	b := r.frame(from{src: src, qpn: 1}, wire.UDSendOnly, len(m), nil)
	p := wire.Path{SrcMAC: wire.MAC(r.lab.B.MAC), DstMAC: wire.MAC(r.lab.A.MAC), VLAN: -1,
		Src: src.As16(), Dst: r.lab.A.IPv4.As16(), HopLimit: 64, SrcPort: 0xc123}
	var tmpl wire.Template
	tmpl.Init(&p, 1, 0xffff)
	hdr := tmpl.Begin(b[:cap(b)], wire.UDSendOnly)
	deth := (*wire.DETH)(hdr[12:])
	deth.SetQKey(rcm.GSIQKey)
	deth.SetSrcQP(1)
	copy(b[tmpl.HeaderLen(wire.UDSendOnly):], m[:])
	return b[:tmpl.Finish(wire.Frame{Head: b}, wire.UDSendOnly, len(m))]
}

// departures: goodbyes and rejections for the connection under load, from its peer's address, of
// whoever has to guess its communication ids.
func departures(t *testing.T, r *rig) {
	var frames [][]byte
	peer := r.lab.B.IPv4
	for range 200 {
		l, m := rand.Uint32(), rand.Uint32()
		for _, msg := range []rcm.Message{
			&rcm.DREQ{LocalID: l, RemoteID: m, QPN: r.server.qp.Num()}, &rcm.DREP{LocalID: l, RemoteID: m},
			&rcm.REJ{LocalID: l, RemoteID: m, Message: rcm.KindOther, Reason: rcm.ReasonStaleConn},
			&rcm.RTU{LocalID: l, RemoteID: m}, &rcm.MRA{LocalID: l, RemoteID: m},
		} {
			frames = append(frames, r.mad(peer, msg))
		}
	}
	before := r.ma.Stats()
	for at := 0; at < len(frames); at += burst { // as fast as the manager takes them
		r.send(frames[at:min(at+burst, len(frames))]...)
		r.until("the manager", func() bool {
			return received(r.ma.Stats()) >= received(before)+uint64(min(at+burst, len(frames)))
		})
	}
	after := r.ma.Stats()
	n := after.Drops[rcm.DropUnknownID] - before.Drops[rcm.DropUnknownID]
	if n != uint64(len(frames)) {
		t.Errorf("of %d messages %d were for unknown connections", len(frames), n)
	}
	if r.server.conn.Err() != nil || r.client.conn.Err() != nil {
		t.Errorf("the connection has ended: %v, %v", r.server.conn.Err(), r.client.conn.Err())
	}
}

// request is a request for a connection that will never be confirmed.
func (r *rig) request(src netip.Addr) []byte {
	q := &rcm.REQ{LocalID: rand.Uint32(), Service: rcm.Service(rcm.PortSpaceTCP, port),
		CAGUID: rand.Uint64(), QPN: wire.QPN(rand.Uint32() & 0xffffff), MTU: 3, PKey: 0xffff,
		RemoteTimeout: 20, LocalTimeout: 20, MaxRetries: 15, RetryCount: 7, RNRRetry: 7,
		Primary: rcm.PathRecord{Local: src.As16(), Remote: r.lab.A.IPv4.As16(), HopLimit: 64,
			AckTimeout: 15}}
	q.Private[1] = 4 << 4
	return r.mad(src, q)
}

// nobodies: a flood of requests from addresses of the link that no host has. They wait for an answer
// to ARP where they are in nobody's way: the state machine and the application hear of none, and a
// client gets in.
func nobodies(t *testing.T, r *rig) {
	before, seen := r.ma.Stats(), r.requests.Load()
	var frames [][]byte
	for i := range 2000 {
		frames = append(frames, r.request(netip.AddrFrom4([4]byte{10, 77, 0, byte(50 + i%200)})))
	}
	r.send(frames...)
	server, client := r.connect()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, client.conn.Disconnect(ctx))
	<-server.conn.Done()
	reqs := r.ma.Stats().Received[rcm.AttrREQ.Index()] - before.Received[rcm.AttrREQ.Index()]
	if n := r.requests.Load() - seen; n != 0 || reqs > 16 { // the client's, again if it had to wait
		t.Errorf("of %d requests %d were told to the application; the machine has seen %d", len(frames), n,
			reqs)
	}
}

// requests: floods of requests for connections, from one address and from many, behind a gateway that
// is there. They fill what is there for half-open connections, and nothing more; when the application
// has turned them down, a client gets in.
func requests(t *testing.T, r *rig) {
	const one, hosts = 300, 40 // requests of the first address, and how many others send perPeer each
	const perPeer, inAll = 128, 4096
	route := exec.Command("ip", "route", "add", "10.99.0.0/16", "via", r.lab.B.IPv4.String())
	must(t, r.lab.A.Start(route))
	must(t, route.Wait())
	before := r.ma.Stats()
	flood := func(src netip.Addr, n int) {
		var frames [][]byte
		for range n {
			frames = append(frames, r.request(src))
		}
		seen := received(r.ma.Stats())
		for at := 0; at < n; at += burst {
			to := min(at+burst, n)
			r.send(frames[at:to]...)
			r.until("the manager", func() bool { return received(r.ma.Stats()) >= seen+uint64(to) })
		}
	}
	drops := func(d rcm.Drop) uint64 { return r.ma.Stats().Drops[d] - before.Drops[d] }
	flood(netip.MustParseAddr("10.99.0.1"), one)
	if n := drops(rcm.DropHalfOpenPeer); n != one-perPeer {
		t.Errorf("of %d requests of one address %d were dropped, want %d", one, n, one-perPeer)
	}
	for i := range hosts {
		flood(netip.AddrFrom4([4]byte{10, 99, 0, byte(100 + i)}), perPeer)
	}
	if n := drops(rcm.DropHalfOpen); n != (hosts+1)*perPeer-inAll {
		t.Errorf("of %d requests %d were dropped, %d have room", (hosts+1)*perPeer, n, inAll)
	}
	server, client := r.connect()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, client.conn.Disconnect(ctx))
	<-server.conn.Done()
}
