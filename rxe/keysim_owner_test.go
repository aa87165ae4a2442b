package rxe_test

import (
	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file is what the owner of the keys does in the simulation.

// mapOrBump is the application's side alone: nothing changes for packets.
func (s *keySim) mapOrBump() {
	o := s.pick(nil, mr.KindFast)
	if s.r.Intn(3) == 0 {
		o.soft = o.soft.Inc()
		return
	}
	o.mapped = s.list()
	_, err := s.owner.Dev.Keys().Map(o.soft.Index(), s.segments(o.mapped))
	s.must(err)
}

// postReg posts a REG_MR of what is mapped.
func (s *keySim) postReg(c *keyConn) {
	o := s.pick(func(o *object) bool { return !o.valid && o.pd == s.pds[c.pd] && o.mapped != nil },
		mr.KindFast)
	if o == nil || o.mapped == nil || len(c.posted) > 20 {
		return
	}
	if s.r.Intn(2) == 0 {
		o.soft = o.soft.Inc()
	}
	s.reg(c, o)
}

func (s *keySim) reg(c *keyConn, o *object) {
	s.t.Helper()
	at := positions(o.mapped)
	st := &staged{obj: o, key: o.soft, access: s.rights()}
	st.length = uint64(len(at) - s.r.Intn(len(at))/2)
	st.iova, st.bytes = s.iova(st.length, st.access), at[:st.length]
	num, err := s.owner.Dev.Keys().Stage(mr.Region{Key: st.key, Access: st.access, IOVA: st.iova,
		Length: st.length})
	s.must(err)
	s.post(c, work{op: rxe.WRRegMR, s: st}, rxe.SendWR{RKey: st.key, List: num})
}

// postInv posts a LOCAL_INV, mostly of a key that is in force or will be.
func (s *keySim) postInv(c *keyConn) {
	key := s.guess()
	usual := func(o *object) bool {
		return o.valid && o.pd == s.pds[c.pd] && (o.qp == nil || o.qp == c.own)
	}
	if o := s.pick(usual, mr.KindFast, mr.KindWindow2); o != nil && s.r.Intn(8) > 0 {
		key = o.key
		if len(c.posted) > 0 {
			key = o.soft
		}
	}
	s.post(c, work{op: rxe.WRLocalInv, key: key}, rxe.SendWR{RKey: key})
}

// postBind posts a BIND_MW.
func (s *keySim) postBind(c *keyConn) {
	pd := s.pds[c.pd]
	w := s.pick(func(o *object) bool { return (o.kind == mr.KindWindow1 || !o.valid) && o.pd == pd },
		mr.KindWindow1, mr.KindWindow2)
	p := s.pick(func(o *object) bool { return o.length > 0 && o.access&mr.MWBind != 0 && o.pd == pd },
		mr.KindFast, mr.KindUser)
	if w == nil || p == nil || len(c.posted) > 20 {
		return
	}
	st := &staged{obj: w, key: w.soft.Inc(), window: w.soft, parent: p.key,
		access: s.rights() & (mr.AccessRemote | mr.ZeroBased)}
	if s.r.Intn(8) == 0 {
		st.parent = s.guess()
	}
	if p.length > 0 && s.r.Intn(8) > 0 {
		off := uint64(s.r.Intn(int(p.length)))
		st.iova, st.length = p.iova+off, uint64(s.r.Intn(int(p.length-off)+1))
	} else {
		st.iova, st.length = s.r.Uint64(), s.r.Uint64()
	}
	num, err := s.owner.Dev.Keys().StageBind(w.soft.Index())
	s.must(err)
	s.post(c, work{op: rxe.WRBindMW, s: st}, rxe.SendWR{RKey: st.key, MWKey: st.window,
		Parent: st.parent, RemoteAddr: st.iova, Length: st.length, Access: st.access, List: num,
		MWType1: w.kind == mr.KindWindow1})
	if w.soft = st.key; !c.held { // it has executed, or not
		w.soft = w.key
	}
}

// post posts a work request and, unless the queue is held, executes it.
func (s *keySim) post(c *keyConn, w work, wr rxe.SendWR) {
	s.t.Helper()
	s.nextID++
	w.id, w.signaled = s.nextID, s.r.Intn(2) == 0
	wr.ID, wr.Opcode = w.id, w.op
	if w.signaled {
		wr.Flags = rxe.SendSignaled
	}
	s.must(c.own.PostSend(&wr))
	c.own.RingDoorbell()
	if c.held {
		c.posted = append(c.posted, w)
		s.settle() // nothing happens
		return
	}
	s.execute(c, []work{w})
}

// execute runs works in the engine and in the model.
func (s *keySim) execute(c *keyConn, works []work) {
	s.t.Helper()
	if !s.f.RunUntil(s.f.Now()+keyPatience, func() bool { return c.own.SQ.Len() == 0 }) {
		s.t.Fatal("the send queue does not run")
	}
	s.settle()
	for i, w := range works {
		st := s.outcome(c, w)
		s.completions(c, works[i:i+1], st)
		if st != rxe.WCSuccess {
			s.completions(c, works[i+1:], rxe.WCWRFlushErr)
			if c.own.State() != rxe.StateErr {
				s.t.Fatalf("after %v: QP is in %v", st, c.own.State())
			}
			c.posted, c.held = nil, false
			s.reconnect(c)
			return
		}
	}
	c.posted = nil
	var b [1]rxe.CQE
	if c.ownCQ.Poll(b[:]) != 0 {
		s.t.Fatalf("unexpected completion %+v", b[0])
	}
}

// outcome executes one work request in the model.
func (s *keySim) outcome(c *keyConn, w work) rxe.WCStatus {
	pd, name, st := s.pds[c.pd], "", rxe.WCSuccess
	switch w.op {
	case rxe.WRRegMR:
		name = "REG_MR"
		if f := s.register(w.s, pd); f != mr.FaultNone {
			st = rxe.WCLocQPOpErr
			s.faults[f]++
		}
	case rxe.WRLocalInv:
		name = "LOCAL_INV"
		if f := s.invalidate(w.key, pd, c.own); f != mr.FaultNone {
			st = rxe.WCLocQPOpErr
			s.faults[f]++
		} else {
			s.stale = append(s.stale, w.key)
		}
	case rxe.WRBindMW:
		name = "BIND_MW"
		if s.stale = append(s.stale, w.s.window); !s.bind(w.s, pd, c.own) {
			st = rxe.WCMWBindErr
			s.bindFault()
		}
	}
	if st == rxe.WCSuccess {
		s.steps[name+" ok"]++
	} else {
		s.steps[name+" error"]++
	}
	return st
}

// bindFault takes over which fault a failed BIND_MW was counted as: the model does not say.
func (s *keySim) bindFault() {
	s.t.Helper()
	var got [mr.NumFaults]uint64
	for _, sh := range s.owner.Dev.Shards() {
		for f, n := range sh.C.KeyFaults {
			got[f] += n
		}
	}
	found := 0
	for f := range got {
		if got[f] > s.faults[f] {
			found++
			s.faults[f]++
			if got[f] != s.faults[f] {
				return // behind it another one failed: verify will say so
			}
		}
	}
	if found != 1 {
		s.t.Fatalf("a failed BIND_MW was counted %d times", found)
	}
}

// holdOrLetGo stalls a send queue, or lets it run again. The gate is a SEND that waits for a
// receive, and a LOCAL_INV of a free region, which waits for that SEND and holds everything behind it.
func (s *keySim) holdOrLetGo(c *keyConn) {
	if c.held {
		s.must(c.far.PostRecv(&rxe.RecvWR{SGEs: []rxe.SGE{s.far.SGE(0, 64)}}))
		c.held = false
		s.execute(c, c.posted)
		return
	}
	s.steps["held"]++
	s.must(c.own.PostSend(&rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{s.safe[c.pd].SGE(0, 8)}}))
	s.must(c.own.PostSend(&rxe.SendWR{Opcode: rxe.WRLocalInv, RKey: s.gates[c.pd]}))
	c.own.RingDoorbell()
	c.held = true
	s.settle()
}

