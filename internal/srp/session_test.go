package srp_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/srp"
	"github.com/roxie-rdma/roxie/internal/srp/ramdisk"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// rig is an initiator's device and a target's, joined in memory.
type rig struct {
	t           testing.TB
	dev, there  *verbs.Context
	m           *cm.Manager
	disk        *ramdisk.Target
	target      srp.Target
	stop        context.CancelFunc
	served      chan error
	closeTarget func()
}

// How long the ends wait for each other: as usual; or hardly, where one is not there.
var (
	patient = rcm.Config{}
	hasty   = rcm.Config{RetryFirst: 20 * time.Millisecond, MaxRetries: 3, ResponseTimeout: 15,
		PacketLife: 12}
)

func newRig(t testing.TB, cfg ramdisk.Config, timers rcm.Config) *rig {
	t.Helper()
	la, lb := verbs.NewLinkPair(1)
	macs := []wire.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	open := func(l []verbs.Link, i int) (*verbs.Context, *cm.Manager) {
		dev, err := verbs.OpenLinks(l, verbs.PortInfo{Name: "mem", MAC: macs[i],
			Addrs:      []netip.Prefix{netip.PrefixFrom(addrs[i], 24)},
			Neighbours: map[netip.Addr]wire.MAC{addrs[1-i]: macs[1-i]}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		m, err := cm.New(dev, &cm.Config{Keepalive: 100 * time.Millisecond, Machine: timers})
		if err != nil {
			t.Fatal(err)
		}
		return dev, m
	}
	r := &rig{t: t, served: make(chan error, 1),
		target: srp.Target{Addr: netip.AddrPortFrom(addrs[1], srp.DefaultPort), Port: srp.PortID{Ext: 5,
			GUID: 6}}}
	var tm *cm.Manager
	r.dev, r.m = open(la, 0)
	r.there, tm = open(lb, 1)
	var err error
	if r.disk, err = ramdisk.New(r.there, tm, cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.served <- r.disk.Serve(ctx) }()
	closed := false
	r.closeTarget = func() {
		if closed {
			return
		}
		closed = true
		stop()
		if err := <-r.served; err != nil {
			t.Error(err)
		}
		_ = tm.Close() // without an answer from a peer that is gone
		if err := r.there.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		if err := r.m.Close(); err != nil {
			t.Error(err)
		}
		if err := r.dev.Close(); err != nil {
			t.Error(err)
		}
		r.closeTarget()
	})
	return r
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

const patience = 60 * time.Second

// TestRun is a load with everything: two channels, sessions beside it, aborted commands.
func TestRun(t *testing.T) {
	var n atomic.Uint32
	r := newRig(t, ramdisk.Config{Blocks: 12 << 11, CreditEvery: 3, Think: func() time.Duration {
		if n.Add(1)%4 == 0 {
			return 10 * time.Millisecond
		}
		return 0
	}}, patient)
	cfg := srp.LoadConfig{Options: srp.Options{Channels: 2, Depth: 8}, Count: 600, Logins: 2, Abort: 8,
		Area: 4 << 20, MaxBytes: 64 << 10}
	if testing.Short() {
		cfg.Count = 100
	}
	rep, err := srp.Run(within(t, patience), r.dev, r.m, r.target, cfg)
	if err != nil {
		t.Fatalf("%v; %+v", err, rep)
	}
	rep.Print(t.Output())
	if rep.Commands != int64(cfg.Count) || rep.Mismatches != 0 || rep.Refused != 3 ||
		rep.Indirect == 0 {
		t.Errorf("report %+v", rep)
	}
	for _, kind := range []string{"read(10)", "read(16)", "write(10)", "write(16)", "inquiry",
		"read capacity(16)"} {
		if rep.Kinds[kind] == 0 {
			t.Errorf("no %s in %v", kind, rep.Kinds)
		}
	}
	if rep.Regs < uint64(cfg.Count) || rep.Invs+8*2 < rep.Regs || rep.Invs > rep.Regs ||
		rep.Maps != rep.Regs {
		t.Errorf("%d REG_MR, %d LOCAL_INV, %d lists mapped", rep.Regs, rep.Invs, rep.Maps)
	}
	if rep.Aborts == 0 || rep.Aborted == 0 || r.disk.Aborts.Load() < rep.Aborted ||
		rep.Repeated < rep.Aborted {
		t.Errorf("%d tried to abort, %d aborted, %d by the target, %d repeated", rep.Aborts, rep.Aborted,
			r.disk.Aborts.Load(), rep.Repeated)
	}
	if rep.Beside < 3 || rep.Replaced == 0 || rep.Logins < 2+rep.Beside {
		t.Errorf("%d logins, %d sessions beside, %d replaced", rep.Logins, rep.Beside, rep.Replaced)
	}
	// A second run finds the blocks of the first, and may write over them.
	cfg.Count, cfg.Logins, cfg.Abort, cfg.Seed = 20, 0, 0, 9
	if rep, err = srp.Run(within(t, patience), r.dev, r.m, r.target, cfg); err != nil ||
		rep.Commands != 20 {
		t.Fatalf("second run: %v", err)
	}
}

// TestWrongData: one wrong byte is found, and told.
func TestWrongData(t *testing.T) {
	r := newRig(t, ramdisk.Config{Blocks: 8 << 11, Spoil: 1}, patient)
	rep, err := srp.Run(within(t, patience), r.dev, r.m, r.target,
		srp.LoadConfig{Count: 40, Overwrite: true, Area: 1 << 20, MaxBytes: 64 << 10})
	if err == nil || !strings.Contains(err.Error(), "differs: byte 511 is") || rep.Mismatches != 1 {
		t.Fatalf("%v; %d mismatches", err, rep.Mismatches)
	}
}

// TestDiskInUse: a disk that holds something is left alone.
func TestDiskInUse(t *testing.T) {
	r := newRig(t, ramdisk.Config{Blocks: 8 << 11}, patient)
	r.disk.Poke(700*512, 1)
	_, err := srp.Run(within(t, patience), r.dev, r.m, r.target, srp.LoadConfig{Count: 1})
	if err == nil || !strings.Contains(err.Error(), "block 700 of the disk is not empty") {
		t.Fatal(err)
	}
	r.closeTarget()
	for i, b := range r.disk.Bytes() {
		if (b != 0) != (i == 700*512) {
			t.Fatalf("byte %d was written", i)
		}
	}
}

// TestLoginRefused: the target's reason is told; so is nobody at all.
func TestLoginRefused(t *testing.T) {
	r := newRig(t, ramdisk.Config{ID: srp.PortID{Ext: 1, GUID: 1}}, hasty)
	_, err := srp.Login(within(t, patience), r.dev, r.m, r.target, srp.Options{})
	var rej *srp.RejectError
	if !errors.As(err, &rej) || rej.Reason != srp.LoginUnableToAssociate {
		t.Fatal(err)
	}
	r.target.Addr = netip.AddrPortFrom(r.target.Addr.Addr(), 99)
	var no *cm.RejectError
	if _, err := srp.Login(within(t, patience), r.dev, r.m, r.target, srp.Options{}); !errors.As(err,
		&no) ||
		no.Reason != rcm.ReasonInvalidServiceID {
		t.Fatal(err)
	}
	r.closeTarget()
	if _, err := srp.Login(within(t, patience), r.dev, r.m, r.target, srp.Options{}); !errors.Is(err,
		cm.ErrUnreachable) {
		t.Fatal(err)
	}
}

// runLoad runs an endless load, ends it by f once it moves, and returns how it ended.
func runLoad(t *testing.T, r *rig, o srp.Options, f func(cancel context.CancelFunc)) error {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t, patience))
	defer cancel()
	moving := make(chan struct{})
	cfg := srp.LoadConfig{Options: o, Count: 1 << 30, MaxBytes: 8192, Area: 1 << 20, Logins: 1}
	var once atomic.Bool
	cfg.Progress = func(int) {
		if !once.Swap(true) {
			close(moving)
		}
	}
	end := make(chan error, 1)
	go func() {
		_, err := srp.Run(ctx, r.dev, r.m, r.target, cfg)
		end <- err
	}()
	select {
	case <-moving:
	case err := <-end:
		t.Fatal(err)
	}
	f(cancel)
	select {
	case err := <-end:
		if err == nil {
			t.Fatal("an endless load has ended well")
		}
		return err
	case <-time.After(patience):
		t.Fatal("the load goes on")
		return nil
	}
}

