package rxe_test

import (
	"encoding/binary"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// drop is a packet that is dropped without an answer.
type drop struct {
	name   string
	typ    rxe.QPType
	state  rxe.QPState
	frame  func(p *rawPeer) []byte
	reason rxe.Reason
	perQP  bool // the QP's own counters know of it, too
}

// plain is a SEND that would be taken.
func plain(p *rawPeer) packet {
	switch p.q.Type() {
	case rxe.UC:
		return packet{op: wire.UCSendOnly, psn: firstPSN, payload: fill(8, 1)}
	case rxe.UD, rxe.GSI:
		return p.datagram(1, 8)
	}
	return packet{op: wire.RCSendOnly, psn: firstPSN, payload: fill(8, 1)}
}

// patched changes one byte of a good frame; the checksum of an IPv4 header is made right again.
func patched(at int, x byte) func(p *rawPeer) []byte {
	return func(p *rawPeer) []byte {
		f := p.frame(plain(p))
		f[at] ^= x
		if at >= 14 && at < 34 && at != 24 && at != 25 {
			f[24], f[25] = 0, 0
			var sum uint32
			for i := 14; i < 34; i += 2 {
				sum += uint32(binary.BigEndian.Uint16(f[i:]))
			}
			sum = sum&0xffff + sum>>16
			binary.BigEndian.PutUint16(f[24:], ^uint16(sum+sum>>16))
		}
		return f
	}
}

func sealed(change func(p *rawPeer, k *packet)) func(p *rawPeer) []byte {
	return func(p *rawPeer) []byte {
		k := plain(p)
		change(p, &k)
		return p.frame(k)
	}
}

// raw is a packet of any opcode with n bytes behind its BTH.
func raw(op wire.Opcode, n int) func(p *rawPeer) []byte {
	return func(p *rawPeer) []byte {
		b := make([]byte, 4096)
		p.tmpl.Begin(b, op)
		(*wire.BTH)(b[p.tmpl.BTHOffset():]).SetPSN(firstPSN)
		return b[:p.tmpl.Finish(wire.Frame{Head: b}, op, n)]
	}
}

func drops() []drop {
	rts, rtr := rxe.StateRTS, rxe.StateRTR
	whole := func(c func(p *rawPeer, k *packet)) func(p *rawPeer) []byte { return sealed(c) }
	return []drop{
		{"cut short", rxe.RC, rts, func(p *rawPeer) []byte { return p.frame(plain(p))[:30] }, rxe.Reason(wire.ReasonShort), false},
		{"other EtherType", rxe.RC, rts, patched(12, 1), rxe.Reason(wire.ReasonEthertype), false},
		{"IP version 6 behind IPv4's EtherType", rxe.RC, rts, patched(14, 0x20), rxe.Reason(wire.ReasonIPVersion), false},
		{"IP header of 16 bytes", rxe.RC, rts, patched(14, 1), rxe.Reason(wire.ReasonIPHeader), false},
		{"IP length beyond the frame", rxe.RC, rts, patched(16, 0x40), rxe.Reason(wire.ReasonIPLength), false},
		{"IP checksum", rxe.RC, rts, patched(24, 1), rxe.Reason(wire.ReasonIPChecksum), false},
		{"fragment", rxe.RC, rts, patched(20, 0x20), rxe.Reason(wire.ReasonFragment), false},
		{"TCP", rxe.RC, rts, patched(23, 17^6), rxe.Reason(wire.ReasonNotUDP), false},
		{"other port", rxe.RC, rts, patched(37, 1), rxe.Reason(wire.ReasonPort), false},
		{"UDP length", rxe.RC, rts, patched(39, 4), rxe.Reason(wire.ReasonUDPLength), false},
		{"Case17 unknown opcode", rxe.RC, rts, raw(0xff, 0), rxe.Reason(wire.ReasonOpcode), false},
		{"XRC", rxe.RC, rts, raw(0xa4, 0), rxe.Reason(wire.ReasonOpcode), false},
		{"TVer", rxe.RC, rts, patched(43, 1), rxe.Reason(wire.ReasonTVer), false},
		{"payload in an ACK", rxe.RC, rts, raw(wire.RCAck, 4), rxe.Reason(wire.ReasonLength), false},
		{"Case16 more padding than payload", rxe.RC, rts, func(p *rawPeer) []byte {
			f := p.frame(packet{op: wire.RCSendOnly, psn: firstPSN})
			f[43] |= 0x30
			return f
		}, rxe.Reason(wire.ReasonPad), false},
		{"ICRC", rxe.RC, rts, patched(60, 1), rxe.Reason(wire.ReasonICRC), false},
		{"no such QP", rxe.RC, rts, whole(func(p *rawPeer, _ *packet) { p.tmpl.Init(&p.path, p.q.QPN()^1, 0xffff) }), rxe.ReasonNoQP, false},
		{"QP 0", rxe.RC, rts, whole(func(p *rawPeer, _ *packet) { p.tmpl.Init(&p.path, 0, 0xffff) }), rxe.ReasonNoQP, false},
		{"UD packet for RC", rxe.RC, rts, whole(func(p *rawPeer, k *packet) { *k = p.datagram(1, 8) }), rxe.ReasonQPType, true},
		{"RC packet for UC", rxe.UC, rts, whole(func(_ *rawPeer, k *packet) { k.op = wire.RCSendOnly }), rxe.ReasonQPType, true},
		{"RC packet for UD", rxe.UD, rts, whole(func(_ *rawPeer, k *packet) { k.op = wire.RCSendOnly }), rxe.ReasonQPType, true},
		{"CNP", rxe.RC, rts, raw(wire.CNP, 0), rxe.ReasonQPType, true},
		{"RESET", rxe.RC, rxe.StateReset, nil, rxe.ReasonQPState, true},
		{"INIT", rxe.RC, rxe.StateInit, nil, rxe.ReasonQPState, true},
		{"ERR", rxe.RC, rxe.StateErr, nil, rxe.ReasonQPState, true},
		{"response in RTR", rxe.RC, rtr, whole(func(_ *rawPeer, k *packet) { *k = ack(ourPSN) }), rxe.ReasonQPState, true},
		{"UC in INIT", rxe.UC, rxe.StateInit, nil, rxe.ReasonQPState, true},
		{"UD in INIT", rxe.UD, rxe.StateInit, nil, rxe.ReasonQPState, true},
		{"from another address", rxe.RC, rts, whole(func(p *rawPeer, _ *packet) { p.path.Src[15]++; p.tmpl.Init(&p.path, p.q.QPN(), 0xffff) }), rxe.ReasonAddress, true},
		{"to another address", rxe.UC, rts, whole(func(p *rawPeer, _ *packet) { p.path.Dst[15]++; p.tmpl.Init(&p.path, p.q.QPN(), 0xffff) }), rxe.ReasonAddress, true},
		{"datagram to another address", rxe.UD, rts, whole(func(p *rawPeer, _ *packet) { p.path.Dst[15]++; p.tmpl.Init(&p.path, p.q.QPN(), 0xffff) }), rxe.ReasonNotLocal, true},
		{"P_Key", rxe.RC, rts, whole(func(p *rawPeer, _ *packet) { p.tmpl.Init(&p.path, p.q.QPN(), 0x8001) }), rxe.ReasonPKey, true},
		{"Q_Key", rxe.UD, rts, whole(func(_ *rawPeer, k *packet) { k.qkey++ }), rxe.ReasonQKey, true},
		{"no such group", rxe.UD, rts, whole(func(p *rawPeer, _ *packet) {
			p.path.Dst = wire.GIDFromIPv4([4]byte{239, 9, 9, 9})
			p.tmpl.Init(&p.path, rxe.QPNMulti, 0xffff)
		}), rxe.ReasonNoGroup, false},
		{"datagram longer than the receive", rxe.UD, rts, whole(func(p *rawPeer, k *packet) { k.payload = fill(961, 1) }), rxe.ReasonRecvTooSmall, true},
		{"ACK of nothing", rxe.RC, rts, whole(func(_ *rawPeer, k *packet) { *k = ack(ourPSN) }), rxe.ReasonStaleAck, true},
		{"duplicate READ that is forgotten", rxe.RC, rts, whole(func(p *rawPeer, k *packet) { *k = p.read(firstPSN.Add(wire.PSNMask), 0, 8) }), rxe.ReasonReplayGone, true},
		{"middle of nothing, UC", rxe.UC, rts, whole(func(_ *rawPeer, k *packet) { k.op, k.payload = wire.UCSendMiddle, fill(256, 1) }), rxe.ReasonOpSequence, true},
		{"gap, UC", rxe.UC, rts, whole(func(_ *rawPeer, k *packet) { k.op, k.psn = wire.UCSendLast, k.psn.Add(7) }), rxe.ReasonUCGap, true},
	}
}

// TestEveryDropCounted: whatever is dropped without an answer leaves one count under its reason, costs
// no receive WQE, changes no state, and the QP takes the next good packet.
func TestEveryDropCounted(t *testing.T) {
	for _, d := range drops() {
		t.Run(d.name, func(t *testing.T) {
			p := qpIn(t, d.state, rawConfig{typ: d.typ})
			if d.state != rxe.StateReset && d.state != rxe.StateErr {
				p.recv(1, 1000)
			}
			good := p.tmpl
			if d.frame == nil {
				d.frame = func(p *rawPeer) []byte { return p.frame(plain(p)) }
			}
			f := d.frame(p)
			path := p.path
			p.s.Enter()
			p.s.Receive(p.now, wire.Frame{Head: f})
			if out := p.run(); len(out) != 0 {
				t.Fatalf("answered %+v", out)
			}
			var total uint64
			for _, n := range p.s.C.Drops {
				total += n
			}
			if p.s.C.Drops[d.reason] != 1 || total != 1 {
				t.Errorf("%v counted %d times, %d drops in all", d.reason, p.s.C.Drops[d.reason], total)
			}
			if got := p.q.Stats.Drops == 1 && p.q.Stats.LastDrop == d.reason; got != d.perQP {
				t.Errorf("per QP: %d drops, last %v", p.q.Stats.Drops, p.q.Stats.LastDrop)
			}
			p.wantWC()
			p.state(d.state)
			if len(p.events) != 0 {
				t.Errorf("events %+v", p.events)
			}
			if d.state != rxe.StateRTS && d.state != rxe.StateRTR {
				return
			}
			p.tmpl, p.path = good, path
			k := plain(p)
			if d.typ == rxe.UC { // the next message begins wherever it begins
				k.psn = firstPSN.Add(9)
			}
			p.inject(k)
			p.wantWC("1:success")
		})
	}
}

// TestNoReceiveDrops: without a receive WQE a datagram and a UC message are dropped, an RC message is
// an RNR NAK; all are counted alike.
func TestNoReceiveDrops(t *testing.T) {
	for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ})
		out := p.inject(plain(p))
		if (len(out) == 1) != (typ == rxe.RC) || p.s.C.Drops[rxe.ReasonNoRecvWQE] != 1 || p.q.Stats.LastDrop != rxe.ReasonNoRecvWQE {
			t.Errorf("%v: %d answers, counted %d", typ, len(out), p.s.C.Drops[rxe.ReasonNoRecvWQE])
		}
		p.state(rxe.StateRTS)
	}
}

