package srp

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// worker does one command at a time.
type worker struct {
	l    *load
	area *area
	c    *Channel
	b    *buffer
	r    rng
	only int // blocks of one command at most; 0: the load's
}

// one is a random READ or WRITE.
func (w *worker) one(ctx context.Context) error {
	l := w.l
	limit := l.limit
	if w.only > 0 {
		limit = w.only
	}
	least := max(1, l.cfg.MinBytes/w.area.block)
	u := float64(w.r.next()>>11) / (1 << 53)
	n := min(limit, int(float64(least)*math.Pow(float64(limit+1)/float64(least), u)))
	for {
		at, ok, freed := w.area.claim(&w.r, n)
		if !ok {
			select {
			case <-freed:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		defer w.area.release(at)
		if w.r.below(2) == 0 {
			return w.write(ctx, at)
		}
		return w.read(ctx, at)
	}
}

func (w *worker) write(ctx context.Context, at span) error {
	n := at.n * w.area.block
	w.area.render(w.b.want, at, 1)
	list := w.b.scatter(n, w.area.block, &w.r)
	w.b.fill(w.b.want[:n])
	if err := w.transfer(ctx, list, DataOut, at, w.abort()); err != nil {
		return err
	}
	w.area.wrote(at)
	w.l.written.Add(uint64(n))
	return nil
}

func (w *worker) read(ctx context.Context, at span) error {
	n := at.n * w.area.block
	list := w.b.scatter(n, w.area.block, &w.r)
	for _, p := range list {
		clear(p)
	}
	if err := w.transfer(ctx, list, DataIn, at, w.abort()); err != nil {
		return err
	}
	w.b.gather(w.b.got[:n])
	w.l.read.Add(uint64(n))
	w.l.verified.Add(uint64(n))
	if err := w.area.compare(w.b.got[:n], w.b.want, at); err != nil {
		w.l.bad.Add(1)
		w.l.mu.Lock()
		if w.l.first == nil {
			w.l.first = err
		}
		w.l.mu.Unlock()
	}
	return nil
}

// abort says whether the next command is one to abort.
func (w *worker) abort() bool { return w.l.cfg.Abort > 0 && w.r.below(w.l.cfg.Abort) == 0 }

// maxRepeats is how often a command is sent that is aborted each time.
const maxRepeats = 16

// transfer is a READ or WRITE. When it has been aborted it is done again: what it has left is not
// known.
func (w *worker) transfer(ctx context.Context, list [][]byte, dir Direction, at span,
	abort bool) error {
	lba := w.area.first + uint64(at.at)
	long := w.r.below(2) == 0 || lba+uint64(at.n) > 1<<32-1 || at.n > 0xffff
	cmd := Command{LUN: w.l.lun, CDB: cdbTransfer(dir == DataOut, long, lba, uint32(at.n)), Dir: dir,
		Data: list, Abort: abort}
	for i := 0; ; i++ {
		err := w.c.attentive(ctx, &cmd)
		switch {
		case errors.Is(err, ErrAborted) && i < maxRepeats:
			w.l.repeated.Add(1)
			cmd.Abort = false
			continue
		case err == nil && cmd.Residue != 0:
			err = fmt.Errorf("a residue of %d bytes", cmd.Residue)
		}
		var status *StatusError
		if errors.As(err, &status) || cmd.Residue != 0 {
			return fmt.Errorf("%s of %d blocks at %d: %w", commandNames[cmd.CDB[0]], at.n, lba, err)
		}
		return err
	}
}
