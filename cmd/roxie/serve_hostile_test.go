package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// attacker sends frames with whatever source address it likes.
type attacker struct {
	t    *testing.T
	l    *nettest.Lab
	fd   int
	to   unix.Sockaddr
	sent int
}

func newAttacker(t *testing.T, l *nettest.Lab) *attacker {
	t.Helper()
	a := &attacker{t: t, l: l, to: &unix.SockaddrLinklayer{Ifindex: l.B.Ifindex, Halen: 6}}
	err := l.B.DoErr(func() (err error) {
		a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(a.fd) })
	return a
}

// mad sends a message to the endpoint's connection manager.
func (a *attacker) mad(src netip.Addr, msg rcm.Message) error {
	m := rcm.Encode(rand.Uint64(), msg)
	p := wire.Path{SrcMAC: wire.MAC(a.l.B.MAC), DstMAC: wire.MAC(a.l.A.MAC), VLAN: -1, Src: src.As16(),
		Dst: a.l.A.IPv4.As16(), HopLimit: 64, SrcPort: 0xc123}
	var tmpl wire.Template
	tmpl.Init(&p, 1, 0xffff)
	b := make([]byte, 1024)
	hdr := tmpl.Begin(b, wire.UDSendOnly)
	deth := (*wire.DETH)(hdr[12:])
	deth.SetQKey(rcm.GSIQKey)
	deth.SetSrcQP(1)
	copy(b[tmpl.HeaderLen(wire.UDSendOnly):], m[:])
	b = b[:tmpl.Finish(wire.Frame{Head: b}, wire.UDSendOnly, len(m))]
	if err := unix.Sendto(a.fd, b, 0, a.to); err != nil && err != unix.ENOBUFS {
		return err
	}
	a.sent++
	return nil
}

// request asks for a connection that will never be confirmed.
func (a *attacker) request(src netip.Addr, port uint16) error {
	q := &rcm.REQ{LocalID: rand.Uint32(), Service: rcm.Service(rcm.PortSpaceTCP, port), CAGUID: rand.Uint64(),
		QPN: wire.QPN(rand.Uint32() & 0xffffff), MTU: 3, PKey: 0xffff, RemoteTimeout: 20, LocalTimeout: 20,
		MaxRetries: 15, RetryCount: 7, RNRRetry: 7,
		Primary: rcm.PathRecord{Local: src.As16(), Remote: a.l.A.IPv4.As16(), HopLimit: 64, AckTimeout: 15}}
	q.Private[1] = 4 << 4
	return a.mad(src, q)
}

// flood sends requests of a source's choice, with a pause after every few.
func (a *attacker) flood(n, burst int, request func(i int) (netip.Addr, uint16)) {
	a.t.Helper()
	for i := range n {
		if err := a.request(request(i)); err != nil {
			a.t.Fatal(err)
		}
		if i%burst == burst-1 {
			time.Sleep(time.Millisecond) // the endpoint's socket shall not drop them
		}
	}
}

// crowd is a flood's source: a hundred addresses behind a gateway.
func crowd(i int) (netip.Addr, uint16) {
	return netip.AddrFrom4([4]byte{10, 99, 0, byte(100 + i%100)}), []uint16{7175, 7470, 9}[i%3]
}

// countFiles counts a process's descriptors.
func countFiles(pid int) (n int) {
	for _, c := range filesOf(pid) {
		n += c
	}
	return n
}

// rss is a process's resident memory in KiB.
func rss(t *testing.T, pid int) (n int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	_, _ = fmt.Sscan(rest, &n)
	return n
}

const hostileConfig = `
interfaces: [{name: veth0}]
limits: {qps: 64, memory: 16MiB, connections-per-peer: 8}
services: {echo: {size: 16KiB}}
exports: [{name: scratch, size: 1MiB, access: read-write, allow: [10.77.0.0/24]}]
`

