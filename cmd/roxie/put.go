package main

import (
	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/xfer"
)

func newPutCommand() *cobra.Command {
	f := transferFlags{move: xfer.Put}
	c := &cobra.Command{
		Use:   "put NAME@HOST FILE",
		Short: "Move a file to an export of roxie serve",
		Long: "put WRITEs a file into an export, has the other end hash every block, and compares. The\n" +
			"export's content is the file then. With --resume only blocks that differ are sent.",
		Example: "  roxie put scratch@192.0.2.1 image.raw\n" +
			"  roxie put scratch@192.0.2.1 image.raw --resume --wait 1m --json",
		Args: cobra.ExactArgs(2),
		RunE: f.run,
	}
	f.declare(c)
	return c
}
