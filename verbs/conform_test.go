package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// TestServices moves messages by every service and operation over each wire: IPv4 and IPv6, with and
// without a VLAN tag, between two devices and inside one.
func TestServices(t *testing.T) {
	onWires(t, func(t *testing.T, w wireKind) {
		for _, vlan := range []int{0, 77} {
			ca, cb := w.open(t, Config{VLAN: vlan}, Config{VLAN: vlan})
			for _, ipv6 := range []bool{false, true} {
				for _, inside := range []bool{false, true} {
					to := cb
					if inside {
						to = ca
					}
					name := fmt.Sprintf("VLAN=%d/IPv6=%v/loopback=%v/", vlan, ipv6, inside)
					t.Run(name+"RC", func(t *testing.T) { serviceRC(t, ca, to, ipv6) })
					t.Run(name+"UC", func(t *testing.T) { serviceUC(t, ca, to, ipv6) })
					t.Run(name+"UD", func(t *testing.T) { serviceDatagram(t, ca, to, ipv6, UD) })
					if !inside {
						t.Run(name+"GSI", func(t *testing.T) { serviceDatagram(t, ca, to, ipv6, GSI) })
					}
				}
			}
		}
	})
}

func serviceRC(t *testing.T, ca, cb *Context, ipv6 bool) {
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	connectBy(t, a, b, ConnOptions{Access: RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal,
		Timeout: 19}, ipv6) // 2.1 s: longer than a busy machine keeps a thread waiting
	for _, n := range []int{0, 1, 4097, 20001} {
		testSend(t, a, b, n)
		testWrite(t, a, b, n)
		testRead(t, a, b, n)
	}
	testAtomics(t, a, b)
	testInline(t, a, b, WRSend)
	testInline(t, a, b, WRRDMAWriteWithImm)
	m, err := b.pd.RegMR(make([]byte, 4096), LocalWrite|RemoteWrite|FlushGlobal)
	b.must(err)
	a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 100)}, RemoteAddr: m.Addr(), RKey: m.RKey()})
	a.done(WCSuccess)
	for _, whole := range []bool{false, true} {
		a.send(SendWR{Opcode: WRFlush, RemoteAddr: m.Addr(), RKey: m.RKey(), Length: 100, FlushType: 1, FlushMR: whole})
		if c := a.done(WCSuccess); c.Opcode != WCFlush {
			t.Errorf("FLUSH: %+v", c)
		}
	}
	b.must(m.Dereg())
	testSendWithInv(t, a, b)
	if s := a.qp.Stats(); s.Retransmits != 0 {
		t.Errorf("%d retransmissions on a lossless wire", s.Retransmits)
	}
	a.must(a.qp.Destroy())
	b.must(b.qp.Destroy())
}

func testInline(t *testing.T, a, b *end, op WROpcode) {
	t.Helper()
	data := []byte("sent without a region, and ours again at once")
	want := bytes.Clone(data)
	b.recv(1, b.mr.SGE(0, 100))
	a.send(SendWR{Opcode: op, Flags: SendInline, Inline: data, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Imm: 5})
	clear(data)
	a.done(WCSuccess)
	b.done(WCSuccess)
	if !bytes.Equal(b.mr.Bytes()[:len(want)], want) {
		t.Errorf("operation %d: inline data arrived changed", op)
	}
}

// testSendWithInv: the peer takes a fast region of b's away.
func testSendWithInv(t *testing.T, a, b *end) {
	t.Helper()
	m, err := b.pd.AllocFastMR(1)
	b.must(err)
	b.must(m.MapSG([][]byte{make([]byte, 4096)}, 0x10000))
	b.send(SendWR{Opcode: WRRegMR, MR: m, Access: LocalWrite | RemoteWrite})
	b.done(WCSuccess)
	b.recv(3, b.mr.SGE(0, 64))
	a.send(SendWR{Opcode: WRSendWithInv, SGList: []SGE{a.mr.SGE(0, 9)}, InvKey: m.RKey()})
	a.done(WCSuccess)
	if c := b.done(WCSuccess); c.Flags != WCWithInv || c.InvKey != m.RKey() || c.ByteLen != 9 {
		t.Errorf("SEND_WITH_INV: %+v", c)
	}
	b.must(m.Dereg())
}

