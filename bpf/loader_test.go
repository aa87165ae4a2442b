package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

func load(t testing.TB, cfg Config) *Program {
	t.Helper()
	p, err := Load(cfg)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestAttachModes(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	l.A.Do(func() {
		for _, c := range []struct {
			ask, got Mode
		}{{Auto, Native}, {Native, Native}, {Generic, Generic}} {
			p := load(t, Config{})
			if err := p.Attach(l.A.Ifindex, c.ask); err != nil {
				t.Fatalf("%v: %v", c.ask, err)
			}
			a := p.Attachment()
			if a.Mode != c.got || a.Fallback != nil || a.Ifindex != l.A.Ifindex ||
				a.Interface != l.A.Interface || a.LinkID == 0 || !a.Up || !a.Carrier {
				t.Errorf("%v: %+v", c.ask, a)
			}
			id, name, ok := Foreign(l.A.Ifindex)
			if !ok || id != a.ProgramID || name != "roxie_steer" {
				t.Errorf("%v: program %d %q %v on the interface, want %d", c.ask, id, name, ok,
					a.ProgramID)
			}
			link, err := queryLink(l.A.Ifindex)
			if err != nil {
				t.Fatal(err)
			}
			if _, mode := link.program(); mode != c.got {
				t.Errorf("%v: the kernel says %v", c.ask, mode)
			}
			if err := p.Attach(l.A.Ifindex, c.ask); !errors.Is(err, ErrAttached) {
				t.Errorf("second attach: %v", err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			expectNone(t, l.A.Ifindex)
		}
	})
}

// expectNone waits a moment for the interface to have no program: the kernel may detach a link
// after the call that closed it.
func expectNone(t testing.TB, ifindex int) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for {
		id, name, ok := Foreign(ifindex)
		if !ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("program %d (%s) is still on the interface", id, name)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAttachFallback(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	l.A.Do(func() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		// A veth end with one receive queue, whose peer has two transmit queues.
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = "narrow", 1, 1
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNumTxQueues, veth.PeerNumRxQueues = "wide", 2, 2
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		narrow, err := netlink.LinkByName("narrow")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name    string
			ifindex int
			errno   unix.Errno
			says    string
		}{
			{"lo", lo.Attrs().Index, unix.EOPNOTSUPP, "the driver has no XDP"},
			{"narrow", narrow.Attrs().Index, unix.ENOSPC, "receive queues"},
		} {
			p := load(t, Config{CarrierWait: -1})
			err := p.Attach(c.ifindex, Native)
			var refused *ModeError
			if !errors.As(err, &refused) || !errors.Is(err, c.errno) || refused.Mode != Native ||
				refused.Interface != c.name || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, native: %v", c.name, err)
			}
			if errors.Is(err, ErrNotSupported) != (c.errno == unix.EOPNOTSUPP) {
				t.Errorf("%s: ErrNotSupported does not match %v as it should", c.name, err)
			}
			if p.Attachment() != (Attachment{}) {
				t.Errorf("%s: attached after a refusal: %+v", c.name, p.Attachment())
			}
			if err := p.Attach(c.ifindex, Auto); err != nil {
				t.Fatalf("%s, auto: %v", c.name, err)
			}
			a := p.Attachment()
			if a.Mode != Generic || !errors.Is(a.Fallback, c.errno) ||
				!strings.Contains(a.Fallback.Error(), "native mode to "+c.name) {
				t.Errorf("%s, auto: %+v", c.name, a)
			}
			if err := p.Detach(); err != nil {
				t.Error(err)
			}
			expectNone(t, c.ifindex)
		}
	})
}

func TestAttachNoInterface(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	l.A.Do(func() {
		p := load(t, Config{})
		for _, ifindex := range []int{-1, 0, 4711} {
			err := p.Attach(ifindex, Auto)
			if !errors.Is(err, ErrNoInterface) {
				t.Errorf("interface %d: %v", ifindex, err)
			}
			if _, _, ok := Foreign(ifindex); ok {
				t.Errorf("interface %d has a program", ifindex)
			}
		}
		if err := p.Attach(l.A.Ifindex, Mode(7)); err == nil {
			t.Error("mode 7 was taken")
		}
	})
}

func TestCarrier(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	setPeer := func(up bool) {
		t.Helper()
		if err := l.B.DoErr(func() error {
			dev, err := netlink.LinkByName(l.B.Interface)
			if err != nil {
				return err
			}
			if up {
				return netlink.LinkSetUp(dev)
			}
			return netlink.LinkSetDown(dev)
		}); err != nil {
			t.Fatal(err)
		}
	}
	setPeer(false)
	l.A.Do(func() {
		const wait = 20 * time.Millisecond
		p := load(t, Config{CarrierWait: wait})
		start := time.Now()
		if err := p.Attach(l.A.Ifindex, Auto); err != nil {
			t.Fatal(err)
		}
		if a, d := p.Attachment(), time.Since(start); !a.Up || a.Carrier || d < wait {
			t.Errorf("peer down: %+v after %v", a, d)
		}
		if err := p.Detach(); err != nil {
			t.Fatal(err)
		}

		p = load(t, Config{CarrierWait: time.Minute})
		attached := make(chan struct{})
		go func() {
			defer close(attached)
			l.A.Do(func() {
				if err := p.Attach(l.A.Ifindex, Auto); err != nil {
					t.Error(err)
				}
			})
		}()
		for p.Attachment().ProgramID == 0 { // Attach has done its work and waits
			time.Sleep(time.Millisecond)
		}
		if _, err := p.Stats(); err != nil {
			t.Errorf("statistics while Attach waits: %v", err)
		}
		select {
		case <-attached:
			t.Error("Attach did not wait for the carrier")
		default:
		}
		setPeer(true)
		<-attached
		if a := p.Attachment(); !a.Up || !a.Carrier {
			t.Errorf("peer up: %+v", a)
		}
		if err := p.Detach(); err != nil {
			t.Fatal(err)
		}

		dev, err := netlink.LinkByName(l.A.Interface)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetDown(dev); err != nil {
			t.Fatal(err)
		}
		if err := p.Attach(l.A.Ifindex, Auto); err != nil { // does not wait a minute
			t.Fatal(err)
		}
		if a := p.Attachment(); a.Up || a.Carrier {
			t.Errorf("interface down: %+v", a)
		}
		if err := netlink.LinkDel(dev); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("close after the interface has gone: %v", err)
		}
	})
}

