package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/qemu/channel"
)

// ErrGone says that the guest is not running any more.
var ErrGone = errors.New("the guest is gone")

// errStillborn says that the emulator ended before anything in the guest had answered.
var errStillborn = errors.New(Emulator + " ended")

// births is how often a guest is started whose kernel does not live to answer. Seen twice in some
// dozens of starts, on a busy machine: an oops, int3, where the kernel has just patched its own code
// (sched_clock_cpu has a static key that turns two seconds after the start). One emulated processor
// still ran what the other had replaced. No program of ours runs in the guest by then.
const births = 3

// Emulator is the program that runs guests.
const Emulator = "qemu-system-x86_64"

// Config says how to boot a guest. The zero value is good.
type Config struct {
	// MTU is the link MTU of the tap and of the guest's eth0, in bytes; 0 means 9000. It can be
	// made smaller later, not larger.
	MTU int
	// CPUs and Memory (MiB) of the machine; 0 means 2 and 1024.
	CPUs, Memory int
	// Nice is the emulator's priority, as in nice(1): an emulated machine that has to wait for a
	// processor seems to stand still to its peers.
	Nice int
	// BootTimeout is how long the guest may take until it answers; 0 means 60 seconds.
	BootTimeout time.Duration
	// Log, if not nil, is told of a start that failed and is tried again.
	Log func(format string, args ...any)
}

// The names and addresses of both ends.
const (
	TapName   = "tap0" // here
	GuestLink = "eth0" // in the guest
	GuestRDMA = "rxe0" // the RDMA device on it
)

// Addresses of the tap and of the guest.
var (
	HostIPv4  = netip.MustParsePrefix("10.77.0.1/24")
	HostIPv6  = netip.MustParsePrefix("fd77::1/64")
	GuestIPv4 = netip.MustParsePrefix("10.77.0.2/24")
	GuestIPv6 = netip.MustParsePrefix("fd77::2/64")
)

// GuestMAC is the MAC address of the guest's interface.
var GuestMAC = net.HardwareAddr{0x02, 'R', 'o', 'x', 'i', 'e'}

// The GID indices of the guest's addresses; index 0 is the link-local one.
const (
	GuestGIDv4 = 1
	GuestGIDv6 = 2
)

// Guest is a running guest. Its methods may be called from several goroutines.
type Guest struct {
	// Side is the namespace with the tap.
	Side   *lab.Namespace
	Image  *Image
	Booted time.Duration // from the emulator's start until all was set up

	lab     *lab.Lab
	console *os.File
	proc    *exec.Cmd
	exited  chan struct{}
	conn    *channel.Conn
	sock    *os.File
	hello   chan channel.Greeting

	mu    sync.Mutex
	next  uint32
	jobs  map[uint32]*Cmd
	gone  error // set once the channel has ended
	once  sync.Once
	cause error // of Close
}

// Start boots a guest and returns when it answers and its RDMA device is there. ctx bounds the
// start only; Close ends the guest. It needs root.
func Start(ctx context.Context, img *Image, cfg Config) (*Guest, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 9000
	}
	if cfg.CPUs == 0 {
		cfg.CPUs = 2
	}
	if cfg.Memory == 0 {
		cfg.Memory = 1024
	}
	if cfg.BootTimeout == 0 {
		cfg.BootTimeout = 60 * time.Second
	}
	if err := removeStale(); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		g, err := start(ctx, img, cfg)
		if n == births || !errors.Is(err, errStillborn) {
			return g, err
		}
		if cfg.Log != nil {
			cfg.Log("%v; starting it again", err)
		}
	}
}

func start(ctx context.Context, img *Image, cfg Config) (*Guest, error) {
	g := &Guest{Image: img, exited: make(chan struct{}), jobs: make(map[uint32]*Cmd),
		hello: make(chan channel.Greeting, 1)}
	ctx, cancel := context.WithTimeout(ctx, cfg.BootTimeout)
	defer cancel()
	start := time.Now()
	if err := g.boot(ctx, &cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("boot the guest: %w", err), g.Close())
	}
	if err := g.setUp(ctx, cfg.MTU); err != nil {
		return nil, errors.Join(fmt.Errorf("set the guest up: %w", err), g.Close())
	}
	g.Booted = time.Since(start)
	return g, nil
}

// labPrefix starts the names of this package's labs.
const labPrefix = lab.Prefix + "-guest."

