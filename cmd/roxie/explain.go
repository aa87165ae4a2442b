package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

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
			"int": "a whole number", "uint": "a whole number that is not negative",
			"float": "a number", "duration": "a time, as 500ms, 10s or 1m30s", "bool": "true or false",
		}[strings.TrimRight(f.Value.Type(), "0123456789")]
		if want != "" {
			if errors.Is(err, strconv.ErrRange) {
				want += " that is not so large"
			}
			return usagef("%s: %q is not %s; see %s --help", name, invalid.GetValue(), want, c.CommandPath())
		}
		err = fmt.Errorf("%s: %w", name, invalid.Unwrap())
	}
	return usagef("%w; see %s --help", err, c.CommandPath())
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

// withoutURL takes off what an HTTP client says of a request: its address means nothing to people.
func withoutURL(err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		return inner.Err
	}
	return err
}

// explainConnect says what it likely means that a peer could not be reached by RDMA-CM.
func explainConnect(err error, peer netip.AddrPort, program string) error {
	if !strings.Contains(err.Error(), "connect to ") {
		return interrupted(err)
	}
	look := fmt.Sprintf("is %s running there? `roxie doctor --peer %v` looks at the way", program, peer.Addr())
	// It is the last of what happened, and says least.
	text := strings.TrimSuffix(err.Error(), ": "+context.DeadlineExceeded.Error())
	var rej *cm.RejectError
	switch {
	case errors.As(err, &rej) && rej.Reason == rcm.ReasonInvalidServiceID:
		return fmt.Errorf("nothing listens at %v: is %s running there, at this port?", peer, program)
	case errors.As(err, &rej):
		return err
	case errors.Is(err, netdev.ErrNoNeighbour), errors.Is(err, netdev.ErrNoRoute):
		text = strings.TrimSuffix(text, ": "+context.Canceled.Error())
		return fmt.Errorf("%s; check its address, and the way to it (`roxie doctor --peer %v`)", text, peer.Addr())
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted, without an answer from %v: %s", peer, look)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, cm.ErrUnreachable):
		return fmt.Errorf("no answer from %v in time: %s", peer, look)
	}
	return interrupted(err)
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
