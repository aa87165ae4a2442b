package hostile

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

const (
	patience = 30 * time.Second
	port     = 7174
	memory   = 1 << 16
	backlog  = 8192
)

// end is one end of a connection.
type end struct {
	t    testing.TB
	dev  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	mem  *verbs.MR
	conn *cm.Conn
}

func newEnd(t testing.TB, dev *verbs.Context) *end {
	t.Helper()
	e := &end{t: t, dev: dev}
	var err error
	e.pd, err = dev.AllocPD()
	must(t, err)
	e.cq, err = dev.CreateCQ(256)
	must(t, err)
	e.mem, err = e.pd.AllocMR(memory,
		verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic)
	must(t, err)
	e.qp, err = dev.CreateQP(e.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		SigAll: true,
		Cap:    verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
	must(t, err)
	return e
}

// wait polls until a completion has come, which must be good.
func (e *end) wait(ctx context.Context) (wc [1]verbs.WC, err error) {
	for n := 0; n == 0; {
		if err = e.cq.Wait(ctx); err == nil {
			n, err = e.cq.Poll(wc[:])
		}
		if err != nil {
			return wc, err
		}
	}
	if wc[0].Status != verbs.WCSuccess {
		err = fmt.Errorf("%v completes with %v (%v)", wc[0].Opcode, wc[0].Status, wc[0].VendorErr)
	}
	return wc, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is the two endpoints, a connection under load, and the attacker's socket.
type rig struct {
	t        *testing.T
	lab      *nettest.Lab
	a, b     *verbs.Context
	ma, mb   *cm.Manager
	listener *cm.Listener
	server   *end // of the load, at A
	client   *end // at B
	moved    atomic.Uint64
	requests atomic.Uint64 // seen by the application at A
	raw      int
	ifindex  int
	marks    uint64
	recorded func(head, tail []byte)
	mu       sync.Mutex // of recorded
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, lab: nettest.New(t, nettest.Config{MTU: 4200})}
	r.a = r.open(r.lab.A, verbs.Config{})
	r.b = r.open(r.lab.B, verbs.Config{Capture: func(d verbs.Direction, _ int, _ time.Time, head,
		tail []byte) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if d == verbs.Outbound && r.recorded != nil {
			r.recorded(head, tail)
		}
	}})
	var err error
	r.ma, err = cm.New(r.a, nil)
	must(t, err)
	r.mb, err = cm.New(r.b, nil)
	must(t, err)
	t.Cleanup(func() {
		must(t, r.mb.Close())
		must(t, r.ma.Close())
	})
	r.listener, err = r.ma.Listen(port, &cm.ListenConfig{Backlog: backlog})
	must(t, err)
	must(t, r.lab.B.DoErr(func() error {
		r.raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(r.raw) })
	r.ifindex = r.lab.B.Ifindex
	r.server, r.client = r.connect()
	return r
}

func (r *rig) open(n *lab.Namespace, cfg verbs.Config) (dev *verbs.Context) {
	r.t.Helper()
	must(r.t, n.DoErr(func() (err error) {
		dev, err = verbs.Open(n.Interface, &cfg)
		return err
	}))
	r.t.Cleanup(func() { must(r.t, dev.Close()) })
	return dev
}

// connect makes a connection from B to A. Requests of others are rejected, and counted.
func (r *rig) connect() (server, client *end) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	server, client = newEnd(r.t, r.a), newEnd(r.t, r.b)
	accepted := make(chan error, 1)
	go func() { accepted <- r.accept(ctx, server) }()
	var err error
	client.conn, err = r.mb.Dial(ctx, netip.AddrPortFrom(r.lab.A.IPv4, port), client.qp, nil)
	must(r.t, err)
	must(r.t, <-accepted)
	return server, client
}

func (r *rig) accept(ctx context.Context, e *end) error {
	for {
		q, err := r.listener.Accept(ctx)
		if err != nil {
			return err
		}
		if q.RemoteAddr().Addr() == r.lab.B.IPv4 {
			e.conn, err = q.Accept(ctx, e.qp, nil)
			return err
		}
		r.requests.Add(1)
		_ = q.Reject(nil) // may have timed out
	}
}

