package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// defaultLab is the lab that commands mean when no name is given.
const defaultLab = lab.Prefix

func newLabCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lab",
		Short: "Two network namespaces joined by a veth pair, to try things in",
		Long: "lab builds two network namespaces, A and B, joined by a veth pair, with addresses.\n" +
			"They stay until they are taken down. Nothing else of the machine is touched. Needs root.",
	}
	var name string
	c.PersistentFlags().StringVar(&name, "name", defaultLab,
		"the lab's `name`, starting with "+lab.Prefix+"; its namespaces are NAME-a and NAME-b")
	c.AddCommand(newLabUp(&name), newLabDown(&name), newLabExec(&name))
	return c
}

func newLabUp(name *string) *cobra.Command {
	var cfg lab.Config
	c := &cobra.Command{
		Use:     "up",
		Short:   "Build the lab and say what is in it",
		Example: "  roxie lab up --queues 4\n  roxie lab exec B -- tcpdump -ni veth0",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if cfg.Queues < 1 || cfg.MTU < 68 {
				return usagef("--queues %d, --link-mtu %d: 1 to 4096 queues, 68 to 65535 bytes", cfg.Queues, cfg.MTU)
			}
			cfg.Name = *name
			l, err := lab.New(cfg)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("lab %s is up already; `%s` takes it down", cfg.Name, downCommand(cfg.Name))
			} else if err != nil {
				return err
			}
			l.Keep()
			return errors.Join(printLab(c.OutOrStdout(), l), l.Close())
		},
	}
	c.Flags().IntVar(&cfg.MTU, "link-mtu", 9000, "MTU of the veth pair in `bytes`, 68 to 65535")
	c.Flags().IntVar(&cfg.Queues, "queues", 1, "receive and transmit queues of each end, 1 to 4096")
	return c
}

func newLabDown(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take the lab down",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			err := lab.Remove(*name)
			if errors.Is(err, os.ErrNotExist) {
				return noLab(*name)
			}
			return err
		},
	}
}

func newLabExec(name *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "exec A|B -- COMMAND [ARGUMENT...]",
		Short: "Run a command in one of the lab's namespaces",
		Long: "exec runs a command in namespace A or B of the lab, with a /sys that shows the\n" +
			"namespace's interfaces, and ends with the command's exit code.",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("say where, A or B, and what to run")
			case !strings.EqualFold(args[0], "a") && !strings.EqualFold(args[0], "b"):
				return fmt.Errorf("the lab has sides A and B, not %q", args[0])
			case len(commandOf(args)) == 0:
				return errors.New("say what to run")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			l, err := lab.Open(*name)
			if errors.Is(err, os.ErrNotExist) {
				return noLab(*name)
			} else if err != nil {
				return err
			}
			side := l.A
			if strings.EqualFold(args[0], "b") {
				side = l.B
			}
			argv := commandOf(args)
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
			return errors.Join(runIn(side, cmd), l.Close())
		},
	}
	c.Flags().SetInterspersed(false) // flags after A or B are the command's
	return c
}

// commandOf cuts the side and a "--" after it off the arguments of lab exec.
func commandOf(args []string) []string {
	args = args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	return args
}

// runIn runs a command in a namespace and returns how it ended, as an exitStatus unless it is 0.
func runIn(n *lab.Namespace, cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL} // what kills us kills it
	if err := n.Start(cmd); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("there is no command %q", cmd.Args[0])
		}
		return fmt.Errorf("run %s in %s: %w", cmd.Args[0], n.Name, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// What is typed at a terminal reaches the command without our help.
			if typed := s == unix.SIGINT || s == unix.SIGQUIT; !typed || !isTerminal(os.Stdin) {
				_ = cmd.Process.Signal(s)
			}
		case err := <-done:
			return endOf(err)
		}
	}
}

// endOf turns what Wait returned into an exitStatus, with 128 and the signal as a shell does.
func endOf(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitStatus(128 + int(status.Signal()))
	}
	return exitStatus(exit.ExitCode())
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func noLab(name string) error {
	up := "roxie lab up"
	if name != defaultLab {
		up += " --name " + name
	}
	return fmt.Errorf("no lab %s is up; `%s` builds it", name, up)
}

func downCommand(name string) string {
	if name == defaultLab {
		return "roxie lab down"
	}
	return "roxie lab down --name " + name
}

// printLab says what a lab consists of and how to go on.
func printLab(w io.Writer, l *lab.Lab) error {
	var b strings.Builder
	for _, side := range []struct {
		letter string
		*lab.Namespace
	}{{"A", l.A}, {"B", l.B}} {
		fmt.Fprintf(&b, "%s  namespace %s, %s, MTU %d, %d queue(s)", side.letter, side.Name,
			side.Interface, side.MTU, side.Queues)
		for _, a := range side.Addrs {
			fmt.Fprintf(&b, ", %v", a)
		}
		b.WriteString("\n")
	}
	in := "roxie lab exec"
	if l.Name != defaultLab {
		in += " --name " + l.Name
	}
	fmt.Fprintf(&b, "`%s A -- COMMAND` runs a command in it, `%s` takes it down.\n",
		in, downCommand(l.Name))
	_, err := io.WriteString(w, b.String())
	return err
}
