package srp

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// beside is a session that logs in and out beside a load, with blocks of its own to work on.
type beside struct {
	l    *load
	opts Options
	w    worker
	turn int
}

// besideCommands is how many commands a session does before it leaves.
const besideCommands = 6

func (l *load) newBeside(i int) *beside {
	b := &beside{l: l, opts: l.cfg.Options}
	b.opts.Channels, b.opts.Depth = 1, 4
	b.opts.Initiator.Ext += uint64(i) + 1
	blocks := besideArea / int(l.size.BlockSize)
	first := l.size.Blocks - uint64((i+1)*blocks)
	b.w = worker{l: l, area: newArea(first, blocks, int(l.size.BlockSize), l.cfg.Seed), b: newBuffer(),
		r: rng(l.cfg.Seed<<32 + uint64(i)<<24), only: min(l.limit, blocks)}
	return b
}

// run logs in and out until enough ends; the last session is through then. When ctx ends, it gives up.
func (b *beside) run(enough, ctx context.Context) error {
	whole := span{0, len(b.w.area.gens)}
	written := false
	for enough.Err() == nil {
		err := b.session(ctx, func(ctx context.Context, s *Session) error {
			b.w.c = s.Channels[0]
			if !written {
				for at := 0; at < whole.n; at += b.w.only {
					if err := b.w.write(ctx, span{at, min(b.w.only, whole.n-at)}); err != nil {
						return err
					}
				}
				written = true
			}
			for range besideCommands {
				if err := b.w.one(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// session is one session, which ends in one of three ways, in turn: it logs out; it logs out with
// commands outstanding; the same port logs in anew, which makes the target end it.
func (b *beside) session(ctx context.Context, work func(context.Context, *Session) error) error {
	s, err := Login(ctx, b.l.dev, b.l.m, b.l.target, b.opts)
	if err != nil {
		return err
	}
	err = work(ctx, s)
	if err == nil {
		b.turn++
		switch b.turn % 3 {
		case 1:
			b.leaveBusy(ctx, s)
		case 2:
			err = b.replace(ctx, s)
		}
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutTime)
	defer cancel()
	if e := s.Logout(bye); err == nil {
		err = e
	}
	b.l.logouts.Add(1)
	return err
}

// leaveBusy sends READs whose answers it does not wait for.
func (b *beside) leaveBusy(ctx context.Context, s *Session) {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	for range b.opts.Depth {
		go func() {
			defer func() { done <- struct{}{} }()
			at := b.w.area
			mem := make([]byte, b.w.only*at.block)
			cmd := Command{LUN: b.l.lun, CDB: cdbTransfer(false, true, at.first, uint32(b.w.only)),
				Dir: DataIn, Data: [][]byte{mem}}
			_ = s.Channels[0].Do(ctx, &cmd) // through or not
		}()
	}
	for range b.opts.Depth {
		<-done
	}
}

// replace logs the same port in again, and waits for the target to end the old session.
func (b *beside) replace(ctx context.Context, s *Session) error {
	n, err := Login(ctx, b.l.dev, b.l.m, b.l.target, b.opts)
	if err != nil {
		return err
	}
	b.w.c = n.Channels[0]
	err = b.w.one(ctx)
	if e := s.Channels[0].awaitEnd(ctx, b.opts.Timeout); err == nil {
		err = e
	}
	if err == nil {
		b.l.lost.Add(1)
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutTime)
	defer cancel()
	if e := n.Logout(bye); err == nil {
		err = e
	}
	b.l.logouts.Add(1)
	return err
}

// awaitEnd waits until the target has ended the channel.
func (c *Channel) awaitEnd(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("the target keeps a session whose port has logged in anew for %v", d)
	}
	if err := c.Err(); !errors.Is(err, errEnded) {
		return err
	}
	return nil
}
