package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/netdev"
	"github.com/roxie-rdma/roxie/internal/privs"
	"github.com/roxie-rdma/roxie/internal/serve"
	"github.com/roxie-rdma/roxie/internal/starter"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is how `roxie serve` gives its rights up. With a user to become, it is executed anew:
//
//	serve ── opens the interfaces ──▶ heir                         one process, no rights
//	serve ──▶ starter (three capabilities) ── starts ──▶ worker    two, the worker without
//
// Each is the same program with the same arguments, told by a variable which of them it is.

// roleVariable is ROLE or ROLE:DESCRIPTOR. Whoever sets it by hand gains nothing.
const roleVariable = "ROXIE_SERVE_ROLE"

const (
	roleHeir    = "heir"
	roleStarter = "starter"
	roleWorker  = "worker"
)

// starterCaps are all that opening an interface takes.
var starterCaps = []netdev.Cap{netdev.CapNetAdmin, netdev.CapNetRaw, netdev.CapBPF}

// role returns what this process is, and its end of a socket pair.
func role() (name string, end *os.File, err error) {
	value := os.Getenv(roleVariable)
	_ = os.Unsetenv(roleVariable)
	name, number, _ := strings.Cut(value, ":")
	switch name {
	case "", roleStarter:
		return name, nil, nil
	case roleHeir, roleWorker:
		fd, err := strconv.Atoi(number)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
		}
		if err != nil {
			return "", nil, fmt.Errorf("%s=%s: %w", roleVariable, value, err)
		}
		// The kernel has named the process after the descriptor that it was executed from.
		_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
		return name, os.NewFile(uintptr(fd), name), nil
	}
	return "", nil, fmt.Errorf("%s=%s: unknown", roleVariable, value)
}

// rights brings the process to the rights it shall serve with. done is true if it has been another's
// part, and is over.
func (f *serveFlags) rights(c *cobra.Command, cfg *serve.Config, log *slog.Logger) (o *starter.Client,
	done bool, err error) {
	name, end, err := role()
	switch {
	case err != nil:
		return nil, true, err
	case name == roleHeir:
		o, err = starter.NewHeir(end)
	case name == roleWorker:
		o, err = starter.NewClient(end)
	case name == roleStarter:
		return nil, true, f.keepStarter(c, cfg, log)
	case cfg.User != "":
		return nil, true, drop(cfg, log)
	default:
		return nil, false, nil
	}
	if err == nil {
		log.Info("without rights", "user", os.Getuid(), "starter", name == roleWorker)
	}
	return o, err != nil, err
}

// drop executes the program anew as the configured user. It returns only with an error.
func drop(cfg *serve.Config, log *slog.Logger) error {
	u, err := privs.Lookup(cfg.User)
	if err != nil {
		return err
	}
	if err := netdev.RequireCaps(starterCaps...); err != nil {
		return err
	}
	need := cfg.LockedMemory()
	limit, err := privs.RaiseMemlock(need)
	if err != nil {
		return err
	}
	if limit < need { // what is too little for the interfaces ends in an error when they are opened
		log.Warn("exports may not all be locked in memory: RLIMIT_MEMLOCK cannot be raised (LimitMEMLOCK= in the "+
			"systemd unit can)", "limit", serve.FormatSize(int64(limit)), "want", serve.FormatSize(int64(need)))
	}
	if cfg.Starter {
		return privs.Exec(u, starterCaps, roleVariable+"="+roleStarter)
	}
	ours, theirs, err := starter.Pair()
	if err != nil {
		return err
	}
	var names []string
	for _, i := range cfg.Interfaces {
		names = append(names, i.Name)
	}
	if err := starter.Leave(ours, names, cfg.Device); err != nil {
		return err
	}
	fd, err := privs.KeepOnExec(theirs)
	if err != nil {
		return err
	}
	return privs.Exec(u, nil, fmt.Sprintf("%s=%s:%d", roleVariable, roleHeir, fd))
}

// keepStarter is the starter's life: it starts the worker, opens interfaces for it, passes signals on,
// and ends when the worker does, with the same exit code.
func (f *serveFlags) keepStarter(c *cobra.Command, cfg *serve.Config, log *slog.Logger) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	var config atomic.Pointer[serve.Config]
	config.Store(cfg)
	ours, theirs, err := starter.Pair()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), roleVariable+"="+roleWorker+":3")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := privs.StartBare(cmd); err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	_ = theirs.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	broken := make(chan error, 1)
	go func() {
		err := starter.Serve(ours, func(name string) (*verbs.Config, bool) { return config.Load().Device(name) })
		if err != nil {
			broken <- err
		}
	}()
	stop := c.Context().Done()
	for {
		select {
		case err := <-ended:
			return workersEnd(err)
		case <-stop:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			stop = nil
		case <-hup:
			if cfg, err := f.load(); err == nil { // else the worker says what is wrong
				config.Store(cfg)
			}
			_ = cmd.Process.Signal(syscall.SIGHUP)
		case err := <-broken:
			log.Error("the worker asks for what it must not: ending it", "error", err)
			_ = cmd.Process.Kill()
		}
	}
}

// workersEnd makes the worker's end this process's.
func workersEnd(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exitStatus(exit.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("the worker: %w", err)
	}
	return nil
}
