package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// lossyLink loses the CM messages of some kinds that it is to send. It looks at the attribute of
// the MAD behind Ethernet, IPv4, UDP, BTH and DETH.
type lossyLink struct {
	verbs.Link
	lose  atomic.Pointer[map[rcm.Attr]bool]
	lost  atomic.Uint64
	frame []byte
}

const attrAt = 14 + 20 + 8 + 12 + 8 + 16

func (l *lossyLink) Reserve() (head, tail []byte, ok bool) {
	head, tail, ok = l.Link.Reserve()
	l.frame = head
	return head, tail, ok
}

func (l *lossyLink) Submit(n int) {
	if lose := l.lose.Load(); lose != nil && n == attrAt-16+256+4 &&
		l.frame[42] == byte(wire.UDSendOnly) &&
		(*lose)[rcm.Attr(binary.BigEndian.Uint16(l.frame[attrAt:]))] {
		l.lost.Add(1)
		l.Link.Cancel()
		return
	}
	l.Link.Submit(n)
}

// lossyHosts are hosts of which the first loses what it is told to.
func lossyHosts(t testing.TB, cfg *Config) (a, b *host, l *lossyLink) {
	t.Helper()
	la, lb := verbs.NewLinkPair(1)
	l = &lossyLink{Link: la[0]}
	port := func(n byte) verbs.PortInfo {
		own, peer := netip.AddrFrom4([4]byte{10, 0, 0, n}), netip.AddrFrom4([4]byte{10, 0, 0, 3 - n})
		six := netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
		return verbs.PortInfo{Name: "mem", MAC: wire.MAC{2, 0, 0, 0, 0, n},
			Addrs:      []netip.Prefix{netip.PrefixFrom(own, 24), netip.PrefixFrom(six, 64)},
			Neighbours: map[netip.Addr]wire.MAC{peer: {2, 0, 0, 0, 0, 3 - n}}}
	}
	return newHost(t, []verbs.Link{l}, port(1), cfg), newHost(t, lb, port(2), cfg), l
}

// TestFirstPacketEstablishes: the RTU is lost, and the peer's first packet tells that it is there
// (COMM_EST). No clock has a part in that: the REP is sent again only after an hour.
func TestFirstPacketEstablishes(t *testing.T) {
	a, b, link := lossyHosts(t, &Config{Machine: rcm.Config{RetryFirst: time.Hour}})
	link.lose.Store(&map[rcm.Attr]bool{rcm.AttrRTU: true})
	l, err := b.m.Listen(7, nil)
	b.must(err)
	qa, _ := a.qp(verbs.RC)
	qb, _ := b.qp(verbs.RC)
	accepted := make(chan *Conn, 1)
	go func() {
		r, err := l.Accept(within(t))
		if err != nil {
			t.Error(err)
			return
		}
		c, err := r.Accept(within(t), qb, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	ca, err := a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 7), qa, nil)
	a.must(err)
	for link.lost.Load() == 0 && within(t).Err() == nil {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-accepted:
		t.Fatal("accepted without RTU or packet")
	case <-time.After(20 * time.Millisecond):
	}
	if qb.State() != verbs.StateRTR {
		t.Fatalf("the accepting QP is in %v", qb.State())
	}
	a.must(qa.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite})) // of no bytes
	cb := <-accepted
	if cb == nil {
		t.FailNow()
	}
	exchange(t, a, b, ca, cb)
	if n := b.m.Stats().Received[rcm.AttrRTU.Index()]; n != 0 {
		t.Errorf("%d RTUs came", n)
	}
}

// TestKeepalive: an idle connection is probed with WRITEs of no bytes, and ends when the peer has
// gone without a word.
func TestKeepalive(t *testing.T) {
	a, b := hosts(t, &Config{Keepalive: 20 * time.Millisecond, Machine: rcm.Config{PacketLife: 1,
		AckDelay: 1}})
	ca, cb := connected(t, a, b, b.ip4, verbs.RC)
	for ca.QP().Stats().SentPkts < 3 { // nobody posts anything
		time.Sleep(time.Millisecond)
	}
	if ca.Err() != nil || cb.Err() != nil {
		t.Fatal(ca.Err(), cb.Err())
	}
	b.must(cb.QP().Destroy())
	_, init := ca.QP().Query()
	wc := make([]verbs.WC, 1)
	for wc[0].Status == verbs.WCSuccess { // of probes that were answered
		b.must(init.SendCQ.Wait(within(t)))
		_, err := init.SendCQ.Poll(wc)
		b.must(err)
	}
	if wc[0].WRID != KeepaliveWRID || wc[0].Status != verbs.WCRetryExcErr {
		t.Fatalf("%+v", wc[0])
	}
	if ca.QP().State() != verbs.StateErr {
		t.Errorf("the QP is in %v", ca.QP().State())
	}
}

// TestDeviceClosedFirst: a manager whose device has been closed ends without harm.
func TestDeviceClosedFirst(t *testing.T) {
	a, b := hosts(t, nil)
	ca, _ := connected(t, a, b, b.ip4, verbs.RC)
	a.must(a.ctx.Close())
	a.must(ca.Disconnect(within(t)))
	if !errors.Is(ca.Err(), ErrClosed) {
		t.Error(ca.Err())
	}
	qp, _ := b.qp(verbs.RC)
	if _, err := a.m.Dial(within(t), netip.AddrPortFrom(b.ip4, 7174), qp, nil); err == nil {
		t.Error("connected without a device")
	}
}
