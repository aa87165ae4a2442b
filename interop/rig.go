package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// rig is the guest and what is needed to run cells against it. It runs one cell at a time.
type rig struct {
	g     *qemu.Guest
	roxie string // the program
	dir   string // for captures
	mtu   int    // link MTU now
	n     int    // cells so far
	// enough says that no more cells shall begin; nil: never
	enough func() bool
}

// cellTimeout is how long a cell may take in all.
const cellTimeout = 90 * time.Second

// recorded is what a cell left to look at.
type recorded struct {
	guest, roxie string // capture files
	drops        int    // packets that the guest's capture missed
	json         []byte // roxie's own result
}

// tcpPort is where both kinds of tools meet.
const tcpPort = 18515

// warmUp runs a test that does not count. An emulator translates code when it first meets it, which
// takes longer than some timeouts.
func (r *rig) warmUp(ctx context.Context) error {
	c := base("ibv_rc_pingpong", "client", "RC", "")
	s := &scenario{Cell: c, play: stock(nil, nil)}
	rec, _, err := r.play(ctx, s)
	if rec != nil {
		_, _ = os.Remove(rec.guest), os.Remove(rec.roxie)
	}
	r.n = 0
	if err != nil {
		return fmt.Errorf("first contact: %w", err)
	}
	return nil
}

// pair runs both ends of a cell, given their command lines without what names the other end.
func (r *rig) pair(ctx context.Context, c *Cell, theirs, ours []string, at *place) error {
	ours = append(ours, "--pcap", at.pcap)
	if c.Tool != "rping" || c.Role == "client" {
		ours = append(ours, "--json", at.json)
	}
	if c.Role == "server" {
		return r.serveHere(ctx, c, append(ours, c.bind()...), append(theirs, c.peer(true)...))
	}
	return r.serveThere(ctx, c, append(theirs, c.bindThere()...), append(ours, c.peer(false)...))
}

func (r *rig) setMTU(ctx context.Context, mtu int) error {
	if r.mtu == mtu {
		return nil
	}
	if err := r.g.SetMTU(ctx, mtu); err != nil {
		return err
	}
	r.mtu = mtu
	return nil
}

// serveHere runs a cell with roxie as the server.
func (r *rig) serveHere(ctx context.Context, c *Cell, server, client []string) error {
	s, err := r.here(ctx, server...)
	if err != nil {
		return err
	}
	defer s.stop()
	err = until(ctx, "roxie to listen", func() (bool, error) {
		select {
		case <-s.done:
			return false, s.failure(orEarly(s.err))
		default:
		}
		return r.ready(c, s)
	})
	if err != nil {
		return err
	}
	p, err := r.there(ctx, client...)
	if err != nil {
		return err
	}
	return r.both(ctx, c, p, s)
}

// serveThere runs a cell with the stock tool as the server.
func (r *rig) serveThere(ctx context.Context, c *Cell, server, client []string) error {
	if err := r.deaf(ctx, c); err != nil {
		return err
	}
	s, err := r.there(ctx, server...)
	if err != nil {
		return err
	}
	defer s.stop()
	err = until(ctx, c.Tool+" to listen", func() (bool, error) {
		select {
		case <-s.done:
			return false, s.failure(orEarly(s.err))
		default:
		}
		return r.readyThere(ctx, c)
	})
	if err != nil {
		return err
	}
	p, err := r.here(ctx, client...)
	if err != nil {
		return err
	}
	return r.both(ctx, c, p, s)
}

func orEarly(err error) error {
	if err == nil {
		err = fmt.Errorf("it ended before it began")
	}
	return err
}

// endTime is how long one end may go on when the other one has ended.
const endTime = 15 * time.Second

// both waits for the client and the server to end.
func (r *rig) both(ctx context.Context, c *Cell, client, server *process) error {
	defer client.stop()
	select {
	case <-client.done:
	case <-server.done:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endTime,
		fmt.Errorf("it went on for %v after the other end had ended", endTime))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { client.end(); server.end() })
	defer stop()
	clientErr := client.wait(ctx)
	if c.Tool == "rping" && c.Role == "server" {
		server.end() // roxie ping -s serves one client, and may wait for its farewell
	}
	serverErr := server.wait(ctx)
	switch {
	case clientErr != nil && serverErr != nil:
		return fmt.Errorf("%w; %w", clientErr, serverErr)
	case clientErr != nil:
		return clientErr
	}
	return serverErr
}

// ready says whether roxie accepts a client.
func (r *rig) ready(c *Cell, server *process) (bool, error) {
	switch {
	case c.Tool == "rping":
		return strings.Contains(server.out.String(), "listening"), nil
	case c.perftest():
		return strings.Contains(server.out.String(), "Waiting for client"), nil
	}
	var tables []byte
	err := r.g.Side.DoErr(func() error {
		for _, f := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + f)
			if err != nil {
				return err
			}
			tables = append(tables, b...)
		}
		return nil
	})
	return listens(string(tables)), err
}