// TestReasonTexts: every reason, status, opcode, event and state has a text of its own.
func TestReasonTexts(t *testing.T) {
	seen := map[string]bool{}
	check := func(s string) {
		t.Helper()
		if s == "" || s == "unknown" || seen[s] {
			t.Errorf("text %q", s)
		}
		seen[s] = true
	}
	for r := rxe.Reason(0); r < rxe.NumReasons; r++ {
		check(r.String())
	}
	for s := rxe.WCSuccess; s <= rxe.WCGeneralErr; s++ {
		check(s.String())
	}
	for _, o := range []rxe.WCOpcode{rxe.WCSend, rxe.WCRDMAWrite, rxe.WCRDMARead, rxe.WCCompSwap, rxe.WCFetchAdd, rxe.WCBindMW,
		rxe.WCLocalInv, rxe.WCFlush, rxe.WCAtomicWrite, rxe.WCRegMR, rxe.WCRecv, rxe.WCRecvRDMAWithImm} {
		check(o.String())
	}
	for _, e := range []rxe.EventType{rxe.EventCQErr, rxe.EventQPFatal, rxe.EventQPReqErr, rxe.EventQPAccessErr, rxe.EventCommEst,
		rxe.EventSQDrained, rxe.EventDeviceFatal, rxe.EventPortActive, rxe.EventPortErr, rxe.EventSRQErr, rxe.EventSRQLimit,
		rxe.EventQPLastWQE, rxe.EventGIDChange, rxe.EventCompletion} {
		check(e.String())
	}
	for s := rxe.StateReset; s <= rxe.StateErr; s++ {
		check(s.String())
	}
	for _, q := range []rxe.QPType{rxe.GSI, rxe.RC, rxe.UC, rxe.UD} {
		check(q.String())
	}
	for _, s := range []string{rxe.NumReasons.String(), rxe.WCStatus(200).String(), rxe.WCOpcode(200).String(), rxe.EventType(99).String(),
		rxe.QPState(9).String(), rxe.QPType(9).String()} {
		if s != "unknown" {
			t.Errorf("text %q of no such thing", s)
		}
	}
	e := &rxe.AttrError{From: rxe.StateInit, To: rxe.StateRTR, Type: rxe.RC, Missing: rxe.AttrAV | rxe.AttrDestQPN}
	check(e.Error())
	check((&rxe.AttrError{Extra: rxe.AttrCap}).Error())
	check((&rxe.AttrError{From: rxe.StateErr, To: rxe.StateRTS}).Error())
	if got := e.Missing.String(); got != "AV|DEST_QPN" {
		t.Errorf("mask %q", got)
	}
}

