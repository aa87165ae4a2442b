package keyrules

import (
	"bytes"
	"errors"
	"time"

	"github.com/roxie-rdma/roxie/rxe/mr"
	"github.com/roxie-rdma/roxie/verbs"
)

// This file is roxie as the owner.

// own is a device of roxie.
type own struct {
	*faults
	dev   *verbs.Context
	gid   verbs.GIDEntry
	pd    [2]*verbs.PD
	mem   [2]*verbs.MR // for what is not under test
	fixed [2]*verbs.MR // 64 KiB, the same memory
}

// faults notes the first one.
type faults struct{ err error }

func (f *faults) must(err error) {
	if err != nil && f.err == nil {
		f.err = err
	}
}

func openOwn(dev *verbs.Context, f *faults) (*own, error) {
	o := &own{faults: f, dev: dev, gid: ipv4(dev)}
	mem, fixed := make([]byte, pageLen), make([]byte, 1<<16)
	for d := range o.pd {
		var err error
		if o.pd[d], err = dev.AllocPD(); err != nil {
			return nil, err
		}
		if o.mem[d], err = o.pd[d].RegMR(mem, access); err != nil {
			return nil, err
		}
		all := access | verbs.RemoteAtomic | verbs.MWBind
		if o.fixed[d], err = o.pd[d].RegMR(fixed, all); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// ipv4 is a device's IPv4 address.
func ipv4(dev *verbs.Context) verbs.GIDEntry {
	for _, g := range dev.GIDs() {
		if g.GID.IsIPv4() {
			return g
		}
	}
	return verbs.GIDEntry{}
}

func (o *own) memory(pages int) memory { return &ownMemory{b: make([]byte, pages*pageLen)} }

func (o *own) user(d domain) (memory, uint64, verbs.Key) {
	m := o.fixed[d]
	return &ownMemory{b: m.Bytes()}, m.Addr(), m.RKey()
}

// visible shows the race detector what the wire orders: the owner's memory as it was when the peer
// posted, then what the owner's shards do for the peer, then the peer's completion. Between two
// devices of one process the packets go through the kernel, where the detector does not look. The
// owner's own completions get no such help: what must hold behind an invalidation is the engine's
// to order.
func (o *own) visible() { o.dev.Stats() } // takes each shard for a moment

// ownQP is a QP of roxie, of either side.
type ownQP struct {
	*faults
	gid verbs.GIDEntry
	cq  *verbs.CQ
	q   *verbs.QP
	psn verbs.PSN
	mem *verbs.MR // for SEND and receive
}

func newQP(f *faults, dev *verbs.Context, gid verbs.GIDEntry, pd *verbs.PD, mem *verbs.MR) *ownQP {
	e := &ownQP{faults: f, gid: gid, psn: verbs.RandomPSN(), mem: mem}
	var err error
	if e.cq, err = dev.CreateCQ(512); err != nil {
		f.must(err)
		return e
	}
	e.q, err = dev.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Shard: -1, Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 16}})
	f.must(err)
	return e
}

func (o *own) qp(d domain) ownerQP { return newQP(o.faults, o.dev, o.gid, o.pd[d], o.mem[d]) }

func (e *ownQP) info() verbs.ConnInfo {
	if e.err != nil {
		return verbs.ConnInfo{}
	}
	return verbs.ConnInfo{QPN: e.q.Num(), PSN: e.psn, GID: e.gid.GID}
}

func (e *ownQP) connect(peer verbs.ConnInfo) {
	if e.err == nil {
		e.must(e.q.ConnectRC(e.psn, peer, verbs.ConnOptions{SGIDIndex: e.gid.Index, PathMTU: pmtu,
			Timeout: 16, MinRNRTimer: 20})) // 268 ms, 10 ms
	}
}

func (e *ownQP) state() verbs.QPState {
	if e.err != nil {
		return 0
	}
	return e.q.State()
}

func (e *ownQP) post(wr verbs.SendWR) {
	wr.Flags |= verbs.SendSignaled
	if e.err == nil {
		e.must(e.q.PostSend(&wr))
	}
}

func (e *ownQP) send() {
	e.post(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{e.mem.SGE(0, 16)}})
}