func TestAddresses(t *testing.T) {
	s := newSteering(t)
	verdict := func(vlan uint16, dst string) Verdict {
		t.Helper()
		f := frameSpec{dst: netip.MustParseAddr(dst), port: Port}
		if vlan != 0 {
			f.tags = []uint16{vlan}
		}
		return s.run(t, f.build(), nil)
	}
	change := func(f func(uint16, netip.Addr) error, vlan uint16, addr string) {
		t.Helper()
		if err := f(vlan, netip.MustParseAddr(addr)); err != nil {
			t.Error(err)
		}
	}
	const no, yes = VerdictOtherAddress, VerdictNoSocket
	expect := func(vlan uint16, dst string, want Verdict) {
		t.Helper()
		if got := verdict(vlan, dst); got != want {
			t.Errorf("to %s in VLAN %d: got %v, want %v", dst, vlan, got, want)
		}
	}
	expect(0, "192.0.2.1", no)
	change(s.Add, 0, "::ffff:192.0.2.1")
	change(s.Add, 0, "192.0.2.1")
	expect(0, "192.0.2.1", yes)
	expect(4094, "192.0.2.1", no)
	change(s.Add, 4094, "192.0.2.1")
	expect(4094, "192.0.2.1", yes)
	change(s.Remove, 0, "192.0.2.1") // it was added twice
	expect(0, "192.0.2.1", no)
	expect(4094, "192.0.2.1", yes)
	change(s.Remove, 0, "192.0.2.1")
	change(s.Add, 0, "fe80::1%veth0")
	expect(0, "fe80::1", yes)
	change(s.Remove, 0, "fe80::1%other")
	expect(0, "fe80::1", no)

	if err := s.Add(4095, ourIPv4); err == nil {
		t.Error("VLAN 4095 was taken")
	}
	if err := s.Add(0, netip.Addr{}); err == nil {
		t.Error("no address was taken")
	}
	if err := s.Remove(0, netip.Addr{}); err == nil {
		t.Error("no address was removed")
	}
}

func TestAddressTableFull(t *testing.T) {
	newSteering(t) // skips without privilege
	p := load(t, Config{Addresses: 2})
	a := netip.MustParseAddr("192.0.2.1")
	var errs []error
	for range 3 {
		errs = append(errs, p.Add(0, a))
		a = a.Next()
	}
	if errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], ErrTableFull) {
		t.Errorf("adding three to a table of two: %v", errs)
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{Queues: -1}, {Queues: 1 << 20}, {Addresses: -1},
		{Addresses: 1 << 24}} {
		if p, err := Load(cfg); err == nil {
			p.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestClose(t *testing.T) {
	newSteering(t)
	count := func() int {
		t.Helper()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	load(t, Config{}).Close() // what cilium/ebpf opens once
	before := count()
	p := load(t, Config{})
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Detach(); err != nil {
			t.Error(err)
		}
	}
	if after := count(); after != before {
		t.Errorf("%d file descriptors before, %d after", before, after)
	}
	_, statsErr := p.Stats()
	for _, err := range []error{p.Attach(1, Auto), p.Add(0, ourIPv4), p.Remove(0, ourIPv4),
		statsErr} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestModeErrorHints looks at causes that no device here gives.
func TestModeErrorHints(t *testing.T) {
	for errno, says := range map[unix.Errno]string{
		unix.ERANGE:   "MTU is too large",
		unix.EMSGSIZE: "now 9000",
		unix.ENOTCONN: "no peer",
		unix.ENOMEM:   "too few free TX rings",
		unix.EINVAL:   "LRO",
		unix.EIO:      "the kernel refused",
	} {
		e := &ModeError{"eth0", 9000, Native, fmt.Errorf("attach: %w", errno)}
		text := e.Error()
		if !strings.Contains(text, says) || !strings.Contains(text, errno.Error()) ||
			!strings.HasPrefix(text, "attach in native mode to eth0: ") ||
			strings.Contains(text, "\n") {
			t.Errorf("%v: %s", errno, text)
		}
	}
}
