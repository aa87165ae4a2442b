package verbs

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Every test that a wire can carry runs on two of them: one in memory, which the race detector can
// see, and a veth pair.

// wireKind makes two devices that are joined.
type wireKind struct {
	name string
	open func(t testing.TB, a, b Config) (*Context, *Context)
}

var wires = []wireKind{{"memory", openMemory}, {"veth", openVeth}}

// onWires runs f on every kind of wire.
func onWires(t *testing.T, f func(t *testing.T, w wireKind)) {
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) { f(t, w) })
	}
}

// onModes runs f on every kind of wire, in both progress modes.
func onModes(t *testing.T, f func(t *testing.T, w wireKind, cfg Config)) {
	onWires(t, func(t *testing.T, w wireKind) {
		for _, mode := range []Progress{ProgressPoller, ProgressCaller} {
			t.Run(mode.String(), func(t *testing.T) { f(t, w, Config{Progress: mode}) })
		}
	})
}

var memPorts = [2]PortInfo{
	{Name: "mem0", MAC: wire.MAC{2, 0, 0, 0, 0, 1}, Addrs: []netip.Prefix{
		netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("fd77::1/64")}},
	{Name: "mem1", MAC: wire.MAC{2, 0, 0, 0, 0, 2}, Addrs: []netip.Prefix{
		netip.MustParsePrefix("10.77.0.2/24"), netip.MustParsePrefix("fd77::2/64")}},
}

func openMemory(t testing.TB, a, b Config) (*Context, *Context) {
	t.Helper()
	la, lb := NewLinkPair(max(a.Queues, 1))
	return openJoined(t, la, lb, a, b)
}

// openJoined opens two devices on links that are joined already.
func openJoined(t testing.TB, la, lb []Link, a, b Config) (*Context, *Context) {
	t.Helper()
	var out [2]*Context
	for i, end := range []struct {
		links []Link
		cfg   Config
	}{{la, a}, {lb, b}} {
		port, other := memPorts[i], memPorts[1-i]
		port.Neighbours = map[netip.Addr]wire.MAC{}
		for _, p := range other.Addrs {
			port.Neighbours[p.Addr()] = other.MAC
		}
		c, err := OpenLinks(end.links, port, &end.cfg)
		if err != nil {
			t.Fatal(err)
		}
		closeWith(t, c)
		out[i] = c
	}
	return out[0], out[1]
}

func openVeth(t testing.TB, a, b Config) (*Context, *Context) {
	t.Helper()
	lab := nettest.New(t, nettest.Config{Queues: max(a.Queues, b.Queues, 1)})
	return openIn(t, lab.A, a), openIn(t, lab.B, b)
}

func openIn(t testing.TB, n *nettest.Namespace, cfg Config) *Context {
	t.Helper()
	var c *Context
	n.Do(func() {
		var err error
		if c, err = Open(n.Interface, &cfg); err != nil {
			t.Fatal(err)
		}
	})
	closeWith(t, c)
	return c
}

func closeWith(t testing.TB, c *Context) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

const allAccess = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

// end is one side of a connection.
type end struct {
	t   testing.TB
	c   *Context
	pd  *PD
	cq  *CQ
	qp  *QP
	mr  *MR
	psn PSN

	peer *end
}

// endConfig is what differs from the usual end.
type endConfig struct {
	size  int // of the region, 0: 64 KiB
	shard int // 1 + queue, 0: round robin
	typ   QPType
	cq    *CQ // shared
	pd    *PD
	srq   *SRQ
}

