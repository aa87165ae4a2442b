package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// The kernel's own traffic on an interface under full RDMA load.

// stack is a lab with an endpoint and load on it, and ordinary sockets beside.
type stack struct {
	t *testing.T
	l *nettest.Lab
}

// addr is where a socket of the endpoint's end, A, listens.
func (s *stack) addr(ipv6 bool, port uint16) netip.AddrPort {
	a := s.l.A.IPv4
	if ipv6 {
		a = s.l.A.IPv6
	}
	return netip.AddrPortFrom(a, port)
}

const stackTimeout = 30 * time.Second

// stream sends bytes over TCP from B to A and compares the hashes at both ends.
func (s *stack) stream(ipv6 bool, n int64) error {
	var in net.Listener
	var out net.Conn
	err := s.l.A.DoErr(func() (err error) {
		in, err = net.Listen("tcp", s.addr(ipv6, 0).String())
		return err
	})
	if err != nil {
		return err
	}
	defer in.Close()
	type arrived struct {
		sum [sha256.Size]byte
		n   int64
		err error
	}
	done := make(chan arrived, 1)
	go func() {
		c, err := in.Accept()
		if err != nil {
			done <- arrived{err: err}
			return
		}
		defer c.Close()
		h := sha256.New()
		err = c.SetDeadline(time.Now().Add(stackTimeout))
		k, e := io.Copy(h, c)
		done <- arrived{[sha256.Size]byte(h.Sum(nil)), k, errors.Join(err, e)}
	}()
	err = s.l.B.DoErr(func() (err error) {
		out, err = net.DialTimeout("tcp", in.Addr().String(), stackTimeout)
		return err
	})
	if err != nil {
		return err
	}
	h := sha256.New()
	err = out.SetDeadline(time.Now().Add(stackTimeout))
	_, e := io.CopyN(io.MultiWriter(h, out), rand.NewChaCha8([32]byte{1}), n)
	if err = errors.Join(err, e, out.Close()); err != nil {
		return err
	}
	got := <-done
	if got.err != nil || got.n != n || got.sum != [sha256.Size]byte(h.Sum(nil)) {
		return fmt.Errorf("TCP: %d bytes of %d, hashes equal: %v, %w", got.n, n,
			got.sum == [sha256.Size]byte(h.Sum(nil)), got.err)
	}
	return nil
}

// sockets are two UDP sockets: in listens at A, out is connected to it from B.
func (s *stack) sockets(to netip.AddrPort) (in, out *net.UDPConn, err error) {
	err = s.l.A.DoErr(func() (err error) {
		if in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)); err == nil {
			err = in.SetReadBuffer(4 << 20)
		}
		return err
	})
	if err == nil {
		err = s.l.B.DoErr(func() (err error) {
			out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(in.LocalAddr().(*net.UDPAddr).AddrPort()))
			return err
		})
	}
	for _, c := range []*net.UDPConn{in, out} {
		if err == nil {
			err = c.SetDeadline(time.Now().Add(stackTimeout))
		}
	}
	return in, out, err
}

// datagrams sends numbered datagrams at a pace: every one arrives, once and in order.
func (s *stack) datagrams(to netip.AddrPort, n int) error {
	in, out, err := s.sockets(to)
	if err != nil {
		return err
	}
	defer in.Close()
	defer out.Close()
	sent := make(chan error, 1)
	go func() {
		b := make([]byte, 200)
		for i := range n {
			binary.BigEndian.PutUint32(b, uint32(i))
			if _, err := out.Write(b); err != nil {
				sent <- err
				return
			}
			if i%4 == 3 {
				time.Sleep(time.Millisecond)
			}
		}
		sent <- nil
	}()
	b := make([]byte, 300)
	for i := range n {
		k, err := in.Read(b)
		if got := binary.BigEndian.Uint32(b); err != nil || k != 200 || got != uint32(i) {
			return fmt.Errorf("UDP to %v: datagram %d of %d: number %d of %d bytes, %w", to, i, n, got, k, err)
		}
	}
	return <-sent
}

