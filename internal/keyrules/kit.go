package keyrules

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// Outcome is what one rule gave.
type Outcome struct {
	ID   string
	Rule string // what must hold
	Got  string // what happened
	Pass bool
}

// kit is what the rules work with.
type kit struct {
	owner, peer side
	id, rule    string
	got         strings.Builder
	pass        bool
	undo        []func() error // of this rule, last first
	err         error          // set-up failed
}

// side is one device.
type side struct {
	dev    *verbs.Context
	gid    verbs.GIDEntry
	pd     *verbs.PD
	pd2    *verbs.PD // another domain
	mem    *verbs.MR // for what is not under test
	window *verbs.MR // of windows: 64 KiB
	other  *verbs.MR // the same memory in pd2
}

const (
	pmtu     = 1024
	patience = 5 * time.Second
	fixIOVA  = 0x1234_5000_0000
	pageLen  = 4096

	rw     = verbs.RemoteWrite | verbs.RemoteRead
	access = verbs.LocalWrite | rw
)

// Run tries all rules, with owner and peer on two devices that reach each other.
func Run(owner, peer *verbs.Context) ([]Outcome, error) {
	k := &kit{owner: side{dev: owner}, peer: side{dev: peer}}
	for _, s := range []*side{&k.owner, &k.peer} {
		if err := s.open(); err != nil {
			return nil, err
		}
	}
	var out []Outcome
	for _, r := range rules {
		k.id, k.rule, k.pass = r.id, r.rule, false
		k.got.Reset()
		r.run(k)
		err := k.err
		for i := len(k.undo) - 1; i >= 0; i-- {
			err = errors.Join(err, k.undo[i]())
		}
		k.undo = k.undo[:0]
		if err != nil {
			return out, fmt.Errorf("%s: %w", r.id, err)
		}
		out = append(out, Outcome{k.id, k.rule, k.got.String(), k.pass})
	}
	return out, nil
}

func (s *side) open() (err error) {
	for _, g := range s.dev.GIDs() {
		if g.GID.IsIPv4() {
			s.gid = g
			break
		}
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return err
	}
	if s.pd2, err = s.dev.AllocPD(); err != nil {
		return err
	}
	if s.mem, err = s.pd.RegMR(make([]byte, 1<<17), access); err != nil {
		return err
	}
	all := access | verbs.RemoteAtomic | verbs.MWBind
	mem := make([]byte, 1<<16)
	if s.window, err = s.pd.RegMR(mem, all); err != nil {
		return err
	}
	s.other, err = s.pd2.RegMR(mem, all)
	return err
}

// say adds to what happened.
func (k *kit) say(format string, args ...any) {
	if k.got.Len() > 0 {
		k.got.WriteString("; ")
	}
	fmt.Fprintf(&k.got, format, args...)
}

// must notes a failure of the set-up, which is none of the rule.
func (k *kit) must(err error) {
	if err != nil && k.err == nil {
		k.err = err
	}
}

// end is one QP with its completion queue.
type end struct {
	k   *kit
	s   *side
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	psn verbs.PSN
}

// pair is a connection: the owner's end and the peer's.
type pair struct{ o, p *end }

func (k *kit) end(s *side, pd *verbs.PD) *end {
	e := &end{k: k, s: s, pd: pd, psn: verbs.RandomPSN()}
	var err error
	if e.cq, err = s.dev.CreateCQ(512); err != nil {
		k.must(err)
		return e
	}
	e.qp, err = s.dev.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Shard: -1, Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 16}})
	k.must(err)
	k.undo = append(k.undo, func() error { return errors.Join(e.qp.Destroy(), e.cq.Destroy()) })
	return e
}

// pairIn connects a new QP of a domain of the owner with a new one of the peer.
func (k *kit) pairIn(pd *verbs.PD) pair {
	c := pair{k.end(&k.owner, pd), k.end(&k.peer, k.peer.pd)}
	if k.err != nil {
		return c
	}
	for _, x := range [][2]*end{{c.o, c.p}, {c.p, c.o}} {
		k.must(x[0].qp.ConnectRC(x[0].psn, verbs.ConnInfo{QPN: x[1].qp.Num(), PSN: x[1].psn,
			GID: x[1].s.gid.GID}, verbs.ConnOptions{SGIDIndex: x[0].s.gid.Index, PathMTU: pmtu,
			MinRNRTimer: 20, RetryCnt: 2})) // 10 ms
	}
	return c
}