// load moves data until ctx ends: a SEND of up to 20000 bytes to A, where it is compared, and a
// READ of the same back.
func (r *rig) load(ctx context.Context) error {
	out, in := r.client.mem.Bytes(), r.server.mem.Bytes()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
	defer cancel()
	for i := uint64(1); ctx.Err() == nil; i++ {
		n := int(i*7919%20000) + 1
		for j := range n {
			out[j] = byte(uint64(j)*i>>3 + i)
		}
		if err := r.server.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{r.server.mem.SGE(0,
			n)}}); err != nil {
			return err
		}
		if err := r.client.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend,
			SGList: []verbs.SGE{r.client.mem.SGE(0, n)}}); err != nil {
			return err
		}
		if wc, err := r.server.wait(bounded); err != nil || int(wc[0].ByteLen) != n {
			return fmt.Errorf("message %d of %d bytes: %d came, %w", i, n, wc[0].ByteLen, err)
		}
		if _, err := r.client.wait(bounded); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if !bytes.Equal(in[:n], out[:n]) {
			return fmt.Errorf("message %d differs", i)
		}
		back := out[memory/2:][:n]
		clear(back)
		if err := r.client.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMARead,
			SGList:     []verbs.SGE{r.client.mem.SGE(memory/2, n)},
			RemoteAddr: r.server.mem.Addr(), RKey: r.server.mem.RKey()}); err != nil {
			return err
		}
		if _, err := r.client.wait(bounded); err != nil {
			return fmt.Errorf("READ %d: %w", i, err)
		}
		if !bytes.Equal(back, out[:n]) {
			return fmt.Errorf("READ %d differs", i)
		}
		r.moved.Add(1)
	}
	return nil
}

// burst is how many frames the attacker sends before he waits until they have been looked at. With
// what the load has on its way they fit the ring, so that none of either is lost.
const burst = 32

// send sends frames, in bursts; each burst ends with a mark.
func (r *rig) send(frames ...[]byte) {
	r.t.Helper()
	to := &unix.SockaddrLinklayer{Ifindex: r.ifindex}
	for part := range slices.Chunk(frames, burst) {
		for _, f := range part {
			must(r.t, unix.Sendto(r.raw, f, 0, to))
		}
		r.mark(to)
	}
}

// nobody is a QPN that no QP has.
const nobody = 0xabcdef

// mark sends a datagram to a group that nobody has joined, and waits until A has counted it: all frames
// before it have been looked at. No step sends others of that kind.
func (r *rig) mark(to unix.Sockaddr) {
	r.t.Helper()
	before := r.drops(rxe.ReasonNoGroup)
	must(r.t, unix.Sendto(r.raw, r.frame(from{qpn: rxe.QPNMulti}, wire.UDSendOnly, 0, nil), 0, to))
	r.marks++
	for end := time.Now().Add(patience); r.drops(rxe.ReasonNoGroup) == before; {
		if time.Now().After(end) {
			r.t.Fatal("A does not look at frames any more")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (r *rig) drops(why rxe.Reason) uint64 { return r.a.Stats().Total.Drops[why] }

// from says whom a frame seems to come from, and whom it is for.
type from struct {
	src  netip.Addr // not valid: B's own
	qpn  verbs.QPN
	pkey uint16 // 0: the right one
	mac  wire.MAC
}

// frame makes a well-sealed frame to A; change, if not nil, is given the BTH and what follows to
// the payload, before it is sealed.
func (r *rig) frame(s from, op wire.Opcode, payload int, change func(hdr []byte)) []byte {
	p := wire.Path{SrcMAC: wire.MAC(r.lab.B.MAC), DstMAC: wire.MAC(r.lab.A.MAC), VLAN: -1,
		Src: r.lab.B.IPv4.As16(), Dst: r.lab.A.IPv4.As16(), HopLimit: 64, SrcPort: 0xc123}
	if s.src.IsValid() {
		p.Src = s.src.As16()
	}
	if s.src.Is6() {
		p.Dst = r.lab.A.IPv6.As16()
	}
	if s.mac != (wire.MAC{}) {
		p.SrcMAC = s.mac
	}
	if s.pkey == 0 {
		s.pkey = 0xffff
	}
	var tmpl wire.Template
	tmpl.Init(&p, s.qpn, s.pkey)
	b := make([]byte, wire.MaxHeader+payload+16)
	hdr := tmpl.Begin(b, op)
	clear(b[tmpl.BTHOffset()+12 : tmpl.HeaderLen(op)])
	if change != nil {
		change(hdr)
	}
	return b[:tmpl.Finish(wire.Frame{Head: b}, op, payload)]
}