// readyThere says whether the stock tool accepts a client.
func (r *rig) readyThere(ctx context.Context, c *Cell) (bool, error) {
	if usesCM(c) {
		return r.listensCM(ctx)
	}
	out, err := r.g.Command(ctx, "cat", "/proc/net/tcp", "/proc/net/tcp6").Output()
	return listens(string(out)), err
}

// listening is a line of /proc/net/tcp about a socket in state LISTEN (0A).
var listening = regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F:]+ 0A `, tcpPort))

func listens(table string) bool { return listening.MatchString(table) }

// record captures what run does, in the guest; run is told where roxie's capture and result go.
func (r *rig) record(ctx context.Context, run func(pcap, json string) error) (*recorded, error) {
	r.n++
	base := filepath.Join(r.dir, fmt.Sprintf("cell%03d", r.n))
	rec := &recorded{guest: base + "-linux.pcap", roxie: base + "-roxie.pcapng"}
	jsonFile := base + ".json"
	stop, err := r.capture(ctx, rec)
	if err != nil {
		return nil, err
	}
	err = run(rec.roxie, jsonFile)
	// Also a cell that took too long has a capture to look at.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if stopErr := stop(ctx); err == nil {
		err = stopErr
	}
	rec.json, _ = os.ReadFile(jsonFile)
	_ = os.Remove(jsonFile)
	return rec, err
}

// captureFile is where the guest keeps a capture; its /tmp is memory.
const captureFile = "/tmp/cell.pcap"

// captureFilter lets RoCEv2 through, tagged or not.
const captureFilter = "udp port 4791 or (vlan and udp port 4791)"

var dropped = regexp.MustCompile(`(\d+) packets dropped by kernel`)

// capture starts to capture in the guest. stop ends that when all has been written, and fetches the
// file.
func (r *rig) capture(ctx context.Context, rec *recorded) (
	stop func(context.Context) error, err error) {
	// Immediate mode needs room for whole frames; 64 MiB hold a thousand messages of a kind.
	p := r.g.Command(context.WithoutCancel(ctx), "tcpdump", "-Z", "root", "-i", qemu.GuestLink, "-s", "9216", "-U",
		"--immediate-mode", "-B", "65536", "-w", captureFile, captureFilter)
	var said output
	p.Stderr = &said
	if err := p.Start(); err != nil {
		return nil, err
	}
	err = until(ctx, "tcpdump to begin", func() (bool, error) {
		select {
		case <-p.Done():
			return false, fmt.Errorf("tcpdump: %s", said.String())
		default:
			return strings.Contains(said.String(), "listening on"), nil
		}
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := r.settle(ctx); err != nil {
			return err
		}
		if err := p.Signal(syscall.SIGINT); err != nil {
			return err
		}
		if err := p.Wait(); err != nil {
			return fmt.Errorf("tcpdump: %w: %s", err, said.String())
		}
		if m := dropped.FindStringSubmatch(said.String()); m != nil {
			rec.drops, _ = strconv.Atoi(m[1])
		}
		f, err := os.Create(rec.guest)
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(f, 1<<20)
		if err := r.g.Pull(ctx, captureFile, w); err != nil {
			_ = f.Close()
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		return f.Close()
	}, nil
}

// settle waits until the capture does not grow any more.
func (r *rig) settle(ctx context.Context) error {
	last := ""
	return until(ctx, "the capture to be complete", func() (bool, error) {
		var out bytes.Buffer
		c := r.g.Shell(ctx, "stat -c %s "+captureFile+"; sleep 0.1; stat -c %s "+captureFile)
		c.Stdout = &out
		if err := c.Run(); err != nil {
			return false, err
		}
		sizes := strings.Fields(out.String())
		same := len(sizes) == 2 && sizes[0] == sizes[1] && (last == "" || sizes[0] == last)
		last = ""
		if len(sizes) == 2 {
			last = sizes[1]
		}
		return same, nil
	})
}

// usesCM says whether a cell's tool listens with RDMA-CM.
func usesCM(c *Cell) bool { return c.Tool == "rping" || c.Option == "cm" }

// listensCM says whether a program of the guest listens with RDMA-CM. The kernel's own listener, which
// ib_srpt has once it was set up, has no pid.
func (r *rig) listensCM(ctx context.Context) (bool, error) {
	out, err := r.g.Command(ctx, "rdma", "resource", "show", "cm_id").Output()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, " LISTEN ") && strings.Contains(line, " pid ") {
			return true, err
		}
	}
	return false, err
}

// deaf waits until nothing listens in the guest where the stock tool is going to: the listener of a
// program that has just ended can be there a moment longer, and must not be taken for the next one's.
func (r *rig) deaf(ctx context.Context, c *Cell) error {
	return until(ctx, "the last listener to go", func() (bool, error) {
		listens, err := r.readyThere(ctx, c)
		return !listens, err
	})
}