// removeStale takes down labs of guests whose process was killed.
func removeStale() error {
	names, err := lab.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		pid, ours := strings.CutPrefix(name, labPrefix)
		if !ours {
			continue
		}
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			if err := lab.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (g *Guest) boot(ctx context.Context, cfg *Config) error {
	var err error
	// The lab's own link has no part in this; its addresses only keep out of the way.
	g.lab, err = lab.New(lab.Config{
		Name: fmt.Sprintf("%s%d", labPrefix, os.Getpid()), NoIPv6: true,
		A: []netip.Prefix{netip.MustParsePrefix("10.78.0.1/30")},
		B: []netip.Prefix{netip.MustParsePrefix("10.78.0.2/30")},
	})
	if err != nil {
		return err
	}
	g.Side = g.lab.A
	var tap *os.File
	err = g.Side.DoErr(func() error {
		if tap, err = openTap(TapName); err != nil {
			return err
		}
		_, err = setUpTap(TapName, cfg.MTU, []netip.Prefix{HostIPv4, HostIPv6})
		return err
	})
	if tap != nil {
		defer tap.Close()
	}
	if err != nil {
		return err
	}
	// The console is a file without a name: it is only read to say why something failed.
	fd, err := unix.MemfdCreate("guest-console", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make a file for the console: %w", err)
	}
	g.console = os.NewFile(uintptr(fd), "guest-console")
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "guest-port")
	defer theirs.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return errors.Join(err, unix.Close(pair[0]))
	}
	g.sock = os.NewFile(uintptr(pair[0]), "guest-channel")
	g.conn = channel.New(g.sock)
	return g.launch(ctx, cfg, theirs, tap)
}

// Numbers of the files that the emulator inherits.
const (
	portFD = 3 + iota
	tapFD
	consoleFD
)

// launch starts the emulator and waits for the agent's greeting.
func (g *Guest) launch(ctx context.Context, cfg *Config, port, tap *os.File) error {
	g.proc = exec.Command(Emulator, arguments(g.Image, cfg)...)
	g.proc.ExtraFiles = []*os.File{port, tap, g.console}
	g.proc.Stdout, g.proc.Stderr = g.console, g.console
	g.proc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
	started := make(chan error)
	go func() {
		// Pdeathsig goes by the thread that forks: this one stays as long as the emulator runs.
		runtime.LockOSThread()
		err := g.proc.Start()
		started <- err
		if err == nil {
			_ = g.proc.Wait()
		}
		close(g.exited)
	}()
	if err := <-started; err != nil {
		g.proc = nil
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%s is missing: install Debian's qemu-system-x86", Emulator)
		}
		return err
	}
	go g.receive()
	if cfg.Nice != 0 {
		if err := SetPriority(g.proc.Process.Pid, cfg.Nice); err != nil {
			return fmt.Errorf("%s: %w", Emulator, err)
		}
	}
	select {
	case h := <-g.hello:
		if h.Error != "" {
			return errors.New(h.Error)
		}
		return g.preferNetwork(cfg.Nice)
	case <-g.exited:
		return fmt.Errorf("%w; its console ends with: %s", errStillborn, g.Console(60))
	case <-ctx.Done():
		return fmt.Errorf("no answer: %w; its console ends with: %s", ctx.Err(), g.Console(10))
	}
}

// preferNetwork gives the emulator's first thread, which moves packets and has little to do, a higher
// priority than the threads that emulate processors and are busy whenever a program in the guest
// polls. Else it waits behind them: for all of 4 s that were looked at on a busy machine, for 1 ms
// each time.
func (g *Guest) preferNetwork(nice int) error {
	if nice >= 0 {
		return nil
	}
	const highest = -20
	err := unix.Setpriority(unix.PRIO_PROCESS, g.proc.Process.Pid, max(highest, nice+highest/2))
	if err != nil {
		return fmt.Errorf("set the priority of the first thread of %s: %w", Emulator, err)
	}
	return nil
}

// arguments is the emulator's command line. Each processor has a timer that ticks by itself: cells in
// which a program spins there (perftest's latency tests) take 2.6 s; with one that is set anew for
// each tick 3.5 s. It still happens that nothing but that program runs for seconds.
func arguments(img *Image, cfg *Config) []string {
	kernel := []string{"console=ttyS0", "quiet", "loglevel=4", "panic=-1", "oops=panic",
		"mitigations=off", "nokaslr", "tsc=reliable", "no_timer_check", "nohz=off", "highres=off",
		"random.trust_cpu=on", "cryptomgr.notests=1", "audit=0", "net.ifnames=0",
		"roxie.modules=" + strings.Join(bootModules, ",")}
	return []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", fmt.Sprint(cfg.CPUs), "-m", fmt.Sprint(cfg.Memory),
		"-kernel", img.Kernel, "-initrd", img.Initrd, "-append", strings.Join(kernel, " "),
		"-chardev", fmt.Sprintf("file,id=console,path=/dev/fd/%d,append=on", consoleFD),
		"-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=port,fd=%d", portFD),
		"-device", "virtserialport,chardev=port,name=" + channel.PortName,
		"-netdev", fmt.Sprintf("tap,id=net,fd=%d", tapFD),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net,mac=%v,host_mtu=%d", GuestMAC, cfg.MTU),
		"-device", "virtio-rng-pci",
	}
}

