package rxe_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// attrs are the attributes of one transition by transport: required and optional.
type attrs struct{ rcReq, rcOpt, ucReq, ucOpt, udReq, udOpt rxe.AttrMask }

type fromTo struct{ from, to rxe.QPState }

// transitionTable is the table of 2.10, written down once more. RESET and ERR stand in anyState.
func transitionTable() map[fromTo]attrs {
	const (
		pk, port, acc, qkey    = rxe.AttrPKeyIndex, rxe.AttrPort, rxe.AttrAccessFlags, rxe.AttrQKey
		av, pmtu, dest, rq, sq = rxe.AttrAV, rxe.AttrPathMTU, rxe.AttrDestQPN, rxe.AttrRQPSN, rxe.AttrSQPSN
		dra, ra, rnrt          = rxe.AttrMaxDestRdAtomic, rxe.AttrMaxQPRdAtomic, rxe.AttrMinRNRTimer
		to, rc, rnrr           = rxe.AttrTimeout, rxe.AttrRetryCnt, rxe.AttrRNRRetry
		alt, mig, cur, note    = rxe.AttrAltPath, rxe.AttrPathMigState, rxe.AttrCurState, rxe.AttrEnSQDAsyncNotify
	)
	live := cur | alt | acc | mig
	return map[fromTo]attrs{
		{rxe.StateReset, rxe.StateInit}: {pk | port | acc, 0, pk | port | acc, 0, pk | port | qkey, 0},
		{rxe.StateInit, rxe.StateInit}:  {0, pk | port | acc, 0, pk | port | acc, 0, pk | port | qkey},
		{rxe.StateInit, rxe.StateRTR}: {av | pmtu | dest | rq | dra | rnrt, alt | acc | pk,
			av | pmtu | dest | rq, alt | acc | pk, 0, pk | qkey},
		{rxe.StateRTR, rxe.StateRTS}: {to | rc | rnrr | sq | ra, live | rnrt, sq, live, sq, cur | qkey},
		{rxe.StateRTS, rxe.StateRTS}: {0, live | rnrt, 0, live, 0, cur | qkey},
		{rxe.StateRTS, rxe.StateSQD}: {0, note, 0, note, 0, note},
		{rxe.StateSQD, rxe.StateSQD}: {0, port | av | to | rc | rnrr | ra | dra | alt | acc | pk | rnrt | mig,
			0, port | av | alt | acc | pk | mig, 0, pk | qkey},
		{rxe.StateSQD, rxe.StateRTS}: {0, live | rnrt, 0, live, 0, cur | qkey},
	}
}

// sqeToRTS is for the unreliable services only: an RC QP never enters SQE.
var sqeToRTS = attrs{0, 0, 0, rxe.AttrCurState | rxe.AttrAccessFlags, 0, rxe.AttrCurState | rxe.AttrQKey}

func (a attrs) of(t rxe.QPType) (req, opt rxe.AttrMask) {
	switch t {
	case rxe.RC:
		return a.rcReq, a.rcOpt
	case rxe.UC:
		return a.ucReq, a.ucOpt
	}
	return a.udReq, a.udOpt
}

// TestTransitionTable: every transport, every pair of states, every attribute: what the table has is
// accepted, a missing or foreign attribute is named in the error, all else is no transition.
func TestTransitionTable(t *testing.T) {
	types := []rxe.QPType{rxe.RC, rxe.UC, rxe.UD, rxe.GSI}
	if raceEnabled {
		types = types[1:2]
	}
	for _, typ := range types {
		table := transitionTable()
		if typ != rxe.RC {
			table[fromTo{rxe.StateSQE, rxe.StateRTS}] = sqeToRTS
		}
		for from := rxe.StateReset; from <= rxe.StateErr; from++ {
			if from == rxe.StateSQE && typ == rxe.RC {
				continue
			}
			for to := rxe.StateReset; to <= rxe.StateErr; to++ {
				a, listed := table[fromTo{from, to}]
				anyState := to == rxe.StateReset || to == rxe.StateErr && from != rxe.StateReset
				if anyState {
					a, listed = attrs{0, rxe.AttrCurState, 0, rxe.AttrCurState, 0, rxe.AttrCurState}, true
				}
				req, opt := a.of(typ)
				oneTransition(t, typ, from, to, listed, req, opt)
			}
		}
	}
}

func oneTransition(t *testing.T, typ rxe.QPType, from, to rxe.QPState, listed bool, req, opt rxe.AttrMask) {
	t.Helper()
	name := fmt.Sprintf("%v %v to %v", typ, from, to)
	p := qpIn(t, from, rawConfig{typ: typ})
	try := func(mask rxe.AttrMask) error {
		a := p.q.Query()
		a.State, a.CurState, a.Port, a.PathMTU = to, from, 1, 256
		err := p.q.Modify(&a, mask|rxe.AttrState)
		if err == nil {
			p = qpIn(t, from, rawConfig{typ: typ}) // the next attempt
		} else if got := p.q.State(); got != from {
			t.Errorf("%s with %v failed, but the QP is in %v", name, mask, got)
		}
		return err
	}
	for b := rxe.AttrCurState; b < allMask; b <<= 1 {
		err := try(req | b)
		var ae *rxe.AttrError
		switch {
		case !listed && (!errors.As(err, &ae) || ae.Missing|ae.Extra != 0):
			t.Errorf("%s with %v: %v", name, b, err)
		case listed && (req|opt)&b != 0 && err != nil:
			t.Errorf("%s with %v: %v", name, b, err)
		case listed && (req|opt)&b == 0 && (!errors.As(err, &ae) || ae.Extra != b):
			t.Errorf("%s with %v, which is not allowed: %v", name, b, err)
		}
		if !listed {
			return
		}
		if req&b != 0 {
			if err := try(req &^ b); !errors.As(err, &ae) || ae.Missing != b {
				t.Errorf("%s without %v: %v", name, b, err)
			}
		}
	}
}

