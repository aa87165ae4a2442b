package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

const (
	maxBatch     = 64 // work requests posted with one doorbell
	controlBytes = 16 // a control message: how many messages, and which stretch of time
	// biteBytes is how much an end compares at a time: in caller mode no packet moves meanwhile, and the
	// other end has no more under way than a ring holds.
	biteBytes = 64 << 10
	// recvBatch is how many used-up receives are posted again with one doorbell.
	recvBatch = 32
)

// A work request's id says what it is, of which QP, and a count.
const (
	idMessage = iota // count: messages posted up to and with this one
	idClose          // count: messages it closes
	idAck
	idRecv // count: where in the memory its buffer is
	idProbe

	idKindShift = 61
	idConnShift = 45
	idCountMask = 1<<idConnShift - 1
	idConnMask  = 1<<(idKindShift-idConnShift) - 1
)

func workID(kind, conn int, count uint64) uint64 {
	return uint64(kind)<<idKindShift | uint64(conn)<<idConnShift | count&idCountMask
}

// run is one message size of a test, on one end. Its loops allocate nothing.
type run struct {
	*endpoint
	layout
	ctx   context.Context // ends with the other end
	until context.Context // ends when the other end has something to say, too
	close context.CancelFunc
	x     *attention
	start time.Time
	check checker
	wcs   [maxBatch]verbs.WC

	opcode  verbs.WROpcode
	flags   verbs.SendFlags
	inline  bool
	imm     bool   // each message carries its number: UC and UD, when verified
	lap     bool   // WRITE, verified: the passive end is told when to look
	paced   bool   // the active end waits until slots have been checked before it fills them again
	every   uint64 // messages that are checked, and answered for, together
	bite    int    // messages that are compared before packets are looked for again
	cqMod   uint64
	recvs   int  // to keep posted, each QP
	control bool // they are for control messages
	recvWRs []verbs.RecvWR
	recvSGE []verbs.SGE
	owe     uint64 // used-up receives that are posted again together
	idles   int

	waitsSince time.Duration // latency over UC and UD: when the wait for a message began

	duplex bool // both ends are active
	// lastSeen is when the last completion came.
	lastSeen time.Duration
	deaf     bool   // what the other end says before this one is through does not stop it
	warm     uint64 // messages of a latency test that are not recorded

	lat      *latencies
	measured time.Time // when the warm-up of a latency test was over
	rates    rates
	moved    atomic.Uint64 // bytes so far, for the progress line and the probe
	probing  atomic.Bool   // a probe is not answered yet
}

func newRun(ctx context.Context, e *endpoint, x *attention, size int) *run {
	r := &run{endpoint: e, layout: e.cfg.layout(size), ctx: ctx, x: x}
	if e.foreign && e.cfg.Duration > 0 {
		r.until, r.close = context.WithTimeout(ctx, e.cfg.Duration) // see timeUp
	} else {
		r.until, r.close = context.WithCancel(ctx)
	}
	t := e.cfg.Test
	unreliable := e.cfg.Transport != RC
	r.check = checker{pattern: e.pattern, on: r.checks(), inject: e.cfg.Inject}
	r.inline = size <= e.cfg.inline()
	r.imm = e.cfg.Verify && unreliable && !t.Latency
	r.lap = e.cfg.Verify && t.Op == Write && !t.Latency
	r.paced = r.lap || e.cfg.Verify && t.Op == Send && !t.Latency && e.cfg.Transport == RC
	r.every = max(r.slots/4, 1)
	r.bite = min(max(biteBytes/max(size, 1), 1), maxBatch)
	r.cqMod = uint64(e.cfg.CQMod)
	if e.cfg.Verify && (t.Op == Read || t.Op == Atomic) {
		r.cqMod = min(r.cqMod, max(r.slots/4, 1))
	}
	switch t.Op {
	case Write:
		r.opcode = verbs.WRRDMAWrite
		if r.imm {
			r.opcode = verbs.WRRDMAWriteWithImm
		}
	case Read:
		r.opcode = verbs.WRRDMARead
	case Send:
		r.opcode = verbs.WRSend
		if r.imm {
			r.opcode = verbs.WRSendWithImm
		}
	case Atomic:
		r.opcode = verbs.WRAtomicFetchAdd
	}
	if r.inline {
		r.flags = verbs.SendInline
	}
	if t.Latency {
		r.lat = newLatencies()
	}
	for _, c := range e.conns {
		c.counts = counts{}
	}
	r.duplex = e.cfg.Bidirectional
	r.warm = warmUp
	if e.foreign {
		// perftest counts from the first message, and may be through before this end is.
		r.warm = 0
		r.deaf = r.duplex || e.cfg.Server != "" || t.Latency && (t.Op == Write || t.Op == Send)
	}
	r.prepareRecvs()
	return r
}

// checks says whether this end compares what arrives.
func (r *run) checks() bool {
	if !r.cfg.Verify {
		return false
	}
	client := r.cfg.Server != ""
	switch op := r.cfg.Test.Op; {
	case op == Read || op == Atomic:
		return client
	case r.cfg.Test.Latency:
		return true
	}
	return !client
}

// now is the time since the start of the run.
func (r *run) now() time.Duration { return time.Since(r.start) }

// poll takes completions, and in caller mode moves packets. Then it compares some of what has come,
// which counts as a completion.
func (r *run) poll() (int, error) {
	n, err := r.cq.Poll(r.wcs[:r.bite])
	if err != nil {
		return n, fmt.Errorf("poll CQ: %w", err)
	}
	for i := range n {
		if err := r.complete(&r.wcs[i]); err != nil {
			return n, err
		}
	}
	if r.check.on {
		for _, c := range r.conns {
			if c.checked < c.due {
				n++
				if err := r.compare(c); err != nil {
					return n, err
				}
			}
		}
	}
	if n > 0 {
		r.idles = 0
	}
	return n, nil
}