// TestCounterNames: every counter is listed once, under a name of its own, rxe's among them.
func TestCounterNames(t *testing.T) {
	var c rxe.Counters
	n := rxe.FillCounters(&c)
	names, values := map[string]bool{}, map[uint64]bool{}
	for _, x := range c.List() {
		if names[x.Name+x.Label] || values[x.Value] || x.Name == "" {
			t.Errorf("%+v is listed twice", x)
		}
		names[x.Name+x.Label], values[x.Value] = true, true
	}
	if len(values) != n {
		t.Errorf("%d of %d counters listed", len(values), n)
	}
	for _, name := range []string{"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err",
		"send_rnr_err", "rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
		"send_err", "rdma_sends", "rdma_recvs"} { // link_downed is the port's
		if !names[name] {
			t.Errorf("no %s", name)
		}
	}
}

// TestCountersAdd: the sum of counters takes every one of them.
func TestCountersAdd(t *testing.T) {
	var a, b rxe.Counters
	n := rxe.FillCounters(&b)
	a.Add(&b)
	a.Add(&b)
	if got := rxe.CountersOf(&a); len(got) != n {
		t.Fatalf("%d counters", len(got))
	} else {
		for i, v := range got {
			if v != 2*uint64(i+1) {
				t.Errorf("counter %d is %d, want %d", i, v, 2*(i+1))
			}
		}
	}
}
