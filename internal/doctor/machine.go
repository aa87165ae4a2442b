package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/netdev"
)

// machine is the first section, and what the others need to know of it.
type machine struct {
	Section
	caps    bool // all that are needed are there
	steer   bool // the kernel takes the steering program
	sockets bool // the kernel has AF_XDP, and lets us
	release [2]int
}

func examineMachine() machine {
	m := machine{Section: Section{Name: "machine"}}
	m.kernel()
	m.capabilities()
	m.afXDP()
	m.program()
	m.clock()
	m.cpus()
	return m
}

// older reports whether the kernel is older than a release.
func (m *machine) older(major, minor int) bool {
	return m.release[0] < major || m.release[0] == major && m.release[1] < minor
}

func (m *machine) kernel() {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		m.add("kernel", Broken, "", "uname: %v", err)
		return
	}
	release := unix.ByteSliceToString(name.Release[:])
	m.release = parseRelease(release)
	switch {
	case m.older(5, 18):
		m.add("kernel", Broken, "apt-get install linux-image-amd64 (or its like), and boot it",
			"Linux %s; roxie needs 5.18, which has multi-buffer XDP", release)
	case m.older(6, 6):
		m.add("kernel", Slow, "boot Linux 6.6 or later",
			"Linux %s: AF_XDP has frames of one buffer only, so that path MTU 4096 is not there",
			release)
	case m.older(6, 17):
		m.add("kernel", OK, "", "Linux %s (from 6.17 on, one system call sends more than 32 frames)",
			release)
	default:
		m.add("kernel", OK, "", "Linux %s", release)
	}
	if jit, err := readNumber("/proc/sys/net/core/bpf_jit_enable"); err == nil && jit == 0 {
		m.add("bpf jit", Slow, "sysctl -w net.core.bpf_jit_enable=1",
			"the kernel interprets BPF programs, the steering program too, for every frame")
	}
}

// parseRelease reads the first two numbers of a kernel's release.
func parseRelease(s string) (r [2]int) {
	for i := range r {
		digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
		r[i], _ = strconv.Atoi(s[:digits])
		s = strings.TrimPrefix(s[digits:], ".")
	}
	return r
}

// needed tells what each capability is for.
var needed = []struct {
	c   netdev.Cap
	why string
}{
	{netdev.CapNetRaw, "open AF_XDP sockets"},
	{netdev.CapNetAdmin, "attach the steering program"},
	{netdev.CapBPF, "load the steering program"},
}

func (m *machine) capabilities() {
	m.caps = true
	const fix = "run as root, or setcap cap_net_raw,cap_net_admin,cap_bpf+ep FILE, or " +
		"AmbientCapabilities= in the systemd unit"
	for _, n := range needed {
		if !netdev.HaveCap(n.c) {
			m.caps = false
			m.add("capability", Broken, fix, "%v is missing, which is needed to %s", n.c, n.why)
		}
	}
	if m.caps {
		m.add("capability", OK, "", "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF are in force")
	}
}

// afXDP tries to open a socket.
func (m *machine) afXDP() {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd)
		m.sockets = true
		m.add("af_xdp", OK, "", "the kernel opens AF_XDP sockets")
	case errors.Is(err, unix.EAFNOSUPPORT):
		m.add("af_xdp", Broken, "boot a kernel with CONFIG_XDP_SOCKETS=y (all of Debian's have it)",
			"the kernel was built without AF_XDP sockets")
	case errors.Is(err, unix.EPERM) && !netdev.HaveCap(netdev.CapNetRaw):
		// The line about the capability says so.
	default:
		m.add("af_xdp", Broken, "allow socket(AF_XDP): a container's seccomp profile or an LSM "+
			"forbids it (docker run --security-opt seccomp=unconfined)", "socket(AF_XDP): %v", err)
	}
}