func (e *ownQP) recv() {
	if e.err == nil {
		e.must(e.q.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.mem.SGE(0, 64)}}))
	}
}

func (e *ownQP) invalidate(key verbs.Key) {
	e.post(verbs.SendWR{Opcode: verbs.WRLocalInv, RKey: key})
}

func (e *ownQP) register(r region, a verbs.Access) {
	e.post(verbs.SendWR{Opcode: verbs.WRRegMR, MR: r.(*ownRegion).m, Access: a})
}

func (e *ownQP) bind(b binding) {
	if e.err != nil {
		return
	}
	w := b.w.(*ownWindow)
	m := w.o.fixed[b.to]
	e.post(verbs.SendWR{Opcode: verbs.WRBindMW, MW: w.w, MR: m, Key: verbs.IncRKey(w.w.RKey()),
		Addr: m.Addr() + b.off, Length: b.n, Access: b.access})
}

func (e *ownQP) poll(patience time.Duration) completion {
	wc := [1]verbs.WC{}
	for start := time.Now(); e.err == nil; {
		n, err := e.cq.Poll(wc[:])
		if e.must(err); n == 1 {
			return completion{wc[0].Status, wc[0].Flags&verbs.WCWithInv != 0}
		}
		if time.Since(start) >= patience {
			break
		}
	}
	return completion{status: noCompletion}
}

func (e *ownQP) take(key verbs.Key, m memory, fill int) completion {
	e.invalidate(key)
	c := e.poll(patience)
	own := m.(*ownMemory)
	if fill >= 0 {
		own.fill(byte(fill))
	}
	own.was = bytes.Clone(own.b)
	return c
}

func (e *ownQP) close() {
	if e.q != nil {
		e.must(errors.Join(e.q.Destroy(), e.cq.Destroy()))
	}
}

// ownMemory is memory of this process.
type ownMemory struct{ b, was []byte }

func (m *ownMemory) fill(b byte) {
	for i := range m.b {
		m.b[i] = b
	}
}

func (m *ownMemory) count(b byte) int { return bytes.Count(m.b, []byte{b}) }
func (m *ownMemory) at(off int) byte  { return m.b[off] }
func (m *ownMemory) size() int        { return len(m.b) }
func (m *ownMemory) addr() uint64     { return mr.AddrOf(m.b) }
func (m *ownMemory) close()           {}

func (m *ownMemory) taken() (n int) {
	for i, b := range m.was {
		if m.b[i] != b {
			n++
		}
	}
	return n
}

type ownRegion struct {
	*faults
	m *verbs.MR
}

func (o *own) fast(d domain, pages int) region {
	m, err := o.pd[d].AllocFastMR(pages)
	o.must(err)
	return &ownRegion{o.faults, m}
}

func (r *ownRegion) mapTo(m memory, iova uint64) {
	if r.err != nil {
		return
	}
	if iova == 0 {
		iova = m.addr()
	}
	var list [][]byte
	for b := m.(*ownMemory).b; len(b) > 0; b = b[pageLen:] {
		list = append(list, b[:pageLen])
	}
	r.must(r.m.MapSG(list, iova))
}

func (r *ownRegion) bump() {
	if r.err == nil {
		r.m.UpdateKey(verbs.IncRKey(r.m.RKey()).Variant())
	}
}

func (r *ownRegion) key() verbs.Key {
	if r.err != nil {
		return 0
	}
	return r.m.RKey()
}

func (r *ownRegion) addr() uint64 {
	if r.err != nil {
		return 0
	}
	return r.m.Addr()
}

func (r *ownRegion) close() {
	if r.m != nil {
		r.must(r.m.Dereg())
	}
}

type ownWindow struct {
	o *own
	w *verbs.MW
}

func (o *own) window(d domain, t verbs.MWType) window {
	w, err := o.pd[d].AllocMW(t)
	o.must(err)
	return &ownWindow{o, w}
}

func (w *ownWindow) key() verbs.Key {
	if w.o.err != nil {
		return 0
	}
	return w.w.RKey()
}

func (w *ownWindow) close() {
	if w.w != nil {
		w.o.must(w.w.Dealloc())
	}
}
