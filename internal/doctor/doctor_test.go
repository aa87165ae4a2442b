package doctor

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/xdp"
)

// dropCaps takes capabilities from the calling thread.
func dropCaps(t *testing.T, caps ...netdev.Cap) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	must(t, unix.Capget(&head, &data[0]))
	for _, c := range caps {
		data[c/32].Effective &^= 1 << (c % 32)
	}
	must(t, unix.Capset(&head, &data[0]))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A fault is made in the namespace of a lab's A side. What it leaves behind goes with the test.
var faults = []struct {
	name    string
	make    func(t *testing.T, n *nettest.Namespace, veth netlink.Link)
	cfg     Config
	grade   Grade
	finding string // its name
	reason  string // a part of it
	fix     string // a part of it
}{
	{name: "none", grade: OK, finding: "link", reason: "up, driver veth"},
	{name: "missing", cfg: Config{Interface: "eth7"}, grade: Broken, finding: "link",
		reason: `no such interface "eth7" in this network namespace: it has lo, veth0`,
		fix:    "roxie devinfo -l"},
	{name: "no ethernet", cfg: Config{Interface: "lo"}, grade: Broken, finding: "link",
		reason: "lo is no Ethernet interface", fix: "roxie devinfo -l"},
	{name: "down", grade: Broken, finding: "link", reason: "is down", fix: "ip link set veth0 up",
		make: func(t *testing.T, _ *nettest.Namespace, veth netlink.Link) {
			must(t,
				netlink.LinkSetDown(veth))
		}},
	{name: "MTU 600", grade: Slow, finding: "mtu", reason: "link MTU 600: path MTU 512",
		fix: "ip link set veth0 mtu 1500", make: setMTU(600)},
	{name: "MTU 338", grade: Slow, finding: "mtu", reason: "none over IPv6, which needs 340",
		fix: "ip link set veth0 mtu 1500", make: setMTU(338)},
	{name: "MTU 300", grade: Broken, finding: "mtu",
		reason: "256, needs 336 over IPv4 and 340 over IPv6",
		fix:    "ip link set veth0 mtu 1500", make: setMTU(300)},
	{name: "foreign program", grade: Broken, finding: "xdp program", reason: "someone_elses",
		make: attachForeign},
	{name: "other roxie", grade: Broken, finding: "xdp program", reason: "roxie", make: openRoxie},
	{name: "second process", grade: Broken, finding: "socket", reason: "queue 0 of veth0 is in use by",
		fix: "kill ", make: holdQueue},
	{name: "no address", grade: Broken, finding: "address", reason: "no GID", fix: "ip addr add",
		make: func(t *testing.T, _ *nettest.Namespace, veth netlink.Link) {
			addrs, err := netlink.AddrList(veth, netlink.FAMILY_ALL)
			must(t, err)
			for _, a := range addrs {
				must(t, netlink.AddrDel(veth, &a))
			}
		}},
	{name: "CAP_NET_RAW", grade: Broken, finding: "capability", reason: "CAP_NET_RAW is missing",
		fix: "setcap", make: without(netdev.CapNetRaw)},
	{name: "CAP_NET_ADMIN", grade: Broken, finding: "capability", reason: "CAP_NET_ADMIN is missing",
		fix: "setcap", make: without(netdev.CapNetAdmin)},
	{name: "CAP_BPF", grade: Broken, finding: "capability", reason: "CAP_BPF is missing",
		fix: "setcap", make: without(netdev.CapBPF, netdev.CapSysAdmin)},
	{name: "too few queues", cfg: Config{Queues: 2}, grade: Broken, finding: "queues",
		reason: "2 queues are wanted; there are 1", fix: "--queues 1"},
	{name: "silent peer", cfg: Config{Peer: netip.MustParseAddr("10.77.0.9")}, grade: Broken,
		finding: "peer",
		reason:  "10.77.0.9 does not answer", fix: "see that the other end is up"},
	{name: "no way to a peer", cfg: Config{Peer: netip.MustParseAddr("198.51.100.1")}, grade: Broken,
		finding: "peer", reason: "no route", fix: "ip route add"},
}

