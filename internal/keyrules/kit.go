package keyrules

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/verbs"
)

// Outcome is what one rule gave.
type Outcome struct {
	ID   string
	Rule string // what must hold
	Got  string // what happened
	Pass bool
	// Refused says that the rule was kept, as nothing was touched that must not be, but the
	// application was told something else than it should. Pass is false then.
	Refused bool
}

// kit is what the rules work with.
type kit struct {
	*faults
	owner   owner
	peer    peer
	id      string
	got     strings.Builder
	pass    bool
	refused bool
	undo    []func() // of this rule, last first
}

// peer is the side that reaches for the owner's memory: always roxie.
type peer struct {
	dev *verbs.Context
	gid verbs.GIDEntry
	pd  *verbs.PD
	mem *verbs.MR
}

const (
	pmtu     = 1024
	patience = 10 * time.Second
	fixIOVA  = 0x1234_5000_0000
	pageLen  = 4096

	rw     = verbs.RemoteWrite | verbs.RemoteRead
	access = verbs.LocalWrite | rw
)

// Run tries all rules, with owner and peer on two devices that reach each other.
func Run(owner, peer *verbs.Context) ([]Outcome, error) {
	f := new(faults)
	o, err := openOwn(owner, f)
	if err != nil {
		return nil, err
	}
	return run(f, o, peer, rules, nil)
}

// RunLab tries all rules between the two sides of a lab, with the owner in A.
func RunLab(l *lab.Lab) ([]Outcome, error) {
	var devs [2]*verbs.Context
	for i, n := range []*lab.Namespace{l.A, l.B} {
		err := n.DoErr(func() (err error) {
			devs[i], err = verbs.Open(n.Interface, nil)
			return err
		})
		if err != nil {
			return nil, err
		}
		defer devs[i].Close()
	}
	return Run(devs[0], devs[1])
}

// run tries some rules.
func run(f *faults, o owner, dev *verbs.Context, rules []rule, report func(*Outcome)) (
	out []Outcome, err error) {
	k := &kit{faults: f, owner: o, peer: peer{dev: dev, gid: ipv4(dev)}}
	p := &k.peer
	if p.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if p.mem, err = p.pd.RegMR(make([]byte, 1<<17), access); err != nil {
		return nil, err
	}
	for _, r := range rules {
		k.id, k.pass, k.refused = r.id, false, false
		k.got.Reset()
		r.run(k)
		k.back(0)
		if k.err != nil {
			return out, fmt.Errorf("%s: %w", r.id, k.err)
		}
		out = append(out, Outcome{r.id, r.rule, k.got.String(), k.pass, k.refused && !k.pass})
		if report != nil {
			report(&out[len(out)-1])
		}
	}
	return out, nil
}

// back undoes what a rule has made, but for the first n.
func (k *kit) back(n int) {
	for len(k.undo) > n {
		last := len(k.undo) - 1
		k.undo[last]()
		k.undo = k.undo[:last]
	}
}

// say adds to what happened.
func (k *kit) say(format string, args ...any) {
	if k.got.Len() > 0 {
		k.got.WriteString("; ")
	}
	fmt.Fprintf(&k.got, format, args...)
}

// pair is a connection: the owner's end and the peer's.
type pair struct {
	k *kit
	o ownerQP
	p *ownQP
}

// pairIn connects a new QP of a domain of the owner with a new one of the peer.
func (k *kit) pairIn(d domain) pair {
	c := pair{k, k.owner.qp(d), newQP(k.faults, k.peer.dev, k.peer.gid, k.peer.pd, k.peer.mem)}
	k.undo = append(k.undo, c.p.close, c.o.close)
	c.o.connect(c.p.info())
	c.p.connect(c.o.info())
	return c
}

func (k *kit) pair() pair { return k.pairIn(home) }

// noCompletion is the status of what did not complete in time.
const noCompletion verbs.WCStatus = 0xff

// done waits for one completion of the owner's.
func done(q ownerQP) verbs.WCStatus { return q.poll(patience).status }

// succeeds waits for n completions, until one is no success.
func succeeds(q ownerQP, n int) bool {
	for range n {
		if done(q) != verbs.WCSuccess {
			return false
		}
	}
	return true
}

// inv runs a LOCAL_INV.
func inv(q ownerQP, key verbs.Key) verbs.WCStatus {
	q.invalidate(key)
	return done(q)
}

// reg runs a REG_MR.
func reg(q ownerQP, r region) verbs.WCStatus {
	q.register(r, access)
	return done(q)
}

func text(st verbs.WCStatus) string {
	switch st {
	case noCompletion:
		return "no completion"
	case verbs.WCSuccess:
		return "success"
	}
	return st.String()
}

// post posts a work request of the peer.
func (c pair) post(wr verbs.SendWR) {
	c.k.owner.visible()
	c.p.post(wr)
}

// peerDone waits for one completion of the peer's.
func (c pair) peerDone() verbs.WCStatus {
	st := c.p.poll(patience).status
	c.k.owner.visible()
	return st
}

// rdma lets the peer access n bytes at va, and returns how it ended. What it writes are bytes 0x5a;
// what it reads is in the first n bytes of its memory.
func (c pair) rdma(op verbs.WROpcode, n int, va uint64, key verbs.Key) verbs.WCStatus {
	k := c.k
	fill(k.peer.mem.Bytes(), 0x5a)
	c.post(verbs.SendWR{Opcode: op, SGList: []verbs.SGE{k.peer.mem.SGE(0, n)}, RemoteAddr: va,
		RKey: key})
	return c.peerDone()
}

// try is rdma on a connection of its own.
func (k *kit) try(op verbs.WROpcode, n int, va uint64, key verbs.Key) verbs.WCStatus {
	return k.pair().rdma(op, n, va, key)
}

// read is how many of the first n bytes of the peer's memory are b.
func (k *kit) read(n int, b byte) int { return bytes.Count(k.peer.mem.Bytes()[:n], []byte{b}) }

// fast allocates a fast region of the owner.
func (k *kit) fast(d domain, pages int) region {
	r := k.owner.fast(d, pages)
	k.undo = append(k.undo, r.close)
	return r
}

// pages is memory of n pages of one byte.
func (k *kit) pages(n int, b byte) memory {
	m := k.owner.memory(n)
	k.undo = append(k.undo, m.close)
	m.fill(b)
	return m
}

func fill(b []byte, x byte) {
	for i := range b {
		b[i] = x
	}
}

// changed is how many bytes are not b any more.
func changed(m memory, b byte) int { return m.size() - m.count(b) }

func opName(op verbs.WROpcode) string {
	if op == verbs.WRRDMARead {
		return "READ"
	}
	return "WRITE"
}
