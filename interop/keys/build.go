package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// This file compiles what runs in the guest. Headers are those of the guest's very kernel, Debian
// packages that are unpacked beside the guest's image and not installed.

//go:embed linux/module linux/program
var sources embed.FS

// compile returns the module and the program.
func compile(ctx context.Context, img *qemu.Image) (module, program []byte, err error) {
	dir, err := os.MkdirTemp("", "roxie-keys-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, sources); err != nil {
		return nil, nil, err
	}
	kernel, err := headers(ctx, img)
	if err != nil {
		return nil, nil, fmt.Errorf("headers of %s: %w", img.Release, err)
	}
	in := filepath.Join(dir, "linux")
	ko, exe := filepath.Join(in, "module"), filepath.Join(in, "program", "keyowner")
	// Warnings of modpost about a kernel that is not there in whole are no errors.
	err = command(ctx, in, "make", "-s", "-C", kernel, "M="+ko, "modules")
	if err == nil {
		err = command(ctx, in, "gcc-12", "-O2", "-Wall", "-Wextra", "-Werror", "-o", exe, exe+".c",
			"-libverbs")
	}
	if err != nil {
		return nil, nil, err
	}
	if module, err = os.ReadFile(filepath.Join(ko, "keyowner.ko")); err != nil {
		return nil, nil, err
	}
	program, err = os.ReadFile(exe)
	return module, program, err
}

func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C")
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// headers unpacks the headers of the guest's kernel, unless they are there, and returns
// where they are.
func headers(ctx context.Context, img *qemu.Image) (string, error) {
	cache, err := qemu.CacheDir()
	if err != nil {
		return "", err
	}
	// Beside the images' directory, which holds nothing else.
	dir := filepath.Join(filepath.Dir(cache), "headers", img.Release)
	kernel := filepath.Join(dir, "usr/src/linux-headers-"+img.Release)
	if _, err := os.Stat(dir); err == nil {
		return kernel, nil
	}
	tmp := dir + ".part"
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755)); err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	base := strings.TrimSuffix(img.Release, "-amd64")
	names := []string{"linux-headers-" + img.Release, "linux-headers-" + base + "-common",
		"linux-kbuild-" + base}
	say("download the headers of %s", img.Release)
	// Of the version that the image has: others need not fit.
	var args []string
	for _, n := range names {
		args = append(args, n+"="+img.Versions["linux-image-"+img.Release])
	}
	args = append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, args...)
	if err := command(ctx, tmp, "apt-get", args...); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, d := range debs {
		if err := errors.Join(command(ctx, tmp, "dpkg-deb", "-x", d, "."), os.Remove(d)); err != nil {
			return "", err
		}
	}
	return kernel, errors.Join(relocate(tmp, dir, img.Release), os.Rename(tmp, dir))
}

// relocate makes unpacked headers work where they will be.
func relocate(tmp, dir, release string) error {
	in := filepath.Join(tmp, "usr/src/linux-headers-"+release)
	file := filepath.Join(in, "Makefile")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	moved := strings.ReplaceAll(string(text), "include /usr/src/", "include "+dir+"/usr/src/")
	if err := os.WriteFile(file, []byte(moved), 0o644); err != nil {
		return err
	}
	// Without the kernel's own types there is no step that needs pahole.
	err = os.Remove(filepath.Join(in, "vmlinux"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
