package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// This file hands an attached program over to a process that may do none of this itself.

// NumFiles is how many files [Program.Files] returns.
const NumFiles = 4

// Files returns descriptors of the link, the XSKMAP, the address table and the counters, in this
// order, for [FromFiles] in another process. They are duplicates that the caller closes: the program
// stays on its interface until the last holder of the link has closed it. Linux 5.19 or later lets a
// process without capabilities use them. It is an error if the program is not attached.
func (p *Program) Files() (files []*os.File, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lnk, ok := p.link.(interface{ FD() int })
	if !ok {
		return nil, errors.New("hand over the steering program: it is not attached")
	}
	for _, h := range []struct {
		name string
		fd   int
	}{
		{"link", lnk.FD()}, {"sockets", p.objs.Sockets.FD()},
		{"addresses", p.objs.Addresses.FD()}, {"counters", p.objs.Counters.FD()},
	} {
		fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, fmt.Errorf("duplicate %s: %w", h.name, err)
		}
		files = append(files, os.NewFile(uintptr(fd), h.name))
	}
	return files, nil
}

// FromFiles makes a Program of what Files returned in another process and that program's Attachment.
// Add, Remove, Stats and XSKMap work as there; once detached it cannot be attached again. The files
// are closed, also with an error.
func FromFiles(files []*os.File, a Attachment) (_ *Program, err error) {
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if len(files) != NumFiles {
		return nil, fmt.Errorf("take over the steering program: %d files, want %d", len(files), NumFiles)
	}
	p := &Program{attached: a}
	defer func() {
		if err != nil {
			_ = p.Close()
		}
	}()
	fd, err := dup(files[0])
	if err != nil {
		return nil, err
	}
	if p.link, err = link.NewFromFD(fd); err != nil {
		return nil, fmt.Errorf("take over link: %w", err)
	}
	for i, m := range []**ebpf.Map{&p.objs.Sockets, &p.objs.Addresses, &p.objs.Counters} {
		if fd, err = dup(files[1+i]); err != nil {
			return nil, err
		}
		if *m, err = ebpf.NewMapFromFD(fd); err != nil {
			return nil, fmt.Errorf("take over map: %w", err)
		}
	}
	p.cfg = Config{Queues: int(p.objs.Sockets.MaxEntries()), Addresses: int(p.objs.Addresses.MaxEntries())}
	return p, nil
}

func dup(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return fd, nil
}
