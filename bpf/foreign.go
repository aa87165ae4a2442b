package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Foreign tells which XDP program is on an interface of the calling thread's network namespace, if
// any: its id and, where it may be read (CAP_SYS_ADMIN), its name. ok is false if there is none, or
// no such interface. A [Program] that is attached there counts too.
func Foreign(ifindex int) (id uint32, name string, ok bool) {
	l, err := queryLink(ifindex)
	if err != nil {
		return 0, "", false
	}
	id, _ = l.program()
	if id == 0 {
		return 0, "", false
	}
	return id, programName(id), true
}

// findLink is queryLink with ErrNoInterface.
func findLink(ifindex int) (*linkState, error) {
	l, err := queryLink(ifindex)
	if ifindex < 1 || errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("interface %d: %w", ifindex, ErrNoInterface)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %d: %w", ifindex, err)
	}
	return l, nil
}

func foreignError(ifindex int, l *linkState) *ForeignError {
	e := &ForeignError{Ifindex: ifindex, Interface: l.name}
	e.ID, e.Mode = l.program()
	e.Name = programName(e.ID)
	e.PID, e.Command = programHolder(e.ID)
	return e
}

// programName returns an empty name if it may not be read.
func programName(id uint32) string {
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return ""
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// programHolder looks for a process with a file descriptor of the program or of a link to it. It
// sees only processes whose /proc entries it may read.
func programHolder(id uint32) (pid int, command string) {
	want := []byte("prog_id:\t" + strconv.FormatUint(uint64(id), 10) + "\n")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		name := filepath.Base(dir)
		if !holds(dir, want) {
			continue
		}
		pid, _ = strconv.Atoi(name)
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return pid, strings.TrimSpace(string(comm))
	}
	return 0, ""
}

func holds(dir string, want []byte) bool {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err != nil || !strings.HasPrefix(target, "anon_inode:bpf") {
			continue
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", fd.Name()))
		if err == nil && bytes.Contains(info, want) {
			return true
		}
	}
	return false
}