// getIn has a peer connect, and use the connection, while requests of a crowd keep all QPs busy.
func (a *attacker) getIn(c *client) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan error, 1)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := a.request(crowd(i)); err != nil {
				done <- err
				return
			}
			time.Sleep(10 * time.Millisecond) // more than a busy machine carries out is no fair share any more
		}
		done <- nil
	}()
	for range 2 {
		if got := c.export("scratch", true).do(verbs.WRRDMAWrite, 0, 8); got != verbs.WCSuccess {
			a.t.Errorf("a connection made during the flood: %v", got)
		}
	}
	cancel()
	if err := <-done; err != nil {
		a.t.Error(err)
	}
}

// TestServeHostile: a peer floods the endpoint with requests for connections that it never confirms.
// It gets what one peer may have, and others get in meanwhile. From many addresses it gets what there
// is, and no more: memory and descriptors stay within the limits, half-open connections make room for
// peers that confirm, and the endpoint ends in order.
func TestServeHostile(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	ip(t, l.A, "route", "add", "10.99.0.0/16", "via", l.B.IPv4.String())
	p := endpoint(t, l.A, hostileConfig)
	c := newClient(t, l.B)
	e := c.export("scratch", true)
	a := newAttacker(t, l)
	pid := p.cmd.Process.Pid
	files := countFiles(pid)

	one := netip.MustParseAddr("10.77.0.99") // ARP finds it; whom it does not find never gets that far
	ip(t, l.A, "neigh", "add", one.String(), "lladdr", l.B.MAC.String(), "dev", l.A.Interface)
	a.flood(300, 16, func(int) (netip.Addr, uint16) { return one, 7175 })
	p.logs("10.77.0.99 has 8 connections, the limit of one peer")
	if _, err := c.dial("10.77.0.1:7175", nil); err != nil {
		t.Errorf("another peer during the flood: %v", err)
	}
	full := regexp.MustCompile(`connection ended.* peer=10\.99\.0\.1..:.* made room`)
	eventually(t, "crowd of connections that is too large", func() bool { // a busy endpoint misses some
		a.flood(100, 16, crowd)
		return len(full.FindAllString(p.logged(), 10)) == 10
	})
	memory := rss(t, pid) // all that the limits allow is taken
	a.flood(2000, 16, crowd)
	if got := e.do(verbs.WRRDMAWrite, 0, 8); got != verbs.WCSuccess {
		t.Errorf("a connection that was there: %v", got)
	}
	a.getIn(c)
	now, room := rss(t, pid), 128<<10 // requests that wait, garbage: in KiB, with the race detector too
	t.Logf("%d requests; memory from %d to %d KiB", a.sent, memory, now)
	if now > memory+room {
		t.Errorf("memory goes on growing, from %d to %d KiB", memory, now)
	}
	if n := countFiles(pid); n > files+2 {
		t.Errorf("%d descriptors, %d at the beginning", n, files)
	}
	p.signal(syscall.SIGTERM)
	if err := p.end(20 * time.Second); err != nil {
		t.Errorf("endpoint ended with %v", err)
	}
}

// TestServeStopsWithDeadPeers: peers that are gone do not answer a DREQ, which keeps nobody from
// ending in order.
func TestServeStopsWithDeadPeers(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	p := endpoint(t, l.A, "interfaces: [{name: veth0, keepalive: 0}]\nservices: {echo: }\n"+
		"exports: [{name: scratch, size: 1MiB, access: read-write, allow: [10.77.0.0/24]}]\n")
	c := newClient(t, l.B)
	for i := range 40 {
		if i%2 == 0 {
			c.export("scratch", true)
		} else if _, err := c.dial("10.77.0.1:7175", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.dev.Close(); err != nil { // without a word
		t.Fatal(err)
	}
	began := time.Now()
	p.signal(syscall.SIGTERM)
	if err := p.end(20 * time.Second); err != nil {
		t.Errorf("endpoint ended with %v", err)
	}
	t.Logf("stopped after %v", time.Since(began))
}
