package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// runDir is where ip netns looks for namespaces.
const runDir = "/run/netns"

// Namespace is one side of a [Lab]. Its methods may be called from several goroutines.
type Namespace struct {
	Name      string // in /run/netns
	Interface string // its end of the veth pair
	Ifindex   int
	MAC       net.HardwareAddr
	MTU       int            // link MTU, bytes
	Queues    int            // receive and transmit queues each
	Addrs     []netip.Prefix // without the link-local address
	IPv4      netip.Addr     // the first of Addrs; invalid if there is none
	IPv6      netip.Addr     // the first of Addrs; invalid if there is none

	fd   netns.NsHandle
	done chan struct{} // closed by Lab.Close
}

// Do runs f in the namespace, on a thread of its own that ends afterwards, and returns when f has.
// Sockets, netlink handles and XDP links opened in f stay in the namespace wherever they are used;
// goroutines started in f are not in it. A panic in f goes on in the caller, and if f ends by
// runtime.Goexit, as t.FailNow does, so does the caller.
func (n *Namespace) Do(f func()) {
	if err := n.do(f); err != nil {
		panic(err) // the lab is closed: the caller's mistake
	}
}

// DoErr is Do for a function with an error. It returns that error, or the reason why the namespace
// could not be entered.
func (n *Namespace) DoErr(f func() error) error {
	var err error
	if enterErr := n.do(func() { err = f() }); enterErr != nil {
		return enterErr
	}
	return err
}

func (n *Namespace) do(f func()) error {
	var err error
	onOwnThread(func() {
		if err = n.enter(); err == nil {
			f()
		}
	})
	return err
}

// enter moves the calling thread into the namespace.
func (n *Namespace) enter() error {
	if err := netns.Set(n.fd); err != nil {
		return fmt.Errorf("enter namespace %s: %w", n.Name, err)
	}
	return nil
}

// Start starts a command in the namespace, with a /sys that shows the namespace's interfaces, like
// ip netns exec. The caller waits for it with cmd.Wait. A command whose SysProcAttr has Pdeathsig
// gets that signal when the lab is closed or this process dies, not earlier.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go onOwnThread(func() {
		err := n.enter()
		if err == nil {
			err = remountSysfs()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil && cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
			<-n.done // the kernel signals the child when the thread that forked it ends
		}
	})
	return <-started
}

// remountSysfs gives the calling thread a mount namespace of its own, in which /sys belongs to its
// network namespace. The control groups stay in place: the Go runtime reads its CPU limit there. A
// host that allows no new sysfs keeps the old one.
func remountSysfs() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("detach mount namespace: %w", err)
	}
	const cgroup = "/sys/fs/cgroup"
	old, err := unix.Open(cgroup, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(old)
	}
	if unix.Mount("sysfs", "/sys", "sysfs", 0, "") != nil || err != nil {
		return nil
	}
	_ = unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", old), cgroup, "",
		unix.MS_BIND|unix.MS_REC, "")
	return nil
}

// newNamespace makes a named namespace, in which IPv6 addresses are usable at once, and nothing is
// heard that was not asked for. On an error nothing is left.
func newNamespace(name string) (*Namespace, error) {
	n := &Namespace{Name: name, fd: netns.None(), done: make(chan struct{})}
	var err error
	onOwnThread(func() {
		if n.fd, err = netns.NewNamed(name); err == nil {
			setSysctls()
		}
	})
	if err == nil {
		return n, nil
	}
	err = fmt.Errorf("make namespace %s: %w", name, err)
	if errors.Is(err, os.ErrExist) {
		return nil, err
	}
	cleanup := removeNamespace(name)
	if errors.Is(cleanup, os.ErrPermission) {
		cleanup = nil // said once is enough
	}
	return nil, errors.Join(err, cleanup)
}

// setSysctls turns off what would delay IPv6 addresses or add frames to the wire. Where /proc/sys
// is read-only, or the kernel has no IPv6, the lab does without.
func setSysctls() {
	for _, kv := range [][2]string{
		{"disable_ipv6", "0"},
		{"accept_dad", "0"},
		{"accept_ra", "0"},
		{"router_solicitations", "0"},
	} {
		for _, scope := range []string{"all", "default"} {
			path := filepath.Join("/proc/sys/net/ipv6/conf", scope, kv[0])
			_ = os.WriteFile(path, []byte(kv[1]), 0)
		}
	}
}

// openNamespace opens one that exists.
func openNamespace(name string) (*Namespace, error) {
	fd, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", name, err)
	}
	return &Namespace{Name: name, fd: fd, done: make(chan struct{})}, nil
}

// close gives the handle back; the namespace stays.
func (n *Namespace) close() error {
	if !n.fd.IsOpen() {
		return nil
	}
	close(n.done)
	return n.fd.Close()
}

// removeNamespace takes the name away; the namespace goes with its last process and handle. It is
// no error if there is none, or only an empty file that an interrupted build left.
func removeNamespace(name string) error {
	path := filepath.Join(runDir, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace: %w", err)
	}
	return nil
}
