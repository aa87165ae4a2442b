package qemu

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// modinfo returns the key=value strings that describe a kernel module.
func modinfo(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("it has no .modinfo")
	}
	b, err := s.Data()
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.Trim(string(b), "\x00"), "\x00"), nil
}

// libDirs are where the loader looks, below the root; packages still use both sides of the merge
// of / and /usr.
var libDirs = []string{libDir, "lib/x86_64-linux-gnu", "usr/lib", "lib"}

// neededBy returns the libraries that an ELF file names, its loader included, as paths below root.
// For any other file there are none.
func neededBy(root string, file []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, nil
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				return nil, err
			}
			paths = append(paths, strings.Trim(string(b), "/\x00"))
		}
	}
	for _, name := range names {
		path, err := findLibrary(root, name)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func findLibrary(root, name string) (string, error) {
	for _, dir := range libDirs {
		path := dir + "/" + name
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no package has the library %s", name)
}