// TestTargetLeaves: a target that goes down in order.
func TestTargetLeaves(t *testing.T) {
	r := newRig(t, ramdisk.Config{Blocks: 8 << 11}, patient)
	err := runLoad(t, r, srp.Options{Channels: 2}, func(context.CancelFunc) { r.closeTarget() })
	if !strings.Contains(err.Error(), "target has ended the connection") &&
		!strings.Contains(err.Error(), "invalid service id") { // a session beside logged in just then
		t.Fatal(err)
	}
	t.Log(err)
}

// TestTargetVanishes: a target that is there no more.
func TestTargetVanishes(t *testing.T) {
	r := newRig(t, ramdisk.Config{Blocks: 8 << 11}, hasty)
	err := runLoad(t, r, srp.Options{Channels: 2}, func(context.CancelFunc) {
		if err := r.there.Close(); err != nil {
			t.Error(err)
		}
	})
	var end *srp.EndError
	if !errors.As(err, &end) && !errors.Is(err, cm.ErrUnreachable) {
		t.Fatal(err)
	}
	t.Log(err)
}

// TestCancel: the load ends when its context does, and the target is told.
func TestCancel(t *testing.T) {
	r := newRig(t, ramdisk.Config{Blocks: 8 << 11}, patient)
	err := runLoad(t, r, srp.Options{Channels: 2}, func(cancel context.CancelFunc) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestSilentTarget: a target whose QP lives but which does not answer. The command is aborted, and
// then the channel given up.
func TestSilentTarget(t *testing.T) {
	r := newRig(t, ramdisk.Config{Silent: true}, patient)
	s, err := srp.Login(within(t, patience), r.dev, r.m, r.target,
		srp.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Channels[0].Inquire(within(t, patience), 0)
	var end *srp.EndError
	if !errors.As(err, &end) || !strings.Contains(err.Error(), "neither a command nor SRP_TSK_MGMT") {
		t.Fatal(err)
	}
	if err := s.Logout(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if err := s.Logout(within(t, patience)); err != nil {
		t.Fatal(err)
	}
}

// TestTimeout: a command that takes too long is aborted, and its memory is ours again.
func TestTimeout(t *testing.T) {
	slow := atomic.Bool{}
	r := newRig(t, ramdisk.Config{Think: func() time.Duration {
		if slow.Load() {
			return time.Hour
		}
		return 0
	}}, patient)
	s, err := srp.Login(within(t, patience), r.dev, r.m, r.target,
		srp.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Channels[0]
	if _, _, err := c.Capacity(within(t, patience), 0); err != nil { // and takes the unit attention
		t.Fatal(err)
	}
	slow.Store(true)
	mem := make([]byte, 512)
	read := srp.Command{CDB: [16]byte{0: 0x28, 8: 1}, Dir: srp.DataIn, Data: [][]byte{mem}}
	if err := c.Do(within(t, patience), &read); !errors.Is(err, srp.ErrAborted) {
		t.Fatal(err)
	}
	slow.Store(false)
	for range 100 { // more than there are credits
		if err := c.Do(within(t, patience), &read); err != nil {
			t.Fatal(err)
		}
	}
	if r.disk.Aborts.Load() != 1 {
		t.Errorf("%d aborted", r.disk.Aborts.Load())
	}
	// More stretches of memory than a command can name.
	for range 20 {
		read.Data = append(read.Data, make([]byte, 8)[3:])
	}
	if err := c.Do(within(t, patience), &read); err == nil || !strings.Contains(err.Error(),
		"stretches") {
		t.Error(err)
	}
	read.Data = [][]byte{mem}
	if err := c.Do(within(t, patience), &read); err != nil {
		t.Fatal(err)
	}
	if err := s.Logout(within(t, patience)); err != nil {
		t.Fatal(err)
	}
}
