package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// apt fetches Debian packages without installing them: it is told that nothing is installed.
type apt struct {
	dir string // for its state and for what it fetches
	log func(format string, args ...any)
}

// aptStatus is the list of what is installed: empty.
const aptStatus = "status"

// deb is one package, as apt would install it.
type deb struct{ name, version string }

func (a *apt) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	state := filepath.Join(a.dir, aptStatus)
	if err := os.WriteFile(state, nil, 0o644); err != nil {
		return nil, err
	}
	args = append([]string{"-o", "Dir::State::status=" + state, "-o", "APT::Sandbox::User=root",
		"-o", "Debug::NoLocking=1", "-q"}, args...)
	return output(ctx, a.dir, program, args...)
}

// output runs a command and puts what it says on standard error into the error.
func output(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%s is missing: the guest is made from Debian packages, on Debian", program)
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", program, err, lastLines(stderr.String(), 5))
	}
	return out, nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// update fetches the lists of packages, which needs root.
func (a *apt) update(ctx context.Context) error {
	a.log("apt-get update")
	_, err := output(ctx, a.dir, "apt-get", "-q", "update")
	return err
}

// get fetches what the image needs and unpacks it into root. The lists of packages may be missing or
// older than the archive: before it is content with another kernel than it wants, or gives up, it has them
// fetched anew.
func (a *apt) get(ctx context.Context, root string) (kernel deb, all []deb, err error) {
	if kernel, all, err = a.try(ctx, root, kernelPackage); err == nil {
		return kernel, all, nil
	}
	if upErr := a.update(ctx); upErr != nil {
		return kernel, nil, errors.Join(err, upErr)
	}
	return a.try(ctx, root, kernelPackage, otherKernel)
}

func (a *apt) try(ctx context.Context, root string, kernels ...string) (kernel deb, all []deb, err error) {
	if kernel, all, err = a.resolve(ctx, kernels); err != nil {
		return kernel, nil, err
	}
	a.log("download %s and %d packages", kernel.name, len(all))
	return kernel, all, a.fetch(ctx, append(slices.Clip(all), kernel), root)
}

// resolve finds the first kernel that there is, and the packages and libraries that the image needs.
func (a *apt) resolve(ctx context.Context, kernels []string) (kernel deb, all []deb, err error) {
	for _, meta := range kernels {
		if kernel, err = a.kernelOf(ctx, meta); err == nil {
			break
		}
	}
	if err != nil {
		return kernel, nil, err
	}
	args := append([]string{"--simulate", "--no-install-recommends", "--yes", "install"}, packages...)
	out, err := a.run(ctx, "apt-get", args...)
	if err != nil {
		return kernel, nil, fmt.Errorf("find packages: %w", err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		// Inst NAME (VERSION Debian:12/stable [amd64])
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "Inst" {
			continue
		}
		// Of what the packages need, only libraries are of use in the image.
		if slices.Contains(packages, f[1]) || strings.HasPrefix(f[1], "lib") {
			all = append(all, deb{f[1], strings.TrimPrefix(f[2], "(")})
		}
	}
	return kernel, all, nil
}

// kernelOf follows a metapackage to the image it depends on.
func (a *apt) kernelOf(ctx context.Context, meta string) (deb, error) {
	out, err := a.run(ctx, "apt-get", "--simulate", "--no-install-recommends", "--yes",
		"install", meta)
	if err != nil {
		return deb{}, fmt.Errorf("find a kernel: %w", err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		f := strings.Fields(line)
		if len(f) >= 3 && f[0] == "Inst" && f[1] != meta && strings.HasPrefix(f[1], "linux-image-") {
			return deb{f[1], strings.TrimPrefix(f[2], "(")}, nil
		}
	}
	return deb{}, fmt.Errorf("find a kernel: %s depends on none", meta)
}

// fetch downloads packages and unpacks them into root.
func (a *apt) fetch(ctx context.Context, debs []deb, root string) error {
	args := []string{"download"}
	for _, d := range debs {
		args = append(args, d.name+"="+d.version)
	}
	if _, err := a.run(ctx, "apt-get", args...); err != nil {
		return fmt.Errorf("download packages: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(a.dir, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) < len(debs) {
		return fmt.Errorf("download packages: %d of %d came", len(files), len(debs))
	}
	for _, f := range files {
		if _, err := output(ctx, a.dir, "dpkg-deb", "-x", f, root); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(f), err)
		}
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	return nil
}