func serviceUC(t *testing.T, ca, cb *Context, ipv6 bool) {
	a, b := newEnd(t, ca, endConfig{typ: UC}), newEnd(t, cb, endConfig{typ: UC})
	connectBy(t, a, b, ConnOptions{}, ipv6)
	for _, n := range []int{0, 1, 4097, 20001} {
		testSend(t, a, b, n)
		fill(a.mr.Bytes(), byte(n))
		b.recv(1)
		a.send(SendWR{Opcode: WRRDMAWriteWithImm, SGList: []SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		a.done(WCSuccess)
		if c := b.done(WCSuccess); c.Opcode != WCRecvRDMAWithImm || int(c.ByteLen) != n || !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[:n]) {
			t.Errorf("WRITE of %d: %+v, or other bytes", n, c)
		}
	}
	testInline(t, a, b, WRSend)
	testInline(t, a, b, WRRDMAWriteWithImm)
	a.must(a.qp.Destroy())
	b.must(b.qp.Destroy())
}

func serviceDatagram(t *testing.T, ca, cb *Context, ipv6 bool, typ QPType) {
	a, b := newEnd(t, ca, endConfig{typ: typ}), newEnd(t, cb, endConfig{typ: typ})
	a.startUD(1)
	b.startUD(1)
	ah := a.ahTo(cb, ipv6)
	key := uint32(testQKey)
	if typ == GSI {
		key = 1 << 31 // the QP's own
	}
	for _, n := range []int{0, 1, 256, 4096} {
		fill(a.mr.Bytes(), byte(n))
		b.recv(1, b.mr.SGE(0, GRHBytes+n))
		a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, n)}, AH: ah, RemoteQPN: b.qp.Num(), RemoteQKey: key})
		a.done(WCSuccess)
		c := b.done(WCSuccess)
		if int(c.ByteLen) != GRHBytes+n || c.SrcQP != a.qp.Num() || c.Flags != WCGRH || !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[GRHBytes:][:n]) {
			t.Errorf("datagram of %d: %+v, or other bytes", n, c)
		}
		grh := b.mr.Bytes()[:GRHBytes]
		if own := gid(t, ca, ipv6).GID; ipv6 && !bytes.Equal(grh[8:24], own[:]) || !ipv6 && !bytes.Equal(grh[32:36], own[12:]) {
			t.Errorf("GRH area % x", grh)
		}
	}
	a.must(ah.Destroy())
	a.must(a.qp.Destroy())
	b.must(b.qp.Destroy())
}

// TestPathMTUs: every path MTU on real frames of connections of both kinds, over both families and with a VLAN
// tag, and datagrams as long as it, messages of critical lengths.
func TestPathMTUs(t *testing.T) {
	onWires(t, func(t *testing.T, w wireKind) {
		for _, vlan := range []int{0, 5} {
			ca, cb := w.open(t, Config{VLAN: vlan}, Config{VLAN: vlan})
			for i, m := range []int{256, 512, 1024, 2048, 4096} {
				for _, ipv6 := range []bool{false, true} {
					if raceEnabled && ipv6 == (i%2 == 0) {
						continue // slow
					}
					for _, typ := range []QPType{RC, UC} {
						a, b := newEnd(t, ca, endConfig{typ: typ}), newEnd(t, cb, endConfig{typ: typ})
						connectBy(t, a, b, ConnOptions{PathMTU: m}, ipv6)
						for _, n := range []int{m - 1, m, m + 1, 3*m + 5} {
							testSend(t, a, b, n)
							if typ == RC {
								testWrite(t, a, b, n)
								testRead(t, a, b, n)
							}
						}
						a.must(a.qp.Destroy())
						b.must(b.qp.Destroy())
					}
				}
			}
			a, b := newEnd(t, ca, endConfig{typ: UD}), newEnd(t, cb, endConfig{typ: UD})
			a.startUD(1)
			b.startUD(1)
			for _, ipv6 := range []bool{false, true} {
				ah := a.ahTo(cb, ipv6)
				for _, n := range []int{255, 256, 257, 1024, 2047, 2049, 4095, 4096} {
					fill(a.mr.Bytes(), byte(n))
					b.recv(1, b.mr.SGE(0, GRHBytes+n))
					a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, n)}, AH: ah, RemoteQPN: b.qp.Num(), RemoteQKey: testQKey})
					a.done(WCSuccess)
					if c := b.done(WCSuccess); int(c.ByteLen) != GRHBytes+n || !bytes.Equal(a.mr.Bytes()[:n], b.mr.Bytes()[GRHBytes:][:n]) {
						t.Errorf("datagram of %d: %+v, or other bytes", n, c)
					}
				}
			}
		}
	})
}

