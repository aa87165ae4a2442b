// Command agent is process 1 of the guest: it mounts what a Linux system needs, loads the modules
// that its kernel command line names, and runs the commands that come over the virtio-serial port.
// When the host's end of the port is gone, it switches the machine off.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/qemu/channel"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: this is process 1 of a guest, not a program to start")
		os.Exit(2)
	}
	err := serve()
	fmt.Println("agent: the channel is closed:", err)
	powerOff()
}

func powerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // process 1 must not end
}

func serve() error {
	trouble := prepare()
	port, err := openPort()
	if err != nil {
		return errors.Join(trouble, err)
	}
	a := &agent{conn: channel.New(port), jobs: make(map[uint32]*job)}
	hello := channel.Greeting{Kernel: kernelRelease(), Uptime: uptime()}
	if trouble != nil {
		hello.Error = trouble.Error()
	}
	if err := a.conn.SendJSON(channel.Hello, 0, hello); err != nil {
		return err
	}
	return a.run()
}

// mounts are the file systems of the guest, in order.
var mounts = []struct{ kind, at, options string }{
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"devtmpfs", "/dev", ""},
	{"devpts", "/dev/pts", ""},
	{"tmpfs", "/dev/shm", ""},
	{"tmpfs", "/run", ""},
	{"tmpfs", "/tmp", ""},
	{"debugfs", "/sys/kernel/debug", ""},
	{"bpf", "/sys/fs/bpf", ""},
}

// prepare sets the system up. Errors do not keep the agent from answering: the host decides.
func prepare() error {
	var errs []error
	for _, m := range mounts {
		_ = os.MkdirAll(m.at, 0o755)
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.at, err))
		}
	}
	for k, v := range map[string]string{
		"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb",
	} {
		_ = os.Setenv(k, v)
	}
	_ = os.Chdir("/root")
	free := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &free); err != nil {
		errs = append(errs, fmt.Errorf("unlimited locked memory: %w", err))
	}
	if modules := commandLine("roxie.modules"); modules != "" {
		args := append([]string{"-a"}, strings.Split(modules, ",")...)
		if out, err := exec.Command("modprobe", args...).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("modprobe: %w: %s", err, out))
		}
	}
	return errors.Join(errs...)
}

// commandLine returns the value of a word KEY=VALUE of the kernel's command line.
func commandLine(key string) string {
	line, _ := os.ReadFile("/proc/cmdline")
	for _, word := range strings.Fields(string(line)) {
		if k, v, _ := strings.Cut(word, "="); k == key {
			return v
		}
	}
	return ""
}

func kernelRelease() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}

func uptime() (seconds float64) {
	b, _ := os.ReadFile("/proc/uptime")
	_, _ = fmt.Sscan(string(b), &seconds)
	return seconds
}

// openPort finds the port by its name. Ports turn up some time after their driver.
func openPort() (*os.File, error) {
	const wait = 20 * time.Second
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, file := range names {
			name, _ := os.ReadFile(file)
			if strings.TrimSpace(string(name)) == channel.PortName {
				dev := "/dev/" + filepath.Base(filepath.Dir(file))
				// Blocking reads: the port's poll says "hang-up" until the host has connected.
				fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					return nil, fmt.Errorf("open %s: %w", dev, err)
				}
				return os.NewFile(uintptr(fd), dev), nil
			}
		}
	}
	return nil, fmt.Errorf("no virtio-serial port %q within %v", channel.PortName, wait)
}

// agent is the receiving side of the channel. Its map belongs to the goroutine of run; jobs that
// are over are taken out when a number is used again, never by themselves.
type agent struct {
	conn *channel.Conn
	jobs map[uint32]*job
}

func (a *agent) run() error {
	for {
		f, err := a.conn.Receive()
		if err != nil {
			return err
		}
		j := a.jobs[f.ID]
		switch f.Kind {
		case channel.Start:
			var c channel.Command
			if err := f.Decode(&c); err != nil {
				return err
			}
			a.jobs[f.ID] = a.start(f.ID, c.Argv)
		case channel.Stdin:
			if j != nil {
				j.stdin.add(f.Payload)
			}
		case channel.Signal:
			if j != nil && len(f.Payload) == 1 {
				j.signal(unix.Signal(f.Payload[0]))
			}
		}
	}
}

// start runs one command. Its end is reported by a goroutine.
func (a *agent) start(id uint32, argv []string) *job {
	j := &job{stdin: newPipe()}
	if len(argv) == 0 {
		a.exit(id, channel.Status{Code: -1, Error: "no command"})
		return j
	}
	j.cmd = exec.Command(argv[0], argv[1:]...)
	j.cmd.Stdin = j.stdin
	j.cmd.Stdout = a.conn.Writer(channel.Stdout, id)
	j.cmd.Stderr = a.conn.Writer(channel.Stderr, id)
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j.cmd.WaitDelay = time.Second // for what the command left in the background
	if err := j.cmd.Start(); err != nil {
		a.exit(id, channel.Status{Code: -1, Error: err.Error()})
		return j
	}
	j.pgid = j.cmd.Process.Pid
	go func() {
		err := j.cmd.Wait()
		j.stdin.close()
		s := channel.Status{Code: j.cmd.ProcessState.ExitCode()}
		if w, ok := j.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			s.Signal = int(w.Signal())
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
			s.Error = err.Error()
		}
		a.exit(id, s)
	}()
	return j
}

func (a *agent) exit(id uint32, s channel.Status) {
	if err := a.conn.SendJSON(channel.Exit, id, s); err != nil {
		fmt.Println("agent: report the end of a command:", err)
	}
}

// job is one command.
type job struct {
	cmd   *exec.Cmd
	pgid  int // 0: it never ran
	stdin *pipe
}

func (j *job) signal(s unix.Signal) {
	if j.pgid != 0 {
		_ = unix.Kill(-j.pgid, s)
	}
}
