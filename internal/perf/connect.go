package perf

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/roxie-rdma/roxie/internal/netdev"
	rcm "github.com/roxie-rdma/roxie/rxe/cm"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file takes an opened endpoint to connected QPs.

// connect exchanges what both need to know and brings the QPs up.
func (e *endpoint) connect(ctx context.Context, x *exchange) error {
	theirs, err := swap(ctx, x, "hello", e.hello())
	if err != nil {
		return err
	}
	if e.pmtu, err = agree(e.hello(), theirs); err != nil {
		return err
	}
	if e.sizes, err = e.cfg.sizes(e.pmtu); err != nil {
		return err
	}
	if err := e.create(); err != nil {
		return err
	}
	for _, c := range e.conns {
		if c.remote, err = swap(ctx, x, "keys", e.keys(c)); err != nil {
			return err
		}
		c.peer = verbs.QPN(c.remote.QPN)
		if err := e.bringUp(c); err != nil {
			return err
		}
	}
	return x.barrier(ctx)
}

// create makes memory, completion queue and QPs.
func (e *endpoint) create() (err error) {
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return fmt.Errorf("allocate PD: %w", err)
	}
	e.plan = e.cfg.plan(e.sizes)
	e.plan.ringSpan = max(e.plan.ringSpan, roundUp(e.cycle, lineBytes))
	access := verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
	if e.cfg.Test.Op == Atomic {
		access |= verbs.RemoteAtomic
	}
	if e.mem, err = e.pd.AllocMR(e.plan.total(), access); err != nil {
		return fmt.Errorf("register %d bytes: %w; smaller -s, -q or -r need less", e.plan.total(), err)
	}
	buf := e.mem.Bytes()
	clear(buf) // touch every page now, not while the clock runs
	e.pattern = buf[:e.plan.patternLen]
	fillPattern(e.pattern)

	sends, recvs := e.queueDepths()
	depth := min((sends+recvs)*e.cfg.QPs, 1<<22)
	if e.cq, err = e.dev.CreateCQ(depth); err != nil {
		return fmt.Errorf("create CQ of %d entries: %w", depth, err)
	}
	for i := range e.cfg.QPs {
		c, err := e.createConn(i, sends, recvs)
		if c != nil {
			e.conns = append(e.conns, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// queueDepths are the sizes of each QP's send and receive queue.
func (e *endpoint) queueDepths() (sends, recvs int) {
	sends = e.cfg.TXDepth + controlSlots
	for _, s := range e.sizes {
		l := e.cfg.layout(s)
		recvs = max(recvs, e.cfg.controlRecvs(&l))
		if e.cfg.Test.Op == Send {
			recvs = max(recvs, e.cfg.recvDepth(&l))
		}
	}
	return sends, recvs
}

// recvDepth is how many receives a SEND test keeps posted. Each needs a slot of its own where what
// arrives in it is compared; otherwise they share the slots.
func (c *Config) recvDepth(l *layout) int {
	if c.Verify || c.Test.Latency {
		return int(l.slots)
	}
	return c.RXDepth
}

func (e *endpoint) createConn(i, sends, recvs int) (*conn, error) {
	types := map[Transport]verbs.QPType{RC: verbs.RC, UC: verbs.UC, UD: verbs.UD}
	attr := &verbs.QPInitAttr{
		Type: types[e.cfg.Transport], SendCQ: e.cq, RecvCQ: e.cq, Shard: -1,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1,
			MaxInline: max(e.cfg.inline(), controlBytes)},
	}
	qp, err := e.dev.CreateQP(e.pd, attr)
	if err != nil {
		return nil, fmt.Errorf("create QP: %w", err)
	}
	at := e.plan.ringAt(i)
	c := &conn{
		index: i, qp: qp, psn: rand.Uint32() & 0xffffff,
		ring: e.mem.Bytes()[at : at+e.plan.ringSpan], lkey: e.mem.LKey(), base: e.mem.Addr() + uint64(at),
		wrs: make([]verbs.SendWR, maxBatch), sges: make([]verbs.SGE, maxBatch),
	}
	for j := range c.wrs {
		c.wrs[j].SGList = c.sges[j : j+1 : j+1]
	}
	return c, e.initialise(c, false)
}

// initialise brings a QP to INIT, from RESET or, again, from any state.
func (e *endpoint) initialise(c *conn, again bool) error {
	if again {
		if err := c.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
			return fmt.Errorf("QP %d to RESET: %w", c.index, err)
		}
		c.psn, c.primed = rand.Uint32()&0xffffff, false
	}
	init := &verbs.QPAttr{State: verbs.StateInit, Port: 1, QKey: e.qkey(),
		AccessFlags: verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic}
	mask := verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort
	switch e.cfg.Transport {
	case UD:
		mask |= verbs.AttrQKey
	case UC:
		init.AccessFlags = verbs.RemoteWrite
		mask |= verbs.AttrAccessFlags
	default:
		mask |= verbs.AttrAccessFlags
	}
	if err := c.qp.Modify(init, mask); err != nil {
		return fmt.Errorf("QP %d to INIT: %w", c.index, err)
	}
	return nil
}

// tagBytes is the VLAN tag, for which the link MTU has to make room.
const tagBytes = 4

// perftestQKey is the Q_Key of perftest's QPs, unless RDMA-CM makes them.
const perftestQKey = 0x11111111

func (e *endpoint) qkey() uint32 {
	if e.cfg.CM {
		return rcm.UDQKey
	}
	return perftestQKey
}

func (e *endpoint) keys(c *conn) keys {
	k := keys{QPN: uint32(c.qp.Num()), PSN: c.psn, GID: e.gid, RdAtomic: defaultRdAtomic,
		RKey: uint32(e.mem.RKey()), Addr: c.base}
	if e.cfg.Test.Op == Read {
		k.Addr = e.mem.Addr() // of the pattern
	}
	return k
}

// bringUp takes a QP to RTS.
func (e *endpoint) bringUp(c *conn) error {
	ours, theirs := netdev.AddrOf(e.gid), netdev.AddrOf(c.remote.GID)
	if ours.Is4() != theirs.Is4() {
		return fmt.Errorf("the GID here is %v, at the other end %v: choose GIDs of one family "+
			"with -x",
			ours, theirs)
	}
	ah := verbs.AHAttr{DGID: c.remote.GID, SGIDIndex: e.at, HopLimit: 64}
	attr := &verbs.QPAttr{State: verbs.StateRTR}
	mask := verbs.AttrState
	if e.cfg.Transport != UD {
		attr.AH, attr.PathMTU = ah, e.pmtu
		attr.DestQPN, attr.RQPSN = verbs.QPN(c.remote.QPN), verbs.PSN(c.remote.PSN)
		mask |= verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN
	}
	if e.cfg.Transport == RC {
		attr.MaxDestRdAtomic, attr.MinRNRTimer = defaultRdAtomic, defaultMinRNR
		mask |= verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer
	}
	if err := c.qp.Modify(attr, mask); err != nil {
		return fmt.Errorf("connect QP %d to %v: %w", c.index, theirs, err)
	}
	attr = &verbs.QPAttr{State: verbs.StateRTS, SQPSN: verbs.PSN(c.psn)}
	mask = verbs.AttrState | verbs.AttrSQPSN
	if e.cfg.Transport == RC {
		attr.Timeout, attr.RetryCnt, attr.RNRRetry = uint8(e.cfg.Timeout), defaultRetries, defaultRetries
		attr.MaxQPRdAtomic = uint8(min(c.remote.RdAtomic, defaultRdAtomic))
		mask |= verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrMaxQPRdAtomic
	}
	if err := c.qp.Modify(attr, mask); err != nil {
		return fmt.Errorf("QP %d to RTS: %w", c.index, err)
	}
	if e.cfg.Transport == UD {
		var err error
		if c.ah, err = e.pd.CreateAH(&ah); err != nil {
			return fmt.Errorf("address handle of %v: %w", theirs, err)
		}
	}
	return nil
}