func setMTU(n int) func(*testing.T, *nettest.Namespace, netlink.Link) {
	return func(t *testing.T, _ *nettest.Namespace, veth netlink.Link) {
		must(t, netlink.LinkSetMTU(veth, n))
	}
}

func without(caps ...netdev.Cap) func(*testing.T, *nettest.Namespace, netlink.Link) {
	return func(t *testing.T, _ *nettest.Namespace, _ netlink.Link) { dropCaps(t, caps...) }
}

func attachForeign(t *testing.T, n *nettest.Namespace, _ netlink.Link) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "someone_elses", Type: ebpf.XDP,
		License:      "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { _ = prog.Close() })
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: n.Ifindex})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

func openRoxie(t *testing.T, n *nettest.Namespace, _ netlink.Link) {
	c, err := verbs.Open(n.Interface, nil)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
}

const holdEnv = "ROXIE_DOCTOR_TEST_HOLD"

// holdQueue lets another process bind a socket, without a program.
func holdQueue(t *testing.T, n *nettest.Namespace, _ netlink.Link) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHold$")
	cmd.Env = append(os.Environ(), holdEnv+"="+n.Interface)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start()) // in the namespace: the thread stands in it
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the other process has not bound the queue: %v", err)
	}
}

// TestHold is the other process: it holds queue 0 until its input ends.
func TestHold(t *testing.T) {
	name := os.Getenv(holdEnv)
	if name == "" {
		return
	}
	runtime.LockOSThread()
	s, err := xdp.Open(xdp.Config{Interface: name, FillDepth: 8, TXFrames: 8})
	if err != nil {
		os.Exit(1)
	}
	defer s.Close()
	_, _ = os.Stdout.WriteString("!")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestFaults(t *testing.T) {
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each in a lab of its own
			l := nettest.New(t, lab.Config{MTU: 1500})
			var report *Report
			err := l.A.DoErr(func() (err error) {
				if tt.make != nil {
					veth, err := netlink.LinkByName(l.A.Interface)
					must(t, err)
					tt.make(t, l.A, veth)
				}
				if tt.cfg.Interface == "" {
					tt.cfg.Interface = l.A.Interface
				}
				report, err = Examine(tt.cfg)
				return err
			})
			must(t, err)
			var text bytes.Buffer
			must(t, report.Write(&text))
			if tt.grade == Broken && report.Grade != Broken || tt.grade < report.Sections[1].Grade {
				t.Errorf("report is %v, want %v", report.Grade, tt.grade)
			}
			f := findingLike(report, tt.finding, tt.reason)
			if f == nil || f.Grade != tt.grade || !strings.Contains(f.Fix, tt.fix) || tt.fix != "" &&
				f.Fix == "" {
				t.Errorf("found %+v, want a %v %s with %q and the fix %q", f, tt.grade, tt.finding, tt.reason,
					tt.fix)
			}
			if t.Failed() {
				t.Log(text.String())
			}
		})
	}
}

func findingLike(r *Report, name, reason string) *Finding {
	for i := range r.Sections {
		for j := range r.Sections[i].Findings {
			f := &r.Sections[i].Findings[j]
			if f.Name == name && strings.Contains(f.Reason, reason) {
				return f
			}
		}
	}
	return nil
}

const memlockEnv = "ROXIE_DOCTOR_TEST_MEMLOCK"

// TestMemlock: 64 KiB, and no right to more. It happens in a process of its own, for the limit
// cannot be raised again without that right.
func TestMemlock(t *testing.T) {
	if os.Getenv(memlockEnv) != "" {
		memlockChild(t)
		return
	}
	l := nettest.New(t, lab.Config{})
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemlock$", "-test.v")
	cmd.Env = append(os.Environ(), memlockEnv+"="+l.A.Interface)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, l.A.Start(cmd))
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func memlockChild(t *testing.T) {
	name := os.Getenv(memlockEnv)
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}))
	runtime.LockOSThread()
	dropCaps(t, netdev.CapIPCLock, netdev.CapSysResource)
	report, err := Examine(Config{Interface: name})
	must(t, err)
	f := findingLike(report, "memlock", "4096 KiB of memory must be locked, the limit is 64 KiB")
	if report.Grade != Broken || f == nil || f.Grade != Broken || !strings.Contains(f.Fix,
		"ulimit -l 4096") {
		t.Errorf("%v: %+v", report.Grade, f)
	}
	_, err = verbs.Open(name, nil) // says the same, and so the sum is the same
	var tooLow *netdev.MemlockError
	if !errors.As(err, &tooLow) || tooLow.Need != memlock("veth", 1) {
		t.Errorf("verbs.Open: %v, want a limit below %d bytes", err, memlock("veth", 1))
	}
}

