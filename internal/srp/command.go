package srp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// ErrAborted is returned for a command that the target has aborted, at our wish or another's: which
// of its data have moved is not known.
var ErrAborted = errors.New("command was aborted")

// A Command is a SCSI command.
type Command struct {
	LUN  uint64 // see LUN
	CDB  [16]byte
	Dir  Direction
	Data [][]byte // memory for the data, the channel's until Do returns
	// Abort makes Do abort the command as soon as it is sent.
	Abort bool

	Residue int64 // set by Do: bytes of Data that have not moved
}

// task is a command, or a task management function, on its way.
type task struct {
	tag     uint64
	index   int
	regions []*verbs.MR
	wrs     []verbs.SendWR
	unsent  bool // the SEND has not completed: its buffer is in use
	waiting bool // no answer yet
	rsp     Rsp  // with copies of its data
	data    [MaxTIIU]byte
	done    chan struct{} // holds a token when the answer has come, or the channel is dead
	timer   *time.Timer
}

func newTask(index int) *task {
	t := &task{index: index, done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	return t
}

// Do sends a command and waits for its answer. A command that takes longer than Options.Timeout is
// aborted. Errors: *StatusError when the target has carried it out, but not to the end; ErrAborted;
// the channel's end (*EndError); ctx's, after which the memory stays lent until the session is
// closed.
func (c *Channel) Do(ctx context.Context, cmd *Command) error {
	t, err := c.start(ctx, cmd)
	if err != nil {
		return err
	}
	if !cmd.Abort {
		t.timer.Reset(c.s.opts.Timeout)
		select {
		case <-t.done:
			t.timer.Stop()
			return c.finish(t, cmd)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.timer.C:
			c.s.Counters.timeouts.Add(1)
		}
	}
	return c.abort(ctx, t, cmd)
}

// start sends the command when there is room for it.
func (c *Channel) start(ctx context.Context, cmd *Command) (*task, error) {
	for {
		c.mu.Lock()
		if c.end != nil {
			err := c.end
			c.mu.Unlock()
			return nil, err
		}
		if len(c.idle) > 0 && c.credits > tmCredits {
			break
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer c.mu.Unlock()
	t := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	if err := c.post(t, cmd); err != nil {
		return nil, err
	}
	return t, nil
}

// post registers the command's memory and sends it. c.mu is held.
func (c *Channel) post(t *task, cmd *Command) (err error) {
	c.tags++
	t.tag = c.tags<<16 | uint64(t.index)
	t.regions, err = c.pool.take(t.regions[:0], cmd.Data)
	if err != nil {
		c.pool.give(t.regions)
		c.idle = append(c.idle, t)
		return err
	}
	iu := Cmd{Tag: t.tag, LUN: cmd.LUN, CDB: cmd.CDB, Dir: cmd.Dir, Data: c.descs[:0]}
	t.wrs = t.wrs[:0]
	for _, m := range t.regions {
		iu.Data = append(iu.Data, Desc{m.Addr(), uint32(m.RKey()), uint32(m.Len())})
		t.wrs = append(t.wrs, verbs.SendWR{WRID: workID(idLocal, t.index), Opcode: verbs.WRRegMR, MR: m,
			Access: access})
	}
	c.s.Counters.regs.Add(uint64(len(t.regions)))
	c.s.Counters.maps.Add(uint64(len(t.regions)))
	if len(t.regions) > 1 {
		c.s.Counters.indirect.Add(1)
	}
	c.s.Counters.count(&cmd.CDB)
	return c.send(t, iu.Append(c.buffer(t.index)))
}

// send posts what the task has to register, and its unit. c.mu is held.
func (c *Channel) send(t *task, unit []byte) error {
	t.wrs = append(t.wrs, verbs.SendWR{WRID: workID(idSend, t.index), Opcode: verbs.WRSend,
		Flags:  verbs.SendSignaled | verbs.SendSolicited,
		SGList: append(c.sges[:0], c.sends.SGE(t.index*sendSize, len(unit)))})
	t.unsent, t.waiting = true, true
	select {
	case <-t.done: // of an answer that nobody waited for any more
	default:
	}
	c.live[t.index] = t
	c.credits--
	if _, err := c.qp.PostSendList(t.wrs); err != nil {
		c.die(fmt.Errorf("post a command: %w", err))
		return c.end
	}
	return nil
}

// finish reads the answer to a command and frees its task.
func (c *Channel) finish(t *task, cmd *Command) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.finishLocked(t, cmd)
}

func (c *Channel) finishLocked(t *task, cmd *Command) error {
	if t.waiting { // woken by the channel's end
		return c.end
	}
	r := &t.rsp
	cmd.Residue = r.InRes + r.OutRes
	var err error
	switch r.Status {
	case Good:
	case TaskAborted:
		err = ErrAborted
	default:
		e := &StatusError{Status: r.Status}
		e.Sense, _ = DecodeSense(r.Sense)
		err = e
	}
	c.release(t)
	return err
}

// release makes a task free for others once its buffer is, too. c.mu is held.
func (c *Channel) release(t *task) {
	c.live[t.index] = nil
	if t.unsent {
		return // sent does it
	}
	c.idle = append(c.idle, t)
	c.wake()
}

// abort has the target abort a command, and waits until it is certain what has become of it.
func (c *Channel) abort(ctx context.Context, t *task, cmd *Command) error {
	c.tmLock.Lock()
	defer c.tmLock.Unlock()
	select {
	case <-t.done: // meanwhile
		return c.finish(t, cmd)
	default:
	}
	c.s.Counters.aborts.Add(1)
	status, err := c.manage(ctx, &TskMgmt{LUN: cmd.LUN, Func: AbortTask, TaskTag: t.tag})
	if err != nil {
		return err
	}
	select {
	case <-t.done: // it was through before
		return c.finish(t, cmd)
	default:
	}
	if status == TaskComplete {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !t.waiting {
			return c.finishLocked(t, cmd)
		}
		c.s.Counters.aborted.Add(1)
		t.waiting = false
		c.takeBack(t)
		c.release(t)
		return ErrAborted
	}
	// The target does not know the command: its answer is on its way.
	t.timer.Reset(c.s.opts.Timeout)
	defer t.timer.Stop()
	select {
	case <-t.done:
		return c.finish(t, cmd)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.timer.C:
		return c.fail(fmt.Errorf("the target answers neither a command nor %v to abort it (%v)",
			OpTskMgmt, status))
	}
}

// manage sends a task management function and waits for its answer. c.tmLock is held.
func (c *Channel) manage(ctx context.Context, q *TskMgmt) (TaskStatus, error) {
	tm := c.tm
	c.mu.Lock()
	for tm.unsent && c.end == nil {
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		c.mu.Lock()
	}
	if c.end != nil {
		c.mu.Unlock()
		return 0, c.end
	}
	c.tags++
	tm.tag = c.tags<<16 | uint64(tm.index)
	q.Tag = tm.tag
	tm.regions, tm.wrs = tm.regions[:0], tm.wrs[:0]
	c.s.Counters.management.Add(1)
	err := c.send(tm, q.Append(c.buffer(tm.index)))
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	tm.timer.Reset(c.s.opts.Timeout)
	defer tm.timer.Stop()
	select {
	case <-tm.done:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-tm.timer.C:
		return 0, c.fail(fmt.Errorf("the target does not answer: neither a command nor %v to abort it "+
			"within %v", OpTskMgmt, c.s.opts.Timeout))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if tm.waiting {
		return 0, c.end
	}
	c.live[tm.index] = nil
	status, ok := tm.rsp.Task()
	if !ok && tm.rsp.Status != Good {
		status = TaskFailed
	}
	return status, nil
}

// Counters count what a session's channels do. Several goroutines may use them.
type Counters struct {
	regs, invs, maps, indirect            atomic.Uint64
	aborts, aborted, management, timeouts atomic.Uint64
	logins, notices                       atomic.Uint64

	mu    sync.Mutex
	kinds map[string]uint64
}

// names of commands that are counted.
var commandNames = map[byte]string{
	scsiTestUnitReady: "test unit ready", scsiInquiry: "inquiry",
	scsiReadCapacity10: "read capacity(10)",
	scsiServiceIn16:    "read capacity(16)", scsiRead10: "read(10)", scsiRead16: "read(16)",
	scsiWrite10: "write(10)", scsiWrite16: "write(16)",
}

// count counts a command by its name.
func (n *Counters) count(cdb *[16]byte) {
	name, ok := commandNames[cdb[0]]
	if !ok {
		name = "other"
	}
	n.mu.Lock()
	if n.kinds == nil {
		n.kinds = map[string]uint64{}
	}
	n.kinds[name]++
	n.mu.Unlock()
}