// TestStateVerb is the table state × verb × packets of 2.10 for all transports.
func TestStateVerb(t *testing.T) {
	type row struct{ post, recv, serves bool }
	table := map[rxe.QPState]row{
		rxe.StateReset: {false, false, false}, rxe.StateInit: {false, true, false}, rxe.StateRTR: {false, true, true},
		rxe.StateRTS: {true, true, true}, rxe.StateSQD: {true, true, true}, rxe.StateSQE: {true, true, true},
		rxe.StateErr: {true, true, false},
	}
	for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
		for st, want := range table {
			if st == rxe.StateSQE && typ == rxe.RC {
				continue
			}
			p := qpIn(t, st, rawConfig{typ: typ})
			wr := rxe.SendWR{ID: 5, Opcode: rxe.WRSend, Flags: rxe.SendSignaled}
			if typ == rxe.UD {
				wr.AH = p.ah(p.ours()).Num()
			}
			check := func(verb string, err error, ok bool) {
				t.Helper()
				if (err == nil) != ok || err != nil && !errors.Is(err, rxe.ErrBadState) {
					t.Errorf("%v in %v: %s: %v", typ, st, verb, err)
				}
			}
			check("post send", p.q.PostSend(&wr), want.post)
			check("post recv", p.q.PostRecv(&rxe.RecvWR{ID: 6, SGEs: []rxe.SGE{p.mem.SGE(0, 500)}}), want.recv)
			p.q.RingDoorbell()
			sentNow := len(p.run())
			if ok := st == rxe.StateRTS; (sentNow == 1) != ok {
				t.Errorf("%v in %v: %d packets sent", typ, st, sentNow)
			}
			if st == rxe.StateErr {
				p.wantWC("5:Work Request Flushed Error", "6:Work Request Flushed Error")
			} else if st == rxe.StateSQE {
				p.wantWC("5:Work Request Flushed Error")
			} else if st == rxe.StateRTS && typ != rxe.RC {
				p.wantWC("5:success")
			}
			p.inject(plain(p))
			if got := p.poll(); (len(got) == 1 && got[0].WRID == 6 && got[0].Status == rxe.WCSuccess) != want.serves {
				t.Errorf("%v in %v: receives %+v", typ, st, got)
			}
			if !want.serves && p.s.C.Drops[rxe.ReasonQPState] != 1 {
				t.Errorf("%v in %v: drop not counted", typ, st)
			}
		}
	}
}

// TestSQDFinishes: in SQD the message begun is finished, packets and all; retransmission, RNR wait and
// READ answers go on; the event comes when all is done, once.
func TestSQDFinishes(t *testing.T) {
	p := qpIn(t, rxe.StateRTS, rawConfig{retry: 7, rnr: 7})
	out := p.post(p.writeWR(1, 256*20)) // the window is 16
	if len(out) != 16 {
		t.Fatalf("%d packets", len(out))
	}
	p.post(p.writeWR(2, 8))
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD, EnSQDAsyncNotify: true}, rxe.AttrState|rxe.AttrEnSQDAsyncNotify))
	out = p.inject(ack(ourPSN.Add(7)))
	if len(out) != 4 || out[3].op != wire.RCWriteLast {
		t.Fatalf("the message goes on with %+v", out)
	}
	if out = p.inject(nak(ourPSN.Add(9), wire.NAKPSNSeq)); len(out) != 11 {
		t.Fatalf("%d packets sent again, want 11", len(out))
	}
	if len(p.events) != 0 {
		t.Fatal("drained before its end")
	}
	p.inject(ack(ourPSN.Add(19)))
	p.wantWC("1:success")
	wantEvent(t, p.events, rxe.EventSQDrained, p.q)
	if out = p.advance(1000 * ms); len(out) != 0 {
		t.Fatalf("sent in SQD: %+v", out)
	}
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateRTS}, rxe.AttrState))
	one(t, p.run())
	wantEvent(t, p.events, rxe.EventSQDrained, p.q)

	// A queue with nothing outstanding is drained at once; so is one of UC and UD.
	for _, typ := range []rxe.QPType{rxe.RC, rxe.UC, rxe.UD} {
		p := qpIn(t, rxe.StateRTS, rawConfig{typ: typ})
		p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD, EnSQDAsyncNotify: true}, rxe.AttrState|rxe.AttrEnSQDAsyncNotify))
		p.run()
		wantEvent(t, p.events, rxe.EventSQDrained, p.q)
		p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateErr}, rxe.AttrState))
	}
	// An error while draining ends in ERR, without the event.
	p = qpIn(t, rxe.StateRTS, rawConfig{})
	p.post(p.writeWR(1, 8))
	p.must(p.q.Modify(&rxe.QPAttr{State: rxe.StateSQD, EnSQDAsyncNotify: true}, rxe.AttrState|rxe.AttrEnSQDAsyncNotify))
	p.inject(nak(ourPSN, wire.NAKRemoteAccess))
	p.wantWC("1:remote access error")
	p.state(rxe.StateErr)
	if len(p.events) != 0 {
		t.Fatalf("events %+v", p.events)
	}
}
