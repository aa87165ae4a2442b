package rxe_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
)

const allMask = rxe.AttrMask(1<<21 - 1)

// TestTransitions walks the whole table: each transition with exactly the required attributes,
// with each of them missing, and with each attribute that is neither required nor optional.
func TestTransitions(t *testing.T) {
	type key struct {
		typ      rxe.QPType
		from, to rxe.QPState
	}
	conn := rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrAccessFlags
	dg := rxe.AttrPKeyIndex | rxe.AttrPort | rxe.AttrQKey
	rtr := rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN
	rtsRC := rxe.AttrTimeout | rxe.AttrRetryCnt | rxe.AttrRNRRetry | rxe.AttrSQPSN | rxe.AttrMaxQPRdAtomic
	required := map[key]rxe.AttrMask{
		{rxe.RC, rxe.StateReset, rxe.StateInit}: conn, {rxe.UC, rxe.StateReset, rxe.StateInit}: conn,
		{rxe.UD, rxe.StateReset, rxe.StateInit}: dg, {rxe.GSI, rxe.StateReset, rxe.StateInit}: dg,
		{rxe.RC, rxe.StateInit, rxe.StateRTR}: rtr | rxe.AttrMaxDestRdAtomic | rxe.AttrMinRNRTimer,
		{rxe.UC, rxe.StateInit, rxe.StateRTR}: rtr, {rxe.UD, rxe.StateInit, rxe.StateRTR}: 0,
		{rxe.RC, rxe.StateRTR, rxe.StateRTS}: rtsRC, {rxe.UC, rxe.StateRTR, rxe.StateRTS}: rxe.AttrSQPSN,
		{rxe.UD, rxe.StateRTR, rxe.StateRTS}: rxe.AttrSQPSN,
	}
	for k, mask := range required {
		t.Run(fmt.Sprintf("%v/%v-%v", k.typ, k.from, k.to), func(t *testing.T) {
			try := func(m rxe.AttrMask) error {
				p := qpIn(t, k.from, rawConfig{typ: k.typ})
				a := p.q.Query()
				a.State, a.Port, a.PathMTU = k.to, 1, 256
				return p.q.Modify(&a, m|rxe.AttrState)
			}
			if err := try(mask); err != nil {
				t.Fatalf("with %v: %v", mask, err)
			}
			for b := rxe.AttrMask(1); b < allMask; b <<= 1 {
				var e *rxe.AttrError
				if mask&b != 0 && (!errors.As(try(mask&^b), &e) || e.Missing != b) {
					t.Errorf("without %v: no error names it", b)
				}
			}
			if err := try(mask | rxe.AttrCap); err == nil {
				t.Error("CAP accepted")
			}
		})
	}
}

// TestNoTransition: what is not in the table is refused and changes nothing.
func TestNoTransition(t *testing.T) {
	for _, c := range []struct{ from, to rxe.QPState }{
		{rxe.StateReset, rxe.StateRTR}, {rxe.StateReset, rxe.StateRTS}, {rxe.StateReset, rxe.StateErr},
		{rxe.StateInit, rxe.StateRTS}, {rxe.StateInit, rxe.StateSQD}, {rxe.StateRTR, rxe.StateInit},
		{rxe.StateRTR, rxe.StateSQD}, {rxe.StateRTS, rxe.StateRTR}, {rxe.StateRTS, rxe.StateSQE},
		{rxe.StateErr, rxe.StateRTS}, {rxe.StateErr, rxe.StateInit}, {rxe.StateSQD, rxe.StateRTR},
	} {
		p := qpIn(t, c.from, rawConfig{})
		if err := p.q.Modify(&rxe.QPAttr{State: c.to}, rxe.AttrState); err == nil {
			t.Errorf("%v to %v accepted", c.from, c.to)
		}
		p.state(c.from)
	}
}

// TestResetAndErr are reachable from everywhere the rules say.
func TestResetAndErr(t *testing.T) {
	for st := rxe.StateReset; st <= rxe.StateErr; st++ {
		if st == rxe.StateSQE {
			continue
		}
		p := qpIn(t, st, rawConfig{})
		if err := p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState); (err != nil) != (st == rxe.StateReset) {
			t.Errorf("%v to ERR: %v", st, err)
		}
		if err := p.q.Modify(&rxe.QPAttr{State: rxe.StateReset}, rxe.AttrState); err != nil {
			t.Errorf("%v to RESET: %v", st, err)
		}
		p.state(rxe.StateReset)
	}
}

// TestAttrValues: values out of range are refused by name.
func TestAttrValues(t *testing.T) {
	for _, c := range []struct {
		mask rxe.AttrMask
		set  func(*rxe.QPAttr)
	}{
		{rxe.AttrPort, func(a *rxe.QPAttr) { a.Port = 2 }},
		{rxe.AttrPKeyIndex, func(a *rxe.QPAttr) { a.PKeyIndex = 1 }},
	} {
		p := qpIn(t, rxe.StateInit, rawConfig{})
		a := p.q.Query()
		c.set(&a)
		if err := p.q.Modify(&a, c.mask); !errors.Is(err, rxe.ErrAttrValue) {
			t.Errorf("%v: %v", c.mask, err)
		}
	}
	for name, set := range map[string]func(*rxe.QPAttr){
		"PATH_MTU": func(a *rxe.QPAttr) { a.PathMTU = 300 }, "PSN": func(a *rxe.QPAttr) { a.RQPSN = 1 << 24 },
		"QPN": func(a *rxe.QPAttr) { a.DestQPN = 1 << 24 }, "TIMER": func(a *rxe.QPAttr) { a.MinRNRTimer = 32 },
		"DEPTH": func(a *rxe.QPAttr) { a.MaxDestRdAtomic = 129 },
	} {
		p := qpIn(t, rxe.StateInit, rawConfig{})
		a := p.q.Query()
		a.State, a.PathMTU = rxe.StateRTR, 256
		set(&a)
		m := rxe.AttrState | rxe.AttrAV | rxe.AttrPathMTU | rxe.AttrDestQPN | rxe.AttrRQPSN | rxe.AttrMaxDestRdAtomic | rxe.AttrMinRNRTimer
		if err := p.q.Modify(&a, m); !errors.Is(err, rxe.ErrAttrValue) {
			t.Errorf("%s: %v", name, err)
		}
		p.state(rxe.StateInit)
	}
}