// setUp gives the guest its addresses and its RDMA device.
func (g *Guest) setUp(ctx context.Context, mtu int) error {
	// The default queue, fq_codel, drops packets that wait, which is all of them in a slow machine.
	script := fmt.Sprintf(`
echo pfifo >/proc/sys/net/core/default_qdisc
ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/%[1]s/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/%[1]s/accept_ra
echo 0 >/proc/sys/net/ipv6/conf/%[1]s/router_solicitations
ip link set %[1]s mtu %[2]d txqueuelen %[6]d
ip addr add %[3]v dev %[1]s
ip -6 addr add %[4]v dev %[1]s nodad
ip link set %[1]s up
rdma link add %[5]s type rxe netdev %[1]s
`, GuestLink, mtu, GuestIPv4, GuestIPv6, GuestRDMA, tapQueue)
	if _, err := g.Shell(ctx, script).Output(); err != nil {
		return fmt.Errorf("%w; the console ends with: %s", err, g.Console(5))
	}
	return nil
}

// SetMTU changes the link MTU of both ends, in bytes, up to the one the guest was started with.
func (g *Guest) SetMTU(ctx context.Context, mtu int) error {
	if err := g.SetHostMTU(mtu); err != nil {
		return err
	}
	_, err := g.Command(ctx, "ip", "link", "set", GuestLink, "mtu", fmt.Sprint(mtu)).Output()
	return err
}

// SetHostMTU changes the link MTU of the tap only.
func (g *Guest) SetHostMTU(mtu int) error {
	return g.Side.DoErr(func() error {
		_, err := setUpTap(TapName, mtu, nil)
		return err
	})
}

// begin gives a command its number and sends it.
func (g *Guest) begin(c *Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone != nil {
		return g.gone
	}
	g.next++
	c.id = g.next
	g.jobs[c.id] = c
	if err := g.conn.SendJSON(channel.Start, c.id, channel.Command{Argv: c.Argv}); err != nil {
		delete(g.jobs, c.id)
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// receive hands on what comes from the guest, until the channel ends.
func (g *Guest) receive() {
	err := g.handOn()
	g.mu.Lock()
	g.gone = fmt.Errorf("%w: %w", ErrGone, err)
	jobs := g.jobs
	g.jobs = nil
	g.mu.Unlock()
	for _, c := range jobs {
		c.finish(channel.Status{}, g.gone)
	}
}

func (g *Guest) handOn() error {
	for {
		f, err := g.conn.Receive()
		if err != nil {
			return err
		}
		g.mu.Lock()
		c := g.jobs[f.ID]
		if f.Kind == channel.Exit {
			delete(g.jobs, f.ID)
		}
		g.mu.Unlock()
		switch {
		case f.Kind == channel.Hello:
			var h channel.Greeting
			if err := f.Decode(&h); err != nil {
				return err
			}
			g.hello <- h
		case c == nil:
		case f.Kind == channel.Stdout:
			c.write(c.Stdout, f.Payload)
		case f.Kind == channel.Stderr:
			c.write(c.Stderr, f.Payload)
		case f.Kind == channel.Exit:
			var s channel.Status
			if err := f.Decode(&s); err != nil {
				return err
			}
			c.finish(s, nil)
		}
	}
}

// Console returns the last lines that the kernel and the emulator wrote.
func (g *Guest) Console(lines int) string {
	if g.console == nil {
		return ""
	}
	const tail = 16 << 10
	info, err := g.console.Stat()
	if err != nil {
		return ""
	}
	at := max(0, info.Size()-tail)
	b := make([]byte, info.Size()-at)
	n, _ := g.console.ReadAt(b, at)
	return lastLines(string(b[:n]), lines)
}

// Exited is closed when the emulator has ended.
func (g *Guest) Exited() <-chan struct{} { return g.exited }

// Close ends the guest, takes tap and namespace away and waits until all is gone. Commands that
// still run fail with ErrGone. Closing twice is fine.
func (g *Guest) Close() error {
	g.once.Do(func() {
		var errs []error
		if g.proc != nil {
			// There is nothing in it to be saved.
			if err := g.proc.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				errs = append(errs, fmt.Errorf("end the guest: %w", err))
			}
			<-g.exited
		}
		for _, f := range []*os.File{g.sock, g.console} {
			if f != nil {
				errs = append(errs, f.Close())
			}
		}
		if g.lab != nil {
			errs = append(errs, g.lab.Close())
		}
		g.cause = errors.Join(errs...)
	})
	return g.cause
}
