package xdp

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// From linux/sock_diag.h and linux/xdp_diag.h.
const (
	sockDiagByFamily = 20
	xdpShowInfo      = 1 // ask for XDP_DIAG_INFO
	xdpDiagInfo      = 1 // attribute: u32 ifindex, u32 queue
	sizeofDiagReq    = 20
	sizeofDiagMsg    = 16
)

// holders finds the processes that have an AF_XDP socket other than fd bound to the queue, as far as
// socket diagnostics and /proc show them. It runs only on the way to an error.
func holders(fd, ifindex, queue int) []Holder {
	own := uint32(0)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		own = uint32(st.Ino)
	}
	inodes := map[string]bool{}
	for _, ino := range boundInodes(ifindex, queue) {
		if ino != own {
			inodes["socket:["+strconv.FormatUint(uint64(ino), 10)+"]"] = true
		}
	}
	if len(inodes) == 0 {
		return nil
	}
	var found []Holder
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		if holdsFD(p, inodes) || holdsMapping(p, inodes) {
			pid, _ := strconv.Atoi(filepath.Base(p))
			comm, _ := os.ReadFile(p + "/comm")
			found = append(found, Holder{PID: pid, Command: strings.TrimSpace(string(comm))})
		}
	}
	return found
}

// holdsFD says whether a process has one of the sockets open.
func holdsFD(proc string, inodes map[string]bool) bool {
	fds, _ := os.ReadDir(proc + "/fd")
	for _, f := range fds {
		if to, err := os.Readlink(proc + "/fd/" + f.Name()); err == nil && inodes[to] {
			return true
		}
	}
	return false
}

// holdsMapping says whether a process still maps a ring of one of the sockets, which is enough to keep
// the queue bound.
func holdsMapping(proc string, inodes map[string]bool) bool {
	maps, _ := os.ReadFile(proc + "/maps")
	for line := range strings.Lines(string(maps)) {
		if i := strings.Index(line, "socket:["); i >= 0 && inodes[strings.TrimSpace(line[i:])] {
			return true
		}
	}
	return false
}

// boundInodes asks the kernel for the AF_XDP sockets of this network namespace and returns the inodes
// of those on the queue. It returns none if the kernel has no AF_XDP diagnostics.
func boundInodes(ifindex, queue int) []uint32 {
	nl, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil
	}
	defer unix.Close(nl)
	tv := unix.NsecToTimeval(1e9)
	_ = unix.SetsockoptTimeval(nl, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	req := make([]byte, unix.NLMSG_HDRLEN+sizeofDiagReq)
	le := binary.NativeEndian
	le.PutUint32(req[0:], uint32(len(req)))
	le.PutUint16(req[4:], sockDiagByFamily)
	le.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	req[unix.NLMSG_HDRLEN] = unix.AF_XDP
	le.PutUint32(req[unix.NLMSG_HDRLEN+8:], xdpShowInfo)
	if unix.Sendto(nl, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return nil
	}
	var inodes []uint32
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(nl, buf, 0)
		if err != nil || n < unix.NLMSG_HDRLEN {
			return inodes
		}
		for m := buf[:n]; len(m) >= unix.NLMSG_HDRLEN; {
			size := int(le.Uint32(m))
			if size < unix.NLMSG_HDRLEN || size > len(m) || le.Uint16(m[4:]) != sockDiagByFamily {
				return inodes // the end of the dump, or an error
			}
			if ino, ok := matchDiag(m[unix.NLMSG_HDRLEN:size], ifindex, queue); ok {
				inodes = append(inodes, ino)
			}
			m = m[min(len(m), (size+3)&^3):]
		}
	}
}

// matchDiag reads one xdp_diag_msg with its attributes.
func matchDiag(m []byte, ifindex, queue int) (inode uint32, ok bool) {
	le := binary.NativeEndian
	if len(m) < sizeofDiagMsg {
		return 0, false
	}
	inode = le.Uint32(m[4:])
	for a := m[sizeofDiagMsg:]; len(a) >= 4; {
		size := int(le.Uint16(a))
		if size < 4 || size > len(a) {
			return 0, false
		}
		if le.Uint16(a[2:]) == xdpDiagInfo && size >= 12 {
			return inode, int(le.Uint32(a[4:])) == ifindex && int(le.Uint32(a[8:])) == queue
		}
		a = a[min(len(a), (size+3)&^3):]
	}
	return 0, false
}
