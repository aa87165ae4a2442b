package qemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// decompressors are the programs for what kernels and modules are compressed with, by magic.
var decompressors = []struct {
	magic string
	argv  []string
}{
	{"\xfd7zXZ\x00", []string{"xz", "-dc", "--single-stream"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-qdc"}},
	{"\x1f\x8b", []string{"gzip", "-dc"}},
}

// decompress returns what data holds. Data in no known compression is returned as it is.
func decompress(ctx context.Context, data []byte) ([]byte, error) {
	for _, d := range decompressors {
		if !bytes.HasPrefix(data, []byte(d.magic)) {
			continue
		}
		c := exec.CommandContext(ctx, d.argv[0], d.argv[1:]...)
		c.Stdin = bytes.NewReader(data)
		out, err := c.Output()
		// Trailing bytes make zstd and gzip complain after all has come out.
		if err != nil && len(out) == 0 {
			return nil, fmt.Errorf("%s: %w", d.argv[0], err)
		}
		return out, nil
	}
	return data, nil
}

// Offsets in the header of a bzImage (Documentation/arch/x86/boot.rst).
const (
	setupSectorsAt  = 0x1f1
	headerMagicAt   = 0x202
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	sectorLen       = 512
)

// uncompressedKernel takes the ELF image out of a bzImage, which saves its decompression at each
// boot: that costs seconds on an emulated processor.
func uncompressedKernel(ctx context.Context, image []byte) ([]byte, error) {
	if len(image) < sectorLen*2 || string(image[headerMagicAt:headerMagicAt+4]) != "HdrS" {
		return nil, fmt.Errorf("no bzImage")
	}
	setup := (int(image[setupSectorsAt]) + 1) * sectorLen
	at := setup + int(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	n := int(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if at < 0 || n < 4 || at+n > len(image) {
		return nil, fmt.Errorf("bzImage with its payload outside")
	}
	// The last four bytes are the length of what comes out.
	elf, err := decompress(ctx, image[at:at+n-4])
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil, fmt.Errorf("bzImage in an unknown compression")
	}
	return elf, nil
}

// module is one kernel module.
type module struct {
	name    string // with underscores
	path    string // below the kernel's module directory, uncompressed name
	data    []byte
	depends []string
	aliases []string
}

// moduleSet finds modules of an unpacked kernel package and all that they need.
type moduleSet struct {
	files   map[string]string // by name
	builtin map[string]bool
	dir     string
	loaded  map[string]*module
	order   []*module // after what they depend on
}

func newModuleSet(dir string) (*moduleSet, error) {
	s := &moduleSet{files: make(map[string]string), builtin: make(map[string]bool), dir: dir,
		loaded: make(map[string]*module)}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(d.Name(), ".ko") {
			s.files[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for _, path := range strings.Fields(string(list)) {
		s.builtin[moduleName(path)] = true
	}
	return s, nil
}

// moduleName is the name of the module in a file, or of one that is written with dashes.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// add loads a module and, before it, what it needs.
func (s *moduleSet) add(ctx context.Context, name string) error {
	name = moduleName(name)
	if s.builtin[name] || s.loaded[name] != nil {
		return nil
	}
	file, ok := s.files[name]
	if !ok {
		return fmt.Errorf("the kernel has no module %s", name)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if data, err = decompress(ctx, data); err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	rel, err := filepath.Rel(s.dir, file)
	if err != nil {
		return err
	}
	rel, _, _ = strings.Cut(rel, ".ko")
	m := &module{name: name, path: rel + ".ko", data: data}
	s.loaded[name] = m
	info, err := modinfo(data)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	for _, kv := range info {
		key, value, _ := strings.Cut(kv, "=")
		switch key {
		case "depends":
			m.depends = append(m.depends, strings.FieldsFunc(value, isComma)...)
		case "alias":
			m.aliases = append(m.aliases, value)
		}
	}
	for _, d := range m.depends {
		if err := s.add(ctx, d); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
	s.order = append(s.order, m)
	return nil
}

func isComma(r rune) bool { return r == ',' }

// needs lists all modules that one needs, nearest first, as modules.dep has them.
func (s *moduleSet) needs(m *module) []*module {
	var all []*module
	for _, name := range m.depends {
		d := s.loaded[moduleName(name)]
		if d == nil {
			continue // built in
		}
		for _, n := range append([]*module{d}, s.needs(d)...) {
			// One that is needed twice is loaded first: it goes to the end.
			all = append(slices.DeleteFunc(all, func(o *module) bool { return o == n }), n)
		}
	}
	return all
}

// install puts the modules into the tree, with the tables that modprobe reads.
func (s *moduleSet) install(t tree, release string) {
	dir := "usr/lib/modules/" + release + "/"
	var dep, alias strings.Builder
	for _, m := range s.order {
		t.file(dir+m.path, 0o644, m.data)
		fmt.Fprintf(&dep, "%s:", m.path)
		for _, n := range s.needs(m) {
			fmt.Fprintf(&dep, " %s", n.path)
		}
		dep.WriteByte('\n')
		for _, a := range m.aliases {
			fmt.Fprintf(&alias, "alias %s %s\n", a, m.name)
		}
	}
	t.file(dir+"modules.dep", 0o644, []byte(dep.String()))
	t.file(dir+"modules.alias", 0o644, []byte(alias.String()))
	t.file(dir+"modules.symbols", 0o644, nil)
	for _, name := range []string{"modules.builtin", "modules.order"} {
		if b, err := os.ReadFile(filepath.Join(s.dir, name)); err == nil {
			t.file(dir+name, 0o644, b)
		}
	}
}
