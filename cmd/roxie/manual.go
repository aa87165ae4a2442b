package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func newManualCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "manual DIR",
		Short: "Write a manual page of each command into a directory",
		Long: "manual writes a page of each command, roxie(1), roxie-perf(1), roxie-perf-write_bw(1) …,\n" +
			"into a directory, which is made if there is none. `make install` and the Debian package\n" +
			"do so. What --help tells is all that is in them.",
		Example: "  roxie manual ~/.local/share/man/man1\n" +
			"  roxie manual --format markdown docs/commands",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if format != "man" && format != "markdown" {
				return usagef("no format %q of a page: man or markdown", format)
			}
			pages, err := manual(format == "markdown", buildDate())
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, page := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name), page, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&format, "format", "man", "`format` of the pages: man or markdown")
	return c
}

// buildDate is the date of the commit that the binary was built from, or else now: the same binary
// of a release writes the same pages on any day.
func buildDate() time.Time {
	info, _ := debug.ReadBuildInfo()
	if t, err := time.Parse(time.RFC3339, buildSettings(info)["vcs.time"]); err == nil {
		return t
	}
	return time.Now()
}

// manual returns a page of each command that help lists, by file name.
func manual(markdown bool, date time.Time) (map[string][]byte, error) {
	pages := make(map[string][]byte)
	var walk func(c *cobra.Command) error
	walk = func(c *cobra.Command) error {
		forPage(c, markdown)
		var name string
		var b bytes.Buffer
		var err error
		if markdown {
			name = strings.ReplaceAll(c.CommandPath(), " ", "_") + ".md"
			err = doc.GenMarkdown(c, &b)
		} else {
			name = strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
			err = doc.GenMan(c, &doc.GenManHeader{Section: "1", Date: &date, Source: "roxie",
				Manual: "RDMA in user space"}, &b)
		}
		if err != nil {
			return fmt.Errorf("page of %s: %w", c.CommandPath(), err)
		}
		// A switch is one by being given; cobra/doc tells its default too, as if it took a value.
		pages[name] = bytes.ReplaceAll(b.Bytes(), []byte("[=false]"), nil)
		for _, sub := range c.Commands() {
			if !sub.IsAvailableCommand() {
				continue
			}
			if err := walk(sub); err != nil {
				return err
			}
		}
		return nil
	}
	root := newRoot()
	root.SetOut(io.Discard)
	return pages, walk(root)
}

// forPage changes the texts of a command, which are written for a terminal, into what cobra/doc
// takes for Markdown.
func forPage(c *cobra.Command, markdown bool) {
	c.DisableAutoGenTag = true
	c.InitDefaultHelpFlag()
	c.Short = escapeMarkdown(c.Short)
	c.Long = paragraphs(c.Long)
	if c.HasAvailableSubCommands() {
		c.Use, c.DisableFlagsInUseLine = c.Name()+" COMMAND", true
	}
	if markdown {
		return // flags stay as they are: it prints them as --help does
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name, usage := pflag.UnquoteUsage(f)
		f.Usage = escapeMarkdown(usage)
		if _, done := f.Value.(*namedValue); done || f.NoOptDefVal != "" {
			return
		}
		if d := f.DefValue; d != "" && d != "0" && d != "0s" && d != "[]" {
			f.Usage += escapeMarkdown(" (default " + d + ")")
		}
		f.Value, f.DefValue = &namedValue{f.Value}, escapeMarkdown(name)
	})
}

// namedValue is a flag whose page says what its value is, not what it is without the flag: as
// cobra/doc has no word for the former, its place is taken.
type namedValue struct{ pflag.Value }

// Type keeps cobra/doc from putting quotes about the name.
func (*namedValue) Type() string { return "" }

// paragraphs turns a text for a terminal into Markdown: lines that begin with two spaces or a tab
// are a table or commands, all others words.
func paragraphs(text string) string {
	var b strings.Builder
	table, blank := false, true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		inTable := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		if inTable != table && !blank && line != "" {
			b.WriteString("\n")
		}
		if inTable {
			line = "    " + strings.TrimLeft(line, "\t ") // preformatted
		} else {
			line = escapeMarkdown(line)
		}
		b.WriteString(line + "\n")
		table, blank = inTable, line == ""
	}
	return strings.TrimRight(b.String(), "\n")
}

// escapeMarkdown makes the characters that Markdown takes for its own into themselves, but for
// those between backquotes.
func escapeMarkdown(s string) string {
	var b strings.Builder
	code := false
	for _, r := range s {
		if r == '`' {
			code = !code
		}
		if !code && strings.ContainsRune(`\*_<>[]|`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
