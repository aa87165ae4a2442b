package srp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// LoadConfig describes a load. Zero fields take the default named.
type LoadConfig struct {
	Options
	LUN       uint16
	Count     int    // random READs and WRITEs; 10000
	MinBytes  int    // of one; a block
	MaxBytes  int    // of one; 1 MiB. Lengths are log-uniform
	Area      uint64 // bytes from the disk's first block on that are used; 32 MiB, or what there is
	Logins    int    // sessions beside that log in and out all the time; 0: none
	Abort     int    // one command in so many is aborted at once; 0: none
	Overwrite bool   // also when the area holds something
	Seed      uint64 // 1
	// Progress is told now and then how many commands are through; it may be nil.
	Progress func(done int)
}

// besideArea is what each of the sessions beside the load has of the disk, in bytes, behind Area.
const besideArea = MaxIO

func (c *LoadConfig) validate() error {
	if c.Count == 0 {
		c.Count = 10000
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = MaxIO
	}
	if c.Area == 0 {
		c.Area = 32 << 20
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
	switch {
	case c.Count < 0 || c.Logins < 0 || c.Abort < 0:
		return errors.New("a number of commands or sessions is negative")
	case c.Logins > 64:
		return fmt.Errorf("%d sessions beside, at most 64 are possible", c.Logins)
	case c.MaxBytes > MaxIO || c.MinBytes < 0 || c.MinBytes > c.MaxBytes:
		return fmt.Errorf("commands of %d to %d bytes: at most %d are possible", c.MinBytes, c.MaxBytes,
			MaxIO)
	case c.LUN >= 1<<14:
		return fmt.Errorf("logical unit %d: 0 to %d are possible", c.LUN, 1<<14-1)
	}
	return nil
}

// load is a run.
type load struct {
	cfg    LoadConfig
	dev    *verbs.Context
	m      *cm.Manager
	target Target
	lun    uint64
	size   Capacity
	limit  int // blocks of one command
	area   *area
	report *Report

	next, done    atomic.Int64
	verified, bad atomic.Uint64
	read, written atomic.Uint64
	refused       atomic.Uint64
	repeated      atomic.Uint64
	logouts, lost atomic.Uint64

	mu    sync.Mutex
	first error // mismatch
}

// Run logs in, looks at the logical unit, fills an area of it, does random READs and WRITEs there,
// each compared, reads the whole area back, and logs out. The report is returned also with an
// error, with what was counted until then. Without LoadConfig.Overwrite it refuses a disk that
// holds anything but zeros and blocks of an earlier run.
func Run(ctx context.Context, dev *verbs.Context, m *cm.Manager, target Target,
	cfg LoadConfig) (*Report, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := cfg.fill(dev); err != nil {
		return nil, err
	}
	l := &load{cfg: cfg, dev: dev, m: m, target: target, lun: LUN(cfg.LUN), report: &Report{}}
	start := time.Now()
	s, err := Login(ctx, dev, m, target, cfg.Options)
	if err != nil {
		return l.finish(nil), err
	}
	l.report.Channels = len(s.Channels)
	l.report.LoginSeconds = time.Since(start).Seconds()
	err = l.run(ctx, s)
	r := l.finish(s)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutTime)
	defer cancel()
	if e := s.Logout(bye); err == nil {
		err = e
	}
	if err == nil && l.first != nil {
		err = l.first
	}
	return r, err
}

func (l *load) run(ctx context.Context, s *Session) error {
	if err := l.look(ctx, s.Channels[0]); err != nil {
		return err
	}
	if err := l.checkEmpty(ctx, s); err != nil {
		return err
	}
	fill := func(ctx context.Context, w *worker, at span) error { return w.write(ctx, at) }
	if err := l.sweep(ctx, s, fill); err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	if err := l.random(ctx, s); err != nil {
		return err
	}
	check := func(ctx context.Context, w *worker, at span) error { return w.read(ctx, at) }
	if err := l.sweep(ctx, s, check); err != nil {
		return fmt.Errorf("read the disk back: %w", err)
	}
	return l.refusals(ctx, s.Channels[0])
}

