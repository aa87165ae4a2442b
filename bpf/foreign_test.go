package bpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// somebody loads a program that is not ours.
func somebody(t testing.TB) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody", Type: ebpf.XDP, License: "BSD",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// TestForeign has programs of others on the interface, by bpf_link and by netlink, in both modes:
// each is named and stays.
func TestForeign(t *testing.T) {
	l := nettest.New(t, nettest.Config{MTU: 1500})
	prog := somebody(t)
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	l.A.Do(func() {
		dev, err := netlink.LinkByName(l.A.Interface)
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range []Mode{Native, Generic} {
			flags := link.XDPDriverMode
			if mode == Generic {
				flags = link.XDPGenericMode
			}
			lnk, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.A.Ifindex,
				Flags: flags})
			if err != nil {
				t.Fatal(err)
			}
			expectForeign(t, l.A, uint32(id), mode)
			if err := lnk.Close(); err != nil {
				t.Fatal(err)
			}
			expectNone(t, l.A.Ifindex)

			if err := netlink.LinkSetXdpFdWithFlags(dev, prog.FD(), int(flags)); err != nil {
				t.Fatal(err)
			}
			expectForeign(t, l.A, uint32(id), mode)
			followAdvice(t, l.A, dev, mode)
			expectNone(t, l.A.Ifindex)
		}
		if err := load(t, Config{}).Attach(l.A.Ifindex, Auto); err != nil {
			t.Errorf("after the others are gone: %v", err)
		}
	})
}

// followAdvice does what the message about a program without a process says, if ip is there to do
// it, and otherwise the same.
func followAdvice(t *testing.T, ns *nettest.Namespace, dev netlink.Link, mode Mode) {
	t.Helper()
	_, text, ok := strings.Cut((&ForeignError{Interface: ns.Interface, Mode: mode}).Error(), "(")
	command, _, found := strings.Cut(text, ")")
	if !ok || !found {
		t.Fatalf("no advice in %q", text)
	}
	argv := strings.Fields(command)
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Log(err)
		flags := map[Mode]link.XDPAttachFlags{Native: link.XDPDriverMode, Generic: link.XDPGenericMode}
		if err := netlink.LinkSetXdpFdWithFlags(dev, -1, int(flags[mode])); err != nil {
			t.Fatal(err)
		}
		return
	}
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func expectForeign(t *testing.T, ns *nettest.Namespace, id uint32, mode Mode) {
	t.Helper()
	for _, ask := range []Mode{Auto, Native, Generic} {
		p := load(t, Config{})
		err := p.Attach(ns.Ifindex, ask)
		var foreign *ForeignError
		if !errors.As(err, &foreign) {
			t.Fatalf("%v beside a foreign program in %v mode: %v", ask, mode, err)
		}
		want := ForeignError{ns.Ifindex, ns.Interface, id, "somebody", mode, os.Getpid(),
			foreign.Command}
		if *foreign != want || foreign.Roxie() {
			t.Errorf("%v: got %+v, want %+v", ask, *foreign, want)
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("id %d (somebody), %v mode", id, mode)) {
			t.Errorf("the message does not name the program: %v", err)
		}
		// Past the first look, as if the other had come in between.
		l, err := findLink(ns.Ifindex)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []Mode{Native, Generic} {
			if lnk, err := p.attach(ns.Ifindex, l, m); !errors.As(err, &foreign) {
				t.Errorf("late %v attach: %v %v", m, lnk, err)
			}
		}
		if got, name, ok := Foreign(ns.Ifindex); got != id || name != "somebody" || !ok {
			t.Fatalf("the foreign program was replaced by %d (%s)", got, name)
		}
	}
}

// TestKill kills a process that has attached: the interface is free at once. Before that, its
// message names the process.
func TestKill(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	cmd, line := startChild(t, l.A, "attach "+l.A.Interface)
	l.A.Do(func() {
		var id uint32
		if n, err := fmt.Sscanf(line, "attached %d", &id); n != 1 {
			t.Fatalf("the child says %q: %v", line, err)
		}
		p := load(t, Config{})
		err := p.Attach(l.A.Ifindex, Auto)
		var foreign *ForeignError
		if !errors.As(err, &foreign) || foreign.ID != id || !foreign.Roxie() ||
			foreign.PID != cmd.Process.Pid || foreign.Command == "" {
			t.Errorf("beside the child, process %d with program %d: %v", cmd.Process.Pid, id, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		expectNone(t, l.A.Ifindex)
		if err := p.Attach(l.A.Ifindex, Native); err != nil {
			t.Errorf("after the kill: %v", err)
		}
		end := time.Now().Add(10 * time.Second)
		for {
			prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
			if errors.Is(err, os.ErrNotExist) {
				break
			}
			if err == nil {
				prog.Close()
			}
			if time.Now().After(end) {
				t.Fatalf("program %d outlives its process: %v", id, err)
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// TestCapabilities loads and attaches in processes with few capabilities.
func TestCapabilities(t *testing.T) {
	l := nettest.New(t, nettest.Config{Queues: 2})
	const bpfCap, netAdmin = 1 << unix.CAP_BPF, 1 << unix.CAP_NET_ADMIN
	for _, c := range []struct {
		name string
		mask uint64
		want string
	}{
		{"none", 0, "missing CAP_BPF and CAP_NET_ADMIN: run as root"},
		{"net_admin", netAdmin, "missing CAP_BPF: run as root, or setcap cap_bpf+ep"},
		{"bpf", bpfCap, "missing CAP_NET_ADMIN: run as root"},
		{"both", bpfCap | netAdmin, "attached "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, line := startChild(t, l.A, fmt.Sprintf("caps %s %x", l.A.Interface, c.mask))
			if !strings.Contains(line, c.want) {
				t.Errorf("got %q, want %q in it", line, c.want)
			}
		})
	}
}