// program loads the steering program, attached to nothing.
func (m *machine) program() {
	if !m.caps || m.older(5, 18) {
		return
	}
	p, err := bpf.Load(bpf.Config{Queues: 1, Addresses: 1})
	if err == nil {
		_ = p.Close()
		m.steer = true
		m.add("steering", OK, "", "the kernel takes the steering program")
		return
	}
	fix := "boot a kernel with CONFIG_BPF_SYSCALL=y; look at `dmesg` for what forbids bpf(2)"
	if inUserNamespace() {

		fix = "run it in the machine's own user namespace, not in a rootless container or unshare -U"
	}
	m.add("steering", Broken, fix, "%v", err)
}

// inUserNamespace reports whether the user ids of the process are mapped.
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

// clock: timers and latencies read it once a round, without a system call where the source is good.
func (m *machine) clock() {
	const dir = "/sys/devices/system/clocksource/clocksource0/"
	text, err := os.ReadFile(dir + "current_clocksource")
	if err != nil {
		return
	}
	source := strings.TrimSpace(string(text))
	switch source {
	case "tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter":
		m.add("clock", OK, "", "%s, read without a system call", source)
		return
	}
	all, _ := os.ReadFile(dir + "available_clocksource")
	for _, better := range []string{"tsc", "kvm-clock"} {
		if strings.Contains(string(all), better) {
			m.add("clock", Slow, "echo "+better+" > "+dir+"current_clocksource",
				"%s: each look at the clock is a system call", source)
			return
		}
	}
	m.add("clock", Slow, "boot with tsc=reliable, if the CPU's counter can be trusted",
		"%s: each look at the clock is a system call, and nothing better is there", source)
}

func (m *machine) cpus() {
	n := runtime.NumCPU()
	quota := cpuQuota()
	switch {
	case quota > 0 && quota < 1:
		m.add("cpu", Slow, "raise cpu.max of the control group (docker run --cpus=2)",
			"the control group allows %.2f of a CPU: pauses, which peers take for losses", quota)
	case n == 1:
		m.add("cpu", Slow, "give the process a second CPU (taskset, cpuset)",
			"one CPU: roxie's thread and the application take turns")
	default:
		m.add("cpu", OK, "", "%d CPUs", n)
	}
	if governor := governor(); governor == "powersave" || governor == "conservative" {
		m.add("frequency", Slow, "cpupower frequency-set -g performance",
			"the governor is %s: an idle CPU answers late", governor)
	}
	if !fastCRC() {
		m.add("icrc", Slow, "",
			"the CPU computes CRC32 without help: every byte is checked in software, and nothing mends that")
	}
}

// fastCRC reports whether hash/crc32 has instructions for the polynomial of the ICRC.
func fastCRC() bool {
	switch runtime.GOARCH {
	case "amd64":
		return cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41
	case "arm64":
		return cpu.ARM64.HasCRC32
	}
	return true // not known to be slow
}

// governor is the frequency governor of the first CPU that has one.
func governor() string {
	names, _ := filepath.Glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil {
			driver, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "scaling_driver"))
			if strings.HasPrefix(string(driver), "intel_pstate") {
				return "" // its "powersave" follows the load as others' schedutil does
			}
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

// cpuQuota is how many CPUs the control group of the process allows, 0 for no limit.
func cpuQuota() float64 {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if path, v2 := strings.CutPrefix(strings.TrimSpace(line), "0::"); v2 {
			limit, _ := os.ReadFile(filepath.Join("/sys/fs/cgroup", path, "cpu.max"))
			return parseQuota(string(limit))
		}
	}
	return 0
}

// parseQuota reads a cpu.max: microseconds of each period, or "max".
func parseQuota(s string) float64 {
	f := strings.Fields(s)
	if len(f) != 2 {
		return 0
	}
	quota, err1 := strconv.ParseFloat(f[0], 64)
	period, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || period <= 0 {
		return 0
	}
	return quota / period
}

func readNumber(name string) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