// complete takes one completion.
func (r *run) complete(wc *verbs.WC) error {
	c := r.conns[wc.WRID>>idConnShift&idConnMask]
	count := wc.WRID & idCountMask
	if wc.Status != verbs.WCSuccess {
		return r.failed(wc, c)
	}
	switch wc.WRID >> idKindShift {
	case idMessage:
		r.completed(c, count)
	case idClose:
		r.completed(c, count)
	case idRecv:
		return r.received(c, wc, int(count))
	case idProbe:
		r.probing.Store(false)
	}
	return nil
}

func (r *run) failed(wc *verbs.WC, c *conn) error {
	what := "send"
	if wc.WRID>>idKindShift == idRecv {
		what = "receive"
	}
	hint := ""
	if wc.Status == verbs.WCRetryExcErr {
		hint = "; the other end does not answer: see if it still runs, and if link MTU and " +
			"addresses fit"
	}
	return fmt.Errorf("QP %d: %s completed with %v (%v) after %d messages%s", c.index, what, wc.Status,
		wc.VendorErr, c.done+c.arrived, hint)
}

// completed notes that messages below count are complete; what READs and atomics have brought is to be
// compared.
func (r *run) completed(c *conn, count uint64) {
	if count <= c.done {
		return
	}
	r.moved.Add((count - c.done) * uint64(r.size))
	c.done = count
	if r.check.on && (r.cfg.Test.Op == Read || r.cfg.Test.Op == Atomic) {
		c.due = c.done
	}
}

// slot is where message n of this end's ring lies.
func (r *run) slot(c *conn, n uint64) []byte {
	at := int(n&(r.slots-1))*r.stride + r.offset
	return c.ring[at : at+r.size]
}

// halted says whether the other end has something to say or is gone, which ends a passive loop and
// is an error in an active one; or whether the run was cancelled.
func (r *run) halted() bool {
	if r.deaf {
		return r.x.ended()
	}
	return r.x.waiting()
}

// why is the error of an active end that was halted.
func (r *run) why() error {
	if err := context.Cause(r.ctx); err != nil {
		return err
	}
	return errors.New("the other end ended the test early")
}

// spinsBeforeWait is how many times in a row an end looks in vain before it sleeps, when a poller
// thread moves the packets: it needs the core more than we do.
const spinsBeforeWait = 64

// idle is called when there was nothing to do.
func (r *run) idle() error {
	switch {
	case r.cfg.Transport != RC && (r.lap || r.sendsBoth()):
		return nil // something may be lost: do not sleep until it comes
	case r.cfg.Events:
	case r.cfg.Progress == Caller:
		return nil
	default:
		if r.idles++; r.idles < spinsBeforeWait {
			return nil
		}
	}
	r.idles = 0
	err := r.cq.Wait(r.until)
	if err != nil && r.until.Err() != nil {
		return nil // the caller looks why
	}
	return err
}

// post hands up to n more messages to a QP's send queue, with one doorbell.
func (r *run) post(c *conn, n uint64) error {
	wrs := c.wrs[:min(n, maxBatch)]
	for i := range wrs {
		r.message(c, &wrs[i], &c.sges[i], c.posted+uint64(i))
	}
	posted, err := c.qp.PostSendList(wrs)
	c.posted += uint64(posted)
	if err != nil {
		return fmt.Errorf("post to QP %d: %w", c.index, err)
	}
	return nil
}

// message fills in the work request of message n.
func (r *run) message(c *conn, wr *verbs.SendWR, sge *verbs.SGE, n uint64) {
	wr.WRID, wr.Opcode, wr.Flags = workID(idMessage, c.index, n+1), r.opcode, r.flags
	if (n+1)%r.cqMod == 0 || n+1 == c.target {
		wr.Flags |= verbs.SendSignaled
	}
	wr.Imm, wr.RKey = uint32(n), verbs.Key(c.remote.RKey)
	at := uint64(0)
	if r.cfg.Verify {
		at = shift(c.index, n, r.slots)
	}
	sge.Addr, sge.Length, sge.LKey = r.mem.Addr()+at, uint32(r.size), c.lkey
	slot := (n&(r.slots-1))*uint64(r.stride) + uint64(r.offset)
	switch r.cfg.Test.Op {
	case Write:
		wr.RemoteAddr = c.remote.Addr + slot
	case Read:
		wr.RemoteAddr = c.remote.Addr + at
		sge.Addr = c.base + slot
	case Atomic:
		wr.RemoteAddr, wr.CompareAdd = c.remote.Addr, 1
		sge.Addr = c.base + slot
	case Send:
		if c.ah != nil {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = c.ah, c.peer, r.qkey()
		}
	}
	if r.inline {
		wr.Inline = r.pattern[at : at+uint64(r.size)]
	}
}

// postControl sends a control message: a count of messages, closed or checked.
func (r *run) postControl(c *conn, kind int, count uint64) error {
	var b [controlBytes]byte
	binary.BigEndian.PutUint64(b[:], count)
	wr := verbs.SendWR{WRID: workID(kind, c.index, count), Opcode: verbs.WRSend,
		Flags: verbs.SendInline | verbs.SendSignaled, Inline: b[:]}
	if err := c.qp.PostSend(&wr); err != nil {
		return fmt.Errorf("post control message to QP %d: %w", c.index, err)
	}
	return nil
}