// control does what needs no queue: it frees, allocates and registers again.
func (s *keySim) control() {
	tab := s.owner.Dev.Keys()
	o := s.anyObject()
	if o.kind == mr.KindUser && s.r.Intn(2) == 0 {
		if o.bound > 0 {
			if _, f := tab.Rereg(s.reregView(o)); f != mr.FaultBound {
				s.t.Fatalf("Rereg under a window: %v", f)
			}
			return
		}
		if _, f := tab.Rereg(s.userView(o)); f != mr.FaultNone {
			s.t.Fatalf("Rereg: %v", f)
		}
		return
	}
	_, f := tab.Unpublish(o.key.Index())
	if o.bound > 0 {
		if f != mr.FaultBound {
			s.t.Fatalf("free under a window: %v", f)
		}
		return
	}
	if f != mr.FaultNone {
		s.t.Fatalf("free: %v", f)
	}
	s.settle()
	s.must(tab.Free(o.key.Index()))
	s.stale = append(s.stale, o.key)
	o.free()
	o.dead = true
	delete(s.objects, o.key.Index())
	s.allocate(o.kind)
}

// reregView is a view that must be refused: the object stays as it is.
func (s *keySim) reregView(o *object) *mr.View {
	keep := *o
	v := s.userView(o)
	*o = keep
	return v
}
