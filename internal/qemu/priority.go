package qemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SetPriority gives the leader of a session and its threads a priority, as in nice(1). It has to
// have a session of its own (Setsid): where the kernel schedules sessions as groups (autogroup),
// a process's own priority counts only among those of its session.
func SetPriority(pid, nice int) error {
	if err := unix.Setpriority(unix.PRIO_PGRP, pid, nice); err != nil {
		return fmt.Errorf("set the priority of process %d: %w", pid, err)
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/autogroup", pid), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without it
	}
	if err == nil {
		_, err = fmt.Fprint(f, nice)
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("set the priority of the session of process %d: %w", pid, err)
	}
	return nil
}
