package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/internal/serve"
)

// serveFlags are the command line of `roxie serve`.
type serveFlags struct {
	config     string
	check      bool
	verbose    bool
	logFormat  string
	logLevel   string
	interfaces []string
	set        []string
	short      []shortcut
	starter    bool
}

// shortcut is a flag of its own for one value of the configuration.
type shortcut struct{ flag, path, value, usage string }

func newServeCommand() *cobra.Command {
	f := serveFlags{short: []shortcut{
		{flag: "max-qps", path: "limits.qps", usage: "QPs at a `number`"},
		{flag: "max-memory", path: "limits.memory", usage: "memory of exports and connections, a `size`"},
		{flag: "max-per-peer", path: "limits.connections-per-peer", usage: "connections of a peer, a `number`"},
		{flag: "export-port", path: "services.exports.port", usage: "RDMA-CM `port` of the exports"},
		{flag: "control", path: "control", usage: "`path` of the control socket, for roxie top, stat, dump and capture"},
		{flag: "user", path: "user", usage: "become an ordinary user of this `name`, without capabilities"},
	}}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Offer services and exports to peers until told to stop",
		Long: "serve offers what its configuration file names: responders for perftest and rping, an\n" +
			"echo, and exports, memory or files that peers reach with READ, WRITE and atomics.\n" +
			"SIGTERM ends it in order, SIGHUP reads the configuration again. docs/serve.md tells all.",
		Example: "  roxie serve --config roxie.yaml --check\n" +
			"  roxie serve --config roxie.yaml -d eth1 --set limits.qps=100",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.config, "config", "/etc/roxie/roxie.yaml", "configuration `file`")
	fs.BoolVar(&f.check, "check", false, "say what is wrong with the configuration, and end")
	fs.StringArrayVarP(&f.interfaces, "ib-dev", "d", nil, "network `interface` instead of the file's; may be repeated")
	fs.StringArrayVar(&f.set, "set", nil, "`PATH=VALUE` instead of the file's value; may be repeated")
	for i := range f.short {
		s := &f.short[i]
		fs.StringVar(&s.value, s.flag, "", s.usage+"; the same as --set "+s.path+"=")
	}
	fs.BoolVar(&f.starter, "starter", false,
		"with --user: leave the rights to a second process, which opens interfaces that return")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "log every connection; the same as --log-level debug")
	fs.StringVar(&f.logFormat, "log-format", "text", "`format` of the log on standard error: text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "least `level` that is logged: debug, info, warn or error")
	return c
}

// overrides are the flags as values of the configuration.
func (f *serveFlags) overrides() []string {
	out := slices.Clone(f.set)
	for _, s := range f.short {
		if s.value != "" {
			out = append(out, s.path+"="+s.value)
		}
	}
	if f.starter {
		out = append(out, "starter=true")
	}
	return out
}

// load reads the configuration with what the flags say.
func (f *serveFlags) load() (*serve.Config, error) {
	return serve.Load(f.config, serve.Overrides{Set: f.overrides(), Interfaces: f.interfaces})
}

func (f *serveFlags) run(c *cobra.Command) error {
	cfg, err := f.load()
	var wrong *serve.ConfigError
	if errors.As(err, &wrong) {
		for _, line := range wrong.Lines() {
			fmt.Fprintln(c.ErrOrStderr(), line)
		}
		return exitStatus(exitFailure)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !c.Flags().Changed("config"):
		return fmt.Errorf("there is no configuration at %s: write one, or name one with --config; "+
			"docs/serve.md tells what is in it", f.config)
	case err != nil:
		return err
	}
	if f.check {
		fmt.Fprintf(c.OutOrStdout(), "%s: good: %s\n", f.config, cfg.Summary())
		return nil
	}
	log, err := newLog(c.ErrOrStderr(), f.logFormat, f.logLevel, f.verbose)
	if err != nil {
		return err
	}
	opener, done, err := f.rights(c, cfg, log)
	if err != nil || done {
		return err
	}
	s := serve.New(cfg, log)
	if opener != nil {
		defer opener.Close()
		s.OpenWith(opener)
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	return s.Run(ctx, func() {
		fmt.Fprintf(c.OutOrStdout(), "ready: %s\n", cfg.Summary())
		go f.reloads(ctx, s, hup, log)
	})
}

// newLog makes the log of control events; nothing is logged per packet.
func newLog(w io.Writer, format, level string, verbose bool) (*slog.Logger, error) {
	var o slog.HandlerOptions
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}
	l, ok := levels[level]
	if !ok {
		return nil, usagef("--log-level %s: want debug, info, warn or error", level)
	}
	if verbose {
		l = slog.LevelDebug
	}
	o.Level = l
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	}
	return nil, usagef("--log-format %s: want text or json", format)
}

// reloads reads the configuration again with each signal. One that is wrong changes nothing.
func (f *serveFlags) reloads(ctx context.Context, s *serve.Server, hup <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		cfg, err := f.load()
		if err == nil {
			err = s.Reload(cfg)
		}
		var wrong *serve.ConfigError
		switch {
		case errors.As(err, &wrong):
			for _, line := range wrong.Lines() {
				log.Error("configuration not taken", "problem", line)
			}
		case err != nil:
			log.Error("configuration taken in part", "error", err)
		default:
			log.Info("configuration taken", "summary", cfg.Summary())
		}
	}
}
