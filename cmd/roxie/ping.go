package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/capture"
	"github.com/roxie-rdma/roxie/internal/rping"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// pingFlags are the command line of `roxie ping`.
type pingFlags struct {
	server, client bool
	iface, addr    string
	port           uint16
	vlan           int
	pcap           string
	json           jsonOutput
	cfg            rping.Config
}

func newPingCommand() *cobra.Command {
	var f pingFlags
	c := &cobra.Command{
		Use:   "ping {-s | -c -a ADDR}",
		Short: "Move data to and fro over RDMA-CM, with librdmacm's rping or with itself",
		Long: "ping connects by RDMA-CM and lets the server READ the client's data and WRITE them back.\n" +
			"Either end may be librdmacm's rping: flags and what travels are its.",
		Example: "  roxie ping -d eth0 -s -P                          # server; or: rping -s -a 0.0.0.0 -P\n" +
			"  roxie ping -d eth0 -c -a 192.0.2.1 -C 10 -v -V    # client; or: rping -c -a 192.0.2.2 -C 10 -v -V",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.BoolVarP(&f.server, "server", "s", false, "be the server")
	fs.BoolVarP(&f.client, "client", "c", false, "be the client")
	fs.StringVarP(&f.iface, "ib-dev", "d", "", "network `interface` to use")
	fs.StringVarP(&f.addr, "addr", "a", "", "client: the server's `address`; server: own address to listen on")
	fs.Uint16VarP(&f.port, "port", "p", rping.DefaultPort, "RDMA-CM `port`")
	fs.IntVarP(&f.cfg.Count, "count", "C", 0, "client: rounds; 0: until interrupted")
	fs.IntVarP(&f.cfg.Size, "size", "S", rping.DefaultSize, "`bytes` of a ping")
	fs.BoolVarP(&f.cfg.Verbose, "verbose", "v", false, "print each ping")
	fs.BoolVarP(&f.cfg.Validate, "validate", "V", false, "client: compare what comes back")
	fs.BoolVarP(&f.cfg.Persistent, "persistent", "P", false, "server: serve any number of clients")
	fs.DurationVar(&f.cfg.Wait, "wait", 20*time.Second, "client: how `long` the server may take to answer")
	fs.IntVar(&f.vlan, "vlan", 0, "802.1Q tag of all traffic, 1 to 4094; 0: none")
	fs.StringVar(&f.pcap, "pcap", "", "write all packets, both directions, to this pcapng `file`")
	f.json.declare(fs, "the result of a client")
	return c
}

func (f *pingFlags) check() error {
	switch {
	case f.server == f.client:
		return usagef("be either the server (-s) or a client (-c)")
	case f.client && f.addr == "":
		return usagef("which server? give its address with -a")
	case f.iface == "":
		return usagef("which interface? give it with -d")
	case f.cfg.Size < 1 || f.cfg.Size > rping.MaxSize:
		return usagef("-S %d: 1 to %d bytes", f.cfg.Size, rping.MaxSize)
	case f.cfg.Wait <= 0:
		return usagef("--wait %v: give how long, as 500ms or 10s", f.cfg.Wait)
	case f.cfg.Count < 0:
		return usagef("-C %d: cannot be negative", f.cfg.Count)
	}
	addr := netip.IPv6Unspecified()
	if f.addr != "" {
		var err error
		if addr, err = netip.ParseAddr(f.addr); err != nil {
			return usagef("-a %s: not an IP address, and names are not looked up", f.addr)
		}
		if f.server && !addr.IsUnspecified() {
			if err := ownAddress(f.iface, addr); err != nil {
				return err
			}
		}
	}
	f.cfg.Addr = netip.AddrPortFrom(addr, f.port)
	return nil
}

func (f *pingFlags) run(c *cobra.Command) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	f.cfg.Out = c.OutOrStdout()
	vc := verbs.Config{VLAN: f.vlan}
	file, err := capture.Attach(&vc, f.pcap, f.iface)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	dev, err := verbs.Open(f.iface, &vc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := cm.New(dev, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	if f.server {
		return f.serve(c, dev, m)
	}
	r, err := rping.Client(c.Context(), dev, m, f.cfg)
	if err != nil {
		return explainConnect(err, f.cfg.Addr, "rping -s or `roxie ping -s`")
	}
	fmt.Fprintf(c.OutOrStdout(), "%d rounds of %d bytes in %.3f s, %v each\n", r.Rounds, f.cfg.Size, r.Seconds, r.Round)
	return f.json.write(r)
}

func (f *pingFlags) serve(c *cobra.Command, dev *verbs.Context, m *cm.Manager) error {
	f.cfg.Listening = func() {
		fmt.Fprintf(c.OutOrStdout(), "listening on port %d of %s\n", f.port, f.iface)
	}
	err := rping.Server(c.Context(), dev, m, f.cfg)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
