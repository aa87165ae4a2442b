package main

import (
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/pingpong"
)

func newPingpongCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "pingpong",
		Short: "Send messages back and forth, with rdma-core's ibv_*_pingpong or with itself",
		Long: "pingpong sends messages back and forth. Start it without an address on one machine (the\n" +
			"server), then with the server's on another (the client). Either end may be rdma-core's\n" +
			"program of the same kind, such as ibv_rc_pingpong: letters of flags, what travels and\n" +
			"what is printed are theirs.",
		Example: "  roxie pingpong rc -d eth0                # server; or: ibv_rc_pingpong -d rxe0 -g 1\n" +
			"  roxie pingpong rc -d eth0 192.0.2.1      # client; or: ibv_rc_pingpong -d rxe0 -g 1 192.0.2.2",
	}
	for _, k := range pingpong.Kinds() {
		c.AddCommand(newPingpongKind(k))
	}
	return c
}

var pingpongKinds = map[pingpong.Kind]string{
	pingpong.RC:  "Over a reliable connection, like ibv_rc_pingpong",
	pingpong.UC:  "Over an unreliable connection, like ibv_uc_pingpong",
	pingpong.UD:  "With datagrams, like ibv_ud_pingpong",
	pingpong.SRQ: "Over several connections that share a receive queue, like ibv_srq_pingpong",
}

func newPingpongKind(k pingpong.Kind) *cobra.Command {
	cfg := pingpong.Config{Kind: k}
	var mode string
	var result jsonOutput
	c := &cobra.Command{
		Use:   string(k) + " [SERVER]",
		Short: pingpongKinds[k],
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				cfg.Server = args[0]
			}
			modes := map[string]bpf.Mode{"auto": bpf.Auto, "native": bpf.Native, "generic": bpf.Generic}
			var known bool
			if cfg.Mode, known = modes[mode]; !known {
				return usagef("--xdp %s: auto, native or generic", mode)
			}
			if cfg.Interface == "" {
				return usagef("which interface? give it with -d")
			}
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			return runPingpong(c, cfg, &result)
		},
	}
	fs := c.Flags()
	fs.SortFlags = false
	size := 4096
	if k == pingpong.UD {
		size = 1024
	}
	fs.StringVarP(&cfg.Interface, "ib-dev", "d", "", "network `interface` to use")
	fs.IntVarP(&cfg.GIDIndex, "gid-idx", "g", -1, "GID `index`; -1: the first IPv4 address")
	fs.IntVarP(&cfg.Port, "port", "p", pingpong.DefaultPort, "TCP `port` to meet at")
	fs.IntVarP(&cfg.Size, "size", "s", size, "message size in `bytes`")
	if k != pingpong.UD {
		fs.IntVarP(&cfg.PMTU, "mtu", "m", 1024, "path MTU, 256 to 4096, the same at both ends")
	}
	if k == pingpong.SRQ {
		fs.IntVarP(&cfg.QPs, "num-qp", "q", pingpong.DefaultQPs, "QPs, 1 to 256")
	}
	fs.IntVarP(&cfg.RXDepth, "rx-depth", "r", pingpong.DefaultRXDepth, "receives kept posted")
	fs.IntVarP(&cfg.Iters, "iters", "n", pingpong.DefaultIters, "messages each way")
	fs.BoolVarP(&cfg.Events, "events", "e", false, "sleep until completions come")
	fs.BoolVarP(&cfg.ExpectEcho, "chk", "c", false,
		"send new data each time and expect it back; for one of the ends")
	if k == pingpong.RC || k == pingpong.SRQ {
		fs.IntVar(&cfg.Timeout, "qp-timeout", pingpong.DefaultTimeout,
			"ACK timeout, 4.096 µs × 2^`n` (14: 67 ms)")
	}
	fs.IntVar(&cfg.VLAN, "vlan", 0, "802.1Q tag of all traffic, 1 to 4094; 0: none")
	fs.StringVar(&mode, "xdp", "auto", "XDP `mode`: auto, native, generic")
	result.declare(fs, "the result")
	fs.StringVar(&cfg.Capture, "pcap", "", "write all packets, both directions, to this pcapng `file`")
	return c
}

func runPingpong(c *cobra.Command, cfg pingpong.Config, result *jsonOutput) error {
	out := c.OutOrStdout()
	line := newStatusLine(c.ErrOrStderr())
	res, err := pingpong.Run(c.Context(), cfg, pingpong.Hooks{
		Ready: func(a net.Addr) { line.set(fmt.Sprintf("waiting for a client on %v", a)) },
		Addresses: func(ours, theirs []string) {
			line.clear()
			printDests(out, "local address: ", ours)
			printDests(out, "remote address:", theirs)
		},
	})
	line.clear()
	if err != nil {
		return fmt.Errorf("%s pingpong: %w", cfg.Kind, interrupted(err))
	}
	if err := res.Write(out); err != nil {
		return err
	}
	return result.write(res)
}

func printDests(w io.Writer, what string, dests []string) {
	for _, d := range dests {
		fmt.Fprintf(w, "  %s %s\n", what, d)
	}
}
