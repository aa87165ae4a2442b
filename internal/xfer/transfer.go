package xfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// ErrChecksum is returned when a block's hashes differ at the two ends, again and again.
var ErrChecksum = errors.New("hashes differ at the two ends: something else writes there, or damages data")

const (
	blockTries = 3                      // for a block whose hashes differ
	pause      = 200 * time.Millisecond // between two tries to connect
)

// PartSuffix names the file that a get fills before it takes its final name.
const PartSuffix = ".roxie-part"

// Config says what to move where.
type Config struct {
	Export string
	Addr   netip.AddrPort // of the endpoint
	File   string
	// Resume compares first and moves only what differs: put with the export's content, get with
	// the part file that an earlier get left.
	Resume bool
	// Wait is how long to try to connect again after the connection is lost, or cannot be made; 0:
	// give up at once.
	Wait     time.Duration
	Progress func(done, total int64) // nil: nobody asks; called from any goroutine
}

// Result is what was done.
type Result struct {
	Operation  string  `json:"operation"`
	Export     string  `json:"export"`
	Host       string  `json:"host"`
	File       string  `json:"file"`
	Bytes      int64   `json:"bytes"`          // the file's
	Verified   int64   `json:"verified_bytes"` // whose hashes agree at both ends: all
	Moved      int64   `json:"moved_bytes"`    // over the wire, repeated blocks included
	Skipped    int64   `json:"skipped_bytes"`  // there already
	Repeated   int64   `json:"repeated_blocks"`
	Reconnects int     `json:"reconnects"`
	Seconds    float64 `json:"seconds"`
	Gbps       float64 `json:"gbps"` // moved bytes
}

// transfer is one file's way.
type transfer struct {
	cfg  *Config
	dev  *verbs.Context
	m    *cm.Manager
	put  bool
	file *os.File
	size int64

	res     Result
	resume  bool // compare first: asked for, or connected again
	dialed  int  // connections so far
	moving  atomic.Int64
	skipped atomic.Int64
	again   atomic.Int64
	done    atomic.Int64 // bytes good at this attempt
	began   time.Time

	blocksDone atomic.Int64 // at all attempts
}

// Put moves a file to an export. The export's content has the file's length then.
func Put(ctx context.Context, dev *verbs.Context, m *cm.Manager, cfg Config) (Result, error) {
	t := newTransfer(dev, m, &cfg, true)
	var err error
	if t.file, err = os.Open(cfg.File); err != nil {
		return t.res, err
	}
	defer t.file.Close()
	info, err := t.file.Stat()
	if err != nil {
		return t.res, err
	}
	if !info.Mode().IsRegular() {
		return t.res, fmt.Errorf("%s is no regular file: name one, whose length is known", cfg.File)
	}
	t.size = info.Size()
	return t.finish(t.run(ctx, func(ctx context.Context, c *connection) error {
		if uint64(t.size) > c.Length {
			return fmt.Errorf("%s has %d bytes, the export holds %d: its server's configuration sets its size", cfg.File,
				t.size, c.Length)
		}
		if _, err := c.call(ctx, 0, Message{Op: OpResize, Length: uint64(t.size)}); err != nil {
			return err
		}
		if err := t.blocks(ctx, c, t.putBlock); err != nil {
			return err
		}
		_, err := c.call(ctx, 0, Message{Op: OpCommit, Length: uint64(t.size)})
		return err
	}))
}

// Get moves an export's content to a file. Until all of it is there and good, it is in a file of its
// own beside it (PartSuffix), which stays for a later get with Resume.
func Get(ctx context.Context, dev *verbs.Context, m *cm.Manager, cfg Config) (Result, error) {
	t := newTransfer(dev, m, &cfg, false)
	flags := os.O_RDWR | os.O_CREATE
	if !cfg.Resume {
		flags |= os.O_TRUNC
	}
	info, err := os.Stat(cfg.File)
	switch {
	case err == nil && info.IsDir():
		return t.res, fmt.Errorf("%s is a directory: name the file that is to be there", cfg.File)
	case err == nil && !info.Mode().IsRegular():
		// It would be renamed away: as root, /dev/null.
		return t.res, fmt.Errorf("%s is no regular file, and would be replaced: name another", cfg.File)
	}
	part := cfg.File + PartSuffix
	if t.file, err = os.OpenFile(part, flags, 0o644); err != nil {
		return t.res, err
	}
	defer func() {
		if info, err := t.file.Stat(); err == nil && info.Size() == 0 {
			_ = os.Remove(part) // no later get gains by it; gone already if it has its name
		}
		t.file.Close()
	}()
	return t.finish(t.run(ctx, func(ctx context.Context, c *connection) error {
		stat, err := c.call(ctx, 0, Message{Op: OpStat})
		if err != nil {
			return err
		}
		if stat.Length > c.Length {
			return fmt.Errorf("%w: content of %d bytes in a region of %d", ErrProtocol, stat.Length, c.Length)
		}
		t.size = int64(stat.Length)
		if err := t.file.Truncate(t.size); err != nil {
			return err
		}
		if err := t.blocks(ctx, c, t.getBlock); err != nil {
			return err
		}
		if err := t.file.Sync(); err != nil {
			return err
		}
		return os.Rename(part, cfg.File)
	}))
}

