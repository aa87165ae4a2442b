// Command keys tries the rules of registered memory (internal/keyrules) on Linux: the owner of the
// memory is the kernel's rdma_rxe in a guest, the peer that reaches for it is roxie, on the other
// end of the guest's interface. The same steps run with roxie as the owner, and both results are
// printed side by side.
//
// User space has no way to register fast memory, so that a kernel module of our own does it there
// (linux/module, compiled here with the headers of the guest's kernel); windows are moved by a
// program (linux/program). Both do nothing but what a line of text tells them: the steps are those
// of internal/keyrules, the very same for Linux and roxie.
//
// It fails if a rule does not hold for roxie, or if Linux does otherwise than recorded. -update
// records.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/roxie-rdma/roxie/internal/keyrules"
	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/verbs"
)

// record is where Linux's results are kept, below the module's root.
const record = "internal/keyrules/linux.json"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	update := flag.Bool("update", false, "write what Linux did to "+record)
	flag.Parse()
	err := run(ctx, *update)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "keys:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func run(ctx context.Context, update bool) error {
	if os.Getuid() != 0 {
		return errors.New("a guest needs root")
	}
	img, err := qemu.Build(ctx, say)
	if err != nil {
		return err
	}
	there, err := onLinux(ctx, img)
	if err != nil {
		return fmt.Errorf("with Linux as the owner: %w", err)
	}
	linux := keyrules.NewRecord(img.Release, there)
	if update {
		b, err := linux.JSON()
		if err != nil {
			return err
		}
		if err := os.WriteFile(record, b, 0o644); err != nil {
			return err
		}
	}
	here, err := onRoxie()
	if err != nil {
		return fmt.Errorf("with roxie as the owner: %w", err)
	}
	if err := keyrules.Write(os.Stdout, here, linux); err != nil {
		return err
	}
	for i := range here {
		if o := &here[i]; !o.Pass {
			err = errors.Join(err, fmt.Errorf("%s: %s does not hold for roxie: %s", o.ID, o.Rule, o.Got))
		}
	}
	if update {
		return err
	}
	for _, d := range keyrules.Linux().Differs(there) {
		err = errors.Join(err, fmt.Errorf("not as recorded: %s", d))
	}
	return err
}

// Where the guest keeps our files, and the module's device.
const (
	modulePath  = "/tmp/keyowner.ko"
	programPath = "/tmp/keyowner"
	deviceFile  = "/dev/keyowner"
)

// How long a busy machine may take to boot the guest, and the guest to answer a command.
const (
	bootTime   = 4 * time.Minute
	answerTime = time.Minute
)

// onLinux runs the rules with Linux as the owner.
func onLinux(ctx context.Context, img *qemu.Image) (out []keyrules.Outcome, err error) {
	module, program, err := compile(ctx, img)
	if err != nil {
		return nil, err
	}
	g, err := qemu.Start(ctx, img, qemu.Config{BootTimeout: bootTime, Log: say})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = g.Close() })() // what waits for an answer fails then
	say("Linux %s answered after %.1f s", img.Release, g.Booted.Seconds())
	if err := g.Push(ctx, modulePath, false, bytes.NewReader(module)); err != nil {
		return nil, err
	}
	if err := g.Push(ctx, programPath, true, bytes.NewReader(program)); err != nil {
		return nil, err
	}
	if _, err := g.Shell(ctx, "insmod "+modulePath+" device="+qemu.GuestRDMA).Output(); err != nil {
		return nil, fmt.Errorf("%w; the console ends with: %s", err, g.Console(5))
	}
	regions, err := talk(ctx, g, "-f", deviceFile)
	if err != nil {
		return nil, err
	}
	windows, err := talk(ctx, g, qemu.GuestRDMA)
	if err != nil {
		return nil, err
	}
	var peer *verbs.Context
	err = g.Side.DoErr(func() (err error) {
		peer, err = verbs.Open(qemu.TapName, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer peer.Close()
	start := time.Now()
	out, err = keyrules.RunLinux(regions, windows, peer, func(o *keyrules.Outcome) {
		say("%5.1f s  %-17s %s", time.Since(start).Seconds(), o.ID, o.Got)
	})
	if err != nil {
		err = fmt.Errorf("%w; the console ends with: %s", err, g.Console(5))
	}
	return out, err
}

// talk starts our program in the guest.
func talk(ctx context.Context, g *qemu.Guest, args ...string) (keyrules.Talk, error) {
	c := g.Command(ctx, append([]string{programPath}, args...)...)
	in, lines := io.Pipe()
	answers, out := io.Pipe()
	var said bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = in, out, &said
	if err := c.Start(); err != nil {
		return nil, err
	}
	go func() {
		err := c.Wait()
		_ = out.CloseWithError(fmt.Errorf("the program in the guest has ended: %w: %s", err,
			strings.TrimSpace(said.String())))
		_ = in.Close()
	}()
	r := bufio.NewReader(answers)
	return func(line string) (string, error) {
		if _, err := io.WriteString(lines, line+"\n"); err != nil {
			return "", err
		}
		late := time.AfterFunc(answerTime, func() {
			_ = out.CloseWithError(fmt.Errorf("no answer for %v", answerTime))
		})
		defer late.Stop()
		answer, err := r.ReadString('\n')
		return strings.TrimSuffix(answer, "\n"), err
	}, nil
}

// onRoxie runs the rules with roxie as the owner, over a veth pair.
func onRoxie() (out []keyrules.Outcome, err error) {
	l, err := lab.New(lab.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return keyrules.RunLab(l)
}