// TestCase55PostByState is the table state × verb.
func TestCase55PostByState(t *testing.T) {
	send := []bool{false, false, false, true, true, true, true}
	recv := []bool{false, true, true, true, true, true, true}
	for st := rxe.StateReset; st <= rxe.StateErr; st++ {
		if st == rxe.StateSQE {
			continue
		}
		p := qpIn(t, st, rawConfig{})
		err := p.q.PostSend(&rxe.SendWR{Opcode: rxe.WRSend})
		if (err == nil) != send[st] || err != nil && !errors.Is(err, rxe.ErrBadState) {
			t.Errorf("%v: post send: %v", st, err)
		}
		err = p.q.PostRecv(&rxe.RecvWR{})
		if (err == nil) != recv[st] || err != nil && !errors.Is(err, rxe.ErrBadState) {
			t.Errorf("%v: post recv: %v", st, err)
		}
	}
}

// TestCase56PostLimits: full queues and work requests beyond the capabilities are refused at post, and
// depth exactly as asked works.
func TestCase56PostLimits(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{sendWR: 5, recvWR: 3})
	for i := 0; i < 5; i++ {
		p.must(p.q.PostSend(&rxe.SendWR{Opcode: rxe.WRSend}))
	}
	if err := p.q.PostSend(&rxe.SendWR{Opcode: rxe.WRSend}); !errors.Is(err, rxe.ErrQueueFull) {
		t.Errorf("sixth send: %v", err)
	}
	for i := 0; i < 3; i++ {
		p.recv(uint64(i), 8)
	}
	if err := p.q.PostRecv(&rxe.RecvWR{}); !errors.Is(err, rxe.ErrQueueFull) {
		t.Errorf("fourth recv: %v", err)
	}
	for i := 0; i < 10; i++ { // each message frees its slot at once
		p.inject(packet{op: 0x04, psn: firstPSN.Add(uint32(i))})
		p.recv(9, 8)
	}
	p = qpIn(t, rxe.StateRTS, rawConfig{})
	sge := p.mem.SGE(0, 8)
	for name, c := range map[string]struct {
		wr  rxe.SendWR
		err error
	}{
		"sge":       {rxe.SendWR{Opcode: rxe.WRSend, SGEs: make([]rxe.SGE, 5)}, rxe.ErrTooManySGE},
		"inline":    {rxe.SendWR{Opcode: rxe.WRSend, Flags: rxe.SendInline, Inline: make([]byte, 129)}, rxe.ErrInlineSize},
		"opcode":    {rxe.SendWR{Opcode: 99}, rxe.ErrBadOpcode},
		"alignment": {rxe.SendWR{Opcode: rxe.WRAtomicFetchAdd, SGEs: []rxe.SGE{sge}, RemoteAddr: 4}, rxe.ErrAlignment},
		"size":      {rxe.SendWR{Opcode: rxe.WRAtomicCmpSwap, SGEs: []rxe.SGE{p.mem.SGE(0, 4)}}, rxe.ErrAlignment},
		"message":   {rxe.SendWR{Opcode: rxe.WRSend, SGEs: []rxe.SGE{{Length: 1 << 31}, {Length: 1}}}, rxe.ErrMsgSize},
		"read":      {rxe.SendWR{Opcode: rxe.WRRDMARead, SGEs: []rxe.SGE{{Length: 1 << 31}}}, rxe.ErrReadLen},
	} {
		if err := p.q.PostSend(&c.wr); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSQD: a draining send queue finishes what it has begun, reports it once, starts nothing new,
// and goes on after RTS.
func TestSQD(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{})
	p.post(p.writeWR(1, 8))
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD, EnSQDAsyncNotify: true}, rxe.AttrState|rxe.AttrEnSQDAsyncNotify))
	if s := p.post(p.writeWR(2, 8)); len(s) != 0 {
		t.Fatal("started a message in SQD")
	}
	if len(p.events) != 0 {
		t.Fatal("drained before the ACK")
	}
	if err := p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState); err == nil {
		t.Fatal("RTS accepted while draining")
	}
	p.inject(ack(ourPSN))
	if len(p.events) != 1 || p.events[0].Type != rxe.EventSQDrained || p.events[0].QP != p.q {
		t.Fatalf("events %+v", p.events)
	}
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
	one(t, p.run())
	p.inject(ack(ourPSN.Next()))
	p.wantWC("1:success", "2:success")
}

// TestCommEstablished: the first packet in RTR is reported once.
func TestCommEstablished(t *testing.T) {
	p := qpIn(t, rxe.StateRTR, rawConfig{})
	p.inject(p.write(firstPSN, 0, 8))
	p.inject(p.write(firstPSN.Next(), 0, 8))
	if len(p.events) != 1 || p.events[0].Type != rxe.EventCommEst {
		t.Fatalf("events %+v", p.events)
	}
}
