package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Image is what a guest boots from.
type Image struct {
	Kernel   string            // file: an uncompressed kernel
	Initrd   string            // file: its root file system
	Release  string            // uname -r
	Versions map[string]string // Debian packages: name to version
}

// agentPackage is the guest's first program; it is compiled with the Go that is found.
const agentPackage = "github.com/roxie-rdma/roxie/internal/qemu/agent"

// Files of an image's directory.
const (
	kernelFile   = "vmlinux"
	baseFile     = "base.cpio"
	versionsFile = "versions.json"
)

// CacheDir is where images are kept: roxie/guest in the user's cache directory.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for the guest's image: %w", err)
	}
	return filepath.Join(dir, "roxie", "guest"), nil
}

// Build returns the image, which it makes if it is not there or made from another recipe: some
// 100 MB are downloaded then. Packages keep the versions they had: remove the directory to have
// newer ones. log hears of what takes long; it may be nil. Several processes may build at once:
// one does, the others wait.
//
// It needs Debian's apt and dpkg, xz or zstd, and the Go tool, run in the project's module.
func Build(ctx context.Context, log func(format string, args ...any)) (*Image, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(cache, recipe())
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := build(ctx, dir, log); err != nil {
			return nil, fmt.Errorf("build the guest: %w", err)
		}
		removeOthers(dir)
	}
	img, err := open(dir)
	if err != nil {
		return nil, err
	}
	if err := img.addAgent(ctx, dir); err != nil {
		return nil, fmt.Errorf("build the guest: %w", err)
	}
	return img, nil
}

func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// removeOthers removes what older recipes made, or an interrupted build left.
func removeOthers(dir string) {
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*"))
	for _, d := range all {
		if info, err := os.Stat(d); err == nil && info.IsDir() && d != dir {
			_ = os.RemoveAll(d)
		}
	}
}

type versions struct {
	Release  string
	Packages map[string]string
}

func open(dir string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(dir, versionsFile))
	if err != nil {
		return nil, err
	}
	var v versions
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("%s: %w; remove %s", versionsFile, err, dir)
	}
	return &Image{Kernel: filepath.Join(dir, kernelFile), Release: v.Release,
		Versions: v.Packages}, nil
}

// build makes an image's directory: whole, or not at all.
func build(ctx context.Context, dir string, log func(string, ...any)) error {
	tmp := dir + ".part"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	root := filepath.Join(tmp, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	a := &apt{dir: tmp, log: log}
	kernel, debs, err := a.get(ctx, root)
	if err != nil {
		return err
	}
	v := versions{strings.TrimPrefix(kernel.name, "linux-image-"), map[string]string{}}
	for _, d := range append(debs, kernel) {
		v.Packages[d.name] = d.version
	}
	if err := assemble(ctx, tmp, root, &v); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(root), os.Remove(filepath.Join(tmp, aptStatus))); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// assemble makes the image's files from unpacked packages.
func assemble(ctx context.Context, dir, root string, v *versions) error {
	compressed, err := os.ReadFile(filepath.Join(root, "boot", "vmlinuz-"+v.Release))
	if err != nil {
		return err
	}
	kernel, err := uncompressedKernel(ctx, compressed)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", v.Release, err)
	}
	t := make(tree)
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		t.dir("usr/" + d)
		t.link(d, "usr/"+d)
	}
	for _, d := range directories {
		t.dir(d)
	}
	t.link("var/run", "../run")
	t.link("usr/bin/sh", "dash")
	for name, text := range textFiles {
		t.file(name, 0o644, []byte(text))
	}
	if err := addPrograms(t, root); err != nil {
		return err
	}
	if err := addApplets(ctx, t, root); err != nil {
		return err
	}
	if err := addModules(ctx, t, root, v.Release); err != nil {
		return err
	}
	var base bytes.Buffer
	if err := t.write(&base); err != nil {
		return err
	}
	text, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, kernelFile), kernel, 0o644),
		os.WriteFile(filepath.Join(dir, baseFile), base.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, versionsFile), append(text, '\n'), 0o644))
}

// merged is the path of a file where / and /usr are one, as in the guest.
func merged(path string) string {
	for _, d := range []string{"bin/", "sbin/", "lib/", "lib64/"} {
		if strings.HasPrefix(path, d) {
			return "usr/" + path
		}
	}
	return path
}

// addPrograms copies the programs and what they are linked with.
func addPrograms(t tree, root string) error {
	var add func(path string) error
	add = func(path string) error {
		if _, ok := t[merged(path)]; ok {
			return nil
		}
		full := filepath.Join(root, path)
		info, err := os.Stat(full)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		t.file(merged(path), info.Mode(), data)
		libs, err := neededBy(root, data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, l := range libs {
			if err := add(l); err != nil {
				return err
			}
		}
		return nil
	}
	for _, pattern := range programs {
		found := 0
		for _, p := range []string{pattern, strings.TrimPrefix(pattern, "usr/")} {
			files, err := fs.Glob(os.DirFS(root), p)
			if err != nil {
				return err
			}
			for _, f := range files {
				found++
				if err := add(f); err != nil {
					return err
				}
			}
		}
		if found == 0 {
			return fmt.Errorf("no package has %s", pattern)
		}
	}
	return nil
}

// addApplets gives busybox the names of all programs that nobody else provides.
func addApplets(ctx context.Context, t tree, root string) error {
	busybox := filepath.Join(root, "usr/bin/busybox")
	if _, err := os.Stat(busybox); err != nil {
		busybox = filepath.Join(root, "bin/busybox")
	}
	list, err := output(ctx, root, busybox, "--list")
	if err != nil {
		return err
	}
	for _, a := range strings.Fields(string(list)) {
		_, inBin := t["usr/bin/"+a]
		_, inSbin := t["usr/sbin/"+a]
		if !inBin && !inSbin {
			t.link("usr/bin/"+a, "busybox")
		}
	}
	t.link("usr/sbin/modprobe", "../bin/busybox") // where the kernel looks for it
	return nil
}

func addModules(ctx context.Context, t tree, root, release string) error {
	dir := filepath.Join(root, "lib/modules", release)
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(root, "usr/lib/modules", release)
	}
	set, err := newModuleSet(dir)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := set.add(ctx, m); err != nil {
			return err
		}
	}
	set.install(t, release)
	return nil
}

// addAgent compiles the agent and makes the image's initrd of the base and it, unless it is there.
func (img *Image) addAgent(ctx context.Context, dir string) error {
	bin := filepath.Join(dir, "agent.part")
	defer os.Remove(bin)
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-buildvcs=false",
		"-o", bin, agentPackage)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the agent: %w: %s", err, out)
	}
	agent, err := os.ReadFile(bin)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(agent)
	img.Initrd = filepath.Join(dir, "initrd-"+hex.EncodeToString(sum[:6])+".cpio")
	if _, err := os.Stat(img.Initrd); err == nil {
		return nil
	}
	old, _ := filepath.Glob(filepath.Join(dir, "initrd-*.cpio"))
	for _, f := range old {
		_ = os.Remove(f)
	}
	b, err := os.ReadFile(filepath.Join(dir, baseFile))
	if err != nil {
		return err
	}
	out := bytes.NewBuffer(b)
	if err := (tree{"init": {0o755, agent}}).write(out); err != nil {
		return err
	}
	part := img.Initrd + ".part"
	return errors.Join(os.WriteFile(part, out.Bytes(), 0o644), os.Rename(part, img.Initrd))
}
