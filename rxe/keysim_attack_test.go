package rxe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/mr"
)

// This file is what the peer does in the simulation, and what competes with it.

// attack runs one operation of the peer.
func (s *keySim) attack() {
	s.t.Helper()
	key, va, n := s.target()
	c := s.conn(s.byKey(key))
	ops := []rxe.WROpcode{rxe.WRRDMAWrite, rxe.WRRDMARead, rxe.WRRDMAWrite, rxe.WRRDMARead,
		rxe.WRAtomicFetchAdd, rxe.WRAtomicCmpSwap, rxe.WRAtomicWrite}
	op := ops[s.r.Intn(len(ops))]
	need := mr.RemoteWrite
	if op == rxe.WRRDMARead {
		need = mr.RemoteRead
	}
	wr := rxe.SendWR{ID: 1, Opcode: op, Flags: rxe.SendSignaled, RemoteAddr: va, RKey: key}
	if op != rxe.WRRDMAWrite && op != rxe.WRRDMARead {
		wr.RemoteAddr, n = va&^7, 8
		wr.CompareAdd, wr.Swap = s.r.Uint64(), s.r.Uint64()
		if op != rxe.WRAtomicWrite {
			need = mr.RemoteAtomic
		}
	}
	buf := s.far.Buf[:n]
	for i := range buf {
		buf[i] = byte(s.r.Uint64())
	}
	data := bytes.Clone(buf)
	wr.SGEs = []rxe.SGE{s.far.SGE(0, n)}
	at, fault := s.check(key, s.pds[c.pd], c.own, need, wr.RemoteAddr, uint64(n))
	if fault == mr.FaultNone && op == rxe.WRAtomicCmpSwap && s.r.Intn(2) == 0 {
		wr.CompareAdd = binary.NativeEndian.Uint64(s.get(at)) // it will match
	}
	s.must(c.far.PostSend(&wr))
	c.far.RingDoorbell()
	got := s.await(c.farCQ)
	if fault != mr.FaultNone {
		s.faults[fault]++
		s.steps["attack refused"]++
		for _, k := range s.stale {
			if k == key {
				s.steps["stale refused"]++
				break
			}
		}
		s.refused(c, got, fmt.Sprintf("%d of %d bytes at %#x by key %#x (%v)", op, n, wr.RemoteAddr,
			uint32(key), fault))
		return
	}
	s.steps["attack ok"]++
	wantStatus(s.t, got, rxe.WCSuccess)
	want := data
	switch op {
	case rxe.WRRDMAWrite:
		s.put(at, data)
	case rxe.WRRDMARead:
		want = s.get(at)
	case rxe.WRAtomicWrite:
		s.atomic(at, op, binary.NativeEndian.Uint64(data), 0)
	default:
		want = binary.NativeEndian.AppendUint64(nil, s.atomic(at, op, wr.CompareAdd, wr.Swap))
	}
	s.settle() // a READ that the wire repeats is answered again, while its key lives
	if !bytes.Equal(buf, want) {
		s.t.Fatalf("%v of %d bytes at %#x by key %#x brought something else", op, n, va, uint32(key))
	}
}

// refused expects the end of a connection whose peer was refused.
func (s *keySim) refused(c *keyConn, got rxe.CQE, what string) {
	s.t.Helper()
	// A NAK that is lost is not repeated: the responder is in ERR and silent.
	if got.Status != rxe.WCRemAccessErr && !(s.lossy && got.Status == rxe.WCRetryExcErr) {
		s.t.Fatalf("the model refuses %s: %v", what, got.Status)
	}
	s.reconnect(c)
}

func (s *keySim) await(cq *rxe.CQ) rxe.CQE {
	s.t.Helper()
	var b [1]rxe.CQE
	if !s.f.RunUntil(s.f.Now()+keyPatience, func() bool { return cq.Poll(b[:]) == 1 }) {
		s.t.Fatal("no completion")
	}
	return b[0]
}

// sendInv lets the peer invalidate by SEND_WITH_INV.
func (s *keySim) sendInv(c *keyConn) {
	s.t.Helper()
	key := s.guess()
	usual := func(o *object) bool { return o.valid && o.bound == 0 && o.pd == s.pds[c.pd] }
	if o := s.pick(usual, mr.KindFast, mr.KindWindow2); o != nil && s.r.Intn(3) > 0 {
		key = o.key
	}
	s.must(c.own.PostRecv(&rxe.RecvWR{ID: 5, SGEs: []rxe.SGE{s.safe[c.pd].SGE(0, 64)}}))
	s.must(c.far.PostSend(&rxe.SendWR{ID: 6, Opcode: rxe.WRSendWithInv, Flags: rxe.SendSignaled,
		Imm: uint32(key), SGEs: []rxe.SGE{s.far.SGE(0, 8)}}))
	c.far.RingDoorbell()
	fault := s.invalidate(key, s.pds[c.pd], c.own)
	recv := s.await(c.recvs)
	if fault != mr.FaultNone {
		s.faults[fault]++
		s.steps["SEND_WITH_INV error"]++
		wantStatus(s.t, recv, rxe.WCRemInvReqErr)
		s.refused(c, s.await(c.farCQ), fmt.Sprintf("SEND_WITH_INV of %#x (%v)", uint32(key), fault))
		return
	}
	s.steps["SEND_WITH_INV ok"]++
	s.stale = append(s.stale, key)
	wantStatus(s.t, recv, rxe.WCSuccess)
	if recv.Flags != rxe.WCWithInv || recv.Imm != uint32(key) {
		s.t.Fatalf("receive completion %+v", recv)
	}
	// It may still come again, and must change nothing: least of all a registration of the same key.
	if o := s.byKey(key); o.kind == mr.KindFast && o.mapped != nil && s.r.Intn(2) == 0 {
		if on := s.conn(o); on != c && !on.held {
			o.soft = key
			s.reg(on, o)
		}
	}
	wantStatus(s.t, s.await(c.farCQ), rxe.WCSuccess)
	s.settle()
}

