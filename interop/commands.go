package main

import (
	"strconv"
	"strings"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// ackTimeout is the local ACK timeout that perftest is given, and roxie's pingpong, 4.096 µs × 2^18
// = 1.07 s: an emulated machine stops for longer than the 67 ms that is everybody's default. The
// stock pingpongs have no flag for it.
const ackTimeout = 18

// commands returns the command lines of both ends, without what names the other end.
func (c *Cell) commands(roxie string) (theirs, ours []string) {
	switch {
	case c.pingpong():
		return c.pingpongCommands(roxie)
	case c.Tool == "rping":
		theirs = []string{"rping", "-v", "-V", "-C", strconv.Itoa(c.iters()), "-S", strconv.Itoa(c.Size)}
		ours = []string{roxie, "ping", "-d", qemu.TapName, "-V", "-C", strconv.Itoa(c.iters()),
			"-S", strconv.Itoa(c.Size)}
		return theirs, ours
	}
	return c.perftestCommands(roxie)
}

func (c *Cell) gid() string {
	// Both ends have their addresses in one order.
	if c.Family == "ipv6" {
		return strconv.Itoa(qemu.GuestGIDv6)
	}
	return strconv.Itoa(qemu.GuestGIDv4)
}

func (c *Cell) pingpongCommands(roxie string) (theirs, ours []string) {
	flags := []string{"-g", c.gid(), "-s", strconv.Itoa(c.Size), "-n", strconv.Itoa(c.iters())}
	if c.Transport != "UD" {
		flags = append(flags, "-m", strconv.Itoa(c.PMTU))
	}
	if c.Tool == "ibv_srq_pingpong" {
		flags = append(flags, "-q", strconv.Itoa(c.QPs))
	}
	if c.Option == "events" {
		flags = append(flags, "-e")
	}
	own := []string{"--xdp", c.XDP}
	if c.Transport == "RC" {
		own = append(own, "--qp-timeout", strconv.Itoa(ackTimeout))
	}
	kind := strings.TrimSuffix(strings.TrimPrefix(c.Tool, "ibv_"), "_pingpong")
	theirs = append([]string{c.Tool, "-d", qemu.GuestRDMA}, flags...)
	ours = append([]string{roxie, "pingpong", kind, "-d", qemu.TapName}, append(own, flags...)...)
	if c.QPs == 1 {
		ours = append(ours, "-c")
	}
	if c.Option != "events" && (c.Transport == "RC" || c.Size > c.PMTU) {
		ours = append(ours, "-e") // the guest polls, and has 67 ms for each answer: leave it the processors
	}
	return theirs, ours
}

func (c *Cell) perftestCommands(roxie string) (theirs, ours []string) {
	flags := []string{"-x", c.gid(), "-m", strconv.Itoa(c.PMTU), "-F", "-u", strconv.Itoa(ackTimeout)}
	if c.Transport != "RC" {
		flags = append(flags, "-c", c.Transport)
	}
	if c.Size > 0 && c.operation() != "atomic" {
		flags = append(flags, "-s", strconv.Itoa(c.Size))
	}
	if c.QPs > 1 {
		flags = append(flags, "-q", strconv.Itoa(c.QPs))
	}
	if c.Option == "time" {
		flags = append(flags, "-D", "1")
		if !c.latency() { // nor may more be under way at its end than it takes in a moment
			flags = append(flags, "-t", "1")
		}
	} else {
		flags = append(flags, "-n", strconv.Itoa(c.iters()))
	}
	switch c.Option {
	case "events":
		flags = append(flags, "-e")
	case "both":
		flags = append(flags, "-b")
	case "all":
		flags = append(flags, "-a")
	case "cm":
		flags = append(flags, "-R")
	case "inline":
		flags = append(flags, "-I", strconv.Itoa(inlineSize))
	}
	theirs = append([]string{c.Tool, "-d", qemu.GuestRDMA}, flags...)
	ours = append([]string{roxie, "perf", strings.TrimPrefix(c.Tool, "ib_"), "-d", qemu.TapName,
		"--xdp", c.XDP}, flags...)
	return theirs, ours
}

// peer is how a client names the server; there: the client is in the guest.
func (c *Cell) peer(there bool) []string {
	addr, addr6 := qemu.GuestIPv4.Addr(), qemu.GuestIPv6.Addr()
	if there {
		addr, addr6 = qemu.HostIPv4.Addr(), qemu.HostIPv6.Addr()
	}
	if c.Tool != "rping" {
		// TCP goes over IPv4 in any case: some stock servers listen to nothing else.
		return []string{addr.String()}
	}
	if c.Family == "ipv6" {
		addr = addr6
	}
	return []string{"-c", "-a", addr.String()}
}

// bind is what makes roxie a server.
func (c *Cell) bind() []string {
	if c.Tool == "rping" {
		return []string{"-s"}
	}
	return nil
}

// bindThere is what makes the stock tool a server.
func (c *Cell) bindThere() []string {
	if c.Tool == "rping" {
		any := "0.0.0.0"
		if c.Family == "ipv6" {
			any = "::"
		}
		return []string{"-s", "-a", any}
	}
	return nil
}