// pingpong returns the median of the times that a datagram takes there and back.
func (s *stack) pingpong(rounds int) (time.Duration, error) {
	in, out, err := s.sockets(s.addr(false, 0))
	if err != nil {
		return 0, err
	}
	defer in.Close()
	defer out.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := in.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if _, err := in.WriteToUDPAddrPort(b[:n], from); err != nil {
				return
			}
		}
	}()
	var times []time.Duration
	b := make([]byte, 100)
	for range rounds {
		began := time.Now()
		if _, err := out.Write(b[:64]); err != nil {
			return 0, err
		}
		if _, err := out.Read(b); err != nil {
			return 0, fmt.Errorf("ping-pong: %w", err)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// resolve has both ends forget their neighbours, and find them again by ARP and neighbour discovery.
func (s *stack) resolve() error {
	for _, n := range []*nettest.Namespace{s.l.A, s.l.B} {
		if err := tryIP(n, "neigh", "flush", "dev", "veth0"); err != nil {
			return err
		}
	}
	for _, ipv6 := range []bool{false, true} {
		if err := s.datagrams(s.addr(ipv6, 0), 8); err != nil {
			return fmt.Errorf("after neighbours were forgotten: %w", err)
		}
	}
	return nil
}

// kernelAddr is an address of A that is not the interface's: RoCEv2's port there is the kernel's.
var kernelAddr = netip.MustParseAddr("10.79.0.1")

// TestServeLeavesOthersAlone: under full RDMA load TCP, ARP, neighbour discovery, UDP to other ports,
// and to RoCEv2's port at an address that the endpoint does not serve, work on the same interface as
// without. Nothing is lost.
func TestServeLeavesOthersAlone(t *testing.T) {
	needRoot(t)
	t.Parallel()
	l := nettest.New(t, nettest.Config{})
	s := &stack{t, l}
	ip(t, l.A, "addr", "add", kernelAddr.String()+"/32", "dev", "lo")
	ip(t, l.A, "link", "set", "lo", "up")
	ip(t, l.B, "route", "add", kernelAddr.String()+"/32", "via", l.A.IPv4.String(), "dev", "veth0")
	idle, err := s.pingpong(200)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "control")
	p := endpoint(t, l.A, `
interfaces: [{name: veth0}]
limits: {connections-per-peer: 200}
services: {echo: {size: 4KiB}}
exports: [{name: scratch, size: 1MiB, access: read-write, allow: [10.77.0.0/24]}]
`, "--control", socket)
	load := &load{account: &account{}, c: newClient(t, l.B), targets: []netip.Addr{l.A.IPv4}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- load.run(ctx, 8) }()
	under := func(what string, f func() error) {
		t.Helper()
		before, began := load.completed.Load(), time.Now()
		eventually(t, "load", func() bool { return load.completed.Load() > before+100 })
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		n := load.completed.Load() - before
		t.Logf("%-12s %8d work requests in %v beside it", what, n, time.Since(began).Round(time.Millisecond))
		eventually(t, "load", func() bool { return load.completed.Load() > before+200 })
	}
	const datagrams, elsewhere = 400, 200
	for _, ipv6 := range []bool{false, true} {
		under("TCP", func() error { return s.stream(ipv6, 8<<20) })
		under("UDP", func() error { return s.datagrams(s.addr(ipv6, 5000), datagrams) })
	}
	under("neighbours", func() error { return errors.Join(s.resolve(), s.resolve()) })
	under("4791", func() error { return s.datagrams(netip.AddrPortFrom(kernelAddr, 4791), elsewhere) })
	under("ping-pong", func() error {
		busy, err := s.pingpong(200)
		t.Logf("a datagram of 64 bytes there and back: %v without load, %v under load", idle, busy)
		if err == nil && busy > time.Second {
			err = fmt.Errorf("%v for a ping-pong", busy)
		}
		return err
	})
	text := command(t, "stat", "--control", socket)
	m := regexp.MustCompile(`other.address\s+(\d+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("stat: %s", text)
	}
	if n, _ := strconv.Atoi(m[1]); n != elsewhere {
		t.Errorf("%d frames are counted for another address, want %d", n, elsewhere)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if load.posted.Load() != load.completed.Load() {
		t.Errorf("%d work requests, %d completed", load.posted.Load(), load.completed.Load())
	}
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}
