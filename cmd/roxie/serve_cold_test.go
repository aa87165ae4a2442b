package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/verbs"
)

const coldSize = 256 << 20

// pinger sends 64 bytes to the echo service, one message after the other, until it is told to stop.
type pinger struct {
	stop chan struct{}
	done chan []time.Duration
}

func ping(l *link) *pinger {
	p := &pinger{stop: make(chan struct{}), done: make(chan []time.Duration, 1)}
	go func() {
		var took []time.Duration
		var wc [2]verbs.WC
		defer func() { p.done <- took }()
		for {
			select {
			case <-p.stop:
				return
			default:
			}
			began := time.Now()
			err := l.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{l.mem.SGE(0, 64)}})
			if err == nil {
				err = l.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{l.mem.SGE(64, 64)}})
			}
			for n := 0; n < 2 && err == nil; {
				var k int
				k, err = l.cq.Poll(wc[:])
				for i := range wc[:k] {
					if wc[i].Status != verbs.WCSuccess {
						err = fmt.Errorf("%v", wc[i].Status)
					}
				}
				n += k
			}
			if err != nil {
				l.t.Error(err)
				return
			}
			took = append(took, time.Since(began))
			time.Sleep(200 * time.Microsecond)
		}
	}()
	return p
}

// report stops and says how long the messages took, in microseconds.
func (p *pinger) report(b *testing.B, what string) {
	close(p.stop)
	took := <-p.done
	if len(took) == 0 {
		b.Fatal("no message came back")
	}
	slices.Sort(took)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p99", 0.99}, {"max", 1}} {
		d := took[min(int(q.at*float64(len(took))), len(took)-1)]
		b.ReportMetric(float64(d)/1e3, what+"-"+q.name+"-µs")
	}
}

// readAll READs an export, 1 MiB after the other in no order.
func readAll(b *testing.B, l *link) {
	b.Helper()
	for _, i := range rand.Perm(coldSize >> 20) {
		if got := l.do(verbs.WRRDMARead, uint64(i)<<20, 1<<20); got != verbs.WCSuccess {
			b.Fatal(got)
		}
	}
}

// chill makes the kernel drop the pages of a file, those that process pid has mapped, too.
func chill(b *testing.B, file *os.File, pid int) {
	b.Helper()
	if pid != 0 {
		pageOut(b, file.Name(), pid)
	}
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		b.Fatal(err)
	}
}

func pageOut(b *testing.B, name string, pid int) {
	b.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		b.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, name) {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			b.Fatal(err)
		}
		v := struct{ base, length uintptr }{from, to - from}
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&v)), 1,
			unix.MADV_PAGEOUT, 0, 0)
		if errno != 0 && errno != unix.EINVAL { // locked: stays
			b.Fatal(errno)
		}
	}
}

// BenchmarkServeCold: how long 64-byte messages take there and back while another peer READs an
// export of 256 MiB: whose file is in memory (warm), is being read when the peer comes (cold), and
// has been driven out of memory, as far as it lets itself, while the peer was there (chilled);
// with and without the right to lock it.
func BenchmarkServeCold(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	for _, locked := range []bool{true, false} {
		name := "locked"
		if !locked {
			name = "unlocked"
		}
		b.Run(name, func(b *testing.B) { serveCold(b, locked) })
	}
}

func serveCold(b *testing.B, locked bool) {
	l := nettest.New(b, nettest.Config{})
	dir := b.TempDir()
	image := filepath.Join(dir, "image")
	content := make([]byte, coldSize)
	for i := range content {
		content[i] = byte(i >> 12)
	}
	writeFile(b, image, content)
	file, err := os.Open(image)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		b.Fatal(err)
	}
	chill(b, file, 0)
	conf := filepath.Join(dir, "roxie.yaml")
	writeFile(b, conf, fmt.Appendf(nil, "interfaces: [{name: veth0}]\nservices: {echo: }\n"+
		"exports: [{name: image, file: %s, allow: [10.77.0.0/24]}]\n", image))
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	command := []string{exe, "serve", "--config", conf, "-v"}
	if !locked {
		command = append([]string{"sh", "-c", `ulimit -l 8192 && exec setpriv "$@"`, "sh",
			"--bounding-set=-ipc_lock,-sys_resource"}, command...)
	}
	p, err := launchAs(b, l.A, exec.Command(command[0], command[1:]...))
	if err != nil {
		b.Fatal(err)
	}
	p.ready()
	c := newClient(b, l.B)
	e, err := c.dial("10.77.0.1:7175", nil)
	if err != nil {
		b.Fatal(err)
	}
	pings := ping(e)
	disk := c.export("image", false)
	readAll(b, disk)
	pings.report(b, "cold")
	pings = ping(e)
	readAll(b, disk)
	pings.report(b, "warm")
	chill(b, file, p.cmd.Process.Pid)
	pings = ping(e)
	readAll(b, disk)
	pings.report(b, "chilled")
	b.ReportMetric(0, "ns/op")
	if got := strings.Contains(p.logged(), "memory cannot be locked"); got == locked {
		b.Errorf("log says that memory cannot be locked: %v", got)
	}
}
