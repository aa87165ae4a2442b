package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/roxie-rdma/roxie/internal/xfer"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// transferFlags are the command line of `roxie get` and `roxie put`.
type transferFlags struct {
	move  func(context.Context, *verbs.Context, *cm.Manager, xfer.Config) (xfer.Result, error)
	iface string
	vlan  int
	json  bool
	quiet bool
	cfg   xfer.Config
}

func newGetCommand() *cobra.Command {
	f := transferFlags{move: xfer.Get}
	c := &cobra.Command{
		Use:   "get NAME@HOST FILE",
		Short: "Move an export of roxie serve to a file",
		Long: "get READs an export's content, has the other end hash every block, and compares. Until\n" +
			"all is there, it is in FILE" + xfer.PartSuffix + "; with --resume what that file has already is kept.",
		Example: "  roxie get scratch@192.0.2.1 image.raw\n" +
			"  roxie get scratch@[2001:db8::1]:7470 image.raw --resume --json",
		Args: cobra.ExactArgs(2),
		RunE: f.run,
	}
	f.declare(c)
	return c
}

func (f *transferFlags) declare(c *cobra.Command) {
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.iface, "ib-dev", "d", "", "network `interface` to use (the one that the route to HOST takes)")
	fs.BoolVar(&f.cfg.Resume, "resume", false, "move only what differs")
	fs.DurationVar(&f.cfg.Wait, "wait", 30*time.Second,
		"how `long` to try to connect, again when the connection is lost; 0: once")
	fs.BoolVar(&f.json, "json", false, "print the result as JSON")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress bar")
	fs.IntVar(&f.vlan, "vlan", 0, "802.1Q tag of all traffic, 1 to 4094; 0: none")
}

// parseTarget takes NAME@HOST or NAME@HOST:PORT apart.
func parseTarget(s string) (name, host string, port uint16, err error) {
	at := strings.LastIndexByte(s, '@')
	if at < 1 || at+1 == len(s) {
		return "", "", 0, usagef("%q: want NAME@HOST or NAME@HOST:PORT", s)
	}
	name, host, port = s[:at], s[at+1:], xfer.DefaultPort
	if len(name) > xfer.MaxName {
		return "", "", 0, usagef("%q: an export's name has at most %d bytes", name, xfer.MaxName)
	}
	if _, err := netip.ParseAddr(host); err == nil { // IPv6 without brackets, too
		return name, host, port, nil
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", "", 0, usagef("%q: %s is no port", s, p)
		}
		return name, h, uint16(n), nil
	}
	return name, strings.Trim(host, "[]"), port, nil
}

// way finds the address of a host and the interface that the route to it takes.
func way(ctx context.Context, host, iface string) (netip.Addr, string, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, "", err
	}
	addr := addrs[0].Unmap()
	if iface == "" {
		iface = addr.Zone()
	}
	if iface != "" {
		return addr.WithZone(""), iface, nil
	}
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return addr, "", fmt.Errorf("no route to %v: %w; give an interface an address in its network, or add a route",
			addr, err)
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return addr, "", err
	}
	if link.Flags&net.FlagLoopback != 0 {
		return addr, "", fmt.Errorf("%v is this machine: which interface? give it with -d", addr)
	}
	return addr, link.Name, nil
}

func (f *transferFlags) run(c *cobra.Command, args []string) (err error) {
	name, host, port, err := parseTarget(args[0])
	if err != nil {
		return err
	}
	if args[1] == "-" {
		return usagef("%s moves a file, which is read again to compare: - is none", c.Name())
	}
	if f.cfg.Wait < 0 {
		return usagef("--wait %v: give how long, as 500ms or 10s, or 0", f.cfg.Wait)
	}
	addr, iface, err := way(c.Context(), host, f.iface)
	if err != nil {
		return err
	}
	f.cfg.Export, f.cfg.File, f.cfg.Addr = name, args[1], netip.AddrPortFrom(addr, port)
	dev, err := verbs.Open(iface, &verbs.Config{VLAN: f.vlan})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := cm.New(dev, &cm.Config{Keepalive: xfer.Keepalive})
	if err != nil {
		return err
	}
	defer m.Close()
	finish := f.bar(c)
	r, err := f.move(c.Context(), dev, m, f.cfg)
	finish()
	if errors.Is(err, xfer.ErrRefused) {
		return fmt.Errorf("%w; its server's configuration says what is exported, and to whom", err)
	}
	if err != nil {
		lost := errors.Is(err, xfer.ErrLost) && r.Moved > 0
		if err = explainConnect(err, f.cfg.Addr, "`roxie serve` with exports"); lost {
			err = fmt.Errorf("%w; with --resume, the same command goes on where this one ended", err)
		}
		return err
	}
	if f.json {
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: %d bytes verified, %d moved in %.2f s (%.2f Gb/s), %d there already\n",
		f.cfg.File, r.Verified, r.Moved, r.Seconds, r.Gbps, r.Skipped)
	return nil
}

// bar shows progress on a terminal.
func (f *transferFlags) bar(c *cobra.Command) (finish func()) {
	out, ok := c.ErrOrStderr().(*os.File)
	if f.quiet || !ok || !isTerminal(out) {
		return func() {}
	}
	bar := progressbar.NewOptions64(-1, progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(f.cfg.Export), progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	f.cfg.Progress = func(done, total int64) {
		if bar.GetMax64() != total {
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done)
	}
	return func() { _ = bar.Finish() }
}