// look asks the unit what it is.
func (l *load) look(ctx context.Context, c *Channel) error {
	if err := c.attentive(ctx, &Command{LUN: l.lun, CDB: cdbTestUnitReady()}); err != nil {
		return fmt.Errorf("TEST UNIT READY of logical unit %d: %w", l.cfg.LUN, err)
	}
	q, err := c.Inquire(ctx, l.lun)
	if err != nil {
		return err
	}
	l.report.Unit = q.String()
	if !q.Disk() {
		return fmt.Errorf("logical unit %d is no disk: %v", l.cfg.LUN, q)
	}
	size, limit, err := c.Capacity(ctx, l.lun)
	if err != nil {
		return err
	}
	l.size, l.report.Blocks, l.report.BlockSize = size, size.Blocks, size.BlockSize
	bs := int(size.BlockSize)
	beside := uint64(l.cfg.Logins * besideArea)
	if bs < minBlock || bs > l.cfg.MaxBytes || size.Bytes() < beside+uint64(l.cfg.MaxBytes) {
		return fmt.Errorf("a disk of %d blocks of %d bytes is too small, or its blocks are too large",
			size.Blocks, bs)
	}
	if l.limit = l.cfg.MaxBytes / bs; limit > 0 {
		l.limit = min(l.limit, int(limit))
	}
	n := min(l.cfg.Area, size.Bytes()-beside) / uint64(bs)
	l.limit = min(l.limit, int(n))
	l.report.Area, l.report.MaxBytes = n*uint64(bs), l.limit*bs
	l.area = newArea(0, int(n), bs, l.cfg.Seed)
	return nil
}

// checkEmpty reads what is going to be written over.
func (l *load) checkEmpty(ctx context.Context, s *Session) error {
	if l.cfg.Overwrite {
		return nil
	}
	return l.sweep(ctx, s, func(ctx context.Context, w *worker, at span) error {
		n := at.n * l.area.block
		if err := w.transfer(ctx, w.b.scatter(n, w.area.block, &w.r), DataIn, at, false); err != nil {
			return err
		}
		w.b.gather(w.b.got[:n])
		if lba, yes := l.area.foreign(w.b.got, at); yes {
			return fmt.Errorf("block %d of the disk is not empty: --overwrite would destroy what it holds",
				lba)
		}
		return nil
	})
}

// sweep has all workers go through the area once.
func (l *load) sweep(ctx context.Context, s *Session,
	f func(context.Context, *worker, span) error) error {
	var at atomic.Int64
	return l.workers(ctx, s, func(ctx context.Context, w *worker) error {
		for {
			from := int(at.Add(int64(l.limit))) - l.limit
			if from >= len(l.area.gens) {
				return nil
			}
			if err := f(ctx, w, span{from, min(l.limit, len(l.area.gens)-from)}); err != nil {
				return err
			}
		}
	})
}

// workers runs f in one goroutine for each command that may be outstanding. The first error ends
// all.
func (l *load) workers(ctx context.Context, s *Session,
	f func(context.Context, *worker) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range len(s.Channels) * s.opts.Depth {
		w := &worker{l: l, area: l.area, c: s.Channels[i%len(s.Channels)], b: newBuffer(),
			r: rng(l.cfg.Seed<<32 + uint64(i) + l.cfg.Counters.logins.Load()<<16)}
		all.Go(func() {
			if err := f(ctx, w); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// random is the load itself, with the sessions that come and go.
func (l *load) random(ctx context.Context, s *Session) error {
	besideCtx, stop := context.WithCancel(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var beside sync.WaitGroup
	for i := range l.cfg.Logins {
		b := l.newBeside(i)
		beside.Go(func() {
			if err := b.run(besideCtx, ctx); err != nil {
				cancel(fmt.Errorf("session %d beside the load: %w", i+1, err))
			}
		})
	}
	start := time.Now()
	err := l.workers(ctx, s, func(ctx context.Context, w *worker) error {
		for l.next.Add(1) <= int64(l.cfg.Count) {
			if err := w.one(ctx); err != nil {
				return err
			}
			if n := l.done.Add(1); l.cfg.Progress != nil && n%1000 == 0 {
				l.cfg.Progress(int(n))
			}
		}
		return nil
	})
	l.report.Seconds = time.Since(start).Seconds()
	if err != nil {
		cancel(err) // those beside give up what they are at
	}
	stop()
	beside.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%d of %d commands through: %w", l.done.Load(), l.cfg.Count, err)
	}
	return nil
}

// refusals are commands that the target has to refuse, and live on.
func (l *load) refusals(ctx context.Context, c *Channel) error {
	block := make([]byte, l.size.BlockSize)
	var unknown [16]byte
	unknown[0] = 0xff
	for _, cmd := range []Command{
		{LUN: l.lun, CDB: cdbTransfer(false, true, l.size.Blocks, 1), Dir: DataIn, Data: [][]byte{block}},
		{LUN: l.lun, CDB: cdbTransfer(true, true, l.size.Blocks, 1), Dir: DataOut, Data: [][]byte{block}},
		{LUN: l.lun, CDB: unknown},
	} {
		var e *StatusError
		switch err := c.attentive(ctx, &cmd); {
		case !errors.As(err, &e):
			return fmt.Errorf("command %.10x, which makes no sense, ends with %v", cmd.CDB, err)
		case e.Status != CheckCondition || e.Sense.Key != SenseIllegalRequest:
			return fmt.Errorf("command %.10x, which makes no sense: %w", cmd.CDB, e)
		}
		l.refused.Add(1)
	}
	return c.attentive(ctx, &Command{LUN: l.lun, CDB: cdbTestUnitReady()})
}
