package lab_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// output runs a command in a namespace.
func output(t testing.TB, n *lab.Namespace, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
	return out.String()
}

func TestLab(t *testing.T) {
	before := hostState(t)
	l := nettest.New(t, nettest.Config{Queues: 3, MTU: 4200})
	if want := fmt.Sprintf("%s.%d.", lab.Prefix, os.Getpid()); !strings.HasPrefix(l.Name, want) {
		t.Errorf("the name is %s, want %s…", l.Name, want)
	}
	for i, n := range []*lab.Namespace{l.A, l.B} {
		if n.Name != l.Name+[]string{"-a", "-b"}[i] || n.Interface != "veth0" || n.Ifindex < 2 ||
			len(n.MAC) != 6 || n.MTU != 4200 || n.Queues != 3 ||
			n.IPv4 != netip.AddrFrom4([4]byte{10, 77, 0, byte(1 + i)}) ||
			n.IPv6 != netip.MustParseAddr(fmt.Sprintf("fd77::%d", 1+i)) || len(n.Addrs) != 2 {
			t.Errorf("%+v", n)
		}
		if _, err := os.Stat(filepath.Join("/run/netns", n.Name)); err != nil {
			t.Error(err)
		}
		// The command sees the namespace's own /sys.
		queues := strings.Fields(output(t, n, "ls", "/sys/class/net", "/sys/class/net/veth0/queues"))
		want := strings.Fields("/sys/class/net: lo veth0 /sys/class/net/veth0/queues: " +
			"rx-0 rx-1 rx-2 tx-0 tx-1 tx-2")
		if !slices.Equal(queues, want) {
			t.Errorf("%s shows %v", n.Name, queues)
		}
	}
	if names, err := lab.List(); err != nil || !slices.Contains(names, l.Name) {
		t.Errorf("list: %v %v, want %s in it", names, err, l.Name)
	}
	if stale, err := lab.Stale(); err != nil || slices.Contains(stale, l.Name) {
		t.Errorf("stale: %v %v", stale, err)
	}
	exchange(t, l, "udp4")
	exchange(t, l, "udp6")
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := l.A.DoErr(func() error { return nil }); err == nil {
		t.Error("a namespace of a closed lab can be entered")
	}
	if after := hostState(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// hostState is what a lab must not change in the caller's namespaces. Labs of others that run at
// the same time are left out.
func hostState(t testing.TB) string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var state []string
	for _, l := range links {
		state = append(state, fmt.Sprintf("%d %s %s", l.Attrs().Index, l.Attrs().Name, l.Type()))
	}
	for _, what := range []string{"net", "mnt"} {
		ns, err := os.Readlink("/proc/self/ns/" + what)
		if err != nil {
			t.Fatal(err)
		}
		state = append(state, ns)
	}
	own, err := filepath.Glob(fmt.Sprintf("/run/netns/%s.%d.*", lab.Prefix, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if !strings.Contains(line, "/run/netns/") {
			state = append(state, line)
		}
	}
	return strings.Join(append(state, own...), "\n")
}

// exchange sends a datagram from A to B and back.
func exchange(t testing.TB, l *lab.Lab, network string) {
	t.Helper()
	addr := l.B.IPv4
	if network == "udp6" {
		addr = l.B.IPv6
	}
	var server net.PacketConn
	if err := l.B.DoErr(func() (err error) {
		server, err = net.ListenPacket(network, netip.AddrPortFrom(addr, 4000).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var client net.Conn
	if err := l.A.DoErr(func() (err error) {
		client, err = net.Dial(network, server.LocalAddr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	deadline := time.Now().Add(10 * time.Second)
	server.SetDeadline(deadline)
	client.SetDeadline(deadline)
	if _, err := client.Write([]byte("there")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, from, err := server.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "there" {
		t.Fatalf("%s: B got %q, %v", network, buf[:n], err)
	}
	if _, err := server.WriteTo([]byte("back"), from); err != nil {
		t.Fatal(err)
	}
	n, err = client.Read(buf)
	if err != nil || string(buf[:n]) != "back" {
		t.Fatalf("%s: A got %q, %v", network, buf[:n], err)
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []lab.Config{
		{Queues: -1}, {Queues: 4097}, {MTU: 67}, {MTU: 65536}, {Name: "elsewhere"},
		{Name: "roxie/../x"}, {Name: "roxie" + strings.Repeat("x", 300)},
		{Interface: "sixteen-letters-"},
	} {
		if l, err := lab.New(cfg); err == nil {
			l.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestOptions(t *testing.T) {
	prefixes := func(s ...string) (p []netip.Prefix) {
		for _, s := range s {
			p = append(p, netip.MustParsePrefix(s))
		}
		return p
	}
	a := prefixes("192.0.2.1/24", "192.0.2.3/24", "2001:db8::1/64")
	l := nettest.New(t, nettest.Config{Interface: "wire", Neighbours: true,
		A: a, B: prefixes("192.0.2.2/24")})
	if !slices.Equal(l.A.Addrs, a) || l.A.IPv4 != a[0].Addr() || l.A.IPv6 != a[2].Addr() ||
		l.B.IPv6.IsValid() || l.A.MTU != 9000 || l.A.Queues != 1 || l.A.Interface != "wire" {
		t.Errorf("A: %+v\nB: %+v", l.A, l.B)
	}
	l.B.Do(func() {
		neighs, err := netlink.NeighList(l.B.Ifindex, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range a {
			if !slices.ContainsFunc(neighs, func(n netlink.Neigh) bool {
				return n.IP.Equal(p.Addr().AsSlice()) && n.State == netlink.NUD_PERMANENT &&
					bytes.Equal(n.HardwareAddr, l.A.MAC)
			}) {
				t.Errorf("no neighbour %v in %v", p.Addr(), neighs)
			}
		}
	})
	exchange(t, l, "udp4")

	for _, cfg := range []nettest.Config{{NoIPv6: true}, {MTU: 1279}} {
		l := nettest.New(t, cfg)
		if l.A.IPv6.IsValid() || l.B.IPv6.IsValid() || !l.A.IPv4.IsValid() {
			t.Errorf("%+v: A has %v, B has %v", cfg, l.A.Addrs, l.B.Addrs)
		}
	}
}

// TestNamed keeps a lab over its Close, finds it again, and removes it.
func TestNamed(t *testing.T) {
	cfg := lab.Config{Name: fmt.Sprintf("%s-test-%d", lab.Prefix, os.Getpid()), Queues: 2}
	l := nettest.New(t, cfg)
	if again, err := lab.New(cfg); !errors.Is(err, os.ErrExist) {
		t.Fatalf("a second lab of the name: %v %v", again, err)
	}
	exchange(t, l, "udp4") // the refusal has not harmed it
	l.Keep()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Remove(cfg.Name) })
	found, err := lab.Open(cfg.Name)
	if err != nil {
		t.Fatal(err)
	}
	if found.A.IPv4 != l.A.IPv4 || found.A.Ifindex != l.A.Ifindex || found.B.Queues != 2 ||
		!bytes.Equal(found.B.MAC, l.B.MAC) {
		t.Errorf("found %+v and %+v", found.A, found.B)
	}
	exchange(t, found, "udp6")
	if err := found.Close(); err != nil {
		t.Error(err)
	}
	if err := lab.Remove(cfg.Name); err != nil {
		t.Error(err)
	}
	if err := lab.Remove(cfg.Name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remove again: %v", err)
	}
	if _, err := lab.Open(cfg.Name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open: %v", err)
	}
	for _, f := range []func(string) error{lab.Remove, func(name string) error {
		_, err := lab.Open(name)
		return err
	}} {
		if err := f("../etc"); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("a name that is none: %v", err)
		}
	}
}

// TestHalfBuilt has a lab fail at its last steps and at its second namespace: nothing stays. What
// an interrupted build leaves, Remove takes away.
func TestHalfBuilt(t *testing.T) {
	nettest.New(t, nettest.Config{}) // skips without the right
	name := fmt.Sprintf("%s-half-%d", lab.Prefix, os.Getpid())
	t.Cleanup(func() { lab.Remove(name) })
	expectGone := func() {
		t.Helper()
		if names, err := lab.List(); err != nil || slices.Contains(names, name) {
			t.Errorf("%v %v", names, err)
		}
	}
	twice := netip.MustParsePrefix("192.0.2.1/24")
	if _, err := lab.New(lab.Config{Name: name, B: []netip.Prefix{twice, twice}}); err == nil {
		t.Error("an address was added twice")
	}
	expectGone()
	if _, err := lab.New(lab.Config{Name: name, Interface: "no/name"}); err == nil {
		t.Error("an interface with a slash")
	}
	expectGone()

	half := filepath.Join("/run/netns", name+"-b")
	if err := os.WriteFile(half, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if names, err := lab.List(); err != nil || !slices.Contains(names, name) {
		t.Errorf("a half-built lab is not listed: %v %v", names, err)
	}
	if _, err := lab.New(lab.Config{Name: name}); !errors.Is(err, os.ErrExist) {
		t.Errorf("built over half a lab: %v", err)
	}
	if _, err := os.Stat(filepath.Join("/run/netns", name+"-a")); err == nil {
		t.Error("the other half was left behind")
	}
	if err := lab.Remove(name); err != nil {
		t.Error(err)
	}
	expectGone()
}

func netnsOf(t testing.TB) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestDo looks at threads and namespaces.
func TestDo(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	host := netnsOf(t)
	var inA, inB string
	var tid int
	l.A.Do(func() {
		inA, tid = netnsOf(t), unix.Gettid()
		runtime.Gosched()
		if unix.Gettid() != tid {
			t.Error("the goroutine moved to another thread")
		}
		l.B.Do(func() { inB = netnsOf(t) })
		if now := netnsOf(t); now != inA {
			t.Errorf("Do in Do left %s for %s", inA, now)
		}
	})
	if inA == host || inB == host || inA == inB || netnsOf(t) != host {
		t.Errorf("host %s and %s, A %s, B %s", host, netnsOf(t), inA, inB)
	}
	task := fmt.Sprintf("/proc/self/task/%d", tid)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(task); errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the thread did not end")
		}
	}
	// Whatever threads there are now, none is in a namespace of the lab.
	for range 64 {
		done := make(chan string)
		go func() { done <- netnsOf(t) }()
		if ns := <-done; ns != host {
			t.Fatalf("a goroutine runs in %s", ns)
		}
	}
	// The main thread, whose namespace is that of /proc/self, is never used, and never lost.
	main, err := os.Readlink("/proc/self/ns/net")
	if err != nil || main != host {
		t.Errorf("the main thread is in %s, %v, not in %s", main, err, host)
	}
	for range 200 {
		l.A.Do(func() {
			if unix.Gettid() == unix.Getpid() || netnsOf(t) != inA {
				t.Errorf("on thread %d of process %d, in %s", unix.Gettid(), unix.Getpid(),
					netnsOf(t))
			}
		})
	}
	want := errors.New("an error")
	if err := l.A.DoErr(func() error { return want }); err != want {
		t.Errorf("DoErr: %v", err)
	}
}

func TestDoPanicAndGoexit(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	func() {
		defer func() {
			if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "boom") ||
				!strings.Contains(fmt.Sprint(r), "TestDoPanicAndGoexit") {
				t.Errorf("recovered %v, want boom and its stack", r)
			}
		}()
		l.A.Do(func() { panic("boom") })
		t.Error("the panic did not go on")
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.A.Do(runtime.Goexit)
		t.Error("Goexit did not go on")
	}()
	<-done
}