// TestCase9SmallRing: an 8 MiB READ, and a WRITE, through sockets of 16 frames: nothing is sent again.
func TestCase9SmallRing(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	cfg := Config{Frames: 16}
	const n = 8 << 20
	a, b := newEnd(t, openIn(t, l.A, cfg), endConfig{size: n}), newEnd(t, openIn(t, l.B, cfg), endConfig{size: n})
	connect(t, a, b, ConnOptions{PathMTU: 1024, Timeout: 18})
	testRead(t, a, b, n-3)
	testWrite(t, a, b, n-6)
	sa, sb := a.c.Stats().Total, b.c.Stats().Total
	if sa.Retransmits+sb.Retransmits+sa.NAKsSent+sb.NAKsSent+sa.Timeouts != 0 {
		t.Errorf("%d retransmissions, %d NAKs, %d timeouts", sa.Retransmits+sb.Retransmits, sa.NAKsSent+sb.NAKsSent, sa.Timeouts)
	}
}

// TestCase39SourceChanges: the application writes to memory that is being sent: the bytes are whatever
// they were when copied, but every frame's ICRC fits them.
func TestCase39SourceChanges(t *testing.T) {
	if raceEnabled {
		t.Skip("a race is what this test makes")
	}
	l := nettest.New(t, nettest.Config{})
	a, b := newEnd(t, openIn(t, l.A, Config{}), endConfig{}), newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	connect(t, a, b, ConnOptions{})
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for x := byte(0); !stop.Load(); x++ {
			mem := a.mr.Bytes()
			for i := 0; i < len(mem); i += 61 {
				mem[i] = x
			}
		}
	})
	for range 300 {
		a.send(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 60000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		a.done(WCSuccess)
	}
	stop.Store(true)
	wg.Wait()
	if n := b.c.Stats().Total.Drops[wire.ReasonICRC]; n != 0 {
		t.Errorf("%d bad ICRCs", n)
	}
}

// TestCase58MixedFamilies: an IPv4 address on one side and an IPv6 one on the other is an error that
// says so.
func TestCase58MixedFamilies(t *testing.T) {
	ca, cb := openMemory(t, Config{}, Config{})
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
	err := a.qp.ConnectRC(1, ConnInfo{QPN: b.qp.Num(), GID: gid(t, cb, true).GID}, ConnOptions{SGIDIndex: gid(t, ca, false).Index})
	if !errors.Is(err, ErrAttrValue) || !bytes.Contains([]byte(err.Error()), []byte("IPv4")) {
		t.Errorf("connect: %v", err)
	}
	if _, err := a.pd.CreateAH(&AHAttr{DGID: gid(t, cb, true).GID, SGIDIndex: gid(t, ca, false).Index}); !errors.Is(err, ErrAttrValue) {
		t.Errorf("handle: %v", err)
	}
}

