package verbs

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// Reports about other implementations that no other file's subject covers; docs/conformance.md says where
// each number comes from.

// TestCase42PollWhenNotified: whoever is notified may poll, arm and post at once, from any goroutine, and
// control calls go on meanwhile: no lock is held around a notification.
func TestCase42PollWhenNotified(t *testing.T) {
	onModes(t, func(t *testing.T, w wireKind, cfg Config) {
		a, b := newPair(t, w, cfg, endConfig{}, ConnOptions{})
		const n = 200
		var got atomic.Int32
		done := make(chan struct{})
		b.cq.ReqNotify(false)
		go func() {
			defer close(done)
			var wc [4]WC
			for got.Load() < n {
				if cfg.Progress == ProgressPoller {
					<-b.cq.Notify()
				}
				b.cq.ReqNotify(false)
				for k := 1; k > 0 && got.Load() < n; {
					var err error
					if k, err = b.cq.Poll(wc[:]); err != nil {
						t.Error(err)
						return
					}
					got.Add(int32(k))
					for range k { // from within: post again
						b.recv(1, b.mr.SGE(0, 8))
					}
				}
			}
		}()
		for i := range 32 {
			b.recv(uint64(i), b.mr.SGE(0, 8))
		}
		for i := range n {
			a.send(SendWR{Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 8)}})
			a.done(WCSuccess)
			if i%50 == 0 {
				b.must(b.cq.Resize(512 + i))
			}
		}
		select {
		case <-done:
		case <-time.After(testPatience):
			t.Fatalf("%d of %d completions", got.Load(), n)
		}
	})
}

// TestCase65OwnNamespace: a device works in whatever network namespace it is opened in, also when the
// goroutine that uses it is in another.
func TestCase65OwnNamespace(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	if _, err := net.InterfaceByName(l.A.Interface); err == nil {
		t.Skipf("%s exists in this namespace too", l.A.Interface)
	}
	a, b := newEnd(t, openIn(t, l.A, Config{}), endConfig{}), newEnd(t, openIn(t, l.B, Config{}), endConfig{})
	connect(t, a, b, ConnOptions{})
	testSend(t, a, b, 5000)
	testRead(t, a, b, 5000)
	if _, err := Open(l.A.Interface, &Config{}); err == nil {
		t.Error("the interface was found outside its namespace")
	}
}

// TestCase66GUID: no device is without a GUID, and no two have the same; the port's first GID is made of it.
func TestCase66GUID(t *testing.T) {
	ca, cb := openMemory(t, Config{}, Config{})
	da, db := ca.Device(), cb.Device()
	if da.NodeGUID == 0 || da.NodeGUID == db.NodeGUID {
		t.Errorf("GUIDs %#x and %#x", da.NodeGUID, db.NodeGUID)
	}
}

// TestCase80NotifyWithoutListener: notifications that nobody takes are no error, block nobody and do not pile up:
// a queue needs no completion channel.
func TestCase80NotifyWithoutListener(t *testing.T) {
	a, b := newPair(t, wires[0], Config{}, endConfig{}, ConnOptions{})
	for i := range 10 {
		a.cq.ReqNotify(false)
		a.send(SendWR{WRID: uint64(i), Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		until(t, func() bool { return a.cq.Len() > 0 })
		var wc [2]WC
		if n, err := a.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != WCSuccess {
			t.Fatalf("%d completions, %v, %+v", n, err, wc[0])
		}
	}
	n := 0
	for {
		select {
		case <-a.cq.Notify():
			n++
			continue
		case <-time.After(time.Millisecond):
		}
		break
	}
	if n != 1 {
		t.Errorf("%d notifications waited, want 1", n)
	}
}

// TestCase81EventsNeedNoAck: asynchronous events are taken, not acknowledged; asking when there is none waits,
// and objects go without anything to acknowledge.
func TestCase81EventsNeedNoAck(t *testing.T) {
	a, _ := newPair(t, wires[0], Config{}, endConfig{}, ConnOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if e, err := a.c.AsyncEvent(ctx); err == nil {
		t.Errorf("an event out of nothing: %v", e)
	}
	a.must(a.qp.Modify(&QPAttr{State: StateErr}, AttrState))
	a.must(a.qp.Destroy())
}

// TestCase88BothFamilies: everything an RC QP can do, over IPv4 and over IPv6.
func TestCase88BothFamilies(t *testing.T) {
	ca, cb := openVeth(t, Config{}, Config{})
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6=%v", ipv6), func(t *testing.T) { serviceRC(t, ca, cb, ipv6) })
	}
}