func newEnd(t testing.TB, c *Context, ec endConfig) *end {
	t.Helper()
	e := &end{t: t, c: c, psn: RandomPSN(), cq: ec.cq, pd: ec.pd}
	if ec.size == 0 {
		ec.size = 1 << 16
	}
	if ec.typ == 0 {
		ec.typ = RC
	}
	var err error
	if e.pd == nil {
		e.pd, err = c.AllocPD()
		e.must(err)
	}
	if e.cq == nil {
		e.cq, err = c.CreateCQ(512)
		e.must(err)
	}
	e.mr, err = e.pd.AllocMR(ec.size, allAccess)
	e.must(err)
	e.qp, err = c.CreateQP(e.pd, &QPInitAttr{Type: ec.typ, SendCQ: e.cq, RecvCQ: e.cq,
		Shard: ec.shard - 1, SRQ: ec.srq,
		Cap: QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}})
	e.must(err)
	return e
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// gid is the device's first address of a family.
func gid(t testing.TB, c *Context, ipv6 bool) GIDEntry {
	t.Helper()
	for _, g := range c.GIDs() {
		if g.GID.IsIPv4() != ipv6 && (!ipv6 || g.GID[0] == 0xfd) {
			return g
		}
	}
	t.Fatal("no address of that family")
	return GIDEntry{}
}

// connect joins two ends over IPv4.
func connect(t testing.TB, a, b *end, o ConnOptions) { connectBy(t, a, b, o, false) }

func connectBy(t testing.TB, a, b *end, o ConnOptions, ipv6 bool) {
	t.Helper()
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		p[0].peer = p[1]
		o.SGIDIndex = gid(t, p[0].c, ipv6).Index
		peer := ConnInfo{QPN: p[1].qp.Num(), PSN: p[1].psn, GID: gid(t, p[1].c, ipv6).GID}
		p[0].must(p[0].qp.ConnectRC(p[0].psn, peer, o))
	}
}

// newPair opens two devices and connects an end on each.
func newPair(t testing.TB, w wireKind, cfg Config, ec endConfig, o ConnOptions) (a, b *end) {
	t.Helper()
	ca, cb := w.open(t, cfg, cfg)
	a, b = newEnd(t, ca, ec), newEnd(t, cb, ec)
	connect(t, a, b, o)
	return a, b
}

const testPatience = 20 * time.Second

// wait takes n completions.
func (e *end) wait(n int) []WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	var out []WC
	wc := make([]WC, 16)
	for len(out) < n {
		if err := e.cq.Wait(ctx); err != nil {
			e.t.Fatalf("after %d of %d completions: %v; QP %v, %+v", len(out), n, err, e.qp.State(),
				e.qp.Stats())
		}
		got, err := e.cq.Poll(wc)
		e.must(err)
		out = append(out, wc[:got]...)
	}
	if len(out) > n {
		e.t.Fatalf("%d completions, want %d: %+v", len(out), n, out)
	}
	e.peer.seen()
	return out
}

// done takes one completion and checks its status.
func (e *end) done(want WCStatus) WC {
	e.t.Helper()
	w := e.wait(1)[0]
	if w.Status != want {
		e.t.Fatalf("completion %d of QP %#x: %v (%v), want %v", w.WRID, w.QPN, w.Status,
			w.VendorErr, want)
	}
	return w
}

// seen stands before and after work that touches a peer's memory: through a veth the race detector
// cannot see what comes before what.
func (e *end) seen() {
	if e != nil {
		e.qp.poller.hold()
		e.qp.poller.release()
	}
}

func (e *end) send(wr SendWR) {
	e.t.Helper()
	wr.Flags |= SendSignaled
	e.peer.seen()
	e.must(e.qp.PostSend(&wr))
}

func (e *end) recv(id uint64, sges ...SGE) {
	e.t.Helper()
	e.must(e.qp.PostRecv(&RecvWR{WRID: id, SGList: sges}))
}

// fill writes a pattern that depends on the position.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7+i>>8) ^ seed
	}
}

// event takes the device's next asynchronous event.
func (e *end) event() AsyncEvent {
	e.t.Helper()
	return nextEvent(e.t, e.c)
}

func nextEvent(t testing.TB, c *Context) AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	ev, err := c.AsyncEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// until waits for something that other goroutines bring about.
func until(t testing.TB, f func() bool) {
	t.Helper()
	for start := time.Now(); !f(); time.Sleep(time.Millisecond) {
		if time.Since(start) > testPatience {
			t.Fatal("waited in vain")
		}
	}
}