// TestCase68SourcePort: the UDP source port of a connection's frames is the common formula's, both ways,
// from the QPNs or from the flow label if there is one.
func TestCase68SourcePort(t *testing.T) {
	for _, label := range []uint32{0, 0x9abcd} {
		var mu sync.Mutex
		ports, labels := map[uint16]int{}, map[uint32]int{}
		cfg := Config{Capture: func(_ Direction, _ int, _ time.Time, head, _ []byte) {
			mu.Lock()
			defer mu.Unlock()
			ports[binary.BigEndian.Uint16(head[14+40:])]++
			labels[binary.BigEndian.Uint32(head[14:])&0xfffff]++
		}}
		ca, cb := openMemory(t, cfg, cfg)
		a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{})
		connectBy(t, a, b, ConnOptions{FlowLabel: label}, true)
		testSend(t, a, b, 10000)
		testRead(t, a, b, 10000)
		want := wire.SourcePort(wire.FlowLabel(a.qp.Num(), b.qp.Num()))
		if label != 0 {
			want = wire.SourcePort(label)
		}
		mu.Lock()
		if len(ports) != 1 || ports[want] == 0 || len(labels) != 1 || labels[label] == 0 {
			t.Errorf("ports %#v, want %#x; labels %#v, want %#x", ports, want, labels, label)
		}
		mu.Unlock()
	}
}

// TestCase83SRQOfAnotherDomain: an SRQ may be of another protection domain than its QPs; its receives
// use regions of its own.
func TestCase83SRQOfAnotherDomain(t *testing.T) {
	ca, cb := openMemory(t, Config{}, Config{})
	other := newEnd(t, cb, endConfig{}) // a domain with a region
	srq, err := cb.CreateSRQ(other.pd, SRQInitAttr{MaxWR: 4, MaxSGE: 1})
	other.must(err)
	a, b := newEnd(t, ca, endConfig{}), newEnd(t, cb, endConfig{srq: srq})
	connect(t, a, b, ConnOptions{})
	b.must(srq.PostRecv(&RecvWR{WRID: 1, SGList: []SGE{other.mr.SGE(0, 64)}}))
	a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 64)}})
	b.done(WCSuccess)
	a.done(WCSuccess)
	b.must(srq.PostRecv(&RecvWR{WRID: 2, SGList: []SGE{b.mr.SGE(0, 64)}}))
	a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 64)}})
	b.done(WCLocProtErr)
	a.done(WCRemOpErr)
}

// TestCase85UnknownQPType and what else a QP cannot be.
func TestCase85UnknownQPType(t *testing.T) {
	ca, _ := openMemory(t, Config{}, Config{})
	pd, err := ca.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := ca.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []QPType{0, 5, 8, 9, 255} { // XRC and raw packet among them
		if _, err := ca.CreateQP(pd, &QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq}); err == nil {
			t.Errorf("type %d accepted", typ)
		}
	}
}

// TestCase54LinkDown: the link goes down under load and stays down: retries run out, everything posted
// completes, nothing hangs; and it is counted.
func TestCase54LinkDown(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	a, b := newEnd(t, openIn(t, l.A, Config{}), endConfig{}), newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	connect(t, a, b, ConnOptions{Timeout: 10, RetryCnt: 2})
	for i := range 100 {
		a.recv(uint64(1000+i), a.mr.SGE(0, 64))
		a.send(SendWR{WRID: uint64(i), Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 60000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		if i == 50 {
			setLink(t, l.A, false)
		}
	}
	var failed, flushed int
	for _, c := range a.wait(200) {
		switch c.Status {
		case WCRetryExcErr:
			failed++
		case WCWRFlushErr:
			flushed++
		case WCSuccess:
		default:
			t.Errorf("completion %+v", c)
		}
	}
	if failed != 1 || flushed < 100 || a.qp.State() != StateErr {
		t.Errorf("%d retries exceeded, %d flushed, QP in %v", failed, flushed, a.qp.State())
	}
	awaitEvent(t, a.c, EventPortErr)
	if n := a.c.Stats().LinkDowned; n != 1 {
		t.Errorf("link_downed %d", n)
	}
	if err := a.c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestCase63WithoutIPv6: a namespace without IPv6 works over IPv4. Case65: any namespace does.
func TestCase63WithoutIPv6(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	for _, n := range []*nettest.Namespace{l.A, l.B} {
		n.Do(func() {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		})
	}
	a, b := newEnd(t, openIn(t, l.A, Config{}), endConfig{}), newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	for _, g := range a.c.GIDs() {
		if !g.GID.IsIPv4() {
			t.Errorf("GID %v", g)
		}
	}
	connect(t, a, b, ConnOptions{})
	testSend(t, a, b, 10000)
}
