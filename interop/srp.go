package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/internal/qemu"
	"github.com/roxie-rdma/roxie/internal/srp"
)

// This file has roxie log in to the guest's ib_srpt, whose disks are memory.

// Disks of the target, by logical unit.
const (
	quickDisk = 0
	slowDisk  = 1 // thinks for slowTime
	slowTime  = 50 * time.Millisecond
)

// srptUp makes the target once, and lets it take logins. An initiator is known to ib_srpt by the
// address that it has come to, which is the target's own; MAC and service GUID belong together.
var srptUp = fmt.Sprintf(`
t=/sys/kernel/config/target
if ! [ -d $t/srpt ]; then
	modprobe -a configfs target_core_mod target_core_iblock ib_srpt
	modprobe null_blk nr_devices=0
	[ -d /sys/kernel/config/nullb ] || mount -t configfs configfs /sys/kernel/config
	mkdir -p $t/srpt
	echo %[1]d >$t/srpt/discovery_auth/rdma_cm_port
	guid=$(cut -d: -f5-8 /sys/class/infiniband/%[2]s/ports/1/gids/0)
	mkdir $t/srpt/$guid
	p=$t/srpt/$guid/$guid
	mkdir $p
	ln -s $p /run/srpt
	mkdir $p/acls/%[3]v
	for lun in %[4]d %[5]d; do
		n=/sys/kernel/config/nullb/srp$lun
		mkdir $n
		echo 64 >$n/size
		echo 1 >$n/memory_backed
		echo 512 >$n/blocksize
		echo 2048 >$n/max_sectors
		if [ $lun = %[5]d ]; then
			echo 2 >$n/irqmode
			echo %[6]d >$n/completion_nsec
		fi
		echo 1 >$n/power
		c=$t/core/iblock_0/srp$lun
		mkdir -p $c
		echo udev_path=/dev/srp$lun >$c/control
		echo 1 >$c/enable
		mkdir $p/lun/lun_$lun $p/acls/%[3]v/lun_$lun
		ln -s $c $p/lun/lun_$lun/disk
		ln -s $p/lun/lun_$lun $p/acls/%[3]v/lun_$lun/$lun
	done
fi
echo 1 >/run/srpt/enable
`, srp.DefaultPort, qemu.GuestRDMA, qemu.GuestIPv4.Addr(), quickDisk, slowDisk,
	slowTime.Nanoseconds())

// srptDown ends all logins: otherwise rxe might send to QPs that are gone for ever.
const srptDown = "echo 0 >/run/srpt/enable"

func srpScenarios() []*scenario {
	var all []*scenario
	for _, s := range []struct {
		option string
		play   func(context.Context, *scenario, *rig, *place) (string, error)
	}{{"logins", srpLogins}, {"aborts", srpAborts}, {"target leaves", srpLeaves}, {"target vanishes",
		srpVanishes}} {
		c := base("ib_srpt", "client", "RC", s.option)
		c.Size, c.QPs = 64<<10, 2
		all = append(all, &scenario{Cell: c, play: s.play, rough: true,
			prepare: func(ctx context.Context, r *rig) error {
				_, err := r.run(ctx, srptUp)
				return err
			},
			undo: func(ctx context.Context, r *rig) error {
				_, err := r.run(ctx, srptDown)
				return err
			}})
	}
	return all
}

// srpStart starts roxie srp on a disk of the guest.
func (r *rig) srpStart(ctx context.Context, s *scenario, at *place, more ...string) (*process,
	error) {
	argv := []string{r.roxie, "srp", qemu.TapName, qemu.GuestIPv4.Addr().String(), "-s",
		fmt.Sprint(s.Size),
		"--channels", fmt.Sprint(s.QPs), "--overwrite", "--pcap", at.pcap, "--json", at.json}
	return r.here(ctx, append(argv, more...)...)
}

