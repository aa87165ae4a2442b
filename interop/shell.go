package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

const shellHelp = `Each line is a command for the guest's shell; it may go on in the background with "&" at its end.
A line that begins with "!" runs here, in the namespace with the guest's other end: try
	!ping -c1 10.77.0.2
The guest is 10.77.0.2 and fd77::2 with RDMA device rxe0 (GID index 1 and 2), this end is 10.77.0.1
and fd77::1 on tap0. End of input (Ctrl-D) or Ctrl-C ends the guest and what runs.
`

// shell runs lines from standard input in the guest or beside it.
func shell(ctx context.Context, g *qemu.Guest) error {
	fmt.Print(shellHelp)
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan string)
	var end error // of the input; set before lines is closed
	in := bufio.NewScanner(os.Stdin)
	go func() {
		defer close(lines)
		for in.Scan() {
			lines <- in.Text()
		}
		end = in.Err()
	}()
	for {
		fmt.Print("> ")
		var line string
		open := false
		select {
		case line, open = <-lines:
		case <-ctx.Done():
			return nil
		}
		if !open {
			return end
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		script, behind := strings.CutSuffix(line, "&")
		run := func() {
			if err := shellLine(ctx, g, script); err != nil {
				fmt.Println(err)
			}
		}
		if behind {
			background.Go(run)
		} else {
			run()
		}
	}
}

func shellLine(ctx context.Context, g *qemu.Guest, line string) error {
	if script, here := strings.CutPrefix(line, "!"); here {
		c := exec.CommandContext(ctx, "sh", "-c", script)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := g.Side.Start(c); err != nil {
			return err
		}
		return c.Wait()
	}
	c := g.Command(ctx, "sh", "-c", line)
	c.Stdout, c.Stderr = os.Stdout, io.Writer(os.Stderr)
	return c.Run()
}