// localUse sends from a region named by lkey.
func (s *keySim) localUse() {
	s.t.Helper()
	key, va, n := s.target()
	c := s.conn(s.byKey(key))
	if c.held {
		return
	}
	at, fault := s.check(key, s.pds[c.pd], c.own, 0, va, uint64(min(n, keyPMTU)))
	n = min(n, keyPMTU) // one packet: one check
	clear(s.far.Buf[:n])
	s.must(c.own.PostSend(&rxe.SendWR{ID: 7, Opcode: rxe.WRRDMAWrite, Flags: rxe.SendSignaled,
		RemoteAddr: s.far.Addr, RKey: s.far.Key, SGEs: []rxe.SGE{{Addr: va, Length: uint32(n), LKey: key}}}))
	c.own.RingDoorbell()
	got := s.await(c.ownCQ)
	if fault != mr.FaultNone {
		s.faults[fault]++
		s.steps["local error"]++
		wantStatus(s.t, got, rxe.WCLocProtErr)
		s.reconnect(c)
		return
	}
	s.steps["local ok"]++
	wantStatus(s.t, got, rxe.WCSuccess)
	if !bytes.Equal(s.far.Buf[:n], s.get(at)) {
		s.t.Fatal("a local region was sent wrong")
	}
}

// race lets a WRITE or READ of several packets and an invalidation of its region run at the same
// time. Whole packets from the front may come through, and none after the invalidation's completion.
func (s *keySim) race() {
	s.t.Helper()
	const both = mr.RemoteWrite | mr.RemoteRead
	good := func(o *object) bool { return o.valid && o.bound == 0 && o.access&both == both }
	o := s.pick(good, mr.KindFast)
	c, on := s.conn(o), s.conn(o)
	if o == nil || !good(o) || on == c || on.held || s.pds[on.pd] != o.pd || s.pds[c.pd] != o.pd {
		return
	}
	n := int(o.length)
	key, at := o.key, o.bytes
	op := rxe.WRRDMAWrite
	buf := s.far.Buf[:n]
	for i := range buf {
		buf[i] = byte(s.r.Uint64()) | 1
	}
	if s.r.Intn(2) == 0 {
		op = rxe.WRRDMARead
		clear(buf)
	}
	data := bytes.Clone(buf)
	s.must(c.far.PostSend(&rxe.SendWR{ID: 1, Opcode: op, Flags: rxe.SendSignaled, RemoteAddr: o.iova,
		RKey: key, SGEs: []rxe.SGE{s.far.SGE(0, n)}}))
	c.far.RingDoorbell()
	s.f.Run(s.f.Now() + rxe.Time(s.r.Intn(12_000)))
	inv := rxe.SendWR{ID: 9, Opcode: rxe.WRLocalInv, Flags: rxe.SendSignaled, RKey: key}
	s.must(on.own.PostSend(&inv))
	on.own.RingDoorbell()
	wantStatus(s.t, s.await(on.ownCQ), rxe.WCSuccess)
	o.free()
	s.stale = append(s.stale, key)
	landed := 0 // bytes of the WRITE that have come through: whole packets from the front
	if op == rxe.WRRDMAWrite {
		now := make([]byte, n)
		for i, p := range at {
			now[i] = s.arena[p]
		}
		for end := 0; landed < n; landed = end {
			if end = min(landed+keyPMTU, n); !bytes.Equal(now[landed:end], data[landed:end]) {
				break
			}
		}
		s.put(at[:landed], data[:landed])
		s.verifyMemory("at the completion of the invalidation")
	}
	before := s.get(at)
	for _, p := range at { // the application uses its memory again
		s.arena[p] ^= 0x55
		s.mem[p] = s.arena[p]
	}
	var b [1]rxe.CQE
	if c.farCQ.Poll(b[:]) == 0 {
		b[0] = s.await(c.farCQ)
	}
	s.settle()
	s.verifyMemory("after the invalidation")
	if op == rxe.WRRDMARead {
		for i := range buf {
			if buf[i] != before[i] && buf[i] != 0 {
				s.t.Fatalf("byte %d of the READ is of after the invalidation", i)
			}
		}
	}
	if b[0].Status == rxe.WCSuccess {
		s.steps["race won"]++
		if op == rxe.WRRDMAWrite && landed != n || op == rxe.WRRDMARead && !bytes.Equal(buf, before) {
			s.t.Fatal("a success that was not one")
		}
		s.repeated(op)
		return
	}
	s.steps["race cut"]++
	s.faults[mr.FaultState]++
	s.repeated(op)
	s.refused(c, b[0], "an access that an invalidation has cut")
}

// repeated takes note of a READ that has been answered and that the wire repeats: each copy is
// refused, and ends nothing.
func (s *keySim) repeated(op rxe.WROpcode) {
	if !s.lossy || op != rxe.WRRDMARead {
		return
	}
	n := uint64(0)
	for _, sh := range s.owner.Dev.Shards() {
		n += sh.C.KeyFaults[mr.FaultState]
	}
	s.faults[mr.FaultState] = max(s.faults[mr.FaultState], n)
}

func (s *keySim) verifyMemory(when string) {
	s.t.Helper()
	if !bytes.Equal(s.arena, s.mem) {
		s.t.Fatalf("memory is not what it must be %s", when)
	}
}
