// Command roxie is the one binary of the project: endpoints to try, to measure and to look into.
//
// Each subcommand lives in its own file and gives one constructor, which newRoot lists. Results go
// to standard output; an error is one line on standard error that begins with "roxie: ". The exit
// code is 0 for success, 1 for a failure, 2 for a command line that makes no sense; lab exec ends
// with the code of the command that it ran.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes of the process.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// patience is how long a command may take to clean up before a second signal kills it.
const patience = 2 * time.Second

func main() {
	// The first signal cancels the command's context, so that it can take down what it set up; one
	// that comes some time later ends the process at once. (timeout(1) sends two in a row.)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(patience, stop) })
	// Signals stay taken to the end: one that comes behind the work does not change its exit code.
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// newRoot builds the command tree. A new subcommand is added here and nowhere else.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "roxie",
		Short: "RDMA over Converged Ethernet v2 in user space, over AF_XDP",
		Long: "roxie is a RoCEv2 endpoint that runs in a process of its own, on an ordinary Linux\n" +
			"interface, without a kernel module.",
	}
	root.AddCommand(
		newBenchCommand(),
		newCaptureCommand(),
		newDecodeCommand(),
		newDevinfoCommand(),
		newDoctorCommand(),
		newDumpCommand(),
		newGetCommand(),
		newInitiatorCommand(),
		newKeysCommand(),
		newLabCommand(),
		newManualCommand(),
		newPerfCommand(),
		newPerfEndCommand(),
		newPingCommand(),
		newPingpongCommand(),
		newPutCommand(),
		newServeCommand(),
		newSRPEndCommand(),
		newSimCommand(),
		newStatCommand(),
		newTopCommand(),
		newVersionCommand(),
	)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	// A group is runnable only to say which command was meant: its help does not show it as one.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(),
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	prepare(root)
	return root
}

// run executes one command line and returns the exit code of the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(stderr, "roxie: %s\n", oneLine(explainFile(explainLookup(err)).Error()))
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// usageError marks an error in the command line itself, as opposed to one met while obeying it.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef returns a usageError with the given text, for checks that cobra cannot make.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// exitStatus ends the process with a code and without a word: whoever returns it has said all.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// prepare makes a command and all below it follow the rules of this binary: no usage text after an
// error, wrong flags and arguments reported as usage errors, and a command group without a valid
// subcommand is one too (cobra alone would print its help and exit 0).
func prepare(c *cobra.Command) {
	c.SilenceErrors = true
	c.SilenceUsage = true
	c.SuggestionsMinimumDistance = 2
	c.SetFlagErrorFunc(explainFlag)
	readyFiles(c)
	checkFlags(c)
	if c.HasSubCommands() && !c.Runnable() {
		c.Args = cobra.ArbitraryArgs
		c.FParseErrWhitelist.UnknownFlags = true // they belong to the command that is not there
		c.RunE = func(c *cobra.Command, args []string) error { return badSubcommand(c, args) }
	} else if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return explainArgs(c, args, err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		prepare(sub)
	}
}

// badSubcommand says what c would have understood.
func badSubcommand(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			return usagef("%s has no command %q; did you mean %s?",
				c.CommandPath(), args[0], strings.Join(near, " or "))
		}
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	what := "needs a command"
	if len(args) > 0 {
		what = fmt.Sprintf("has no command %q", args[0])
	}
	return usagef("%s %s; it knows %s (%s --help tells more)",
		c.CommandPath(), what, strings.Join(names, ", "), c.CommandPath())
}

// oneLine folds a text into a single line, so that an error is one line whatever it wraps.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "; ")
}
