package qemu

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
)

// tree is a root file system in memory: what is at each path, without leading slash.
type tree map[string]node

type node struct {
	mode fs.FileMode // with fs.ModeDir or fs.ModeSymlink; permissions
	data []byte      // of a file, or the target of a link
}

func (t tree) file(name string, perm fs.FileMode, data []byte) {
	t.dir(path.Dir(name))
	t[name] = node{perm.Perm(), data}
}

func (t tree) link(name, target string) {
	t.dir(path.Dir(name))
	t[name] = node{fs.ModeSymlink | 0o777, []byte(target)}
}

func (t tree) dir(name string) {
	for ; name != "." && name != "/"; name = path.Dir(name) {
		if _, ok := t[name]; ok {
			return
		}
		t[name] = node{fs.ModeDir | 0o755, nil}
	}
}

// File type bits of a cpio header, those of stat(2).
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

// write writes the tree as a cpio archive in the "newc" format that the kernel unpacks as its
// initial root (Documentation/driver-api/early-userspace/buffer-format.rst): a header of 13 numbers,
// name and data, each padded to 4 bytes. Several archives may follow each other.
func (t tree) write(w io.Writer) error {
	names := slices.Sorted(maps.Keys(t)) // a directory comes before what is in it
	for i, name := range names {
		n := t[name]
		kind := uint32(typeFile)
		switch {
		case n.mode.IsDir():
			kind = typeDir
		case n.mode&fs.ModeSymlink != 0:
			kind = typeLink
		}
		if err := writeEntry(w, uint32(i+1), kind|uint32(n.mode.Perm()), name, n.data); err != nil {
			return err
		}
	}
	return writeEntry(w, 0, 0, "TRAILER!!!", nil)
}

func writeEntry(w io.Writer, inode, mode uint32, name string, data []byte) error {
	var b bytes.Buffer
	b.WriteString("070701")
	for _, v := range [13]uint32{
		0: inode, 1: mode, 4: 1 /* links */, 6: uint32(len(data)), 11: uint32(len(name) + 1),
	} {
		fmt.Fprintf(&b, "%08x", v)
	}
	b.WriteString(name)
	b.WriteByte(0)
	b.Write(make([]byte, -b.Len()&3))
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, -len(data)&3))
	return err
}
