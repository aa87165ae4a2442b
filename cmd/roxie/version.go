package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version that a build was told by -ldflags "-X main.release=v0.3.0": from a tarball,
// without git, Go knows none. Empty: what Go knows.
var release string

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit it was built from, and the Go version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = &debug.BuildInfo{GoVersion: runtime.Version()}
			}
			return printVersion(c.OutOrStdout(), info)
		},
	}
}

// printVersion writes the release on the first line and where the binary comes from below it.
// Lines whose fact the build did not record (no git, or -buildvcs=false) are left out.
func printVersion(w io.Writer, info *debug.BuildInfo) error {
	settings := buildSettings(info)
	version := cmp.Or(release, info.Main.Version, "(devel)")
	var b strings.Builder
	fmt.Fprintf(&b, "roxie %s\n", version)
	if rev := settings["vcs.revision"]; rev != "" {
		fmt.Fprintf(&b, "commit  %s", rev)
		if settings["vcs.modified"] == "true" {
			b.WriteString(" with local changes")
		}
		b.WriteString("\n")
	}
	if t := settings["vcs.time"]; t != "" {
		fmt.Fprintf(&b, "dated   %s\n", t)
	}
	fmt.Fprintf(&b, "built   %s %s/%s\n", info.GoVersion, runtime.GOOS, runtime.GOARCH)
	_, err := io.WriteString(w, b.String())
	return err
}

// buildSettings returns what the build recorded, by key; info may be nil.
func buildSettings(info *debug.BuildInfo) map[string]string {
	settings := make(map[string]string)
	if info == nil {
		return settings
	}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return settings
}
