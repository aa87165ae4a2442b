package serve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/internal/rping"
	"github.com/roxie-rdma/roxie/internal/xfer"
)

// Defaults of what a configuration leaves out.
const (
	DefaultEchoPort     = 7175
	DefaultEchoSize     = 64 << 10
	DefaultPerftestPort = 18515
	DefaultMaxQPs       = 1024
	DefaultMaxMemory    = 1 << 30
	DefaultMaxPerPeer   = 64
	DefaultKeepalive    = 30 * time.Second
)

// Config is what an endpoint offers, and where. Load makes one; its zero value offers nothing.
type Config struct {
	Interfaces []Interface
	Limits     Limits
	Control    string // path of the control socket; empty: none
	User       string // to become after set-up, without any capability; empty: none
	Starter    bool   // a process keeps the rights to open interfaces again
	RPing      *RPing // nil: not offered
	Echo       *Echo
	Perftest   []Perftest
	ExportPort uint16 // RDMA-CM port of all exports
	Exports    []Export
}

// Interface is one network interface to serve.
type Interface struct {
	Name      string
	Queues    int           // 1 to 64
	VLAN      int           // 802.1Q tag, 0: none
	Mode      string        // auto, native or generic
	Keepalive time.Duration // silence after which a peer is asked for a sign of life; 0: never
	Addresses []netip.Addr  // own addresses to listen on; empty: all
}

// Limits hold for all interfaces and services together.
type Limits struct {
	QPs     int   // connections at a time
	Memory  int64 // bytes: exports, and what connections use for themselves
	PerPeer int   // connections of one address at a time
}

// RPing is the responder to librdmacm's rping and `roxie ping`.
type RPing struct{ Port uint16 }

// Echo sends every message back to where it came from.
type Echo struct {
	Port uint16
	Size int // bytes of the longest message
}

// Perftest is the responding end of one of perftest's tests with -R.
type Perftest struct {
	Test string // write_bw, send_lat, …
	Port uint16
	Size int // bytes of the longest message; 0: the test's default
	QPs  int // 1 to 64
	// Iterations is what clients must give with -n, as for any server of perftest's SEND and latency
	// tests; 0: the test's default.
	Iterations int
}

// Export is a named piece of memory that peers reach with READ, WRITE and atomics.
type Export struct {
	Name  string
	Size  int64          // bytes; 0: the file's
	File  string         // mapped into memory; empty: memory of zeros
	Write bool           // peers may write and do atomics
	Allow []netip.Prefix // who may connect
	line  int
}

// Allows reports whether a peer may connect.
func (e *Export) Allows(peer netip.Addr) bool {
	peer = peer.Unmap().WithZone("")
	return slices.ContainsFunc(e.Allow, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// Problem is something wrong with a configuration.
type Problem struct {
	Line int    // of the file, from 1; 0: not in the file
	Flag string // what it came from instead
	Text string
}

// ConfigError is all that is wrong with a configuration.
type ConfigError struct {
	File     string
	Problems []Problem
}

// Lines returns a line for each problem, as FILE:LINE: TEXT.
func (e *ConfigError) Lines() []string {
	var out []string
	for _, p := range e.Problems {
		switch {
		case p.Flag != "":
			out = append(out, fmt.Sprintf("%s: %s", p.Flag, p.Text))
		case p.Line > 0:
			out = append(out, fmt.Sprintf("%s:%d: %s", e.File, p.Line, p.Text))
		default:
			out = append(out, fmt.Sprintf("%s: %s", e.File, p.Text))
		}
	}
	return out
}

// Error joins the lines.
func (e *ConfigError) Error() string { return strings.Join(e.Lines(), "\n") }

// ports are all RDMA-CM ports with the services on them.
func (c *Config) ports() map[uint16]string {
	out := map[uint16]string{}
	if c.RPing != nil {
		out[c.RPing.Port] = "rping"
	}
	if c.Echo != nil {
		out[c.Echo.Port] = "echo"
	}
	for _, p := range c.Perftest {
		out[p.Port] = "perftest " + p.Test
	}
	if len(c.Exports) > 0 {
		out[c.ExportPort] = "exports"
	}
	return out
}

// Summary says in one line what is offered where.
func (c *Config) Summary() string {
	var where, what []string
	for _, i := range c.Interfaces {
		where = append(where, i.Name)
	}
	for port, name := range c.ports() {
		what = append(what, fmt.Sprintf("%s at port %d", name, port))
	}
	slices.Sort(what)
	if len(what) == 0 {
		what = []string{"nothing"}
	}
	s := strings.Join(what, ", ") + " on " + strings.Join(where, ", ")
	if len(c.Exports) == 0 {
		return s
	}
	var names []string
	for _, e := range c.Exports {
		names = append(names, e.Name)
	}
	return s + "; exported: " + strings.Join(names, ", ")
}

// defaults is a configuration with all that a file may leave out.
func defaults() *Config {
	return &Config{
		Limits:     Limits{QPs: DefaultMaxQPs, Memory: DefaultMaxMemory, PerPeer: DefaultMaxPerPeer},
		ExportPort: xfer.DefaultPort,
	}
}

const defaultRPingPort = rping.DefaultPort