// TestNothingRemains: an examination, with a try, leaves no program behind and the queue free.
func TestNothingRemains(t *testing.T) {
	l := nettest.New(t, lab.Config{})
	l.A.Do(func() {
		report, err := Examine(Config{Interface: l.A.Interface, Try: true})
		must(t, err)
		if f := findingLike(report, "try", "native"); f == nil || f.Grade != OK {
			t.Errorf("try: %+v", f)
		}
		if _, name, ok := bpf.Foreign(l.A.Ifindex); ok {
			t.Errorf("program %s is still attached", name)
		}
		c, err := verbs.Open(l.A.Interface, nil)
		must(t, err)
		must(t, c.Close())
	})
}

func TestAllInterfaces(t *testing.T) {
	l := nettest.New(t, lab.Config{})
	l.A.Do(func() {
		must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "idle"}}))
		report, err := Examine(Config{})
		must(t, err)
		grades := map[string]Grade{}
		for _, s := range report.Sections {
			grades[s.Name] = s.Grade
		}
		if grades["idle"] != Broken || grades["veth0"] == Broken || report.Grade == Broken {
			t.Errorf("%v, together %v: one interface that works is enough", grades, report.Grade)
		}
	})
}

// TestFirewall: a chain that drops concerns the TCP port of perf; one that drops ARP is fatal.
func TestFirewall(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("needs nft")
	}
	l := nettest.New(t, lab.Config{})
	l.A.Do(func() {
		for _, rule := range []string{
			"add table inet f", "add chain inet f in { type filter hook input priority 0; policy drop; }",
			"add rule inet f in udp dport 4791 drop",
		} {
			if out, err := exec.Command(nft, rule).CombinedOutput(); err != nil {
				t.Skipf("no nftables in this kernel: %s", out)
			}
		}
		report, err := Examine(Config{Interface: l.A.Interface})
		must(t, err)
		if f := findingLike(report, "firewall", "chain inet f in drops by default"); f == nil ||
			f.Grade != OK || !strings.Contains(f.Fix, "18515") {
			t.Errorf("input chain: %+v", f)
		}
		if f := findingLike(report, "firewall", "4791 have no effect"); f == nil || f.Grade != OK {
			t.Errorf("rules: %+v", f)
		}
		for _, rule := range []string{
			"add table arp f", "add chain arp f in { type filter hook input priority 0; policy drop; }",
		} {
			if out, err := exec.Command(nft, rule).CombinedOutput(); err != nil {
				t.Skipf("no ARP tables in this kernel: %s", out)
			}
		}
		report, err = Examine(Config{Interface: l.A.Interface})
		must(t, err)
		if f := findingLike(report, "arp", "drops ARP"); f == nil || f.Grade != Broken {
			t.Errorf("ARP chain: %+v", f)
		}
	})
}

func TestConfigCheck(t *testing.T) {
	for _, c := range []Config{{Queues: -1}, {Queues: 65}, {VLAN: 4095}, {Try: true},
		{Peer: netip.MustParseAddr("::1")}} {
		if _, err := Examine(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

func TestParsers(t *testing.T) {
	for s, want := range map[string][2]int{"6.18.44-fc": {6, 18}, "5.18.0": {5, 18}, "6.1": {6, 1},
		"7": {7, 0}, "": {0, 0}} {
		if got := parseRelease(s); got != want {
			t.Errorf("release %q: %v, want %v", s, got, want)
		}
	}
	for s, want := range map[string]float64{"50000 100000\n": 0.5, "max 100000\n": 0, "": 0,
		"1 0": 0} {
		if got := parseQuota(s); got != want {
			t.Errorf("quota %q: %v, want %v", s, got, want)
		}
	}
}
