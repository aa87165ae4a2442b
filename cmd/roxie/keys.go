package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/keyrules"
	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

func newKeysCommand() *cobra.Command {
	var inLab bool
	c := &cobra.Command{
		Use:   "keys",
		Short: "Try the rules of registered memory, beside what Linux rdma_rxe does",
		Long: "keys lets one endpoint register, invalidate and bind memory while another reaches for\n" +
			"it with keys of all kinds, and prints for each rule what happened here and with the same\n" +
			"steps on Linux rdma_rxe. The endpoints are joined in memory, which needs no rights, or\n" +
			"with --lab by a veth pair. It fails if a rule does not hold.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			run := keysInMemory
			if inLab {
				run = keysInLab
			}
			out, err := run()
			if err != nil {
				return fmt.Errorf("keys: %w", err)
			}
			if err := keyrules.Write(c.OutOrStdout(), out, keyrules.Linux()); err != nil {
				return err
			}
			for i := range out {
				if !out[i].Pass {
					return fmt.Errorf("keys: %s does not hold: %s: %s", out[i].ID, out[i].Rule, out[i].Got)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&inLab, "lab", false, "over a veth pair between two network namespaces")
	return c
}

// keysInMemory joins two devices in memory.
func keysInMemory() (out []keyrules.Outcome, err error) {
	var links [2][]verbs.Link
	links[0], links[1] = verbs.NewLinkPair(1)
	macs := [2]wire.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	addrs := [2]netip.Prefix{netip.MustParsePrefix("10.77.0.1/24"),
		netip.MustParsePrefix("10.77.0.2/24")}
	var ends [2]*verbs.Context
	for i := range ends {
		port := verbs.PortInfo{Name: "memory", MAC: macs[i], Addrs: addrs[i : i+1],
			Neighbours: map[netip.Addr]wire.MAC{addrs[1-i].Addr(): macs[1-i]}}
		dev, err := verbs.OpenLinks(links[i], port, nil)
		if err != nil {
			return nil, err
		}
		defer dev.Close()
		ends[i] = dev
	}
	return keyrules.Run(ends[0], ends[1])
}

// keysInLab tries the rules between the two sides of a lab.
func keysInLab() (out []keyrules.Outcome, err error) {
	l, err := openLab(lab.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return keyrules.RunLab(l)
}