func newTransfer(dev *verbs.Context, m *cm.Manager, cfg *Config, put bool) *transfer {
	t := &transfer{cfg: cfg, dev: dev, m: m, put: put, resume: cfg.Resume, began: time.Now()}
	t.res = Result{Operation: "get", Export: cfg.Export, Host: cfg.Addr.String(), File: cfg.File}
	if put {
		t.res.Operation = "put"
	}
	return t
}

// finish fills in the result.
func (t *transfer) finish(err error) (Result, error) {
	r := &t.res
	r.Bytes, r.Verified = t.size, t.done.Load()
	r.Moved, r.Skipped, r.Repeated = t.moving.Load(), t.skipped.Load(), t.again.Load()
	r.Seconds = time.Since(t.began).Seconds()
	r.Gbps = float64(r.Moved) * 8 / 1e9 / r.Seconds
	if err != nil {
		return *r, fmt.Errorf("%s %s@%v: %w", r.Operation, r.Export, t.cfg.Addr, err)
	}
	return *r, nil
}

// run connects and works, again after a lost connection as long as the configuration says. From
// the second time on, what got through before is compared first: the other end may have lost it.
func (t *transfer) run(ctx context.Context, work func(context.Context, *connection) error) error {
	lost := time.Now() // when the connection was lost that no progress has followed, or was not there yet
	for {
		before := t.blocksDone.Load()
		timeout := dialTimeout
		if t.cfg.Wait > 0 {
			timeout = min(timeout, t.cfg.Wait-time.Since(lost))
		}
		err := t.attempt(ctx, timeout, work)
		if !errors.Is(err, ErrLost) || ctx.Err() != nil {
			return err
		}
		if t.blocksDone.Load() != before {
			lost = time.Now()
		}
		if time.Since(lost)+pause >= t.cfg.Wait {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (t *transfer) attempt(ctx context.Context, timeout time.Duration,
	work func(context.Context, *connection) error) error {
	c, err := dial(ctx, timeout, t.dev, t.m, t.cfg.Addr, Hello{Name: t.cfg.Export, Write: t.put})
	if err != nil {
		return err
	}
	defer c.close()
	t.connected()
	return work(ctx, c)
}

// connected begins the account of an attempt. What an earlier one got through counts again when it
// has been compared.
func (t *transfer) connected() {
	if t.done.Swap(0) > 0 {
		t.resume = true
	}
	t.res.Reconnects = t.dialed
	t.dialed++
}

// blocks moves all blocks, some at a time.
func (t *transfer) blocks(ctx context.Context, c *connection, move func(ctx context.Context, c *connection,
	slot int, off int64, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for slot := range min(depth, int(c.Slots)) {
		workers.Go(func() {
			for ctx.Err() == nil {
				off := next.Add(BlockSize) - BlockSize
				if off >= t.size {
					return
				}
				n := int(min(BlockSize, t.size-off))
				if err := move(ctx, c, slot, off, n); err != nil {
					cancel(fmt.Errorf("at byte %d: %w", off, err))
					return
				}
				t.blocksDone.Add(1)
				if done := t.done.Add(int64(n)); t.cfg.Progress != nil {
					t.cfg.Progress(done, t.size)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

func (t *transfer) putBlock(ctx context.Context, c *connection, slot int, off int64, n int) error {
	b := c.block(slot)[:n]
	if _, err := t.file.ReadAt(b, off); err != nil {
		return fmt.Errorf("%w: was the file cut meanwhile?", err)
	}
	sum := sha256.Sum256(b)
	if t.resume {
		if there, err := t.compare(ctx, c, slot, off, n, sum); err != nil || there {
			return err
		}
	}
	return t.move(ctx, c, slot, verbs.WRRDMAWrite, off, n, func() digest { return sum })
}

// digest is the SHA-256 of a block.
type digest = [sha256.Size]byte

// move moves a block, again as long as the other end's digest is not ours, which is asked for when the
// block has come.
func (t *transfer) move(ctx context.Context, c *connection, slot int, op verbs.WROpcode, off int64, n int,
	ours func() digest) error {
	for range blockTries {
		t.moving.Add(int64(n))
		if err := c.post(slot, op, uint64(off), n); err != nil {
			return err
		}
		m, err := c.call(ctx, slot, Message{Op: OpDigest, Offset: uint64(off), Length: uint64(n)})
		if err != nil {
			return err
		}
		if err := c.await(ctx, slot); err != nil {
			return err
		}
		if m.Digest == ours() {
			return nil
		}
		t.again.Add(1)
	}
	return ErrChecksum
}

// compare asks whether a block is at the other end as it is here.
func (t *transfer) compare(ctx context.Context, c *connection, slot int, off int64, n int,
	sum digest) (bool, error) {
	m, err := c.call(ctx, slot, Message{Op: OpDigest, Offset: uint64(off), Length: uint64(n)})
	if err != nil || m.Digest != sum {
		return false, err
	}
	t.skipped.Add(int64(n))
	return true, nil
}

func (t *transfer) getBlock(ctx context.Context, c *connection, slot int, off int64, n int) error {
	b := c.block(slot)[:n]
	if t.resume {
		if k, err := t.file.ReadAt(b, off); err != nil && !(errors.Is(err, io.EOF) && k == n) {
			return err
		}
		if there, err := t.compare(ctx, c, slot, off, n, sha256.Sum256(b)); err != nil || there {
			return err
		}
	}
	err := t.move(ctx, c, slot, verbs.WRRDMARead, off, n, func() digest { return sha256.Sum256(b) })
	if err != nil {
		return err
	}
	_, err = t.file.WriteAt(b, off)
	return err
}
