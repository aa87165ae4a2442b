package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// findings is what the captures of a cell show.
type findings struct {
	Packets     int `json:"packets"`
	Retransmits int `json:"retransmits"` // requests sent again, by either end
	Needless    int `json:"needless"`    // of those, Linux's of what roxie had answered in time
	ICRCErrors  int `json:"icrc_errors"`
	Drops       int `json:"capture_drops"`
	Late        int `json:"late_packets"` // of the guest, after roxie had ended
	RNR         int `json:"rnr_naks"`
}

// A cell may send so many packets twice: one in a thousand, or a few.
const (
	retransmitShare = 1000
	retransmitFloor = 3
)

// leastTimeout is the shortest time after which a requester repeats itself unasked, in any cell:
// that of pingpong is 67 ms; the clock of an emulated machine is not exact.
const leastTimeout = 50 * time.Millisecond

// answerTime is how soon roxie has to acknowledge what asks for it, so that a repetition of that is
// the sender's own fault. It is enough less than leastTimeout.
const answerTime = 20 * time.Millisecond

// examine checks the captures of a cell.
func examine(ctx context.Context, roxie string, rec *recorded, c *scenario) (f findings, err error) {
	look := *rec
	if c.single { // roxie was killed, and its capture is cut off
		look.roxie = rec.guest
	}
	linux, ours, err := look.read(&f)
	if err != nil {
		return f, err
	}
	return f, errors.Join(
		f.judge(linux, ours, c),
		tshark(ctx, linux, ours),
		decode(ctx, roxie, look.guest, look.roxie))
}

// judge checks packets against each other and against what should be.
func (f *findings) judge(linux, ours []*packet, c *scenario) error {
	errs := []error{whole(linux, "Linux", f), whole(ours, "roxie", f)}
	if f.Drops > 0 { // the guest's capture is not complete: ICRCs are all it can tell
		return errors.Join(errs...)
	}
	toGuest, fromGuest := split(linux)
	sent, came := split(ours)
	if err := agree(sent, toGuest, false); err != nil {
		errs = append(errs, fmt.Errorf("from roxie to Linux: %w", err))
	}
	if err := agree(fromGuest, came, true); err != nil {
		errs = append(errs, fmt.Errorf("from Linux to roxie: %w", err))
	} else {
		for i, p := range came {
			p.sent = fromGuest[i].at
		}
	}
	f.Late = len(fromGuest) - len(came)
	s := newSequence(c.PMTU)
	for _, p := range ours {
		s.see(p)
	}
	f.Retransmits, f.Needless, f.RNR = s.again[false]+s.again[true], s.needless, s.rnr
	if !c.rough {
		errs = append(errs, s.verdict(f.Packets, &c.Cell))
	}
	return errors.Join(errs...)
}

// read reads both captures.
func (rec *recorded) read(f *findings) (linux, ours []*packet, err error) {
	if linux, err = readPackets(rec.guest); err != nil {
		return nil, nil, err
	}
	if ours, err = readPackets(rec.roxie); err != nil {
		return nil, nil, err
	}
	if len(linux) == 0 || len(ours) == 0 {
		return nil, nil, fmt.Errorf("%d and %d packets were captured", len(linux), len(ours))
	}
	f.Packets, f.Drops = len(linux), rec.drops
	return linux, ours, nil
}

// whole checks each packet of a capture by itself.
func whole(all []*packet, where string, f *findings) error {
	var first error
	for i, p := range all {
		switch p.refused {
		case wire.ReasonOK:
			continue
		case wire.ReasonICRC:
			f.ICRCErrors++
		}
		if first == nil {
			first = fmt.Errorf("%s's capture, packet %d: %v: %v", where, i+1, p.refused, p)
		}
	}
	return first
}

// tshark has Wireshark's decoder look at all packets.
func tshark(ctx context.Context, captures ...[]*packet) error {
	file, err := os.CreateTemp("", "roxie-interop-*.pcap")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if err := errors.Join(writeBoth(file, captures...), file.Close()); err != nil {
		return err
	}
	// Messages are data: it would take some for Ethernet or upper-layer protocols, by guessing.
	out, err := look(ctx, "tshark", "-n", "-r", file.Name(),
		"-o", "infiniband.try_heuristic_first:FALSE", "-d", "infiniband,data",
		"-Y", "_ws.malformed || !infiniband", "-T", "fields", "-e", "frame.number",
		"-e", "_ws.col.Info")
	if err != nil {
		return err
	}
	if lines := strings.Split(strings.TrimSpace(out), "\n"); lines[0] != "" {
		return fmt.Errorf("tshark finds fault with %d packets, first: %s", len(lines), lines[0])
	}
	return nil
}

// decode has roxie's own program look at captures: it fails if an ICRC is wrong.
func decode(ctx context.Context, roxie string, captures ...string) error {
	for _, c := range captures {
		if _, err := look(ctx, roxie, "decode", c); err != nil {
			return err
		}
	}
	return nil
}

// lookPriority is that of what looks at captures: behind the two ends, and before what else goes on,
// or it would fall behind on a busy machine.
const lookPriority = priority / 2

// look runs a program that looks at captures.
func look(ctx context.Context, argv ...string) (string, error) {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Start()
	if err == nil {
		err = errors.Join(qemu.SetPriority(c.Process.Pid, lookPriority), c.Wait())
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastLines(stderr.String()))
	}
	return stdout.String(), nil
}