func (k *kit) pair() pair { return k.pairIn(k.owner.pd) }

// post posts a signaled work request.
func (e *end) post(wr verbs.SendWR) {
	wr.Flags |= verbs.SendSignaled
	if e.s == &e.k.peer {
		e.k.overWire()
	}
	if e.k.err == nil {
		e.k.must(e.qp.PostSend(&wr))
	}
}

// noCompletion is the status of what did not complete in time.
const noCompletion verbs.WCStatus = 0xff

// done waits for one completion.
func (e *end) done() verbs.WC {
	wc := [1]verbs.WC{{Status: noCompletion}}
	for start := time.Now(); e.k.err == nil && time.Since(start) < patience; {
		n, err := e.cq.Poll(wc[:])
		if e.k.must(err); n == 1 {
			if e.s == &e.k.peer {
				e.k.overWire()
			}
			return wc[0]
		}
	}
	return wc[0]
}

// overWire makes visible to the race detector what the wire orders: the owner's memory as it was when
// the peer posted, then what the owner's shards do for the peer, then the peer's completion. Between
// two devices of one process the packets go through the kernel, where the detector does not look.
// The owner's own completions get no such help: what must hold behind an invalidation is the
// engine's to order.
func (k *kit) overWire() { k.owner.dev.Stats() } // takes each shard for a moment

// succeeds waits for n completions, until one is no success.
func (e *end) succeeds(n int) bool {
	for range n {
		if e.done().Status != verbs.WCSuccess {
			return false
		}
	}
	return true
}

// status runs a work request and waits for it.
func (e *end) status(wr verbs.SendWR) verbs.WCStatus {
	e.post(wr)
	return e.done().Status
}

// ready is how many completions wait.
func (e *end) ready() int { return e.cq.Len() }

func text(st verbs.WCStatus) string {
	switch st {
	case noCompletion:
		return "no completion"
	case verbs.WCSuccess:
		return "success"
	}
	return st.String()
}

// rdma lets the peer access n bytes at va, and returns how it ended. What it writes are bytes 0x5a;
// what it reads is in the first n bytes of its memory.
func (c pair) rdma(op verbs.WROpcode, n int, va uint64, key verbs.Key) verbs.WCStatus {
	k := c.o.k
	fill(k.peer.mem.Bytes(), 0x5a)
	return c.p.status(verbs.SendWR{Opcode: op, SGList: []verbs.SGE{k.peer.mem.SGE(0, n)},
		RemoteAddr: va, RKey: key})
}

// try is rdma on a connection of its own.
func (k *kit) try(op verbs.WROpcode, n int, va uint64, key verbs.Key) verbs.WCStatus {
	return k.pair().rdma(op, n, va, key)
}

// fast allocates a fast region of the owner.
func (k *kit) fast(pd *verbs.PD, segs int) *verbs.MR {
	m, err := pd.AllocFastMR(segs)
	k.must(err)
	if err == nil {
		k.undo = append(k.undo, m.Dereg)
	}
	return m
}

// pages is memory of n pages of one byte, as a list of pages.
func pages(n int, b byte) (mem []byte, list [][]byte) {
	mem = bytes.Repeat([]byte{b}, n*pageLen)
	for i := range n {
		list = append(list, mem[i*pageLen:(i+1)*pageLen])
	}
	return mem, list
}

func fill(b []byte, x byte) {
	for i := range b {
		b[i] = x
	}
}

// changed is how many bytes are not x any more.
func changed(b []byte, x byte) int { return len(b) - bytes.Count(b, []byte{x}) }

func count(b []byte, x byte) int { return bytes.Count(b, []byte{x}) }

func reg(m *verbs.MR) verbs.SendWR {
	return verbs.SendWR{Opcode: verbs.WRRegMR, MR: m, Access: access}
}

func inv(key verbs.Key) verbs.SendWR { return verbs.SendWR{Opcode: verbs.WRLocalInv, RKey: key} }

// bump gives a fast region the next key.
func bump(m *verbs.MR) { m.UpdateKey(verbs.IncRKey(m.RKey()).Variant()) }

func opName(op verbs.WROpcode) string {
	if op == verbs.WRRDMARead {
		return "READ"
	}
	return "WRITE"
}