// srpReport waits for the end of a run that must be good, and reads its report.
func srpReport(ctx context.Context, p *process) (*srp.Report, error) {
	defer p.stop()
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	rep := new(srp.Report)
	_, text, _ := strings.Cut("\n"+p.out.String(), "\n{") // words, which go to standard error, are there too
	if err := json.NewDecoder(strings.NewReader("{" + text)).Decode(rep); err != nil {
		return nil, fmt.Errorf("no report: %w", err)
	}
	if rep.Mismatches+rep.Errors+rep.Timeouts > 0 {
		return nil, fmt.Errorf("%d mismatches, %d errors, %d timeouts", rep.Mismatches, rep.Errors,
			rep.Timeouts)
	}
	return rep, nil
}

// srpLogins is the load itself, with sessions that log in and out beside it.
func srpLogins(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	p, err := r.srpStart(ctx, s, at, "-n", "1000", "--area", "2", "--logins", "2", "--json", "-")
	if err != nil {
		return "", err
	}
	rep, err := srpReport(ctx, p)
	if err != nil {
		return "", err
	}
	if rep.Commands != 1000 || rep.Beside < 2 {
		return "", fmt.Errorf("%d commands, %d sessions beside", rep.Commands, rep.Beside)
	}
	return fmt.Sprintf("%.0f commands a second, %d sessions came and went, %d REG_MR", rep.IOPS,
		rep.Beside,
		rep.Regs), nil
}

// srpAborts aborts commands while a slow disk works on them.
func srpAborts(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	p, err := r.srpStart(ctx, s, at, "-n", "200", "--area", "1", "--logins", "1", "--abort", "4",
		"--lun", fmt.Sprint(slowDisk), "--json", "-")
	if err != nil {
		return "", err
	}
	rep, err := srpReport(ctx, p)
	if err != nil {
		return "", err
	}
	if rep.Aborted == 0 || rep.Repeated < rep.Aborted {
		return "", fmt.Errorf("%d commands aborted of %d tried, %d repeated", rep.Aborted, rep.Aborts,
			rep.Repeated)
	}
	return fmt.Sprintf("%d commands aborted of %d tried", rep.Aborted, rep.Aborts), nil
}

// srpEndTime is how long an initiator may take to notice: eight times its ACK timeout of some two
// seconds, and what a logout may take that nobody answers.
const srpEndTime = 40 * time.Second

// srpEnds runs an endless load, does something to the target once it moves, and wants it to end.
func srpEnds(ctx context.Context, s *scenario, r *rig, at *place, script, says string) (string,
	error) {
	p, err := r.srpStart(ctx, s, at, "-n", endless, "--area", "1", "--logins", "0")
	if err != nil {
		return "", err
	}
	defer p.stop()
	if err := r.flowing(ctx, p); err != nil {
		return "", err
	}
	if _, err := r.run(ctx, script); err != nil {
		return "", err
	}
	start := time.Now()
	select {
	case <-p.done:
	case <-time.After(srpEndTime):
		return "", fmt.Errorf("roxie has not noticed within %v", srpEndTime)
	}
	took := time.Since(start).Round(10 * time.Millisecond)
	err = p.failure(p.err)
	switch {
	case err == nil:
		return "", errors.New("roxie ended as if all were well")
	case !strings.Contains(err.Error(), says):
		return "", err
	}
	return fmt.Sprintf("noticed after %v: %s", took, lastWords(p.out.String())), nil
}

// srpLeaves disables the target, which tells its initiators.
func srpLeaves(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	return srpEnds(ctx, s, r, at, srptDown, "the target has ended the connection")
}

// srpVanishes lets nothing of the target through any more.
func srpVanishes(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	note, err := srpEnds(ctx, s, r, at,
		"modprobe sch_netem; tc qdisc add dev eth0 root netem loss 100%",
		"transport retry counter exceeded")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	_, undo := r.run(ctx, srptDown+"; tc qdisc del dev eth0 root")
	return note, errors.Join(err, undo)
}
