package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/roxie-rdma/roxie/internal/netdev"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// explainFlag says of a flag that could not be parsed what it takes, where pflag hands on what
// strconv and time say.
func explainFlag(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		want := map[string]string{
			"int": "a whole number", "uint": "a whole number, and not negative",
			"float": "a number", "duration": "a time, as 500ms, 10s or 1m30s", "bool": "true or false",
		}[strings.TrimRight(f.Value.Type(), "0123456789")]
		if errors.Is(err, strconv.ErrRange) {
			return usagef("%s: %q is too large; see %s --help", name, invalid.GetValue(), c.CommandPath())
		}
		if want != "" {
			return usagef("%s: %q is not %s; see %s --help", name, invalid.GetValue(), want, c.CommandPath())
		}
		err = fmt.Errorf("%s: %w", name, invalid.Unwrap())
	}
	return usagef("%w; see %s --help", err, c.CommandPath())
}

// checkFlags makes a command with flags that many have refuse values that make no sense, before it
// opens anything.
func checkFlags(c *cobra.Command) {
	inner := c.RunE
	if inner == nil || c.Flags().Lookup("vlan") == nil {
		return
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if id, err := c.Flags().GetInt("vlan"); err == nil && (id < 0 || id > 4094) {
			return usagef("--vlan %d: tags go from 1 to 4094, and 0 is none", id)
		}
		return inner(c, args)
	}
}

// explainArgs says of a command line with too many or too few arguments how it should look, where
// cobra counts them.
func explainArgs(c *cobra.Command, args []string, err error) error {
	text := err.Error()
	if !strings.HasPrefix(text, "accepts ") && !strings.HasPrefix(text, "unknown command ") {
		return usagef("%s: %w; see %s --help", c.Name(), err, c.CommandPath())
	}
	line := strings.TrimSuffix(c.UseLine(), " [flags]")
	if strings.Contains(text, "unknown command ") {
		return usagef("%s: no arguments are taken, but there is %q; see %s --help", c.Name(), args[0],
			c.CommandPath())
	}
	given := "there are none"
	if n := len(args); n > 0 {
		given = fmt.Sprintf("there are %d: %q", n, args)
	}
	if len(args) == 1 {
		given = fmt.Sprintf("there is only %q", args[0])
	}
	return usagef("%s: arguments are not as in `%s`: %s; see %s --help", c.Name(), line, given,
		c.CommandPath())
}

// explainConnect says what it likely means that a peer could not be reached by RDMA-CM.
func explainConnect(err error, peer netip.AddrPort, program string) error {
	if !strings.Contains(err.Error(), "connect to ") {
		return interrupted(err)
	}
	look := fmt.Sprintf("is %s running there? `roxie doctor --peer %v` looks at the way", program, peer.Addr())
	var rej *cm.RejectError
	switch {
	case errors.As(err, &rej) && rej.Reason == rcm.ReasonInvalidServiceID:
		return fmt.Errorf("nothing listens at %v: is %s running there, at this port?", peer, program)
	case errors.As(err, &rej) && rej.Reason == rcm.ReasonConsumer:
		return fmt.Errorf("%w: is it %s that listens there, at this port?", err, program)
	case errors.As(err, &rej):
		return err
	case errors.Is(err, netdev.ErrNoNeighbour), errors.Is(err, netdev.ErrNoRoute):
		return explainWay(err, peer.Addr())
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted, without an answer from %v: %s", peer, look)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, cm.ErrUnreachable):
		return fmt.Errorf("no answer from %v in time: %s", peer, look)
	}
	return interrupted(err)
}

// explainWay says of an address that no route leads to, or that does not answer, what to look at.
func explainWay(err error, peer netip.Addr) error {
	text := err.Error()
	for _, cause := range []error{netdev.ErrNoNeighbour, netdev.ErrNoRoute} {
		// What was being done stands before it: attempts, connections and address handles.
		if at := strings.Index(text, cause.Error()+" "); at > 0 && errors.Is(err, cause) {
			text = text[at:]
		}
	}
	// It is the last of what happened, and says least.
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		text = strings.TrimSuffix(text, ": "+end.Error())
	}
	return fmt.Errorf("%s; check its address, and the way to it (`roxie doctor --peer %v`)", text, peer)
}

// explainFile says, of a file that could not be used, what would do instead.
func explainFile(err error) error {
	var file *fs.PathError
	if !errors.As(err, &file) {
		return err
	}
	switch {
	case errors.Is(file.Err, syscall.EISDIR):
		return fmt.Errorf("%w: name a file in it", err)
	case errors.Is(file.Err, fs.ErrNotExist):
		dir := filepath.Dir(file.Path)
		if _, e := os.Stat(dir); errors.Is(e, fs.ErrNotExist) {
			return fmt.Errorf("%w: there is no directory %s; make it, or name another file", err, dir)
		}
	case errors.Is(file.Err, syscall.ENOSPC):
		return fmt.Errorf("%w: make room, or name a file elsewhere", err)
	case errors.Is(file.Err, syscall.EROFS):
		return fmt.Errorf("%w: name a file elsewhere", err)
	case errors.Is(file.Err, fs.ErrPermission):
		return fmt.Errorf("%w: name a file that user %d may use, or be another user", err, os.Geteuid())
	}
	return err
}

// explainLookup says, of a name that could not be looked up, what would do instead.
func explainLookup(err error) error {
	var name *net.DNSError
	if !errors.As(err, &name) {
		return err
	}
	if name.IsNotFound {
		return fmt.Errorf("%w; check the name, or give an address", err)
	}
	return fmt.Errorf("%w; no name server answers here: give an address", err)
}

// ownAddress fails if an interface has not the address to listen on.
func ownAddress(iface string, addr netip.Addr) error {
	link, err := net.InterfaceByName(iface)
	if err != nil {
		return nil // whoever opens it says so better
	}
	addrs, err := link.Addrs()
	if err != nil {
		return err
	}
	var own []string
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr() == addr {
			return nil
		}
		own = append(own, p.Addr().String())
	}
	return fmt.Errorf("-a %v is no address of %s, which has %s", addr, iface, strings.Join(own, ", "))
}

// noDirectory fails if a file that is to be read is a directory.
func noDirectory(f *os.File) error {
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory: name a file in it", f.Name())
	}
	return nil
}
