package main

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/doctor"
)

func newDoctorCommand() *cobra.Command {
	var cfg doctor.Config
	var peer string
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [interface]",
		Short: "Look for what keeps roxie from working, or from working fast, and say what mends it",
		Long: "doctor looks at the kernel, the rights of the process and one interface, or all of " +
			"them. Each\nline is ok, slow or broken, with the reason; → shows what mends or tells " +
			"more.\n\n" +
			"It changes nothing. To see how the steering program really runs it has to be " +
			"attached, which\nlets many NICs lose their link for a second: --try does that.\n\n" +
			"The exit code is 0 if all is ok or slow, 1 if something is broken, 2 for a wrong " +
			"command line.\nWithout an interface, one that works is enough; with --peer it is the one " +
			"that the route takes.",
		Example: "  roxie doctor eth0\n" +
			"  roxie doctor eth0 --peer 10.0.0.2\n" +
			"  roxie doctor eth0 --json | jq -r '.sections[].findings[] | select(.grade == \"broken\").fix'",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				cfg.Interface = args[0]
			}
			if peer != "" {
				addr, err := netip.ParseAddr(peer)
				if err != nil {
					return usagef("--peer %s: give an IPv4 or IPv6 address", peer)
				}
				cfg.Peer = addr.Unmap().WithZone("")
				if cfg.Interface == "" {
					if _, cfg.Interface, err = way(c.Context(), peer, ""); err != nil {
						return fmt.Errorf("%w; or name an interface: roxie doctor IF --peer %v", err, cfg.Peer)
					}
				}
			}
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			report, err := doctor.Examine(cfg)
			if err != nil {
				return err
			}
			if asJSON {
				out, err := json.MarshalIndent(report, "", "  ")
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), string(out))
				if err != nil {
					return err
				}
			} else if err := report.Write(c.OutOrStdout()); err != nil {
				return err
			}
			if report.Grade == doctor.Broken {
				return exitStatus(exitFailure)
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.IntVar(&cfg.Queues, "queues", 0, "how many queues roxie will use (0: all)")
	fs.IntVar(&cfg.VLAN, "vlan", 0, "802.1Q `tag` of the traffic (0: none)")
	fs.StringVar(&peer, "peer", "", "`address` to be reached through the interface")
	fs.BoolVar(&cfg.Try, "try", false, "attach the steering program for a moment")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
